"""What stands at a place of the log: a record, a filler, zeros, or what nobody wrote; one by one, and in runs."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropewalk.errors import CorruptRecord
from ropewalk.format.properties import tags_code
from ropewalk.format.record import decode_record, encode_blank, encode_host, encode_record
from store.io.disk import Disk
from store.log.placing import PLAIN
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.recovery import record_runs
from store.recovery.record_runs import KnownQueues, dispatch_runs, learn_queue
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record

V4 = encode_host("127.0.0.1", 1)
V6 = encode_host("::1", 1)


def segment_of(data: bytes, base: int = 0) -> object:
    return SimpleNamespace(map=data, size=len(data), base_offset=base, placing=PLAIN)


def see(data: bytes, position: int = 0, base: int = 0) -> ScannedRecord | NoRecord:
    return scan_record(segment_of(data, base), position)  # type: ignore[arg-type]


def record(
    *,
    offset: int = 0,
    topic: bytes = b"T",
    body: bytes = b"body",
    properties: bytes = b"TAGS\x01a\x02",
    born_host: bytes = V4,
    store_host: bytes = V4,
    sys_flag: int = 0,
    queue_id: int = 1,
    queue_offset: int = 5,
) -> bytes:
    return encode_record(
        topic,
        queue_id,
        0,
        queue_offset,
        offset,
        sys_flag,
        11,
        born_host,
        22,
        store_host,
        0,
        0,
        body,
        properties,
    )


@given(
    offset=st.integers(0, 2**40),
    topic=st.text(
        st.characters(codec="ascii", min_codepoint=48, max_codepoint=122), min_size=1, max_size=200
    ),
    body=st.binary(max_size=300),
    tags=st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    behind=st.binary(max_size=20),
)
def test_every_record_is_seen_as_the_reader_of_records_reads_it(
    offset: int, topic: str, body: bytes, tags: str, born_host: bytes, store_host: bytes, behind: bytes
) -> None:
    properties = f"KEYS\x01k\x02TAGS\x01{tags}\x02".encode() if tags else b""
    data = record(
        offset=offset,
        topic=topic.encode(),
        body=body,
        properties=properties,
        born_host=born_host,
        store_host=store_host,
    )
    read = decode_record(data)
    seen = see(data + behind, base=offset)
    assert isinstance(seen, ScannedRecord)
    assert (seen.offset, seen.size, seen.topic) == (read.offset, read.size, read.topic)
    assert (seen.queue_id, seen.queue_offset) == (read.queue_id, read.queue_offset)
    assert seen.store_timestamp == read.store_timestamp == 22
    assert seen.tags_code == tags_code(tags)
    assert seen.indexed


PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "XTAGS", "UNIQ_KEY"]), st.sampled_from(["", "a", "TAGS", "b c"])
    ),
    max_size=4,
).map(lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode())


KINDS = st.tuples(
    PROPERTIES | PROPERTIES.map(lambda text: text[:-1]) | st.binary(max_size=12) | st.just(b"K\x01v\0"),
    st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
    st.sampled_from([V4, V4, V4, V6]),
    st.sampled_from([b"", b"body"]),
)
EVERYDAY = st.tuples(
    st.sampled_from(
        [b"K\x01v\x02", b"KEYS\x01k\x02", b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"K\x01v\x02TAGS\x01a"]
    ),
    st.just(0),
    st.just(V4),
    st.sampled_from([b"", b"body", b"a longer body"]),
)
ALIKE = st.sampled_from(  # of one size: which are read by one format
    [
        [(b"K\x01v\x02", 0, V4, b"body")],
        [(b"TAGS\x01a\x02", 0, V4, b""), (b"TAGS\x01b\x02", 0, V4, b""), (b"TAGS\x01\x02b", 0, V4, b"")],
        [(b"K\x01v\x02TAGS\x01a", 0, V4, b"body"), (b"TAGS\x01a\x02K\x01v", 0, V4, b"soul")],
        [(b"U\x01%d\x02TAGS\x01a\x02" % number, 0, V4, b"body") for number in range(10_000, 10_014)],
        [
            (b"U\x01%b\x02TAGS\x01%b" % middle, 0, V4, b"body")
            for middle in (
                (b"k", b"a\x02"),
                (b"l", b"a\x02"),
                (b"l", b"b\x02"),
                (b"k", b"\x02a"),
                (b"l", b"\x02a"),
            )
        ],
        [
            (b"%b\x02TAGS\x01a\x02" % first, 0, V4, b"")
            for first in (b"KEYS\x01key", b"TAGS\x01tag", b"xTAGS\x01ta", b"K\x01TAGS\x01")
        ],
        [(b"TAGS\x01a\x02U\x01%d\x02" % number, 0, V4, b"") for number in range(5)],
    ]
).flatmap(lambda some: st.lists(st.sampled_from(some), min_size=7, max_size=14))
QUEUES = (("T", 1), ("T", 2), ("T", 300), ("other", 1), ("other", 2))
DAMAGE = st.tuples(st.integers(0, 14), st.integers(0, 92) | st.integers(-12, -1), st.integers(1, 255))


def tagged(before: bytes, tags: bytes, end: bytes = b"\x02") -> tuple[bytes, int, bytes, bytes]:
    return before + b"\x02TAGS\x01" + tags + end, 0, V4, b""


NOTHING = (b"K\x01v\x02", 0, V4, b"")


@settings(max_examples=300)
@given(
    kinds=(st.lists(EVERYDAY, max_size=14) | ALIKE).flatmap(
        lambda some: st.lists(KINDS, max_size=3).map(some.__add__)
    ),
    order=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=4),
    shows=st.booleans(),
    have=st.integers(0, 3),
    gone=st.integers(0, 2),
    first=st.integers(0, 2),
    damage=st.none() | DAMAGE,
)
@example([NOTHING] * 9, [("T", 1), ("other", 2)], False, 0, 0, 0, None)
@example([*[tagged(b"k", b"a")] * 4, *[tagged(b"l", b"a")] * 4], [("T", 1)], False, 0, 0, 0, None)
@example([*[tagged(b"k", b"a")] * 4, *[tagged(b"l", b"b")] * 4], [("T", 1)], False, 0, 0, 0, None)
@example([tagged(b"TAGS\x01k", b"")] * 8, [("T", 1)], False, 0, 0, 0, None)
@example([tagged(b"TAGS\x01k", b"", b"")] * 8, [("T", 1)], False, 0, 0, 0, None)
@example([tagged(b"TAGS\x01k", b"a", b"")] * 8, [("T", 1)], False, 0, 0, 0, None)
@example([NOTHING] * 9, [("T", 1)], True, 3, 0, 3, None)
@example([NOTHING] * 9, [("T", 1), ("T", 2), ("other", 1), ("other", 2)], True, 3, 0, 3, None)
@example([NOTHING] * 8, [("T", 1), ("T", 2), ("other", 1), ("other", 2)], True, 3, 1, 3, None)
@example([NOTHING] * 9, [("T", 300), ("T", 1)], False, 0, 0, 0, None)
@example([*[NOTHING] * 8, (b"K\x01v\0", 0, V4, b"")], [("T", 1)], True, 0, 0, 0, None)
@example([*[NOTHING] * 8, (b"K\x01v\x02\0", 0, V4, b""), *[NOTHING] * 8], [("T", 1)], True, 0, 0, 0, None)
@example([*[NOTHING] * 8, (b"K\x01v\x02", 0xC, V4, b"")], [("T", 1)], True, 0, 0, 0, None)
@example([NOTHING] * 9, [("T", 1)], True, 0, 0, 0, (5, -5, 3))
@example([NOTHING] * 9, [("T", 1)], True, 0, 0, 0, (8, -1, 2))
@example([NOTHING] * 9, [("T", 1)], True, 9, 0, 9, (8, -5, 3))
@example([NOTHING] * 9, [("T", 1)], True, 9, 0, 3, None)
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 90, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 0, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 1, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 7, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 84, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 30, 1))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 39, 0x10))
@example([(b"K\x01v\x02", 0, V4, b"body")] * 9, [("T", 1)], True, 0, 0, 0, (6, 92, 1))
def test_the_quick_way_through_records_sees_what_a_look_at_each_does(
    kinds: list[tuple[bytes, int, bytes, bytes]],
    order: list[tuple[str, int]],
    shows: bool,
    have: int,
    gone: int,
    first: int,
    damage: tuple[int, int, int] | None,
) -> None:
    """`have` entries of every queue are there already, but `gone` of them; its first record here has number `first`."""
    gone, first = min(gone, have), min(first, have)
    data, starts, known = b"", [0], KnownQueues()
    queues = {each: ConsumeQueue(*each, Path("nowhere"), 200, Disk()) for each in QUEUES}
    for (topic, queue_id), queue in queues.items():
        for number in range(have):
            queue.add(10_000 + number, 100, 7)
        queue.make_readable()
        queue.min_offset = gone
        one = see(record(topic=topic.encode(), queue_id=queue_id))
        assert isinstance(one, ScannedRecord)
        learn_queue(one, queue, known)
    numbers = dict.fromkeys(QUEUES, first)
    for (properties, sys_flag, host, body), where in zip(kinds, cycle(order), strict=False):
        data += record(
            offset=len(data), topic=where[0].encode(), queue_id=where[1], queue_offset=numbers[where],
            properties=properties, sys_flag=sys_flag, born_host=host, body=body,
        )  # fmt: skip
        starts.append(len(data))
        numbers[where] += 1
    if damage is not None and damage[0] < len(kinds):
        at = starts[damage[0] + (damage[1] < 0)] + damage[1]
        if at < len(data):
            data = data[:at] + bytes((data[at] ^ damage[2],)) + data[at + 1 :]
    grown: dict[ConsumeQueue, None] = {}
    segment = segment_of(data)
    end, count, latest = dispatch_runs(segment, 0, len(data), known, None if shows else grown)  # type: ignore[arg-type]
    at = newest = 0
    ends = dict.fromkeys(QUEUES, have)
    for _ in range(count):
        seen = see(data[at:], base=at)
        assert isinstance(seen, ScannedRecord) and seen.indexed and not seen.ends_in_zero
        where = (seen.topic, seen.queue_id)
        assert seen.queue_offset == ends[where]
        assert queues[where].read(ends[where]) == (at, seen.size, seen.tags_code)
        ends[where] += 1
        at += seen.size
        newest = max(newest, seen.store_timestamp)
    assert (at, latest) == (end, newest)
    assert {where: queue.next_offset for where, queue in queues.items()} == ends
    for where, queue in queues.items():
        last = queue.read(ends[where] - 1) if ends[where] else (0, 0, 0)
        assert queue.max_physical == last[0] + last[1]
        assert queue.readable == (ends[where] if shows else have)
    assert set(grown) == (set() if shows else {queues[where] for where, many in ends.items() if many > have})
    if end < len(data) and damage is None and first == have:
        stopped = see(data[end:], base=end)
        _properties, sys_flag, host, _body = kinds[count]
        # Whatever is not everyday is left to a scan of each.
        assert not isinstance(stopped, ScannedRecord) or stopped.ends_in_zero or sys_flag or host == V6


@pytest.mark.parametrize("each", [1, 2, 5])
def test_records_out_of_the_ordinary_are_not_seen_again_and_again(
    each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers with IPv6 addresses, say: a hundred thousand of their records took a start a minute."""
    known, data = KnownQueues(), b""
    queue = ConsumeQueue("T", 1, Path("nowhere"), 200, Disk())
    first = see(record())
    assert isinstance(first, ScannedRecord)
    learn_queue(first, queue, known)
    count = 600
    for number in range(count):
        host, sys_flag = (V6, 0x10) if number % each == 0 else (V4, 0)
        data += record(offset=len(data), queue_offset=number, born_host=host, sys_flag=sys_flag)
    looked_at = 0
    real = record_runs._places

    def counted(segment: Segment, position: int, limit: int, count_max: int) -> list[int]:
        nonlocal looked_at
        found = real(segment, position, limit, count_max)
        looked_at += len(found)
        return found

    monkeypatch.setattr(record_runs, "_places", counted)
    segment, at = segment_of(data), 0
    while at < len(data):
        at, _records, _latest = dispatch_runs(segment, at, len(data), known)  # type: ignore[arg-type]
        if at < len(data):
            seen = see(data[at:], base=at)
            assert isinstance(seen, ScannedRecord)
            queue.add(seen.offset, seen.size, seen.tags_code)
            at += seen.size
    assert queue.next_offset == count
    assert looked_at < 14 * count


