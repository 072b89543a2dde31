"""The time of a region, which its leader stamps its entries with.

Only differences of stamps mean anything, and no wall clock has a part in them: a leader goes on from the time that its
machine has, by its own monotonic clock. The time in which nobody led is left out, so that a lease may last longer where
leaders change, and never ends before its time.
"""

from __future__ import annotations

from collections.abc import Callable


class Stamps:
    """The stamps of one member, in milliseconds."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._stamp_ms = self._at_ms = 0

    def begin(self, clock_ms: int) -> None:
        """Begin to lead where the machine's time is `clock_ms`."""
        self._stamp_ms, self._at_ms = clock_ms, self._monotonic_ms()

    def next(self, clock_ms: int) -> int:
        """Return the stamp for this moment, where the machine's time is `clock_ms`: it never falls behind that."""
        now_ms = self._monotonic_ms()
        self._stamp_ms = max(self._stamp_ms + now_ms - self._at_ms, clock_ms)
        self._at_ms = now_ms
        return self._stamp_ms
