"""`OutgoingBudget`: the bytes that connections may owe their peers, each and all together, as strangers can open many.

A connection that owes more than `limit` is *congested*: it is not read, and its requests wait. While all together owe
more than `total`, the limit is 0. Who reads what it asked for owes nothing when its next request comes, and gets one
answer at a time then; who does not read gets nothing more. Nobody is closed for that, unless those that wait with one
answer each are so many that all owe twice `total`: then those that took nothing for longest are closed, down to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

__all__ = ["TOTAL_MAX", "OutgoingBudget"]

TOTAL_MAX: Final = 256 << 20


class Debtor(Protocol):
    """A connection, as far as it owes bytes."""

    counted: int
    """Bytes that its budget knows of."""
    budget: OutgoingBudget
    progress: float
    """The time at which its peer last took something, or began to be owed something."""


_D = TypeVar("_D", bound=Debtor)


class OutgoingBudget:
    """Bytes that the connections of a process owe, as far as their sockets did not take them at once."""

    __slots__ = ("_total", "each", "limit", "size")

    def __init__(self, each: int, total: int = TOTAL_MAX) -> None:
        """One connection may owe `each` bytes, and all together `total`, but for one answer of each."""
        self.each = each
        self._total = total
        self.size = 0
        self.limit = each
        """Bytes that one connection may owe now, and still be read."""

    def add(self, grown: int) -> None:
        """Count bytes that came to be owed; less than 0 where some were taken."""
        self.size += grown
        self.limit = self.each if self.size <= self._total else 0

    def excess(self, debtors: Iterable[_D]) -> list[_D]:
        """Return the connections to be closed, because all together owe twice their bound."""
        over = self.size - self._total
        if over <= self._total:
            return []
        found: list[_D] = []
        owing = [each for each in debtors if each.counted and each.budget is self]
        for each in sorted(owing, key=lambda each: each.progress):
            if over <= 0:
                break
            over -= each.counted
            found.append(each)
        return found
