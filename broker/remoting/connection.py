"""A connection: a socket, the session that gives its bytes a meaning, and the bytes that it still owes its peer.

What a session sends is kept here until the turn ends, and leaves with one call where the peer takes it. What a peer
does not take stays; past the limit of its budget the connection is not read any more until it has taken enough. Nothing
here waits, and a peer's fault, or a fault of ours that one peer meets, ends that peer's connection and no other one.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol, TypeAlias

import structlog

from broker.remoting.origins import origin_of
from broker.remoting.outgoing import OutgoingBudget
from ropewalk.errors import RemoteProtocolError

__all__ = ["IN", "OUT", "Connection", "ConnectionOwner", "MakeSession", "ConnectionHandler", "ipv4_form"]

log = structlog.get_logger("broker.serve")

_JOIN_MAX: Final = 64 << 10  # below this one join and one send beat a vector of small pieces
_SMALL_PIECE: Final = (
    4 << 10
)  # larger ones, such as slices of the log for a slave, are not copied to be joined
IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT


class ConnectionHandler(Protocol):
    """The handler of a connection's bytes: a session, or one of HA or DLedger. It answers with `Connection.send`."""

    def receive(self, data: bytes) -> None:
        """Handle bytes that arrived; raises `RemoteProtocolError` if the connection must be closed."""

    @property
    def has_backlog(self) -> bool:
        """Tell whether requests were put off because the peer took too few of its answers."""

    def resume(self) -> None:
        """The peer has taken enough: go on with them."""

    def closed(self) -> None:
        """The connection is gone; nothing can be sent any more."""


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


class ConnectionOwner(Protocol):
    """The shell as its connections see it: the turn at hand, and the lists of connections that it has to look after."""

    now: float
    """When the turn at hand began."""
    ready_count: int
    """The number of connections that the turn at hand is about."""
    budget: OutgoingBudget
    """The bytes that peers may be owed, and their connections still be read."""
    epoll: select.epoll
    buffer: memoryview
    """The place that sockets are read into, one after the other."""
    dirty: list[Connection]
    """Connections that owe something new; written when the turn ends."""
    resumed: list[Connection]
    """Connections whose peers have taken enough for the session to go on."""
    to_close: list[Connection]
    priority_fds: set[int]
    """The descriptors of connections that go first."""


