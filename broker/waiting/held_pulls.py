"""Hold pulls that found nothing until the next message of their queue: long polling.

A held pull hangs on its queue. When the queue becomes longer, the pump reads for it again in the same turn and
answers if something matches; when its time is over it is read for once more and answered whatever comes. Exactly one
of arrival, expiry and the end of the connection takes a hold off its queue, and all three happen on the loop, so
none can be lost between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from broker.remoting.request import Request
from broker.remoting.session import Session
from ropewalk.filter import PropertyFilter
from store.queues.consume_queue import ConsumeQueue

HOLDS_MAX = 100_000
_DEADLINES_SLACK = 1000


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits; `matches` is its filter over tag codes, None for everything."""

    session: Session
    request: Request
    queue: ConsumeQueue
    offset: int
    max_count: int
    max_bytes: int
    matches: Callable[[int], bool] | None
    deadline_ms: int
    answer: Callable[[HeldPull, bool], None]
    """Read again and answer; the flag says that it is the last time. May hold the pull anew."""
    wanted: PropertyFilter | None = field(default=None)
    """Its filter over properties, where it has one."""
    group: str = field(default="")
    scanned: int = field(default=0)
    """The queue offset to read on from: `offset`, or behind entries that are known not to match."""
    waiting: bool = field(default=False)
    timed: bool = field(default=False)
    """Whether its deadline stands in the heap, where it is found again after a read that took a reader thread."""


class PullHold:
    """The held pulls of all queues, and their deadlines."""

    def __init__(self) -> None:
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        """A heap by deadline, with every waiting pull in it; one that was answered before its time may stay a while."""
        self._order = count()
        self.size = 0
        """Pulls that wait: each stands in `held` of its queue, and is marked `waiting`, and no other is either."""

    @property
    def is_full(self) -> bool:
        return self.size >= HOLDS_MAX

    def park(self, held: HeldPull) -> None:
        """Let a pull wait. A message that became readable since its read wakes it at the end of this turn."""
        assert not held.waiting, "a pull is held once"
        held.waiting = True
        self.size += 1
        held.request.forget()
        if held.queue.held is None:
            held.queue.held = {}
        held.queue.held[held] = None
        held.session.held.add(held)
        if not held.timed:
            held.timed = True
            heapq.heappush(self._deadlines, (held.deadline_ms, next(self._order), held))
            if len(self._deadlines) > 2 * self.size + _DEADLINES_SLACK:
                self._sweep()

    def _sweep(self) -> None:
        """Remove from the heap the deadlines of pulls that were answered before their time, which are most."""
        keep = []
        for entry in self._deadlines:
            if entry[2].waiting:
                keep.append(entry)
            else:
                entry[2].timed = False
        heapq.heapify(keep)
        self._deadlines = keep

    def arrived(self, queue: ConsumeQueue) -> None:
        """Read again for the pulls of a queue of which messages became readable."""
        waiting, queue.held = queue.held, None
        for held in waiting or ():
            assert held.waiting, "the queue held a pull that was answered"
            held.waiting = False
            self.size -= 1
            held.answer(held, False)
        assert self.size >= 0, self.size

    def dismiss(self, queue: ConsumeQueue, group: str | None = None) -> None:
        """Answer the pulls of a queue (of one group, if named) as if their time were over."""
        for held in list(queue.held or ()):
            if group is None or held.group == group:
                self._unpark(held)
                held.answer(held, True)

    def expire(self, now_ms: int) -> None:
        """Answer every pull whose time is over."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            held = heapq.heappop(deadlines)[2]
            held.timed = False
            if held.waiting:
                self._unpark(held)
                held.answer(held, True)

    def release(self, session: Session) -> None:
        """Forget the pulls of a session that is gone."""
        for held in session.held:
            if isinstance(held, HeldPull) and held.waiting:
                self._unpark(held)
        session.held.clear()

    def _unpark(self, held: HeldPull) -> None:
        holders = held.queue.held
        assert held.waiting and holders is not None and held in holders, (
            "a pull that waits stands in its queue"
        )
        held.waiting = False
        self.size -= 1
        del holders[held]
        if not holders:
            held.queue.held = None
