"""The bugs that the simulated group of timers and transactions must find, one patch in tests/bugs each."""

from __future__ import annotations

SEEDS = 60
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""


BUGS = {
    "timer-early-after-clock-step": 12,
    "timer-follow-clears-all": 5,
    "timer-promotion-skips-topic": 2,
    "timer-recall-of-another": 0,
    "timer-recall-unheard": 2,
    "timer-roll-loses-message": 7,
    "timer-slot-before-its-end": 0,
    "timer-units-not-raised": 7,
    "transaction-asked-once": 0,
    "transaction-decided-twice": 0,
    "transaction-forgotten-at-start": 0,
    "transaction-progress-past-open": 13,
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""
