"""Answers of a name server as brokers read them: its own, RocketMQ's, or bytes that are neither."""

from __future__ import annotations

from typing import Any, Final

from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.sliced_json import Slices, finish, loads_in_slices

__all__ = ["broker_addresses", "group_addresses"]


_GROUP_SIZE_MAX: Final = 8 << 10
"""Bytes of an answer about one group, which is read while others are served: two hundred members."""
_CLUSTER_SIZE_MAX: Final = 1 << 20
"""Bytes of an answer about all brokers, which is read at a start: ten thousand of them."""


def group_addresses(body: bytes) -> dict[str, str]:
    """Return the addresses of a group's members by broker id; empty for an answer that cannot be read."""
    return _addresses(loads_in_slices(body, _GROUP_SIZE_MAX), "brokerMemberGroup")


def broker_addresses(body: bytes, *path: str) -> dict[str, str]:
    """Return the addresses in `brokerAddrs` below these keys, by broker id; empty where there are none."""
    return _addresses(loads_in_slices(body, _CLUSTER_SIZE_MAX), *path)


def _addresses(reading: Slices, *path: str) -> dict[str, str]:
    try:
        found: Any = finish(reading)
    except FastjsonError:
        return {}
    for key in (*path, "brokerAddrs"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return {}
    return {str(broker_id): address for broker_id, address in found.items() if isinstance(address, str)}
