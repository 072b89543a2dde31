"""Verification of a DLedger member beyond its records: the chain of entries, ballot, commit point, notes.

    <root>/dledger-ID/currterm, checkpoint      DLedger's own small files
    <root>/ropewalk/dledger/...                 ours; a directory of Apache RocketMQ's has none of them

Indexes follow each other without gap and terms never fall. What is known to be committed has to be there: by our own
note, else by DLedger's checkpoint. An entry's CRC is over its body alone: its term is vouched for by our note and by
the records that open terms, where this broker wrote the log, else by the order of terms only. Two numbers of a head
nobody reads.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from ropewalk.format.dledger.entry import HEAD_SIZE, UNREAD_AT, UNREAD_SIZE, EntryHead, decode_head
from store.entries import install
from store.entries.files import NOTHING, LedgerFiles, LogPoint, TermRow
from store.entries.term_record import term_is_vouched_for
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from store.log.segment import Segment
from store.offline.findings import Findings


class EntryCheck:
    """The check of one member's entries, told of each whole one in the order of the log."""

    def __init__(self, directory: Path, notes: Path) -> None:
        """`directory` has DLedger's files beside the log's, `notes` our own."""
        self.directory = directory
        self.notes = notes
        self.ballot: tuple[int, str] | None = None
        self.commit: LogPoint = NOTHING
        self.doubt: LogPoint | None = None
        self.committed_index = -1
        """The last entry that is known to be committed: by our note, else by DLedger's checkpoint."""
        self.index = self.term = -1
        """Of the last whole entry."""
        self._is_behind_damage = False
        self._rows: list[TermRow] = []

    @property
    def commit_pos(self) -> int:
        """The log offset behind the last entry that our note knows to be committed; 0 without one."""
        return self.commit[2]

    @property
    def next_index(self) -> int:
        """The index that the next entry should have."""
        return self.index + 1

    @property
    def is_committed(self) -> bool:
        """Tell whether the last entry that was checked is known to be committed."""
        return self.index <= self.committed_index

    def read_small_files(self, report: Findings, disk: Disk) -> None:
        """Read ballot, commit point and notes. Blocks."""
        files = LedgerFiles(self.directory, self.notes, disk)
        try:
            self.ballot = files.load_ballot()
        except StoreDamaged as damage:
            self.ballot = 0, ""
            report.damage(self.directory / "currterm", "byte 0", str(damage))
        try:
            note = files.load_commit()
            self.commit = note.commit if note is not None else NOTHING
            self._rows = note.rows if note is not None else []
            self.doubt = files.load_point("doubt")
            begun = files.load_point("cut")
            files.noted_incarnation()
            is_replaced = install.begun(self.notes, disk) is not None
        except StoreDamaged as damage:
            report.damage(self.notes, "", str(damage))
            begun, is_replaced = None, False
        self.committed_index = max(
            self.commit[0], _committed_index(disk.read_file(self.directory / "checkpoint"))
        )
        if self.doubt is not None:
            report.note(
                self.notes / "doubt", "",
                f"a start cut entries through {self.doubt[0]}: until a leader has sent them again, this member votes "
                "with reserve",
            )  # fmt: skip
        if is_replaced:
            report.note(
                self.notes / install.INSTALL, "",
                "a leader's snapshot was about to replace the log: the next start does it",
            )  # fmt: skip
        if begun is not None:
            report.note(
                self.notes / "cut",
                "",
                f"the log was being cut behind entry {begun[0]}: the next start does it again",
            )

    def check(self, report: Findings, segment: Segment, position: int) -> None:
        """Check an entry, which is whole, against the one before it."""
        head = decode_head(segment.map[position : position + HEAD_SIZE])
        index = self.next_index if self.index >= 0 else head.index
        if self._is_behind_damage and head.index > index:
            index = head.index  # the damaged stretch held several
        place = f"byte {position} (entry {index}, log offset {segment.base_offset + position})"
        if head.index != index:
            report.damage(
                segment.file.path, place, f"its head says that it is entry {head.index}", report.repair
            )
        elif not self._is_of_its_term(segment, position, head):
            text = f"its head says that it is of term {head.term}, which is not so"
            report.damage(segment.file.path, place, text, report.repair)
            head = structs.replace(head, term=max(self.term, 0))
        if any(segment.map[position + UNREAD_AT : position + UNREAD_AT + UNREAD_SIZE]):
            report.note(segment.file.path, place, "two numbers of its head, which nobody reads, are not 0")
        if head.term < self.term:
            text = f"an entry of term {head.term} behind one of term {self.term}"
            report.damage(segment.file.path, place, text, report.repair)
        self._is_behind_damage = False
        self.index, self.term = index, head.term

    def _is_of_its_term(self, segment: Segment, position: int, head: EntryHead) -> bool:
        if head.index <= self.commit[0]:
            return any(
                term == head.term and first <= head.index < behind
                for (term, first, _start), behind in zip(
                    self._rows, [*(row[1] for row in self._rows[1:]), self.commit[0] + 1], strict=True
                )
            )
        if self.commit[0] < 0 or self._is_behind_damage or head.term < self.term:
            return True  # nothing is known, or it is told below
        return term_is_vouched_for(segment, position, head, self.term)

    def passed_over(self) -> None:
        """Hear that the log has a damaged stretch here: so many entries are missing as it held."""
        self._is_behind_damage = True

    def finish(self, report: Findings) -> None:
        """Judge the small files by the end of the log."""
        if self.ballot is None and self.index >= 0:
            report.damage(
                self.directory / "currterm", "", "is missing, and the log has entries: this member could vote twice",
                "write `currTerm=N` to it with an N above the term of every member, and `voteLeader=` below",
            )  # fmt: skip
        if self.committed_index > self.index:
            report.damage(
                self.directory, f"entry {self.next_index}",
                f"the log ends here, and entries through {self.committed_index} were committed", report.repair,
            )  # fmt: skip


def _committed_index(checkpoint: bytes | None) -> int:
    """Return the commit index in DLedger's checkpoint; -1 where it tells none."""
    fields = dict(
        line.split("=", 1)
        for line in (checkpoint or b"").decode("ascii", "replace").splitlines()
        if "=" in line
    )
    try:
        return int(fields["committedIndex"])
    except (KeyError, ValueError):
        return -1
