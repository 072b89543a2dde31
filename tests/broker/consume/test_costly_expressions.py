"""Expressions of some thousand tags or strings: read once, in steps between which others are served, and kept once.

A stranger can send one with each of its pulls, hundreds in one read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from broker.remoting.cold_lane import TURN_S
from broker.state import subscription
from broker.state.subscription import SubscriptionData, split_in_slices
from broker.waiting.held_pulls import HeldPull
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.filter.sql92 import SqlSyntaxError, compile_filter, compile_in_slices, parser
from ropewalk.filter.sql92.parser import PARTS_PER_STEP
from ropewalk.filter.sql92.tokens import Token, Tokens
from tests.broker.harness import InProcess, heartbeat_body, pull_ext, send_ext

StartBroker = Callable[..., InProcess]

SQL = "a IN (" + ",".join(f"'{n:05}'" for n in range(4_000)) + ")"


@pytest.fixture
def running(start_broker: StartBroker) -> InProcess:
    """A broker whose lane takes a few steps a turn."""
    running = start_broker(enablePropertyFilter=True)
    assert running.connect().send("T").code == ResponseCode.SUCCESS
    running.settle()
    seconds = count()
    running.broker.lane.clock = lambda: next(seconds) * TURN_S / 4
    return running


def tags(prefix: str) -> str:
    return "||".join(f"{prefix}{n}" for n in range(4_980))


@pytest.mark.parametrize(("expression", "kind"), [(tags("a"), "TAG"), (SQL, "SQL92")])
def test_a_pull_that_posts_a_large_expression_waits_while_others_are_served(
    running: InProcess, expression: str, kind: str
) -> None:
    stranger, producer = running.connect(), running.connect()
    ext = pull_ext("T", subscription=expression, expressionType=kind)
    first = stranger.ask(RequestCode.PULL_MESSAGE, ext)
    assert not stranger.link.sent, "its expression was read at once"
    assert producer.call(RequestCode.SEND_MESSAGE_V2, send_ext("T")).code == ResponseCode.SUCCESS
    assert stranger.answer(first).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    second = stranger.ask(RequestCode.PULL_MESSAGE, ext)
    (answer,) = stranger.answers()
    assert (answer.opaque, answer.code) == (second, ResponseCode.PULL_RETRY_IMMEDIATELY), "it is known now"


def test_a_bulk_pull_that_posts_a_large_expression_waits_too(running: InProcess) -> None:
    client = running.connect()
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "offset": 0, "endOffset": 1}
    opaque = client.ask(RequestCode.ROPEWALK_BULK_PULL, {**ext, "subscription": tags("b")})
    assert not client.link.sent
    assert client.answer(opaque).code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_a_heartbeat_with_a_large_sql_expression_is_read_in_steps(running: InProcess) -> None:
    client, producer = running.connect(), running.connect()
    body = heartbeat_body(topics={"T": SQL + " OR b = 1"}, version=1).replace(b'"TAG"', b'"SQL92"')
    opaque = client.ask(RequestCode.HEART_BEAT, body=body)
    turns = 0
    while not client.link.sent:
        turns += 1
        assert producer.call(RequestCode.SEND_MESSAGE_V2, send_ext("T")).code == ResponseCode.SUCCESS
    assert turns >= 5
    answers = [command for command in client.answers() if command.is_response]
    assert [(answer.opaque, answer.code) for answer in answers] == [(opaque, ResponseCode.SUCCESS)]
    answer = client.pull("T", sysFlag=0, subVersion=1, expressionType="SQL92", subscription=None)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY, "its filter is registered"


def test_a_bad_expression_that_takes_long_to_read_is_refused_with_its_reason(running: InProcess) -> None:
    client = running.connect()
    opaque = client.ask(
        RequestCode.PULL_MESSAGE, pull_ext("T", subscription=SQL + " AND", expressionType="SQL92")
    )
    assert not client.link.sent
    answer = client.answer(opaque)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "a property, a literal" in (answer.remark or "")


def test_a_list_of_blanks_names_no_tag_and_is_refused(running: InProcess) -> None:
    client = running.connect()
    answer = client.pull("T", subscription=" || " * 1_000)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "names no tag" in (answer.remark or "")


def test_a_pull_whose_client_has_gone_while_its_expression_is_read_is_none(running: InProcess) -> None:
    client = running.connect()
    client.ask(RequestCode.PULL_MESSAGE, pull_ext("T", subscription=tags("c"), suspendTimeoutMillis=9_000))
    client.disconnect()
    for _ in range(40):
        running.turn()
    assert not client.link.sent and not running.broker.held_pulls.size


def test_pulls_with_the_same_tags_hold_them_once(running: InProcess) -> None:
    for _ in range(3):
        client = running.connect()
        for _ in range(3):
            client.ask(
                RequestCode.PULL_MESSAGE, pull_ext("T", subscription=tags("d"), sysFlag=6, queueOffset=1)
            )
    running.until(lambda: running.broker.held_pulls.size == 9)
    held = [one for client in running.clients for one in client.session.held if isinstance(one, HeldPull)]
    assert len({id(one.codes) for one in held}) == 1


def test_subscriptions_of_heartbeats_with_the_same_tags_share_them() -> None:
    text = tags("e")
    ours = SubscriptionData.parse("T", text)
    javas = {"subString": text, "tagsSet": list(ours.tags)[::-1], "codeSet": sorted(ours.codes)}
    for value in (javas, {"subString": text}):
        theirs = SubscriptionData.from_json(value, "U")
        assert (
            theirs.tags is ours.tags and theirs.codes is ours.codes and theirs.expression is ours.expression
        )
    other = SubscriptionData.from_json({**javas, "codeSet": [1, 2]}, "U")
    assert other.codes == {1, 2}, "what a client's sets say is believed over the expression"


def test_tags_are_hashed_some_hundred_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    def counted(tag: str) -> int:
        nonlocal hashed
        hashed += 1
        return 7

    monkeypatch.setattr(subscription, "java_hash", counted)
    steps = 0
    for _ in split_in_slices(tags("f")):
        steps += 1
        assert hashed <= 500 * steps
    assert steps == 9


@pytest.mark.parametrize(
    "expression",
    [
        SQL,
        " OR ".join("(" * 40 + "a=1" + ")" * 40 for _ in range(300)),
        " OR ".join("+" * 45 + "1=a" for _ in range(300)),
        " AND ".join(f"a{n} BETWEEN {n} AND {n + 1}" for n in range(140)),
        "NOT " * 40 + "a = 1 IS NOT NULL IS NOT NULL OR a > 1 > 2",
        "a IN (" + ",".join("''/**/" for _ in range(4_000)) + ")",
    ],
)
def test_an_expression_is_read_some_parts_a_step(expression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    advance = Tokens.advance

    def counted(tokens: Tokens) -> Token:
        nonlocal read
        read += 1
        return advance(tokens)

    monkeypatch.setattr(Tokens, "advance", counted)
    worst = before = 0
    try:
        for _ in parser.parse_in_slices(expression):
            worst, before = max(worst, read - before), read
    except SqlSyntaxError:
        pass
    assert max(worst, read - before) <= 4 * PARTS_PER_STEP
    monkeypatch.undo()
    try:
        whole = compile_filter(expression)
    except SqlSyntaxError:
        return
    assert not list(compile_in_slices(expression)), "it is remembered"
    assert whole.size > 500
