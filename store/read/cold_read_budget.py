"""Limit how much of a busy loop goes to consumers far behind: they come forward, and senders keep their rate.

A read of what is in no cache any more costs the loop more than a message that is stored, and the machine still more: a
thread that reads, a client that takes. Where the loop has time that is nobody's loss. Where it has none, and the log
grows, every such read is sends that wait. Then, and only then, cold reads are put off: so many bytes are read in each
window of time, and who waited longest is next. Nobody waits longer than `WAIT_MAX_S`, whatever there is to do, so
that a pull is answered long before its client gives up (the original, if told to, has such a pull wait for a second).

Left to others: what a cold read is, and the reads that were put off (`store.read.reader`); the clock (the shell's).
"""

from __future__ import annotations

WINDOW_S = 0.01
WINDOW_BYTES = 64 << 10
WAIT_MAX_S = 0.5
_IDLE_SHARE = 0.15
"""A loop that waited for that much of a window has time for everybody."""
_CALM_S = 0.1
"""So long it must have had time before it counts as having it: a single window says little."""


class ColdReadBudget:
    """A limit on the bytes of cold reads while the loop has no time. Has no clock: `observe` brings the time, often."""

    __slots__ = ("_begin", "_busy_until", "_end", "_idle_s", "_left", "now")

    def __init__(self) -> None:
        self.now = 0.0
        """The time of the last `observe`, s."""
        self._begin = 0.0
        self._idle_s = 0.0
        self._end = 0
        self._left = 0
        self._busy_until = 0.0

    def observe(self, now: float, idle_s: float, log_end: int) -> None:
        """Take in the time, how long the loop has waited in all its life, and the end of the log. HOT."""
        self.now = now
        took = now - self._begin
        if took < WINDOW_S:
            return
        if log_end > self._end and idle_s - self._idle_s < _IDLE_SHARE * took:
            self._busy_until = now + _CALM_S
        self._begin, self._idle_s, self._end = now, idle_s, log_end
        # What was read too much of the last window is missing from this one; what was not read is gone.
        self._left = min(self._left + WINDOW_BYTES, WINDOW_BYTES)

    @property
    def has_room(self) -> bool:
        """Tell whether a cold read may be made now."""
        return self._left > 0 or self.now >= self._busy_until

    def spend(self, size: int) -> None:
        """Charge for bytes that were read."""
        if self.now < self._busy_until:
            self._left -= size
