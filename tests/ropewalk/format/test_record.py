from __future__ import annotations

import contextlib
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import LocalProtocolError
from ropewalk.format.properties import encode_properties
from ropewalk.format.record import (
    CRC_PROPERTY_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    CorruptRecord,
    body_crc,
    crc_property,
    decode_host,
    decode_record,
    decode_records,
    encode_blank,
    encode_host,
    encode_record,
    is_blank,
    message_id,
    parse_message_id,
    read_frame,
    record_size,
)

relaxed = settings(deadline=None, max_examples=150)

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
PORT = st.integers(0, 65535)
HOSTS = st.tuples(st.ip_addresses().map(str), PORT)

BORN_MS = 1700000000000
BORN = encode_host("10.0.0.1", 50001)
STORED = encode_host("10.0.0.2", 10911)
TAG_A = b"TAGS\x01TagA\x02"

EXAMPLE_A = bytes.fromhex(
    """
    00 00 00 73 da a3 20 a7 36 10 a6 86 00 00 00 03
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 00 00 00 01 8b cf e5 68 00
    0a 00 00 01 00 00 c3 51 00 00 01 8b cf e5 68 7b
    0a 00 00 02 00 00 2a 9f 00 00 00 00 00 00 00 00
    00 00 00 00 00 00 00 05 68 65 6c 6c 6f 09 54 6f
    70 69 63 54 65 73 74 00 0a 54 41 47 53 01 54 61
    67 41 02
    """
)


def simple(body: bytes = b"hello", topic: bytes = b"TopicTest", properties: bytes = TAG_A) -> bytes:
    return encode_record(topic, 3, 0, 0, 0, 0, BORN_MS, BORN, BORN_MS + 123, STORED, 0, 0, body, properties)


def test_worked_example_a_plain_v1_record() -> None:
    assert simple() == EXAMPLE_A
    record = decode_record(EXAMPLE_A)
    assert (record.topic, record.body, record.properties) == ("TopicTest", b"hello", {"TAGS": "TagA"})
    assert (record.size, record.magic, record.body_crc) == (115, MAGIC_V1, 907060870)
    assert (record.queue_id, record.queue_offset, record.offset) == (3, 0, 0)
    assert (record.born_timestamp, record.store_timestamp) == (BORN_MS, BORN_MS + 123)
    assert (record.born_host, record.store_host) == (("10.0.0.1", 50001), ("10.0.0.2", 10911))
    assert record.msg_id == "0A00000200002A9F0000000000000000"
    assert record.tags == "TagA"
    assert record.uniq_key is None


def test_worked_example_b_checksum_over_the_whole_record_as_last_property() -> None:
    room = b"\0" * CRC_PROPERTY_SIZE
    without = encode_record(
        b"TopicTest", 3, 0, 1, 115, 0, BORN_MS, BORN, BORN_MS + 124, STORED, 0, 0, b"hello", TAG_A + room
    )[:-CRC_PROPERTY_SIZE]
    assert zlib.crc32(without) & 0x7FFFFFFF == 1272698293
    record = without + crc_property(without)
    assert len(record) == 135
    assert record.endswith(
        bytes.fromhex("54657374 001e 54414753 01 54616741 02 5f5f435243333223 01 33393238393632373231 02")
    )
    assert decode_record(record).properties == {"TAGS": "TagA", "__CRC32#": "3928962721"}


def test_worked_example_c_long_topic_and_ipv6_host() -> None:
    topic = b"%RETRY%" + b"g" * 121
    record = encode_record(
        topic,
        0,
        0,
        0,
        250,
        0,
        BORN_MS,
        encode_host("2001:db8::1", 50001),
        BORN_MS + 125,
        STORED,
        0,
        0,
        b"hello",
        TAG_A,
    )
    assert len(record) == 247
    assert record[:80] == bytes.fromhex(
        """
        00 00 00 f7 da a3 20 ab 36 10 a6 86 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 fa 00 00 00 10 00 00 01 8b cf e5 68 00
        20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01
        00 00 c3 51 00 00 01 8b cf e5 68 7d 0a 00 00 02
        """
    )
    assert record[record.index(topic) - 2 : record.index(topic)] == b"\x00\x80"
    read = decode_record(record)
    assert (read.magic, read.sys_flag, read.born_host) == (MAGIC_V2, 0x10, ("2001:db8::1", 50001))


def test_worked_example_blank_with_71_bytes_left() -> None:
    blank = encode_blank(71)
    assert blank == bytes.fromhex("00000047 cbd43194")
    assert is_blank(blank)
    assert is_blank(EXAMPLE_A + blank, len(EXAMPLE_A))
    assert not is_blank(EXAMPLE_A)
    assert not is_blank(blank[:7])
    with pytest.raises(CorruptRecord, match="magic cbd43194"):
        decode_record(blank + b"\0" * 100)


@pytest.mark.parametrize(
    ("body", "crc"), [(b"hello", 907060870), (b"a", 1756872259), (b"foo", 208889121), (b"", 0)]
)
def test_checksums_have_their_top_bit_cleared(body: bytes, crc: int) -> None:
    assert body_crc(body) == crc
    assert int.from_bytes(simple(body=body)[8:12], "big") == crc


