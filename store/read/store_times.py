"""Store times: of messages by queue and offset, and the offset to start from for a time. Away from the loop."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from store.log.commitlog import CommitLog
from store.queues.consume_queue import ConsumeQueue, FrozenQueue

__all__ = ["Spot", "offset_by_time", "oldest_store_time", "spot_of", "store_time", "store_times", "times_at"]

Spot: TypeAlias = "int | Callable[[], bytes]"
"""The log offset of a message, negative where there is none; or how its queue entry is read, where no memory has it."""


def spot_of(queue: ConsumeQueue | None, offset: int) -> Spot:
    """Return where the message at `offset` of a queue is. Queue entries change on the loop, and are looked at there."""
    if queue is None or not queue.min_offset <= offset < queue.readable:
        return -1
    entry = queue.entries_nowait(offset, 1)
    if entry:
        return int.from_bytes(entry[:8], "big")
    file, position, size = queue.place(offset, 1)
    return partial(file.read_at, position, size)


def store_times(log: CommitLog, places: Iterable[tuple[ConsumeQueue | None, int]]) -> Callable[[], list[int]]:
    """Return a job that is `times_at` for these (queue, offset), which are few: they are looked at now."""
    return partial(times_at, log, [spot_of(queue, offset) for queue, offset in places])


def times_at(log: CommitLog, spots: Sequence[Spot]) -> list[int]:
    """Return when the messages at these spots were stored, ms; -1 where there is none. Blocks, on any thread.

    Raises OSError where the disk cannot be read.
    """
    times = []
    for spot in spots:
        physical = spot if isinstance(spot, int) else int.from_bytes(spot()[:8] or b"\xff", "big")
        times.append(_record_time(log, physical) if physical >= 0 else -1)
    return times


def offset_by_time(queue: FrozenQueue, log: CommitLog, timestamp: int, *, upper: bool = False) -> int:
    """Return the queue offset to start from for a time in ms. Blocks; for a reader thread.

    LOWER: the first message stored at or after `timestamp`, or the end. `upper`: the last one stored at or before it.
    """
    low, high = queue.min_offset, queue.readable
    first, last = low, high
    while low < high:
        middle = (low + high) // 2
        stored = store_time(queue, log, middle)
        if stored < timestamp or (upper and stored == timestamp):
            low = middle + 1
        else:
            high = middle
    if upper:
        return max(first, low - 1) if first < last else first
    return low


def store_time(queue: FrozenQueue, log: CommitLog, queue_offset: int) -> int:
    """Return the store time of message `queue_offset` in ms; -1 if its record is gone. Blocks."""
    return _record_time(log, queue.read(queue_offset)[0])


def oldest_store_time(log: CommitLog) -> int:
    """Return when the first record of the log was stored, ms; -1 if it is gone. Blocks.

    The record stands behind the head of its entry in a log of entries.
    """
    return _record_time(log, log.min_offset + log.placing.head_size)


def _record_time(log: CommitLog, physical: int) -> int:
    """Return the store time of the record at log offset `physical` in ms; -1 if it is gone. Blocks."""
    segment = log.find(physical)
    if segment is None:
        return -1
    head = segment.file.read_at(physical - segment.base_offset, 80)
    if len(head) < 80:
        return -1
    at = 48 + (20 if struct.unpack_from(">i", head, 36)[0] & 0x10 else 8)
    return int(struct.unpack_from(">q", head, at)[0])
