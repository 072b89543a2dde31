"""`Region`: the range of keys that a Raft group has, and the epoch of its cut."""

from __future__ import annotations

from msgspec import Struct


class Region(Struct, frozen=True):
    """A range of keys. An end that is empty stands behind every key."""

    id: int
    start: bytes = b""
    end: bytes = b""
    epoch: int = 1
    """Rises whenever the range changes: a request that was routed by an older cut is refused."""
