"""List and read the files of a store directory: segments of the log and consume queues, RocketMQ's, DLedger's or ours.

Only reads.

    <root>/commitlog/<20 digits>                    segments, named by the log offset of their first byte
    <root>/dledger-<id>/data/<20 digits>            the same in DLedger's entries
    <root>/consumequeue/<topic>/<queue>/<20 digits> entries of 20 bytes, named by the byte of the queue
    <root>/checkpoint, lock, epochFileCheckpoint

`path` names one root, several roots of one broker with commas between them (a log on several disks), or several
brokers, `broker-a=/x,broker-b=/y`. A directory that holds the segments themselves will do too.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ropewalk.errors import CorruptRecord, RopewalkError
from ropewalk.format.queue_entry import ENTRY_SIZE, QueueEntry, is_message
from ropewalk.format.record import Record, decode_record
from ropewalk.spark.rows.decode import DLEDGER_HEAD_SIZE

__all__ = [
    "ENTRY_DTYPE",
    "Queue",
    "QueueFile",
    "Segment",
    "Store",
    "UnreadableStore",
    "data_ranges",
    "open_stores",
]

ENTRY_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

_FILE_NAME: Final = re.compile(r"[0-9]{20}")
_QUEUE_ID: Final = re.compile(r"[0-9]{1,10}")
_NAMED_PATH: Final = re.compile(r"([^=/,]+)=(.+)")
_FLOCK: Final = struct.Struct("hhqqi4x")
_CHUNK: Final = 1 << 13
_DLEDGER_MAGICS: Final = (1, 2, -1)


class UnreadableStore(RopewalkError):
    """A directory that holds no store, or none that can be read as asked."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the log."""

    path: str
    base_offset: int
    size: int
    is_dledger: bool = False

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size

    @property
    def log_format(self) -> str:
        return "dledger" if self.is_dledger else "plain"


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file of a consume queue; `base` is the byte of the queue it begins at."""

    path: str
    base: int
    size: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A consume queue."""

    topic: str
    queue_id: int
    files: tuple[QueueFile, ...]

    def entries(self, low: int, high: int) -> npt.NDArray[Any]:
        """Return the entries of queue offsets `[low, high)`; zeros where no file is."""
        result = np.zeros(max(high - low, 0), ENTRY_DTYPE)
        for file in self.files:
            first, last = file.base // ENTRY_SIZE, (file.base + file.size) // ENTRY_SIZE
            start, end = max(low, first), min(high, last)
            if start < end:
                with open(file.path, "rb") as opened:
                    data = os.pread(
                        opened.fileno(), (end - start) * ENTRY_SIZE, start * ENTRY_SIZE - file.base
                    )
                found = np.frombuffer(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE], ENTRY_DTYPE)
                result[start - low : start - low + len(found)] = found
        return result

    def bounds(self, min_log_offset: int = 0) -> tuple[int, int]:
        """Return [low, high): the first queue offset whose record can still be in the log, and the one behind the last
        entry.

        Looked for from both ends, so that a hole in the middle, which a power failure may leave, hides nothing.
        """
        end = self._behind_last()
        low, high = (self.files[0].base // ENTRY_SIZE if self.files else end), end
        # Log offsets rise along a queue; what is no message, filling or a hole, is as old as what comes behind it.
        while low < high:
            middle = (low + high) // 2
            found = self._message_from(middle, high)
            if found is None or found[1] >= min_log_offset:
                high = middle
            else:
                low = found[0] + 1
        first = self._message_from(low, end)
        return (low if first is None else first[0]), end

    def _message_from(self, low: int, high: int) -> tuple[int, int] | None:
        """Queue offset and log offset of the first message at or behind a queue offset."""
        step = 1
        while low < high:
            entries = self.entries(low, min(low + step, high))
            offsets, sizes = entries["offset"], entries["size"]
            found = np.flatnonzero((offsets >= 0) & (sizes > 0) & (sizes < 0x7FFFFFFF))
            if len(found):
                return low + int(found[0]), int(offsets[found[0]])
            low += len(entries)
            step = _CHUNK
        return None

    def _behind_last(self) -> int:
        for file in reversed(self.files):
            count = file.size // ENTRY_SIZE
            with open(file.path, "rb") as opened:
                for start, end in reversed(data_ranges(opened.fileno(), file.size)):
                    last = min(end // ENTRY_SIZE + 1, count)
                    while last * ENTRY_SIZE > start:
                        first = max(0, last - _CHUNK)
                        data = os.pread(opened.fileno(), (last - first) * ENTRY_SIZE, first * ENTRY_SIZE)
                        sizes = np.frombuffer(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE], ENTRY_DTYPE)[
                            "size"
                        ]
                        found = np.flatnonzero(sizes != 0)
                        if len(found):
                            return file.base // ENTRY_SIZE + first + int(found[-1]) + 1
                        last = first
        return self.files[0].base // ENTRY_SIZE if self.files else 0

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry of one queue offset, if it names a record."""
        (found,) = self.entries(queue_offset, queue_offset + 1)
        entry = QueueEntry(*(int(part) for part in found))
        return entry if is_message(entry.offset, entry.size) else None


@dataclass(frozen=True, slots=True)
class Store:
    """The files of one broker."""

    broker_name: str | None
    roots: tuple[Path, ...]
    segments: tuple[Segment, ...]

    @property
    def key(self) -> str:
        """Return the store's name in offsets: its broker's name, or its directory."""
        return self.broker_name or str(self.roots[0])

    @property
    def min_offset(self) -> int:
        return self.segments[0].base_offset if self.segments else 0

    @property
    def max_offset(self) -> int:
        return self.segments[-1].end_offset if self.segments else 0

    def segment_at(self, offset: int) -> Segment | None:
        for segment in self.segments:
            if segment.base_offset <= offset < segment.end_offset:
                return segment
        return None

    def has_queues(self) -> bool:
        return any((root / "consumequeue").is_dir() for root in self.roots)

    def queues(self) -> Iterator[Queue]:
        """Yield every consume queue, sorted by topic and id."""
        for root in self.roots:
            base = root / "consumequeue"
            for topic in sorted(_directories(base)):
                ids = (name for name in _directories(base / topic) if _QUEUE_ID.fullmatch(name))
                for queue_id in sorted(ids, key=int):
                    files = tuple(
                        QueueFile(str(path), int(path.name), size)
                        for path, size in _numbered_files(base / topic / queue_id)
                    )
                    if files:
                        yield Queue(topic, int(queue_id), files)

    def is_locked(self) -> bool:
        """Return whether a broker serves this directory on this machine: it then holds the first byte of `lock`."""
        return any(_is_locked(root / "lock") for root in self.roots)

    def record_at(self, offset: int, size: int) -> Record | None:
        """Return the record of exactly this size that begins at a log offset, or None; its checksum is not checked."""
        segment = self.segment_at(offset)
        if segment is None or offset + size > segment.end_offset:
            return None
        try:
            with open(segment.path, "rb") as opened:
                data = os.pread(opened.fileno(), size, offset - segment.base_offset)
            record = decode_record(data, check_crc=False)
        except (OSError, CorruptRecord):
            return None
        return record if record.offset == offset and record.size == size else None


def open_stores(path: str, broker_name: str | None = None, log_format: str = "auto") -> tuple[Store, ...]:
    """Return the stores that option `path` names. Raises UnreadableStore."""
    roots: dict[str | None, list[Path]] = {}
    for part in path.split(","):
        if not part.strip():
            continue
        named = _NAMED_PATH.fullmatch(part.strip())
        name = named[1].strip() if named else broker_name
        roots.setdefault(name, []).append(_local(named[2] if named else part.strip()))
    if not roots:
        raise UnreadableStore("option path is empty: it names the directory of a store")
    if len(roots) > 1 and None in roots:
        raise UnreadableStore(
            f"option path names some brokers and not others: write NAME=DIRECTORY for each in {path!r}"
        )
    return tuple(_open_store(name, tuple(folders), log_format) for name, folders in roots.items())


def data_ranges(fd: int, size: int) -> list[tuple[int, int]]:
    """Return the parts of a file that are not holes: queue files are allocated long before they are full."""
    ranges: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                break
            return [(0, size)]
        position = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        ranges.append((start, position))
    return ranges


def _local(text: str) -> Path:
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    elif "://" in text:
        raise UnreadableStore(
            f"{text} is no local directory: a store is read where its files are, or from a copy"
        )
    return Path(text)


def _open_store(name: str | None, roots: tuple[Path, ...], log_format: str) -> Store:
    segments: list[Segment] = []
    for root in roots:
        if not root.is_dir():
            raise UnreadableStore(
                f"{root} is no directory; a store is read on the machine that has its files"
            )
        try:
            segments += _find_segments(root, log_format)
        except OSError as exc:
            raise UnreadableStore(f"cannot read {root}: {exc.strerror or exc}") from exc
    segments.sort(key=lambda segment: segment.base_offset)
    for before, after in itertools.pairwise(segments):
        if after.base_offset < before.end_offset:
            raise UnreadableStore(
                f"{before.path} and {after.path} hold the same part of the log: are these two brokers? "
                f"then name them in option path, as in broker-a=/x,broker-b=/y"
            )
    return Store(name or next(filter(None, map(broker_name_of, roots)), None), roots, tuple(segments))


_MEMBERS_TOPIC: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


def broker_name_of(root: Path) -> str | None:
    """Return the name of the broker that wrote a store; None if the store does not tell.

    A store does not say it anywhere, but brokers of 5.x, and Ropewalk's, have a system topic with their name behind a
    prefix. Where there are several, the broker was renamed, or the configuration is another's.
    """
    for path in (root / "config" / "topics.json", root / "config" / "topics.json.bak"):
        try:
            topics = json.loads(path.read_bytes())["topicConfigTable"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        names = [name.removeprefix(_MEMBERS_TOPIC) for name in topics if name.startswith(_MEMBERS_TOPIC)]
        return names[0] if len(names) == 1 and names[0] else None
    return None


def _find_segments(root: Path, log_format: str) -> list[Segment]:
    ledgers = [root / name / "data" for name in _directories(root) if name.startswith("dledger-")]
    ledgers = [folder for folder in ledgers if folder.is_dir()]
    if root.name.startswith("dledger-") and (root / "data").is_dir():
        ledgers.append(root / "data")
    if len(ledgers) > 1:
        names = ", ".join(folder.parent.name for folder in ledgers)
        raise UnreadableStore(
            f"{root} holds the logs of several members ({names}): name the directory of one"
        )
    folders = [*ledgers]
    if (root / "commitlog").is_dir():
        folders.append(root / "commitlog")
    if not folders:
        folders = [root]
    found = [
        Segment(str(path), int(path.name), size, _is_dledger(path, folder, log_format))
        for folder in folders
        for path, size in _numbered_files(folder)
    ]
    if not found and folders == [root]:
        raise UnreadableStore(
            f"{root} holds no log: expected files named by 20 digits in {root / 'commitlog'}, in "
            f"{root / 'dledger-<id>' / 'data'} or in the directory itself"
        )
    return found


def _is_dledger(path: Path, folder: Path, log_format: str) -> bool:
    if log_format != "auto":
        return log_format == "dledger"
    with path.open("rb") as opened:
        head = opened.read(DLEDGER_HEAD_SIZE)
    if len(head) < 8 or not any(head[:8]):
        return folder.name == "data"
    return struct.unpack_from(">i", head)[0] in _DLEDGER_MAGICS


def _directories(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [entry.name for entry in found if entry.is_dir()]
    except FileNotFoundError:
        return []


def _numbered_files(folder: Path) -> list[tuple[Path, int]]:
    """Return the files that are named by 20 digits and hold anything, in order."""
    found = []
    for name in sorted(os.listdir(folder)):
        if _FILE_NAME.fullmatch(name):
            path = folder / name
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue  # retention has just taken it
            if size:
                found.append((path, size))
    return found


def _is_locked(path: Path) -> bool:
    # Asked for and never taken: even for a moment, a lock of ours could keep a broker from starting.
    try:
        with path.open("rb") as opened:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(opened.fileno(), fcntl.F_GETLK, asked)
    except OSError:
        return False
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK
