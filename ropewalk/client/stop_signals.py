"""The signals that ask a program to end, for programs that block and for event loops alike.

An event loop looks for them every now and then: asyncio on Windows has no other way, and so there is one for all.
"""

from __future__ import annotations

import queue
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from ropewalk.client.machine import stop_signals


class StopSignals:
    """SIGINT and SIGTERM, kept from ending the program within a `with` block. What they did before is restored."""

    def __init__(self) -> None:
        # The one queue whose `put` may be called by a signal handler that interrupts its own `get`.
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "signals come to the main thread: call run() there, or start() and close() here"
            )
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def arrived(self) -> bool:
        """Return True once a signal has come."""
        return not self._arrived.empty()

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as a signal has come, and False after `timeout_s` seconds without one."""
        try:
            self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return False
        return True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._arrived.put(number)
