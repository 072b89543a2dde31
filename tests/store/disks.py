"""A disk for tests that is not always willing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from store.io.disk import Disk, DiskFull, MappedFile, PagedFile


class TroubledDisk(Disk):
    """A disk that runs full, refuses to sync, or is slow about it, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.room = 0
        """So many queue files can still be written to where it is full."""
        self.broken = False
        self.refused = 0
        self.may_sync = threading.Event()
        self.may_sync.set()

    def allocate(self, path: Path, size: int) -> MappedFile:
        if self.full:
            self.refused += 1
            raise DiskFull(f"cannot allocate {size} bytes for {path}")
        return self._troubled(super().allocate(path, size))

    def open_mapped(self, path: Path) -> MappedFile:
        return self._troubled(super().open_mapped(path))

    def _troubled(self, file: MappedFile) -> MappedFile:
        whole = file.sync

        def sync() -> None:
            assert self.may_sync.wait(30)
            if self.broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            whole()

        file.sync = sync  # type: ignore[method-assign]
        return file

    def create_paged(self, path: Path, size: int) -> PagedFile:
        if self.full:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create_paged(path, size)

    def open_paged(self, path: Path) -> PagedFile:
        file = super().open_paged(path)
        whole = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview) -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            whole(position, data)

        file.write_at = write_at  # type: ignore[method-assign]
        return file

    def write_paged(self, path: str, size: int, position: int, data: bytes) -> bool:
        if self.full:
            if self.room == 0:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= 1
        return super().write_paged(path, size, position, data)


class CountingDisk(TroubledDisk):
    asked = 0

    def allocate(self, path: Path, size: int) -> MappedFile:
        self.asked += self.full
        return super().allocate(path, size)
