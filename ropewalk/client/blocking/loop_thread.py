"""An event loop in a thread, which holds one async client open for a program that has no loop.

The thread is a daemon: a program that ends without `close` ends. Nothing here is a generator that somebody would have
to finish: in a child process of a fork the thread is gone, and the object is simply let go.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from ropewalk.client.core.connection import NotOpen

T = TypeVar("T")


class Startable(Protocol):
    """An async client."""

    async def start(self) -> None:
        """Open it."""

    async def close(self) -> None:
        """Close it."""


class LoopThread:
    """A thread that opens a client, lives as long as it is open, and closes it."""

    def __init__(self, client: Startable, name: str) -> None:
        """Make it without starting it."""
        self._client = client
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._portal: BlockingPortal | None = None

    def start(self) -> None:
        """Open the client, and return when it is open. Raises what its `start` raises."""
        self._thread.start()
        self._begun.wait()
        self._raise_failure()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine function in the loop and return its result. Raises `NotOpen` when the loop is gone."""
        if self._portal is None:
            raise NotOpen("its event loop has ended")
        return self._portal.call(function)

    def close(self) -> None:
        """Close the client, and return when the thread has ended. Raises what its `close` raises."""
        if self._portal is not None:
            self._portal.start_task_soon(self._leave.set)
        self._thread.join()
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        try:
            anyio.run(self._live, backend="trio")
        except BaseException as exc:
            self._failure = exc  # raised by whoever started it, or closes it
        finally:
            self._portal = None
            self._begun.set()

    async def _live(self) -> None:
        await self._client.start()  # outside of the portal, whose task group would wrap what it raises
        try:
            self._leave = anyio.Event()
            async with BlockingPortal() as portal:
                self._portal = portal
                self._begun.set()
                await self._leave.wait()
        finally:
            self._portal = None
            await self._client.close()
