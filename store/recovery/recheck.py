"""A second look at the end of the log before a start believes that it is whole.

Where the bound file says that every record has its entry, recovery would read nothing. So the last few MiB are read
anyway, each record and its entry; if anything there is not as it should be, the walk of `recovery` begins before it
and decides. Queue files that were damaged there are built again from the log in this way.
"""

from __future__ import annotations

from collections.abc import Callable

from store.log.commitlog import CommitLog
from store.queues.consume_queue import ConsumeQueue
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import candidates


def recheck(
    log: CommitLog,
    start: int,
    size: int,
    find_queue: Callable[[str, int], ConsumeQueue | None],
    delay_ms: Callable[[str], int],
    is_dead: Callable[[str, int], bool],
) -> tuple[int, int]:
    """Check the `size` bytes before `start`; return where the walk has to begin, and from where it was checked.

    Both are `start` if there is nothing to look at. Blocks.
    """
    if size <= 0 or start <= log.min_offset:
        return start, start
    begin = log.min_offset
    if start - size > begin:
        begin = _boundary(log, start - size, start, find_queue, is_dead)
    offset = begin
    while offset < start:
        segment = log.find(offset)
        if segment is None:
            return begin, begin
        seen = scan_record(segment, offset - segment.base_offset, delay_ms)
        if seen is NoRecord.FILLER:
            offset = segment.end_offset
            continue
        if not isinstance(seen, ScannedRecord):
            return begin, begin
        if seen.indexed and not is_dead(seen.topic, seen.offset) and not _has_entry(find_queue, seen):
            return begin, begin
        offset = seen.end
    return (start, begin) if offset == start else (begin, begin)


def _boundary(
    log: CommitLog,
    offset: int,
    end: int,
    find_queue: Callable[[str, int], ConsumeQueue | None],
    is_dead: Callable[[str, int], bool],
) -> int:
    """Where a record begins, at or behind `offset`; the beginning of its segment if the first has no entry; or `end`.

    A body can hold bytes that are a valid record for their place. Only a broker makes queue entries, so what an entry
    names is genuine.
    """
    for seen in candidates(log, offset):
        if seen.offset >= end:
            return end
        if not seen.indexed or is_dead(seen.topic, seen.offset):
            continue  # has no entry, genuine or not
        queue, number = find_queue(seen.topic, seen.queue_id), seen.queue_offset
        if queue is not None and queue.min_offset <= number < queue.next_offset:
            if queue.read(number)[:2] == (seen.offset, seen.size):
                return seen.offset - log.placing.head_size
        segment = log.find(seen.offset)
        assert segment is not None
        return segment.base_offset
    return end


def _has_entry(find_queue: Callable[[str, int], ConsumeQueue | None], seen: ScannedRecord) -> bool:
    queue = find_queue(seen.topic, seen.queue_id)
    number = seen.queue_offset
    if queue is None or not queue.min_offset <= number < queue.next_offset:
        return False
    return queue.read(number) == (seen.offset, seen.size, seen.tags_code)
