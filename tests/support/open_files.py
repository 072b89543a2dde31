"""Files that a process and its children hold open or mapped although they have no name any more, as /proc tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_DELETED = " (deleted)"


def family_of(pid: int) -> list[int]:
    """Return a process and all processes below it that live."""
    found = [pid]
    for task in _entries(Path(f"/proc/{pid}/task")):
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += family_of(int(child))
    return found


def held_files(pid: int, folder: Path) -> list[str]:
    """Return the removed files of a folder that this process or one below it holds, each with its holder in words."""
    held: list[str] = []
    for each in family_of(pid):
        name = name_of(each)
        held += [f"{name} {how} {path}" for how, path in _held(each) if path.startswith(f"{folder}/")]
    return held


def descriptor_count(pid: int) -> int:
    """Return how many descriptors a process and those below it have."""
    return sum(len(list(_entries(Path(f"/proc/{each}/fd")))) for each in family_of(pid))


def resident_bytes(pid: int) -> int:
    """Return the memory of its own that a process and those below it have; files that they map do not count."""
    total = 0
    for each in family_of(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
    return total


def _held(pid: int) -> Iterator[tuple[str, str]]:
    for entry in _entries(Path(f"/proc/{pid}/fd")):
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.endswith(_DELETED):
            yield f"descriptor {entry.name}", target.removesuffix(_DELETED)
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return
    for line in maps.splitlines():
        if line.endswith(_DELETED):
            words = line.split(maxsplit=5)
            yield f"map {words[0]}", words[5].removesuffix(_DELETED)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []  # it has ended meanwhile


def name_of(pid: int) -> str:
    """Return a process as its id and the module that it runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    named = [words[at + 1] for at in range(len(words) - 1) if words[at] == "-m"]
    return f"process {pid} ({named[0] if named else 'python'})"
