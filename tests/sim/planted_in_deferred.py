"""The bugs that the simulated group of timers and transactions must find, one patch in tests/bugs each."""

from __future__ import annotations

SEEDS = 60
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""


BUGS: dict[str, int] = {}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""