def ipv4_form(host: str) -> str:
    """Return an IPv4 host as such, also where it reached a socket of both families: other tables know it as IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host


class Connection:
    """A socket and the bytes that it still owes its peer."""

    __slots__ = (
        "_owner",
        "_sock",
        "active",
        "budget",
        "raw_receiver",
        "closing",
        "counted",
        "dirty",
        "fd",
        "mask",
        "origin",
        "patient",
        "out",
        "out_size",
        "stall_exempt",
        "paused",
        "peer",
        "progress",
        "session",
    )

    def __init__(
        self, owner: ConnectionOwner, sock: socket.socket, peer: tuple[str, int], *, is_guest: bool = False
    ) -> None:
        """`sock` does not block; `is_guest`: whether a client may be at its other end, who has a place among many."""
        self._owner = owner
        self.budget = owner.budget
        self._sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.out: deque[bytes | memoryview] = deque()
        self.out_size = 0
        self.counted = 0
        """Bytes of `out_size` that the budget knows of: those that a socket did not take at once."""
        self.dirty = False
        self.closing = False
        self.stall_exempt = False
        """Whether a peer that takes nothing is somebody else's business; replication has a rule of its own."""
        self.raw_receiver: Callable[[memoryview], None] | None = None
        """The receiver of arriving bytes in the session's place; it copies what it keeps out of the shell's buffer."""
        self.paused = False
        self.mask = IN
        self.active = 0.0
        """When the socket was ready to be read or written last; 0 before it ever was."""
        self.progress = time.monotonic()
        self.origin = origin_of(peer[0]) if is_guest else ""
        """The origin that it counts under; none for a member."""
        self.patient = False
        """Whether it may say nothing for as long as it likes while there are places enough."""
        self.session: ConnectionHandler

    def send(self, data: bytes | memoryview) -> None:
        """Owe these bytes to the peer; they leave when the turn ends. Never waits, never raises. HOT."""
        if self.closing:
            return
        if not self.out:
            self.progress = self._owner.now
        self.out.append(data)
        self.out_size += len(data)
        if not self.dirty:
            self.dirty = True
            self._owner.dirty.append(self)

    def detach_from_map(self) -> None:
        """Copy owed bytes out of maps of the log: it may leave much later, from pages that went cold."""
        for at, piece in enumerate(self.out):
            if isinstance(piece, memoryview) and not isinstance(piece.obj, bytes):
                self.out[at] = bytes(piece)

    def push(self) -> None:
        """Try to write owed bytes now, and not only when the turn ends."""
        if not self.closing:
            self.write()

    def pause(self) -> None:
        """Read nothing more until `go_on`."""
        self._set_paused(True)

    def go_on(self) -> None:
        """Read again."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        self.paused = paused
        if not self.closing:
            self._set_mask()

    def go_first(self) -> None:
        """Read this connection before all others of a turn, and let its waiters go on meanwhile.

        What others owe does not hold it up either: its own protocol bounds what it is owed.
        """
        self._owner.priority_fds.add(self.fd)
        self.budget = OutgoingBudget(self.budget.each)

    @property
    def local(self) -> tuple[str, int]:
        """The address of this end."""
        address = self._sock.getsockname()
        return ipv4_form(address[0]), address[1]

    @property
    def congested(self) -> bool:
        """Tell whether the peer is owed more bytes than it may be; it is not read then."""
        return self.out_size > self.budget.limit

    @property
    def sole_ready(self) -> bool:
        """Tell whether this connection is the only one with requests in this turn."""
        return self._owner.ready_count == 1

    @property
    def is_open(self) -> bool:
        return not self.closing

    def close(self) -> None:
        """Close the connection as soon as this turn ends; owed bytes are dropped."""
        if not self.closing:
            self.closing = True
            self._owner.to_close.append(self)

    # -- for the shell -------------------------------------------------------------------------------

    def read(self) -> None:
        """Read from the socket once, and hand the bytes to the session. HOT."""
        buffer = self._owner.buffer
        try:
            size = self._sock.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if size == 0:
            self.close()
            return
        try:
            if self.raw_receiver is None:
                self.session.receive(bytes(buffer[:size]))
            else:
                self.raw_receiver(buffer[:size])
        except Exception as exc:
            self._hang_up(exc)

    def resume(self) -> None:
        """Let the session go on with the requests that it had put off."""
        try:
            self.session.resume()
        except Exception as exc:
            self._hang_up(exc)

    def _hang_up(self, exc: Exception) -> None:
        """End the connection for what its session met. Raises what is not of this connection alone."""
        if isinstance(exc, OSError):
            raise exc  # the disk, not the peer: the process decides
        peer = f"{self.peer[0]}:{self.peer[1]}"
        if isinstance(exc, RemoteProtocolError):
            log.warning("hung up", peer=peer, reason=str(exc))
        else:
            # A fault of ours, met by one client: it loses its connection, the others do not lose their broker.
            log.exception("hung up after a failure", peer=peer)
        self.close()

    def write(self) -> None:
        """Write as many of the owed bytes as the peer takes now. HOT."""
        out, owed, owner = self.out, self.out_size, self._owner
        if not out:
            return
        try:
            if len(out) > 1 and owed <= min(_JOIN_MAX, _SMALL_PIECE * len(out)):
                data: bytes | memoryview = b"".join(out)
                out.clear()
                out.append(data)
            if len(out) == 1:
                sent = self._sock.send(out[0])
            else:
                sent = self._sock.sendmsg(islice(out, 256))
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent == owed:  # HOT: as it nearly always is
            self.progress = owner.now
            self.out_size = 0
            out.clear()
            if self.counted:
                self._count()
            if self.session.has_backlog:
                owner.resumed.append(self)
            if self.mask != IN or self.paused:
                self._set_mask()
            return
        if sent:
            self.progress = owner.now
            self.out_size -= sent
            while sent:
                first = out.popleft()
                if len(first) > sent:
                    out.appendleft(memoryview(first)[sent:])
                    break
                sent -= len(first)
        self._count()
        if not self.congested and self.session.has_backlog:
            owner.resumed.append(self)
        self._set_mask()

    def _count(self) -> None:
        """Have the budget know what is owed now."""
        self.budget.add(self.out_size - self.counted)
        self.counted = self.out_size

    def _set_mask(self) -> None:
        """Register the events that this connection waits for."""
        mask = (OUT if self.out else 0) | (0 if self.congested or self.paused else IN)
        if mask != self.mask:
            self.mask = mask
            self._owner.epoll.modify(self.fd, mask)

    def end(self) -> None:
        """Close the socket, and tell the session."""
        self.closing = True
        self.out.clear()
        self.out_size = 0
        self._count()
        self._owner.epoll.unregister(self.fd)
        self._sock.close()
        session, self.session, self.raw_receiver = self.session, _GONE, None
        session.closed()  # and no ring of references keeps it: see `process` for why the collector rarely runs


MakeSession: TypeAlias = Callable[[Connection], ConnectionHandler]
