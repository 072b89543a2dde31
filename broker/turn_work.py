"""`TurnWork`: work of many steps that no request waits for, some steps of it in each turn.

The end of a connection that was in a thousand groups, and a look at all clients, take longer than a turn may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["TurnWork"]

TURN_S: Final = 0.001
"""The time of a turn after which no further step is begun."""


class TurnWork:
    """Jobs in steps, which take turns. The loop owns it."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        """`clock` tells seconds; `wake` has the loop begin another turn soon."""
        self._clock = clock
        self._wake = wake
        self._jobs: deque[Iterator[object]] = deque()

    @property
    def is_busy(self) -> bool:
        """Tell whether `run` has something to do."""
        return bool(self._jobs)

    def begin(self, steps: Iterator[object]) -> None:
        """Take the first step of a job now, and the others in the turns that come."""
        if _is_left(steps):
            self._jobs.append(steps)
            self._wake()

    def run(self) -> None:
        """Take steps for a part of this turn, before it ends."""
        until = self._clock() + TURN_S
        while self._jobs:
            steps = self._jobs.popleft()
            if _is_left(steps):
                self._jobs.append(steps)
            if self._clock() >= until:
                break
        if self._jobs:
            self._wake()


def _is_left(steps: Iterator[object]) -> bool:
    """Take a step of a job, and return whether there may be another one."""
    for _ in steps:
        return True
    return False
