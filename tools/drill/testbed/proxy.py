"""The TCP proxy that stands in every link of a throw-away cluster.

A *door* is a listening address that stands for a process: what the process advertises is its door, so everybody who
finds it through the name server comes through here. Who came is told by `identify`; a connection then runs between
two named ends, and the bytes that travel from one to the other obey the rule of that direction:

    cut      nothing passes; what was sent waits, as it does behind a lost route, and so does a new connection
    delay    every byte arrives that much later, in order
    rate     so many bytes a second
    reset    after so many more bytes both ends see a reset; it happens once

`sever` ends the connections between two ends, and what was on its way between them is gone for good: that is what
happens when a machine dies, as against a process, whose kernel still delivers what it wrote.

Rules are looked up by the pair (from, to) and not by connection, so they also meet connections that are made later.
Each counts the bytes that passed and the times it bit, because a fault that never took effect proves nothing.

A reader and a writer with a bounded queue between them serve each direction. An end of stream travels in the queue
behind the bytes before it; a reset of one end is passed on to the other.

A slave tells its master, on another connection, which HA connection is its own: "my end is 127.0.0.1:40312". So the
source port of an incoming connection is kept on the way out where the kernel can do it (Linux 6.3 and later); where it
cannot, such words are translated on the way, as a firewall that translates addresses does it for FTP.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import trio

READ_SIZE = 64 * 1024
QUEUE_BYTES_MAX = 8 * 1024 * 1024
_SLICE_S = 0.01
_IP_LOCAL_PORT_RANGE = 51
_ABORT = struct.pack("ii", 1, 0)

Identify = Callable[[tuple[str, int], tuple[str, int]], str]
"""Source and target address of a connection that came in -> the name of who made it."""


@dataclass
class Rule:
    """The rule for bytes on their way from one end to another."""

    cut: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None
    reset_after: int | None = None
    passed: int = 0
    """Bytes delivered so far."""
    hits: int = 0
    """How often bytes met a fault here: held, delayed, slowed or reset."""
    _changed: trio.Event = field(default_factory=trio.Event)

    def change(
        self,
        *,
        cut: bool | None = None,
        delay_s: float | None = None,
        bytes_per_s: float | None = None,
        reset_after: int | None = None,
    ) -> None:
        """Set the given fields, at once and for connections that exist too."""
        if cut is not None:
            self.cut = cut
        if delay_s is not None:
            self.delay_s = delay_s
        if bytes_per_s is not None:
            self.bytes_per_s = bytes_per_s
        if reset_after is not None:
            self.reset_after = reset_after
        self._wake()

    def heal(self) -> None:
        """Nothing but a wire again."""
        self.cut, self.delay_s, self.bytes_per_s, self.reset_after = False, 0.0, None, None
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def open(self) -> None:
        """Return when nothing is cut."""
        if self.cut:
            self.hits += 1
        while self.cut:
            await self._changed.wait()


class Proxy:
    """All doors of one cluster, and the rules between its ends. Runs in the nursery it is given."""

    def __init__(self, nursery: trio.Nursery, identify: Identify, *, keep_ports: bool = True) -> None:
        self._nursery = nursery
        self._identify = identify
        self._keep_ports = keep_ports
        self._translated: dict[bytes, bytes] = {}
        """Addresses of open connections: the source's own end -> the end that the target sees, where they differ."""
        self._rules: dict[tuple[str, str], Rule] = {}
        self._open: dict[_Carried, tuple[str, str]] = {}
        self.connection_count: dict[tuple[str, str], int] = {}
        """How many connections each end made to each other one."""

    async def add_door(
        self, listen: tuple[str, int], forward: tuple[str, int], target: str
    ) -> tuple[str, int]:
        """Listen on one address for a process that listens on another. Returns the address, its port made real."""
        (listener,) = await trio.open_tcp_listeners(listen[1], host=listen[0], backlog=128)
        host, port = listener.socket.getsockname()[:2]
        self._nursery.start_soon(self._serve, listener, forward, target)
        return host, port

    def rule(self, source: str, target: str) -> Rule:
        """Return the rule for bytes from one end to another."""
        return self._rules.setdefault((source, target), Rule())

    def rules(self) -> Iterator[tuple[tuple[str, str], Rule]]:
        """Every direction that was ever looked at."""
        yield from sorted(self._rules.items())

    def heal(self) -> None:
        """End all faults."""
        for rule in self._rules.values():
            rule.heal()

    def sever(self, one: str, other: str) -> int:
        """Reset every connection between two ends, in either direction. Returns how many there were."""
        found = [carried for carried, ends in self._open.items() if set(ends) == {one, other}]
        for carried in found:
            carried.abort()
        return len(found)

    async def _serve(self, listener: trio.SocketListener, forward: tuple[str, int], target: str) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError:
                    await trio.sleep(0.1)  # out of descriptors, or a peer that was gone before it was here
                    continue
                self._nursery.start_soon(self._carry, stream.socket, forward, target)

    async def _carry(self, inner: trio.socket.SocketType, forward: tuple[str, int], target: str) -> None:
        """One connection, from its accept to its end."""
        outer = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            try:
                source_address, door = inner.getpeername()[:2], inner.getsockname()[:2]
            except OSError:
                return  # gone already
            source = self._identify(source_address, door)
            there, back = self.rule(source, target), self.rule(target, source)
            # A connection needs both ways to come into being.
            await there.open()
            await back.open()
            self.connection_count[source, target] = self.connection_count.get((source, target), 0) + 1
            if not await _connect(outer, source_address[1] if self._keep_ports else None, forward):
                _abort(inner)
                return
            called = b"%s:%d" % (source_address[0].encode(), source_address[1])
            seen = b"%s:%d" % (outer.getsockname()[0].encode(), outer.getsockname()[1])
            if called != seen and len(called) == len(seen):
                self._translated[called] = seen
            for end in (inner, outer):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            carried = _Carried(inner, outer, self._translated)
            self._open[carried] = source, target
            try:
                await carried.run(there, back)
            finally:
                del self._open[carried]
                self._translated.pop(called, None)
        finally:
            inner.close()
            outer.close()


