"""Read the records of one answer run by run, and compare each with its queue entry: the slow way, and the model.

Every read can be made so: in the window, out of the page cache, by a reader thread. `store.read.columns` gives the
same answer faster where nothing is odd. What is left for this way are records that are large or lie far apart, bytes
without a block checksum, and answers in which an entry names no record of its queue, which has to be found and
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ropewalk.format.record import MAGIC_V1
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.read.columns import IDENTITY

_V1_LAST = MAGIC_V1 & 0xFF


@dataclass(slots=True)
class Run:
    """Adjacent records of one segment, as their queue entries name them."""

    segment: Segment
    position: int
    size: int = 0
    sizes: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    """The queue offset of each."""


def plan_runs(log: CommitLog, records: Iterable[tuple[int, int, int]]) -> list[Run]:
    """Join records, given as (log offset, size, queue offset), that stand side by side in one segment."""
    runs: list[Run] = []
    expected = -1
    for offset, size, number in records:
        run = runs[-1] if runs else None
        if run is None or offset != expected or offset == run.segment.end_offset:
            segment = log.find(offset)
            assert segment is not None, "whoever chose the record has found its segment"
            run = Run(segment, offset - segment.base_offset)
            runs.append(run)
        run.size += size
        run.sizes.append(size)
        run.numbers.append(number)
        expected = offset + size
    return runs


def read_runs_nowait(runs: list[Run], window_from: int) -> list[bytes] | None:
    """Return the bytes of each run if they are in memory and need no check; never waits for a disk."""
    data: list[bytes] = []
    for run in runs:
        if run.segment.base_offset + run.position >= window_from:
            data.append(run.segment.map[run.position : run.position + run.size])
            continue
        checks = run.segment.checks
        if checks is not None and not checks.is_checked(run.position, run.size):
            return None
        read = run.segment.file.read_at_nowait(run.position, run.size)
        if read is None:
            return None
        data.append(read)
    return data


def read_run(run: Run) -> bytes:
    """Return the bytes of a run, checked first if an earlier process wrote them. Blocks; raises `OSError`."""
    if run.segment.checks is not None:
        run.segment.checks.check(run.position, run.size)
    return run.segment.file.read_at(run.position, run.size)


def prove_runs(
    queue: ConsumeQueue, runs: list[Run], data: list[bytes], stale: Callable[[int], None]
) -> tuple[list[bytes | memoryview], int]:
    """Return the records that match their entries, side by side where they stand so in the log, and their count.

    `stale` is called with the queue offset of every other one: a stale entry must not serve a foreign message.
    """
    queue_id, topic = queue.queue_id, queue.topic_bytes
    pieces: list[bytes | memoryview] = []
    count = 0
    for run, read in zip(runs, data, strict=True):
        start = at = 0
        offset = run.segment.base_offset + run.position
        for size, number in zip(run.sizes, run.numbers, strict=True):
            if (
                len(read) < at + size
                or IDENTITY.unpack_from(read, at) != (size, queue_id, number, offset + at)
                or not is_of_topic(read, at, topic)
            ):
                stale(number)
                if at > start:
                    pieces.append(read[start:at])
                start = at + size  # what comes behind it can be as good as ever
            else:
                count += 1
            at += size
        if at > start:
            pieces.append(read[start:at])
    return pieces, count


def topic_at(data: bytes | memoryview, at: int) -> int:
    """Return where the record that begins at `at` has its topic, the length first."""
    flags = data[at + 39]  # the low byte of the sys flag: two bits say how long the hosts are
    body_at = at + 84 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    return body_at + 4 + int.from_bytes(data[body_at : body_at + 4], "big")


def is_of_topic(data: bytes, at: int, topic: bytes) -> bool:
    """Tell whether the record that begins at `at` has this topic."""
    begin = topic_at(data, at)
    if data[at + 7] == _V1_LAST:
        return data[begin : begin + 1 + len(topic)] == (len(topic) & 0xFF).to_bytes(1, "big") + topic
    return data[begin : begin + 2 + len(topic)] == len(topic).to_bytes(2, "big") + topic


def identity_of(record: bytes) -> tuple[str, int, int] | None:
    """Return topic, queue and queue offset of a whole record; None if its topic is no text."""
    _size, queue_id, number, _offset = IDENTITY.unpack_from(record)
    at = topic_at(record, 0)
    width = 1 if record[7] == _V1_LAST else 2
    size = int.from_bytes(record[at : at + width], "big")
    try:
        return record[at + width : at + width + size].decode(), queue_id, number
    except UnicodeDecodeError:
        return None
