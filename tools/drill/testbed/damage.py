"""Damage a member's files, and put them right again: a disk that fills up, a byte that changes.

A small disk is a tmpfs of its own under the member's store. Mounting one takes a privilege that few have; who has it
not is told so, and the drill gives no verdict.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ropewalk.format.sidecar import Sidecar
from store.offline.reader import Damage, find_log_files, read_log
from tools.drill.testbed.group import CannotRun

DISK_BYTES = 48 * 1024 * 1024
_FULL_BELOW = 64 * 1024
_BALLAST = "ballast"
_STEP = 1024 * 1024


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Mount a disk of `size` bytes on the folder, and take it away at the end. Raises `CannotRun`."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "ropewalk-drill", str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotRun(f"a small disk cannot be mounted: {exc}") from exc
    if done.returncode != 0:
        raise CannotRun(
            f"a small disk cannot be mounted on {folder}: {done.stderr.strip()}. "
            "This drill needs the right to mount a tmpfs: run it as root"
        )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False, timeout=10)


@dataclass(frozen=True, slots=True)
class Ballast:
    """A file that takes up room."""

    path: Path
    size: int

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def fill(folder: Path) -> Ballast:
    """Write until there is no room left on the folder's disk."""
    path = folder / _BALLAST
    size = 0
    with path.open("wb", buffering=0) as file:
        step = _STEP
        while step >= 1024:
            try:
                size += file.write(bytes(step))
            except OSError as exc:
                if exc.errno != errno.ENOSPC:
                    raise
                step //= 2
    return Ballast(path, size)


def is_full(folder: Path) -> bool:
    """Return whether next to nothing can be written there."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize < _FULL_BELOW


@dataclass(frozen=True, slots=True)
class Byte:
    """A byte of a file, and its value before."""

    path: Path
    position: int
    value: int

    def __str__(self) -> str:
        return f"{self.path.name} at position {self.position}"

    def flip(self) -> None:
        """Change it, in place."""
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.pwrite(fd, bytes([self.value ^ 0x20]), self.position)
        finally:
            os.close(fd)

    def is_whole(self) -> bool:
        """Return whether the byte has its old value again."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(fd, 1, self.position) == bytes([self.value])
        finally:
            os.close(fd)


def is_summed(store: Path, byte: Byte) -> bool:
    """Return whether a byte of the log is under a checksum, as it is flushed: only then can it be known that it
    changed."""
    path = store / "ropewalk" / "checksums" / byte.path.name
    sidecar = Sidecar.decode(path.read_bytes() if path.exists() else None)
    return sidecar is not None and byte.position < sidecar.covered


def choose_byte(store: Path, rng: random.Random) -> Byte | None:
    """A byte in the body of some message in a sealed segment; None when there is no such segment yet."""
    files = find_log_files(store)
    records = [found for found in read_log(files) if not isinstance(found, Damage) and found.body]
    if not records:
        return None
    last = records[-1].offset
    sealed = {file.base_offset: file for file in files if file.end_offset <= last}
    candidates = [
        (file, record)
        for record in records
        for file in sealed.values()
        if file.base_offset <= record.offset < file.end_offset
    ]
    if not candidates:
        return None
    file, record = rng.choice(candidates)
    content = file.path.read_bytes()
    body_at = content.index(record.body, record.offset - file.base_offset)
    position = body_at + rng.randrange(len(record.body))
    return Byte(file.path, position, content[position])
