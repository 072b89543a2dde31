"""The start of a log of entries: which are whole, where the log ends, and what is in doubt. The table of the plan:

    sighting above the known commit point                  valid entries behind    nothing behind
    whole: head, CRC, index = last + 1, no falling term    keep                    keep
           nor a new one that no record opens
    zeros                                                  cut, doubt              the log ends
    anything else                                          cut, doubt              torn: cut

*Cut*: copied aside, then zeroed. *Doubt*: the furthest whole entry behind a hole. Flushes that were under way when the
power went leave such holes, so they may not stop a start, and yet the bytes may have been answered for: until the log
has reached a leader's commit index again, this member's votes are given with reserve.

Below the commit point nothing is ever cut: that is damage, which the walk over the records finds (`opening`), and a
person decides. Where no commit point was written down, as in a directory of DLedger's own, the log is read from its
first entry on.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, EntryHead, decode_head
from store.entries.files import NOTHING, ConfigurationRow, LedgerFiles, LogPoint, TermRow
from store.entries.term_record import configuration_at, term_is_vouched_for
from store.io.disk import Disk
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.remedy import REFILL
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_entry, scan_record
from store.recovery.scan import candidates, cut


class FoundEntries(Struct, frozen=True):
    """The result of a start: the log through its last whole entry, which is on its disk as soon as it is synced."""

    ballot: tuple[int, str]
    end: LogPoint
    commit: LogPoint
    rows: tuple[TermRow, ...]
    configurations: tuple[ConfigurationRow, ...]
    doubt: LogPoint | None
    findings: tuple[str, ...]

    @property
    def commit_pos(self) -> int:
        """The log offset behind the last entry that is known to be committed."""
        return self.commit[2]


def recover(
    log: CommitLog, files: LedgerFiles, tails: Path, disk: Disk, snapshot: LogPoint = NOTHING
) -> FoundEntries:
    """Judge the log behind its commit point, and cut dead bytes from its end. Blocks.

    `snapshot` is a point through which a state is kept elsewhere: the log through it is committed. Raises
    `StoreDamaged` where the log does not reach the commit point or the snapshot's, or the ballot is missing.
    """
    findings: list[str] = []
    ballot, note = files.load_ballot(), files.load_commit()
    if (begun := files.load_point("cut")) is not None:
        findings += cut(log, begun[2], tails, disk)
        findings.append(f"a cut of the log at entry {begun[0]} was under way, and was done again")
        files.remove("cut")
    commit = note.commit if note is not None else NOTHING
    rows = [row for row in note.rows if row[1] <= commit[0]] if note is not None else []
    configurations = note.configurations or _opened_with(log, rows) if note is not None else []
    if log.segments and ballot is None and not _is_blank(log):
        raise files.refuse_without_ballot()
    if commit[0] >= 0 and (not log.segments or commit[2] > log.segments[-1].end_offset):
        raise StoreDamaged(
            f"{log.directory} ends before log offset {commit[2]}, through which entries are committed (entry "
            f"{commit[0]}). Nothing was changed. Put the missing files back, or {REFILL}"
        )
    end, stopped_at = _walk(log, commit, rows, configurations)
    if end[0] < snapshot[0]:
        raise StoreDamaged(
            f"{log.directory} has whole entries through {end[0]} only, and a snapshot holds the state behind entry "
            f"{snapshot[0]}. Nothing was changed. Put the missing files back, or {REFILL}"
        )
    commit = max(commit, snapshot)
    doubt = files.load_point("doubt")
    furthest = _furthest_behind(log, end, stopped_at, ballot)
    if furthest is not None:
        if doubt is None or (furthest[1], furthest[0]) > (doubt[1], doubt[0]):
            doubt = furthest
            files.save_point("doubt", doubt)
        findings.append(
            f"the log has a hole behind entry {end[0]}, and whole entries through {furthest[0]} behind it: they are "
            "taken from the leader again"
        )
    if log.segments:
        findings += cut(log, end[2], tails, disk)
    if ballot is None:
        # Entries may reach the disk before the ballot of their term does, so there has to be one before the first.
        files.save_ballot(0, "")
    return FoundEntries(
        ballot or (0, ""), end, commit, tuple(rows), tuple(configurations), doubt, tuple(findings)
    )


def _is_blank(log: CommitLog) -> bool:
    return scan_entry(log.segments[0], 0) is NoRecord.BLANK


def _opened_with(log: CommitLog, rows: list[TermRow]) -> list[ConfigurationRow]:
    """Return the configurations with which terms were opened: of a log from before members could change."""
    found: list[ConfigurationRow] = []
    for _term, first, start in rows:
        segment = log.find(start)
        if segment is not None and scan_entry(segment, start - segment.base_offset) is NoRecord.FILLER:
            start = segment.end_offset
            segment = log.find(start)
        if segment is None:
            continue
        seen = scan_entry(segment, start - segment.base_offset)
        if not isinstance(seen, EntryHead) or seen.index != first:
            continue
        configuration = configuration_at(segment, start - segment.base_offset, seen.size)
        if configuration is not None:
            found.append((first, configuration))
    return found


def _walk(
    log: CommitLog, commit: LogPoint, rows: list[TermRow], configurations: list[ConfigurationRow]
) -> tuple[LogPoint, int]:
    """Read whole entries behind the commit point; the log through the last, and the offset of what is none."""
    index, term, pos = commit
    offset = pos if index >= 0 else log.min_offset
    is_first = index < 0
    while (segment := log.find(offset)) is not None:
        position = offset - segment.base_offset
        seen = scan_entry(segment, position)
        if seen is NoRecord.FILLER:
            offset = segment.end_offset
            continue
        if not isinstance(seen, EntryHead):
            break
        if not seen.crc and not isinstance(scan_record(segment, position), ScannedRecord):
            break
        if is_first:
            if not offset and seen.index:
                break
            is_first = False
        elif seen.index != index + 1 or seen.term < term:
            break
        if index >= 0 and commit[0] >= 0 and not term_is_vouched_for(segment, position, seen, term):
            break
        if seen.term != term or not rows:
            rows.append((seen.term, seen.index, pos))
        if (configuration := configuration_at(segment, position, seen.size)) is not None:
            configurations.append((seen.index, configuration))
        index, term, pos = seen.index, seen.term, offset + seen.size
        offset = pos
    return (index, term, pos), offset


def _furthest_behind(
    log: CommitLog, end: LogPoint, offset: int, ballot: tuple[int, str] | None
) -> LogPoint | None:
    """Return the furthest whole entry at or behind `offset`; None if there is none.

    A body may hold bytes that are an entry for their very place, so none counts that this member cannot have had: of
    a term that it never was in or that is older than the log's last, or with an index that does not fit in front of it.
    """
    index, end_term, pos = end
    furthest: LogPoint | None = None
    for record in candidates(log, offset):
        place = record.offset - HEAD_SIZE
        segment = log.find(place)
        assert segment is not None
        try:
            position = place - segment.base_offset
            head = decode_head(segment.map[position : position + HEAD_SIZE])
        except CorruptRecord:
            continue
        if head.index <= index or head.index - index > 1 + (place - pos) // HEAD_SIZE:
            continue
        if not end_term <= head.term <= (ballot[0] if ballot is not None else end_term):
            continue
        if furthest is None or (head.term, head.index) > (furthest[1], furthest[0]):
            furthest = head.index, head.term, place + head.size
    return furthest
