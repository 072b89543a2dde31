"""The only module that opens files: what the store asks of a disk, and the real one.

Everything above it sees two kinds of file. A `MappedFile` is a commit-log segment: allocated in full before its
first byte is written (so that a full disk is an error here and nowhere else), written with `pwrite`, read through
its map, flushed with `fdatasync`. A `PagedFile` holds queue entries, the checkpoint and other small things: written
with `pwrite`, read with `pread`, never mapped.

Which thread may call what: slices of `MappedFile.map` inside the warm window, and the `_nowait` reads, belong to
the loop. Everything else can block and belongs to a helper thread, or to the time before the loop starts. A
simulated disk implements the same three classes over memory and forgets what was not synced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from ropewalk.errors import RopewalkError

PAGE_SIZE = 4096
_WRITE_AND_WAIT = 2 | 4  # SYNC_FILE_RANGE_WRITE and WAIT_AFTER
_POPULATE_WRITE = 23  # of madvise, since Linux 5.14
_MAP_FAILED = ctypes.c_void_p(-1).value
_READ_STEP = 4 << 20
_PIECES_MAX = 1024  # of one system call
_RESIDENT_PAGES_MAX: Final = 2048  # 8 MiB
_READ_AHEAD_LEAST: Final = 256 << 10  # in one request, whatever the device says
_OPEN_PAGED_FILES_MIN, _OPEN_PAGED_FILES_MAX = 16, 512
_MISSING_MAX = 1000
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
LOCK_NAME = "lock"

_locks_held: dict[tuple[int, int], int | None] = {}
"""Lock files of stores open in this process: a POSIX lock excludes other processes, never one's own.

Each with the descriptor that holds the store's directory, if it can be locked.
"""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.sync_file_range.restype = ctypes.c_int
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_mincore = ctypes.PyDLL(None).mincore  # which never waits, so that giving the interpreter up would cost more
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


Map: TypeAlias = mmap.mmap
"""The map of a file, or of memory of no file: a slice of it is a copy of its bytes."""


def memory_map(size: int) -> Map:
    """Return zeroed memory of no file, which goes back to the system as soon as it is dropped."""
    return mmap.mmap(-1, size)


class StoreLocked(RopewalkError):
    """Another process, ours or RocketMQ's, has this store open."""


class DiskFull(RopewalkError):
    """The file could not be allocated: free space, then the store resumes by itself."""


