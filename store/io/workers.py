"""Helper threads: work that can block, done away from the loop, with its results brought back to it.

Three shapes. The `Flusher` turns "everything up to here, please" into fdatasync calls, one at a time, so that one
call answers for every record that arrived while the previous one ran. A `Worker` runs jobs in order. `Completions`
is the way back: a thread leaves a callback there and wakes the loop, which alone touches the store's state.

A job's failure is carried to the loop and raised there: what cannot be written must not be passed over in silence.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from ropewalk.errors import RopewalkError
from store.io.disk import MappedFile
from store.io.durations import Durations

FLUSH_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class FlushFailed(RopewalkError):
    """An fsync failed. The page cache may now lie about what is on disk: the process has to stop."""


class Completions:
    """Callbacks that helper threads owe the loop, in the order in which they became due."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._due: deque[Callable[[], None]] = deque()

    def post(self, callback: Callable[[], None]) -> None:
        """Have the loop call this soon; from any thread."""
        self._due.append(callback)
        self._wake()

    def run(self) -> None:
        """Call the completions that have been posted, on the loop."""
        while self._due:
            self._due.popleft()()


class Worker:
    """A daemon thread that runs jobs in order; `pending` counts the jobs that are queued up."""

    def __init__(self, name: str, completions: Completions, *, start: bool = True) -> None:
        """Without `start` nothing runs until somebody calls `step`: how a simulation owns time."""
        self.pending = 0
        self._completions = completions
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True) if start else None
        if self._thread is not None:
            self._thread.start()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job` on the thread, then `done(result)` on the loop; an exception is raised on the loop."""
        self.pending += 1
        self._jobs.put((job, done))

    def _run(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Wait for the next job and run it; False when there will be no more."""
        item = self._jobs.get()
        if item is None:
            return False
        job, done = item
        try:
            result = job()
        except BaseException as exc:
            self._completions.post(partial(self._fail, exc))
        else:
            self._completions.post(partial(self._finish, done, result))
        return True

    @property
    def is_idle(self) -> bool:
        """Tell whether a `step` would have to wait."""
        return self._jobs.empty()

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        self.pending -= 1
        done(result)

    def _fail(self, exc: BaseException) -> None:
        self.pending -= 1
        raise exc

    def stop(self) -> None:
        """Finish the queued jobs, then end. Blocks until then."""
        self._jobs.put(None)
        if self._thread is None:
            self._run()
        else:
            self._thread.join()


class Flusher:
    """The one thread that calls fdatasync on the commit log."""

    def __init__(
        self, completions: Completions, on_flushed: Callable[[int], None], *, start: bool = True
    ) -> None:
        self._completions = completions
        self._on_flushed = on_flushed
        self._lock = threading.Lock()
        self._wake = threading.Lock()
        self._wake.acquire()
        # Idle is what the thread says it is: a wake-up from before its first look would be one too many later.
        self._idle = False
        self._stopping = False
        self._failed = False
        self._flushed = 0
        self.times = Durations(FLUSH_BOUNDS_S)
        """How long each flush took; the thread adds, anybody may look."""
        self._target: tuple[int, Sequence[MappedFile]] = (0, ())
        self._cuts: deque[tuple[MappedFile, Callable[[], None]]] = deque()
        self._thread = (
            threading.Thread(target=self._run, name="ropewalk-flusher", daemon=True) if start else None
        )
        if self._thread is not None:
            self._thread.start()

    def request(self, target: int, files: Sequence[MappedFile]) -> None:
        """Flush `files`, which hold everything not yet flushed below `target`; never blocks.

        `files` may reach further back than needed, never less far: a request replaces one not yet begun.
        """
        with self._lock:
            self._target = (target, files)
            if self._idle:
                self._idle = False
                self._wake.release()

    def lower(self, offset: int) -> None:
        """Count the log as flushed no further than `offset`, as it was cut there. No request may be under way."""
        with self._lock:
            self._flushed = min(self._flushed, offset)
            self._target = (self._flushed, ())

    def sync_cut(self, file: MappedFile, done: Callable[[], None]) -> None:
        """Sync a file from which bytes were cut, flushed or not, then call `done` on the loop; never blocks."""
        with self._lock:
            self._cuts.append((file, done))
            if self._idle:
                self._idle = False
                self._wake.release()

    def _run(self) -> None:
        while not self._failed:
            if self.step():
                continue
            with self._lock:
                if self._target[0] > self._flushed or self._cuts:
                    continue
                if self._stopping:
                    return
                self._idle = True
            self._wake.acquire()

    def step(self) -> bool:
        """Sync the next cut, or carry out the newest request; False if neither asks for more than is flushed."""
        if self._failed:
            return False
        with self._lock:
            target, files = self._target
            cut = self._cuts.popleft() if self._cuts else None
        if cut is not None:
            if not self._sync(cut[:1]):
                return False
            self._completions.post(cut[1])
            return True
        if target <= self._flushed:
            return False
        began = time.perf_counter()
        if not self._sync(files):
            return False
        self.times.add(time.perf_counter() - began)
        self._flushed = target
        self._completions.post(partial(self._on_flushed, target))
        return True

    def _sync(self, files: Sequence[MappedFile]) -> bool:
        """Sync files, the only place that does while the log is open; False if one failed, which ends the store."""
        try:
            for file in files:
                file.sync()
        except Exception as exc:  # whatever it was, the bytes cannot be called durable any more
            self._failed = True
            failure = FlushFailed(f"flushing the commit log failed ({exc}); nothing more is acknowledged")
            failure.__cause__ = exc
            self._completions.post(partial(_raise, failure))
            return False
        return True

    def stop(self) -> None:
        """Carry out the last request, then end. Blocks until then."""
        if self._thread is None:
            while self.step():
                pass
            return
        with self._lock:
            self._stopping = True
            if self._idle:
                self._idle = False
                self._wake.release()
        self._thread.join()


class Helpers:
    """A factory of a store's helper threads. A simulation hands in its own, and runs their steps itself."""

    def worker(self, name: str, completions: Completions) -> Worker:
        return Worker(name, completions)

    def flusher(self, completions: Completions, on_flushed: Callable[[int], None]) -> Flusher:
        return Flusher(completions, on_flushed)

    def pause(self) -> None:
        """Let the helpers get on: for the rare places where the loop has to wait for one."""
        time.sleep(0.001)


def _raise(exc: BaseException) -> None:
    raise exc
