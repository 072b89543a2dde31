"""Reading a commit log without a broker: a directory of segments, RocketMQ's or ours, plain or of DLedger mode.

The files of a log are named by the offset of their first byte, in twenty digits, and each is as long
as it is; nothing else about them is assumed. Records follow each other without a gap. A blank record
sends the reader to the next file. The log ends at the first bytes that are no record: if nothing but
zeros follows, in that file and the later ones, that is simply the end; anything else is damage, and the
reader says in which file and where.

In DLedger mode each record stands behind the head of an entry, in `dledger-*/data`. The first bytes of a file tell
which kind it is: no record is as short as an entry's magic number. An entry's checksum covers its whole record.

Only reads, with `pread` through a window of a megabyte, so a log of any size costs the same memory
and a running broker is not disturbed. (A running broker writes at the end while we look at it: the
last record may be seen half written. For a verdict stop the broker, or read a copy.)

This is for tools. The store itself starts from `recovery.py`, which knows durable bounds and may cut.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ropewalk.errors import CorruptRecord, RopewalkError
from ropewalk.format.dledger.entry import HEAD_SIZE, MAGIC, MAGIC_NOOP, check_body, decode_head, filler_size
from ropewalk.format.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    Record,
    body_crc,
    decode_record,
    read_frame,
)

WINDOW_SIZE = 1024 * 1024
RECORD_SIZE_MAX = 64 * 1024 * 1024
"""Bytes a record may claim before it is taken for damage: far above any broker's message size."""

BLANK_SIZE = 8
_FILE_NAME = re.compile(r"[0-9]{20}")


class UnreadableStore(RopewalkError):
    """There is no commit log here, or it cannot be opened."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A segment file: its path, and which offsets it holds."""

    path: Path
    base_offset: int
    size: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are missing, or differ from those that were written."""

    path: Path
    position: int
    """In the file."""
    offset: int
    """In the log."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path} at position {self.position} (offset {self.offset}): {self.reason}"


def find_log_files(directory: Path) -> tuple[LogFile, ...]:
    """The segments under a store directory (or its log's folder), in order. Raises `UnreadableStore`."""
    folder = log_folder(directory)
    try:
        paths = sorted(path for path in folder.iterdir() if _FILE_NAME.fullmatch(path.name))
        files = tuple(LogFile(path, int(path.name), path.stat().st_size) for path in paths)
    except OSError as exc:
        raise UnreadableStore(f"cannot read {folder}: {exc.strerror or exc}") from exc
    if not files and folder == directory:
        raise UnreadableStore(
            f"{directory} holds no commit log: expected files named by 20 digits in {directory / 'commitlog'}, or in "
            f"{directory / 'dledger-*' / 'data'} of DLedger mode"
        )
    return files


def log_folder(directory: Path) -> Path:
    """Return the folder of the segments, given a store's folder, a DLedger member's or the log's own.

    Raises `UnreadableStore` for the logs of several members.
    """
    if (directory / "commitlog").is_dir():
        return directory / "commitlog"
    if directory.name.startswith("dledger-") and (directory / "data").is_dir():
        return directory / "data"
    members = sorted(directory.glob("dledger-*/data"))
    if len(members) > 1:
        names = ", ".join(str(member.parent) for member in members)
        raise UnreadableStore(f"{directory} holds the logs of {len(members)} members: name one of {names}")
    return members[0] if members else directory


def is_entry_log(folder: Path) -> bool:
    """Tell whether a folder of segments is the log of a DLedger member, by its place."""
    return folder.name == "data" and folder.parent.name.startswith("dledger-")


def read_log(files: tuple[LogFile, ...], from_offset: int = 0) -> Iterator[Record | Damage]:
    """Yield every record at or behind `from_offset`, in log order, and every damage where it was found.

    A record whose body does not match its checksum is yielded behind the damage that says so: its shape
    is whole, and what follows it can still be read. Any other damage to a record ends the reading,
    since nobody knows where the next one begins. Raises `UnreadableStore` when a file cannot be read.
    """
    started = False
    for index, file in enumerate(files):
        if file.end_offset <= from_offset:
            continue
        before = files[index - 1] if index else None
        if started and before is not None and before.end_offset != file.base_offset:
            lost = file.base_offset - before.end_offset
            yield Damage(before.path, before.size, before.end_offset, _gap_text(lost, file))
        started = True
        try:
            with _Window(file) as window:
                goes_on = yield from _read_file(window, from_offset)
                if not goes_on:
                    damage = _find_leftovers(window)
                    if damage is None:
                        damage = _find_leftovers_in(files[index + 1 :])
                    if damage is not None:
                        yield damage
                    return
        except OSError as exc:
            raise UnreadableStore(f"cannot read {file.path}: {exc.strerror or exc}") from exc


def _gap_text(lost: int, file: LogFile) -> str:
    if lost > 0:
        return f"{lost} bytes are missing before the next file, {file.path.name}"
    return f"the next file, {file.path.name}, begins {-lost} bytes before this one ends"


