"""Read the files of a store directory in tasks: the list of files, and bytes by log offset.

A store is read as it lies, whoever wrote it. While somebody has it open every read is a plain `pread`: a file that
becomes shorter meanwhile gives fewer bytes, where a map would end the process. One that nobody has open is mapped:
that spares a copy and the faults of fresh memory, which were half of what an audit cost.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ropewalk.errors import RopewalkError
from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.format.sidecar import Sidecar

NAME_DIGITS = 20
NAME_SIZE_MAX = 255
"""Bytes that file systems take for one name; a damaged or foreign record can name a longer topic."""
DEFAULT_QUEUE_FILE_SIZE = 6_000_000
Bytes = bytes | mmap.mmap
"""The buffer under a window: both kinds can be searched, unpacked and sliced, and a slice is bytes."""

_FLOCK = struct.Struct("@hhqqi")


class UnreadableStore(RopewalkError):
    """The directory cannot be read as a store; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of a log. `size` is its actual size, which may be less than it should be."""

    base: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The files of a store, as far as pieces of work need to know them."""

    root: str
    segment_size: int
    min_offset: int
    """Where the log begins."""
    segments: tuple[SegmentFile, ...]
    queue_file_size: int
    is_clean: bool
    """Nobody has it open, and the last who had stopped in good order."""
    deleted: tuple[tuple[str, int], ...] = ()
    """Topics that were deleted, and the log offset below which records of theirs are dead."""

    def narrowed(self, offset: int) -> StoreFiles:
        """Return the same store with one segment only: a piece of work need not carry a list of thousands."""
        segment = self.segment(offset)
        return replace(self, segments=(segment,) if segment is not None else ())

    @property
    def end_offset(self) -> int:
        """Return the log offset at which the last file ends, or should."""
        return self.segments[-1].base + self.segment_size if self.segments else 0

    def segment(self, offset: int) -> SegmentFile | None:
        """Return the file that holds, or should hold, a log offset."""
        base = offset - offset % self.segment_size
        return next((segment for segment in self.segments if segment.base == base), None)

    def reader(self, segment: SegmentFile) -> Callable[[int, int], Bytes]:
        """Return a reader of one segment by log offset; it gives fewer bytes where the file ends.

        Those from `page_start` on can be mapped.
        """

        def read(offset: int, size: int) -> Bytes:
            position = offset - segment.base
            if self.is_clean and position % mmap.ALLOCATIONGRANULARITY == 0:
                return map_at(segment.path, position, size)
            return read_at(segment.path, position, size)

        return read

    def page_start(self, segment: SegmentFile, offset: int) -> int:
        """Return the last log offset at or before this one from which a reader can map the segment."""
        return offset - (offset - segment.base) % mmap.ALLOCATIONGRANULARITY

    def sidecar(self, segment: SegmentFile) -> Sidecar | None:
        """Return the checksums beside a segment, if they are of it."""
        path = Path(self.root, "ropewalk", "checksums", f"{segment.base:0{NAME_DIGITS}d}")
        try:
            sidecar = Sidecar.decode(path.read_bytes())
        except OSError:
            return None
        if sidecar is None or sidecar.base_offset != segment.base:
            return None
        return sidecar if sidecar.segment_size == self.segment_size else None

    def queue_directory(self, topic: str, queue_id: int) -> Path:
        return Path(self.root, "consumequeue", topic, str(queue_id))


def map_at(path: str, position: int, size: int) -> Bytes:
    """Map bytes of a file, fewer at its end. Raises `UnreadableStore`."""
    try:
        with open(path, "rb") as file:
            size = min(size, os.fstat(file.fileno()).st_size - position)
            if size <= 0:
                return b""
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            return mmap.mmap(file.fileno(), size, flags, mmap.PROT_READ, offset=position)
    except OSError as exc:
        raise UnreadableStore(f"cannot read {path}: {exc.strerror}") from exc


def read_at(path: str, position: int, size: int) -> bytes:
    """Read bytes of a file, fewer at its end. Raises `UnreadableStore`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise UnreadableStore(f"cannot open {path}: {exc.strerror}") from exc
    try:
        parts = []
        while size > 0:
            part = os.pread(fd, min(size, 1 << 30), position)
            if not part:
                break
            parts.append(part)
            position, size = position + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    except OSError as exc:
        raise UnreadableStore(f"cannot read {path}: {exc.strerror}") from exc
    finally:
        os.close(fd)


def open_store(root: str) -> StoreFiles:
    """List a store directory. Raises `UnreadableStore` where there is none."""
    directory = Path(root) / "commitlog"
    try:
        names = sorted(os.listdir(directory))
    except OSError as exc:
        raise UnreadableStore(
            f"{root} is no store directory: {directory} cannot be listed ({exc.strerror}). Give the directory that "
            f"holds commitlog/ and consumequeue/, by a path that every worker has"
        ) from exc
    found = [
        SegmentFile(int(name), _size_of(str(directory / name)), str(directory / name))
        for name in names
        if len(name) == NAME_DIGITS and name.isdigit()
    ]
    segments = tuple(segment for segment in found if segment.size)
    if not segments:
        raise UnreadableStore(f"{root} holds no commit log: {directory} has no segments")
    segment_size = _usual_size(segments)
    odd = [segment for segment in segments if segment.base % segment_size]
    if odd:
        raise UnreadableStore(
            f"{odd[0].path} does not begin at a multiple of the segment size, {segment_size} bytes by the other files"
        )
    return StoreFiles(
        str(root),
        segment_size,
        segments[0].base,
        segments,
        _queue_file_size(Path(root) / "consumequeue"),
        not _in_use(Path(root)),
        _deleted(Path(root)),
    )


def _size_of(path: str) -> int:
    """Nothing, where retention has just taken the file."""
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _usual_size(segments: tuple[SegmentFile, ...]) -> int:
    """How long a segment should be: what most of them are, or what lies between two of their names."""
    counts = Counter(segment.size for segment in segments)
    size = max(counts, key=lambda size: (counts[size], size))
    gaps = [after.base - before.base for before, after in itertools.pairwise(segments)]
    return min(gaps) if gaps and min(gaps) > 0 and counts[size] == 1 else size


def _queue_file_size(base: Path) -> int:
    sizes: Counter[int] = Counter()
    for topic, _directories, names in os.walk(base):
        for name in names:
            if len(name) == NAME_DIGITS and name.isdigit():
                sizes[_size_of(os.path.join(topic, name))] += 1
        if sum(sizes.values()) > 1000:
            break
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    return usual - usual % ENTRY_SIZE or DEFAULT_QUEUE_FILE_SIZE


def _in_use(root: Path) -> bool:
    return (root / "abort").exists() or is_locked(root)


def is_locked(root: Path) -> bool:
    """Return whether a broker has this store open now.

    Only asks: taking the lock, even for a moment, could stop a start.
    """
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _deleted(root: Path) -> tuple[tuple[str, int], ...]:
    try:
        value = json.loads((root / "ropewalk" / "deleted").read_bytes())
    except (OSError, ValueError):
        return ()
    entries = value.items() if isinstance(value, dict) else ()
    return tuple(sorted((topic, end) for topic, end in entries if isinstance(end, int)))
