"""Runs of plain sends taken by columns, to one topic or to many: stored and answered as one by one."""

from contextlib import nullcontext
from itertools import chain, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker import intake
from broker.produce.fast import columns as send_columns
from broker.produce.fast import many_topics as send_wide
from broker.produce.fast import runs as send_run
from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode
from ropewalk.errors import RemoteProtocolError
from tests.broker.harness import UNIQ, InProcess, request, send_ext, text_of
from tests.broker.send_pairs import Pair, outcome, taken_queues, with_header
from tests.support.clocks import START_MS

V2 = RequestCode.SEND_MESSAGE_V2


_odd_ones = st.one_of(
    st.none(),
    st.sampled_from([b"topic", b"queue", b"key", b"opaque", b"body", b"flag", b"born", b"long body"]),
)


@settings(max_examples=60)
@given(
    count=st.integers(2, 24),
    odd=_odd_ones,
    place=st.floats(0, 1, exclude_max=True),
    spread=st.booleans(),
    size=st.sampled_from([2, 2, 400, 401]),
    halves=st.booleans(),
    before=st.integers(0, 300),
)
def test_a_run_that_is_taken_by_columns_is_stored_and_answered_as_one_by_one(
    pair: Pair,
    count: int,
    odd: bytes | None,
    place: float,
    spread: bool,
    size: int,
    halves: bool,
    before: int,
) -> None:
    """As frames of one size, or cut; `before` is how much of the first frame comes in an earlier read."""
    pair.gate.open()
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_columns, "COLUMNS_MIN", 2)
        if halves:
            patch.setattr(intake, "_RUN_MIN", 2)
        for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
            for queue_id in range(4):
                client.send("T", b"warm", queueId=queue_id)
                client.send("U", b"warm", queueId=queue_id)
            frames = []
            for n in range(3 + count):
                key = UNIQ[:-4] + f"{n:04d}"
                here = odd if n == 3 + int(place * count) else None
                ext = send_ext(
                    "U" if here == b"topic" else "T",
                    queueId=7 if here == b"queue" else n % 4 if spread else 2,
                    properties=text_of({"UNIQ_KEY": key, "TAGS": "A"}),
                    bornTimestamp=START_MS + (n if spread else 0) - (1 if here == b"born" else 0),
                    flag=5 if here == b"flag" else 0,
                )
                body = b"x" * 401 if here == b"long body" else (b"%02d" % n).ljust(2 if n < 3 else size, b"y")
                frame = request(V2, ext, body, opaque=1000 + n)
                if here == b"opaque":
                    frame = frame.replace(b'"opaque":10', b'"opaque":1e')
                elif here == b"key":  # text that ends the value, and another property behind it
                    frame = frame.replace(key.encode(), b"AAAAAAAAAAA\\u0002WAIT\\u0001false")
                frames.append(frame)
            for frame in frames[:3]:
                client.feed(frame)
            running.settle()
            client.answers()
            mark = running.broker.store.log.end_offset
            data = b"".join(frames[3:])
            client.feed(data[: max(0, before - 200)])
            led_to = outcome(running, client, data[max(0, before - 200) :], mark)
            outcomes.append((*led_to, taken_queues(running)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("lie", ["twice", "too much", "nothing"])
@pytest.mark.parametrize("alone", [True, False])
def test_lengths_that_agree_in_a_lie_make_no_messages_of_bodies(
    running: InProcess, lie: str, alone: bool
) -> None:
    """Behind good frames in the same read, which are dropped with a length that no frame can have."""
    client = running.connect()
    client.link.sole_ready = alone
    good = 24 if alone else send_run.RUN_MAX
    frames = []
    for n in range(3 + good + 24):
        properties = text_of({"UNIQ_KEY": UNIQ[:-4] + f"{n:04d}", "TAGS": "A"})
        frames.append(request(V2, send_ext("T", queueId=1, properties=properties), b"x", opaque=1000 + n))
    for frame in frames[:3]:
        client.feed(frame)
    length = {"twice": 2 * len(frames[3]) - 4, "too much": 0x7FFFFFFF, "nothing": 0}[lie]
    lying = [length.to_bytes(4, "big") + frame[4:] for frame in frames[3 + good :]]
    with nullcontext() if lie == "twice" else pytest.raises(RemoteProtocolError, match="frame length"):
        client.feed(b"".join(frames[3 : 3 + good] + lying))
    running.settle()
    expected = [*range(1000, 1003)]
    if lie == "twice":
        expected = [*range(1000, 1003 + good), *range(1003 + good, 1027 + good, 2)]
    assert [answer.opaque for answer in client.answers()] == expected
    assert len(running.stored("T", 1)) == len(expected)


_WIDE = {
    b"unknown topic": (b'"b":"T"', b'"b":"V"'),
    b"spelled topic": (b'"b":"T"', b'"b":"\\u0054"'),
    b"two topics": (b'"c":"TBW102"', b'"c":"T","b":"U"'),
    b"two topics, one spelled": (b'"j":"', b'"\\u0062":"U","j":"'),
    b"no such queue": (b'"e":"', b'"e":"7'),
    b"spelled queue": (b'"e":"', b'"e":" '),
    b"padded queue": (b'"e":"', b'"e":"0'),
    b"other default": (b'"c":"TBW102"', b'"c":"TBW103"'),
    b"bits": (b'"f":"0"', b'"f":"8"'),
    b"born": (b'"g":"1', b'"g":"-'),
    b"key": (b"UNIQ_KEY", b"UNIQ_KEX"),
    b"opaque": (b'"opaque":10', b'"opaque":1e'),
    b"oneway": (b'"flag":0', b'"flag":2'),
}


_FOUR = {"count": 4, "place": 0.0, "flag": 0}


@settings(max_examples=60)
@given(
    count=st.integers(2, 8),
    where=st.lists(
        st.tuples(st.sampled_from("TTTUUMN"), st.sampled_from([0, 1, 1, 2, 3, 5, 7])), min_size=8, max_size=8
    ),
    change=st.sampled_from([None, None, "fewer", "deleted", "rules"]),
    odd=st.one_of(st.none(), st.sampled_from(sorted(_WIDE)), st.sampled_from([b"retry", b"long body", b"longer"])),
    everywhere=st.booleans(),
    place=st.floats(0, 1, exclude_max=True),
    flag=st.sampled_from([0, 0, 2]),
)  # fmt: skip
@example(**_FOUR, where=[("T", 0)] * 8, change=None, odd=b"padded queue", everywhere=True)
@example(**_FOUR, where=[("T", 0), ("U", 7)] * 4, change=None, odd=None, everywhere=False)
@example(**_FOUR, where=[("T", 2), ("U", 1)] * 4, change="fewer", odd=None, everywhere=False)
def test_a_run_to_many_topics_is_stored_and_answered_as_one_by_one(
    pair: Pair,
    count: int,
    where: list[tuple[str, int]],
    change: str | None,
    odd: bytes | None,
    everywhere: bool,
    place: float,
    flag: int,
) -> None:
    """As frames of one size, or cut."""
    pair.gate.open()
    outcomes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(send_columns, "COLUMNS_MIN", 2)
        patch.setattr(send_run, "CHANGES_MIN", 1)
        for running, client in zip((pair.fast, pair.plain), pair.clients(), strict=True):
            topics = running.broker.topics
            client.call(
                RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "N"}
            )  # nobody sends there before the run
            for topic in "TUMN":
                kind = "MULTI_TAG" if topic == "M" else "SINGLE_TAG"
                topics.update(TopicConfig(topic, 6, 6, filter_type=kind), START_MS)
            client.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=400")
            for topic, queue_id in product("TUM", range(3)):
                client.send(topic, b"warm", queueId=queue_id)
            frames = []
            warm = 24
            for n in range(warm + count):
                key = UNIQ[:-4] + f"{n:04d}"
                here = odd if (everywhere and odd != b"opaque") or n == warm + int(place * count) else None
                ext = send_ext(
                    "TU"[n % 2] if n < warm else "%RETRY%g" if here == b"retry" else where[n - warm][0],
                    queueId=n // 2 % 3 if n < warm else where[n - warm][1],
                    # A header of another length than those that warmed up, whose shape is then not this one's.
                    properties=text_of({"UNIQ_KEY": key, "TAGS": "AB"}),
                )
                body = b"x" * ({b"long body": 401, b"longer": 5}.get(here or b"", 2) if n >= warm else 2)
                frame = request(V2, ext, body, opaque=1000 + n, flag=flag)
                if here in _WIDE and (n >= warm or everywhere):
                    frame = with_header(frame, body, *_WIDE[here])
                frames.append(frame)
            for frame in frames[: warm // 2]:
                client.feed(frame)
            client.feed(b"".join(frames[warm // 2 : warm]))  # whose places are known then
            running.settle()
            client.answers()
            if running is pair.fast and odd is None:
                many = client.session.fast.sends.many_topics[frames[warm - 1][4:8]]
                assert not many.misses, "so many topics make a template for many, and it is this one"
            if change == "fewer":
                topics.update(TopicConfig("T", 2, 2), START_MS)
                client.send("T", b"the first that is judged anew", queueId=0)
            elif change == "deleted":
                client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"})
            elif change == "rules":
                client.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=3")
            mark = running.broker.store.log.end_offset
            led_to = outcome(running, client, b"".join(frames[warm:]), mark)
            outcomes.append((*led_to, [taken_queues(running, topic) for topic in "TUMN"]))
    assert outcomes[0] == outcomes[1]


def test_queue_ids_that_no_topic_has_leave_nothing_with_the_places_of_a_client(
    running: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_columns, "COLUMNS_MIN", 2)
    client = running.connect()
    for topic in "TU":
        running.broker.topics.update(TopicConfig(topic, 4, 4), START_MS)

    def run(queue_id: int) -> list[bytes]:
        properties = text_of({"UNIQ_KEY": UNIQ, "TAGS": "A"})
        exts = [send_ext("TU"[n % 2], queueId=queue_id, properties=properties) for n in range(4)]
        return [request(V2, ext, b"x", opaque=1000 + n) for n, ext in enumerate(exts)]

    for frame in chain.from_iterable(run(n % 4) for n in range(2 * send_wide.CHANGES_MIN)):
        client.feed(frame)  # alone, so that each change of topics is seen
    client.feed(b"".join(run(0)))
    (many,) = client.session.fast.sends.many_topics.values()
    assert many.queue_slots.slots and {place[-1:] for place in many.queue_slots.slots} <= {
        b"0",
        b"1",
        b"2",
        b"3",
    }
    for queue_id in (7, 8, 9):
        client.feed(b"".join(run(queue_id)))
    assert many.queue_slots.slots and {place[-1:] for place in many.queue_slots.slots} <= {
        b"0",
        b"1",
        b"2",
        b"3",
    }
