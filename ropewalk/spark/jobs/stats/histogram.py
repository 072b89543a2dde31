"""Histograms of whole numbers in bins that are never wider than a thirty-second of their values.

    0 .. 63     a bin each
    64 ..       32 bins between a power of two and the next

So a quantile read off it is at most 3 % too low, whatever the numbers are, and two histograms add up bin by bin. That
is what lets every task look at its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ropewalk.spark.jobs.records.scan import Ints

_EXACT: Final = 64
_PARTS: Final = 32
_EXPONENT: Final = 6
"""Of the first number that has no bin of its own."""


def bins_of(values: Ints) -> Ints:
    """Return the bin of each of these numbers; negative ones have none and go with 0."""
    values = np.maximum(values, 0)
    # Exact up to 2**53, which no size and no time of ours comes near.
    exponent = np.frexp(np.maximum(values, 1).astype(np.float64))[1].astype(np.int64) - 1
    above = np.maximum(exponent, _EXPONENT)
    wide: Ints = _EXACT + (above - _EXPONENT) * _PARTS + (values >> (above - 5)) - _PARTS
    return np.where(values < _EXACT, values, wide)


def lowest_of(bin_: int) -> int:
    """Return the least number that goes into a bin."""
    if bin_ < _EXACT:
        return bin_
    above, part = divmod(bin_ - _EXACT, _PARTS)
    return (_PARTS + part) << (above + 1)


@dataclass(slots=True)
class Histogram:
    """Counts by bin; `bins` maps a bin to how many numbers fell into it."""

    bins: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Ints) -> Histogram:
        numbers, counts = np.unique(bins_of(values), return_counts=True)
        return cls(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))

    def add(self, other: Histogram) -> None:
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count

    @property
    def count(self) -> int:
        return sum(self.bins.values())

    def quantiles(self, wanted: Sequence[float]) -> list[int | None]:
        """Return for each share the least number of the bin that reaches it; None if the histogram is empty."""
        total = self.count
        if not total:
            return [None] * len(wanted)
        numbers = sorted(self.bins)
        reached = np.cumsum([self.bins[number] for number in numbers])
        return [
            lowest_of(numbers[min(int(np.searchsorted(reached, share * total)), len(numbers) - 1)])
            for share in wanted
        ]

    def curve(self) -> list[tuple[float, float]]:
        """Return (number, share of counts at or below it) pairs for a plot."""
        total, sum_ = self.count, 0
        points: list[tuple[float, float]] = []
        for number in sorted(self.bins):
            sum_ += self.bins[number]
            points.append((float(lowest_of(number)), sum_ / total))
        return points


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """Return one histogram of all."""
    result = Histogram()
    for each in histograms:
        result.add(each)
    return result
