"""`StopSignals`: the first signal asks a server for a good end, and a second one ends it at once, whenever it comes.

The signals are heard until all is stopped, and ignored from then on. A receiver that is closed before would hand a
second signal to the interpreter, whose `KeyboardInterrupt` in the middle of closing looks like a failure; and while the
interpreter itself ends, a signal would kill the process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

import trio

from broker.process.launch import stop_signals

__all__ = ["EXIT_CUT_SHORT", "StopSignals", "ignore_stop_signals"]

EXIT_CUT_SHORT: Final = 130


class StopSignals:
    """The signals that stop a server process, from a task of its loop on."""

    def __init__(self, end: Callable[[int], object] = os._exit) -> None:
        """`end` gets the exit code of a process that a second signal ends."""
        self._end = end
        self._first: signal.Signals | None = None
        self._come = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        for number in stop_signals():
            signal.signal(number, self._handle)

    async def wait(self) -> signal.Signals:
        """Return the first signal as soon as it has come."""
        await self._come.wait()
        assert self._first is not None
        return self._first

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        came = signal.Signals(number)
        if self._first is None:
            self._first = came
            self._token.run_sync_soon(self._come.set)
            return
        # Not through the log: this may interrupt whoever writes to it.
        line = f"{came.name} while stopping for {self._first.name}: ended at once, the rest is for the next start\n"
        os.write(2, line.encode())
        self._end(EXIT_CUT_SHORT)


def ignore_stop_signals() -> None:
    """Ignore further signals: everything is stopped, and the interpreter only has to end."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
