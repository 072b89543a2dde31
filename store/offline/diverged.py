"""Diverged tails of a log: kept aside, under `ropewalk/diverged/`, before they make way for the master's bytes.

    <root>/ropewalk/diverged/<offset>-<time>/commitlog/<offset>    the bytes, in files named by their log offset
    <root>/ropewalk/diverged/<offset>-<time>/about.json            why, when, and what there is

A slave whose log is longer than its master's, or another one from some record on, cannot follow. Its own tail is not
thrown away: it was never acknowledged by the group's rules, but a person may want it. `ropewalk store dump` reads such
a directory like any log; `ropewalk store diverged` lists them, and prints their messages for `produce` to send again.

The store is closed meanwhile and its lock is held. First everything is copied, durably; then claims are lowered (bound,
checkpoint, checksums), and dead bytes go last. A crash on the way leaves a store that starts as before, is found to be
diverged again, and is cut again. What the queues say about records that went is judged by the next start, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ropewalk.errors import Corrupt
from ropewalk.format.index import HEADER_SIZE, IndexHeader
from ropewalk.format.sidecar import Sidecar
from store.index.file import index_names
from store.io.disk import LOCK_NAME, Disk
from store.log.commitlog import NAME_DIGITS, CommitLog
from store.log.durable_bound import decode_bound
from store.offline.reader import find_log_files

__all__ = ["About", "Kept", "about_of", "cut_store", "empty_store", "kept_in"]

_CHUNK = 16 << 20
FOLDER = "diverged"


class About(msgspec.Struct, frozen=True, rename="camel"):
    """`about.json`."""

    why: str
    begin: int
    """The log offset of the first byte that is kept here."""
    end: int
    time_ms: int
    master: str = ""
    """The member whose log took its place."""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """A directory under `diverged/`."""

    path: Path
    about: About
    size: int
    """Bytes that are there."""


def kept_in(root: Path, disk: Disk) -> list[Kept]:
    """List the tails that a store keeps aside, oldest first. Blocks."""
    base = root / "ropewalk" / FOLDER
    found = []
    for name in disk.directories(base):
        path = base / name
        about = about_of(path, disk)
        if about is None:
            continue  # the copy was cut short by a crash, and made again under another name
        size = sum(file.size for file in find_log_files(path))
        found.append(Kept(path, about, size))
    return sorted(found, key=lambda kept: (kept.about.time_ms, kept.path.name))


def about_of(path: Path, disk: Disk) -> About | None:
    """Return the description of a kept tail, or None if the copy is not whole. Blocks."""
    try:
        return msgspec.json.decode(disk.read_file(path / "about.json") or b"", type=About)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def cut_store(root: Path, log_directory: Path, segment_size: int, about: About, disk: Disk) -> Path:
    """Have a closed store's log end at `about.begin`, which is the end of a record, and keep the rest. Blocks.

    Raises `StoreLocked`, `Corrupt` if the log does not reach from there to `about.end`, or OSError: nothing is changed
    then but that there is a copy.
    """
    lock = disk.lock(root / LOCK_NAME)
    log = CommitLog(log_directory, segment_size, disk)
    try:
        log.load()
        if (
            log.find(about.begin) is None
            or about.end > log.segments[-1].end_offset
            or about.end <= about.begin
        ):
            raise Corrupt(f"the log in {log_directory} has no bytes from {about.begin} to {about.end}")
        target = _new_directory(root, about, disk)
        for name in disk.names(target / "commitlog"):
            disk.remove(target / "commitlog" / name)  # a copy that found no room
        for offset, data in _bytes(log, about.begin, about.end):
            disk.append_file(target / "commitlog" / f"{offset:0{NAME_DIGITS}d}", data)
        disk.replace_file(target / "about.json", msgspec.json.encode(about))
        disk.sync_directory(target.parent)
        _lower_claims(root, log, about.begin, disk)
        while len(log.segments) > 1 and log.segments[-1].base_offset >= about.begin:
            log.drop_last()
        segment = log.segments[-1]
        for start, end in segment.file.data_ranges(max(0, about.begin - segment.base_offset)):
            for at in range(start, end, _CHUNK):
                segment.map[at : min(at + _CHUNK, end)] = bytes(min(_CHUNK, end - at))
        segment.file.sync()
        return target
    finally:
        log.close(keep_spare=True)
        disk.unlock(lock)


def empty_store(root: Path, log_directory: Path, about: About, disk: Disk) -> Path:
    """Have a closed store begin again without a message, and keep its whole log. Blocks; raises `StoreLocked`."""
    lock = disk.lock(root / LOCK_NAME)
    try:
        target = _new_directory(root, about, disk)
        disk.replace_file(target / "about.json", msgspec.json.encode(about))
        for name in ("bound", "deleted"):
            disk.remove(root / "ropewalk" / name)
        disk.remove(root / "checkpoint")
        disk.remove_tree(root / "ropewalk" / "checksums")
        # Newest first: whatever a crash leaves is a log that begins where it began, and only ends earlier.
        for name in reversed(disk.names(log_directory)):
            if len(name) == NAME_DIGITS and name.isdigit():
                disk.move(log_directory / name, target / "commitlog" / name)
        disk.remove_tree(root / "consumequeue")
        disk.remove_tree(root / "index")
        return target
    finally:
        disk.unlock(lock)


def _new_directory(root: Path, about: About, disk: Disk) -> Path:
    target = root / "ropewalk" / FOLDER / f"{about.begin:0{NAME_DIGITS}d}-{about.time_ms}"
    disk.make_directory(target / "commitlog")
    disk.sync_directory(target)
    return target


def _bytes(log: CommitLog, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes, each piece with the offset at which its segment's part begins."""
    for segment in log.segments:
        first = max(begin, segment.base_offset)
        last = min(end, segment.end_offset)
        for at in range(first, last, _CHUNK):
            yield first, segment.file.read_at(at - segment.base_offset, min(_CHUNK, last - at))


def _lower_claims(root: Path, log: CommitLog, end: int, disk: Disk) -> None:
    """Nothing on disk speaks of bytes behind `end` any more."""
    path = root / "ropewalk" / "bound"
    bound = decode_bound(disk.read_file(path))
    if bound is not None:
        lower = replace(
            bound,
            flushed=min(bound.flushed, end),
            queues=min(bound.queues, end),
            entries=0,
            end=0,
            clean=False,
        )
        disk.replace_file(path, lower.encode())
    # It tells by a time what is in the queue files, and the new master's records may be older than that time.
    disk.remove(root / "checkpoint")
    for name in index_names(disk, root / "index"):
        path = root / "index" / name
        head = disk.open_paged(path).read_at(0, HEADER_SIZE)
        if len(head) < HEADER_SIZE or IndexHeader.decode(head).end_offset >= end:
            disk.remove(path)  # built again from the log
    directory = root / "ropewalk" / "checksums"
    for segment in log.segments:
        path = directory / segment.file.path.name
        if segment.base_offset >= end:
            disk.remove(path)
        elif (sidecar := Sidecar.decode(disk.read_file(path))) is not None and sidecar.shorten(
            end - segment.base_offset
        ):
            disk.replace_file(path, sidecar.encode())
