"""Answers of a name server as brokers read them: its own, RocketMQ's, or bytes that are neither."""

from __future__ import annotations

from ropewalk.format import fastjson

__all__ = ["broker_addresses", "group_addresses"]


def group_addresses(body: bytes) -> dict[str, str]:
    """Return the addresses of a group's members by broker id; empty for an answer that cannot be read."""
    return broker_addresses(body, "brokerMemberGroup")


def broker_addresses(body: bytes, *path: str) -> dict[str, str]:
    """Return the addresses in `brokerAddrs` below these keys, by broker id; empty where there are none."""
    try:
        found = fastjson.loads(body)
    except fastjson.FastjsonError:
        return {}
    for key in (*path, "brokerAddrs"):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return {}
    return {str(broker_id): address for broker_id, address in found.items() if isinstance(address, str)}
