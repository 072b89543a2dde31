"""A second look at the end of the log before a start believes that it is whole.

Where the bound file says that every record has its entry, recovery would read nothing. So the last few MiB are read
anyway, each record and its entry; if anything there is not as it should be, the walk of `recovery` begins before it
and decides. Queue files that were damaged there are built again from the log in this way.
"""

from __future__ import annotations

from collections.abc import Callable

from store.commitlog import CommitLog
from store.consume_queue import ConsumeQueue
from store.recovery import Sight, Sighted, look, next_valid


def recheck(
    log: CommitLog,
    start: int,
    size: int,
    find_queue: Callable[[str, int], ConsumeQueue | None],
    delay_ms: Callable[[str], int],
    is_dead: Callable[[str, int], bool],
) -> tuple[int, int]:
    """Look at the `size` bytes before `start`; return where the walk has to begin, and what was looked at from.

    Both are `start` if there is nothing to look at. Blocks.
    """
    if size <= 0 or start <= log.min_offset:
        return start, start
    begin = log.min_offset
    if start - size > begin:
        found = next_valid(log, start - size)
        begin = min(found.offset, start) if found is not None else start
    offset = begin
    while offset < start:
        segment = log.find(offset)
        if segment is None:
            return begin, begin
        seen = look(segment, offset - segment.base_offset, delay_ms)
        if seen is Sight.FILLER:
            offset = segment.end_offset
            continue
        if not isinstance(seen, Sighted):
            return begin, begin
        if seen.indexed and not is_dead(seen.topic, seen.offset) and not _has_entry(find_queue, seen):
            return begin, begin
        offset += seen.size
    return (start, begin) if offset == start else (begin, begin)


def _has_entry(find_queue: Callable[[str, int], ConsumeQueue | None], seen: Sighted) -> bool:
    queue = find_queue(seen.topic, seen.queue_id)
    number = seen.queue_offset
    if queue is None or not queue.min_offset <= number < queue.next_offset:
        return False
    return queue.read(number) == (seen.offset, seen.size, seen.tags_code)
