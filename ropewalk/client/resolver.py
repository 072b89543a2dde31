"""Look-ups of host names within the time limit of their caller.

The system's look-up of a name takes as long as it takes, eight seconds or thirty where a name server is away, and
nothing ends it. So it runs in a daemon thread, one for each name at a time, and who waits for it goes when its time is
up: the next one who asks for this name waits for the same thread.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LookupTimeout

from ropewalk.client.core.connection import Unreachable
from ropewalk.client.fork import renew_after_fork

Found = list[tuple[socket.AddressFamily, str]]
"""Families and IPs, in the order in which to try them."""


class _Resolver:
    """The look-ups under way in this process."""

    def __init__(self) -> None:
        self._renew()
        renew_after_fork(self)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Found]] = {}

    def look_up(self, host: str) -> Future[Found]:
        """Begin to look a name up, or join whoever does already."""
        with self._lock:
            future = self._under_way.get(host)
            if future is None:
                future = self._under_way[host] = Future()
                thread = threading.Thread(
                    target=self._work, args=(host, future), name="ropewalk-resolver", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the interpreter ends, and starts no more threads
                    del self._under_way[host]
                    future.set_result(_ask(host))
        return future

    def _work(self, host: str, future: Future[Found]) -> None:
        try:
            found = _ask(host)
        except BaseException as exc:
            self._end(host)
            future.set_exception(exc)
        else:
            self._end(host)
            future.set_result(found)

    def _end(self, host: str) -> None:
        with self._lock:
            del self._under_way[host]


_resolver = _Resolver()


def _ask(host: str, flags: int = 0) -> Found:
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((entry[0], str(entry[4][0])) for entry in entries))


def numeric(host: str) -> Found:
    """Return the IP that a host is given as; nothing for a name. Does not block. Raises ValueError."""
    try:
        return _ask(host, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def resolve(host: str, timeout_s: float) -> Found:
    """Return the IPs of a host; blocks for `timeout_s` seconds at most.

    Raises `Unreachable` when the time is up, OSError where nobody knows the host, ValueError for what cannot be one.
    """
    if found := numeric(host):
        return found
    try:
        return _resolver.look_up(host).result(max(timeout_s, 0.0))
    except LookupTimeout:
        raise Unreachable(f"the name {host} was not resolved within {timeout_s:g} s") from None


def ip_within(host: str, timeout_s: float) -> str:
    """Return one IP of a host, IPv4 where it has one, as Java's clients prefer. Blocks and raises as `resolve`."""
    found = resolve(host, timeout_s)
    return min(found, key=lambda each: each[0] != socket.AF_INET)[1]
