"""The damaged places of a closed log of entries, below what is known to be flushed or committed.

Blocks are held against their checksums. What none covers yet is walked entry by entry, from the first segment that is
not summed whole through the commit point: behind the first entry that is not whole nobody can tell where the next one
begins, so all the rest of its segment counts as lost.
"""

from __future__ import annotations

from ropewalk.format.dledger.entry import EntryHead
from ropewalk.format.sidecar import block_sum
from store.integrity.checksums import Checksums, Damaged
from store.log.commitlog import CommitLog
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_entry, scan_record

__all__ = ["find_damage"]


def find_damage(log: CommitLog, checksums: Checksums, commit_pos: int) -> tuple[Damaged, ...]:
    """Return the places of a loaded log that are not what was written, the oldest first. Blocks."""
    found: list[Damaged] = []
    unsummed = 0
    for segment in log.segments:
        sidecar = checksums.get(segment)
        unsummed = segment.base_offset
        if sidecar is None:
            break
        for number, wanted in enumerate(sidecar.sums):
            start, stop = sidecar.block(number)
            if block_sum(segment.file.read_at(start, stop - start)) != wanted:
                found.append(Damaged(segment.base_offset, start, stop, wanted))
        if not sidecar.is_complete:
            break
    return tuple(found) or _walk(log, unsummed, commit_pos)


def _walk(log: CommitLog, offset: int, commit_pos: int) -> tuple[Damaged, ...]:
    while offset < commit_pos and (segment := log.find(offset)) is not None:
        base = segment.base_offset
        seen = scan_entry(segment, offset - base)
        if seen is NoRecord.FILLER:
            offset = segment.end_offset
        elif isinstance(seen, EntryHead) and _is_record(log, offset):
            offset += seen.size
        else:
            return (
                Damaged(base, offset - base, min(commit_pos, segment.end_offset) - base, None, offset - base),
            )
    return ()


def _is_record(log: CommitLog, offset: int) -> bool:
    segment = log.find(offset)
    return segment is not None and isinstance(
        scan_record(segment, offset - segment.base_offset), ScannedRecord
    )
