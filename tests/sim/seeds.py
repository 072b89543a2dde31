"""Seeds of simulated lives: those that every run tries, and those that only this day tries.

A fixed set of seeds finds what a change breaks, and nothing that it has passed by from the beginning. So each run adds
some that nobody has used: they move with the day (UTC), and a failure names the seed with which it is seen again.
`ROPEWALK_SIM_DAY` (a date, as 2026-11-25) has the seeds of another day tried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime

_A_DAY = 10_000
"""So many seeds are one day's. Every day that there will be lies beyond the fixed ones, which are fewer."""


def day() -> date:
    """Return the day whose seeds are tried."""
    chosen = os.environ.get("ROPEWALK_SIM_DAY")
    return date.fromisoformat(chosen) if chosen else datetime.now(UTC).date()


def seeds_of(part: int, parts: int, fixed: int, daily: int) -> Iterator[int]:
    """Yield one part's share of `fixed` seeds from 0 on, and of `daily` ones from the day's first on."""
    assert fixed <= _A_DAY and daily <= _A_DAY
    for count, first in ((fixed // parts, 0), (daily // parts, day().toordinal() * _A_DAY)):
        yield from range(first + part * count, first + (part + 1) * count)


def told(command: str) -> str:
    """Return the note on a failure: how it is seen again."""
    return f"seen again with: {command} (the day's seeds were those of ROPEWALK_SIM_DAY={day()})"
