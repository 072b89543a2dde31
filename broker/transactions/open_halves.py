"""`OpenHalves`: which transactions are undecided, and how far the half and operation queues are worked through. Pure.

    half queue       0 1 2 3 4 5 6 7 8 9
                         |   |     |            open: 2, 4, and 8 = 7 once more, checked
                     low = 2

A transaction has one entry, under its newest half record. A copy that a check appends replaces the record before it,
which an operation record marks as done with; an end that names an older record finds the newest through `first`, the
queue offset of the first record. So a transaction is decided once: whoever closes it takes the entry away.

Below `low` nothing is open. An operation record is done with when all offsets in it are below `low`; the two bounds are
what RocketMQ keeps as consumer offsets, and what it starts from when it takes the directory over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum, auto

from broker.transactions.records import Half

__all__ = ["CheckRules", "OpenHalves", "Verdict"]


class Verdict(Enum):
    """The decision of a check round on one open half."""

    KEEP = auto()
    """Too young, or immune."""
    CHECK = auto()
    """Ask a producer."""
    GIVE_UP = auto()
    """Asked often enough, or older than messages are kept."""


class CheckRules:
    """When a half is checked, and when it is given up. Times in ms."""

    def __init__(self, timeout_ms: int, checks_max: int, reserved_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.checks_max = checks_max
        self.reserved_ms = reserved_ms

    def immunity_of(self, half: Half) -> int:
        """Return how long a half is not checked: what it asks for, and never less than the timeout."""
        return max(half.immune_ms if half.immune_ms is not None else 0, self.timeout_ms)

    def judge(self, half: Half, now_ms: int) -> Verdict:
        """Return the verdict on a half now. A clock that was set back makes it young for a while, and no more."""
        age = now_ms - half.since_ms
        if half.checks >= self.checks_max or age > self.reserved_ms:
            return Verdict.GIVE_UP
        return Verdict.CHECK if age > self.immunity_of(half) else Verdict.KEEP

    def is_late(self, half: Half, now_ms: int) -> bool:
        """Return whether an end that answers no check comes too late: the half asked for an immunity that is over."""
        return half.immune_ms is not None and now_ms - half.since_ms > self.immunity_of(half)


class OpenHalves:
    """The undecided transactions of one half queue."""

    def __init__(self, low: int = 0, op_low: int = 0) -> None:
        self.by_offset: dict[int, Half] = {}
        """Open halves by the queue offset of their newest record."""
        self.counts: Counter[str] = Counter()
        """How many are open, by topic."""
        self.changed: dict[str, int] = {}
        """Topic -> when its count changed last, ms."""
        self.decided: deque[int] = deque()
        """Half offsets that no operation record names yet."""
        self.low = low
        self.end = low
        """Behind the last half record."""
        self._newest: dict[int, int] = {}  # first record's offset -> newest, of transactions with copies
        self._ops: deque[tuple[int, int]] = (
            deque()
        )  # operation records in use: (queue offset, highest half offset)
        self._op_low = op_low

    def __len__(self) -> int:
        return len(self.by_offset)

    def add(self, half: Half, now_ms: int) -> None:
        """Open a transaction under the newest of its half records."""
        assert half.offset not in self.by_offset, half.offset
        self.end = max(self.end, half.offset + 1)
        self.low = min(self.low, half.offset)
        if half.first != half.offset:
            self._newest[half.first] = half.offset
        self.by_offset[half.offset] = half
        self._count(half.topic, 1, now_ms)

    def find(self, offset: int, first: int) -> Half | None:
        """Return the open transaction of a half record, whichever of its records that is; None if there is none."""
        return self.by_offset.get(self._newest.get(first, offset))

    def renew(
        self, half: Half, offset: int, log_offset: int, checks: int, now_ms: int, *, marks: bool = True
    ) -> Half:
        """Put the copy of a half that was just appended in its place, and return it.

        `marks` has an operation record name the record before it, so that nobody takes that for open. RocketMQ would
        take the copy of a half that is still immune for decided then.
        """
        assert half.offset in self.by_offset and offset >= self.end, (half.offset, offset, self.end)
        older = half.older if marks else (*half.older, half.offset)
        copy = replace(half, offset=offset, log_offset=log_offset, checks=checks, older=older)
        self._drop(half, now_ms)
        if marks:
            self.decided.append(half.offset)
        self.add(copy, now_ms)
        return copy

    def close(self, half: Half, now_ms: int) -> None:
        """End a transaction: all of its records are decided."""
        assert self.by_offset.get(half.offset) is half, half.offset
        self._drop(half, now_ms)
        self.decided.extend(half.older)
        self.decided.append(half.offset)

    def _drop(self, half: Half, now_ms: int) -> None:
        del self.by_offset[half.offset]
        self._newest.pop(half.first, None)
        self._count(half.topic, -1, now_ms)

    def _count(self, topic: str, by: int, now_ms: int) -> None:
        self.counts[topic] += by
        self.changed[topic] = now_ms
        assert self.counts[topic] >= 0, topic

    def raise_end(self, end: int) -> None:
        """Count half records before `end` as known: those that are not open are done with."""
        self.end = max(self.end, end)

    def take_over(self, other: OpenHalves) -> None:
        """Take over the decisions of another table, but not its open halves."""
        self.decided.extend(other.decided)
        self._ops.extend(other._ops)
        self.end = max(self.end, other.end)

    # -- operation records and progress ----------------------------------------------------------------

    def op_written(self, op_offset: int, offsets: Iterable[int]) -> None:
        """Keep in mind which half offsets an operation record names; records come in the order of their queue."""
        assert not self._ops or self._ops[-1][0] < op_offset, (self._ops[-1], op_offset)
        self._ops.append((op_offset, max(offsets, default=-1)))

    def progress(self) -> tuple[int, int]:
        """Return how far the half queue and the operation queue are worked through: two queue offsets."""
        low, end, open_halves = self.low, self.end, self.by_offset
        if not open_halves:
            low = end
        else:
            while low < end and low not in open_halves:
                low += 1
        if self.decided:
            low = min(low, *self.decided)  # until an operation record says so, nobody else knows
        self.low = low
        while self._ops and self._ops[0][1] < low:
            self._op_low = self._ops.popleft()[0] + 1
        return low, self._op_low
