"""The nouns that callers of a key-value client meet: a lock, a region's status, and a fenced write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.client.admin.results import BrokerMember
from ropewalk.errors import Rejected

__all__ = ["Fenced", "KvLock", "KvStatus"]


class Fenced(Rejected):
    """A refusal of a write whose guarding lock was granted to another owner, or given back; nothing was stored."""


@dataclass(frozen=True, slots=True)
class KvLock:
    """A lock that was granted."""

    name: bytes
    owner: bytes
    token: int
    """The fencing token: a later grant of this lock has a higher one. Whatever the lock protects should refuse lower
    ones than it has seen."""
    lease: float
    """Seconds that the lease lasts from the grant or a renewal on."""


@dataclass(frozen=True, slots=True)
class KvStatus:
    """A region as one member sees it."""

    member: BrokerMember
    values: Mapping[str, Any]
    """`role`, `term`, `leader`, `end`, `committed`, `applied`, `keys`, `usedBytes`, ..."""
