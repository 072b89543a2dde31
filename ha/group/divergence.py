"""Find the offset at which two logs part, by checksums, before a byte is replicated.

    |  the same in both                         | first difference              slave's end
                               last record of both ^ boundary: the slave's log is cut here

The slave drives. It asks the master for CRC32C sums of its last 64 MiB, a MiB at a time, and is done if they are the
same: that is every ordinary reconnect, one question long. Otherwise it halves what lies before until the first MiB
that differs is found, then its first differing page, then the byte; the record that the byte belongs to begins the
part that only the slave has. Bytes alone decide: what is the same in both is never cut, whoever wrote it.

Searching by halves needs "the same up to somewhere, different from there on", and the padding at the end of a segment
can look the same in any two logs: so a place counts as the same only with as many MiB before it as no padding fills.

Generators: each yields a question and is sent its answer. Reads of the own log block; a helper thread runs them. Left
to others: carrying the queries (`ha.group.hello` has the messages), and the tail's fate (`store.offline.diverged`).
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import crc32c

from ropewalk.errors import RemoteProtocolError

__all__ = [
    "BLOCK",
    "Bytes",
    "Compared",
    "Extent",
    "Finding",
    "LogView",
    "LogQuery",
    "Sums",
    "compare",
    "sums_of",
    "tail",
]

BLOCK = 1 << 20
PAGE = 4096
BLOCKS_AT_ONCE = 64
"""Sums of a question; as many MiB are read for its answer."""
_SURE = 6
"""Blocks that have to be the same before a place counts as the same: no record, and so no padding, is that long."""


class LogView(Protocol):
    """The own log, for a thread that may wait for the disk."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int:
        """The offset behind the last whole record."""

    def read(self, offset: int, size: int) -> bytes:
        """Read exactly these bytes, which are all there."""

    def boundary(self, offset: int) -> int:
        """Return the end of the last record that ends at or before `offset`."""


@dataclass(frozen=True, slots=True)
class Sums:
    """A query for the CRC32C of each of these (start, end)."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bytes:
    """A query for the bytes from `start` to `end`, a page at most."""

    start: int
    end: int


LogQuery: TypeAlias = Sums | Bytes
Search: TypeAlias = Generator[LogQuery, "Sequence[int | None] | bytes", int]


@dataclass(frozen=True, slots=True)
class Extent:
    """The first and the last offset of one member's log."""

    begin: int
    end: int


class Finding(enum.Enum):
    """The relation of a slave's log to its master's."""

    SAME = "same"
    """The slave's log is the beginning of the master's: it goes on from its end."""
    LONGER = "longer"
    """All of the master's log and more: the rest is cut."""
    DIVERGED = "diverged"
    """The same up to somewhere: the rest is cut."""
    BEHIND = "behind"
    """It ends before the master's log begins: it starts again from there."""
    STRANGERS = "strangers"
    """Nothing is the same: a person has to decide."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison."""

    finding: Finding
    common: int = 0
    """The offset behind the last record that both have."""


def tail(begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of the last 64 MiB, of which a hello brings sums."""
    first = max(begin, (max(end, 1) - 1) // BLOCK * BLOCK - (BLOCKS_AT_ONCE - 1) * BLOCK)
    return pieces(first, end, BLOCK)


def pieces(start: int, end: int, step: int) -> tuple[tuple[int, int], ...]:
    """Cut [start, end) at the multiples of `step`."""
    found = []
    while start < end:
        stop = min(end, start - start % step + step)
        found.append((start, stop))
        start = stop
    return tuple(found)


def sums_of(log: LogView, ranges: Sequence[tuple[int, int]]) -> tuple[int | None, ...]:
    """Return the sums of the own bytes; None for a range that is not all there. Blocks."""
    found: list[int | None] = []
    for start, end in ranges:
        whole = log.begin <= start < end <= log.end
        found.append(crc32c.crc32c(log.read(start, end - start)) if whole else None)
    return tuple(found)


def compare(
    log: LogView, mine: Extent, theirs: Extent
) -> Generator[LogQuery, Sequence[int | None] | bytes, Compared]:
    """Compare a slave's log (`log`, described by `mine`) with its master's. Blocks for own reads."""
    if mine.end == mine.begin:
        return Compared(Finding.SAME, mine.end)
    if mine.end < theirs.begin:
        return Compared(Finding.BEHIND)
    low = max(mine.begin, theirs.begin)
    top = min(mine.end, theirs.end)
    if top <= low:
        same_here = top == low == mine.end  # it ends exactly where the master's begins
        return Compared(Finding.SAME if same_here else Finding.STRANGERS, low)
    first = yield from first_difference(log, low, top)
    if first == mine.end:
        return Compared(Finding.SAME, first)
    common = log.boundary(first)
    if common <= low:
        return Compared(Finding.STRANGERS, low)
    return Compared(Finding.LONGER if first == theirs.end else Finding.DIVERGED, common)


def first_difference(log: LogView, low: int, top: int) -> Search:
    """Return the first offset in [low, top) at which the two logs differ, or `top`."""
    base = low - low % BLOCK
    count = (top - base + BLOCK - 1) // BLOCK

    def block(number: int) -> tuple[int, int]:
        start = base + number * BLOCK
        return max(low, start), min(top, start + BLOCK)

    different = yield from _first_different(
        log, [block(n) for n in range(max(0, count - BLOCKS_AT_ONCE), count)]
    )
    if different is None:
        return top
    same, bad = 0, (different[0] - base) // BLOCK  # blocks below `same` are the same, block `bad` is not
    if bad == max(0, count - BLOCKS_AT_ONCE):
        while bad - same > BLOCKS_AT_ONCE:
            middle = (same + bad) // 2
            sight = [block(n) for n in range(max(same, middle - _SURE + 1), middle + 1)]
            found = yield from _first_different(log, sight)
            if found is None:
                same = middle + 1
            else:
                bad = (found[0] - base) // BLOCK
        found = yield from _first_different(log, [block(n) for n in range(same, bad)])
        if found is not None:
            bad = (found[0] - base) // BLOCK
    page = yield from _first_different(log, pieces(*block(bad), PAGE))
    if page is None:
        raise RemoteProtocolError("the master's checksums contradict each other")
    answer = yield Bytes(*page)
    own = log.read(page[0], page[1] - page[0])
    if not isinstance(answer, bytes) or len(answer) != len(own) or answer == own:
        raise RemoteProtocolError("the master's bytes contradict its checksums")
    return page[0] + next(at for at, (a, b) in enumerate(zip(own, answer, strict=True)) if a != b)


def _first_different(
    log: LogView, ranges: Sequence[tuple[int, int]]
) -> Generator[LogQuery, Sequence[int | None] | bytes, tuple[int, int] | None]:
    if not ranges:
        return None
    theirs = yield Sums(tuple(ranges))
    if isinstance(theirs, bytes) or len(theirs) != len(ranges) or None in theirs:
        raise RemoteProtocolError(
            f"the master gave no checksums of its log from {ranges[0][0]} to {ranges[-1][1]}"
        )
    mine = sums_of(log, ranges)
    return next((each for each, a, b in zip(ranges, mine, theirs, strict=True) if a != b), None)
