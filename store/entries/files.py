"""The small files of a log of entries. All are replaced as a whole, durably, but for the checkpoint.

    <ledger>/currterm      currTerm=7\\nvoteLeader=n1\\n            the ballot, in DLedger's own format
    <ledger>/checkpoint    endIndex=120\\ncommittedIndex=120\\n     for DLedger; here it is written and not read
    <notes>/commit         {"commit": [index, term, pos], "rows": [[term, first, start], ...],
                            "configurations": [[index, {"term": 1, "voters": ["n0", ...], ...}], ...]}
    <notes>/doubt          [index, term, pos]: recovery saw this entry behind a hole, and cut it
    <notes>/cut            [index, term, pos]: a cut is under way; the next start does it again
    <notes>/identity       {"incarnation": 32 hex digits}

`commit` claims less than the truth: what it names is on this disk, and on a quorum's. Its term rows and configurations
go through the commit point; those behind it are read from the entries themselves. A configuration is noted where it
differs from the one before: a cut behind the commit point goes back to one of them. The first may stand at any index.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from ropewalk.format.dledger.configuration import Configuration
from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from store.log.remedy import REFILL

_T = TypeVar("_T")

LogPoint = tuple[int, int, int]
"""(index, term, pos): the log through an entry; pos is the offset behind it."""
LogRun = tuple[int, int, int, int, int]
"""(first, count, term, pos, size)"""
TermRow = tuple[int, int, int]
"""(term, first index, offset behind the entry before)"""
ConfigurationRow = tuple[int, Configuration]
"""(index of the entry, the configuration that it carries)"""
NOTHING: LogPoint = (-1, -1, 0)


class CommitNote(msgspec.Struct, frozen=True):
    """The commit point that was written down, with the term rows and configurations through it."""

    commit: LogPoint
    rows: list[TermRow] = []
    configurations: list[ConfigurationRow] = []


class _Identity(msgspec.Struct, frozen=True):
    incarnation: str


class LedgerFiles:
    """Reads and writes of the small files. All of it blocks: for a start, or the storage thread."""

    def __init__(
        self, directory: Path, notes: Path, disk: Disk, status: str = "ropewalk admin dledger status"
    ) -> None:
        """`status` is the command that shows the terms of this log's group."""
        self.directory = directory
        self.notes = notes
        self._disk = disk
        self._ballot_remedy = (
            f"restore it, or write `currTerm=N` to it with an N above the term of every member (`{status}` shows "
            "them), and `voteLeader=` below"
        )

    # -- the ballot --------------------------------------------------------------------------------------

    def load_ballot(self) -> tuple[int, str] | None:
        """Return (term, vote); None if there is no file. Raises `StoreDamaged` for one that says nothing."""
        path = self.directory / "currterm"
        data = self._disk.read_file(path)
        if data is None:
            return None
        text = data.decode("utf-8", "replace")
        fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[:1] != "#")
        try:
            term = int(fields["currTerm"])
        except (KeyError, ValueError) as exc:
            raise StoreDamaged(
                f"{path} names no term: {text[:80]!r}. It tells in which terms this member has voted; "
                f"{self._ballot_remedy}"
            ) from exc
        vote = fields.get("voteLeader", "").strip()
        return term, "" if vote == "null" else vote

    def save_ballot(self, term: int, vote: str) -> None:
        """Put the ballot on disk, the name of its file included."""
        data = f"currTerm={term}\nvoteLeader={vote}\n".encode()
        self._disk.replace_file(self.directory / "currterm", data)

    def refuse_without_ballot(self) -> StoreDamaged:
        """Return the error of a log that has entries and no ballot."""
        return StoreDamaged(
            f"{self.directory / 'currterm'} is missing, and the log beside it has entries: without it this member "
            f"could vote twice in one term; {self._ballot_remedy}"
        )

    # -- notes -------------------------------------------------------------------------------------------

    def load_commit(self) -> CommitNote | None:
        """Return the commit note; None if there is none. Raises `StoreDamaged` for one that cannot be read."""
        return self._load("commit", CommitNote)

    def save_commit(self, note: CommitNote, end_index: int) -> None:
        """Write the commit point down, for this program and for DLedger."""
        self._disk.replace_file(self.notes / "commit", msgspec.json.encode(note))
        text = f"endIndex={end_index}\ncommittedIndex={note.commit[0]}\n"
        self._disk.replace_file(self.directory / "checkpoint", text.encode())

    def load_point(self, name: str) -> LogPoint | None:
        """Return the point that a note names: "doubt" or "cut"; None if there is no such note."""
        found: LogPoint | None = self._load(name, tuple[int, int, int])
        return found

    def save_point(self, name: str, point: LogPoint) -> None:
        """Write the note "doubt" or "cut" down."""
        self._disk.replace_file(self.notes / name, msgspec.json.encode(point))

    def remove(self, name: str) -> None:
        """Remove a note, durably."""
        if self._disk.exists(self.notes / name):
            self._disk.remove(self.notes / name)
            self._disk.sync_directory(self.notes)

    def noted_incarnation(self) -> bytes | None:
        """Return the incarnation that was drawn; None before the first start. Raises `StoreDamaged`."""
        found = self._load("identity", _Identity)
        try:
            return bytes.fromhex(found.incarnation) if found is not None else None
        except ValueError as exc:
            raise StoreDamaged(
                f"{self.notes / 'identity'} cannot be read ({exc}): restore it, or {REFILL}"
            ) from exc

    def load_incarnation(self) -> bytes:
        """Return the incarnation of this log, drawn at its first start."""
        found = self.noted_incarnation()
        if found is not None:
            return found
        drawn = secrets.token_bytes(16)
        self._disk.replace_file(self.notes / "identity", msgspec.json.encode(_Identity(drawn.hex())))
        return drawn

    def _load(self, name: str, kind: type[_T]) -> _T | None:
        data = self._disk.read_file(self.notes / name)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise StoreDamaged(
                f"{self.notes / name} cannot be read ({exc}): restore it, or {REFILL}"
            ) from exc
