"""The pauses of a client that tries again, or whose questions bring nothing."""

from __future__ import annotations

FIRST_PAUSE_S = 0.05
STANDSTILL = "the broker answers at once, again and again, and brings nothing"


class Backoff:
    """A pause that is twice as long each time."""

    def __init__(self, first_s: float | None = None, max_s: float = 1.0) -> None:
        """Begin with `first_s` seconds, or `FIRST_PAUSE_S`, and stay at `max_s`."""
        self._first_s = self._pause_s = FIRST_PAUSE_S if first_s is None else first_s
        self._max_s = max_s

    def next_s(self) -> float:
        """Return the seconds of the next pause."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._pause_s = self._first_s


class Standstill:
    """The distance that a reader's questions keep while answers do not move it on.

    A broker that holds a pull until there is something keeps that distance by itself; one that answers at once, and
    always the same, must not be asked a thousand times a second.
    """

    MAX_S = 1.0

    def __init__(self) -> None:
        self._backoff = Backoff(max_s=self.MAX_S)
        self.goes_on = False
        """True once the distance is as long as it gets."""

    def rest_s(self, took_s: float, *, moved: bool) -> float:
        """Return the seconds to rest after an answer that took so long, and moved the reader on or not."""
        if moved or took_s >= self.MAX_S:
            self._backoff.reset()
            self.goes_on = False
            return 0.0
        distance_s = self._backoff.next_s()
        self.goes_on = distance_s >= self.MAX_S
        return max(distance_s - took_s, 0.0)
