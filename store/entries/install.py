"""The installation of a snapshot: another beginning of the log, done by the next start, and again after a crash.

    <notes>/incoming     a snapshot as it came (`ropewalk.format.dledger.snapshot`), on disk before it is decided on
    <notes>/install      from the decision on: {"kept": false}; without it an incoming snapshot is dropped

    1  what stood behind the commit point goes to `diverged/`, as at a cut; the note says so
    2  the files of the log are removed, the newest first, and all that speaks of its offsets: queues, key index,
       checksums, bound, checkpoint, timers
    3  queues without a message get their numbers, tables their snapshot
    4  the first entry and the commit point through it
    5  `install` is removed, then `incoming`

Each step may be done twice. Until 5 no start sees a log that is partly the old one. A snapshot whose first entry is not
behind the commit point that is written down would replace newer state: it is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import decode_head
from ropewalk.format.dledger.snapshot import MemberSnapshot, decode_member_snapshot
from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.entries.cut import KEPT_MAX
from store.entries.files import LedgerFiles
from store.io.disk import Disk
from store.log.commitlog import NAME_DIGITS, StoreDamaged, segment_name
from store.log.remedy import REFILL
from store.queues.consume_queue import PRE_BLANK_SIZE

__all__ = ["INCOMING", "INSTALL", "Installation"]

log = structlog.get_logger("store.entries")

INCOMING: Final = "incoming"
INSTALL: Final = "install"
_CHUNK: Final = 1 << 20


class _Note(msgspec.Struct, frozen=True):
    kept: bool = False
    """Whether what stood behind the commit point is in `diverged/`."""


def begin_note() -> bytes:
    """Return the note with which an installation begins."""
    return msgspec.json.encode(_Note())


def begun(notes: Path, disk: Disk) -> tuple[_Note, MemberSnapshot] | None:
    """Return the installation that the next start is to finish; None if there is none. Raises `StoreDamaged`."""
    data = disk.read_file(notes / INSTALL)
    if data is None:
        return None
    try:
        note = msgspec.json.decode(data, type=_Note)
        return note, decode_member_snapshot(disk.read_file(notes / INCOMING) or b"")
    except (CorruptRecord, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise StoreDamaged(
            f"{notes / INCOMING} was to replace the log, and is damaged ({exc}): {REFILL}"
        ) from exc


@dataclass(frozen=True, slots=True)
class Installation:
    """The files of a member, with its lock held and nothing open."""

    root: Path
    log_directory: Path
    segment_size: int
    queue_file_size: int
    files: LedgerFiles
    disk: Disk

    def redo(self) -> tuple[str, ...]:
        """Finish an installation that was begun; return its findings. Blocks. Raises `StoreDamaged`."""
        notes, disk = self.files.notes, self.disk
        found_begun = begun(notes, disk)
        if found_begun is None:
            self.files.remove(INCOMING)
            return ()
        note, snapshot = found_begun
        head = decode_head(snapshot.entry)
        commit = self.files.load_commit()
        if commit is not None and commit.commit[0] > head.index:
            found = f"a snapshot from entry {head.index} on is older than the log here, and was dropped"
        else:
            if not note.kept:
                self._keep_aside(commit.commit[2] if commit is not None else 0)
                disk.replace_file(notes / INSTALL, msgspec.json.encode(_Note(kept=True)))
            self._remove_old()
            self._write_new(snapshot)
            found = f"a snapshot has replaced the log, which begins with entry {head.index} at {head.pos} now"
        self.files.remove(INSTALL)
        self.files.remove(INCOMING)
        return (found,)

    def _segments(self) -> list[str]:
        names = self.disk.names(self.log_directory)
        return [name for name in names if len(name) == NAME_DIGITS and name.isdecimal()]

    def _keep_aside(self, begin: int) -> None:
        """Copy what the log has behind `begin`, the commit point: nobody was told that it is safe."""
        pieces: list[bytes] = []
        left = KEPT_MAX
        for name in self._segments():
            base, file = int(name), self.disk.open_paged(self.log_directory / name)
            for start, end in file.data_ranges(max(begin - base, 0)):
                for at in range(max(start, begin - base), end, _CHUNK):
                    piece = file.read_at(at, min(_CHUNK, end - at, left))
                    left -= len(piece)
                    pieces.append(piece)
        data = b"".join(pieces).rstrip(b"\0")
        if data:
            self.disk.replace_file(self.root / "ropewalk" / "diverged" / f"{begin:020d}", data)

    def _remove_old(self) -> None:
        disk, root = self.disk, self.root
        for name in reversed(self._segments()):
            disk.remove(self.log_directory / name)
            disk.sync_directory(self.log_directory)
        self.files.remove("cut")
        for path in ("checkpoint", "timerwheel", "config/timercheck", "ropewalk/bound", "ropewalk/timer"):
            if disk.exists(root / path):
                disk.remove(root / path)
                disk.sync_directory((root / path).parent)
        for path in ("consumequeue", "index", "timerlog", "ropewalk/checksums"):
            self._remove_tree(root / path)

    def _remove_tree(self, directory: Path) -> None:
        """Remove a directory so that no loss of power brings a file of it back."""
        disk = self.disk
        for name in disk.directories(directory):
            self._remove_tree(directory / name)
        names = disk.names(directory)
        for name in names:
            disk.remove(directory / name)
        if names:
            disk.sync_directory(directory)
        disk.remove_tree(directory)

    def _write_new(self, snapshot: MemberSnapshot) -> None:
        disk, notes = self.disk, self.files.notes
        for topic, queue_id, number in snapshot.queues:
            self._number(self.root / "consumequeue" / topic / str(queue_id), number)
        disk.replace_file(notes / f"state-{snapshot.state_index:020d}", snapshot.state)
        segment = disk.allocate(self.log_directory / segment_name(snapshot.base), self.segment_size)
        segment.write_at(0, snapshot.entry)
        segment.sync()
        segment.close()
        disk.sync_directory(self.log_directory)
        disk.replace_file(notes / "commit", snapshot.commit)

    def _number(self, directory: Path, number: int) -> None:
        """Make the file of a queue whose next message has this number, and whose earlier ones are gone."""
        size = self.queue_file_size - self.queue_file_size % ENTRY_SIZE
        count = number % (size // ENTRY_SIZE)
        base = (number - count) * ENTRY_SIZE
        path = directory / segment_name(base)
        self.disk.make_directory(directory)
        file = self.disk.create_paged(path, size)
        if count:
            file.write_at(0, ENTRY.pack(0, PRE_BLANK_SIZE, 0) * count)
        file.sync()
        self.disk.sync_directory(directory)
