"""Work on a thread that gives way to everybody: it ends, or is taken back wherever it gives way."""

import os
import select
import threading
from collections.abc import Callable

import pytest

from store.io import idle_worker as idle
from store.io.idle_worker import GiveWay, IdlePriorityWorker


def until_ended(worker: IdlePriorityWorker) -> None:
    while worker.is_busy:
        assert select.select([worker.ended], [], [], 120)[0]


def test_work_is_done_in_the_idle_class_and_ends() -> None:
    worker, seen = IdlePriorityWorker(), list[int]()

    def work(give_way: GiveWay) -> None:
        for _ in range(3):
            give_way()
            seen.append(os.sched_getscheduler(0))

    for _ in range(2):
        worker.begin(work)
        until_ended(worker)
        worker.reclaim()
    assert seen == [os.SCHED_IDLE] * 6
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_what_work_raises_is_raised_where_it_is_taken_back() -> None:
    worker = IdlePriorityWorker()

    def work(_give_way: GiveWay) -> None:
        raise OSError("no room")

    worker.begin(work)
    until_ended(worker)
    with pytest.raises(OSError, match="no room"):
        worker.reclaim()
    worker.reclaim()


def test_work_that_was_taken_back_does_nothing_more_and_what_comes_next_is_done_when_it_has_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gave_way, may_run = threading.Semaphore(0), threading.Event()

    def give_way() -> None:
        gave_way.release()
        assert may_run.wait(30)

    monkeypatch.setattr(idle, "_yield", give_way)
    worker, done = IdlePriorityWorker(), list[str]()

    def work(name: str) -> Callable[[GiveWay], None]:
        def work(give_way: GiveWay) -> None:
            done.append(name)
            give_way()
            done.append(f"{name} went on")

        return work

    worker.begin(work("first"))
    assert gave_way.acquire(timeout=120)
    worker.reclaim()
    worker.begin(work("never begun"))
    worker.reclaim()
    worker.begin(work("last"))
    assert worker.is_busy and done == ["first"]
    may_run.set()
    until_ended(worker)
    assert done == ["first", "last", "last went on"]
