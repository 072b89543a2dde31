"""This machine's clocks, in the form the cores take them, and a name for one client on it. Only shells look here."""

from __future__ import annotations

import os
import time

from ropewalk.client.ids import local_ip


def clock() -> float:
    """Seconds that never go back."""
    return time.monotonic()


def now_ms() -> int:
    """Milliseconds since 1970: what messages carry."""
    return time.time_ns() // 1_000_000


def new_client_id(instance: str | None = None) -> str:
    """`ip@instance`; without a name for the instance, one that no other client has."""
    ip = ".".join(map(str, local_ip()))
    return f"{ip}@{instance or f'{os.getpid()}#{time.monotonic_ns()}'}"
