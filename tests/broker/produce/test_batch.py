"""Batches: one request, many records, all or none."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import count as counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.produce.batch import AlikeBatches
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.batch import BatchItem, encode_batch
from ropewalk.format.properties import tags_code
from ropewalk.format.remoting import JSON, ROCKETMQ
from tests.broker.harness import (
    Client,
    FlushGate,
    InProcess,
    batch_of,
    config_of,
    send_ext,
    taken,
    text_of,
    without_fsync,
)

StartBroker = Callable[..., InProcess]
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])
BATCH = RequestCode.SEND_BATCH_MESSAGE
V2 = RequestCode.SEND_MESSAGE_V2


@KINDS
@pytest.mark.parametrize("marked", [True, False], ids=["m=true", "by its code"])
def test_a_batch_becomes_records_side_by_side_in_its_order(
    running: InProcess, marked: bool, kind: int
) -> None:
    client = running.connect()
    client.send("T", queueId=1)
    ext = send_ext("T", queueId=1, batch=marked, properties={"UNIQ_KEY": "BATCH"})
    answer = client.call(BATCH, ext, batch_of(b"a", b"b", b"c", TAGS="A"), serialize_type=kind)
    assert answer.code == 0
    records = running.stored("T", 1)[1:]
    assert [r.body for r in records] == [b"a", b"b", b"c"]
    assert [r.flag for r in records] == [0, 1, 2]
    assert [r.queue_offset for r in records] == [1, 2, 3]
    assert [r.properties for r in records] == [{"UNIQ_KEY": f"K{n}", "TAGS": "A"} for n in range(3)]
    assert answer.ext["queueOffset"] == "1"
    assert answer.ext["msgId"].split(",") == [r.msg_id for r in records]
    assert answer.ext["transactionId"] == "BATCH"
    assert [a.offset + a.size for a in records[:-1]] == [b.offset for b in records[1:]]
    queue = running.broker.store.find_queue("T", 1)
    assert queue is not None
    assert queue.read(3)[2] == tags_code("A")


def test_a_batch_may_come_under_the_plain_code_with_the_batch_field(client: Client) -> None:
    client.send("T")
    answer = client.call(V2, send_ext("T", batch=True), batch_of(b"a", b"b"))
    assert len(answer.ext["msgId"].split(",")) == 2


def test_a_batch_without_an_id_of_its_own_answers_with_its_first_messages(client: Client) -> None:
    assert client.call(BATCH, send_ext("T", properties=""), batch_of(b"a", b"b")).ext["transactionId"] == "K0"


@pytest.mark.parametrize("count", [1, 32])
def test_no_record_ends_in_a_zero_for_that_is_how_a_start_knows_a_torn_one(
    running: InProcess, count: int
) -> None:
    client = running.connect()
    body = encode_batch(BatchItem(0, b"body", b"k\x01v\0") for _ in range(count))
    assert client.call(BATCH, send_ext("T"), body).code == 0
    records = running.stored("T")
    assert [r.raw_properties for r in records] == [b"k\x01v\0\x02"] * count
    assert records[0].properties == {"k": "v\0"}
    longest = encode_batch([BatchItem(0, b"body", b"k\x01".ljust(32_767, b"\0"))])
    assert client.call(BATCH, send_ext("T"), longest).code == ResponseCode.MESSAGE_ILLEGAL


def good(count: int = 3) -> bytes:
    return batch_of(*[b"body %d" % n for n in range(count)])


def misnumbered(count: int = 3) -> bytes:
    """Items that all say of their properties that they are a byte longer."""
    item = encode_batch([BatchItem(0, b"body", b"k\x01v")])
    return (item[:24] + (4).to_bytes(2, "big") + item[26:]) * count


MALFORMED = [
    misnumbered(),
    b"",
    b"\x00",
    good()[:-1],
    good() + b"\x00",
    b"\xff\xff\xff\xff" + good()[4:],
    b"\x00\x00\x00\x00" + good()[4:],
    b"\x7f\xff\xff\xff" + good()[4:],
    good()[:16] + b"\xff\xff\xff\xff" + good()[20:],
    good() + good()[:30],
    b"plain text that is no batch at all, whatever it says",
]


@pytest.mark.parametrize("body", MALFORMED)
def test_a_malformed_batch_is_answered_13_and_nothing_of_it_is_stored(
    running: InProcess, body: bytes
) -> None:
    client = running.connect()
    client.send("T")
    before = taken(running)
    answer = client.call(BATCH, send_ext("T", batch=True), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert taken(running) == before


@pytest.mark.parametrize(
    "properties",
    [
        {"DELAY": "3"},
        {"DELAY": "x"},
        {"TRAN_MSG": "true"},
        {"TIMER_DELAY_MS": "1"},
        {"INNER_NUM": "2"},
        {"INNER_MULTI_DISPATCH": "%LMQ%a"},
    ],
)
def test_what_is_not_built_is_refused_in_a_batch_and_around_it(
    running: InProcess, properties: dict[str, str]
) -> None:
    client = running.connect()
    client.send("T")
    before = taken(running)
    inside = encode_batch([BatchItem(0, b"fine", b""), BatchItem(0, b"not", text_of(properties).encode())])
    assert client.call(BATCH, send_ext("T"), inside).code == ResponseCode.MESSAGE_ILLEGAL
    around = client.call(BATCH, send_ext("T", properties=properties), batch_of(b"a"))
    assert around.code == ResponseCode.MESSAGE_ILLEGAL
    assert taken(running) == before


def test_a_batch_is_refused_for_a_retry_topic_and_beyond_the_body_limit(start_broker: StartBroker) -> None:
    running = start_broker(maxMessageSize=1000)
    client = running.connect()
    assert client.call(BATCH, send_ext("%RETRY%g"), batch_of(b"a")).code == ResponseCode.MESSAGE_ILLEGAL
    assert client.call(BATCH, send_ext("T"), batch_of(b"a" * 990)).code == ResponseCode.MESSAGE_ILLEGAL
    assert client.call(BATCH, send_ext("T"), batch_of(b"a" * 400, b"b" * 400)).code == 0


def test_a_batch_never_straddles_two_segments(start_broker: StartBroker) -> None:
    running = start_broker(mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    for _ in range(20):
        assert client.call(BATCH, send_ext("T"), batch_of(*[b"z" * 10_000] * 3)).code == 0
    records = running.stored("T")
    assert len(records) == 60
    for first in range(0, 60, 3):
        assert len({r.offset // (128 << 10) for r in records[first : first + 3]}) == 1


def test_a_batch_larger_than_a_segment_is_answered_13(start_broker: StartBroker) -> None:
    running = start_broker(mappedFileSizeCommitLog=128 << 10)
    client = running.connect()
    client.send("T")
    before = taken(running)
    answer = client.call(BATCH, send_ext("T"), batch_of(*[b"z" * 30_000] * 5))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert taken(running) == before


@pytest.mark.parametrize(
    ("inside", "around", "waits"),
    [
        (("false", "false"), "true", False),
        (("false", "true"), "true", True),
        (("true", "true"), "false", False),
        (("true", "true"), "true", True),
    ],
)
def test_a_batch_waits_if_any_of_its_messages_does(
    synced: InProcess, flush_gate: FlushGate, inside: tuple[str, str], around: str, waits: bool
) -> None:
    client = synced.connect()
    flush_gate.shut()
    body = encode_batch(BatchItem(0, b"x", text_of({"WAIT": word}).encode()) for word in inside)
    client.ask(BATCH, send_ext("T", properties={"WAIT": around}), body)
    assert [c.code for c in client.answers()] == ([] if waits else [0])
    flush_gate.open()


_item_properties = st.sampled_from(
    ["", "UNIQ_KEY\x01K%d", "UNIQ_KEY\x01K%d\x02TAGS\x01A", "TAGS\x01%d\x02", "WAIT\x01false\x02K\x01%d", "DELAY\x01%d",
     "XDELAY\x01%d", "TAGS\x01\x02k\x01%d", "é%d", "TRAN_MSG\x01false\x02k\x01%d"]
)  # fmt: skip
_unlike = st.sampled_from([None, "flag", "size", "properties", "body size", "bytes", "cut", "no text"])


@settings(max_examples=60)
@given(
    count=st.integers(1, 12),
    size=st.sampled_from([0, 1, 40]),
    text=_item_properties,
    unlike=_unlike,
    place=st.floats(0, 1, exclude_max=True),
    ext=st.sampled_from([{}, {"sysFlag": 1}, {"reconsumeTimes": 2}, {"properties": ""}, {"properties": "DELAY\x011"}]),
    flag=st.sampled_from([0, 7, -1]),
    filled=st.integers(0, 3),
    at_once=st.sampled_from([1, 4, 128]),
)  # fmt: skip
def test_a_batch_whose_messages_are_alike_is_stored_and_answered_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    size: int,
    text: str,
    unlike: str | None,
    place: float,
    ext: dict[str, Any],
    flag: int,
    filled: int,
    at_once: int,
) -> None:
    odd = int(place * count)
    items = []
    for n in range(count):
        filler, properties, own = b"x" * size, (text % n if "%" in text else text).encode(), flag
        if n == odd:
            own += unlike == "flag"
            filler += b"y" * (unlike == "size")
            properties += b"z" * (unlike == "properties")
            properties = properties[:-1] + b"\xff" if unlike == "no text" and properties else properties
            if unlike == "body size" and properties:  # of the same size in all
                filler, properties = filler + b"y", properties[:-1]
        items.append(BatchItem(own, filler, properties))
    body = encode_batch(items)
    if unlike == "bytes":
        at = int(place * len(body))
        body = body[:at] + bytes([body[at] ^ 0x41]) + body[at + 1 :]
    elif unlike == "cut":
        body = body[: int(place * len(body))]
    outcomes = []
    for way in ("by columns", "one by one", "in steps"):
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr("broker.produce.batch._AT_ONCE_MAX", at_once)
            if way != "by columns":
                patch.setattr(AlikeBatches, "cut", lambda *_: None)
            if way == "in steps":
                patch.setattr("broker.produce.batches.AT_ONCE_MAX", 2)
            without_fsync(patch)
            config = config_of(tmp_path_factory.mktemp("batch"), mappedFileSizeCommitLog=128 << 10)
            running = stack.enter_context(InProcess(config))
            client = running.connect()
            for _ in range(filled):  # up to near the end of a segment
                client.send("T", b"f" * 43_000)
            answer = client.call(BATCH, send_ext("T", **ext), body)
            client.send("T", b"and on")
            records = running.stored("T")
            queue = running.broker.store.find_queue("T", 0)
            assert queue is not None
            entries = [queue.read(n) for n in range(queue.readable)]
            facts = [
                (r.offset, r.queue_offset, r.flag, r.sys_flag, r.born_timestamp, r.born_host, r.reconsume_times, r.body,
                 r.properties if r.body != b"and on" and r.body[:1] != b"f" else None)
                for r in records
            ]  # fmt: skip
            outcomes.append((answer.code, answer.remark, answer.ext, facts, entries, queue.max_physical))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def unlike_items(count: int, start: int = 0) -> bytes:
    return encode_batch(
        BatchItem(n % 2, b"x" * (n % 3), text_of({"UNIQ_KEY": f"K{n}", "TAGS": f"t{n % 7}"}).encode())
        for n in range(start, start + count)
    )


def test_a_batch_of_thousands_of_messages_lets_others_go_first_and_stands_side_by_side(
    running: InProcess,
) -> None:
    running.broker.lane.clock = counter().__next__  # a turn has time for one step
    client, other = running.connect(), running.connect()
    other.send("T", b"first")
    client.ask(BATCH, send_ext("T"), unlike_items(4_000))
    running.turn()
    assert other.send("T", b"meanwhile").code == 0
    answer = client.answer()
    assert (answer.code, answer.ext["queueOffset"]) == (0, "2")
    assert other.send("T", b"last").code == 0
    running.settle()
    records = running.stored("T")
    assert [r.body for r in records[:2]] == [b"first", b"meanwhile"]
    assert [r.properties["UNIQ_KEY"] for r in records[2:-1]] == [f"K{n}" for n in range(4_000)]
    assert answer.ext["msgId"].split(",") == [r.msg_id for r in records[2:-1]]
    assert [r.queue_offset for r in records] == list(range(4_003))
    assert {r.store_timestamp for r in records} == {running.clock.ms}


def test_a_batch_of_more_messages_than_are_stored_together_is_refused_in_words(
    start_broker: StartBroker,
) -> None:
    running = start_broker(mappedFileSizeCommitLog=4 << 20)
    client = running.connect()
    answer = client.call(BATCH, send_ext("T"), unlike_items(10_001))
    assert (answer.code, answer.remark) == (
        13,
        "the batch has more than 10000 messages, the most that are stored together: send it as several batches",
    )
    assert running.stored("T") == []
    assert client.call(BATCH, send_ext("T"), unlike_items(10_000)).code == 0
    assert len(running.stored("T")) == 10_000


def test_a_topic_that_is_deleted_while_a_batch_is_judged_does_not_get_it(start_broker: StartBroker) -> None:
    running = start_broker()
    client = running.connect()
    client.send("T")
    assert running.broker.context.topics.get("T") is not None
    running.broker.topics.rules = replace(running.broker.topics.rules, auto_create_topic_enable=False)
    running.broker.lane.clock = counter().__next__
    client.ask(BATCH, send_ext("T"), unlike_items(4_000))
    assert running.broker.topics.delete("T", running.clock.ms)
    assert client.answer().code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("at_once", [2, 3])
def test_a_batch_of_many_alike_messages_takes_the_quick_way(
    running: InProcess, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("broker.produce.batch._AT_ONCE_MAX", at_once)
    client = running.connect()
    client.send("T")
    monkeypatch.setattr("broker.produce.batches.split_some", None)
    tagged = text_of({"UNIQ_KEY": "K", "TAGS": "A"}).encode()
    body = encode_batch(BatchItem(0, one, tagged) for one in (b"a", b"b", b"c"))
    assert client.call(BATCH, send_ext("T"), body).code == 0
    assert [r.body for r in running.stored("T")[1:]] == [b"a", b"b", b"c"]
