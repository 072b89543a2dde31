"""The timer log: one 52-byte unit for each pending timer message, chained backwards within its slot.

    <root>/timerlog/<20 digits>    files of one size; a unit that does not fit leaves a blank and begins the next file

Units are only appended, and files only removed from the front, when the commit log no longer has the record of their
last unit. Appends go into a buffer, which `write` puts into the files once a turn; the newest units are therefore read
from memory and the others from the page cache. What stands behind the end is zeros: a start finds the end by them.

The loop appends and reads with `_nowait`; `sync`, `load` and `remove` block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from store.io.disk import Disk
from store.log.commitlog import StoreDamaged, segment_name
from store.timer.layout import BLANK_SIZE, UNIT, UNIT_SIZE, Unit, blank_of, is_blank

_BLOCK_UNITS = 1260
_SCAN_UNITS = 20_000
_NAME_DIGITS = 20

BlockPlace: TypeAlias = tuple[Path, int, int]
"""Units in a file: its path, their position in it, and their bytes."""


class TimerLog:
    """The units of all pending timers, in the order in which they were enqueued."""

    def __init__(self, directory: Path, file_size: int, disk: Disk) -> None:
        self.directory = directory
        self.file_size = file_size
        self.bases: list[int] = []
        """The positions at which files begin, ascending; each the one before and a file size."""
        self.end = 0
        """The position of the next unit."""
        self._disk = disk
        self._written = 0
        self._buffer = bytearray()
        """The bytes from `_written` on, in one file."""
        self._block: tuple[int, bytes] = (0, b"")
        self._unsynced: set[int] = set()

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the files; the end is the last one's, until `find_end`. Blocks. Raises `StoreDamaged`."""
        self.bases = []
        for name in self._disk.names(self.directory):
            path = self.directory / name
            if len(name) != _NAME_DIGITS or not name.isdigit():
                raise StoreDamaged(f"{path} is not a file of the timer log: move it out of {self.directory}")
            size = self._disk.size_of(path)
            if size == 0 and name == self._disk.names(self.directory)[-1]:
                self._disk.remove(path)  # a crash between creating and sizing it
                continue
            if size != self.file_size:
                raise StoreDamaged(
                    f"{path} has {size} bytes, but mappedFileSizeTimerLog is {self.file_size}: start with the size "
                    "that the timer log was written with, or remove `timerlog` to have pending timers enqueued again "
                    "from the commit log"
                )
            base = int(name)
            if self.bases and base != self.bases[-1] + self.file_size:
                raise StoreDamaged(
                    f"the timer log has no file at position {self.bases[-1] + self.file_size} in {self.directory}, and "
                    f"one at {base}: restore it, or remove `timerlog` to have pending timers enqueued again from the "
                    "commit log"
                )
            self.bases.append(base)
        self.end = self._written = self.bases[-1] + self.file_size if self.bases else 0

    def units(self, start: int) -> Iterator[tuple[int, Unit]]:
        """Read (position, unit) from a position on, up to the first that is not sound. Blocks."""
        for base in self.bases:
            if base + self.file_size <= start:
                continue
            file = self._disk.open_paged(self._path(base))
            position = max(start - base, 0)
            while position + UNIT_SIZE <= self.file_size:
                count = min((self.file_size - position) // UNIT_SIZE, _SCAN_UNITS)
                data = file.read_at(position, count * UNIT_SIZE)
                if len(data) < UNIT_SIZE:
                    return
                for fields in UNIT.iter_unpack(data[: len(data) // UNIT_SIZE * UNIT_SIZE]):
                    unit = Unit(*fields)
                    if is_blank(unit.magic):
                        break
                    if not unit.is_sound or not unit.prev < base + position < self.end:
                        return
                    yield base + position, unit
                    position += UNIT_SIZE
                else:
                    continue
                break

    def cut(self, end: int) -> None:
        """Let the log end here: what stands behind it becomes zeros, and files behind it go. Blocks."""
        for base in [base for base in self.bases if base > end or (base == end and base != self.bases[0])]:
            self._disk.remove(self._path(base))
            self.bases.remove(base)
        if self.bases and end < self.bases[-1] + self.file_size:
            base = self.bases[-1]
            file = self._disk.open_paged(self._path(base))
            for begin, stop in file.data_ranges(end - base):
                file.write_at(begin, bytes(stop - begin))
            self._unsynced.add(base)
        self._unsynced.intersection_update(self.bases)
        self.end = self._written = end if self.bases else 0
        self._buffer.clear()
        self._block = (0, b"")

    # -- append --------------------------------------------------------------------------------------

    def next_position(self) -> int:
        """Return where the next unit will stand."""
        if not self.bases:
            return self.end
        return self.end if self._room >= UNIT_SIZE + BLANK_SIZE else self.end + self._room

    def reserve(self) -> int:
        """Return where the next unit will stand, in a file that is there. HOT. Raises OSError."""
        if self._room >= UNIT_SIZE + BLANK_SIZE:
            return self.end
        position = self.next_position()
        if not self.bases or position >= self.bases[-1] + self.file_size:
            self._begin_file(position)
        return position

    def append(self, unit: bytes) -> int:
        """Append one packed unit; return its position. `write` puts it into the file. HOT. Raises OSError."""
        position = self.reserve()
        self._buffer += unit
        self.end = position + UNIT_SIZE
        return position

    @property
    def _room(self) -> int:
        """Bytes that are left in the last file."""
        return self.bases[-1] + self.file_size - self.end if self.bases else 0

    def _begin_file(self, base: int) -> None:
        # Each step may find the disk full, and all of them are repeated then.
        self.write()
        self._disk.create_paged(self._path(base), self.file_size)
        if self.bases and self.end < base:
            last = self.bases[-1]
            self._disk.open_paged(self._path(last)).write_at(self.end - last, blank_of(base - self.end))
            self._unsynced.add(last)
        self.bases.append(base)
        self.end = self._written = base

    def write(self) -> None:
        """Put the buffered units into their file: one system call. Raises OSError; they stay buffered then."""
        if not self._buffer:
            return
        base = self.bases[-1]
        self._disk.open_paged(self._path(base)).write_at(self._written - base, self._buffer)
        self._unsynced.add(base)
        self._written += len(self._buffer)
        self._buffer.clear()
        self._block = (0, b"")

    @property
    def is_unsynced(self) -> bool:
        """Tell whether units were appended since the last `take_unsynced`."""
        return bool(self._unsynced or self._buffer)

    def take_unsynced(self) -> list[Path]:
        """Return the files written to since the last time, for a helper thread to sync."""
        paths = [self._path(base) for base in sorted(self._unsynced)]
        self._unsynced.clear()
        return paths

    def restore_unsynced(self, paths: list[Path]) -> None:
        """Count files as unsynced again that could not be synced."""
        self._unsynced.update(base for path in paths if (base := int(path.name)) in self.bases)

    # -- read ----------------------------------------------------------------------------------------

    def unit_nowait(self, position: int) -> Unit | None:
        """Return the unit at a position, None if that needs the disk. Raises ValueError where none can stand.

        A block of units before it is kept: a chain goes backwards.
        """
        start, data = self._block
        if not start <= position <= start + len(data) - UNIT_SIZE:
            if position >= self._written:
                at = position - self._written
                if at + UNIT_SIZE > len(self._buffer):
                    raise ValueError(f"position {position} is behind the end of the timer log, {self.end}")
                return Unit(*UNIT.unpack_from(self._buffer, at))
            place = self.block_of(position)
            found = self._disk.open_paged(place[0]).read_at_nowait(place[1], place[2])
            if found is None:
                return None
            self.keep_block(place, found)
            start, data = self._block
        if not start <= position <= start + len(data) - UNIT_SIZE:
            raise ValueError(f"the timer log cannot be read at position {position}")
        return Unit(*UNIT.unpack_from(data, position - start))

    def block_of(self, position: int) -> BlockPlace:
        """Return the file, place and size of the block that ends with the unit at a position. Raises ValueError."""
        base = position // self.file_size * self.file_size
        if (
            base not in self.bases
            or (position - base) % UNIT_SIZE
            or position - base + UNIT_SIZE > self.file_size
        ):
            raise ValueError(f"the timer log has no unit at position {position}")
        stop = position - base + UNIT_SIZE
        start = max(stop - _BLOCK_UNITS * UNIT_SIZE, 0)
        return self._path(base), start, stop - start

    def read_block(self, place: BlockPlace) -> bytes:
        """Read a block. Blocks: for a helper thread. Raises OSError."""
        return self._disk.open_paged(place[0]).read_at(place[1], place[2])

    def keep_block(self, place: BlockPlace, data: bytes) -> None:
        """Have the next reads find a block that a helper thread read."""
        self._block = int(place[0].name) + place[1], data

    # -- retention -----------------------------------------------------------------------------------

    def expired(self, min_offset: int) -> list[Path]:
        """Forget the files whose last unit's record the commit log no longer has; return their paths. Blocks."""
        gone: list[Path] = []
        last = (self.file_size - BLANK_SIZE) // UNIT_SIZE * UNIT_SIZE - UNIT_SIZE
        while len(self.bases) > 1:
            path = self._path(self.bases[0])
            data = self._disk.open_paged(path).read_at(last, UNIT_SIZE)
            if len(data) < UNIT_SIZE or Unit(*UNIT.unpack(data)).offset >= min_offset:
                break
            gone.append(path)
            del self.bases[0]
        return gone

    def remove(self, path: Path) -> str:
        """Remove a file that `expired` returned; return why that failed, or nothing. Blocks."""
        try:
            self._disk.remove(path)
        except OSError as exc:
            return str(exc)
        return ""

    def _path(self, base: int) -> Path:
        return self.directory / segment_name(base)
