"""`TermTable`: which term an index has, and where in the log each term begins.

    row    term    first index    start: the log offset behind the entry before

A log of a million entries and three elections has three rows. Terms never fall along the log, so every question is a
binary search: the term at an index, the place at which a run disagrees, the largest index of a term that is low
enough. A *cut* needs no search for its position: a conflict inside a run begins a row, and the row knows its start.

`base` is the point in front of the first row: `NOTHING`, or what a snapshot covers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from ha.raft.types import NOTHING, Point

Row = tuple[int, int, int]

TERM_STEP_MAX: Final = 1_000_000
"""How far a peer's term may be above the own one: behind one at the end of the numbers there is no next one."""
FIRST_TERM_MAX: Final = 1 << 40
"""The highest term in which a member begins that was in none before."""


def is_too_high(term: int, own: int) -> bool:
    """Return whether no group can have come to this term since a member was in its `own` one."""
    return term > (own + TERM_STEP_MAX if own > 0 else FIRST_TERM_MAX)


class TermTable:
    """The terms of one log, by index."""

    __slots__ = ("_firsts", "_starts", "_terms", "base")

    def __init__(self, rows: Iterable[Row] = (), base: Point = NOTHING) -> None:
        self.base = base
        self._terms: list[int] = []
        self._firsts: list[int] = []
        self._starts: list[int] = []
        for term, first, start in rows:
            self.begin(term, first, start)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows as they are written down: (term, first index, start)."""
        return tuple(zip(self._terms, self._firsts, self._starts, strict=True))

    @property
    def last_term(self) -> int:
        """The term of the last row; that of the base where there is none."""
        return self._terms[-1] if self._terms else self.base.term

    def begin(self, term: int, first: int, start: int) -> None:
        """Note that the entry `first`, behind `start`, is the first of `term`. A term that goes on has no new row."""
        if self._terms:
            if term == self._terms[-1]:
                return
            assert first > self._firsts[-1], (term, first, self._firsts[-1])
            assert start > self._starts[-1], (term, start, self._starts[-1])
        elif term == self.base.term:
            return
        assert term > self.last_term, f"an entry of term {term} cannot follow one of {self.last_term}"
        assert first > self.base.index, (first, self.base)
        self._terms.append(term)
        self._firsts.append(first)
        self._starts.append(start)

    def cut(self, index: int) -> None:
        """Forget the terms that begin behind `index`."""
        assert index >= self.base.index, f"a cut at {index} is below the base {self.base.index}"
        while self._firsts and self._firsts[-1] > index:
            self._terms.pop()
            self._firsts.pop()
            self._starts.pop()

    def term_at(self, index: int) -> int:
        """Return the term of the entry `index`, which is in the log or is the last one of the base."""
        assert index >= self.base.index, f"index {index} is below the base {self.base.index}"
        row = bisect_right(self._firsts, index) - 1
        return self._terms[row] if row >= 0 else self.base.term

    def conflict(self, first: int, last: int, term: int) -> int | None:
        """Return the smallest index of [first, last] whose term is not `term`, all of which are in the log."""
        if self.term_at(first) != term:
            return first
        row = bisect_right(self._firsts, first)
        if row < len(self._firsts) and self._firsts[row] <= last:
            return self._firsts[row]
        return None

    def start_of(self, index: int) -> Point:
        """Return the log through the entry before `index`, which must be the first of its term."""
        row = bisect_right(self._firsts, index) - 1
        assert row >= 0 and self._firsts[row] == index, f"index {index} does not begin a term"
        term = self._terms[row - 1] if row else self.base.term
        return Point(index - 1, term, self._starts[row])

    def floor(self, index: int, term: int) -> int:
        """Return the largest index up to `index` whose term is at most `term`; the base's where there is none.

        Both sides of a conflict jump with it: whole terms are passed over, so that a repair costs a round for each
        term that differs and not one for each entry.
        """
        row = min(bisect_right(self._terms, term), bisect_right(self._firsts, index))
        if row < len(self._firsts) and self._firsts[row] <= index:
            return self._firsts[row] - 1
        return max(index, self.base.index)
