"""When messages were stored: times of records by queue and offset, looked up away from the loop.

The queue entries are looked at on the loop, where they change; the records on whichever thread runs the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from store.log.commitlog import CommitLog
from store.queues.consume_queue import ConsumeQueue
from store.read import reader

__all__ = ["store_times"]


def store_times(log: CommitLog, places: Iterable[tuple[ConsumeQueue | None, int]]) -> Callable[[], list[int]]:
    """Return a job that returns when the messages at these (queue, offset) were stored, ms; -1 where there is none.

    The job blocks on the disk and runs on any thread; raises OSError where the disk cannot be read.
    """
    spots: list[int | Callable[[], bytes]] = []
    for queue, offset in places:
        if queue is None or not queue.min_offset <= offset < queue.readable:
            spots.append(-1)
            continue
        entry = queue.entries_nowait(offset, 1)
        if entry:
            spots.append(int.from_bytes(entry[:8], "big"))
        else:
            file, position, size = queue.place(offset, 1)
            spots.append(partial(file.read_at, position, size))

    def read_times() -> list[int]:
        times = []
        for spot in spots:
            physical = spot if isinstance(spot, int) else int.from_bytes(spot()[:8] or b"\xff", "big")
            times.append(reader.record_time(log, physical) if physical >= 0 else -1)
        return times

    return read_times
