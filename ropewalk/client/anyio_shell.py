"""The anyio shell: one core over one stream, for programs that run on trio or asyncio.

    async with open_connection("127.0.0.1:9876") as connection:
        answer = await connection.call(command)

A reader task lives exactly as long as the block. Any number of tasks may call at the same time.

Cancellation is safe at every await. A call that is cancelled while it waits is forgotten, and its
late answer is counted and dropped. One that is cancelled while its frame is being written first lets
the frame out, for at most `timeout` seconds; if the peer does not take it, the call takes the
connection with it, because nothing that followed could be told from the missing half, and the other
callers get `OutcomeUnknown`, which is the truth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import SocketAttribute, SocketStream

from ropewalk.client.addresses import Address, parse_address
from ropewalk.client.core import (
    RemotingCore,
    Response,
    Unreachable,
    refuse_peer_request,
)
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError
from ropewalk.format.remoting import Command, encode_frame

READ_SIZE = 64 * 1024
TIMEOUT_S = 3.0
"""Seconds to connect, and seconds to wait for an answer, as the official clients do."""

AsyncPeerRequestHandler = Callable[[Command], Command | Callable[[], Awaitable[Command]] | None]
"""As `core.PeerRequestHandler`; a reply that takes time is a function to wait for it."""


@asynccontextmanager
async def open_connection(
    address: Address | str,
    *,
    timeout: float = TIMEOUT_S,
    on_request: AsyncPeerRequestHandler = refuse_peer_request,
) -> AsyncIterator[AsyncConnection]:
    """Connect, within `timeout` seconds, and hang up at the end of the block. Raises `Unreachable`.

    `on_request` answers what the peer asks of us. It is called in the reader task and must not block.
    """
    where = address if isinstance(address, Address) else parse_address(address)
    try:
        with anyio.fail_after(timeout):
            stream = await anyio.connect_tcp(where.host, where.port)
    except TimeoutError as exc:
        raise Unreachable(f"cannot connect to {where}: it does not answer in time") from exc
    except OSError as exc:
        raise Unreachable(f"cannot connect to {where}: {exc.strerror or exc}") from exc
    connection = AsyncConnection(where, stream, timeout, on_request)
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection._read_forever)
        try:
            yield connection
        except Exception as exc:
            # Kept out of the task group, which would wrap it: `except OutcomeUnknown` around the
            # block should catch what the block raised.
            failure = exc
        finally:
            connection._close("the connection was closed by this program")
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


@dataclass(slots=True)
class _Waiter:
    arrived: anyio.Event = field(default_factory=anyio.Event)
    answer: Command | None = None


class AsyncConnection:
    """A connection to one name server or broker. Made by `open_connection`."""

    def __init__(
        self, address: Address, stream: SocketStream, timeout: float, on_request: AsyncPeerRequestHandler
    ) -> None:
        self.address = address
        self.timeout = timeout
        self._stream = stream
        self._on_request = on_request
        self._core = RemotingCore()
        self._waiters: dict[int, _Waiter] = {}
        self._write_lock = anyio.Lock()
        self._reading = anyio.CancelScope()
        self._closed_because: str | None = None
        self._ended = anyio.Event()

    @property
    def closed(self) -> bool:
        return self._closed_because is not None

    @property
    def ignored_count(self) -> int:
        """Answers that came after their asker had given up."""
        return self._core.ignored_count

    @property
    def local_address(self) -> Address:
        """Our own end, as the peer sees it unless something between translates addresses."""
        address = self._stream.extra(SocketAttribute.local_address)
        assert isinstance(address, tuple), "a TCP stream has a host and a port"
        return Address(str(address[0]), int(address[1]))

    async def call(self, command: Command, timeout: float | None = None) -> Command:
        """Ask, and wait for the answer, whatever its code.

        Raises `OutcomeUnknown` when no answer came in time or the connection broke, and
        `Unreachable` when the request never left.
        """
        seconds = self.timeout if timeout is None else timeout
        self._require_open()
        opaque, frame = self._core.request(command)
        waiter = self._waiters[opaque] = _Waiter()
        try:
            with anyio.move_on_after(seconds):
                await self._write(frame)
                await waiter.arrived.wait()
        finally:
            del self._waiters[opaque]
            self._core.forget(opaque)
        if waiter.answer is not None:
            return waiter.answer
        reason = self._closed_because or f"within {seconds:g} s"
        raise OutcomeUnknown(f"no answer from {self.address}: {reason}")

    async def oneway(self, command: Command) -> None:
        """Send a request that the peer will not answer."""
        self._require_open()
        with anyio.move_on_after(self.timeout):
            await self._write(self._core.oneway(command))
            return
        raise OutcomeUnknown(f"{self.address} did not take a request within {self.timeout:g} s")

    async def wait_closed(self) -> None:
        """Return once the connection is gone, whoever ended it."""
        await self._ended.wait()

    def close(self) -> None:
        """Hang up. What is under way will never be answered; closing twice is harmless."""
        self._close("the connection was closed by this program")

    async def _write(self, frame: bytes) -> None:
        async with self._write_lock:
            self._require_open()
            whole = False
            try:
                # Shielded: whoever is cancelled here waits until its frame is out, a moment as a rule, rather
                # than take the connection away from everybody who shares it.
                with anyio.move_on_after(self.timeout, shield=True):
                    await self._stream.send(frame)
                    whole = True
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
                raise OutcomeUnknown(f"{self.address} hung up during a request") from exc
            finally:
                if not whole:
                    self._close("a request was cut off half-way")
            if not whole:
                raise OutcomeUnknown(f"{self.address} did not take a request within {self.timeout:g} s")

    async def _read_forever(self) -> None:
        reason = "the peer closed the connection"
        try:
            with self._reading:
                async with anyio.create_task_group() as replies:
                    try:
                        while True:
                            await self._take_in(await self._stream.receive(READ_SIZE), replies)
                    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                        pass
                    except RemoteProtocolError as exc:
                        reason = f"the peer sent what is no frame: {exc}"
                    self._close(reason)
                    replies.cancel_scope.cancel()
        finally:
            self._close("its reader was stopped")
            await anyio.aclose_forcefully(self._stream)

    async def _take_in(self, data: bytes, replies: anyio.abc.TaskGroup) -> None:
        for event in self._core.feed(data):
            if isinstance(event, Response):
                waiter = self._waiters[event.opaque]
                waiter.answer = event.command
                waiter.arrived.set()
                continue
            reply = self._on_request(event.command)
            if reply is None or event.command.is_oneway:
                continue
            # Not written here: a peer that takes nothing until we have read would stop us both.
            if isinstance(reply, Command):
                replies.start_soon(self._write_reply, encode_frame(reply))
            else:
                replies.start_soon(self._write_late_reply, reply)

    async def _write_late_reply(self, reply: Callable[[], Awaitable[Command]]) -> None:
        await self._write_reply(encode_frame(await reply()))

    async def _write_reply(self, frame: bytes) -> None:
        try:
            with anyio.move_on_after(self.timeout):
                await self._write(frame)
        except (OutcomeUnknown, Unreachable):
            pass  # the peer hung up; whoever waits on this connection hears of it from `_close`

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise Unreachable(f"the connection to {self.address} is gone: {self._closed_because}")

    def _close(self, reason: str) -> None:
        """Mark the end and wake everybody who waits. The reader closes the stream on its way out."""
        if self._closed_because is None:
            self._closed_because = reason
            self._ended.set()
            self._core.fail()
            for waiter in self._waiters.values():
                waiter.arrived.set()
            self._reading.cancel()
