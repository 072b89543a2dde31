"""The shell: every socket of the broker, one epoll, and no opinions about what the bytes mean.

One trio task waits on one epoll for all connections, reads every ready one, lets their sessions handle all complete
frames, ends the turn (which appends, publishes and completes whatever waited), and then writes to each connection
once. On two cores this carries twice the requests of a task per connection when many clients each wait for a reply
(`hotpath` figures: 100 k/s against 48 k/s), and no message costs a wake-up of its own. A connection that others wait
for, as producers wait for what a slave reports, goes first among few, and what it leads to is written before the others
are read.

After a busy turn the task lingers in its own epoll for at most a millisecond before it gives the loop back to trio:
a client that answers at once is then served without trio's wake-up, which is most of the cost of a lone request.
While clients do answer at once it does not even sleep: to wake a processor that went idle takes longer than all the
rest of a small request (one connection, one in flight: 8.6k/s asleep, 15k/s awake). A few misses in a row end that.
Where there is work for a loop without events (`Turns.next_turn_s`), turns go on until there is none.
Nothing here ever waits for a peer. What a peer does not take stays in its connection's buffer; past `out_max` bytes
the connection is not read any more, and one that takes nothing for `stall_s` seconds is closed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

import structlog
import trio

from ropewalk.errors import RemoteProtocolError

_READ_SIZE = 256 << 10
_JOIN_MAX = 64 << 10  # below this one join and one send beat a vector of small pieces
_SMALL_PIECE = 4 << 10  # larger ones, such as slices of the log for a slave, are not copied to be joined
_LINGER_S = 0.001
_HOLD_MAX_S = 0.005
_SPIN_S = 0.00006
_SOON_S = 0.00015  # what came within this would have come within `_SPIN_S`, had nobody had to wake up for it
_SPIN_LONG_S = 0.0005
"""The same where another machine waits or is waited for: half as many again at 1 x 1 of SYNC_MASTER."""
_SPIN_MISSES_MAX = 4
_DOZE_MAX = 1024
_CROWD_MAX = 5
"""Where more connections have something to say, none goes first: each waits for few answers, and it would cost more."""
_BACKLOG = 1024
_yield = ctypes.CDLL(
    None
).sched_yield  # Python 3.11's own keeps the interpreter, and with it every other thread
_IN = select.EPOLLIN
_OUT = select.EPOLLOUT

log = structlog.get_logger("broker.serve")


class Session(Protocol):
    """The meaning of a connection's bytes. It answers through `Connection.send`, now or in a later turn."""

    def receive(self, data: bytes) -> None:
        """Handle bytes that arrived; raises `RemoteProtocolError` if the connection must be closed."""

    @property
    def has_backlog(self) -> bool:
        """Tell whether requests were put off because the peer took too few of its answers."""

    def resume(self) -> None:
        """The peer has taken enough: go on with them."""

    def closed(self) -> None:
        """The connection is gone; nothing can be sent any more."""


class Turns(Protocol):
    """The owner of the state behind the sessions, which hears when a turn begins and ends."""

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def on_wakeup(self) -> None:
        """A helper thread left something to take in."""

    def on_priority_served(self) -> None:
        """Within a turn: those that go first have said what they have to say, and the others' turn comes now."""

    @property
    def peer_reply_expected(self) -> bool:
        """Tell whether a message of another machine is expected within microseconds."""

    @property
    def next_turn_s(self) -> float | None:
        """Return after how many seconds without an event a turn is wanted all the same; None if none is."""


class _Gone:
    """The session of a connection that is no more."""

    has_backlog = False

    def receive(self, data: bytes) -> None:
        pass

    def resume(self) -> None:
        pass

    def closed(self) -> None:
        pass


_GONE = _Gone()