@given(data=st.binary(max_size=300), position=st.integers(0, 300))
@example(data=bytes(8), position=0)
@example(data=encode_blank(8), position=0)
@example(data=record()[:90], position=0)
def test_hostile_bytes_are_only_ever_a_sighting(data: bytes, position: int) -> None:
    seen = see(data, min(position, len(data)))
    assert isinstance(seen, (ScannedRecord, NoRecord))


@settings(max_examples=300)
@given(
    at=st.integers(0, 110),
    patch=st.binary(min_size=1, max_size=8)
    | st.sampled_from([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)]),
    born_host=st.sampled_from([V4, V6]),
)
def test_a_patched_record_is_seen_only_where_the_reader_of_records_can_read_it(
    at: int, patch: bytes, born_host: bytes
) -> None:
    data = bytearray(record(born_host=born_host))
    data[at : at + len(patch)] = patch
    del data[len(record(born_host=born_host)) :]
    seen = see(bytes(data) + bytes(30))
    if isinstance(seen, ScannedRecord):
        try:
            read = decode_record(bytes(data))
        except CorruptRecord:
            pytest.fail(f"seen as {seen}, but it cannot be read")
        assert (seen.topic, seen.queue_offset, seen.size) == (read.topic, read.queue_offset, read.size)


@pytest.mark.parametrize("cut", range(1, len(record())))
def test_a_record_torn_at_any_byte_shows_it(cut: int) -> None:
    data = record()
    seen = see(data[:cut] + bytes(len(data) - cut + 50))
    assert seen in (NoRecord.BAD, NoRecord.BLANK) or (isinstance(seen, ScannedRecord) and seen.ends_in_zero)