@dataclass(frozen=True, slots=True)
class Space:
    """A file system: its size, what is free, and what of that others than root may use. Bytes, -1 where unknown."""

    total: int
    free: int
    usable: int

    @property
    def for_everybody(self) -> int:
        """Return the size without the part that is reserved for root."""
        return self.total - self.free + self.usable

    @property
    def used_percent(self) -> int:
        """Return the used part of that size, in whole percent rounded up; -1 if unknown."""
        whole = self.for_everybody
        return -(-(self.total - self.free) * 100 // whole) if self.total > 0 and whole else -1

    @property
    def used_ratio(self) -> float:
        """Return the used part of that size as a ratio, as `df` tells it; -1 if unknown."""
        return (self.total - self.free) / self.for_everybody if self.total > 0 else -1.0

    def above(self, percent: int) -> int:
        """Return by how many bytes more is used than so many percent; negative where it is less."""
        return self.total - self.free - self.for_everybody * percent // 100


class MappedFile:
    """A fixed-size file under a shared map; the module docstring tells which threads may touch it."""

    @property
    def descriptor(self) -> int:
        """The file descriptor, which reads the file even where its name was removed."""
        return self._fd

    pieces_s = 0.0
    """Processor time of all `write_pieces_at`, seconds."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self.map = mmap.mmap(fd, size)
        self._fd = fd
        self._map_at = _address_of(self.map)
        self._pages = bytearray(_RESIDENT_PAGES_MAX)
        self._pages_at = _address_of(self._pages)

    def sync(self) -> None:
        """Make every byte written so far survive power loss. Blocks; any OSError here is final."""
        try:
            os.fdatasync(self._fd)
        except OSError as exc:
            _name(exc, self.path)
            raise

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Put bytes where the map shows them, by system call. Raises OSError; HOT.

        A store through the map would fault on every fresh page, and again on every page after each flush. On ext4 the
        flush itself takes 0.13 ms after this and 0.4 ms after a store through the map (fdatasync of 4 to 64 KiB).
        """
        try:
            done = os.pwrite(self._fd, data, position)
        except OSError as exc:
            _name(exc, self.path)
            raise
        if done != len(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    def write_pieces_at(self, position: int, pieces: Sequence[bytes | memoryview], size: int) -> None:
        """`write_at` of several pieces one behind the other, of `size` bytes together."""
        # Of the processor, and not by the clock: behind the call the interpreter may be another thread's.
        began = time.thread_time()
        if len(pieces) > _PIECES_MAX:
            self.write_at(position, b"".join(pieces))
        else:
            try:
                done = os.pwritev(self._fd, pieces, position)
            except OSError as exc:
                _name(exc, self.path)
                raise
            if done != size:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        self.pieces_s += time.thread_time() - began

    def read_at(self, position: int, size: int) -> bytes:
        """Read by system call, so that a cold page stops this thread and not the interpreter. Blocks."""
        try:
            return os.pread(self._fd, size, position)
        except OSError as exc:
            _name(exc, self.path)
            raise

    def read_at_nowait(self, position: int, size: int) -> bytes | None:
        """The bytes if all of them are in the page cache, else None; never waits for the disk."""
        return _pread_nowait(self._fd, position, size)

    def is_resident(self, position: int, size: int) -> bool:
        """Tell whether the page cache has these bytes, so that their map can be read now. HOT; never waits."""
        skipped = position % PAGE_SIZE
        size += skipped
        count = -(-size // PAGE_SIZE)
        if count > _RESIDENT_PAGES_MAX or _mincore(self._map_at + position - skipped, size, self._pages_at):
            return False
        return self._pages.find(0, 0, count) < 0

    def mend(self, position: int, old: bytes, data: bytes) -> None:
        """Put `data` where `old` is read, page by page and only where they differ; `sync` makes it last. Blocks.

        The file counts as written when it was: retention goes by that time, and what is mended is not new.
        """
        before = os.fstat(self._fd)
        for at in range(0, len(data), PAGE_SIZE):
            piece = data[at : at + PAGE_SIZE]
            if old[at : at + PAGE_SIZE] != piece and os.pwrite(self._fd, piece, position + at) != len(piece):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        os.utime(self._fd, ns=(before.st_atime_ns, before.st_mtime_ns))

    def write_through(self, position: int, size: int) -> None:
        """Write the pages of these bytes to the disk as they are. Blocks. Raises OSError.

        No promise. Who writes there meanwhile loses nothing, and does not wait. On a descriptor of its own: the kernel
        tells each one once that bytes of the file could not be written, and it is `sync` that has to hear of it.
        """
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _write_through(fd, position, size)
        finally:
            os.close(fd)

    def read_ahead(self, position: int, size: int) -> None:
        """Prefetch these bytes into the page cache. Blocks a little; no promise. Raises OSError."""
        _read_ahead(self._fd, position, size)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The parts behind `position` that can be other than zero, as (start, end); holes cost nothing."""
        return _data_ranges(self._fd, position, self.size)

    def close(self) -> None:
        with contextlib.suppress(BufferError):  # a reader still exports a view; the map goes with it
            self.map.close()
        os.close(self._fd)


class PagedFile:
    """An ordinary file read and written by position; its descriptor comes from a bounded pool."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk

    def write_at(self, position: int, data: bytes | bytearray | memoryview) -> None:
        with self._disk.descriptor(self.path) as fd:
            done = os.pwrite(fd, data, position)
            if done != len(data):  # pwrite is short only when the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def read_at(self, position: int, size: int) -> bytes:
        with self._disk.descriptor(self.path) as fd:
            return os.pread(fd, size, position)

    def read_at_nowait(self, position: int, size: int) -> bytes | None:
        try:
            with self._disk.descriptor(self.path) as fd:
                return _pread_nowait(fd, position, size)
        except OSError:
            return None  # a file that is gone, say: whoever waits for the disk meets it again, and can say so

    def read_ahead(self, position: int, size: int) -> None:
        """Prefetch these bytes into the page cache. Blocks a little; no promise. Raises OSError."""
        with self._disk.descriptor(self.path) as fd:
            _read_ahead(fd, position, size)

    def write_through(self, position: int, size: int) -> None:
        """Write pages to the disk as `MappedFile.write_through` does. Raises OSError."""
        with self._disk.descriptor(self.path) as fd:
            _write_through(fd, position, size)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The parts behind `position` that can be other than zero, as (start, end); holes cost nothing."""
        with self._disk.descriptor(self.path) as fd:
            return _data_ranges(fd, position, os.fstat(fd).st_size)

    def sync(self) -> None:
        with self._disk.descriptor(self.path) as fd:
            os.fdatasync(fd)


class Disk:
    """The real disk. Paths are absolute or relative to the working directory; errors are OSError."""

    open_flags = os.O_RDWR | os.O_CLOEXEC

    def __init__(self) -> None:
        self._descriptors: OrderedDict[Path, list[int]] = OrderedDict()  # path -> [fd, users]
        self._lock = threading.RLock()
        self.missing: deque[Path] = deque(maxlen=_MISSING_MAX)
        """Paged files that were not there where they should have been. Every thread appends; the store takes."""
        self.open_max = _open_max()
        """How many descriptors of paged files are kept; more only while more are in use at once."""

    def _open(self, path: Path | str, flags: int) -> int:
        """Open a file; idle descriptors of the pool make room if the process may not have any more."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            if exc.errno not in _NO_DESCRIPTORS:
                raise
            with self._lock:
                self._close_idle(len(self._descriptors))
            return os.open(path, flags | os.O_CLOEXEC, 0o644)

    # -- segments ------------------------------------------------------------------------------------

    def allocate(self, path: Path, size: int) -> MappedFile:
        """Create a zero-filled file whose every block is reserved, and map it. Blocks; raises `DiskFull`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = -1
        try:
            fd = self._open(path, os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
            self.sync_directory(path.parent)
            return MappedFile(path, fd, size)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
                with contextlib.suppress(OSError):
                    path.unlink()
            if exc.errno in _NO_DESCRIPTORS:
                with self._lock:
                    self._close_idle(
                        len(self._descriptors)
                    )  # a map takes a second one: there may be room next time
                raise DiskFull(f"cannot open {path}: {exc.strerror}; raise the limit (`ulimit -n`)") from exc
            if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
                raise DiskFull(f"cannot allocate {size} bytes for {path}: {exc.strerror}") from exc
            _name(exc, path)
            raise

    def open_mapped(self, path: Path) -> MappedFile:
        """Map an existing file. A sparse one (RocketMQ's are) first gets all its blocks. Blocks."""
        fd = self._open(path, os.O_RDWR)
        try:
            found = os.fstat(fd)
            size = found.st_size
            if found.st_blocks * 512 < size:
                os.posix_fallocate(fd, 0, size)
                os.utime(
                    fd, ns=(found.st_atime_ns, found.st_mtime_ns)
                )  # retention goes by when it was written
            return MappedFile(path, fd, size)
        except OSError as exc:
            os.close(fd)
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room for the missing blocks of the sparse file {path}") from exc
            raise

    # -- paged files ---------------------------------------------------------------------------------

    def create_paged(self, path: Path, size: int) -> PagedFile:
        """Create (or keep) a file of exactly `size` bytes; new bytes read as zero."""
        fd = self._create(path, size)
        try:
            self._drop_stale(path, fd)
        finally:
            os.close(fd)
        return PagedFile(self, path)

    def _drop_stale(self, path: Path, fd: int) -> None:
        """Let go of a pooled descriptor that is of another file than the one that has the name now."""
        with self._lock:
            entry = self._descriptors.get(path)
            if entry is not None and _identity(os.fstat(entry[0])) != _identity(os.fstat(fd)):
                self.forget(path)

    def _create(self, path: Path | str, size: int) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            fd = self._open(path, flags)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = self._open(path, flags)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            raise
        return fd

    def open_paged(self, path: Path) -> PagedFile:
        return PagedFile(self, path)

    def write_paged(self, path: str, size: int, position: int, data: bytes) -> bool:
        """Put bytes into a paged file of `size` bytes; whether it may be a new one. HOT.

        For tens of thousands of files, each written to once in a while: three system calls and no place in the pool,
        for every call more hands the interpreter to the loop and takes it away again. A file is made where its first
        bytes are written or where it is gone.
        """
        try:
            fd, new = (self._open(path, os.O_WRONLY), False) if position else (self._create(path, size), True)
        except FileNotFoundError:
            fd, new = self._create(path, size), True
            self.missing.append(Path(path))
        try:
            if new:
                self._drop_stale(Path(path), fd)
            if os.pwrite(fd, data, position) != len(data):  # short only when the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        except OSError as exc:
            _name(exc, path)
            raise
        finally:
            os.close(fd)
        return new

    @contextlib.contextmanager
    def descriptor(self, path: Path) -> Iterator[int]:
        """A descriptor of `path`, pooled: thousands of queues must not mean thousands of open files."""
        with self._lock:
            entry = self._descriptors.get(path)
            if entry is None:
                try:
                    entry = self._descriptors[path] = [self._open(path, self.open_flags), 0]
                except FileNotFoundError:
                    self.missing.append(path)
                    raise
            self._descriptors.move_to_end(path)
            entry[1] += 1
            if (over := len(self._descriptors) - self.open_max) > 0:
                self._close_idle(max(self.open_max // 4, over))
        try:
            yield entry[0]
        except OSError as exc:
            _name(exc, path)
            raise
        finally:
            with self._lock:
                entry[1] -= 1
                if entry[1] == 0 and self._descriptors.get(path) is not entry:
                    os.close(entry[0])  # the pool has let go of it meanwhile

    def _close_idle(self, count: int) -> None:
        """Close up to `count` descriptors that nobody uses, those longest unused first. The lock is held."""
        idle = [path for path, (_fd, users) in self._descriptors.items() if users == 0]
        for path in idle[:count]:
            os.close(self._descriptors.pop(path)[0])

    def forget(self, path: Path) -> None:
        """Close the pooled descriptor of a file that was removed or may be, as soon as it is idle."""
        with self._lock:
            entry = self._descriptors.pop(path, None)
            if entry is not None and entry[1] == 0:
                os.close(entry[0])

    def close(self) -> None:
        """Close every pooled descriptor, as soon as it is idle."""
        with self._lock:
            for path in list(self._descriptors):
                self.forget(path)

    # -- names and whole small files -----------------------------------------------------------------

    def names(self, directory: Path) -> list[str]:
        """The plain files of a directory, sorted; empty if it does not exist."""
        try:
            with os.scandir(directory) as entries:
                return sorted(e.name for e in entries if e.is_file())
        except FileNotFoundError:
            return []

    def directories(self, directory: Path) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return sorted(e.name for e in entries if e.is_dir())
        except FileNotFoundError:
            return []

    def size_of(self, path: Path) -> int:
        return path.stat().st_size

    def is_blank(self, path: Path) -> bool:
        """Tell whether the file holds nothing but zeros. Blocks."""
        with self.descriptor(path) as fd:
            for start, end in _data_ranges(fd, 0, os.fstat(fd).st_size):
                for at in range(start, end, _READ_STEP):
                    data = os.pread(fd, min(_READ_STEP, end - at), at)
                    if data.count(0) != len(data):
                        return False
        return True

    def modified_ms(self, path: Path) -> int:
        """Return when the file was last written to, ms: its age is counted from there."""
        return path.stat().st_mtime_ns // 1_000_000

    def space(self, path: Path) -> Space:
        """Return the file system of `path`, all of it -1 where it is unknown. Blocks."""
        try:
            found = os.statvfs(path)
        except OSError:
            return Space(-1, -1, -1)
        size = found.f_frsize
        return Space(size * found.f_blocks, size * found.f_bfree, size * found.f_bavail)

    def are_apart(self, one: Path, other: Path) -> bool:
        """Return whether two directories, or the folders that they are to be made in, are on different file systems."""
        devices = set()
        for path in (one, other):
            for folder in (path, *path.parents):
                with contextlib.suppress(OSError):
                    devices.add(folder.stat().st_dev)
                    break
        return len(devices) > 1

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists; the pool lets go of it behind that, when no thread can open it any more."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.forget(path)

    def remove_tree(self, directory: Path) -> None:
        """Remove a directory with all that is in it, if it exists. Blocks."""
        for name in self.directories(directory):
            self.remove_tree(directory / name)
        for name in self.names(directory):
            self.remove(directory / name)
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()

    def read_file(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None

    def write_file(self, path: Path, data: bytes) -> None:
        """Write in place without durability: for hints whose loss or tear is harmless. Blocks a little."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def append_file(self, path: Path, data: bytes) -> None:
        """Add to the end of a file, durably. Blocks."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        self.sync_directory(path.parent)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Durably replace a small file: temporary name, fsync, rename, directory fsync. Blocks."""
        self.make_directory(path.parent)
        temporary = path.with_name(path.name + ".tmp")
        self.write_synced(temporary, data)
        self.rename(temporary, path)
        self.sync_directory(path.parent)

    def write_synced(self, path: Path, data: bytes) -> None:
        """Write a file anew, its bytes durable, its name not yet. Blocks."""
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in its directory, in place of the file of that name. Not durable by itself."""
        source.replace(target)
        self.forget(source)
        self.forget(target)

    def move(self, source: Path, target: Path) -> None:
        """Give a file another place on the same disk, durably. Blocks."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self.rename(source, target)
        self.sync_directory(target.parent)
        self.sync_directory(source.parent)

    def sync_directory(self, path: Path) -> None:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_tree(self, root: Path) -> None:
        """Make every file below `root` durable; at a clean stop. Blocks."""
        for directory, _directories, names in os.walk(root):
            for name in names:
                if name != LOCK_NAME:  # closing any descriptor of it would give the process lock away
                    self.sync_file(Path(directory, name))
            self.sync_directory(Path(directory))

    def sync_file(self, path: Path) -> None:
        """Make one file durable, if it still exists. Blocks."""
        with contextlib.suppress(FileNotFoundError):
            fd = self._open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def sync_file_systems(self, *paths: Path) -> None:
        """Make everything durable on the file systems of those of the paths that exist. Blocks.

        One call for each file system, where thousands would be needed for files. A folder of a store may be a link to
        another disk.
        """
        done: set[int] = set()
        for path in paths:
            try:
                fd = self._open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                if (device := os.fstat(fd).st_dev) not in done and _libc.syncfs(fd) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), str(path))
                done.add(device)
            finally:
                os.close(fd)

    # -- the process lock ----------------------------------------------------------------------------

    def lock(self, path: Path) -> int:
        """Take RocketMQ's process lock on a store: a POSIX record lock on the first byte of `lock`.

        It must be held before anything else in the directory is touched: RocketMQ takes it only after recovery,
        and a second process can by then have truncated the files of a live store. Returns the descriptor that
        holds the lock; `flock` would not exclude a Java process. The directory is locked too, by `flock`: the lock
        file can be removed under a broker, and another one be locked then.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if lock_is_ours(path):  # even to open and close it would give that lock away
            raise StoreLocked(f"the store {path.parent} is in use by this very process (lock file {path})")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as exc:
            os.close(fd)
            if exc.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise StoreLocked(
                f"the store {path.parent} is in use by another process (lock file {path}); "
                "stop that broker, or give this one its own storePathRootDir"
            ) from exc
        try:
            _locks_held[_identity(os.fstat(fd))] = _lock_directory(path) if path.name == LOCK_NAME else None
        except (OSError, StoreLocked):
            os.close(fd)
            raise
        try:
            os.pwrite(fd, b"lock", 0)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # else it is held all the same: its word is for people
        return fd

    def unlock(self, fd: int) -> None:
        directory = _locks_held.pop(_identity(os.fstat(fd)), None)
        os.close(fd)
        if directory is not None:
            os.close(directory)


def _open_max() -> int:
    """A quarter of what this process may open; the rest is for segments, connections and the interpreter."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _OPEN_PAGED_FILES_MAX
    return min(_OPEN_PAGED_FILES_MAX, max(_OPEN_PAGED_FILES_MIN, limit // 4))


def _lock_directory(path: Path) -> int | None:
    """Return the descriptor that locks the directory of this lock file; None where directories have no locks."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(fd)
        if exc.errno not in (errno.EACCES, errno.EAGAIN):
            return None  # NFS, say: the lock file is all there is then
        raise StoreLocked(
            f"the store {path.parent} is in use by a broker whose lock file {path} was removed or replaced; "
            "stop that broker, or give this one its own storePathRootDir"
        ) from exc
    return fd


def lock_is_ours(path: Path) -> bool:
    """Tell whether this very process holds the lock on a store."""
    try:
        return _identity(os.stat(path)) in _locks_held
    except FileNotFoundError:
        return False


def _name(exc: OSError, path: Path | str) -> None:
    """Give the error of a call by descriptor the name of the file."""
    exc.filename = exc.filename or str(path)


def _address_of(memory: mmap.mmap | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _write_through(fd: int, position: int, size: int) -> None:
    """Make the pages dirty as a store of what they hold already would, and write them.

    By way of a map, because who writes zeros with `pwrite` keeps the file locked for as long as its pages take to come
    (0.6 ms for 256 KiB in memory that a virtual machine was not given yet), and all appends with it. The map is gone
    before the writer comes here: each flush would have to take its pages from it. `ctypes`, because `mmap.madvise`
    keeps the interpreter.
    """
    start = position - position % mmap.ALLOCATIONGRANULARITY
    length = position + size - start
    address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, start)
    if address == _MAP_FAILED:
        return
    populated = _libc.madvise(address, length, _POPULATE_WRITE)
    _libc.munmap(address, length)
    if populated == 0:
        _libc.sync_file_range(fd, start, length, _WRITE_AND_WAIT)


def _read_ahead(fd: int, position: int, size: int) -> None:
    most = _read_ahead_most(os.fstat(fd).st_dev)
    for at in range(position, position + size, most):
        os.posix_fadvise(fd, at, min(most, position + size - at), os.POSIX_FADV_WILLNEED)


@lru_cache
def _read_ahead_most(device: int) -> int:
    """How many bytes may be asked for at once; of a longer request the kernel leaves out the rest."""
    disk = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (disk / "partition").exists():
        disk = disk.parent
    with contextlib.suppress(OSError, ValueError):
        return max(_READ_AHEAD_LEAST, int((disk / "queue" / "read_ahead_kb").read_text()) << 10)
    return _READ_AHEAD_LEAST


def _pread_nowait(fd: int, position: int, size: int) -> bytes | None:
    buffer = bytearray(size)
    try:
        is_whole = os.preadv(fd, [buffer], position, os.RWF_NOWAIT) == size
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        raise
    return bytes(buffer) if is_whole else None


def _data_ranges(fd: int, position: int, size: int) -> list[tuple[int, int]]:
    # All are asked for before any is looked at: looking brings the pages behind into the cache, ext4 counts a cached
    # page of an unwritten extent as data, and a lazy walk would pull itself through the whole file.
    ranges: list[tuple[int, int]] = []
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                break
            raise
        position = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        ranges.append((start, position))
    return ranges


def _write_all(fd: int, data: bytes) -> None:
    """A write is short when the disk fills up half way; the next one then says so."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
