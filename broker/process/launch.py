"""The needs of a server process before it serves: a fit interpreter, open files, a log, clocks, signals.

Shared by the broker (`broker`) and a name server of its own (`namesrv`). Each refusal is a `StartFailed`
whose text tells the remedy.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
from pathlib import Path

import structlog

import ropewalk
from broker.process.logs import configure_logs
from broker.settings.config import umask_text
from broker.settings.keys import KEYS
from ropewalk.errors import RopewalkError

log = structlog.get_logger("broker.process")

STORE_FILES = 1024
"""Descriptors that a broker keeps for segments, queue files and other members."""
_CONNECTIONS_MAX = 1_000_000
_DESCRIPTORS_MIN = 128
_NAMED_MAX = 3


class StartFailed(RopewalkError):
    """The process cannot start; the text tells the reason and the remedy."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this process in good order: that of a terminal that is closed, too.

    Not where `nohup` has it ignored: there the process is to outlive its terminal.
    """
    stops = signal.SIGINT, signal.SIGTERM
    return stops if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*stops, signal.SIGHUP)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_SINCE_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def monotonic_ms() -> int:
    """Return the time since the machine started, its sleep included: no lease and no lock outlasts a sleep unseen."""
    return time.clock_gettime_ns(_SINCE_BOOT) // 1_000_000


def open_log(level: str, form: str, file: Path | None) -> None:
    try:
        configure_logs(level, form, file, time.monotonic_ns)
    except OSError as exc:
        raise StartFailed(
            f"cannot append to the log file {file}: {exc.strerror}. Choose another one with --log-file, or none"
        ) from exc
    if file is not None:  # standard output has the ready line; a file of its own shows where a process begins
        log.info("starting", version=ropewalk.__version__, pid=os.getpid())


def refuse_unfit_interpreter() -> None:
    if sys.platform != "linux":
        raise StartFailed(
            f"the server runs on Linux only, this is {sys.platform}; the client works everywhere"
        )
    if not __debug__:
        raise StartFailed(
            "started with -O, which strips the checks that keep the log honest: start without it"
        )


def restrict_files(umask: int) -> None:
    """Have the files that this process and its children make lack these permissions. Call before any is made."""
    os.umask(umask)


def umask_of_environment() -> int:
    """Return the umask of a command that has no configuration file. Raises `StartFailed`."""
    text = os.environ.get("ROPEWALK_UMASK") or str(KEYS["ropewalkUmask"].default)
    try:
        return int(umask_text(text), 8)
    except ValueError as exc:
        raise StartFailed(f"ROPEWALK_UMASK={text}: {exc}") from exc


def readable_store(root: Path, umask: int) -> str | None:
    """Return in words that other users of this machine can read a store that should be its owner's, or None.

    A store that an older version made is readable for everybody; files made since then are not. Blocks for a moment.
    """
    try:
        if not root.stat().st_mode & umask:
            return None
        loose = [entry.name for entry in sorted(root.iterdir()) if entry.stat().st_mode & umask]
    except OSError:
        return None  # a start says what is wrong with a folder that cannot be read
    if not loose:
        return None
    return (
        f"other users of this machine can read {', '.join(loose[:_NAMED_MAX])} in {root}: "
        f"`chmod -R {_removed(umask)} {root}`, or set ropewalkUmask to let them in"
    )


def _removed(umask: int) -> str:
    """Return the argument of `chmod` that takes away what a umask does."""
    letters = ((0o4, "r"), (0o2, "w"), (0o1, "x"))
    groups = ((3, "g"), (0, "o"))
    return ",".join(
        f"{who}-" + "".join(letter for bit, letter in letters if umask >> shift & bit)
        for shift, who in groups
        if umask >> shift & 0o7
    )


def raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def refuse_few_descriptors() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < _DESCRIPTORS_MIN:
        raise StartFailed(
            f"this process may open {limit} files at once, and a broker needs {_DESCRIPTORS_MIN} at the least "
            f"(thousands for as many clients): raise the limit with `ulimit -n`, or LimitNOFILE= of a systemd unit"
        )


def connections_max(kept: int) -> int:
    """Return the number of clients that may be connected, which leaves `kept` descriptors, and log it."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    places = max(limit - kept, limit // 4) if limit != resource.RLIM_INFINITY else _CONNECTIONS_MAX
    log.info("places for connections", places=places, open_files_limit=limit)
    return places


def way_out(exc: OSError, any_port: str, other_address: str) -> str:
    """Return the advice for an address that cannot be listened on."""
    if exc.errno == errno.EADDRINUSE:
        return f"Stop what uses it, or choose another port ({any_port} takes any free one)"
    if exc.errno == errno.EACCES:
        return f"Ports below 1024 need privileges: choose another one ({any_port} takes any free one)"
    return f"Is that an address of this machine? Choose another one with {other_address}"
