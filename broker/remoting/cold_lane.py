"""The cold lane: requests that are not hot are served for a few milliseconds a turn, whoever sends them.

A send or a pull is served as it comes. Everything else (heartbeats, locks, administrators' requests, the name
server's codes) and every header in fastjson's dialect may cost more, and one read can hold hundreds of them. So each is
a job in steps (a generator that yields between two slices), and all jobs of a turn together have `TURN_S`:

    time left, and nothing of its session waits    the job runs at once, as far as the time allows
    else                                           it waits for the next turn, which comes at once

Sessions take turns, a step each; the jobs of one session keep their order. A session whose peer takes too few of its
answers has no turn until the peer has read: its jobs would only make more answers. What waits has a bound; when it is
reached, the session with most bytes in it is told that the broker is busy.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from inspect import GEN_CREATED, getgeneratorstate
from itertools import islice
from typing import Final, Protocol, TypeAlias

import structlog

from broker.remoting.outbox import Link, Outbox
from ropewalk.errors import RemoteProtocolError

__all__ = ["ColdLane", "Job", "Steps"]

log = structlog.get_logger("broker.serve")

TURN_S: Final = 0.001
"""The time of a turn after which no further step of a job is begun."""
JOBS_MAX: Final = 128
"""Waiting jobs of a session after which it looks at no further request."""
WAITING_SIZE_MAX: Final = 64 << 20
"""Bytes of requests that wait, with `JOB_SIZE` for each; a large frame is 16 MiB."""
JOB_SIZE: Final = 1 << 10
"""Bytes that a waiting request takes beside its own."""
_LOOKED_AT: Final = 32
"""Sessions that are compared for the one with most, of those whose sizes begin with the same bit."""

Steps: TypeAlias = Generator[None, None, None]


class JobOwner(Protocol):
    """The session of a request, as the lane sees it."""

    outbox: Outbox
    link: Link
    lane_full: bool
    """Whether so many of its requests wait that it keeps the rest of a read to itself."""
    lane_stalled: bool
    """Whether its requests wait until the peer has taken its answers; `ColdLane.resume` is owed then."""

    def go_on(self) -> Steps:
        """Go on with the rest, as none waits any more."""


@dataclass(slots=True, eq=False)
class Job:
    """A request that is served in steps."""

    steps: Steps
    size: int
    """Bytes of the request."""
    read_at: float
    """When it had been read, by the clock of `rpc_times`."""
    refuse: Callable[[], None]
    """Answer that the broker is busy."""
    must_end: bool = False
    """Whether its steps change a table together: they go on when the connection has ended."""

    @property
    def may_be_shed(self) -> bool:
        """Tell whether nothing is left half done without the steps that are left."""
        return not self.must_end or getgeneratorstate(self.steps) == GEN_CREATED


class _Queue:
    """The waiting jobs of one session, none of them empty, and the sum of their sizes."""

    __slots__ = ("bits", "jobs", "size")

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.size = self.bits = 0


class ColdLane:
    """The jobs of all sessions of a loop."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        """`clock` tells seconds; `wake` has the loop begin another turn soon."""
        self.clock = clock
        self._wake = wake
        self.left_s = TURN_S
        """The time that is left of this turn; whoever begins one sets it to `TURN_S`."""
        self._running: Job | None = None
        self._queues: OrderedDict[JobOwner, _Queue] = OrderedDict()
        """The sessions with waiting jobs, the one that is next first."""
        self._stalled: dict[JobOwner, _Queue] = {}
        """The sessions with waiting jobs that have no turn, as their peers take too few answers."""
        self._by_bits: list[dict[JobOwner, _Queue]] = [{} for _ in range(64)]
        """The sessions with waiting jobs by the number of bits of their sizes."""
        self.size = 0
        """Bytes of all waiting requests."""

    def serve(self, session: JobOwner, job: Job, *, later: bool = False) -> None:
        """Serve a job at once, as far as the time of this turn allows; the rest of it, or all if `later`, waits."""
        if (
            later
            or self.left_s <= 0
            or session in self._queues
            or session.lane_stalled
            or not self._advance(job)
        ):
            self._add(session, job)

    def run(self) -> None:
        """Serve waiting jobs with the time that is left of this turn; before it ends."""
        queues = self._queues
        while queues and self.left_s > 0:
            session, queue = next(iter(queues.items()))
            if session.link.congested:
                self._stalled[session] = queues.pop(session)
                session.lane_stalled = True
                continue
            job = queue.jobs[0]
            session.outbox.read_at = job.read_at
            try:
                is_done = self._advance(job, one_step=True)
            except RemoteProtocolError as exc:
                log.warning("hung up", peer=session.link.peer, reason=str(exc))
                session.link.close()
                self.release(session)
                continue
            finally:
                session.outbox.flush()
            if session not in queues or queue.jobs[0] is not job:  # the job closed its own connection
                continue
            queues.move_to_end(session)
            if is_done:
                queue.jobs.popleft()
                self._remove(session, queue, job)
        if queues:
            self._wake()

    def resume(self, session: JobOwner) -> None:
        """Serve a session again whose peer has taken its answers."""
        session.lane_stalled = False
        queue = self._stalled.pop(session, None)
        if queue is not None:
            self._enter(session, queue)

    def release(self, session: JobOwner) -> None:
        """Forget the jobs of a session that is gone, but for those that must end."""
        queue = self._queues.get(session) or self._stalled.get(session)
        if queue is None:
            return
        session.lane_full = False
        for job in list(queue.jobs):
            if not job.must_end:
                queue.jobs.remove(job)
                self._remove(session, queue, job)
                if job is not self._running:  # a request may close the connection that it came by
                    job.steps.close()
        self.resume(session)

    def _advance(self, job: Job, *, one_step: bool = False) -> bool:
        """Take steps of a job while there is time; return whether it is done."""
        clock = self.clock
        began = clock()
        self._running = job
        try:
            while True:
                next(job.steps)
                if one_step or clock() - began >= self.left_s:
                    return False
        except StopIteration:
            return True
        finally:
            self._running = None
            self.left_s -= clock() - began

    def _add(self, session: JobOwner, job: Job) -> None:
        queue = self._queues.get(session) or self._stalled.get(session)
        if queue is None:
            queue = _Queue()
            self._enter(session, queue)
        queue.jobs.append(job)
        if len(queue.jobs) >= JOBS_MAX:
            session.lane_full = True
        self._resize(session, queue, job.size + JOB_SIZE)
        while self.size > WAITING_SIZE_MAX:
            largest, shed = self._largest()
            last = next((job for job in reversed(shed.jobs) if job.may_be_shed), None)
            if last is None:
                return  # its changes are under way, and end soon
            shed.jobs.remove(last)
            last.steps.close()
            self._remove(largest, shed, last)
            last.refuse()

    def _largest(self) -> tuple[JobOwner, _Queue]:
        """Return a session with most, or nearly so: as many are compared however many wait."""
        top = next(each for each in reversed(self._by_bits) if each)
        return max(islice(top.items(), _LOOKED_AT), key=lambda entry: entry[1].size)

    def _resize(self, session: JobOwner, queue: _Queue, change: int) -> None:
        queue.size += change
        self.size += change
        assert self.size >= queue.size >= 0, (self.size, queue.size)
        bits = queue.size.bit_length()
        if bits != queue.bits:
            self._by_bits[queue.bits].pop(session, None)
            queue.bits = bits
            if bits:
                self._by_bits[bits][session] = queue

    def _enter(self, session: JobOwner, queue: _Queue) -> None:
        self._queues[session] = queue
        if len(self._queues) == 1:
            self._wake()

    def _remove(self, session: JobOwner, queue: _Queue, job: Job) -> None:
        self._resize(session, queue, -job.size - JOB_SIZE)
        if not queue.jobs:
            self._queues.pop(session, None)
            if self._stalled.pop(session, None) is not None:
                session.lane_stalled = False
            if session.lane_full:
                self._add(session, Job(session.go_on(), 1, job.read_at, session.link.close))
