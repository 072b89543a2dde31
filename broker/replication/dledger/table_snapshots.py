"""`TableSnapshots`: the tables of a DLedger group as of one entry of its log, in files beside it.

    <root>/ropewalk/dledger/state-<index, 20 digits>      8 hex digits of CRC32C, newline, JSON of `TableSnapshot`

A snapshot is a full copy that a leader logged (`LedgerState`), so all members have equal ones at equal indexes. Two are
kept. Retention may remove what the older of them covers: a start needs one of them and the records behind it, and a
member that comes back behind the first retained entry is sent one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

import crc32c
import msgspec
import structlog

from store.io.disk import Disk
from store.io.workers import Worker
from store.write_back import unless_full

__all__ = ["TableSnapshot", "TableSnapshots", "decode_snapshot", "encode_snapshot"]

log = structlog.get_logger("broker.dledger")

_PREFIX: Final = "state-"
_KEPT: Final = 2
_CRC_SIZE: Final = 9


class TableSnapshot(msgspec.Struct, frozen=True):
    """The tables of a group through one entry of its log."""

    index: int
    term: int
    pos: int
    """The log offset behind that entry."""
    number: int
    """The number of the first record of changes that the tables lack."""
    tables: dict[str, Any]


def encode_snapshot(snapshot: TableSnapshot) -> bytes:
    """Return the bytes of a snapshot, its checksum first."""
    body = msgspec.json.encode(snapshot)
    return b"%08x\n" % crc32c.crc32c(body) + body


def decode_snapshot(data: bytes) -> TableSnapshot | None:
    """Return the snapshot of these bytes; None if they are not those that were written."""
    body = data[_CRC_SIZE:]
    if data[:_CRC_SIZE] != b"%08x\n" % crc32c.crc32c(body):
        return None
    try:
        return msgspec.json.decode(body, type=TableSnapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


class TableSnapshots:
    """The snapshots of one member, the oldest first. The loop owns it."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._kept: list[tuple[int, int]] = []
        """(index, offset behind it) of each that is on disk."""
        self._begun = -1
        """The index of the newest that is on disk, or is being written."""
        self._worker: Worker | None = None

    def open(self) -> TableSnapshot | None:
        """Return the newest snapshot that is whole. Blocks."""
        newest: TableSnapshot | None = None
        for name in sorted(self._disk.names(self._directory)):
            if not name.startswith(_PREFIX) or not name[len(_PREFIX) :].isdecimal():
                continue
            found = decode_snapshot(self._disk.read_file(self._directory / name) or b"")
            if found is None:
                log.error("a snapshot of the tables is damaged; an older one serves", file=name)
                self._disk.remove(self._directory / name)
                continue
            newest = found
            self._kept.append((found.index, found.pos))
            self._begun = found.index
        return newest

    def begin(self, worker: Worker) -> None:
        """Go to work: `keep` writes on this worker."""
        self._worker = worker

    @property
    def newest(self) -> int:
        """Return the index of the newest snapshot on disk; -1 if there is none."""
        return self._kept[-1][0] if self._kept else -1

    @property
    def newest_end(self) -> int:
        """Return the log offset behind the entry of the newest snapshot; -1 if there is none."""
        return self._kept[-1][1] if self._kept else -1

    @property
    def covered(self) -> int:
        """Return the log offset before which no record of changes is needed."""
        return self._kept[-_KEPT][1] if len(self._kept) >= _KEPT else 0

    def path(self, index: int) -> Path:
        """Return the file of the snapshot through an index."""
        return self._directory / f"{_PREFIX}{index:020d}"

    def keep(self, snapshot: TableSnapshot) -> None:
        """Put a snapshot on disk soon, unless a newer one is there; a full disk keeps the ones before."""
        if self._worker is not None and snapshot.index > self._begun:
            self._begun = snapshot.index
            self._worker.submit(partial(self._write, snapshot), partial(self._written, snapshot))

    def _write(self, snapshot: TableSnapshot) -> bool:
        """On the worker."""
        path = self.path(snapshot.index)
        return unless_full(lambda: self._disk.replace_file(path, encode_snapshot(snapshot)))

    def _written(self, snapshot: TableSnapshot, is_written: bool) -> None:
        if not is_written:
            return
        self._kept.append((snapshot.index, snapshot.pos))
        while len(self._kept) > _KEPT and self._worker is not None:
            path = self.path(self._kept.pop(0)[0])
            self._worker.submit(partial(self._disk.remove, path), lambda _none: None)
