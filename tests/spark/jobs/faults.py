"""Thirty ways to damage a copy of a store, each with what an audit must say about it, and nothing else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ropewalk.format.queue_entry import ENTRY_SIZE, pack
from ropewalk.format.record import Record, encode_record
from ropewalk.spark.jobs.records.findings import Kind
from store.offline.reader import find_log_files, read_log
from tests.spark.jobs.stores import QUEUE_FILE_SIZE, SEGMENT_SIZE, flip, overwrite

A, B, NOBODY = 0, 1, -1


@dataclass(frozen=True)
class Expected:
    """One finding; `offset` is where it begins, or the record of a queue's entry."""

    kind: Kind
    side: int
    offset: int
    repair_from: int | None = None


@dataclass
class Pair:
    """A store and its replica, and the records that both had before anybody touched them."""

    a: Path
    b: Path
    records: list[Record]

    @classmethod
    def of(cls, a: Path, b: Path) -> Pair:
        return cls(a, b, [each for each in read_log(find_log_files(a)) if isinstance(each, Record)])

    def root(self, side: int) -> Path:
        return (self.a, self.b)[side]

    def place(self, side: int, offset: int) -> tuple[Path, int]:
        base = offset - offset % SEGMENT_SIZE
        return self.root(side) / "commitlog" / f"{base:020d}", offset - base

    def flip(self, side: int, offset: int, mask: int = 0x10) -> None:
        path, position = self.place(side, offset)
        flip(path, position, mask)

    def write(self, side: int, offset: int, data: bytes) -> None:
        path, position = self.place(side, offset)
        overwrite(path, position, data)

    def entry(self, side: int, record: Record) -> tuple[Path, int]:
        logical = record.queue_offset * ENTRY_SIZE
        directory = self.root(side) / "consumequeue" / record.topic / str(record.queue_id)
        return directory / f"{logical - logical % QUEUE_FILE_SIZE:020d}", logical % QUEUE_FILE_SIZE

    def set_entry(self, side: int, record: Record, data: bytes) -> None:
        path, position = self.entry(side, record)
        overwrite(path, position, data)


Fault = Callable[[Pair, int], Expected]
"""Damages one side near record n, and says what must be found."""


def in_field(position: int, mask: int = 1) -> Fault:
    def plant(pair: Pair, n: int, side: int = B) -> Expected:
        record = pair.records[n]
        pair.flip(side, record.offset + position, mask)
        return Expected(Kind.BIT_ROT, side, record.offset, 1 - side)

    return plant


def in_body(where: float, mask: int, side: int = B) -> Fault:
    def plant(pair: Pair, n: int) -> Expected:
        record = pair.records[n]
        pair.flip(side, record.offset + 88 + int(where * (len(record.body) - 1)), mask)
        return Expected(Kind.BIT_ROT, side, record.offset, 1 - side)

    return plant


def in_topic(pair: Pair, n: int) -> Expected:
    record = pair.records[n]
    pair.flip(B, record.offset + 88 + len(record.body) + 1, 1)
    return Expected(Kind.BIT_ROT, B, record.offset, A)


def in_properties(from_end: int, side: int = B) -> Fault:
    def plant(pair: Pair, n: int) -> Expected:
        record = pair.records[n]
        pair.flip(side, record.offset + record.size - from_end, 1)
        return Expected(Kind.BIT_ROT, side, record.offset, 1 - side)

    return plant


def four_bytes(pair: Pair, n: int) -> Expected:
    record = pair.records[n]
    pair.write(B, record.offset + 90, b"\xde\xad\xbe\xef")
    return Expected(Kind.BIT_ROT, B, record.offset, A)


def foreign_page(pair: Pair, n: int) -> Expected:
    """Somebody else's kilobyte over several records."""
    record = pair.records[n]
    pair.write(B, record.offset + 20, random.Random(n).randbytes(1024))
    return Expected(Kind.FOREIGN_BYTES, B, record.offset, A)


def foreign_records(pair: Pair, n: int) -> Expected:
    """Whole records of another place in the log, where they do not belong."""
    record, other = pair.records[n], pair.records[n - 40]
    path, position = pair.place(B, other.offset)
    data = path.read_bytes()[position : position + 700]
    pair.write(B, record.offset, data)
    return Expected(Kind.FOREIGN_BYTES, B, record.offset, A)


def zeroed_page(pair: Pair, n: int) -> Expected:
    record = pair.records[n]
    pair.write(A, record.offset, bytes(900))
    return Expected(Kind.FOREIGN_BYTES, A, record.offset, B)


def rewritten_record(pair: Pair, n: int) -> Expected:
    """Another body of the same length, checksum and all: no rot could do that."""
    record = pair.records[n]
    body = bytes(byte ^ 0x55 for byte in record.body)
    pair.write(B, record.offset, encoded(record, body))
    return Expected(Kind.DIVERGED, B, record.offset, A)


def encoded(record: Record, body: bytes) -> bytes:
    host = bytes([*map(int, record.store_host[0].split(".")), *record.store_host[1].to_bytes(4, "big")])
    return encode_record(
        record.topic.encode(), record.queue_id, record.flag, record.queue_offset, record.offset, record.sys_flag,
        record.born_timestamp, host, record.store_timestamp, host, record.reconsume_times,
        record.prepared_transaction_offset, body, record.raw_properties,
    )  # fmt: skip


