"""The program's plain functions in threads: what they return and raise, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio
import pytest

from ropewalk.client.aio.threads import in_thread

Run = Callable[[Callable[[], Awaitable[None]]], None]

VALUE: ContextVar[str] = ContextVar("VALUE", default="none")


class Stop(BaseException):
    pass


def test_a_function_returns_and_raises_as_if_it_were_called_here(run: Run) -> None:
    def fail(exc: BaseException) -> None:
        raise exc

    async def story() -> None:
        VALUE.set("mine")
        limiter = anyio.CapacityLimiter(1)
        assert await in_thread(VALUE.get, limiter) == "mine"
        assert await in_thread(lambda: threading.current_thread().daemon, limiter)
        for exc in (KeyError("x"), SystemExit(3), Stop()):
            with pytest.raises(type(exc)):
                await in_thread(lambda exc=exc: fail(exc), limiter)  # type: ignore[misc]
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_thread(lambda: next(iter(())), limiter)

    run(story)


def test_no_more_functions_run_than_the_limiter_lets_in(run: Run) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1

    async def story() -> None:
        limiter = anyio.CapacityLimiter(3)
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(in_thread, work, limiter)

    run(story)
    assert 1 <= most[0] <= 3


def test_a_cancellation_leaves_a_function_behind(run: Run) -> None:
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        over.wait()
        ended.set()

    async def story() -> None:
        limiter = anyio.CapacityLimiter(10)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_thread, hang, limiter)
            await in_thread(begun.wait, limiter)
            tasks.cancel_scope.cancel()
        assert not ended.is_set()

    try:
        run(story)
    finally:
        over.set()
    assert ended.wait(30), "it goes on, and tells a loop that is gone without a fault"
