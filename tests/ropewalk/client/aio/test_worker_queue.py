"""Workers share what arrives: as many as wait for something, and no more than are needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ropewalk.client.aio.worker_queue import WorkerQueue
from tests.support.waiting import until_async

Run = Callable[[Callable[[], Awaitable[None]]], None]


def test_handlers_that_wait_run_in_as_many_workers_as_there_are(run: Run) -> None:
    async def story() -> None:
        handoff = WorkerQueue[int]()
        at_work, most, done = 0, 0, 0

        async def work() -> None:
            nonlocal at_work, most, done
            while True:
                await handoff.get()
                at_work += 1
                most = max(most, at_work)
                await anyio.sleep(0.01)
                at_work -= 1
                done += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            handoff.put(range(10))
            await until_async(lambda: done == 10)
            assert most == 5 and at_work == 0 and not len(handoff)
            tasks.cancel_scope.cancel()

    run(story)


def test_handlers_that_do_not_wait_leave_the_other_workers_asleep(run: Run) -> None:
    async def story() -> None:
        handoff = WorkerQueue[int]()
        taken: list[tuple[int, int]] = []
        woken: set[int] = set()

        async def work(number: int) -> None:
            while True:
                item = await handoff.get()
                woken.add(number)
                taken.append((number, item))

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(work, number)
            for begin in (0, 100):
                await anyio.wait_all_tasks_blocked()
                woken.clear()
                handoff.put(range(begin, begin + 100))
                await anyio.wait_all_tasks_blocked()
                assert len(woken) == 1
            tasks.cancel_scope.cancel()
        assert [item for _, item in taken] == list(range(200))

    run(story)


def test_a_worker_that_is_cancelled_as_it_is_woken_loses_nothing(run: Run) -> None:
    async def story() -> None:
        handoff = WorkerQueue[str]()
        taken: list[str] = []

        async def take_one() -> None:
            taken.append(await handoff.get())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_one)
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(take_one)
                await anyio.wait_all_tasks_blocked()
                handoff.put(["first"])  # wakes the one that came last
                leaving.cancel_scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert taken == ["first"]  # by whichever of the two: loops differ
            handoff.put(["second"])
            await anyio.wait_all_tasks_blocked()
            assert len(taken) + len(handoff) == 2
            tasks.cancel_scope.cancel()

    run(story)
