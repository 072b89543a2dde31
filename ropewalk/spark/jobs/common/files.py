"""Files that tasks write: under a temporary name first, and under their own when they are whole and on disk.

A task can run twice, on two machines, at the same time; so temporary names are nobody else's, and a file that already
has its name is simply replaced by the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ropewalk.errors import RopewalkError


class FileWriteFailed(RopewalkError):
    """A file could not be written; the text says which and why."""


def temporary_name(path: Path) -> Path:
    """Return a name beside `path` that no other process uses, on any machine."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.partial")


def write_file(path: Path, parts: Iterable[tuple[int, bytes]], size: int) -> None:
    """Write a file of `size` bytes from parts at their positions, with zeros between them. Blocks."""
    partial = temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            os.ftruncate(file.fileno(), size)
            for position, data in parts:
                os.pwrite(file.fileno(), data, position)
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as exc:
        partial.unlink(missing_ok=True)
        raise FileWriteFailed(f"cannot write {path}: {exc.strerror or exc}") from exc


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_new(path: str) -> None:
    """Create a directory, and check that it is empty. Blocks."""
    try:
        os.makedirs(path, exist_ok=True)
        if os.listdir(path):
            raise FileWriteFailed(f"{path} is not empty: name a new directory")
    except OSError as exc:
        raise FileWriteFailed(f"cannot write to {path}: {exc.strerror or exc}") from exc
