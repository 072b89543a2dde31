"""The queue between reading tasks and handling tasks: no wake-up per message, and none for nothing.

What a pull brought is put in at once and wakes one worker. A worker that takes an item while others are left wakes the
next before it begins: if its handler waits for something, the next one is at work by then; if not, it takes item after
item, and the other finds nothing and sleeps on. So handlers that wait run in as many workers as there are, and those
that do not cost one wake-up a pull.

One that never waits would keep the loop to itself: workers give it away once in `TURN_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")

TURN_S = 0.001
"""How long a worker goes on without giving the loop away."""


class WorkerQueue(Generic[T]):
    """A queue shared by the workers of one loop, without a bound: its producers keep to bounds of their own."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._idle: list[anyio.Event] = []

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        """Let items be taken, in this order."""
        self._items.extend(items)
        self._wake_one()

    async def get(self) -> T:
        """Return the next item; does not give the loop away where there is one."""
        while not self._items:
            idle = anyio.Event()
            self._idle.append(idle)
            try:
                await idle.wait()
            except BaseException:
                if idle in self._idle:
                    self._idle.remove(idle)
                else:
                    self._wake_one()  # this one was woken for an item, and leaves: another is to come for it
                raise
        item = self._items.popleft()
        self._wake_one()
        return item

    def get_nowait(self) -> T | None:
        """Return the next item, if there is one."""
        if not self._items:
            return None
        item = self._items.popleft()
        if self._idle:
            self._wake_one()
        return item

    def _wake_one(self) -> None:
        if self._items and self._idle:
            self._idle.pop().set()