def test_vector_offset_message_id() -> None:
    text = "0A00000100002A9F00000000000003E8"
    assert message_id(encode_host("10.0.0.1", 10911), 1000) == text
    assert parse_message_id(text) == ("10.0.0.1", 10911, 1000)


@relaxed
@given(HOSTS, I64)
def test_a_message_id_names_its_host_and_offset(host: tuple[str, int], offset: int) -> None:
    text = message_id(encode_host(*host), offset)
    assert len(text) in (32, 56)
    assert parse_message_id(text) == (*host, offset)
    assert decode_host(encode_host(*host)) == host


@pytest.mark.parametrize(
    "text", ["", "0A", "x" * 32, "0A" * 17, " " * 32, "0A " * 10 + "0A", "0A" * 27 + "  "]
)
def test_a_text_that_is_no_message_id_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"message id|hexadecimal"):
        parse_message_id(text)


@pytest.mark.parametrize("ip", ["localhost", "1.2.3", "1.2.3.4.5", "", "::g"])
def test_a_host_that_is_no_address_is_a_value_error(ip: str) -> None:
    with pytest.raises(ValueError, match="IPv4 or IPv6"):
        encode_host(ip, 1)


@relaxed
@given(
    topic=st.text("abc-%_", max_size=255),
    numbers=st.tuples(I32, I32, I64, I64, I32, I64, I64, I32, I64),
    born=HOSTS,
    stored=HOSTS,
    body=st.binary(max_size=300),
    properties=st.dictionaries(st.text("ab", min_size=1), st.text("xyz\x01é", min_size=1), max_size=5),
    neighbour=st.binary(max_size=20),
)
def test_a_record_survives_the_round_trip_with_a_neighbour_on_either_side(
    topic: str,
    numbers: tuple[int, ...],
    born: tuple[str, int],
    stored: tuple[str, int],
    body: bytes,
    properties: dict[str, str],
    neighbour: bytes,
) -> None:
    queue_id, flag, queue_offset, offset, sys_flag, born_ms, stored_ms, reconsume_times, prepared = numbers
    born_host, store_host, raw = encode_host(*born), encode_host(*stored), encode_properties(properties)
    data = encode_record(
        topic.encode(),
        queue_id,
        flag,
        queue_offset,
        offset,
        sys_flag,
        born_ms,
        born_host,
        stored_ms,
        store_host,
        reconsume_times,
        prepared,
        body,
        raw,
    )
    assert len(data) == record_size(len(topic), len(body), len(raw), len(born_host), len(store_host))
    record = decode_record(neighbour + data + neighbour, len(neighbour))
    assert record.size == len(data)
    assert record.magic == (MAGIC_V2 if len(topic) > 127 else MAGIC_V1)
    assert (record.topic, record.body, record.properties) == (topic, body, properties)
    assert record.raw_properties == raw
    assert (record.queue_id, record.flag, record.queue_offset, record.offset) == numbers[:4]
    assert record.sys_flag & ~0x30 == sys_flag & ~0x30
    assert bool(record.sys_flag & 0x10) == (":" in born[0])
    assert bool(record.sys_flag & 0x20) == (":" in stored[0])
    assert (record.born_timestamp, record.store_timestamp) == (born_ms, stored_ms)
    assert (record.born_host, record.store_host) == (born, stored)
    assert (record.reconsume_times, record.prepared_transaction_offset) == (reconsume_times, prepared)
    assert record.msg_id == message_id(store_host, offset)


def test_the_smallest_record_is_the_smallest_size_accepted() -> None:
    smallest = simple(body=b"", topic=b"", properties=b"")
    assert len(smallest) == RECORD_SIZE_MIN
    assert decode_record(smallest).body == b""


@pytest.mark.parametrize(("topic_size", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2)])
def test_the_topics_length_decides_the_version(topic_size: int, magic: int) -> None:
    assert decode_record(simple(topic=b"t" * topic_size)).magic == magic


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_are_read_from_any_buffer(kind: type) -> None:
    records = decode_records(kind(EXAMPLE_A + simple(b"second")))
    assert [record.body for record in records] == [b"hello", b"second"]
    assert all(type(record.body) is bytes for record in records)


def test_a_record_cut_at_any_byte_is_corrupt() -> None:
    for size in range(len(EXAMPLE_A)):
        with pytest.raises(CorruptRecord):
            decode_record(EXAMPLE_A[:size])
        with pytest.raises(CorruptRecord):
            decode_records(EXAMPLE_A + EXAMPLE_A[: size or 1])


def test_a_damaged_body_is_found_unless_the_check_is_waived() -> None:
    damaged = EXAMPLE_A.replace(b"hello", b"hallo")
    with pytest.raises(CorruptRecord, match="checksum"):
        decode_record(damaged)
    assert decode_record(damaged, check_crc=False).body == b"hallo"


