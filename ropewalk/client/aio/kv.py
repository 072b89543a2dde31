"""`AsyncKv`: the replicated key-value store for a program that runs on trio or asyncio.

    async with AsyncKv("127.0.0.1:9876") as kv:
        await kv.put("color", "green")
        async with kv.lock("nightly", lease=10) as lock:
            await kv.put("nightly/last", "2026-11-27", guard=lock)

It promises what `Kv` does. Tasks may share an `AsyncKv`, and their calls are under way at the same time.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Never, ParamSpec, TypeVar

from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.options import check_arguments, check_seconds, refuse_unknown
from ropewalk.client.core.steps import Steps
from ropewalk.client.kv.core import KV_TIMEOUT_S, KvCore, KvLock, Text
from ropewalk.client.machine import clock, name_servers_or_default
from ropewalk.errors import TryLater

P = ParamSpec("P")
T = TypeVar("T")


def _held(
    conversation: Callable[Concatenate[KvCore, P], Steps[T]],
) -> Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]]:
    """Return a method that holds this conversation, with its parameters and its docstring."""

    @wraps(conversation)
    async def method(self: AsyncKv, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(conversation, self._core, *args, **kwargs)
        self._lifespan.require_open()
        assert self._links is not None, "open from the first moment to the last"
        return await self._links.drive(conversation(self._core, *args, **kwargs))

    return method


class AsyncKv:
    """A client of the key-value store of one DLedger group. Use it as `async with`, or `start` and `close` it."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        broker: str | None = None,
        timeout: float = KV_TIMEOUT_S,
        **unknown: Never,
    ) -> None:
        """Make it without connecting.

        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        broker: the name of the group, where several have a key-value store.
        timeout: seconds for a whole call, its attempts at other members included.

        Raises `BadAddress` when the list of name servers cannot be read, `TypeError` and `ValueError` for options that
        mean nothing.
        """
        refuse_unknown(unknown, ("name_servers", "broker", "timeout"))
        check_seconds("timeout", timeout)
        self._core = KvCore(
            name_servers_or_default(name_servers),
            clock=clock,
            timeout_s=timeout,
            broker=broker,
            start=os.getpid(),
        )
        self._timeout = timeout
        self._links: AsyncLinks | None = None
        self._lifespan = Lifespan("key-value client", self._run)

    async def start(self) -> None:
        """Open it in the running event loop; any task may use it from now on. Raises `NotOpen` the second time."""
        await self._lifespan.start()

    async def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        await self._lifespan.close()

    async def __aenter__(self) -> AsyncKv:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifespan.leave(kind, exc, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        async with AsyncLinks.open(timeout=self._timeout) as self._links:
            yield

    # Reads

    get = _held(KvCore.get)
    multi_get = _held(KvCore.multi_get)
    scan = _held(KvCore.scan)

    # Writes

    put = _held(KvCore.put)
    put_if_absent = _held(KvCore.put_if_absent)
    compare_and_put = _held(KvCore.compare_and_put)
    delete = _held(KvCore.delete)
    delete_range = _held(KvCore.delete_range)
    batch = _held(KvCore.batch)
    sequence = _held(KvCore.sequence)

    # Locks

    acquire = _held(KvCore.acquire)
    renew_lock = _held(KvCore.renew_lock)
    release = _held(KvCore.release)

    @asynccontextmanager
    async def lock(self, name: Text, *, lease: float = 10.0, wait: float = 10.0) -> AsyncIterator[KvLock]:
        """Hold a lock within an `async with`. Raises `TryLater` if another one has it for the next `wait` seconds."""
        held = await self.acquire(name, lease=lease, wait=wait)
        if held is None:
            raise TryLater(f"somebody else has the lock {name!r}")
        try:
            yield held
        finally:
            await self.release(held)

    # People

    split = _held(KvCore.split)
    status = _held(KvCore.status)
