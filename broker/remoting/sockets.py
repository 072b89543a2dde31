"""The ways by which sockets come into the process: accepted at a port, or connected to a peer.

A listener that cannot accept, because descriptors have run out or are left to the store, is taken off the epoll: it
would stay ready, and the loop would spin. `Listeners.listen_again` puts it back.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Sized
from typing import Final, TypeAlias

import structlog
import trio

from broker.remoting.connection import IN, MakeSession, ipv4_form

__all__ = ["Adopt", "Listeners", "connect"]

log = structlog.get_logger("broker.serve")

_BACKLOG: Final = 1024

Address: TypeAlias = tuple[str, int]
Adopt: TypeAlias = Callable[[socket.socket, Address, MakeSession], object]
"""A connected socket that does not block, its peer, and the maker of its session."""


class Listeners:
    """The listening sockets of one process."""

    def __init__(self, epoll: select.epoll, adopt: Adopt, connections: Sized, connections_max: int) -> None:
        """`adopt` takes each accepted socket over, while there are fewer `connections` than `connections_max`."""
        self._epoll = epoll
        self._adopt = adopt
        self._connections = connections
        self._connections_max = connections_max
        self._listening: dict[int, tuple[socket.socket, MakeSession]] = {}
        self._paused: list[int] = []

    def listen(self, host: str, port: int, make_session: MakeSession) -> int:
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
        self._listening[sock.fileno()] = (sock, make_session)
        self._epoll.register(sock.fileno(), IN)
        return int(sock.getsockname()[1])

    def accept(self, fd: int) -> None:
        """Accept all that have connected at this listener; nothing, if it is none any more."""
        if fd not in self._listening:
            return
        listener, make_session = self._listening[fd]
        while True:
            if len(self._connections) >= self._connections_max:
                self._pause(fd, f"{self._connections_max} are as many as the limit of open files allows")
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(fd, os.strerror(exc.errno))
                    return
                continue  # the peer was gone before we took it
            _prepare(sock)
            self._adopt(sock, (ipv4_form(address[0]), address[1]), make_session)

    def _pause(self, fd: int, reason: str) -> None:
        log.error("cannot accept more connections", reason=reason, open=len(self._connections))
        self._epoll.unregister(fd)
        self._paused.append(fd)

    def listen_again(self) -> None:
        """Try once more to accept where that had failed; call every second or so."""
        for fd in self._paused:
            self._epoll.register(fd, IN)
        self._paused.clear()

    def close(self) -> None:
        """Accept nothing any more."""
        for fd, (sock, _make) in self._listening.items():
            if fd not in self._paused:
                self._epoll.unregister(fd)
            sock.close()
        self._listening.clear()
        self._paused.clear()


async def connect(host: str, port: int, timeout_s: float) -> tuple[socket.socket, Address]:
    """Connect to a peer; return a socket that does not block, and the peer's address. Raises OSError."""
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
    _prepare(plain)
    return plain, (str(address[0]), int(address[1]))


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
