"""A disk that changes nothing: for asking what the store would do, and for looking at a store without touching it.

Reads see the real files, opened read-only; segments are mapped copy-on-write. What would be written, removed or synced
is remembered here, so that whoever wrote it reads it back, and `changes` tells it afterwards in words. With it the
shipped recovery is its own preview.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path

from store.io.disk import Disk, DiskFull, MappedFile, PagedFile, StoreLocked, lock_is_ours

_FLOCK = struct.Struct("@hhqqi4x")


class DryRunMapped(MappedFile):
    """A segment whose changes stay in this process."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self.map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        self._fd = fd

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self.map[position : position + len(data)] = bytes(data)

    def sync(self) -> None:
        pass


class DryRunPaged(PagedFile):
    def __init__(self, disk: DryRunDisk, path: Path) -> None:
        super().__init__(disk, path)
        self._dry_run = disk

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        content = self._dry_run.shadow(self.path)
        if len(content) < position + len(data):
            content.extend(bytes(position + len(data) - len(content)))
        content[position : position + len(data)] = data
        self._dry_run.note(f"{self.path}: {len(data)} bytes written at {position}")

    def read_at(self, position: int, size: int) -> bytes:
        content = self._dry_run.shadows.get(self.path)
        if content is not None:
            return bytes(content[position : position + size])
        return super().read_at(position, size)

    def read_at_nowait(self, position: int, size: int) -> bytes | None:
        return self.read_at(position, size)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        content = self._dry_run.shadows.get(self.path)
        if content is not None:
            return [(position, len(content))] if position < len(content) else []
        return super().data_ranges(position)

    def sync(self) -> None:
        pass


class DryRunDisk(Disk):
    """A disk that changes nothing and lists the changes that were asked of it."""

    open_flags = os.O_RDONLY | os.O_CLOEXEC

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[str] = []
        self.shadows: dict[Path, bytearray] = {}
        self._removed: set[Path] = set()

    def note(self, change: str) -> None:
        self.changes.append(change)

    def shadow(self, path: Path) -> bytearray:
        """Return a file's content as far as this process knows, to be changed."""
        content = self.shadows.get(path)
        if content is None:
            found = None if path in self._removed else super().read_file(path)
            content = self.shadows[path] = bytearray(found or b"")
            self._removed.discard(path)
        return content

    # -- files ---------------------------------------------------------------------------------------

    def allocate(self, path: Path, size: int) -> MappedFile:
        raise DiskFull(f"{path} is not created: nothing is changed here")

    def open_mapped(self, path: Path) -> MappedFile:
        fd = os.open(path, self.open_flags)
        try:
            return DryRunMapped(path, fd, os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise

    def create_paged(self, path: Path, size: int) -> PagedFile:
        content = self.shadow(path)
        content.extend(bytes(max(size - len(content), 0)))
        del content[size:]
        return DryRunPaged(self, path)

    def open_paged(self, path: Path) -> PagedFile:
        return DryRunPaged(self, path)

    def write_paged(self, path: str, size: int, position: int, data: bytes) -> bool:
        self.create_paged(Path(path), size).write_at(position, data)
        return True

    def names(self, directory: Path) -> list[str]:
        there = {name for name in super().names(directory) if directory / name not in self._removed}
        return sorted(there | {path.name for path in self.shadows if path.parent == directory})

    def size_of(self, path: Path) -> int:
        content = self.shadows.get(path)
        return len(content) if content is not None else super().size_of(path)

    def exists(self, path: Path) -> bool:
        return path in self.shadows or (path not in self._removed and super().exists(path))

    def read_file(self, path: Path) -> bytes | None:
        if path in self.shadows:
            return bytes(self.shadows[path])
        return None if path in self._removed else super().read_file(path)

    # -- what is only noted --------------------------------------------------------------------------

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self.note(f"{path}: removed")
        self.shadows.pop(path, None)
        self._removed.add(path)
        self.forget(path)

    def remove_tree(self, directory: Path) -> None:
        self.note(f"{directory}: removed")

    def write_file(self, path: Path, data: bytes) -> None:
        self.shadow(path)[:] = data
        self.note(f"{path}: written")

    def append_file(self, path: Path, data: bytes) -> None:
        self.shadow(path).extend(data)
        self.note(f"{path}: {len(data)} bytes copied there")

    def replace_file(self, path: Path, data: bytes) -> None:
        self.write_file(path, data)

    def make_directory(self, path: Path) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def sync_tree(self, root: Path) -> None:
        pass

    def sync_file(self, path: Path) -> None:
        pass

    def sync_file_systems(self, *paths: Path) -> None:
        pass

    # -- the process lock ----------------------------------------------------------------------------

    def lock(self, path: Path) -> int:
        """Check that the lock is free; take nothing."""
        if self.is_locked(path):
            raise StoreLocked(f"the store {path.parent} is in use (lock file {path}): stop its broker first")
        return -1

    def unlock(self, fd: int) -> None:
        pass

    def is_locked(self, path: Path) -> bool:
        """Tell whether a broker, ours or RocketMQ's, holds the lock; asking takes and leaves nothing."""
        if lock_is_ours(path):
            return True
        try:
            fd = os.open(path, self.open_flags)
        except FileNotFoundError:
            return False
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0]
            return bool(kind != fcntl.F_UNLCK)
        finally:
            os.close(fd)
