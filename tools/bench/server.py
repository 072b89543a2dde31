"""Read CPU time and memory of a server process from /proc.

A server may keep helper processes (Ropewalk's index helper); they work for the same messages, so a figure here
is always that of a process and all its descendants. Linux only; elsewhere, and for processes that
belong to somebody else, the answers are None.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_LISTEN = "0A"


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time that the process and its descendants have used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    total = None
    for member in family(pid):
        fields = _stat(member)
        if fields is not None:
            total = (total or 0.0) + (int(fields[11]) + int(fields[12])) / tick
    return total


def memory(pid: int) -> tuple[int, int] | None:
    """Return RssAnon and RssFile in bytes, summed over the family: memory of its own, and mapped file pages."""
    anon, file, seen = 0, 0, False
    for member in family(pid):
        try:
            status = (_PROC / str(member) / "status").read_text()
        except OSError:
            continue
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name == "RssAnon":
                anon, seen = anon + int(value.split()[0]) * 1024, True
            elif name == "RssFile":
                file += int(value.split()[0]) * 1024
    return (anon, file) if seen else None


def family(pid: int) -> tuple[int, ...]:
    """Return the process and all its descendants, as they are now."""
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return (pid,)
    for name in names:
        fields = _stat(int(name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for member in found:
        found.extend(children.get(member, ()))
    return tuple(found)


def find_listener(host: str, port: int) -> int | None:
    """Return the process that listens on this port of this machine, or None if it cannot be known."""
    if not _is_local(host):
        return None
    inodes = _listening_inodes(port)
    if not inodes:
        return None
    for name in sorted((name for name in os.listdir(_PROC) if name.isdigit()), key=int):
        if any(link in inodes for link in _open_files(_PROC / name / "fd")):
            return int(name)
    return None


def _open_files(folder: Path) -> Iterator[str]:
    """Yield the targets of the entries of a /proc/PID/fd; some vanish while one looks, and some are forbidden."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                yield os.readlink(folder / name)


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat behind the command's name, which may itself hold blanks and brackets."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _is_local(host: str) -> bool:
    """Whether `host` is an address of this machine: only then can one bind to it."""
    try:
        info = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(info[0], info[1]) as probe:
            probe.bind(info[4])
    except OSError:
        return False
    return True
