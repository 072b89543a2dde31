"""An event loop in a thread, which holds one async client open for a program that has no loop.

The thread is a daemon: a program that ends without `close` ends. Nothing here is a generator that somebody would have
to finish: in a child process of a fork the thread is gone, and the object is simply let go.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio
import trio.abc
from anyio.from_thread import BlockingPortal

from ropewalk.client.core.connection import NotOpen
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.machine import clock, own_client_id

T = TypeVar("T")


class Startable(Protocol):
    """An async client."""

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know it."""

    async def start(self) -> None:
        """Open it."""

    async def close(self) -> None:
        """Close it."""


C = TypeVar("C", bound=Startable)


class _Clock(trio.abc.Clock):
    """The time of `clock`, which goes on where a test has frozen the time."""

    def start_clock(self) -> None: ...

    def current_time(self) -> float:
        return clock()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return deadline - clock()


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
            anyio.run(self._live, backend="trio", backend_options={"clock": _Clock()})
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


class LoopClient(Generic[C]):
    """A client whose methods block, over an async one in a thread. Use it as `with`, or `start` and `close` it."""

    def __init__(self, make: Callable[[str | None], C], client_id: str | None, name: str) -> None:
        """Make it without connecting. `make` builds the async client under a client id, or under one of its own."""
        self._make = make
        self._given_id = client_id
        self._name = name
        self._client = make(client_id)
        self._thread: LoopThread | None = None
        renew_after_fork(self)

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client."""
        return self._client.client_id

    def start(self) -> None:
        """Connect and join the group: from now on the broker's messages or checks arrive.

        Raises what the async client's `start` raises; `NotOpen` the second time.
        """
        thread = LoopThread(self._client, self._name)
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Let the handlers that are at work finish, leave the group and hang up. Closing twice is harmless."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()

    def _renew(self) -> None:
        """Begin anew in a child process: not started, and another client. The parent goes on as it was."""
        self._thread = None
        self._client = self._make(own_client_id(self._given_id))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
