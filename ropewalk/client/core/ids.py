"""The id a producer gives a message before it knows where the message will lie (`UNIQ_KEY`).

    IP 4 or 16 bytes | process id i16 | salt i32 | ms since the month began i32 | counter i16

written as upper-case hex. Brokers index it and echo it; only its uniqueness matters. Where Java
puts the hash of a class loader, so that two clients in one process differ, we put a random salt.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable

from ropewalk.client.fork import renew_after_fork

MONTH_MS_MAX = 31 * 86_400_000


def month_start_ms(now_ms: int) -> int:
    """Return the first instant of the local month that contains `now_ms`."""
    moment = time.localtime(now_ms / 1000)
    return int(time.mktime((moment.tm_year, moment.tm_mon, 1, 0, 0, 0, 0, 0, -1)) * 1000)


class UniqueKeys:
    """A source of message ids. Not shared between threads."""

    def __init__(self, ip: bytes, pid: int, salt: int, now_ms: Callable[[], int]) -> None:
        assert len(ip) in (4, 16), ip
        self._ip = ip
        self._prefix = self._prefix_of(pid, salt)
        self._now_ms = now_ms
        self._counter = 0
        self._month_ms = month_start_ms(now_ms())

    def _renew(self) -> None:
        """Begin anew in a process that was forked: with its id and a salt of its own."""
        self._prefix = self._prefix_of(os.getpid(), random.SystemRandom().getrandbits(32))

    def next(self) -> str:
        """Return an id that this source has not given before (65536 of them fit in a millisecond)."""
        prefix = self._prefix_now()
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{prefix}{counter:04X}"

    def next_many(self, count: int) -> tuple[str, ...]:
        """Return as many ids as `next` would, reading the clock once for each hundred."""
        keys: list[str] = []
        for begin in range(0, count, 100):
            prefix, counter = self._prefix_now(), self._counter
            some = min(100, count - begin)
            keys += [f"{prefix}{number & 0xFFFF:04X}" for number in range(counter, counter + some)]
            self._counter = (counter + some) & 0xFFFF
        return tuple(keys)

    def _prefix_of(self, pid: int, salt: int) -> str:
        return f"{self._ip.hex().upper()}{pid & 0xFFFF:04X}{salt & 0xFFFF_FFFF:08X}"

    def _prefix_now(self) -> str:
        elapsed = self._now_ms() - self._month_ms
        if not 0 <= elapsed < MONTH_MS_MAX:
            # The month is looked up again only once it must have ended: a clock that stands near
            # midnight does not make every message pay for calendar arithmetic.
            self._month_ms = month_start_ms(self._now_ms())
            elapsed = self._now_ms() - self._month_ms
        return f"{self._prefix}{elapsed & 0xFFFF_FFFF:08X}"


def ip_of(host: str) -> str:
    """Return the IP of a host, IPv4 where it has one, as Java's clients prefer.

    Blocks. Raises OSError if nobody knows it.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])


def local_ip() -> bytes:
    """Return the address of this machine that an ordinary route would use; loopback when there is none.

    Connecting a datagram socket sends nothing: it only asks the kernel which address it would use.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            ip: str = probe.getsockname()[0]
        except OSError:
            return bytes((127, 0, 0, 1))
    return socket.inet_aton(ip)


def default_unique_keys() -> UniqueKeys:
    """Return the source a client uses unless it is handed another one."""
    keys = UniqueKeys(
        local_ip(), os.getpid(), random.SystemRandom().getrandbits(32), lambda: time.time_ns() // 1_000_000
    )
    renew_after_fork(keys)
    return keys
