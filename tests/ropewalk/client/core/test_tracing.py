"""Trace records and the buffer in which they wait: records round-trip, and trace messages keep to their bounds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.core.messages import Message, SendResult, SendStatus
from ropewalk.client.core.routes import Queue
from ropewalk.client.core.tracing.records import MessageType, TraceRecord, decode_trace, encode_trace
from ropewalk.client.core.tracing.trace_buffer import (
    BATCH_COUNT,
    BATCH_SIZE_MAX,
    KEYS_SIZE_MAX,
    RECORDS_MAX,
    TraceBuffer,
)
from ropewalk.errors import LocalProtocolError

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
NUMBER = st.integers(0, 2**63 - 1)
OFFSET_ID = "7F000001" + "00002A9F" + "%016X"


NAMES = (
    "message_id",
    "group",
    "topic",
    "keys",
    "store_host",
    "client_host",
    "request_id",
    "state",
    "region",
    "tags",
)
NUMBERS = ("time_ms", "retries", "cost_ms", "body_size", "type", "code")


@st.composite
def records(draw: st.DrawFn) -> TraceRecord:
    """Draw a record; of the fields, those that its kind has."""
    kind = draw(st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall"]))
    fields = {name: draw(TEXT) for name in NAMES} | {name: draw(NUMBER) for name in NUMBERS}
    truths = {"success": draw(st.booleans()), "checked": draw(st.booleans())}
    (record,) = decode_trace(
        encode_trace(msgspec.convert({"kind": kind, **fields, **truths}, TraceRecord)).encode()
    )
    return record


@given(st.lists(records(), max_size=4))
def test_every_record_of_a_body_decodes_as_it_was_encoded(written: list[TraceRecord]) -> None:
    assert list(decode_trace("".join(map(encode_trace, written)).encode())) == written


def test_a_send_reads_as_the_official_clients_write_it() -> None:
    """Field by field: mqadmin reads them by their places."""
    buffer = TraceBuffer("traces", "shop", "10.0.1.1@7")
    message = Message(b"seven b", keys=["k1", "k2"], tags="paid")
    result = SendResult(SendStatus.SEND_OK, Queue("broker-a", 0), 3, (OFFSET_ID % 77,), ("ID1",))
    buffer.record_broker("broker-a", "here", "true")
    buffer.record_send("orders", [message], ["ID1"], 1000, 3, result)
    sent = buffer.next_message()
    assert sent is not None and sent.keys == ["ID1", "k1", "k2"]
    fields = f"Pub 1000 here shop orders ID1 paid keys 127.0.0.1:10911 7 3 0 {OFFSET_ID % 77} true 10.0.1.1"
    wanted = ["k1 k2" if field == "keys" else field for field in fields.split()]
    assert sent.body.decode() == "\x01".join(wanted) + "\x02"


def test_separators_within_a_field_break_no_record() -> None:
    (record,) = decode_trace(encode_trace(TraceRecord("Pub", "ID", tags="a\x01b\x02c")).encode())
    assert (record.message_id, record.tags) == ("ID", "a b c")


def test_a_failed_send_is_told_and_one_of_a_broker_without_traces_is_not() -> None:
    buffer = TraceBuffer("traces", "shop", "host@1")
    buffer.record_send("orders", [Message(b"x")], ["ID1"], 1, 1, None)
    buffer.record_broker("quiet", None, "false")
    quiet = SendResult(SendStatus.SEND_OK, Queue("quiet", 0), 0, (OFFSET_ID % 1,), ("ID2",))
    buffer.record_send("orders", [Message(b"x")], ["ID2"], 1, 1, quiet)
    sent = buffer.next_message()
    assert sent is not None
    assert [(one.message_id, one.success) for one in decode_trace(sent.body)] == [("ID1", False)]


def test_half_and_delayed_messages_carry_their_types() -> None:
    buffer = TraceBuffer("traces", "shop", "host@1")
    half = Message(b"x", properties={"TRAN_MSG": "true"})
    buffer.record_send("orders", [Message(b"x"), half], ["1", "2"], 1, 1, None)
    buffer.record_send("orders", [Message(b"x", delay_level=3)], ["3"], 1, 1, None)
    sent = buffer.next_message()
    assert sent is not None
    types = [MessageType(one.type) for one in decode_trace(sent.body)]
    assert types == [MessageType.NORMAL, MessageType.HALF, MessageType.DELAY]


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=150))
def test_trace_messages_keep_to_their_bounds_and_lose_no_record(key_sizes: list[int]) -> None:
    buffer = TraceBuffer("traces", "shop", "host@1")
    for number, size in enumerate(key_sizes):
        keys = [f"{number}-{'k' * 500}-{place}" for place in range(size // 500)]
        buffer.record_send("orders", [Message(b"x", keys=keys)], [f"ID{number}"], 1, 1, None)
    ids: list[str] = []
    while (message := buffer.next_message()) is not None:
        assert buffer.next_message() is message, "it stays until its send has an outcome"
        found = [one.message_id for one in decode_trace(message.body)]
        ids += found
        assert len(found) <= BATCH_COUNT and (len(found) == 1 or len(message.body) <= BATCH_SIZE_MAX)
        assert message.keys is not None and set(found) <= set(message.keys)
        assert sum(len(key) + 1 for key in message.keys) <= KEYS_SIZE_MAX
        buffer.sent()
    assert ids == [f"ID{number}" for number in range(len(key_sizes))] and not len(buffer)


def test_records_beyond_the_bound_and_lost_trace_messages_are_counted() -> None:
    buffer = TraceBuffer("traces", "shop", "host@1")
    woken: list[int] = []
    buffer.on_waiting = lambda: woken.append(len(buffer))
    ids = [str(number) for number in range(RECORDS_MAX + 5)]
    buffer.record_send("orders", [Message(b"x")] * len(ids), ids, 1, 1, None)
    assert buffer.dropped == 5 and woken == [1, BATCH_COUNT]
    assert buffer.next_message() is not None
    buffer.lost()
    assert buffer.dropped == 5 + BATCH_COUNT and len(buffer) == RECORDS_MAX - BATCH_COUNT


def test_a_topic_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="topic of traces"):
        TraceBuffer("no blanks", "shop", "host@1")
