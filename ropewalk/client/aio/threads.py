"""The program's plain functions, run in threads that delay no close and no end of the program.

A function that blocks cannot be stopped. So a cancellation leaves it behind, in a daemon thread: neither the close of
its client nor the end of the program waits for it, under trio and under asyncio alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from ropewalk.client.aio.lifespan import in_trio

T = TypeVar("T")


async def in_thread(function: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
    """Run a function in a thread; return its result, or raise its exception. A cancellation does not wait for it."""
    if in_trio():
        return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=limiter)
    from trio.lowlevel import start_thread_soon  # its threads, without its loop

    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Callable[[], T]] = loop.create_future()

    def tell(result: Callable[[], T]) -> None:
        if not ended.done():
            ended.set_result(result)

    def deliver(result: Callable[[], T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result)

    async with limiter or contextlib.nullcontext():
        # anyio's own threads under asyncio are waited for when the program ends.
        run = partial(contextvars.copy_context().run, function)
        start_thread_soon(run, lambda outcome: deliver(outcome.unwrap))
        return (await ended)()
