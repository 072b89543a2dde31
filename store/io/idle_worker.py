"""A worker thread of idle priority, from which its work can be reclaimed at once.

A thread of the idle class may not get to run for seconds while others want all of the processors, and without
privileges it cannot be hurried (`set_idle_priority`). An owner that needs the work done therefore does not wait for
that thread: wherever the work gives way it holds nothing, and is gone on with elsewhere. When the thread does get to
run it finds that its work was reclaimed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from store.io.helper_process import set_idle_priority

_yield = ctypes.CDLL(None).sched_yield  # Python 3.11's own keeps the interpreter meanwhile
GiveWay: TypeAlias = Callable[[], object]


def never_yield() -> None:
    """Do nothing: the `GiveWay` of work that runs at ordinary priority."""


class WorkReclaimed(Exception):
    """Tell work, where it gives way, that its owner has reclaimed it: it must let go of everything as it is."""


class _Job:
    def __init__(self, work: Callable[[GiveWay], object]) -> None:
        self.work = work
        self.is_reclaimed = False
        self.has_ended = False
        self.error: BaseException | None = None


class IdlePriorityWorker:
    """A thread of idle priority that does one piece of work at a time, which calls `give_way` as often as it can.

    It belongs to one other thread."""

    def __init__(self) -> None:
        self.ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a piece of work may have ended."""
        self._turn = threading.Lock()  # the worker's, but while it gives way
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._job: _Job | None = None
        threading.Thread(target=self._run, name="ropewalk-idle-priority", daemon=True).start()

    def begin(self, work: Callable[[GiveWay], object]) -> None:
        """Start a piece of work. No other may be under way."""
        assert self._job is None
        self._job = _Job(work)
        self._jobs.put(self._job)

    @property
    def is_busy(self) -> bool:
        """Tell whether there is work under way that has not ended."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.ended)
        return self._job is not None and not self._job.has_ended

    def reclaim(self) -> None:
        """Stop the work under way: what it worked on is the caller's again. Raises what the work raised."""
        job, self._job = self._job, None
        if job is not None:
            with self._turn:
                job.is_reclaimed = True
            if job.error is not None:
                raise job.error

    def _run(self) -> None:
        set_idle_priority()
        while True:
            self._do(self._jobs.get())

    def _do(self, job: _Job) -> None:
        def give_way() -> None:
            self._turn.release()
            _yield()
            self._turn.acquire()
            if job.is_reclaimed:
                raise WorkReclaimed

        with self._turn:
            try:
                if not job.is_reclaimed:
                    job.work(give_way)
            except WorkReclaimed:
                pass
            except BaseException as exc:
                job.error = exc
            job.has_ended = True
        os.eventfd_write(self.ended, 1)
