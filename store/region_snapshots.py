"""`RegionSnapshots`: the files with whole states of a region. The newest two are kept.

    <root>/snapshots/<20 digits>        the state behind the entry with this index
    <root>/snapshots/<20 digits>.tmp    one that is being written; a start removes it

A snapshot has its name when its bytes are on disk. The one before stays, and with it the log from there on, since bytes
can be damaged later: the log behind the newest alone would then be the history of nothing. Nothing here knows what the
bytes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store.io.disk import Disk

__all__ = ["KEPT", "RegionSnapshots", "SnapshotFile"]

KEPT: Final = 2
READ_SIZE: Final = 1 << 20
_SYNC_SIZE: Final = 8 << 20
"""A sync of all at once would have the log's own syncs wait behind hundreds of megabytes."""


class SnapshotFile:
    """A snapshot that is being written. All of it blocks: for a helper thread."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + ".tmp")
        self._disk = disk
        disk.remove(self._temporary)
        self._file = disk.create_paged(self._temporary, 0)
        self.size = 0
        self._synced = 0

    def write(self, data: bytes) -> None:
        """Add bytes. Raises OSError."""
        self._file.write_at(self.size, data)
        self.size += len(data)
        if self.size - self._synced >= _SYNC_SIZE:
            self._synced = self.size
            self._file.sync()

    def publish(self) -> None:
        """Put the file on disk, and give it its name, durably. Raises OSError."""
        self._file.sync()
        self._disk.forget(self._temporary)
        self._disk.move(self._temporary, self._path)

    def discard(self) -> None:
        """Remove the unfinished file."""
        self._disk.remove(self._temporary)


class RegionSnapshots:
    """The files of one region. All of it blocks: for a start, or a helper thread."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.directory = root / "snapshots"
        self._disk = disk

    def load(self) -> list[int]:
        """Return the indexes of the snapshots that are there, the newest first, and remove unfinished ones."""
        names = self._disk.names(self.directory)
        for name in names:
            if name.endswith(".tmp"):
                self._disk.remove(self.directory / name)
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def path(self, index: int) -> Path:
        """Return the path of a snapshot."""
        return self.directory / f"{index:020d}"

    def begin(self, index: int) -> SnapshotFile:
        """Begin to write a snapshot."""
        return SnapshotFile(self.path(index), self._disk)

    def size(self, index: int) -> int:
        """Return the size of a snapshot."""
        return self._disk.size_of(self.path(index))

    def read(self, index: int, position: int, size: int) -> bytes:
        """Return bytes of a snapshot."""
        return self._disk.open_paged(self.path(index)).read_at(position, size)

    def pieces(self, index: int) -> Iterator[bytes]:
        """Return the bytes of a snapshot, piece by piece."""
        position = 0
        while piece := self.read(index, position, READ_SIZE):
            yield piece
            position += len(piece)

    def whole(self, index: int) -> bytes:
        """Return all bytes of a snapshot; none if it is gone."""
        return self._disk.read_file(self.path(index)) or b""

    def keep_only(self, indexes: list[int]) -> None:
        """Remove all other snapshots."""
        for index in self.load():
            if index not in indexes:
                self._disk.remove(self.path(index))
