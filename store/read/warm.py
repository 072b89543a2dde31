"""The common read by runs: entries of one queue, no filter, all of it in the warm window of one segment.

A pull of 32 costs the reader more in loops of the interpreter than in bytes, so this one looks at as few entries as
it can. Records that stand side by side in the log leave as one slice, and of such a run only the first and the last
record are compared with their entries:

    entry     offset | size | tags        the last one ends where the first one begins, plus all their sizes
    record    size | .. | queue id | .. | queue offset | log offset | ..

Records stand in the log in their queue's order: what lies between number n and number n + 31 of a queue, and is just
as long as the entries of 32 messages say, are these messages. Where that is not so there is a gap, and it is searched
for by halves: in front of it every entry is where the sizes before it say, behind it none is. With more than a few
gaps every record is compared and cut out by itself. Whatever is odd gives None, and is for the reader's general way,
which says what is wrong with it.

The bytes of the window are this process's own, or were checked when it started; older ones are never read here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.log.commitlog import CommitLog
from store.log.segment import Segment

RECORD_SIZE_MIN: Final = 91
IDENTITY: Final = Struct(">i8xi4xqq")
"""Of a record: size at 0, queue id at 12, queue offset at 20, log offset at 28."""
VIEW_MIN: Final = 16 << 10
"""A smaller run is copied: that is cheaper than an entry of its own in the kernel's vector."""
_RUNS_MAX: Final = 4
"""With more of them it costs less to look at every record."""

_identity = IDENTITY.unpack_from
_place = Struct(">q").unpack_from


class WarmRead(NamedTuple):
    """What was found: pieces of whole records, in the order of the queue."""

    pieces: list[bytes | memoryview]
    messages: int
    size: int
    last_physical: int


@lru_cache(maxsize=256)
def _sizes_of(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return Struct(">" + count * "8xi8x").unpack


def read_warm(
    log: CommitLog, queue_id: int, number: int, entries: bytes, bytes_max: int, warm_from: int
) -> WarmRead | None:
    """The records that these entries name, the first of which is `number`; as many as `bytes_max` allows. HOT.

    The first one always comes. 4 us for 32 neighbours, 13 us for 32 that lie apart.
    """
    count = len(entries) // ENTRY_SIZE
    sizes = _sizes_of(count)(entries)
    total = sum(sizes)
    if total > bytes_max and count > 1:
        count = max(1, bisect_right(list(accumulate(sizes)), bytes_max))
        sizes = sizes[:count]
        total = sum(sizes)
    (first,), (last,) = _place(entries), _place(entries, (count - 1) * ENTRY_SIZE)
    segment = log.find(first)
    if segment is None or first < warm_from:
        return None
    if not first <= last <= segment.end_offset - max(sizes[-1], RECORD_SIZE_MIN):
        return None
    if last + sizes[-1] - first == total:
        base = segment.base_offset
        if _identity(segment.map, first - base) != (sizes[0], queue_id, number, first):
            return None
        if _identity(segment.map, last - base) != (sizes[-1], queue_id, number + count - 1, last):
            return None
        return WarmRead([_cut(segment, first, total)], count, total, last)
    return _in_parts(segment, queue_id, number, entries, sizes, first, last)


def _cut(segment: Segment, offset: int, size: int) -> bytes | memoryview:
    begin = offset - segment.base_offset
    return (memoryview(segment.map) if size >= VIEW_MIN else segment.map)[begin : begin + size]


def _in_parts(
    segment: Segment,
    queue_id: int,
    number: int,
    entries: bytes,
    sizes: tuple[int, ...],
    first: int,
    last: int,
) -> WarmRead | None:
    """The same where other records stand in between."""
    base, data, count = segment.base_offset, segment.map, len(sizes)
    before = [0, *accumulate(sizes)]
    pieces: list[bytes | memoryview] = []
    begin, at = 0, first
    while len(pieces) < _RUNS_MAX:
        stop, final = count, last
        if last - at != before[count - 1] - before[begin]:
            stop, wrong = begin + 1, count - 1
            while stop < wrong:
                middle = (stop + wrong) // 2
                if _place(entries, middle * ENTRY_SIZE)[0] - at == before[middle] - before[begin]:
                    stop = middle + 1
                else:
                    wrong = middle
            final = at + before[stop - 1] - before[begin]
            if stop == begin + 1 and pieces:
                break  # records of several queues take turns
        size = before[stop] - before[begin]
        if (
            not first <= at <= final <= last
            or _identity(data, at - base) != (sizes[begin], queue_id, number + begin, at)
            or _identity(data, final - base) != (sizes[stop - 1], queue_id, number + stop - 1, final)
        ):
            return None
        pieces.append(_cut(segment, at, size))
        if stop == count:
            return WarmRead(pieces, count, before[count], last)
        begin, at = stop, _place(entries, stop * ENTRY_SIZE)[0]
    return _one_by_one(segment, queue_id, number, entries, sizes)


def _one_by_one(
    segment: Segment, queue_id: int, number: int, entries: bytes, sizes: tuple[int, ...]
) -> WarmRead | None:
    base, data = segment.base_offset, segment.map
    pieces: list[bytes | memoryview] = []
    total = place = 0
    for size, (place, _size, _tags_code) in zip(sizes, ENTRY.iter_unpack(entries), strict=False):
        at = place - base
        record = data[at : at + size]
        if len(record) != size or size < RECORD_SIZE_MIN:
            return None
        if _identity(record) != (size, queue_id, number, place):
            return None
        pieces.append(record)
        total += size
        number += 1
    return WarmRead(pieces, len(sizes), total, place)