@pytest.mark.parametrize("position", range(len(record())))
def test_a_flipped_bit_in_body_or_lengths_is_bad(position: int) -> None:
    data = bytearray(record(body=bytes(range(40)), properties=b""))
    lengths_and_body = [*range(12), *range(28, 36), *range(84, 88 + 40), len(data) - 2, len(data) - 1]
    if position in lengths_and_body:
        data[position] ^= 0x40
        assert see(bytes(data) + bytes(200)) is NoRecord.BAD


@pytest.mark.parametrize("topic", [b"a/b", b"/", b"..", b".", b"a\0b", b"\xff\xfe"])
def test_a_name_that_no_broker_took_and_no_directory_may_have_is_bad(topic: bytes) -> None:
    assert see(record(topic=topic)) is NoRecord.BAD


def test_a_record_that_says_it_stands_elsewhere_is_bad() -> None:
    data = record(offset=1000)
    assert isinstance(see(data, base=1000), ScannedRecord)
    assert see(data, base=0) is NoRecord.BAD


@pytest.mark.parametrize(("sys_flag", "indexed"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_half_messages_and_rollbacks_have_no_queue_entry(sys_flag: int, indexed: bool) -> None:
    seen = see(record(sys_flag=sys_flag))
    assert isinstance(seen, ScannedRecord)
    assert seen.indexed is indexed


def test_an_empty_tag_is_no_tag() -> None:
    empty, none = see(record(properties=b"TAGS\x01\x02")), see(record(properties=b""))
    assert isinstance(empty, ScannedRecord)
    assert isinstance(none, ScannedRecord)
    assert empty.tags_code == none.tags_code == 0


def test_fillers_and_zeros_are_told_apart_from_garbage() -> None:
    assert see(encode_blank(100) + bytes(92)) is NoRecord.FILLER
    assert see(bytes(100)) is NoRecord.BLANK
    assert see(b"\1" * 100) is NoRecord.BAD
    assert see(bytes(7)) is NoRecord.BAD