def _plain(host: str) -> str:
    """An IPv4 host as such, also where it reached a socket of both families: the other tables know it as IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host


class Connection:
    """A socket and the bytes that it still owes its peer."""

    __slots__ = (
        "_shell",
        "_sock",
        "active",
        "raw_receiver",
        "closing",
        "dirty",
        "fd",
        "mask",
        "out",
        "out_size",
        "stall_exempt",
        "paused",
        "peer",
        "progress",
        "session",
    )

    def __init__(self, shell: Shell, sock: socket.socket, peer: tuple[str, int]) -> None:
        self._shell = shell
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.out: deque[bytes | memoryview] = deque()
        self.out_size = 0
        self.dirty = False
        self.closing = False
        self.stall_exempt = False
        """Whether a peer that takes nothing is somebody else's business; replication has a rule of its own."""
        self.raw_receiver: Callable[[memoryview], None] | None = None
        """The receiver of arriving bytes in the session's place; it copies what it keeps out of the shell's buffer."""
        self.paused = False
        self.mask = _IN
        self.active = self.progress = time.monotonic()
        self.session: Session

    def send(self, data: bytes | memoryview) -> None:
        """Owe these bytes to the peer; they leave when the turn ends. Never waits, never raises. HOT."""
        if self.closing:
            return
        if not self.out:
            self.progress = self._shell.now
        self.out.append(data)
        self.out_size += len(data)
        if not self.dirty:
            self.dirty = True
            self._shell.dirty.append(self)

    def detach_from_map(self) -> None:
        """Copy owed bytes out of maps of the log: it may leave much later, from pages that went cold."""
        for at, piece in enumerate(self.out):
            if isinstance(piece, memoryview) and not isinstance(piece.obj, bytes):
                self.out[at] = bytes(piece)

    def push(self) -> None:
        """Try to write owed bytes now, and not only when the turn ends."""
        if not self.closing:
            self._shell.write(self)

    def pause(self) -> None:
        """Read nothing more until `go_on`."""
        self._set_paused(True)

    def go_on(self) -> None:
        """Read again."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        if not self.closing:
            self._shell.set_mask(self)

    def go_first(self) -> None:
        """Read this connection before all others of a turn, and let its waiters go on meanwhile."""
        self._shell.priority_fds.add(self.fd)

    @property
    def local(self) -> tuple[str, int]:
        """The address of this end."""
        address = self._sock.getsockname()
        return _plain(address[0]), address[1]

    @property
    def congested(self) -> bool:
        """Tell whether the peer is owed more than `out_max` bytes; it is not read then."""
        return self.out_size > self._shell.out_max

    def close(self) -> None:
        """Close the connection as soon as this turn ends; owed bytes are dropped."""
        if not self.closing:
            self.closing = True
            self._shell.to_close.append(self)

    @property
    def sole_ready(self) -> bool:
        """Tell whether this connection is the only one with requests in this turn."""
        return self._shell.ready_count == 1

    @property
    def is_open(self) -> bool:
        return not self.closing


class Shell:
    """All connections of one process, and the turns in which they are served."""

    def __init__(
        self,
        turns: Turns,
        *,
        out_max: int = 8 << 20,
        stall_s: float = 30.0,
        idle_s: float = 120.0,
        connections_max: int = 1 << 30,
    ) -> None:
        """`connections_max` leaves descriptors to the store: a file it cannot open would stop everybody."""
        self.dirty: list[Connection] = []
        self.to_close: list[Connection] = []
        self._resumed: list[Connection] = []
        self.connections: dict[int, Connection] = {}
        self.priority_fds: set[int] = set()
        """The descriptors of connections that go first."""
        self.now = time.monotonic()
        self.ready_count = 0
        """How many connections the turn at hand is about."""
        self.idle_s = 0.0
        """How long there was nothing to do, since the start."""
        self._idle_since: float | None = self.now
        self._turns = turns
        self.out_max = out_max
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._connections_max = connections_max
        self._epoll = select.epoll()
        self._listeners: dict[int, tuple[socket.socket, Callable[[Connection], Session]]] = {}
        self._paused_listeners: list[int] = []
        self._misses = 0
        """How often in a row nothing came while it was looked for."""
        self._spin_backoff = 1
        """How many soon answers it takes until they are looked for again; 0 while they are."""
        self._spin_backoff_next = 2
        self._news = False
        """Whether `Turns.on_wakeup` is to be called."""
        self._asleep = True
        """Whether nobody looks at `_news` before something wakes the epoll."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, _IN)
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)

    # -- life ----------------------------------------------------------------------------------------

    def listen(self, host: str, port: int, make_session: Callable[[Connection], Session]) -> int:
        """Accept connections on `host:port` (0: any free port); return the port. Raises OSError if it is taken."""
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
        sock.setblocking(False)
        self._listeners[sock.fileno()] = (sock, make_session)
        self._epoll.register(sock.fileno(), _IN)
        return int(sock.getsockname()[1])

    def idle_until(self, now: float) -> float:
        """Return `idle_s` up to now."""
        return self.idle_s if self._idle_since is None else self.idle_s + now - self._idle_since

    def wake(self) -> None:
        """From any thread: have the loop call `Turns.on_wakeup` soon. HOT.

        Where the loop is at work it will look by itself, and no other thread gives the interpreter up to tell it.
        """
        self._news = True
        if self._asleep:  # read behind the write above, as the loop writes and reads them the other way round
            os.eventfd_write(self._wake_fd, 1)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self._serve_for_a_while()

    def _serve_for_a_while(self) -> None:
        until = time.monotonic() + _HOLD_MAX_S
        self._asleep = False
        try:
            events = self._epoll.poll(0)
            while events or self._news or self._turns.next_turn_s is not None:
                self.turn(events)
                if self.now >= until:
                    break
                events = self._linger()
        finally:
            self._asleep = True
        if self._news or self._turns.next_turn_s is not None:
            self.wake()

    def _linger(self) -> list[tuple[int, int]]:
        """Return the ready sockets, now or within a millisecond. Polls for a moment where that has paid off."""
        poll, clock = self._epoll.poll, time.monotonic
        events = poll(0)
        if events or self._news:
            return events
        began = self._idle_since = clock()
        wait_s = self._turns.next_turn_s
        if wait_s is not None:
            while clock() - began < wait_s and not events and not self._news:
                _yield()
                events = poll(0)
            return events
        spin_s, soon_s = (
            (_SPIN_LONG_S, _SPIN_LONG_S) if self._turns.peer_reply_expected else (_SPIN_S, _SOON_S)
        )
        if self._spin_backoff == 0:
            while clock() - began < spin_s:
                _yield()  # whoever we wait for, or our client, may want this very processor
                events = poll(0)
                if events or self._news:
                    self._misses = 0
                    self._spin_backoff_next = max(2, self._spin_backoff_next // 2)
                    return events
            self._misses += 1
            if self._misses >= _SPIN_MISSES_MAX:
                self._misses = 0
                self._spin_backoff = self._spin_backoff_next
                self._spin_backoff_next = min(2 * self._spin_backoff_next, _DOZE_MAX)
            return self._sleep()
        events = self._sleep()
        if events and clock() - began < soon_s:
            self._spin_backoff -= 1
            if self._spin_backoff == 0:
                self._misses = 0
        return events

    def _sleep(self) -> list[tuple[int, int]]:
        self._asleep = True
        try:
            return self._epoll.poll(0 if self._news else _LINGER_S)
        finally:
            self._asleep = False

    def stop_accepting(self) -> None:
        for fd, (sock, _make) in self._listeners.items():
            if fd not in self._paused_listeners:
                self._epoll.unregister(fd)
            sock.close()
        self._listeners.clear()

    def close(self) -> None:
        self.stop_accepting()
        for connection in list(self.connections.values()):
            self._drop(connection)
        self._epoll.close()
        os.close(self._wake_fd)

    # -- one turn ------------------------------------------------------------------------------------

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Read ready connections, end the turn, write owed bytes."""
        self.now = now = time.monotonic()
        if self._idle_since is not None:
            self.idle_s += now - self._idle_since
            self._idle_since = None
        self.ready_count = len(events)
        turns = self._turns
        turns.begin_turn()
        if self.priority_fds and 1 < self.ready_count <= _CROWD_MAX:
            events = self._serve_foremost(events)
        self._serve(events)
        resumed, self._resumed = self._resumed, []
        for connection in resumed:
            if connection.is_open:
                self._give(connection, None)
        if self._news:
            self._news = False
            turns.on_wakeup()
        turns.end_turn()
        self.flush()

    def _serve_foremost(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Serve those that go first, and write at once what is owed then; the events of all others. HOT.

        A client that gets its answers before the rest of the turn has its next requests ready behind it: 6 % at 1 x 64
        of SYNC_MASTER, and nothing at 32 x 1.
        """
        priority_fds = self.priority_fds
        others = [event for event in events if event[0] not in priority_fds]
        if others and len(others) < len(events):
            self._serve([event for event in events if event[0] in priority_fds])
            self._turns.on_priority_served()
            self._write_owed()
            self.ready_count = len(others)
            return others
        return events

    def _serve(self, events: list[tuple[int, int]]) -> None:
        now, connections = self.now, self.connections
        for fd, event in events:
            connection = connections.get(fd)
            if connection is None:
                if fd == self._wake_fd:
                    os.eventfd_read(fd)
                elif fd in self._listeners:
                    self._accept(fd)
                continue
            connection.active = now
            if event & _OUT:
                self.write(connection)
            if event & ~_OUT:
                self._read(connection)

    def flush(self) -> None:
        """Write the bytes that sessions owe, and close the connections that they gave up."""
        self._write_owed()
        while self.to_close:
            self._drop(self.to_close.pop())
        if self._resumed:
            self.wake()  # in a turn of its own, so that the others have theirs in between

    def _write_owed(self) -> None:
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for connection in dirty:
                connection.dirty = False
                if not connection.closing:
                    self.write(connection)

    def _read(self, connection: Connection) -> None:
        try:
            size = connection._sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError:
            connection.close()
            return
        if size == 0:
            connection.close()
            return
        data = self._view[:size]
        self._give(connection, bytes(data) if connection.raw_receiver is None else data)

    def _give(self, connection: Connection, data: bytes | memoryview | None) -> None:
        """Let the session have what arrived, or (None) go on with what it had put off."""
        try:
            if data is None:
                connection.session.resume()
            elif isinstance(data, bytes):
                connection.session.receive(data)
            elif connection.raw_receiver is not None:
                connection.raw_receiver(data)
        except RemoteProtocolError as exc:
            log.warning("hung up", peer=f"{connection.peer[0]}:{connection.peer[1]}", reason=str(exc))
            connection.close()
        except OSError:
            raise  # the disk, not the peer: the process decides
        except Exception:
            # A fault of ours, met by one client: it loses its connection, the others do not lose their broker.
            log.exception("hung up after a failure", peer=f"{connection.peer[0]}:{connection.peer[1]}")
            connection.close()

    def write(self, connection: Connection) -> None:
        out, owed = connection.out, connection.out_size
        if not out:
            return
        try:
            if len(out) > 1 and owed <= min(_JOIN_MAX, _SMALL_PIECE * len(out)):
                data: bytes | memoryview = b"".join(out)
                out.clear()
                out.append(data)
            if len(out) == 1:
                sent = connection._sock.send(out[0])
            else:
                sent = connection._sock.sendmsg(islice(out, 256))
        except BlockingIOError:
            sent = 0
        except OSError:
            connection.close()
            return
        if sent == owed:  # HOT: as it nearly always is
            connection.progress = self.now
            connection.out_size = 0
            out.clear()
            if connection.session.has_backlog:
                self._resumed.append(connection)
            if connection.mask != _IN or connection.paused:
                self.set_mask(connection)
            return
        if sent:
            connection.progress = self.now
            connection.out_size -= sent
            while sent:
                first = out.popleft()
                if len(first) > sent:
                    out.appendleft(memoryview(first)[sent:])
                    break
                sent -= len(first)
        if not connection.congested and connection.session.has_backlog:
            self._resumed.append(connection)
        self.set_mask(connection)

    def set_mask(self, connection: Connection) -> None:
        """Register the events that this connection waits for."""
        mask = (_OUT if connection.out else 0) | (0 if connection.congested or connection.paused else _IN)
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.fd, mask)

    # -- coming and going ----------------------------------------------------------------------------

    async def dial(
        self, host: str, port: int, make_session: Callable[[Connection], Session], timeout_s: float
    ) -> Connection:
        """Connect to a peer, and serve the connection like an accepted one. Raises OSError."""
        with trio.move_on_after(timeout_s) as scope:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for n, (family, kind, protocol, _name, address) in enumerate(found, 1):
                sock = trio.socket.socket(family, kind, protocol)
                try:
                    await sock.connect(address)
                    break
                except OSError:
                    sock.close()
                    if n == len(found):
                        raise  # a name can have an address of each family, and be listened to on one
                except BaseException:
                    sock.close()
                    raise
        if scope.cancelled_caught:
            raise TimeoutError(errno.ETIMEDOUT, f"no connection within {timeout_s:.0f} s")
        plain = socket.socket(family, kind, protocol, fileno=sock.detach())
        return self._adopt(plain, (str(address[0]), int(address[1])), make_session)

    def _adopt(
        self, sock: socket.socket, peer: tuple[str, int], make_session: Callable[[Connection], Session]
    ) -> Connection:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, sock, peer)
        self.priority_fds.discard(connection.fd)  # of one that never came to be
        connection.session = make_session(connection)
        self.connections[connection.fd] = connection
        self._epoll.register(connection.fd, _IN)
        return connection

    def _accept(self, fd: int) -> None:
        listener, make_session = self._listeners[fd]
        while True:
            if len(self.connections) >= self._connections_max:
                self._grow_deaf(fd, f"{self._connections_max} are as many as the limit of open files allows")
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._grow_deaf(fd, os.strerror(exc.errno))
                    return
                continue  # the peer was gone before we took it
            self._adopt(sock, (_plain(address[0]), address[1]), make_session)

    def _grow_deaf(self, fd: int, reason: str) -> None:
        log.error("cannot accept more connections", reason=reason, open=len(self.connections))
        self._epoll.unregister(fd)  # a ready listener would spin; `sweep` listens again
        self._paused_listeners.append(fd)

    def _drop(self, connection: Connection) -> None:
        if self.connections.pop(connection.fd, None) is None:
            return
        self.priority_fds.discard(connection.fd)
        connection.closing = True
        connection.out.clear()
        self._epoll.unregister(connection.fd)
        connection._sock.close()
        session, connection.session, connection.raw_receiver = connection.session, _GONE, None
        session.closed()  # and no ring of references keeps it: see `process` for why the collector rarely runs

    def sweep(self) -> None:
        """Close connections that take nothing or say nothing; call every second or so."""
        self.now = now = time.monotonic()
        for fd in self._paused_listeners:
            if fd in self._listeners:
                self._epoll.register(fd, _IN)
        self._paused_listeners.clear()
        for connection in self.connections.values():
            connection.detach_from_map()
            if connection.out and now - connection.progress > self._stall_s:
                # The kernel calls a socket writable again when a third of its buffer is free, which is minutes on
                # a thin line: whatever a send can place now is progress too.
                self.write(connection)
            if connection.out and now - connection.progress > self._stall_s and not connection.stall_exempt:
                log.warning(
                    "closed a peer that takes nothing", peer=connection.peer, owed=connection.out_size
                )
                connection.close()
            elif now - max(connection.active, connection.progress) > self._idle_s:
                connection.close()
        self.flush()
