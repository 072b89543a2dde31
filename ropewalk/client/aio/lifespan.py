"""The life of a client inside an event loop: opened by one task, used by many, closed by any.

    start()   a task of the client's own enters its course, an async context manager, and waits
    close()   lets it leave in order; `hurried`, it is cancelled where it stands, and cleans up no less

The course runs in a task of its own because task groups and cancel scopes belong to the task that entered them, and
the set-up and tear-down of a pytest fixture or of a web application are different tasks. Under asyncio that is a task
of the loop, under trio a system task; either ends with its loop, if nobody closed it.

What ends the course by itself is kept in `failure` and raised by `close`: nothing ends unheard.

A client that a fork has copied is not open: the loop it lives in stayed behind. Nor is it in another event loop than
the one that it was opened in: what it would wait for there comes from the other one, and wakes nobody.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import anyio

from ropewalk.client.core.connection import NotOpen
from ropewalk.client.log import logger


def running_loop() -> object:
    """Return the identity of the event loop that runs here. Raises `RuntimeError` where none does."""
    if in_trio():
        return sys.modules["trio"].lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def in_trio() -> bool:
    """Return True in a task of trio."""
    trio = sys.modules.get("trio")  # a program on trio has imported it
    return trio is not None and bool(trio.lowlevel.in_trio_task())


class Lifespan:
    """A course that is entered once and left once."""

    def __init__(self, kind: str, course: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """Make one that has not begun. `kind` is what errors call the client, as in "producer"."""
        self.kind = kind
        self.state: str = "new"
        """new, starting, open, closed."""
        self.failure: BaseException | None = None
        """The exception that ended the task by itself, kept to be raised later."""
        self._heard = False
        self._course = course
        self._pid = 0
        self._loop: object = None
        """The event loop that it was opened in."""
        self._task: object = None
        """The asyncio task, which the loop itself would let go."""

    @property
    def is_open(self) -> bool:
        return self.state == "open" and self._pid == os.getpid()

    def require_open(self) -> None:
        """Return if the client may be used here. Raises `NotOpen`."""
        if self.state == "open":
            if self._pid == os.getpid():
                self._require_loop()
                return
            raise NotOpen(
                f"this {self.kind} was opened by process {self._pid} and forked into {os.getpid()}: "
                "open one in each process"
            )
        if self.state == "closed":
            why = f": {self.failure!r}" if self.failure is not None else ""
            raise NotOpen(f"this {self.kind} was closed{why}")
        raise NotOpen(f"this {self.kind} is not open: use it as `async with`, or await its start()")

    async def start(self) -> None:
        """Enter the course. Raises what that raises, and `NotOpen` for one that was opened before."""
        if self.state != "new":
            raise NotOpen(f"a {self.kind} is opened once: make another one")
        self._loop = running_loop()
        self.state = "starting"
        self._pid = os.getpid()
        self._scope = anyio.CancelScope()
        self._begun = anyio.Event()
        self._leave = anyio.Event()
        self._ended = anyio.Event()
        self._spawn(self._live)
        try:
            await self._begun.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._end(hurried=True)
            raise
        if self.state == "closed":
            self._raise_failure()

    async def wait(self) -> None:
        """Return when the course is over, by `close` or by a failure."""
        await self._ended.wait()

    async def close(self, *, hurried: bool = False) -> None:
        """Leave the course and return when it is over. Raises what ended it, once; closing twice is harmless.

        Raises `NotOpen` in another event loop than its own.
        """
        if self._pid != os.getpid() or self.state == "new":
            self.state = "closed"
            return
        if self.state != "closed":
            self._require_loop()
        try:
            await self._end(hurried=hurried)
        except BaseException:
            self._scope.cancel()  # whoever closes is cancelled: then it ends in a hurry, but not alone
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise
        self._raise_failure()

    async def leave(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close at the end of a block. One that ends by an exception does not wait for what is pending."""
        if kind is None:
            await self.close()
            return
        with anyio.CancelScope(shield=True):
            try:
                await self.close(hurried=True)
            except Exception as failure:
                logger().warning(f"{self.kind} failed while it was closed", reason=repr(failure))

    def _require_loop(self) -> None:
        if running_loop() is not self._loop:
            raise NotOpen(
                f"this {self.kind} was opened in another event loop: use and close it there, or open one in each loop "
                "(each `asyncio.run` and each `trio.run` is a loop of its own)"
            )

    def _raise_failure(self) -> None:
        if self.failure is not None and not self._heard:
            self._heard = True
            raise self.failure

    async def _end(self, *, hurried: bool) -> None:
        self._leave.set()
        if hurried:
            self._scope.cancel()
        await self._ended.wait()

    async def _live(self) -> None:
        try:
            with self._scope:
                async with self._course():
                    self.state = "open"
                    self._begun.set()
                    await self._leave.wait()
        except BaseException as exc:
            # Nobody awaits this task. Its end is told by `start` or `close`, and to the log.
            if not isinstance(exc, anyio.get_cancelled_exc_class()):
                self.failure = _alone(exc)
                if self._begun.is_set() and not self._leave.is_set():
                    logger().error(f"{self.kind} ended", reason=repr(self.failure), exc_info=exc)
            else:
                raise
        finally:
            self.state = "closed"
            self._begun.set()
            self._ended.set()

    def _spawn(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if in_trio():
            trio = sys.modules["trio"]
            context = contextvars.copy_context()
            trio.lowlevel.spawn_system_task(run, name=f"ropewalk {self.kind}", context=context)
        else:
            self._task = asyncio.create_task(run(), name=f"ropewalk {self.kind}")


def _alone(exc: BaseException) -> BaseException:
    """Return the exception that task groups have wrapped, if it is a single one."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc
