"""The pauses of a client that tries again."""

from __future__ import annotations

FIRST_PAUSE_S = 0.05


class Backoff:
    """A pause that is twice as long each time."""

    def __init__(self, first_s: float | None = None, max_s: float = 1.0) -> None:
        """Begin with `first_s` seconds, or `FIRST_PAUSE_S`, and stay at `max_s`."""
        self._pause_s = FIRST_PAUSE_S if first_s is None else first_s
        self._max_s = max_s

    def next_s(self) -> float:
        """Return the seconds of the next pause."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._max_s)
        return pause_s
