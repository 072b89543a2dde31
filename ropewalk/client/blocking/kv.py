"""`Kv`: the replicated key-value store for a program that blocks.

    with Kv("127.0.0.1:9876") as kv:
        kv.put("color", "green")
        if (lock := kv.acquire("nightly", lease=10)) is not None:
            kv.put("nightly/last", "2026-11-27", guard=lock)

A write that returns was done once, whatever became of connections and leaders meanwhile. Reads see every write that was
answered before they began. Keys and values are bytes; text is taken for its UTF-8. Threads may share a `Kv`, one at a
time is served.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Concatenate, Never, ParamSpec, TypeVar

from ropewalk.client.blocking.links import BlockingLinks
from ropewalk.client.core.options import check_arguments, check_seconds, refuse_unknown
from ropewalk.client.core.steps import Steps, told_as
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.kv.core import KV_TIMEOUT_S, KvCore
from ropewalk.client.kv.results import KvLock
from ropewalk.client.machine import clock, name_servers_or_default
from ropewalk.errors import TryLater

P = ParamSpec("P")
T = TypeVar("T")


def _held(conversation: Callable[Concatenate[KvCore, P], Steps[T]]) -> Callable[Concatenate[Kv, P], T]:
    """Return a method that holds this conversation, with its parameters and its docstring."""

    @told_as(conversation)
    def method(self: Kv, /, *args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(conversation, self._core, *args, **kwargs)
        with self._lock:
            return self._links.drive(conversation(self._core, *args, **kwargs))

    return method


class Kv:
    """A client of the key-value store of one DLedger group. Use it as `with`, or `close` it.

    Keys and values are str or bytes, and str is taken for its UTF-8; what comes back is bytes: `get` returns those of
    the value, or None where there is none.

    Calls raise `OutcomeUnknown` for a write that may or may not have been done, `Unreachable`, `TryLater` or
    `TryElsewhere` where no member served it within the timeout, `Rejected` for what the store refuses (`Fenced`: the
    lock that guards a write is lost), `LocalProtocolError` for a key that it cannot take, `TypeError` for other types.
    All but the last are `RopewalkError`.
    """

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
        self._links = BlockingLinks(timeout=timeout)
        self._lock = threading.Lock()
        renew_after_fork(self)

    def _renew(self) -> None:
        """Begin a session of its own in a child process. Called after a fork."""
        self._lock = threading.Lock()
        self._core.renew()

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._links.close()

    def __enter__(self) -> Kv:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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

    def lock(
        self, name: str | bytes, *, lease: float = 10.0, wait: float = 10.0
    ) -> AbstractContextManager[KvLock]:
        """Hold a lock within a `with`. Raises `TryLater` if somebody else has it for the next `wait` seconds."""
        return self._holding(name, lease, wait)

    @contextmanager
    def _holding(self, name: str | bytes, lease: float, wait: float) -> Iterator[KvLock]:
        held = self.acquire(name, lease=lease, wait=wait)
        if held is None:
            raise TryLater(f"somebody else has the lock {name!r}")
        try:
            yield held
        finally:
            self.release(held)

    # People

    split = _held(KvCore.split)
    status = _held(KvCore.status)
