"""Take Ctrl-C as a request to stop, so that a command can finish its sentence and its counts.

Between two messages the wish is only noted: nothing is torn apart. While the command waits for
something that may never come (`with interrupts.while_waiting():`) it raises `KeyboardInterrupt` at
once. A second Ctrl-C always raises.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Owns SIGINT for the length of a `with` block."""

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._previous: Callable[[int, FrameType | None], Any] | int | None = None
        self._installed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
            self._installed = False

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Inside, a wish to stop raises `KeyboardInterrupt`, also one made just before."""
        self._waiting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.requested = True
        if self._waiting or again:
            raise KeyboardInterrupt
