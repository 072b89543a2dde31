"""Ports for servers that must have theirs before they start, or must get the same again after a kill.

Whatever can be told port 0 should be. These lie below the range from which the system takes the ports of outgoing
connections, so that no client sits on one while its server is away; and each of pytest-xdist's workers draws from a
range of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
from collections.abc import Sequence

LOW, HIGH = 20_000, 32_000
SHARES = 8
"""Workers beyond these share a range with another one, and are told apart by chance."""

NEIGHBOURS = (-2, 0, 1)
"""What a broker opens: the same codes without pulls below its port, and replication above it."""


def my_range(worker: str | None = None) -> range:
    """The ports of this worker, named as in PYTEST_XDIST_WORKER; without workers, those of the first."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "") if worker is None else worker
    number = int(match.group()) if (match := re.search(r"\d+$", name)) else 0
    width = (HIGH - LOW) // SHARES
    start = LOW + number % SHARES * width
    return range(start, start + width)


def free_ports(count: int, neighbours: Sequence[int] = NEIGHBOURS) -> list[int]:
    """Ports on which, and on whose neighbours, nobody listens; no two of them are anywhere near each other.

    They are free when this returns, and not reserved.
    """
    mine, found = my_range(), list[int]()
    # Not the generator that others seed: two that draw the same would meet.
    draw = random.SystemRandom()
    for _ in range(200):
        port = draw.randrange(mine.start + 8, mine.stop - 8)
        if all(abs(port - other) > 8 for other in found) and _free([port + step for step in neighbours]):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports from {mine.start} to {mine.stop}")


def free_port() -> int:
    """Return one free port."""
    return free_ports(1, neighbours=(0,))[0]


def _free(ports: Sequence[int]) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
