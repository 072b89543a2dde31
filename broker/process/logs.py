"""The log of a server process: one line for each event, as text for a terminal or as JSON for a collector, time first.

    2026-11-25T12:00:03.418207Z warning  broker.serve: hung up peer=10.1.2.3:40112 reason="a TLS hello"
    {"timestamp": "2026-11-25T12:00:03.418207Z", "level": "warning", "logger": "broker.serve", "event": "hung up", ...}

Lines go to standard error, so that the ready line stands alone on standard output, or are appended to a file. A log
file is rotated by renaming it (`logrotate` without `copytruncate`, `mv`): the next line finds the name gone and opens
a new file, and no signal is needed. SIGHUP stops a server, and SIGUSR1 would kill it. A log file that cannot be
written loses no line: standard error has it, together with the reason.

Whatever a peer says is quoted, so that no event can be made to look like two. A peer that is refused again and again
gets `BURST` lines a minute for the same refusal; the next minute's first line carries the number that was left out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Final, TextIO

import structlog

__all__ = [
    "BURST",
    "FORMATS",
    "LEVELS",
    "LogFile",
    "RepeatLimit",
    "configure_logs",
    "render_text",
    "set_log_level",
]

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FORMATS: Final = ("auto", "text", "json")
"""`auto`: text on a terminal, JSON elsewhere."""
BURST: Final = 5
WINDOW_NS: Final = 60 * 1_000_000_000
_EVENTS_KEPT: Final = 512
_HEAD: Final = ("timestamp", "level", "logger", "event")

Event = MutableMapping[str, Any]


class LogFile:
    """A log file at a path, opened anew once the old file was renamed or removed. Any thread may write."""

    def __init__(self, path: Path, fallback: TextIO) -> None:
        """Open or make the file. Raises OSError if that is impossible."""
        self._path = path
        self._fallback = fallback
        self._lock = threading.Lock()
        self._failed = False
        self._fd = self._open()

    def _open(self) -> int:
        # Readable for the group at most: a log names peers and topics.
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, line: str) -> None:
        """Append a line, to a new file where the old one was renamed or removed."""
        data = f"{line}\n".encode(errors="backslashreplace")
        with self._lock:
            try:
                self._follow_name()
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError as exc:
                if not self._failed:
                    print(f"the log file {self._path} cannot be written: {exc.strerror}", file=self._fallback)
                print(line, file=self._fallback, flush=True)
                self._failed = True
            else:
                self._failed = False

    def _follow_name(self) -> None:
        opened = os.fstat(self._fd)
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            named = None
        if named is None or (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            fresh = self._open()
            os.close(self._fd)
            self._fd = fresh

    def close(self) -> None:
        os.close(self._fd)


class RepeatLimit:
    """A processor that drops an event after it came `BURST` times within a minute, and counts those dropped."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._windows: OrderedDict[tuple[tuple[str, str], ...], tuple[int, int]] = OrderedDict()
        """Event -> start of its minute, and how often it came in it; the one seen last stands last."""

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        same = tuple(
            (name, _host_of(value) if name == "peer" else repr(value)) for name, value in event.items()
        )
        now = self._clock_ns()
        with self._lock:
            start, count = self._windows.pop(same, (now, 0))
            left_out = 0
            if now - start >= WINDOW_NS:
                left_out, start, count = max(count - BURST, 0), now, 0
            self._windows[same] = start, count + 1
            if len(self._windows) > _EVENTS_KEPT:
                self._windows.popitem(last=False)
        if count >= BURST:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
        return event


def _host_of(peer: object) -> str:
    """Return a peer without its port, which is another one for each connection."""
    return str(peer).rpartition(":")[0] or str(peer)


class _Levels:
    """A processor that drops events below a level, which may change at any time."""

    def __init__(self) -> None:
        self.lowest = LEVELS.index("info")

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        level = structlog.processors.add_log_level(logger, method, event)["level"]
        if LEVELS.index(level) < self.lowest:
            raise structlog.DropEvent
        return event


_levels = _Levels()


def set_log_level(level: str) -> None:
    """Have events below `level` dropped from now on, in every thread."""
    _levels.lowest = LEVELS.index(level)


class _Logger:
    """The end of structlog's chain: a name, and the place that lines go to."""

    __slots__ = ("_write", "name")

    def __init__(self, write: Callable[[str], None], name: str) -> None:
        self._write = write
        self.name = name

    def msg(self, line: str) -> None:
        self._write(line)

    debug = info = warning = error = critical = msg


def _in_order(logger: Any, method: str, event: Event) -> Event:
    """Name the logger, and put first what every line has."""
    event["logger"] = logger.name
    return {name: event.pop(name) for name in _HEAD if name in event} | dict(event)


def render_text(logger: Any, method: str, event: Event) -> str:
    """Return the event as a line for people; the traceback of an exception follows it."""
    trace = event.pop("exception", "")
    time, level, name, what = (str(event.pop(key, "")) for key in _HEAD)
    values = "".join(f" {key}={_quoted(value)}" for key, value in event.items())
    head = f"{time} {level:<8} " + (f"{name}: " if name else "")
    return (
        head + (what if what.isprintable() else json.dumps(what)) + values + (f"\n{trace}" if trace else "")
    )


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and text.isprintable() and not any(char in text for char in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())


def configure_logs(
    level: str,
    form: str,
    file: Path | None,
    clock_ns: Callable[[], int],
    stderr: TextIO | None = None,
) -> None:
    """Set up the log of this process. Raises OSError if the file cannot be opened."""
    stream = sys.stderr if stderr is None else stderr
    lock = threading.Lock()

    def write(line: str) -> None:
        with lock:
            stream.write(f"{line}\n")
            stream.flush()

    as_text = form == "text" or (form == "auto" and file is None and stream.isatty())
    out = LogFile(file, stream).write if file is not None else write
    set_log_level(level)
    structlog.configure(
        processors=[
            _levels,
            structlog.processors.format_exc_info,
            RepeatLimit(clock_ns),
            structlog.processors.TimeStamper(fmt="iso"),
            _in_order,
            render_text if as_text else structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *names: _Logger(out, names[0] if names else ""),
        cache_logger_on_first_use=True,
    )
