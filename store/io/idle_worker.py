"""Work that gives way to everybody, on a thread from which it can be taken back at once.

A thread of the idle class may not get to run for seconds while others want all of the processors, and nobody without
privileges can hurry it (`be_modest`). Who needs the work done therefore does not wait for that thread: wherever it
gives way it holds nothing, and the work is gone on with elsewhere. When it does get to run it finds that it was
relieved.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from store.io.helper_process import be_modest

_yield = ctypes.CDLL(None).sched_yield  # Python 3.11's own keeps the interpreter meanwhile
GiveWay: TypeAlias = Callable[[], object]


class Relieved(Exception):
    """Raised where work gives way that somebody else has taken back. It must let go of everything as it is."""


class _Job:
    def __init__(self, work: Callable[[GiveWay], object]) -> None:
        self.work = work
        self.is_relieved = False
        self.has_ended = False
        self.error: BaseException | None = None


class Modest:
    """One piece of work at a time, which calls `give_way` as often as it can; for one other thread."""

    def __init__(self) -> None:
        self.ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when a piece of work may have ended."""
        self._turn = threading.Lock()  # the worker's, but while it gives way
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._job: _Job | None = None
        threading.Thread(target=self._run, name="ropewalk-modest", daemon=True).start()

    def begin(self, work: Callable[[GiveWay], object]) -> None:
        """Have this done. Nothing else may be under way."""
        assert self._job is None
        self._job = _Job(work)
        self._jobs.put(self._job)

    @property
    def is_busy(self) -> bool:
        """Whether there is work under way that has not ended."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.ended)
        return self._job is not None and not self._job.has_ended

    def take_back(self) -> None:
        """Have nothing under way: what it worked on is the caller's again. Raises what the work raised."""
        job, self._job = self._job, None
        if job is not None:
            with self._turn:
                job.is_relieved = True
            if job.error is not None:
                raise job.error

    def _run(self) -> None:
        be_modest()
        while True:
            self._do(self._jobs.get())

    def _do(self, job: _Job) -> None:
        def give_way() -> None:
            self._turn.release()
            _yield()
            self._turn.acquire()
            if job.is_relieved:
                raise Relieved

        with self._turn:
            try:
                if not job.is_relieved:
                    job.work(give_way)
            except Relieved:
                pass
            except BaseException as exc:
                job.error = exc
            job.has_ended = True
        os.eventfd_write(self.ended, 1)
