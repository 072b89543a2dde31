"""Durations counted in classes, the raw material of a histogram.

One thread adds, others look: a look may miss what is being added at that moment, and is otherwise true.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Durations"]


class Durations:
    """Counts of durations by upper bound, in seconds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        """By class; a duration equal to a bound belongs below it, and the last class is open."""
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds
