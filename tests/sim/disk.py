"""A disk in memory that forgets: what `store.io.disk.Disk` offers, over pages that reach the platter only when synced.

Every file has two contents: what the process sees, and what the platter holds. A sync copies the pages changed
since the last one. A power loss keeps, of each page that was changed and not synced, the old or the new content or a
mixture of its 512-byte sectors, as the seed says. A name is durable once its directory was synced; a rename or a
removal that was not is undone or done, as the seed says.

It can fill up (`room`, in bytes that may still be allocated; `full` for some files), fail a sync (`fail_syncs`), and
stop the world at its n-th durable operation (`crash_after`): that is how a crash falls between any two steps of the
shipped code.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from store.io.disk import Disk, DiskFull, MappedFile, PagedFile, Space, StoreLocked

PAGE = 4096
SECTOR = 512
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PowerLoss(BaseException):
    """The machine is gone in the middle of what it did."""


class MapLike(bytearray):
    """Bytes whose slices are `bytes`, as those of a memory map are."""

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return bytes(found) if isinstance(key, slice) else found


class SimFile:
    """One file's two contents. Both lengths are kept: a file can have been extended without a sync."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = MapLike(data)
        self.platter = bytes(data)

    def sync(self) -> None:
        self.platter = bytes(self.data)

    def after_power_loss(self, chance: random.Random) -> bytes:
        """What the platter holds: each unsynced page as before, as after, or torn at a sector."""
        size = (
            len(self.data)
            if len(self.data) == len(self.platter)
            else chance.choice((len(self.data), len(self.platter)))
        )
        old = self.platter.ljust(size, b"\0")[:size]
        new = bytes(self.data).ljust(size, b"\0")[:size]
        if old == new:
            return old
        result = bytearray(old)
        for at in range(0, size, PAGE):
            page = slice(at, min(at + PAGE, size))
            if old[page] == new[page]:
                continue
            fate = chance.random()
            if fate < 0.45:
                result[page] = new[page]
            elif fate < 0.6:
                for sector in range(at, min(at + PAGE, size), SECTOR):
                    if chance.random() < 0.5:
                        piece = slice(sector, min(sector + SECTOR, size))
                        result[piece] = new[piece]
        return bytes(result)


class SimMapped(MappedFile):
    """A segment: the map is the file's own bytes."""

    def __init__(self, disk: SimDisk, path: Path, file: SimFile) -> None:
        self.path = path
        self.size = len(file.data)
        self.map = file.data  # type: ignore[assignment]
        self._disk = disk
        self._file = file

    def sync(self) -> None:
        self._disk.durable_step()
        self._disk.maybe_fail()
        self._file.sync()

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._file.data[position : position + size])

    def read_at_nowait(self, position: int, size: int) -> bytes | None:
        return self.read_at(position, size)

    def is_resident(self, position: int, size: int) -> bool:
        return True

    def mend(self, position: int, old: bytes, data: bytes) -> None:
        for at in range(0, len(data), PAGE):
            self._disk.step()
            piece = data[at : at + PAGE]
            self._file.data[position + at : position + at + len(piece)] = piece

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._file.data[position : position + len(data)] = data

    def write_pieces_at(self, position: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
        self.write_at(position, b"".join(pieces))

    def write_through(self, position: int, size: int) -> None:
        pass

    def read_ahead(self, position: int, size: int) -> None:
        pass

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        return [(position, self.size)] if position < self.size else []

    def close(self) -> None:
        pass


class SimPaged(PagedFile):
    def __init__(self, disk: SimDisk, path: Path) -> None:
        self.path = path
        self._sim = disk

    def _file(self) -> SimFile:
        file = self._sim.files.get(self.path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        return file

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._sim.step()
        content = self._file().data
        if len(content) < position + len(data):
            content.extend(bytes(position + len(data) - len(content)))
        is_full = self._sim.lacks_room(self.path) and any(data) and not any(content[position:][: len(data)])
        if is_full:
            data = data[: len(data) // 8 * 4]  # the kernel writes what there is room for
        content[position : position + len(data)] = data
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(self._file().data[position : position + size])

    def read_at_nowait(self, position: int, size: int) -> bytes | None:
        return self.read_at(position, size)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        size = len(self._file().data)
        return [(position, size)] if position < size else []

    def sync(self) -> None:
        self._sim.durable_step()
        self._sim.maybe_fail()
        self._file().sync()


class SimDisk(Disk):
    """See the module docstring. One object is one machine's disk; `power_loss` gives the disk of its next life."""

    def __init__(self, chance: random.Random) -> None:
        self.files: dict[Path, SimFile] = {}
        self.named: dict[Path, SimFile] = {}
        """The names on the platter, and which file each stands for there."""
        self.folders: set[Path] = set()
        self.room = 1 << 40
        self.full: frozenset[str] = frozenset()
        """Names of files and folders for whose paged files there is no room where they have holes."""
        self.fail_syncs = 0
        self.steps = 0
        self.crash_after = 1 << 60
        self.on_step: Callable[[], None] = lambda: None
        self.locked = False
        self.missing = deque[Path]()
        self._chance = chance
        self.files[BOOT_ID] = self.named[BOOT_ID] = SimFile(chance.randbytes(16).hex().encode())

    # -- time and trouble ------------------------------------------------------------------------------

    def step(self) -> None:
        self.steps += 1
        if self.steps >= self.crash_after:
            raise PowerLoss

    durable_step = step

    def lacks_room(self, path: Path) -> bool:
        """Tell whether a paged file can get no more bytes."""
        return path.name in self.full or path.parent.name in self.full

    def maybe_fail(self) -> None:
        if self.fail_syncs:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def power_loss(self, chance: random.Random) -> SimDisk:
        """What is there when the power comes back."""
        after = type(self)(chance)
        after.room, after.full = self.room, self.full
        for path in sorted({*self.files, *self.named} - {BOOT_ID}):
            now, before = self.files.get(path), self.named.get(path)
            file = now if now is before else chance.choice((now, before))
            if file is not None:
                after.files[path] = after.named[path] = SimFile(file.after_power_loss(chance))
        after.folders = set(self.folders)
        return after

    def killed(self) -> SimDisk:
        """What is there when only the process was killed: everything that it wrote."""
        after = type(self)(self._chance)
        after.room, after.full = self.room, self.full
        for path, file in self.files.items():
            after.files[path] = file
        after.named = dict(self.named)
        after.folders = set(self.folders)
        return after

    # -- what the store asks ---------------------------------------------------------------------------

    def _folder(self, path: Path) -> None:
        if path not in self.folders:
            self.folders.update([path, *path.parents])

    def allocate(self, path: Path, size: int) -> MappedFile:
        self.step()
        if size > self.room:
            raise DiskFull(f"cannot allocate {size} bytes for {path}: no space left on the simulated disk")
        self.room -= size
        self._folder(path.parent)
        file = self.files[path] = SimFile(bytes(size))
        self.named[path] = file
        return SimMapped(self, path, file)

    def open_mapped(self, path: Path) -> MappedFile:
        return SimMapped(self, path, self.files[path])

    def create_paged(self, path: Path, size: int) -> PagedFile:
        self._folder(path.parent)
        file = self.files.get(path)
        if file is None and self.lacks_room(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if file is None:
            file = self.files[path] = SimFile()
        if len(file.data) < size:
            file.data.extend(bytes(size - len(file.data)))
        del file.data[size:]
        return SimPaged(self, path)

    def open_paged(self, path: Path) -> PagedFile:
        return SimPaged(self, path)

    def write_paged(self, path: str, size: int, position: int, data: bytes) -> bool:
        place = Path(path)
        if new := position == 0 or place not in self.files:
            self.create_paged(place, size)
        SimPaged(self, place).write_at(position, data)
        return new

    def forget(self, path: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.files if path.parent == directory)

    def directories(self, directory: Path) -> list[str]:
        return sorted(
            folder.name for folder in self.folders if folder.parent == directory and folder != directory
        )

    def size_of(self, path: Path) -> int:
        return len(self.files[path].data)

    def is_blank(self, path: Path) -> bool:
        data = self.files[path].data
        return data.count(0) == len(data)

    def modified_ms(self, path: Path) -> int:
        return 1 << 62  # nothing here is ever old

    def space(self, path: Path) -> Space:
        return Space(1 << 41, 1 << 40, 1 << 40)  # half of it: retention is not what is simulated

    def remove_tree(self, directory: Path) -> None:
        for path in [each for each in self.files if directory in each.parents]:
            self.remove(path)
        self.folders -= {each for each in self.folders if each == directory or directory in each.parents}

    def move(self, source: Path, target: Path) -> None:
        self.step()
        self._folder(target.parent)
        self.files[target] = self.files.pop(source)
        self.sync_directory(target.parent)
        self.sync_directory(source.parent)

    def exists(self, path: Path) -> bool:
        return path in self.files or path in self.folders

    def make_directory(self, path: Path) -> None:
        self._folder(path)

    def remove(self, path: Path) -> None:
        self.step()
        file = self.files.pop(path, None)
        if file is not None:
            self.room += len(file.data)

    def read_file(self, path: Path) -> bytes | None:
        file = self.files.get(path)
        return None if file is None else bytes(file.data)

    def write_file(self, path: Path, data: bytes) -> None:
        self.step()
        self._folder(path.parent)
        self.files.setdefault(path, SimFile()).data[:] = data

    def append_file(self, path: Path, data: bytes) -> None:
        self.step()
        self._folder(path.parent)
        file = self.files.setdefault(path, SimFile())
        file.data += data
        file.sync()
        self.named[path] = file

    def replace_file(self, path: Path, data: bytes) -> None:
        self.step()
        self._folder(path.parent)
        self.files[path] = self.named[path] = SimFile(data)

    def sync_directory(self, path: Path) -> None:
        self.durable_step()
        for name in [known for known in {*self.files, *self.named} if known.parent == path]:
            if name in self.files:
                self.named[name] = self.files[name]
            else:
                del self.named[name]

    def sync_tree(self, root: Path) -> None:
        for path, file in self.files.items():
            if root in path.parents:
                self.durable_step()
                file.sync()
                self.named[path] = file

    def sync_file(self, path: Path) -> None:
        if path in self.folders:
            self.sync_directory(path)
            return
        self.durable_step()
        if path in self.files:
            self.files[path].sync()

    def sync_file_systems(self, *paths: Path) -> None:
        self.sync_tree(Path("/"))

    def lock(self, path: Path) -> int:
        if self.locked:
            raise StoreLocked(f"the store {path.parent} is in use")
        self.locked = True
        return 1

    def unlock(self, fd: int) -> None:
        self.locked = False
