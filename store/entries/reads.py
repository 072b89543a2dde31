"""Runs of entries out of the log, for members that lag: found and copied on a thread of their own.

There is no index in memory of every entry. What is kept are *marks*, one for each 256 KiB of growth, and the last
entries of the runs that were read last: a member that catches up asks for what stands right behind those. From the
nearest of them, or else the segment's beginning, heads are followed one by one. What is read is checked as at a start:
a run ends in front of an entry that is not what was written, and of none at all there is no run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final

from zlib_ng.zlib_ng import crc32

from ropewalk.format.dledger.entry import HEAD_SIZE, MAGIC
from store.entries.files import NOTHING, LogPoint, LogRun
from store.log.segment import Segment

_HEAD: Final = Struct(">iiqq")  # magic, size, index, term
_WHOLE_HEAD: Final = Struct(">iiqqq8xIi")  # ..., place, CRC, body size
_MARK_BYTES: Final = 256 << 10
_MARKS_MAX: Final = 8192
_LAST_READS_MAX: Final = 16

Place = tuple[int, int]
"""(index, log offset) of an entry"""
FoundRun = tuple[LogPoint, LogRun | None, bytes | memoryview]


class Marks:
    """Known places of entries. The loop's own."""

    def __init__(self) -> None:
        self._marks: list[Place] = []
        self._last_reads: dict[int, int] = {}

    def add(self, index: int, pos: int) -> None:
        """Note where an entry begins, if none was noted nearby."""
        if not self._marks or pos - self._marks[-1][1] >= _MARK_BYTES:
            self._marks.append((index, pos))
            if len(self._marks) > _MARKS_MAX:
                del self._marks[::2]

    def read_through(self, index: int, pos: int) -> None:
        """Note the last entry of a run that was read: the next read begins behind it."""
        self._last_reads[index] = pos
        while len(self._last_reads) > _LAST_READS_MAX:
            del self._last_reads[next(iter(self._last_reads))]

    def before(self, index: int) -> Place | None:
        """Return the last known place at or before an index."""
        if (pos := self._last_reads.get(index)) is not None:
            return index, pos
        at = bisect_right(self._marks, (index, 1 << 62)) - 1
        return self._marks[at] if at >= 0 else None

    def cut(self, index: int) -> None:
        """Forget the places behind an index."""
        while self._marks and self._marks[-1][0] > index:
            self._marks.pop()
        self._last_reads = {key: pos for key, pos in self._last_reads.items() if key <= index}


def first_index(segment: Segment) -> int:
    """Return the index that the first head in a segment names."""
    index: int = _HEAD.unpack_from(segment.map, 0)[2]
    return index


def read_run(
    segments: Sequence[Segment], end: int, mark: Place | None, index: int, bytes_max: int
) -> tuple[FoundRun, Place | None]:
    """Return the point before `index`, whole entries of one term from there on, and the place of the last of them.

    No run if the log does not begin before `index`: retention has removed it, or the entry before it. Blocks; `end` is
    the log offset behind the last entry.
    """
    prev = NOTHING
    place: Place | None = (0, segments[0].base_offset) if segments and not segments[0].base_offset else None
    if index > 0:
        place = _find(segments, end, mark, index - 1)
        if place is None:
            return (NOTHING, None, b""), None
        segment = _holder(segments, place[1])
        assert segment is not None
        _magic, size, _index, term = _HEAD.unpack_from(segment.map, place[1] - segment.base_offset)
        prev = index - 1, term, place[1] + size
        place = _following(segments, end, prev[2])
    if place is None or place[0] != index:
        return (NOTHING, None, b""), None
    return _run_at(segments, end, prev, place[1], index, bytes_max)


def _run_at(
    segments: Sequence[Segment], end: int, prev: LogPoint, pos: int, index: int, bytes_max: int
) -> tuple[FoundRun, Place | None]:
    segment = _holder(segments, pos)
    assert segment is not None
    data = _read(segment, pos - segment.base_offset, min(segment.size, end - segment.base_offset), bytes_max)
    at, count, run_term, last, size_read = 0, 0, -1, 0, len(data)
    unpack = _WHOLE_HEAD.unpack_from
    with memoryview(data) as view:
        while at + HEAD_SIZE <= size_read:
            magic, size, found, term, own_place, crc, body_size = unpack(data, at)
            if magic != MAGIC or found != index + count or (count and term != run_term):
                break
            if at + size > size_read or own_place != pos + at or size != HEAD_SIZE + body_size:
                break
            if crc and crc32(view[at + HEAD_SIZE : at + size]) != crc:
                break
            run_term, last = term, at
            at += size
            count += 1
    if not count:
        return (NOTHING, None, b""), None
    run = index, count, run_term, pos, at
    return (prev, run, data if at == size_read else memoryview(data)[:at]), (index + count - 1, pos + last)


def _read(segment: Segment, begin: int, end: int, bytes_max: int) -> bytes:
    """Read entries by system call: a cold page stops this thread, and not the loop. The next ones are prefetched."""
    file, size = segment.file, min(max(bytes_max, HEAD_SIZE), end - begin)
    data = file.read_at(begin, size)
    if size >= HEAD_SIZE:
        first: int = _HEAD.unpack_from(data)[1]
        if size < first <= end - begin:
            size = first
            data = file.read_at(begin, size)
    file.read_ahead(begin + size, min(bytes_max, segment.size - begin - size))
    return data


def _holder(segments: Sequence[Segment], offset: int) -> Segment | None:
    for segment in reversed(segments):
        if segment.base_offset <= offset < segment.end_offset:
            return segment
    return None


def _following(segments: Sequence[Segment], end: int, offset: int) -> Place | None:
    """Return the place of the entry at `offset`, or behind the filler there."""
    for segment in segments:
        if segment.end_offset <= offset or segment.base_offset >= end:
            continue
        position = max(offset - segment.base_offset, 0)
        if position + HEAD_SIZE <= segment.size:
            magic, _size, index, _term = _HEAD.unpack_from(segment.map, position)
            if magic == MAGIC:
                return index, segment.base_offset + position
    return None


def _find(segments: Sequence[Segment], end: int, mark: Place | None, index: int) -> Place | None:
    """Return the place of the entry with this index; None if the log begins behind it."""
    place = mark
    for segment in reversed(segments):
        if segment.base_offset >= end:
            continue
        if mark is not None and segment.end_offset <= mark[1]:
            break  # the mark is nearer
        magic, _size, first, _term = _HEAD.unpack_from(segment.map, 0)
        if magic == MAGIC and first <= index:
            if mark is None or mark[0] < first:
                place = first, segment.base_offset
            break
    if place is None or _holder(segments, place[1]) is None:
        return None
    while place is not None and place[0] < index:
        holder = _holder(segments, place[1])
        if holder is None:
            return None
        data, base = holder.map, holder.base_offset
        found, at = place[0], place[1] - base
        limit = min(holder.size - HEAD_SIZE, end - base - 1)
        while found < index:
            size = _HEAD.unpack_from(data, at)[1]
            if size < HEAD_SIZE or at + size > limit or _HEAD.unpack_from(data, at + size)[0] != MAGIC:
                break
            at += size
            found += 1
        place = (found, base + at)
        if found < index:
            size = _HEAD.unpack_from(data, at)[1]
            place = _following(segments, end, base + at + max(size, HEAD_SIZE))
    return place
