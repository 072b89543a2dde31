"""The bugs that the simulated region and the simulated store must find, one patch in tests/bugs each."""

from __future__ import annotations

SEEDS = 300
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""

BUGS = {
    "kv-lease-by-local-clock": 1,
    "kv-outcome-of-another-entry": 1,
    "kv-read-at-once": 0,
    "kv-retry-applied-twice": 2,
    "kv-snapshot-of-later-values": 12,
    "kv-token-given-twice": 0,
}
"""Each with the first seed that finds it; the long run searches from 0."""

REGIONS_BUGS = {
    "kv-lease-by-wall-clock": 0,
    "kv-old-epoch-applied": 1,
    "kv-read-of-moved-keys": 4,
    "kv-snapshot-forgets-origin": 0,
}
"""Bugs that show only where regions are cut."""

DAMAGE_BUGS = {"kv-damaged-member-votes": 2}
"""Bugs that show only where a log is damaged."""

RARE_BUGS = ("kv-split-counts-anew", "kv-split-without-sessions")
"""Bugs that the simulated store finds in the long run; `tests.ha.kv` finds them, too."""
