"""Conversations over anyio: a connection to each address that is talked to, opened when needed, shared by all tasks.

    async with AsyncLinks.open() as links:
        route = await links.drive(directory.route("orders"))

Connections outlive the cancellation of the block that opened them by as much as its clean-up needs: a consumer that
is cancelled still wants to commit. They are gone when the block is left. A conversation that is cancelled is closed
where it stands; what it asked is forgotten.

A connection is dialled and held by a task of its own, and never in the scope of a caller, which may be cancelled at any
moment: the caller waits for the dial as others do, and one that goes away leaves it to them.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from ropewalk.client.aio.connection import (
    TIMEOUT_S,
    AsyncConnection,
    AsyncPeerRequestHandler,
    open_connection,
)
from ropewalk.client.core.connection import Unreachable, refuse_peer_request
from ropewalk.client.core.steps import (
    Ask,
    AskAny,
    AwaitPrefetched,
    Effect,
    Oneway,
    Outcome,
    Pause,
    Prefetch,
    Reply,
    Steps,
    T,
)
from ropewalk.client.log import Troubles
from ropewalk.errors import OutcomeUnknown, RopewalkError
from ropewalk.format.remoting import Command

OnRequest = AsyncPeerRequestHandler


class _Ahead:
    """An answer on its way, and what it came to."""

    __slots__ = ("arrived", "outcome")

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.outcome: Outcome | None = None


class _Dial:
    """A connection that is being made, for all who wait for it."""

    __slots__ = ("connection", "ended", "failure")

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.connection: AsyncConnection | None = None
        self.failure = "the client was closed meanwhile"
        """Why there is none, once it has ended."""


class AsyncLinks:
    """A carrier of conversations over anyio connections. Made by `open`."""

    def __init__(
        self, tasks: TaskGroup, timeout: float, on_request: OnRequest, troubles: Troubles | None
    ) -> None:
        self._troubles = troubles
        self._tasks = tasks
        self._timeout = timeout
        self._on_request = on_request
        self._connections: dict[str, AsyncConnection] = {}
        self._dials: dict[str, _Dial] = {}
        self._ahead: dict[int, _Ahead] = {}
        self._tickets = itertools.count()
        self._closed = False

    @staticmethod
    @asynccontextmanager
    async def open(
        *,
        timeout: float = TIMEOUT_S,
        on_request: OnRequest = refuse_peer_request,
        troubles: Troubles | None = None,
    ) -> AsyncIterator[AsyncLinks]:
        """Open them.

        `timeout` seconds bound each connect; `on_request` answers brokers' requests, and must not block.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            links = AsyncLinks(tasks, timeout, on_request, troubles)
            try:
                yield links
            except Exception as exc:
                # Kept out of the task group, which would wrap it.
                failure = exc
            finally:
                links._hang_up()
        if failure is not None:
            raise failure

    async def drive(self, steps: Steps[T]) -> T:
        """Hold a conversation to its end, and return its result or raise its exception."""
        reply: Reply = None
        failure: RopewalkError | None = None
        try:
            while True:
                effect = steps.send(reply) if failure is None else steps.throw(failure)
                reply, failure = None, None
                try:
                    reply = await self._carry_out(effect)
                except RopewalkError as exc:
                    failure = exc
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()

    async def _carry_out(self, effect: Effect) -> Reply:
        if type(effect) is Ask:  # HOT: all but a few, and nearly always over a connection that is there
            there = self._connections.get(effect.address)
            if there is not None and not there.closed:
                return await there.call(effect.command, effect.timeout_s)
            return await self._ask(effect)
        match effect:
            case Oneway(address, command, timeout_s):
                await (await self._connection_within(address, timeout_s)).oneway(command)
                return None
            case Pause(seconds):
                await anyio.sleep(seconds)
                return None
            case AskAny(asks):
                return await self._first_of(asks)
            case Prefetch(ask):
                ticket, ahead = next(self._tickets), _Ahead()
                self._ahead[ticket] = ahead
                self._tasks.start_soon(self._fetch_ahead, ask, ahead)
                return ticket
            case AwaitPrefetched(ticket, timeout_s):
                ahead = self._ahead.pop(ticket)
                with anyio.move_on_after(timeout_s):
                    await ahead.arrived.wait()
                if ahead.outcome is None:
                    raise OutcomeUnknown(f"no answer within {timeout_s:g} s")
                if isinstance(ahead.outcome, RopewalkError):
                    raise ahead.outcome
                return ahead.outcome
        raise AssertionError(f"no shell knows {effect!r}")

    async def _fetch_ahead(self, ask: Ask, ahead: _Ahead) -> None:
        try:
            ahead.outcome = await self._ask(ask)
        except RopewalkError as exc:
            ahead.outcome = exc
        ahead.arrived.set()

    async def _first_of(self, asks: tuple[Ask, ...]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}

        async def one(place: int, ask: Ask) -> None:
            try:
                outcomes[place] = await self._ask(ask)
            except RopewalkError as exc:
                outcomes[place] = exc
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for place, ask in enumerate(asks):
                tasks.start_soon(one, place, ask)
        return outcomes

    async def _ask(self, ask: Ask) -> Command:
        """Connect if need be, and ask, all within the time of the request."""
        began = anyio.current_time()
        connection = await self._connection_within(ask.address, ask.timeout_s)
        left = ask.timeout_s - (anyio.current_time() - began)
        if left <= 0:
            raise Unreachable(f"no connection to {ask.address} within {ask.timeout_s:g} s")
        return await connection.call(ask.command, left)

    async def _connection_within(self, address: str, timeout_s: float) -> AsyncConnection:
        with anyio.move_on_after(timeout_s):
            return await self._connection(address)
        raise Unreachable(f"cannot connect to {address} within {timeout_s:g} s")

    async def _connection(self, address: str) -> AsyncConnection:
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        dial = self._dials.get(address)
        if dial is None:
            dial = _Dial()
            self._tasks.start_soon(self._hold, address, dial)
            self._dials[address] = dial
        await dial.ended.wait()
        if dial.connection is None:
            raise Unreachable(dial.failure)
        return dial.connection

    async def _hold(self, address: str, dial: _Dial) -> None:
        """Make a connection, and hold it until the peer or `_hang_up` ends it."""
        try:
            with anyio.CancelScope() as scope:
                async with open_connection(
                    address, timeout=self._timeout, on_request=self._on_request
                ) as connection:
                    scope.shield = True  # only `_hang_up` or the peer ends it from here on
                    if not self._closed:
                        dial.connection = self._connections[address] = connection
                        self._end_dial(address, dial)
                        await self._until_closed(address, connection)
        except (
            RopewalkError
        ) as exc:  # an address that is none, of a peer's choice, is one that cannot be reached
            dial.failure = str(exc)
            if self._troubles is not None:
                self._troubles.began(("address", address), exc, "not connected", address=address)
        finally:
            self._end_dial(address, dial)

    def _end_dial(self, address: str, dial: _Dial) -> None:
        """Wake those who wait for a dial; the next one who asks after a failure begins another."""
        dial.ended.set()
        if self._dials.get(address) is dial:
            del self._dials[address]

    async def _until_closed(self, address: str, connection: AsyncConnection) -> None:
        if self._troubles is not None:
            self._troubles.ended(("address", address), "connected again", address=address)
        await connection.wait_closed()
        if self._troubles is not None and connection.lost_count and self._is_open:
            self._troubles.began(
                ("address", address), connection.closed_because, "connection lost", address=address,
                unanswered=connection.lost_count,
            )  # fmt: skip

    @property
    def _is_open(self) -> bool:
        return not self._closed

    def _hang_up(self) -> None:
        self._closed = True
        for connection in self._connections.values():
            connection.close()
        self._tasks.cancel_scope.cancel()
