"""The anyio shell: one core over one stream, for programs that run on trio or asyncio.

    async with open_connection("127.0.0.1:9876") as connection:
        answer = await connection.call(command)

Three tasks live exactly as long as the block: one reads, one writes, one watches the time. Any number
of tasks may call at the same time; what they ask in one turn of the loop leaves in one write.

Cancellation is safe at every await. A call that is cancelled, or whose time is up, is forgotten: a
frame that has not begun to leave is taken back, and a late answer is counted and dropped. The writer
belongs to nobody's call, so no frame is cut off half-way while the peer takes bytes. If the peer takes
none for `timeout` seconds the connection ends, because nothing that followed could be told from the
missing half, and the callers get `OutcomeUnknown`, which is the truth, or `Unreachable` where their
frame was still here.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskGroup

from ropewalk.client.aio.threads import in_thread
from ropewalk.client.core.addresses import Address, parse_address
from ropewalk.client.core.connection import (
    RemotingCore,
    Response,
    Unreachable,
    check_waiting_replies,
    refuse_peer_request,
)
from ropewalk.client.fork import renew_after_fork
from ropewalk.client.resolver import numeric, resolve
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError
from ropewalk.format.remoting import Command, encode_frame

READ_SIZE = 256 * 1024
WRITE_SIZE = 256 * 1024
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
            found = numeric(where.host) or await in_thread(partial(resolve, where.host, timeout))
            stream = await _connected([ip for _, ip in found], where.port, timeout)
    except TimeoutError as exc:
        raise Unreachable(f"cannot connect to {where}: it does not answer in time") from exc
    except OSError as exc:
        raise Unreachable(f"cannot connect to {where}: {_reason(exc)}") from exc
    except ValueError as exc:  # a peer may call another one by a name that no host can have
        raise Unreachable(f"cannot connect to {where}: {exc}") from exc
    connection = AsyncConnection(where, stream, timeout, on_request)
    failure: Exception | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(connection._run)
            try:
                yield connection
            except Exception as exc:
                # Kept out of the task group, which would wrap it: `except OutcomeUnknown` around the
                # block should catch what the block raised.
                failure = exc
            finally:
                connection._close("the connection was closed by this program")
                tasks.cancel_scope.cancel()
    finally:
        await anyio.aclose_forcefully(stream)  # also if its tasks never began
    if failure is not None:
        raise failure


async def _connected(ips: list[str], port: int, timeout: float) -> SocketStream:
    """Connect to one of the addresses of a host, which share the time. Raises OSError."""
    failure: OSError = TimeoutError()
    for ip in ips:
        with anyio.move_on_after(timeout / len(ips)):
            try:
                return await anyio.connect_tcp(ip, port)
            except OSError as exc:
                failure = exc
    raise failure


def _reason(exc: OSError) -> str:
    """Why a connect failed: anyio tries each address of a host, and says only that all of them failed."""
    cause = exc.__cause__
    for one in cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,):
        if isinstance(one, OSError) and one.errno is not None and one.errno in errno.errorcode:
            return os.strerror(one.errno)
    return exc.strerror or str(exc)


class _Waiter:
    """A call that waits for its answer."""

    __slots__ = ("answer", "arrived", "deadline")

    def __init__(self, arrived: anyio.Event, deadline: float) -> None:
        self.arrived = arrived
        self.answer: Command | None = None
        self.deadline = deadline


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
        self._outgoing: dict[int, bytes] = {}
        """Frames in the order in which they leave: of calls by opaque, of what nobody answers by numbers below 0."""
        self._written: dict[int, anyio.Event] = {}
        """The event set when a frame has left, by the same numbers."""
        self._oneways = 0
        self._replies = 0
        """Answers to the peer's own requests that are being made, or wait for being written."""
        self._to_write = anyio.Event()
        self._new_event = type(self._to_write)
        """This loop's kind of event: to ask which loop it is costs more than to make one."""
        self._look_at = math.inf
        self._look_sooner = anyio.Event()
        renew_after_fork(self)
        self._scope = anyio.CancelScope()
        self._closed_because: str | None = None
        self.lost_count = 0
        """Requests that were under way when it was closed, whose outcome nobody will learn."""
        self._ended = anyio.Event()

    @property
    def closed(self) -> bool:
        return self._closed_because is not None

    @property
    def closed_because(self) -> str | None:
        """Why it was closed; None while it is open."""
        return self._closed_because

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

    @property
    def remote_address(self) -> Address:
        """The other end, as this end's socket has it: an IP and a port."""
        address = self._stream.extra(SocketAttribute.remote_address)
        assert isinstance(address, tuple), "a TCP stream has a host and a port"
        return Address(str(address[0]), int(address[1]))

    async def call(self, command: Command, timeout: float | None = None) -> Command:
        """Send a request, and return its answer with any code.

        Raises `OutcomeUnknown` when no answer came in time or the connection broke, and
        `Unreachable` when the request never left.
        """
        seconds = self.timeout if timeout is None else timeout
        self._require_open()
        opaque, frame = self._core.request(command)
        waiter = self._waiters[opaque] = _Waiter(self._new_event(), anyio.current_time() + seconds)
        self._outgoing[opaque] = frame
        self._to_write.set()
        if waiter.deadline < self._look_at:
            self._look_sooner.set()
        try:
            await waiter.arrived.wait()
        finally:
            del self._waiters[opaque]
            stayed = self._outgoing.pop(opaque, None) is not None
            self._core.forget(opaque)
        if waiter.answer is not None:
            return waiter.answer
        reason = self._closed_because or f"within {seconds:g} s"
        if stayed:
            raise Unreachable(f"the request did not leave for {self.address}: {reason}")
        raise OutcomeUnknown(f"no answer from {self.address}: {reason}")

    async def oneway(self, command: Command) -> None:
        """Send a request that the peer will not answer; returns when it has left."""
        self._require_open()
        with anyio.move_on_after(self.timeout):
            if await self._leave(self._core.oneway(command)):
                return
            raise OutcomeUnknown(f"{self.address} hung up during a request: {self._closed_because}")
        raise OutcomeUnknown(f"{self.address} did not take a request within {self.timeout:g} s")

    async def wait_closed(self) -> None:
        """Return once the connection is gone, whichever side ended it."""
        await self._ended.wait()

    def close(self) -> None:
        """Hang up. What is under way will never be answered; closing twice is harmless."""
        self._close("the connection was closed by this program")

    def _renew(self) -> None:
        """Let go of the socket in a child process.

        Its number now stands for the null device: what the child's copy of the loop still does with it reaches
        neither the peer nor the parent's readiness list, which the copy shares.
        """
        self._closed_because = "this process was forked: the connection is its parent's"
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, self._stream.extra(SocketAttribute.raw_socket).fileno())
            os.close(null)
        except OSError:
            return  # closed already

    async def _leave(self, frame: bytes) -> bool:
        """Let a frame go that nobody answers, and wait until it has left. False if the connection ended first.

        Whoever is cancelled meanwhile takes it back, unless its bytes are on their way.
        """
        self._oneways -= 1
        number = self._oneways
        self._outgoing[number] = frame
        written = self._written[number] = anyio.Event()
        self._to_write.set()
        try:
            await written.wait()
        finally:
            self._outgoing.pop(number, None)
            left = self._written.pop(number, None) is None
        return left

    # The tasks of a connection

    async def _run(self) -> None:
        """Read, write and watch the time until the connection ends."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_forever, tasks)
                    tasks.start_soon(self._write_forever)
                    tasks.start_soon(self._watch_the_time)
        finally:
            self._close("its reader was stopped")
            await anyio.aclose_forcefully(self._stream)

    async def _write_forever(self) -> None:
        """Everything that has gathered leaves in one write, up to `WRITE_SIZE` or one frame."""
        outgoing = self._outgoing
        while True:
            if not outgoing:
                self._to_write = anyio.Event()
                await self._to_write.wait()
                continue
            leaving: list[int] = []
            size = 0
            for number, frame in outgoing.items():
                if leaving and size + len(frame) > WRITE_SIZE:
                    break
                leaving.append(number)
                size += len(frame)
            data = b"".join([outgoing.pop(number) for number in leaving])
            whole = False
            try:
                with anyio.move_on_after(self.timeout):
                    await self._stream.send(data)
                    whole = True
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._close("the peer closed the connection")
            if not whole:
                # Half a frame may be out: whatever we wrote next would be taken for its other half.
                self._close(f"it did not take a request within {self.timeout:g} s")
                return
            if self._written:
                for number in leaving:
                    written = self._written.pop(number, None)
                    if written is not None:
                        written.set()

    async def _watch_the_time(self) -> None:
        """Wake those whose time is up. One task for all calls: a scope for each would cost more than a send."""
        while True:
            now = anyio.current_time()
            self._look_at = math.inf
            for waiter in self._waiters.values():
                if waiter.deadline <= now:
                    waiter.arrived.set()
                elif waiter.deadline < self._look_at:
                    self._look_at = waiter.deadline
            self._look_sooner = anyio.Event()
            with anyio.move_on_after(self._look_at - now):
                await self._look_sooner.wait()

    async def _read_forever(self, tasks: TaskGroup) -> None:
        reason = "the peer closed the connection"
        try:
            while True:
                self._take_in(await self._stream.receive(READ_SIZE), tasks)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except RemoteProtocolError as exc:
            reason = f"the peer broke the protocol: {exc}"
        self._close(reason)

    def _take_in(self, data: bytes, tasks: TaskGroup) -> None:
        for event in self._core.feed(data):
            if isinstance(event, Response):
                waiter = self._waiters[event.opaque]
                waiter.answer = event.command
                waiter.arrived.set()
                continue
            reply = self._on_request(event.command)
            if reply is None or event.command.is_oneway:
                continue
            self._replies += 1
            check_waiting_replies(self._replies)
            # Not waited for here: a peer that takes nothing until we have read would stop us both.
            tasks.start_soon(self._write_reply, reply)

    async def _write_reply(self, reply: Command | Callable[[], Awaitable[Command]]) -> None:
        try:
            await self._leave(encode_frame(reply if isinstance(reply, Command) else await reply()))
        except RopewalkError as exc:
            self._close(f"a reply to it cannot be made: {exc}")
        finally:
            self._replies -= 1

    def _require_open(self) -> None:
        if self._closed_because is not None:
            raise Unreachable(f"the connection to {self.address} is gone: {self._closed_because}")

    def _close(self, reason: str) -> None:
        """Mark the end and wake everybody who waits. `_run` closes the stream on its way out."""
        if self._closed_because is None:
            self._closed_because = reason
            self._ended.set()
            self.lost_count = len(self._waiters)
            self._core.fail()
            for waiter in self._waiters.values():
                waiter.arrived.set()
            for written in self._written.values():
                written.set()
            self._scope.cancel()
