"""The origin of a connection: the address by which bounds are shared out among strangers."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

__all__ = ["origin_of"]


def origin_of(host: str) -> str:
    """Return the address that a peer counts under: an IPv4 address itself, of an IPv6 address its network of 64 bits.

    One machine has 2^64 IPv6 addresses to choose from.
    """
    return _network_of(host) if ":" in host else host


@lru_cache(maxsize=1024)
def _network_of(host: str) -> str:
    try:
        return str(
            ipaddress.IPv6Network((int(ipaddress.IPv6Address(host.partition("%")[0])), 64), strict=False)
        )
    except ValueError:
        return host
