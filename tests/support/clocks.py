"""Clocks that a test sets by hand: time stands still until the test moves it."""

from __future__ import annotations

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Clock:
    """A wall clock in milliseconds, which may also be set, and a monotonic clock that only passes."""

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms
        self._set_by = 0

    def __call__(self) -> int:
        """Return the time of the wall clock, as `now_ms` of the code under test."""
        return self.ms

    def monotonic(self) -> int:
        """Return milliseconds since this machine booted, a day before the default start."""
        return self.ms - self._set_by - START_MS + DAY_MS

    def seconds(self) -> float:
        """Return the wall clock in seconds, for code that reads `time.monotonic`."""
        return self.ms / 1000

    def nanoseconds(self) -> int:
        """Return the wall clock in nanoseconds, for code that reads `time.monotonic_ns`."""
        return self.ms * 1_000_000

    def set_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, while no time passes."""
        self.ms += by_ms
        self._set_by += by_ms