async def _connect(outer: trio.socket.SocketType, port: int | None, forward: tuple[str, int]) -> bool:
    """Connect, from this source port if that is possible. False if nobody is there."""
    with suppress(OSError):  # an older kernel: the port will be another one
        if port is not None:
            outer.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("=I", port << 16 | port))
    try:
        await outer.connect(forward)
    except OSError as exc:
        if exc.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return False
        # The same two ends were connected a moment ago. Any port is better than none.
        outer.setsockopt(socket.IPPROTO_IP, _IP_LOCAL_PORT_RANGE, struct.pack("=I", 0))
        try:
            await outer.connect(forward)
        except OSError:
            return False
    return True


def _abort(end: trio.socket.SocketType) -> None:
    """Close so that the peer sees a reset."""
    with suppress(OSError):  # it is closed already
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    end.close()


class _Carried:
    """A connection that is being carried, both ways."""

    def __init__(
        self, inner: trio.socket.SocketType, outer: trio.socket.SocketType, words: Mapping[bytes, bytes]
    ) -> None:
        self._inner = inner
        self._outer = outer
        self._words = words
        self._scope = trio.CancelScope()

    async def run(self, there: Rule, back: Rule) -> None:
        """Until both directions have ended, or somebody aborts it."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_Pump(self._inner, self._outer, there, self._words).run, self.abort)
                nursery.start_soon(_Pump(self._outer, self._inner, back, {}).run, self.abort)

    def abort(self) -> None:
        """Both ends see a reset; what was on its way is dropped."""
        _abort(self._inner)
        _abort(self._outer)
        self._scope.cancel()


class _Reset(Exception):
    """This direction has ended with a reset."""


class _Pump:
    """One direction of one connection."""

    def __init__(
        self,
        source: trio.socket.SocketType,
        sink: trio.socket.SocketType,
        rule: Rule,
        words: Mapping[bytes, bytes],
    ) -> None:
        """`words` are translated where they stand in one read."""
        self._words = words
        self._source = source
        self._sink = sink
        self._rule = rule
        self._queue: deque[tuple[float, bytes]] = deque()
        """(when they are due, bytes); b"" is the end of the stream."""
        self._queued = 0
        self._reset = False
        self._news = trio.Event()
        self._room = trio.Event()

    async def run(self, abort: Callable[[], None]) -> None:
        """Until the end of the stream. A reset ends the whole connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                await self._write()
                nursery.cancel_scope.cancel()
        except* _Reset:
            abort()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._source.recv(READ_SIZE)
            except (OSError, trio.ClosedResourceError):
                data, self._reset = b"", True
            for called, seen in self._words.items():
                data = data.replace(called, seen)
            if self._rule.cut or self._rule.delay_s:
                self._rule.hits += 1
            self._queue.append((trio.current_time() + self._rule.delay_s, data))
            self._queued += len(data)
            self._news.set()
            if not data:
                return
            while self._queued > QUEUE_BYTES_MAX:
                self._room = trio.Event()
                await self._room.wait()

    async def _write(self) -> None:
        rule = self._rule
        while True:
            while not self._queue:
                self._news = trio.Event()
                await self._news.wait()
            due, data = self._queue.popleft()
            self._queued -= len(data)
            self._room.set()
            if due > trio.current_time():
                await trio.sleep_until(due)
            if rule.cut:
                await rule.open()
            if not data:
                if self._reset:
                    raise _Reset
                self._end_stream()
                return
            await self._deliver(data)

    def _end_stream(self) -> None:
        with suppress(OSError):  # the other side has hung up too
            self._sink.shutdown(socket.SHUT_WR)

    async def _deliver(self, data: bytes) -> None:
        rule = self._rule
        rest = memoryview(data)
        while rest:
            piece = rest
            if rule.reset_after is not None:
                piece = piece[: rule.reset_after]
            if rule.bytes_per_s is not None:
                rule.hits += 1
                piece = piece[: max(1, int(rule.bytes_per_s * _SLICE_S))]
                await trio.sleep(len(piece) / rule.bytes_per_s)
                if rule.cut:
                    await rule.open()
            await self._send_all(piece)
            rule.passed += len(piece)
            rest = rest[len(piece) :]
            if rule.reset_after is not None:
                rule.reset_after -= len(piece)
                if rule.reset_after <= 0:
                    rule.reset_after = None
                    rule.hits += 1
                    raise _Reset

    async def _send_all(self, data: memoryview) -> None:
        while data:
            try:
                sent = await self._sink.send(data)
            except (OSError, trio.ClosedResourceError):
                raise _Reset from None
            data = data[sent:]
