"""Time as a list of what is due: trio's clock, which jumps, and callbacks that need no task to wait for them.

When no task can run, trio asks its clock how long to sleep. This one never sleeps: it moves to the next thing that is
due, a deadline of trio's or a callback of ours, whichever comes first. A world whose network, disks and ticks are
callbacks makes a fraction of the scheduler's passes that it would make as tasks, which is what a life costs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import trio

START_S = 100.0


class Events(trio.abc.Clock):
    """The clock of one run, and what happens when. `run` has to be a task of it, or `run_until` is called."""

    def __init__(self) -> None:
        self._now = START_S
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._waiting: trio.lowlevel.Task | None = None

    def at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (when, self._number, act))

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.at(self._now + delay_s, act)

    async def run(self) -> None:
        """Do what is due, each thing at its time, until cancelled. What it raises ends the run."""
        due = self._due
        while True:
            while due and due[0][0] <= self._now:
                heapq.heappop(due)[2]()
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def run_until(self, when: float) -> None:
        """Do what is due until then, in a world without tasks. What it raises ends the run."""
        due = self._due
        while due and due[0][0] <= when:
            self._now = max(self._now, due[0][0])
            heapq.heappop(due)[2]()
        self._now = when

    def _abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED

    # -- as trio's clock -------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._now

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """No task can run: be where the next thing happens."""
        if self._waiting is not None and self._due and self._due[0][0] <= deadline:
            self._now = max(self._now, self._due[0][0])
            task, self._waiting = self._waiting, None
            trio.lowlevel.reschedule(task)
            return 0
        if deadline < math.inf:
            self._now = max(self._now, deadline)
        return 0  # with nothing due at all trio is about to end: it wakes itself over a socket