def missing_entries(count: int, side: int = B) -> Fault:
    def plant(pair: Pair, n: int) -> Expected:
        first = pair.records[n]
        queue = [r for r in pair.records if (r.topic, r.queue_id) == (first.topic, first.queue_id)]
        at = queue.index(first)
        for record in queue[at : at + count]:
            pair.set_entry(side, record, bytes(ENTRY_SIZE))
        return Expected(Kind.MISSING_CQ, side, first.offset, side)

    return plant


def wrong_entry(change: tuple[int, int, int]) -> Fault:
    def plant(pair: Pair, n: int) -> Expected:
        record = pair.records[n]
        path, position = pair.entry(B, record)
        data = path.read_bytes()[position : position + ENTRY_SIZE]
        offset, size, code = (
            int.from_bytes(data[a:b], "big", signed=True) for a, b in ((0, 8), (8, 12), (12, 20))
        )
        pair.set_entry(B, record, pack(offset + change[0], size + change[1], code + change[2]))
        return Expected(Kind.WRONG_CQ, B, record.offset, B)

    return plant


def orphan_entry(pair: Pair, n: int) -> Expected:
    """An entry behind a queue's last, which names a record of another queue."""
    record = pair.records[n]
    last = [r for r in pair.records if (r.topic, r.queue_id) == (record.topic, record.queue_id)][-1]
    path, position = pair.entry(B, last)
    assert position + 2 * ENTRY_SIZE <= QUEUE_FILE_SIZE
    overwrite(path, position + ENTRY_SIZE, pack(record.offset, record.size, 0))
    return Expected(Kind.ORPHAN_CQ, B, record.offset, B)


# Each is planted near a record of its own; together they are one badly treated pair of replicas.
SPREAD: tuple[tuple[str, Fault], ...] = (
    ("a bit at the beginning of a body", in_body(0, 0x01)),
    ("a bit in the middle of a body", in_body(0.5, 0x80)),
    ("a bit at the end of a body", in_body(1, 0x10)),
    ("a bit of a body of the first copy", in_body(0.3, 0x04, A)),
    ("a bit of a size", in_field(3)),
    ("the top bit of a size", in_field(0, 0x80)),
    ("a bit of a magic", in_field(7)),
    ("a bit of a body's checksum", in_field(10)),
    ("a bit of a queue id", in_field(15)),
    ("a bit of a flag", in_field(19)),
    ("a bit of a queue offset", in_field(27)),
    ("a bit of a log offset", in_field(34)),
    ("a bit of a sys flag", in_field(39)),
    ("a bit of a born time", in_field(45)),
    ("a bit of a store time", in_field(62)),
    ("a bit of a store host", in_field(66)),
    ("a bit of a body's size", in_field(87)),
    ("a bit of a topic", in_topic),
    ("a bit of a property", in_properties(3)),
    ("a bit of the last separator", in_properties(1)),
    ("a bit of a property of the first copy", in_properties(4, A)),
    ("four bytes of a body", four_bytes),
    ("a foreign kilobyte", foreign_page),
    ("records of another place", foreign_records),
    ("zeros over records of the first copy", zeroed_page),
    ("a missing entry", missing_entries(1)),
    ("missing entries of the first copy", missing_entries(5, A)),
    ("an entry with another size", wrong_entry((0, 1, 0))),
    ("an entry with another tag code", wrong_entry((0, 0, 4))),
    ("an entry that names another place", wrong_entry((4096, 0, 0))),
)


# -- faults that change a store as a whole, each for a pair of its own ---------------------------------


def lost_queue_file(pair: Pair) -> Expected:
    record = next(r for r in pair.records if r.topic == "payments")
    pair.entry(B, record)[0].unlink()
    return Expected(Kind.MISSING_CQ, B, record.offset, B)


def cut_last_segment(pair: Pair) -> Expected:
    """The last file ends inside a record."""
    record = pair.records[-4]
    path, position = pair.place(B, record.offset)
    with path.open("r+b") as file:
        file.truncate(position + 30)
    return Expected(Kind.BEHIND, B, record.offset, A)


def cut_middle_segment(pair: Pair) -> Expected:
    record = next(r for r in pair.records if r.offset > SEGMENT_SIZE + 20_000)
    path, position = pair.place(B, record.offset)
    with path.open("r+b") as file:
        file.truncate(position)
    return Expected(Kind.MISSING_BYTES, B, record.offset, A)


def lost_segment(pair: Pair) -> Expected:
    record = next(r for r in pair.records if r.offset >= 2 * SEGMENT_SIZE)
    pair.place(B, record.offset)[0].unlink()
    return Expected(Kind.MISSING_BYTES, B, record.offset, A)


def parted_logs(pair: Pair) -> Expected:
    """From one record on the replica has a history of its own, record by record valid."""
    first = len(pair.records) - 60
    for record in pair.records[first:]:
        pair.write(B, record.offset, encoded(record, bytes(b ^ 0x33 for b in record.body)))
    shutil.rmtree(pair.b / "ropewalk" / "checksums")
    return Expected(Kind.DIVERGED, B, pair.records[first].offset, A)


WHOLE: tuple[tuple[str, Callable[[Pair], Expected]], ...] = (
    ("a lost queue file", lost_queue_file),
    ("a last segment cut inside a record", cut_last_segment),
    ("a segment cut in the middle of the log", cut_middle_segment),
    ("a lost segment", lost_segment),
    ("logs that have parted", parted_logs),
    ("a rewritten record", lambda pair: rewritten_record(pair, 100)),
    ("an entry without a record", lambda pair: orphan_entry(pair, 100)),
)
