"""What was pulled is read as record by record, whatever it is, and what is asked for late is what it was."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue, decode_received, received
from ropewalk.client.core.routes import Queue
from ropewalk.codes import MessageSysFlag
from ropewalk.errors import BodyTooLarge, BodyUnreadable, CorruptRecord
from ropewalk.format.properties import encode_properties
from ropewalk.format.record import decode_records, encode_host, encode_record

SOURCE = TopicQueue("orders", Queue("broker-a", 3))
V4, V6 = encode_host("127.0.0.1", 10911), encode_host("::1", 10911)


def record(
    body: bytes = b"body",
    topic: str = "orders",
    *,
    born: bytes = V4,
    store: bytes = V4,
    sys_flag: int = 0,
    **properties: str,
) -> bytes:
    told = encode_properties(properties)
    return encode_record(topic.encode(), 3, 0, 7, 4096, sys_flag, 11, born, 12, store, 2, 0, body, told)


def one_by_one(data: bytes, source: TopicQueue) -> list[ReceivedMessage]:
    return [received(one, source) for one in decode_records(data)]


def outcome(read: Callable[[bytes, TopicQueue], list[ReceivedMessage]], data: bytes) -> object:
    try:
        return read(data, SOURCE)
    except CorruptRecord as exc:
        return str(exc)


ORDINARY = record(UNIQ_KEY="7F01", KEYS="a b", TAGS="paid", colour="blue")
KINDS = {
    "ordinary": ORDINARY,
    "without properties": record(),
    "of the retry topic": record(RETRY_TOPIC="payments", UNIQ_KEY="7F02"),
    "a value that speaks of the retry topic": record(note="RETRY_TOPIC"),
    "born at an IPv6 host": record(born=V6, UNIQ_KEY="7F03"),
    "stored at an IPv6 host": record(store=V6),
    "compressed": record(
        zlib.compress(bytes(500)), sys_flag=MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
    ),
    "of another topic": record(topic="orderz"),
    "of a long topic": record(topic="t" * 200),
    "without a body": record(b""),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_any_kind_between_others_is_read_as_by_itself(kind: str) -> None:
    data = ORDINARY + KINDS[kind] + ORDINARY
    assert decode_received(data, SOURCE) == one_by_one(data, SOURCE)
    assert len(decode_received(data, SOURCE)) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_that_is_wrong_or_missing_is_seen_as_record_by_record(kind: str) -> None:
    data = KINDS[kind]
    for position in range(len(data)):
        for wrong in {data[position] ^ 1, data[position] ^ 0x80}:
            damaged = data[:position] + bytes((wrong,)) + data[position + 1 :]
            assert outcome(decode_received, damaged) == outcome(one_by_one, damaged), position
        assert outcome(decode_received, data[:position]) == outcome(one_by_one, data[:position])


def test_what_is_left_unread_is_there_when_it_is_asked_for() -> None:
    (message,) = decode_received(ORDINARY, SOURCE)
    assert (message.message_id, message.tags, message.keys) == ("7F01", "paid", ["a", "b"])
    assert message.properties == {"UNIQ_KEY": "7F01", "KEYS": "a b", "TAGS": "paid", "colour": "blue"}
    assert message.offset_message_id == "7F000001" + "00002A9F" + "0000000000001000"
    (nameless,) = decode_received(record(), SOURCE)
    assert nameless.message_id == nameless.offset_message_id
    assert nameless.group is None


def test_a_message_cannot_be_changed_and_can_be_copied() -> None:
    (message,) = decode_received(ORDINARY, SOURCE)
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="no 'topics'"):
        message.topics  # type: ignore[attr-defined]  # noqa: B018
    assert pickle.loads(pickle.dumps(message)) == copy.copy(message) == message
    again = message.tried_again(2)
    assert (again.reconsume_times, again.body, again != message) == (4, b"body", True)


def test_a_message_is_shown_by_what_tells_it_from_others() -> None:
    (message,) = decode_received(ORDINARY, SOURCE)
    assert repr(message) == (
        f"<ReceivedMessage orders {SOURCE.queue.broker_name}/{SOURCE.queue.queue_id}@{message.queue_offset} "
        f"tags='paid' keys=['a', 'b'] reconsume_times={message.reconsume_times} b'body'>"
    )
    (long,) = decode_received(record(b"x" * 100), SOURCE)
    assert repr(long).endswith(f"{b'x' * 48!r}… (100 bytes)>")


def test_the_topic_of_a_dead_letter_is_where_it_lies() -> None:
    for topic, shown in (("%DLQ%g", "%DLQ%g"), ("copies", "copies"), ("%RETRY%g", "orders")):
        source = TopicQueue(topic, Queue("a", 0))
        data = record(topic=topic, RETRY_TOPIC="orders", k="v")
        assert [message.topic for message in decode_received(data, source)] == [shown]
        assert decode_received(data, source)[0].properties["RETRY_TOPIC"] == "orders"
        assert one_by_one(data, source)[0].topic == shown


# -- compressed bodies ----------------------------------------------------------------------------------

PACKED = MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB
MIB = 1 << 20


def bombs(count: int, size: int) -> bytes:
    """Return records of some kilobytes whose bodies unpack to `size` bytes each."""
    return record(zlib.compress(bytes(size), 9), sys_flag=PACKED, UNIQ_KEY="7F04") * count


def peak_bytes(work: Callable[[], object]) -> int:
    """Return how much memory was allocated at once while `work` ran."""
    tracemalloc.start()
    try:
        kept = work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        del kept
        tracemalloc.stop()


def test_an_answer_of_compressed_bodies_takes_no_more_than_it_did_on_the_wire() -> None:
    data = bombs(32, 8 * MIB)
    assert len(data) < 512 << 10
    assert peak_bytes(lambda: decode_received(data, SOURCE)) < 2 * MIB


def test_bodies_that_were_looked_at_are_not_all_kept() -> None:
    data = bombs(32, 8 * MIB)

    def look() -> list[ReceivedMessage]:
        messages = decode_received(data, SOURCE)
        assert all(len(message.body) == 8 * MIB for message in messages)
        return messages

    assert peak_bytes(look) < 32 * MIB


def test_a_body_beyond_the_bound_is_an_error_that_names_the_option() -> None:
    (message,) = decode_received(bombs(1, 64 * MIB), SOURCE)

    def look() -> None:
        with pytest.raises(BodyTooLarge, match=r"than 16777216 bytes, the body_bytes_max .* 7F04 of orders"):
            _ = message.body

    assert peak_bytes(look) < 40 * MIB
    assert "compressed" in repr(message) and "16777216" in (message.note or "")
    (smaller,) = decode_received(bombs(1, 1001), SOURCE, 1000)
    with pytest.raises(BodyTooLarge):
        _ = smaller.body
    (exact,) = decode_received(bombs(1, 1000), SOURCE, 1000)
    assert exact.body == bytes(1000) and exact.note is None


def test_a_compressed_message_is_copied_compared_and_sent_on_as_it_travelled() -> None:
    data = bombs(1, 64 * MIB)
    (message,) = decode_received(data, SOURCE)
    again = message.tried_again(1)
    assert peak_bytes(lambda: pickle.loads(pickle.dumps(message)) == copy.copy(message) == message) < 4 * MIB
    assert again.wire_body == message.wire_body and again != message
    flags, body = message.wire_body
    assert flags == PACKED and body == zlib.compress(bytes(64 * MIB), 9)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(0, "ZLIB but does not unpack"), (1, "LZ4 but"), (2, "ZSTD but"), (5, "in an unknown way")],
)
def test_a_body_that_does_not_unpack_is_no_body_and_travels_on_as_it_was(kind: int, said: str) -> None:
    flags = MessageSysFlag.COMPRESSED | kind << 8
    (message,) = decode_received(record(b"nonsense", sys_flag=flags), SOURCE)
    for _ in range(2):
        with pytest.raises(BodyUnreadable, match=said):
            _ = message.body
    assert said in (message.note or "") and message.wire_body == (flags, b"nonsense")
