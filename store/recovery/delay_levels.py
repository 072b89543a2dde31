"""Delay levels: how long a message of each level waits, and so when it is due.

A producer cannot ask for any delay, only for one of a table (`messageDelayLevel`, 18 levels by default). All messages
of one level wait equally long, so the queue in which they wait is ordered by itself:

    level n  ->  queue n-1 of SCHEDULE_TOPIC_XXXX;  tag code of its entries: the time of delivery, ms

Recovery needs the table as well as the broker does: an entry that it builds again from the log must carry the time
and not the hash of a tag, or the message would be due at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_DELAYS_MS = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """The table; `delays_ms[0]` is level 1."""

    delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS

    def level_of(self, text: str | None) -> int:
        """The level that the property `DELAY` asks for: 0 for none, the highest for one beyond the table.

        Raises ValueError for what is no number: it was meant as a delay, so it must not be stored as none.
        """
        if not text:
            return 0
        if not _NUMBER.fullmatch(text):
            raise ValueError(f"the delay level {text[:40]!r} is no number")
        return max(0, min(int(text), len(self.delays_ms)))

    def delay_ms(self, level: int) -> int:
        return self.delays_ms[level - 1]

    def delay_of(self, text: str) -> int:
        """The delay in ms that a stored `DELAY` means, 0 for none. For what stands in the log, so it never raises."""
        try:
            level = self.level_of(text)
        except ValueError:
            return 0
        return self.delay_ms(level) if level else 0


DEFAULT_LEVELS = DelayLevels()
