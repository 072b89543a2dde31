import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from store.io.disk import Disk, MappedFile
from store.io.workers import Completions, Flusher, FlushFailed, Worker


class Loop:
    """The receiving end: runs completions until something has happened."""

    def __init__(self) -> None:
        self.wakes = threading.Semaphore(0)
        self.completions = Completions(self.wakes.release)

    def until(self, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while True:
            self.completions.run()
            if happened():
                return
            assert self.wakes.acquire(timeout=max(0.0, deadline - time.monotonic())), "never woken"


class SlowFile:
    """A file whose sync waits for permission and counts."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.entered = threading.Semaphore(0)
        self.permission = threading.Semaphore(0)
        self.syncs = 0
        self.failure = failure

    def sync(self) -> None:
        self.entered.release()
        assert self.permission.acquire(timeout=30)
        self.syncs += 1
        if self.failure is not None:
            raise self.failure


def as_file(file: SlowFile) -> MappedFile:
    return file  # type: ignore[return-value]


# -- Worker ------------------------------------------------------------------------------------------


def test_jobs_run_in_order_and_their_results_come_back_on_the_loop() -> None:
    loop = Loop()
    worker = Worker("test", loop.completions)
    results: list[tuple[int, bool]] = []
    here = threading.get_ident()
    for number in range(100):
        worker.submit(
            partial(int, number),
            lambda result: results.append((result, threading.get_ident() == here)),
        )
    assert worker.pending == 100
    loop.until(lambda: len(results) == 100)
    assert results == [(number, True) for number in range(100)]
    assert worker.pending == 0
    worker.stop()


def test_a_failed_job_is_raised_on_the_loop_and_the_thread_goes_on() -> None:
    loop = Loop()
    worker = Worker("test", loop.completions)
    results: list[str] = []
    worker.submit(lambda: 1 // 0, results.append)
    worker.submit(lambda: "next", results.append)
    with pytest.raises(ZeroDivisionError):
        loop.until(lambda: bool(results))
    loop.until(lambda: bool(results))
    assert results == ["next"]
    assert worker.pending == 0
    worker.stop()


def test_stopping_finishes_what_was_queued() -> None:
    loop = Loop()
    worker = Worker("test", loop.completions)
    done: list[int] = []

    def job(number: int) -> int:
        time.sleep(0.002)
        return number

    for number in range(10):
        worker.submit(partial(job, number), done.append)
    worker.stop()
    loop.completions.run()
    assert done == list(range(10))


# -- Flusher -----------------------------------------------------------------------------------------


def test_one_sync_answers_for_everything_that_arrived_while_the_one_before_it_ran() -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    file = SlowFile()
    flusher.request(10, [as_file(file)])
    assert file.entered.acquire(timeout=30)
    for target in (20, 30, 40):
        flusher.request(target, [as_file(file)])
    file.permission.release(2)
    loop.until(lambda: flushed[-1:] == [40])
    assert flushed == [10, 40]
    assert file.syncs == 2
    flusher.stop()


def test_a_request_that_comes_when_the_thread_is_about_to_rest_is_not_slept_over() -> None:
    file = SlowFile()
    file.permission.release()

    class Late(Flusher):
        def step(self) -> bool:
            found = super().step()
            if not found and self._target[0] == 0:
                self.request(10, [as_file(file)])
            return found

    loop = Loop()
    flushed: list[int] = []
    flusher = Late(loop.completions, flushed.append)
    assert loop.wakes.acquire(timeout=30), "it sleeps"
    loop.completions.run()
    assert flushed == [10]
    flusher.stop()


def test_every_flush_is_timed_and_a_failed_one_is_not() -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    file = SlowFile()
    flusher.request(10, [as_file(file)])
    assert file.entered.acquire(timeout=30)
    time.sleep(0.03)
    file.permission.release()
    loop.until(lambda: flushed == [10])
    assert sum(flusher.times.counts) == 1 and flusher.times.total >= 0.03
    broken = SlowFile(OSError("no more"))
    broken.permission.release()
    flusher.request(20, [as_file(broken)])
    with pytest.raises(FlushFailed):
        loop.until(lambda: False)
    assert sum(flusher.times.counts) == 1
    flusher.stop()


def test_nothing_is_announced_before_its_sync_has_returned() -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    first, second = SlowFile(), SlowFile()
    flusher.request(10, [as_file(first), as_file(second)])
    first.permission.release()
    assert second.entered.acquire(timeout=30)
    loop.completions.run()
    assert flushed == [], "one of the two files was not synced yet"
    second.permission.release()
    loop.until(lambda: flushed == [10])
    flusher.stop()


def test_a_target_already_flushed_costs_no_sync() -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    file = SlowFile()
    file.permission.release(10)
    flusher.request(10, [as_file(file)])
    loop.until(lambda: flushed == [10])
    flusher.request(10, [as_file(file)])
    flusher.request(5, [as_file(file)])
    flusher.stop()
    loop.completions.run()
    assert flushed == [10]
    assert file.syncs == 1


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), ValueError("closed")])
def test_a_failed_flush_reaches_the_loop_and_nothing_is_flushed_after_it(failure: Exception) -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    broken, good = SlowFile(failure), SlowFile()
    broken.permission.release()
    good.permission.release(10)
    flusher.request(10, [as_file(broken)])
    with pytest.raises(FlushFailed, match="nothing more is acknowledged") as info:
        loop.until(lambda: bool(flushed))
    assert info.value.__cause__ is failure
    flusher.request(20, [as_file(good)])  # a retry that succeeds would be a lie
    flusher.stop()
    loop.completions.run()
    assert flushed == []
    assert good.syncs == 0


def test_stopping_carries_out_the_last_request() -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    file = SlowFile()
    flusher.request(10, [as_file(file)])
    assert file.entered.acquire(timeout=30)
    flusher.request(20, [as_file(file)])
    file.permission.release(2)
    flusher.stop()
    loop.completions.run()
    assert flushed == [10, 20]


def test_an_idle_flusher_stops_at_once() -> None:
    loop = Loop()
    Flusher(loop.completions, lambda _target: None).stop()


def test_requests_from_a_busy_loop_are_never_lost(tmp_path: Path) -> None:
    loop = Loop()
    flushed: list[int] = []
    flusher = Flusher(loop.completions, flushed.append)
    file = Disk().allocate(tmp_path / "file", 4096)
    for target in range(1, 300):
        flusher.request(target, [file])
        if target % 7 == 0:
            time.sleep(0.0003)
    loop.until(lambda: flushed[-1:] == [299])
    assert flushed == sorted(set(flushed))
    flusher.stop()
    file.close()