@relaxed
@given(st.sampled_from([EXAMPLE_A, simple(topic=b"t" * 200)]), st.data())
def test_hostile_records_raise_nothing_but_corrupt_record(source: bytes, data: st.DataObject) -> None:
    hostile = bytearray(source)
    for _ in range(data.draw(st.integers(1, 5))):
        hostile[data.draw(st.integers(0, len(hostile) - 1))] = data.draw(st.integers(0, 255))
    for check_crc in (True, False):
        try:
            record = decode_record(bytes(hostile), check_crc=check_crc)
        except CorruptRecord:
            continue
        assert record.size == len(source), "what is read must be all of it"


@relaxed
@given(st.sampled_from([EXAMPLE_A, simple(), simple(topic=b"t" * 127), simple(topic=b"t" * 200)]), st.data())
def test_the_short_way_to_read_a_record_says_what_the_long_way_says(
    source: bytes, data: st.DataObject
) -> None:
    """Only `bytes` are read the short way."""
    changed = bytearray(source)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    check = data.draw(st.booleans())

    def told(buffer: bytes | memoryview) -> object:
        try:
            return decode_record(buffer, check_crc=check)
        except CorruptRecord as exc:
            return str(exc)

    assert told(bytes(changed)) == told(memoryview(bytes(changed)))


@given(st.binary(max_size=200), st.integers(-5, 250))
def test_garbage_raises_nothing_but_corrupt_record(data: bytes, position: int) -> None:
    for prefix in (
        b"",
        (100).to_bytes(4, "big") + b"\xda\xa3\x20\xa7",
        (100).to_bytes(4, "big") + b"\xda\xa3\x20\xab",
    ):
        with contextlib.suppress(CorruptRecord):
            decode_record(prefix + data, position)
        with contextlib.suppress(CorruptRecord):
            decode_records(prefix + data, check_crc=False)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, b"\xff\xff\xff\xff"),  # size
        (0, b"\x00\x00\x00\x5a"),
        (0, b"\x00\x00\x00\x72"),
        (0, b"\x7f\xff\xff\xff"),
        (36, b"\x00\x00\x00\x30"),  # IPv6 bits on IPv4 hosts
        (84, b"\xff\xff\xff\xff"),  # body length
        (84, b"\x7f\xff\xff\xff"),
        (93, b"\xff"),  # topic length
        (93, b"\x7f"),
        (94, b"\xff"),  # topic
        (103, b"\xff\xff"),  # properties length
        (103, b"\x00\x0b"),
        (103, b"\x00\x09"),
    ],
)
def test_a_length_that_leaves_the_record_is_corrupt(position: int, value: bytes) -> None:
    hostile = EXAMPLE_A[:position] + value + EXAMPLE_A[position + len(value) :]
    with pytest.raises(CorruptRecord):
        decode_record(hostile + EXAMPLE_A, check_crc=False)


@pytest.mark.parametrize(
    ("size", "body_size", "tail"),
    [
        # Lengths that point backwards, at bytes which would add up if they were taken for the fields behind them.
        (340, -6, bytes(252)),
        (344, 1, b"\x00\xfe" + bytes(254)),
    ],
    ids=["body", "topic"],
)
def test_a_negative_length_is_corrupt_even_where_the_sum_would_be_right(
    size: int, body_size: int, tail: bytes
) -> None:
    hostile = bytearray(simple(body=b"", topic=b"", properties=b"")[:88] + tail)
    assert len(hostile) == size
    hostile[0:4] = size.to_bytes(4, "big")
    hostile[84:88] = body_size.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecord, match=r"body of -6|topic's length"):
        decode_record(bytes(hostile), check_crc=False)


@pytest.mark.parametrize("bits", [0x10, 0x20, 0x30])
def test_a_record_too_small_for_the_hosts_it_claims_is_corrupt(bits: int) -> None:
    hostile = bytearray(simple(body=b"", topic=b"", properties=b""))
    hostile[39] = bits
    with pytest.raises(CorruptRecord, match="too small for its hosts"):
        decode_record(hostile + EXAMPLE_A)


def test_reading_needs_eight_bytes_to_tell_what_is_there() -> None:
    assert read_frame(EXAMPLE_A) == (115, MAGIC_V1)
    for position in (-1, len(EXAMPLE_A) - 7, 10**6):
        with pytest.raises(CorruptRecord):
            read_frame(EXAMPLE_A, position)


@pytest.mark.parametrize(
    "make",
    [
        lambda: simple(properties=b"x" * 32768),
        lambda: simple(topic=b"x" * 32768),
        lambda: encode_record(b"T", 2**31, 0, 0, 0, 0, 0, BORN, 0, STORED, 0, 0, b"", b""),
        lambda: encode_record(b"T", 0, 0, 2**63, 0, 0, 0, BORN, 0, STORED, 0, 0, b"", b""),
        lambda: encode_record(b"T", 0, 0, 0, 0, 0, 0, b"1234", 0, STORED, 0, 0, b"", b""),
    ],
    ids=["properties", "topic", "queue id", "queue offset", "host"],
)
def test_what_the_layout_cannot_hold_is_our_own_error(make: object) -> None:
    assert callable(make)
    with pytest.raises(LocalProtocolError):
        make()
