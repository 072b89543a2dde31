"""`AsyncKv`: the replicated key-value store for a program that runs on trio or asyncio.

    async with AsyncKv("127.0.0.1:9876") as kv:
        await kv.put("color", "green")
        async with kv.lock("nightly", lease=10) as lock:
            await kv.put("nightly/last", "2026-11-27", guard=lock)

It promises what `Kv` does. Tasks may share an `AsyncKv`, and their calls are under way at the same time: what they ask
in one turn of the loop leaves in one request, reads and writes apart (`batching`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Final, Never, ParamSpec, TypeVar

import anyio

from ropewalk.client.aio.kv.gathering import Gathering
from ropewalk.client.aio.lifespan import Lifespan
from ropewalk.client.aio.links import AsyncLinks
from ropewalk.client.core.options import check_arguments, check_seconds, refuse_unknown
from ropewalk.client.core.steps import Steps, told_as
from ropewalk.client.kv.core import KV_TIMEOUT_S, KvCore
from ropewalk.client.kv.operations import (
    Text,
    checked_key,
    compare_and_put_of,
    counted,
    delete_of,
    keys_of,
    put_if_absent_of,
    put_of,
    sequence_of,
    swapped,
)
from ropewalk.client.kv.results import KvLock
from ropewalk.client.machine import clock, name_servers_or_default
from ropewalk.errors import LocalProtocolError, RopewalkError, TryLater
from ropewalk.format.kv.items import Operation, Result, refusal_of, size_of

BATCH_COUNT: Final = 100
BATCH_BYTES: Final = 32 << 10

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def _held(
    conversation: Callable[Concatenate[KvCore, P], Steps[T]],
) -> Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]]:
    """Return a method that holds this conversation, with its parameters and its docstring."""

    @told_as(conversation)
    async def method(self: AsyncKv, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(conversation, self._core, *args, **kwargs)
        self._lifespan.require_open()
        return await self._hold(conversation(self._core, *args, **kwargs))

    return method


def _gathered(
    conversation: Callable[Concatenate[KvCore, P], Steps[T]],
) -> Callable[
    [Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]]],
    Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]],
]:
    """Return a decorator for the way of a call that leaves with others; it holds the conversation where it must not."""
    alone = _held(conversation)

    def decorate(
        together: Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[AsyncKv, P], Coroutine[Any, Any, T]]:
        @told_as(conversation)
        async def method(self: AsyncKv, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if not self._batching or kwargs.get("guard") is not None:
                return await alone(self, *args, **kwargs)
            check_arguments(conversation, self._core, *args, **kwargs)
            self._lifespan.require_open()
            return await together(self, *args, **kwargs)

        return method

    return decorate


class AsyncKv:
    """A client of the key-value store of one DLedger group. Use it as `async with`, or `start` and `close` it.

    Keys and values are str or bytes, and str is taken for its UTF-8; what comes back is bytes: `get` returns those of
    the value, or None where there is none.

    Calls raise `OutcomeUnknown` for a write that may or may not have been done, `Unreachable`, `TryLater` or
    `TryElsewhere` where no member served it within the timeout, `Rejected` for what the store refuses (`Fenced`: the
    lock that guards a write is lost), `LocalProtocolError` for a key that it cannot take, `NotOpen` outside
    `async with`, `TypeError` for other types. All but the last are `RopewalkError`.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        broker: str | None = None,
        timeout: float = KV_TIMEOUT_S,
        batching: bool = True,
        **unknown: Never,
    ) -> None:
        """Make it without connecting.

        name_servers: as in "host:port;host:port"; ROPEWALK_NAMESRV_ADDR or NAMESRV_ADDR if absent, else a local one.
        broker: the name of the group, where several have a key-value store.
        timeout: seconds for a whole call, its attempts at other members included.
        batching: gather what tasks ask in one turn of the event loop, up to 100 calls or 32 KiB, into one request.

        Raises `BadAddress` when the list of name servers cannot be read, `TypeError` and `ValueError` for options that
        mean nothing.
        """
        refuse_unknown(unknown, ("name_servers", "broker", "timeout", "batching"))
        check_seconds("timeout", timeout)
        self._core = KvCore(
            name_servers_or_default(name_servers),
            clock=clock,
            timeout_s=timeout,
            broker=broker,
            start=os.getpid(),
        )
        self._timeout = timeout
        self._batching = batching
        self._links: AsyncLinks | None = None
        self._reads: Gathering[bytes, bytes | None]
        self._old_reads: Gathering[bytes, bytes | None]
        self._writes: Gathering[Operation, Result]
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
        async with AsyncLinks.open(timeout=self._timeout) as self._links, anyio.create_task_group() as tasks:
            self._reads = Gathering(tasks, self._read_each, count_max=BATCH_COUNT, size_max=BATCH_BYTES)
            self._old_reads = Gathering(
                tasks, self._read_each_unsafe, count_max=BATCH_COUNT, size_max=BATCH_BYTES
            )
            self._writes = Gathering(tasks, self._write_each, count_max=BATCH_COUNT, size_max=BATCH_BYTES)
            yield
            tasks.cancel_scope.cancel()

    async def _hold(self, conversation: Steps[T]) -> T:
        assert self._links is not None, "open from the first moment to the last"
        return await self._links.drive(conversation)

    async def _read_each(self, keys: Sequence[bytes]) -> Sequence[bytes | RopewalkError | None]:
        return await self._by_region(keys, keys, self._core.read_each)

    async def _read_each_unsafe(self, keys: Sequence[bytes]) -> Sequence[bytes | RopewalkError | None]:
        return await self._by_region(keys, keys, partial(self._core.read_each, unsafe=True))

    async def _write_each(self, operations: Sequence[Operation]) -> Sequence[Result | RopewalkError]:
        keys = [keys_of(each)[0] for each in operations]
        return await self._by_region(keys, operations, self._core.write_each)

    async def _by_region(
        self, keys: Sequence[bytes], items: Sequence[T], ask: Callable[[Sequence[T]], Steps[Sequence[R]]]
    ) -> list[R | RopewalkError]:
        """Ask each region for its part of the items, all at once; return the outcomes in order."""
        outcomes: dict[int, R | RopewalkError] = {}

        async def part(places: list[int]) -> None:
            try:
                found = await self._hold(ask([items[at] for at in places]))
                outcomes.update(zip(places, found, strict=True))
            except RopewalkError as exc:
                outcomes.update(dict.fromkeys(places, exc))

        async with anyio.create_task_group() as tasks:
            for places in self._core.apart(keys):
                tasks.start_soon(part, places)
        return [outcomes[at] for at in range(len(items))]

    async def _gather(self, operation: Operation) -> Result:
        if (why := refusal_of([operation])) is not None:
            raise LocalProtocolError(why)
        return await self._writes.call(operation, size_of(operation))

    # Reads

    @_gathered(KvCore.get)
    async def get(self, key: Text, *, unsafe: bool = False) -> bytes | None:
        asked = checked_key(key)
        return await (self._old_reads if unsafe else self._reads).call(asked, len(asked))

    multi_get = _held(KvCore.multi_get)
    scan = _held(KvCore.scan)

    # Writes

    @_gathered(KvCore.put)
    async def put(self, key: Text, value: Text, *, guard: KvLock | None = None) -> None:
        await self._gather(put_of(key, value))

    @_gathered(KvCore.put_if_absent)
    async def put_if_absent(self, key: Text, value: Text) -> bytes | None:
        return swapped(await self._gather(put_if_absent_of(key, value))).value

    @_gathered(KvCore.compare_and_put)
    async def compare_and_put(self, key: Text, expect: Text | None, value: Text | None) -> bool:
        return bool(swapped(await self._gather(compare_and_put_of(key, expect, value))).done)

    @_gathered(KvCore.delete)
    async def delete(self, key: Text) -> bool:
        return counted(await self._gather(delete_of(key))) > 0

    @_gathered(KvCore.sequence)
    async def sequence(self, name: Text, count: int = 1) -> range:
        first = counted(await self._gather(sequence_of(name, count)))
        return range(first, first + count)

    delete_range = _held(KvCore.delete_range)
    batch = _held(KvCore.batch)

    # Locks

    acquire = _held(KvCore.acquire)
    renew_lock = _held(KvCore.renew_lock)
    release = _held(KvCore.release)

    def lock(
        self, name: str | bytes, *, lease: float = 10.0, wait: float = 10.0
    ) -> AbstractAsyncContextManager[KvLock]:
        """Hold a lock within an `async with`. Raises `TryLater` if another one has it for the next `wait` seconds."""
        return self._holding(name, lease, wait)

    @asynccontextmanager
    async def _holding(self, name: str | bytes, lease: float, wait: float) -> AsyncIterator[KvLock]:
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
