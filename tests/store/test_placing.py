"""One store of messages in two logs: records side by side, and each behind the head of an entry."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ropewalk.errors import LocalProtocolError
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head, encode_entries, encode_filler
from ropewalk.format.index import Geometry
from ropewalk.format.properties import encode_properties
from ropewalk.format.record import Record, WrittenRecords, decode_record
from ropewalk.format.record_pattern import SPLIT_MIN, RecordPattern
from store.append import Appender
from store.index.builder import IndexBuilder
from store.index.file import IndexPlace, index_names, read_header
from store.io.disk import Disk
from store.log.commitlog import CommitLog
from store.log.entry_writer import EntryWriter, WrittenRun
from store.log.placing import ENTRY, PLAIN, Placing
from store.queues.consume_queue import ConsumeQueue
from store.queues.entry_pool import EntryPool
from store.recovery.record_runs import KnownQueues, dispatch_runs, learn_queue
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from tests.store.worlds import HOST

SIZE = 4 * SPLIT_MIN


class Log:
    """An appender over a log of its own, without a store around it."""

    def __init__(self, root: Path, placing: Placing) -> None:
        self.disk = Disk()
        self.root = root
        self.log = CommitLog(root / "log", SIZE, self.disk, placing)
        self.queues: dict[int, ConsumeQueue] = {}
        self.runs: list[WrittenRun] = []
        self.writer = EntryWriter(self.runs.append)
        self.writer.begin(3, 10)
        ways = {} if placing is PLAIN else {"write_records": self.writer}
        self.appender = Appender(self.log, HOST, self.log.segment_for, [], EntryPool(), **ways)
        self.appender.deferred = True

    def queue(self, number: int) -> ConsumeQueue:
        if number not in self.queues:
            self.queues[number] = self.new_queue(number)
        return self.queues[number]

    def new_queue(self, number: int) -> ConsumeQueue:
        return ConsumeQueue("T", number, self.root / str(number), 2000, self.disk)

    def put(self, way: str, bodies: list[bytes], at: int) -> list[tuple[int, int]]:
        queues = [self.queue((at + n) % 3) for n in range(len(bodies))]
        keys = [b"%04d" % (at + n) for n in range(len(bodies))]
        if way == "written":
            stored = self.put_written(self.queue(at % 3), bodies, keys)
            if stored is not None:
                return stored
        appender, pattern = self.appender, RecordPattern(b"T", 5, 0, HOST, HOST, 2, b"K\x01", 4, b"\x02")
        if way in ("put", "written"):
            rows = zip(queues, bodies, keys, strict=True)
            return appender.put([(q, b, b"K\x01" + k + b"\x02", 5, 0, 7, 2, 0, 1) for q, b, k in rows], HOST)
        if way == "columns" and len({*map(len, bodies)}) == 1:
            columns = bodies, repeat(7, len(bodies)), keys, pattern, 1
            if (done := appender.put_columns(queues, columns)) is not None:
                return list(zip(*done, strict=True))
        rows = zip(queues, bodies, keys, strict=True)
        return appender.put_alike([(q, b, 7, k, pattern, 1) for q, b, k in rows])

    def put_written(
        self, queue: ConsumeQueue, bodies: list[bytes], keys: list[bytes]
    ) -> list[tuple[int, int]] | None:
        records = WrittenRecords(b"T", queue.queue_id, HOST, HOST)
        for body, key in zip(bodies, keys, strict=True):
            records.add(5, 0, 7, 2, body, b"K\x01" + key + b"\x02")
        done = self.appender.put_written(queue, records, [1] * len(bodies))
        return list(zip(done[0], range(done[1], done[1] + len(bodies)), strict=True)) if done else None

    def entries(self, queue: ConsumeQueue) -> list[tuple[int, int, int]]:
        return [queue.read(number) for number in range(queue.next_offset)]

    def records(self) -> list[Record]:
        """The records in the order of the log, found through the queues."""
        found = []
        for offset, size, _code in sorted(chain.from_iterable(map(self.entries, self.queues.values()))):
            segment = self.log.find(offset)
            assert segment is not None
            position = offset - segment.base_offset
            found.append(decode_record(segment.map[position : position + size]))
        return found

    def data(self) -> bytes:
        segments = self.log.segments
        return b"".join(segment.map[: segment.write_position] for segment in segments)


def bodies_of(count: int, size: int, varied: bool) -> list[bytes]:
    return [bytes([65 + n % 26]) * (size + (n % 3 if varied else 0)) for n in range(count)]


sends = st.tuples(
    st.sampled_from(("put", "alike", "columns", "written")),
    st.builds(bodies_of, st.integers(1, 20), st.sampled_from((0, 1, 100, 500, SPLIT_MIN)), st.booleans()),
)


@settings(suppress_health_check=list(HealthCheck), max_examples=30, deadline=None)
@given(turns=st.lists(sends, min_size=1, max_size=12))
def test_every_way_of_appending_writes_the_entries_that_dledger_would(
    turns: list[tuple[str, list[bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("logs")
    plain, entry = Log(root / "plain", PLAIN), Log(root / "entry", ENTRY)
    at = 0
    for way, bodies in turns:
        one, other = plain.put(way, bodies, at), entry.put(way, bodies, at)
        assert [number for _offset, number in one] == [number for _offset, number in other]
        at += len(bodies)
    wanted, found = plain.records(), entry.records()
    assert [fields_of(record) for record in found] == [fields_of(record) for record in wanted]

    rebuilt, index = b"", 10
    for record in found:
        body = raw_of(entry, record)
        if len(rebuilt) % SIZE + HEAD_SIZE + len(body) + 8 > SIZE:
            rebuilt += encode_filler(SIZE - len(rebuilt) % SIZE)
        rebuilt += encode_entries(index, 3, len(rebuilt), [body])
        index += 1
    assert entry.data() == rebuilt
    assert entry.writer.next_index == index

    noted = [grown for _begin, _end, grown in entry.appender.unreadable]
    assert {queue: number for grown in noted for queue, number in grown} == {
        queue: queue.next_offset for queue in entry.queues.values() if queue.next_offset
    }
    spans = [(begin, end) for begin, end, _grown in entry.appender.unreadable]
    assert all(decode_head(rebuilt, begin).pos == begin for begin, _end in spans)
    assert all(
        end % SIZE == len(rebuilt.rstrip(b"\0")) % SIZE or end <= len(rebuilt) for _begin, end in spans
    )
    assert seen_again(entry) == {n: entry.entries(queue) for n, queue in entry.queues.items()}
    plain.log.close()
    entry.log.close()


def fields_of(record: Record) -> tuple[object, ...]:
    return record.queue_id, record.queue_offset, record.body, record.raw_properties, record.size


def raw_of(log: Log, record: Record) -> bytes:
    segment = log.log.find(record.offset)
    assert segment is not None
    position = record.offset - segment.base_offset
    return bytes(segment.map[position : position + record.size])


def seen_again(log: Log) -> dict[int, list[tuple[int, int, int]]]:
    """The queue entries that a reader of the log makes, in runs where it can."""
    known, queues, offset = KnownQueues(), {n: log.new_queue(n) for n in log.queues}, 0
    while (segment := log.log.find(offset)) is not None and offset < log.log.end_offset:
        position = offset - segment.base_offset
        at, records, _latest = dispatch_runs(segment, position, segment.write_position, known, {})
        if records:
            offset = segment.base_offset + at
            continue
        seen = scan_record(segment, position)
        if seen is NoRecord.FILLER:
            offset = segment.end_offset
            continue
        assert isinstance(seen, ScannedRecord), (offset, seen)
        queue = queues[seen.queue_id]
        queue.add(seen.offset, seen.size, 1)
        known.setdefault(b"\x01T", {})
        learn_queue(seen, queue, known)
        offset = seen.end
    codes: Callable[[tuple[int, int, int]], tuple[int, int, int]] = lambda entry: (*entry[:2], 1)  # noqa: E731
    return {n: list(map(codes, log.entries(queue))) for n, queue in queues.items()}


def test_runs_that_stand_side_by_side_are_taken_as_one_with_the_bytes_that_were_written(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path, ENTRY)
    for at in range(0, 200, 10):
        log.put("columns", [b"x" * 500] * 10, at)
    written = b"".join(run[5] for run in log.runs)
    taken = log.writer.take(20_000, SIZE)
    assert b"".join(run[5] for run in taken) == written
    assert 1 < len(taken) < len(log.runs)
    index = 10
    for first, count, term, pos, size, data in taken:
        assert (first, term, size) == (index, 3, len(data)) and size <= 20_000
        assert decode_head(data).pos == pos and pos // SIZE == (pos + size) // SIZE
        index += count
    assert log.writer.take(20_000, SIZE) == []
    log.log.close()


@pytest.mark.parametrize("way", ["put", "alike", "columns"])
def test_a_record_that_no_entry_can_hold_is_refused_before_anything_is_written(
    tmp_path: Path, way: str
) -> None:
    log = Log(tmp_path, Placing(HEAD_SIZE, 1000, ENTRY.filler))
    log.put(way, [b"before"], 0)
    end = log.log.end_offset
    with pytest.raises(LocalProtocolError, match="larger than an entry"):
        log.put(way, [b"x" * 1000], 1)
    assert (log.log.end_offset, log.queue(1).next_offset, log.writer.next_index) == (end, 0, 11)
    log.log.close()


@pytest.mark.parametrize("placing", [PLAIN, ENTRY], ids=["plain", "entry"])
def test_the_key_index_has_each_record_of_a_log_and_goes_on_behind_its_last(
    placing: Placing, tmp_path: Path
) -> None:
    log = Log(tmp_path, placing)
    place = IndexPlace(
        tmp_path / "index", tmp_path / "log", SIZE, Geometry(50, 400), tmp_path / "lock", placing.head_size
    )
    offsets = []
    for number in range(30):
        keys = encode_properties({"KEYS": f"k{number}"})
        message = (log.queue(0), b"b" * (300 if number % 7 else SIZE // 3), keys, 0, 0, 7, 0, 0, 1)
        offsets += [offset for offset, _ in log.appender.put([message], HOST)]
        if number == 14 or number == 29:
            builder = IndexBuilder(place, log.disk, lambda: 1_700_000_000_000)
            builder.open(log.log.end_offset, None)
            assert builder.advance(log.log.end_offset, 0)
            assert not builder.findings and builder.position == log.log.end_offset
    assert len(log.log.segments) > 2
    header = read_header(
        log.disk, place.directory / index_names(log.disk, place.directory)[-1], place.geometry
    )
    assert header is not None and header.next_item == 31, "each once, over both builders"
    assert header.end_offset == offsets[-1]
