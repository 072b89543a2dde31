"""The damaged places of a log of entries, in front of its flushed or its committed end.

Blocks are held against their checksums. The newest entries have none yet: of the last two segments, what no checksum
covers is walked entry by entry, through the commit point. An entry is whole if its body passes its CRC, and if its head
has the index and the term that the commit note tells. Behind the first one that is not whole nobody can tell where the
next begins, so all the rest of its segment counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Final

from ropewalk.format.dledger.entry import HEAD_SIZE, MAGIC, EntryHead
from ropewalk.format.sidecar import Sidecar, block_sum
from store.entries.files import LogPoint, TermRow
from store.integrity.checksums import Checksums, Damaged
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_entry, scan_record

__all__ = ["find_damage", "find_damaged_entry"]

_HEAD: Final = Struct(">ii")  # magic, size
_UNSUMMED_SEGMENTS: Final = 2


def find_damage(
    log: CommitLog, checksums: Checksums, commit: LogPoint, rows: Sequence[TermRow]
) -> tuple[Damaged, ...]:
    """Return the damaged places of a loaded log, the oldest first. Blocks."""
    found: list[Damaged] = []
    for segment in log.segments:
        sidecar = checksums.get(segment)
        for number, wanted in enumerate(sidecar.sums if sidecar is not None else ()):
            assert sidecar is not None
            start, stop = sidecar.block(number)
            if block_sum(segment.file.read_at(start, stop - start)) != wanted:
                found.append(Damaged(segment.base_offset, start, stop, wanted))
    if found:
        return tuple(found)
    offset = find_damaged_entry(log, checksums.get, commit, rows)
    segment_of = log.find(offset) if offset is not None else None
    if offset is None or segment_of is None:
        return ()
    base = segment_of.base_offset
    return (Damaged(base, offset - base, min(commit[2], segment_of.end_offset) - base, None, offset - base),)


def find_damaged_entry(
    log: CommitLog,
    sidecar_of: Callable[[Segment], Sidecar | None],
    commit: LogPoint,
    rows: Sequence[TermRow],
) -> int | None:
    """Return the log offset of the first entry that is not whole, of those without checksums; None if all are."""
    index, _term, commit_pos = commit
    used = [segment for segment in log.segments if segment.base_offset < commit_pos][-_UNSUMMED_SEGMENTS:]
    heads: list[tuple[int, EntryHead]] = []
    for segment in used:
        sidecar = sidecar_of(segment)
        covered = sidecar.covered if sidecar is not None else 0
        if covered >= min(segment.size, commit_pos - segment.base_offset):
            heads.clear()
            continue
        for offset, head in _entries(log, segment, covered, commit_pos):
            if head is None:
                return offset
            heads.append((offset, head))
    first = index - len(heads) + 1
    for expected, (offset, head) in enumerate(heads, first):
        if head.index != expected or head.term != _term_at(expected, rows, head.term):
            return offset
    return None


def _entries(
    log: CommitLog, segment: Segment, covered: int, commit_pos: int
) -> Iterator[tuple[int, EntryHead | None]]:
    """Return the entries of a segment that end behind `covered`, by log offset; None for one that is not whole."""
    at, base = 0, segment.base_offset
    limit = min(segment.size, commit_pos - base)
    while at + HEAD_SIZE <= covered:
        magic, size = _HEAD.unpack_from(segment.map, at)
        if magic != MAGIC or size < HEAD_SIZE or at + size > covered:
            break
        at += size
    while at < limit:
        seen = scan_entry(segment, at)
        if seen is NoRecord.FILLER:
            return
        if not isinstance(seen, EntryHead) or not isinstance(scan_record(segment, at), ScannedRecord):
            yield base + at, None
            return
        yield base + at, seen
        at += seen.size


def _term_at(index: int, rows: Sequence[TermRow], otherwise: int) -> int:
    """Return the term of an entry, as the commit note tells it; `otherwise` where it begins behind that."""
    return next((term for term, first, _start in reversed(rows) if first <= index), otherwise)
