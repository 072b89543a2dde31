"""The ways by which sockets come into the process: accepted at a port, or connected to a peer.

Where descriptors run out, a client's connection that is of least use goes for the newcomer. A listener that cannot
accept even so is taken off the epoll: it would stay ready, and the loop would spin. `Listeners.listen_again` puts it
back.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, Protocol, TypeAlias

import structlog
import trio

from broker.remoting.connection import IN, Connection, MakeSession, ipv4_form

__all__ = ["Adopt", "Kind", "Listeners", "connect"]

log = structlog.get_logger("broker.serve")

_BACKLOG: Final = 1024
_ACCEPT_MAX: Final = 64
"""Connections that one turn accepts from one listener; those that wait have turns of their own."""
_ROOM: Final = 64
"""Connections that make room at once where descriptors have run out."""

Address: TypeAlias = tuple[str, int]


class Kind(Enum):
    """The kind of peers that a listener is for."""

    MEMBER = auto()
    """Of the group. Whoever serves them bounds their number, and knows which of them counts."""
    CLIENT = auto()
    """Clients, which send a request as soon as they are connected."""
    LOOKUP = auto()
    """Clients of a name server: RocketMQ's connect to every name server and ask one, the others when it is gone."""


class Adopt(Protocol):
    """The function that takes a connected socket over, which does not block."""

    def __call__(
        self, sock: socket.socket, peer: Address, make_session: MakeSession, kind: Kind
    ) -> Connection: ...


class Listeners:
    """The listening sockets of one process."""

    def __init__(self, epoll: select.epoll, adopt: Adopt, make_room: Callable[[], bool]) -> None:
        """`make_room` closes the connection of least use, and returns whether there was any."""
        self._epoll = epoll
        self._adopt = adopt
        self._make_room = make_room
        self._listening: dict[int, tuple[socket.socket, MakeSession, Kind]] = {}
        self._paused: list[int] = []
        self._made_room = False

    def listen(self, host: str, port: int, make_session: MakeSession, kind: Kind = Kind.CLIENT) -> int:
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
        self._listening[sock.fileno()] = (sock, make_session, kind)
        self._epoll.register(sock.fileno(), IN)
        return int(sock.getsockname()[1])

    def accept(self, fd: int) -> None:
        """Accept connections that wait at this listener; nothing, if it is none any more."""
        if fd not in self._listening:
            return
        listener, make_session, kind = self._listening[fd]
        for _ in range(_ACCEPT_MAX):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._accept_later(fd, exc.errno)
                    return
                continue  # the peer was gone before we took it
            _prepare(sock)
            self._adopt(sock, (ipv4_form(address[0]), address[1]), make_session, kind)

    def _accept_later(self, fd: int, error: int) -> None:
        if error == errno.EMFILE and not self._made_room:
            # Once in a while: clients are not all to go where it is not they who hold the descriptors.
            self._made_room = True
            if sum(self._make_room() for _ in range(_ROOM)):
                return  # what is closed now is free in the next turn
        self._pause(fd, os.strerror(error))

    def _pause(self, fd: int, reason: str) -> None:
        log.error("cannot accept more connections", reason=reason)
        self._epoll.unregister(fd)
        self._paused.append(fd)

    def listen_again(self) -> None:
        """Try once more to accept where that had failed; call every second or so."""
        for fd in self._paused:
            self._epoll.register(fd, IN)
        self._paused.clear()
        self._made_room = False

    def close(self) -> None:
        """Accept nothing any more."""
        for fd, (sock, _make, _kind) in self._listening.items():
            if fd not in self._paused:
                self._epoll.unregister(fd)
            sock.close()
        self._listening.clear()
        self._paused.clear()


async def connect(host: str, port: int, timeout_s: float) -> tuple[socket.socket, Address]:
    """Connect to a peer; return a socket that does not block, and the peer's address. Raises OSError."""
    with trio.move_on_after(timeout_s) as scope:
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (ValueError, OverflowError) as exc:  # peers name hosts and ports that cannot be
            raise OSError(errno.EINVAL, f"{host!r} port {port} is no address: {exc}") from exc
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
    _prepare(plain)
    return plain, (str(address[0]), int(address[1]))


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
