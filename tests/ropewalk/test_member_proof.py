"""The proof between members: what it holds for, and that it holds for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import JSON, ROCKETMQ, Command, decode_frame, encode_frame
from ropewalk.member_proof import (
    CHALLENGE_SIZE,
    NONCE_SIZE,
    Answerer,
    Asker,
    Challenge,
    NotProven,
    key_of,
    proof_of,
    proves,
    short_secret,
)

SECRET, OTHER = "a secret of many words", "another one of many words"
HERE = "10.0.0.1:10911"
NONCES = iter(range(1, 1 << 40))


def fresh(size: int) -> bytes:
    return next(NONCES).to_bytes(size, "big")


def answerer(*secrets: str, v1: bool = True, cluster: str = "c", name: str = "b", at: str = HERE) -> Answerer:
    return Answerer(
        secrets or (SECRET,), cluster, name, (at,), challenge=fresh(CHALLENGE_SIZE), nonce=fresh(NONCE_SIZE),
        takes_version1=v1,
    )  # fmt: skip


def asker(secret: str = SECRET, **changes: Any) -> Asker:
    given = {"dialed": HERE, "socket": HERE, "cluster": "c", "broker_name": "b", **changes}
    dialed, socket = given.pop("dialed"), given.pop("socket")
    return Asker(secret, dialed, socket, fresh(NONCE_SIZE), **given)


def joined(one: Asker, other: Answerer) -> tuple[Asker, Answerer]:
    """Have both ends speak version 2."""
    one.challenged(other.challenge(one.question().ext, "0.2.0").encoded())
    return one, other


def carried(command: Command, serialize_type: int = JSON) -> Command:
    """Return a command as the other end reads it."""
    return decode_frame(encode_frame(replace(command, serialize_type=serialize_type))[4:])


QUESTION = Command(30005, {"id": "n2"}, b"body")


def test_a_proof_of_version_1_holds_for_one_connection_one_request_and_one_secret() -> None:
    proof = proof_of("secret", b"drawn", 30001, b"body")
    assert proves(proof, "secret", b"drawn", 30001, b"body")
    assert not proves(proof, "other", b"drawn", 30001, b"body")
    assert not proves(proof, "secret", b"again", 30001, b"body")
    assert not proves(proof, "secret", b"drawn", 30002, b"body")
    assert not proves(proof, "secret", b"drawn", 30001, b"more")
    assert not proves(proof_of("secret", b"", 30001, b"body"), "secret", b"", 30001, b"body")
    assert not proves("\N{SNOWMAN}", "secret", b"drawn", 30001, b"body")


texts = st.text(max_size=12)


@given(
    ext=st.dictionaries(texts.filter(lambda name: name not in ("proof2", "counter2")), texts, max_size=3),
    body=st.binary(max_size=20),
    remark=st.none() | texts,
    said=st.dictionaries(st.text(alphabet="abc", min_size=1, max_size=3), texts, max_size=3),
    code=st.integers(0, 500),
)
def test_a_question_and_its_answer_are_proven_as_they_were_said(
    ext: dict[str, str], body: bytes, remark: str | None, said: dict[str, str], code: int
) -> None:
    one, other = joined(asker(), answerer())
    question = one.prove(Command(30005, ext, body))
    answer = other.verify(question).seal(question.reply(code, remark, said, body))
    assert one.check(question, answer)


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
def test_a_proof_survives_the_wire(serialize_type: int) -> None:
    one, other = joined(asker(), answerer())
    question = one.prove(QUESTION)
    seal = other.verify(carried(question, serialize_type))
    for remark in (None, "", "why not: é \N{SNOWMAN}"):
        answer = seal.seal(question.reply(1, remark, {"leader": "n1"}, b"x"))
        assert one.check(question, carried(answer, serialize_type))


CHANGES: list[Callable[[Command], Command]] = [
    lambda said: replace(said, code=said.code + 1),
    lambda said: replace(said, body=said.body + b"\0"),
    lambda said: replace(said, body=b""),
    lambda said: replace(said, ext={**said.ext, "more": ""}),
    lambda said: replace(said, ext={**said.ext, "id": "n3"}),
    lambda said: replace(said, ext={name: value for name, value in said.ext.items() if name != "id"}),
    lambda said: replace(said, ext={**said.ext, "proof2": "0" * 64}),
    lambda said: replace(said, ext={**said.ext, "proof2": "\N{SNOWMAN}"}),
    lambda said: replace(said, ext={name: value for name, value in said.ext.items() if name != "proof2"}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_question_that_was_changed_is_refused(change: Callable[[Command], Command]) -> None:
    one, other = joined(asker(), answerer())
    question = one.prove(QUESTION)
    with pytest.raises(NotProven):
        other.verify(change(question))
    other.verify(question)


@pytest.mark.parametrize("change", [*CHANGES, lambda said: replace(said, remark="no")])
def test_an_answer_that_was_changed_is_not_believed(change: Callable[[Command], Command]) -> None:
    one, other = joined(asker(), answerer())
    question = one.prove(QUESTION)
    answer = other.verify(question).seal(question.reply(0, None, {"id": "n2"}, b"body"))
    assert one.check(question, answer)
    with pytest.raises(NotProven):
        one.check(question, change(answer))


@pytest.mark.parametrize("counter", ["", "0", "1", "-5", "x", "²", "18446744073709551616", "9" * 5000])
def test_a_question_counts_once(counter: str) -> None:
    one, other = joined(asker(), answerer())
    question = one.prove(QUESTION)
    other.verify(question)
    with pytest.raises(NotProven, match="counter"):
        other.verify(question)
    with pytest.raises(NotProven):
        other.verify(replace(question, ext={**question.ext, "counter2": counter}))
    other.verify(one.prove(QUESTION))


def test_a_proof_of_one_connection_is_none_on_another_and_after_a_new_challenge() -> None:
    secret = (SECRET,)
    one, other = joined(asker(), answerer(*secret))
    question = one.prove(QUESTION)
    _second, elsewhere = joined(asker(), answerer(*secret))
    with pytest.raises(NotProven):
        elsewhere.verify(question)
    answer = other.verify(question).seal(question.reply(0))
    third, again = joined(asker(), answerer())
    fresh_question = third.prove(QUESTION)
    again.verify(fresh_question)
    with pytest.raises(NotProven):
        third.check(fresh_question, answer)


def test_answers_cannot_be_swapped_nor_given_for_questions() -> None:
    one, other = joined(asker(), answerer())
    first, second = one.prove(QUESTION), one.prove(QUESTION)
    answers = [other.verify(each).seal(each.reply(0, body=b"same")) for each in (first, second)]
    assert one.check(first, answers[0]) and one.check(second, answers[1])
    with pytest.raises(NotProven):
        one.check(first, answers[1])
    third = one.prove(Command(30005, {}, b""))
    with pytest.raises(NotProven):  # its own question, sent back
        one.check(third, Command(30005, third.ext, b""))


@pytest.mark.parametrize(
    "changes", [{"cluster": "d"}, {"broker_name": "z"}, {"secret": OTHER}], ids=["cluster", "name", "secret"]
)
def test_a_member_of_another_group_proves_nothing(changes: dict[str, str]) -> None:
    one, other = joined(asker(**changes), answerer())
    with pytest.raises(NotProven):
        other.verify(one.prove(QUESTION))


def test_fields_cannot_be_shifted_into_each_other() -> None:
    key = key_of(SECRET, "c")
    assert key != key_of(SECRET, "d") and key != key_of(OTHER, "c") and len(key) == 32
    # The same letters, cut elsewhere: cluster and name, names and values of fields, remark and fields.
    one, other = joined(asker(cluster="cb", broker_name=""), answerer(cluster="c", name="b"))
    with pytest.raises(NotProven):
        other.verify(one.prove(QUESTION))
    one, other = joined(asker(), answerer())
    question = one.prove(Command(30005, {"ab": "c"}, b""))
    for ext in ({"a": "bc"}, {"abc": ""}, {"ab": "", "c": ""}):
        own = {name: question.ext[name] for name in ("proof2", "counter2")}
        with pytest.raises(NotProven):
            other.verify(replace(question, ext={**ext, **own}))


@pytest.mark.parametrize(
    ("dialed", "socket", "is_own"),
    [
        (HERE, HERE, True),
        ("master.example:10911", HERE, True),
        (HERE, "192.0.2.7:10911", True),
        ("[::ffff:10.0.0.1]:10911", "", True),
        ("10.0.0.66:10911", "10.0.0.66:10911", False),
        ("10.0.0.1:10912", "10.0.0.1:10912", False),
        ("stranger.example:10911", "10.0.0.66:10911", False),
    ],
)
def test_a_stranger_that_was_dialed_cannot_pass_the_questions_on(
    dialed: str, socket: str, is_own: bool
) -> None:
    one, other = asker(dialed=dialed, socket=socket), answerer()
    if is_own:
        joined(one, other)
        other.verify(one.prove(QUESTION))
        return
    with pytest.raises(NotProven, match="somebody stands between"):
        other.challenge(one.question().ext, "0.2.0")
    # One that rewrites the address has a connection whose proofs are other ones.
    said = one.question().ext | {"dialed2": HERE, "socket2": HERE}
    one.challenged(other.challenge(said, "0.2.0").encoded())
    with pytest.raises(NotProven):
        other.verify(one.prove(QUESTION))


@pytest.mark.parametrize("size", [1, 15, 17, 1000])
def test_a_challenge_of_any_other_length_is_not_signed(size: int) -> None:
    """A stranger would have a member sign the front of another request."""
    one = asker()
    for odd in (Challenge(bytes(size)), Challenge(bytes(CHALLENGE_SIZE), "", bytes(size))):
        with pytest.raises(RemoteProtocolError, match="nothing is proven with it"):
            one.challenged(odd.encoded())
    assert one.version == 0 and one.prove(QUESTION) == QUESTION


@given(st.binary(max_size=200))
def test_bytes_that_are_no_challenge_are_a_typed_error(body: bytes) -> None:
    one = asker()
    try:
        one.challenged(body)
    except RemoteProtocolError:
        assert one.version == 0


def test_a_member_of_the_release_before_proves_its_questions_and_not_its_answers() -> None:
    old, new = Asker(SECRET, HERE, HERE, fresh(NONCE_SIZE)), answerer()
    old.challenged(new.challenge({}, "0.2.0").encoded())
    question = old.prove(QUESTION)
    assert old.version == 1 and set(question.ext) == {"id", "proof"}
    answer = new.verify(question).seal(question.reply(0))
    assert "proof2" not in answer.ext and not old.check(question, answer)
    with pytest.raises(NotProven):
        new.verify(replace(question, ext={"proof": "0" * 64}))


def test_version_1_is_switched_off_and_never_taken_from_an_end_that_speaks_version_2() -> None:
    with pytest.raises(NotProven, match="ropewalkSecretV1=false"):
        answerer(v1=False).challenge({}, "0.2.0")
    one, other = asker(), answerer()
    found = other.challenge(one.question().ext, "0.2.0")
    stripped = Asker(SECRET, HERE, HERE, fresh(NONCE_SIZE))
    stripped.challenged(msgspec.structs.replace(found, version2=b"").encoded())
    with pytest.raises(NotProven):
        other.verify(stripped.prove(QUESTION))
    strict = asker(takes_older=False)
    with pytest.raises(NotProven, match="does not prove its answers"):
        strict.challenged(Challenge(bytes(CHALLENGE_SIZE)).encoded())


def test_two_secrets_are_taken_and_the_answer_comes_under_the_one_that_was_asked_with() -> None:
    for secret in (SECRET, OTHER):
        one, other = joined(asker(secret), answerer(SECRET, OTHER))
        question = one.prove(QUESTION)
        assert one.check(question, other.verify(question).seal(question.reply(0)))
        old = Asker(secret, HERE, HERE, fresh(NONCE_SIZE))
        both = answerer(SECRET, OTHER)
        old.challenged(both.challenge({}, "0.2.0").encoded())
        both.verify(old.prove(QUESTION))


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (asker(OTHER), "its ropewalkSecret differs from the one here, or it is a stranger"),
        (asker(broker_name="broker-z"), "it is of .* of cluster .*, and the proof of broker-z of cluster"),
    ],
    ids=["another secret", "another group"],
)
def test_a_refused_asker_is_told_what_differs(one: Asker, words: str) -> None:
    one, other = joined(one, answerer())
    question = one.prove(QUESTION)
    with pytest.raises(NotProven, match="of another ropewalkSecret") as refused:
        other.verify(question)
    remark = str(refused.value)
    with pytest.raises(NotProven, match=words) as told:
        one.check(question, question.reply(ResponseCode.NO_PERMISSION, remark))
    assert f"(it says: {remark})" in str(told.value)


def test_a_question_without_a_proof_is_told_from_one_under_another_secret() -> None:
    _one, other = joined(asker(), answerer())
    with pytest.raises(NotProven, match="carries no proof"):
        other.verify(QUESTION)
    old = answerer()
    old.challenge({}, "0.1.0")
    with pytest.raises(NotProven, match="carries no proof"):
        old.verify(QUESTION)
    with pytest.raises(NotProven, match="of another ropewalkSecret"):
        old.verify(replace(QUESTION, ext={"proof": "0" * 64}))


def test_an_operator_takes_the_group_from_the_member_and_a_member_does_not() -> None:
    one, other = joined(asker(cluster="", broker_name=""), answerer())
    other.verify(one.prove(QUESTION))


def test_whoever_has_no_secret_asks_as_ever() -> None:
    one = asker("")
    assert one.question() == Command(RequestCode.ROPEWALK_CHALLENGE)
    one.challenged(Challenge(version="0.2.0").encoded())
    assert (one.version, one.prove(QUESTION)) == (0, QUESTION) and not one.check(QUESTION, QUESTION.reply(0))


def test_a_short_secret_is_told() -> None:
    assert short_secret("") is None and short_secret("x" * 16) is None
    assert "it has 1 characters" in (short_secret("x") or "") and "openssl rand" in (short_secret("x") or "")