class _Window:
    """A moving part of one file, in memory; and how far the reading has come."""

    def __init__(self, file: LogFile) -> None:
        self.file = file
        self.position = 0
        """Of the next record, in the file."""
        self.data = b""
        self._start = 0
        self._fd = -1
        self.why_not: str | None = None
        """The reason why no entry begins at `position`, once that is known."""

    def __enter__(self) -> _Window:
        self._fd = os.open(self.file.path, os.O_RDONLY | os.O_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def offset(self) -> int:
        return self.file.base_offset + self.position

    @property
    def remaining(self) -> int:
        return self.file.size - self.position

    def look(self, size: int) -> int:
        """Have `size` bytes from `position` on in `data` if the file has them; where they begin there."""
        index = self.position - self._start
        if not 0 <= index <= len(self.data) - size:
            self.data = os.pread(self._fd, max(size, WINDOW_SIZE), self.position)
            self._start = self.position
            index = 0
        return index

    def next_data(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Blocks of the file behind `position` that may be other than zero; holes cost nothing."""
        for start, end in self._ranges(position):
            for at in range(start, end, WINDOW_SIZE):
                block = os.pread(self._fd, min(WINDOW_SIZE, end - at), at)
                if not block:
                    return
                yield at, block

    def _ranges(self, position: int) -> list[tuple[int, int]]:
        # Asked for before any is read: reading brings the pages behind into the cache, and ext4 counts a cached page
        # of an allocated but unwritten block as data.
        ranges: list[tuple[int, int]] = []
        while position < self.file.size:
            try:
                start = os.lseek(self._fd, position, os.SEEK_DATA)
            except OSError as exc:
                if exc.errno == errno.ENXIO:
                    break
                raise
            position = min(os.lseek(self._fd, start, os.SEEK_HOLE), self.file.size)
            ranges.append((start, position))
        return ranges

    def damage(self, reason: str) -> Damage:
        return Damage(self.file.path, self.position, self.offset, reason)


def _read_file(window: _Window, from_offset: int) -> Generator[Record | Damage, None, bool]:
    """One file's records. Returns True if the log goes on in the next file."""
    if window.remaining >= HEAD_SIZE:
        window.look(HEAD_SIZE)
        if int.from_bytes(window.data[:4], "big") in (MAGIC, MAGIC_NOOP):
            return (yield from _read_entries(window, from_offset))
    while window.remaining >= BLANK_SIZE:
        index = window.look(BLANK_SIZE)
        try:
            size, magic = read_frame(window.data, index)
        except CorruptRecord:
            return False  # the file became shorter while we read it
        if magic == MAGIC_BLANK:
            return True
        if magic not in (MAGIC_V1, MAGIC_V2):
            return False
        if not RECORD_SIZE_MIN <= size <= min(window.remaining, RECORD_SIZE_MAX):
            return False
        if window.offset >= from_offset:
            index = window.look(size)
            try:
                record = decode_record(window.data, index, check_crc=False)
            except CorruptRecord:
                return False
            if record.offset != window.offset:
                return False
            yield from _damage_of_body(window, record)
            yield record
        window.position += size
    return True


def _read_entries(window: _Window, from_offset: int) -> Generator[Record | Damage, None, bool]:
    """The records of one file of entries. Returns True if the log goes on in the next file."""
    expected: int | None = None
    while window.remaining >= BLANK_SIZE:
        index = window.look(min(HEAD_SIZE, window.remaining))
        if filler_size(window.data, index) == window.remaining:
            return True
        if not any(window.data[index : index + HEAD_SIZE]):
            return False  # zeros: the log ends here
        try:
            head = decode_head(window.data, index)
            if head.pos != window.offset:
                raise CorruptRecord(f"an entry that says it belongs at offset {head.pos}")
            if expected is not None and head.index != expected:
                raise CorruptRecord(f"entry {head.index}, behind entry {expected - 1}")
            if head.size > window.remaining:
                raise CorruptRecord(f"an entry of {head.size} bytes, {window.remaining} are left")
            if window.offset + HEAD_SIZE >= from_offset and head.magic == MAGIC:
                index = window.look(head.size) + HEAD_SIZE
                body = window.data[index : index + head.body_size]
                record = decode_record(body, check_crc=False)
                if (record.offset, record.size) != (window.offset + HEAD_SIZE, head.body_size):
                    raise CorruptRecord(f"a record that says it belongs at offset {record.offset}")
                damages = list(_damage_of_body(window, record))
                try:
                    check_body(head, body)
                except CorruptRecord as exc:
                    damages = damages or [window.damage(str(exc))]
                yield from damages
                yield record
        except CorruptRecord as exc:
            window.why_not = f"a damaged entry ({exc})"
            return False
        expected = head.index + 1
        window.position += head.size
    return True


def _damage_of_body(window: _Window, record: Record) -> Iterator[Damage]:
    if record.body and body_crc(record.body) != record.body_crc:
        yield window.damage(
            f"the body of the message does not match its checksum "
            f"(stored {record.body_crc}, computed {body_crc(record.body)})"
        )


def _find_leftovers(window: _Window) -> Damage | None:
    """Bytes other than zero behind the last record of a file."""
    for position, block in window.next_data(window.position):
        zeros = len(block) - len(block.lstrip(b"\0"))
        if zeros < len(block):
            return window.damage(_why_not_a_record(window, position + zeros))
    return None


def _find_leftovers_in(files: tuple[LogFile, ...]) -> Damage | None:
    """Files behind the end of the log are allocated ahead and hold nothing yet."""
    for file in files:
        with _Window(file) as window:
            damage = _find_leftovers(window)
            if damage is not None:
                return Damage(
                    file.path, damage.position, damage.offset, f"behind the end of the log: {damage.reason}"
                )
    return None


def _why_not_a_record(window: _Window, first_byte: int) -> str:
    """Say what stands where a record should, for the person who has to decide what to do."""
    if window.why_not is not None:
        return window.why_not
    index = window.look(BLANK_SIZE)
    try:
        size, magic = read_frame(window.data, index)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return (
                f"no record begins here (magic {magic:08x}), but bytes other than zero follow "
                f"from position {first_byte}"
            )
        if size > min(window.remaining, RECORD_SIZE_MAX):
            return f"a record that claims {size} bytes, of which the file has room for {window.remaining}"
        record = decode_record(window.data, window.look(size), check_crc=False)
        return f"a record that says it belongs at offset {record.offset}"
    except CorruptRecord as exc:
        return f"a damaged record ({exc})"
