"""Report the progress of a long copy to people, while a slave is far behind its master.

    begins     further behind than `FAR`: an empty slave, one that was away for long, one behind retention
    ends       closer than `NEAR`; in between it is told every few seconds how much is done and what is left

Time, and how much was received, are handed in.
"""

from __future__ import annotations

__all__ = ["FAR", "NEAR", "TOLD_MS", "CopyProgress"]

FAR = 64 << 20
NEAR = 4 << 20
TOLD_MS = 5_000
_MB = 1_000_000


class CopyProgress:
    """The progress of one slave's copy."""

    def __init__(self) -> None:
        self._began: tuple[int, int] | None = None
        """When the copy began, and what had been received until then; None while there is none."""
        self._told = (0, 0)
        self._done = self._left = 0

    @property
    def text(self) -> str:
        """Return the progress in a word or two; empty where there is nothing to copy."""
        return f"copying, {self._percent()} %" if self._began is not None else ""

    def observe(self, behind: int, received: int, now_ms: int) -> str | None:
        """Take the bytes that are missing, and the sum of all that were received; return news for people, if any."""
        if self._began is None:
            if behind <= FAR:
                return None
            self._began = self._told = now_ms, received
            self._done, self._left = 0, behind
            return f"{behind // _MB:,} MB of the master's log are missing here: copying them"
        since_ms, since = self._began
        self._done, self._left = received - since, behind
        if behind <= NEAR:
            self._began = None
            return (
                f"copied {self._done // _MB:,} MB of the master's log in {(now_ms - since_ms) / 1000:.1f} s "
                f"({_rate(self._done, now_ms - since_ms)})"
            )
        told_ms, told = self._told
        if now_ms - told_ms < TOLD_MS:
            return None
        self._told = now_ms, received
        lately = received - told
        rest = (
            f"about {behind * (now_ms - told_ms) // lately // 1000:,} s to go"
            if lately
            else "it stands still"
        )
        return (
            f"copying the master's log: {self._percent()} %, {self._done // _MB:,} MB are here, "
            f"{behind // _MB:,} MB are missing, {_rate(lately, now_ms - told_ms)}, {rest}"
        )

    def _percent(self) -> int:
        return 100 * self._done // max(1, self._done + self._left)


def _rate(size: int, took_ms: int) -> str:
    return f"{size / max(1, took_ms) * 1000 / _MB:,.0f} MB/s"
