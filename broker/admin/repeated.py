"""`Repeated`: when the log tells of a refusal that the same peer gets again and again. Pure.

It is told at once, and while it goes on once in ten minutes, with the number of times since it was told last.
"""

from __future__ import annotations

from typing import Final

__all__ = ["REFUSALS_MAX", "SAY_AGAIN_MS", "Repeated"]

SAY_AGAIN_MS: Final = 600_000
REFUSALS_MAX: Final = 64


class Repeated:
    """The refusals of late; of too many the one that was told longest ago is forgotten."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[int, int]] = {}
        """By peer and reason, the one told last at the end: the time of the line, and how often it came since."""

    def count(self, peer: str, reason: str, now_ms: int) -> int:
        """Count a refusal; return how many came since the last line about them if a line is due, and 0 if none is."""
        key = peer, reason
        told_ms, since = self._told.get(key, (now_ms - SAY_AGAIN_MS, 0))
        if now_ms - told_ms < SAY_AGAIN_MS:
            self._told[key] = told_ms, since + 1
            return 0
        self._told.pop(key, None)
        if len(self._told) >= REFUSALS_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[key] = now_ms, 0
        return since + 1
