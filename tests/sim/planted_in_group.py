"""The bugs that the simulated group must find, one patch in tests/bugs each, with the seeds to search."""

from __future__ import annotations

SEEDS = 400
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""


BUGS = {
    "ha-ack-before-flush": 6,
    "ha-answers-let-go-when-deposed": 21,
    "ha-append-at-a-gap": 8,
    "ha-deposed-keeps-its-place": 0,
    "ha-diverged-tail-kept": 0,
    "ha-master-not-fenced": 22,
    "ha-never-looks-for-a-newer-master": 14,
    "ha-old-connection-counted": 32,
    "ha-old-master-still-followed": 5,
    "ha-promise-not-saved": 4,
    "ha-promoted-by-too-few": 6,
    "ha-report-before-flush": 207,
    "ha-shortest-log-wins": 0,
    "ha-switch-without-catching-up": 13,
    "ha-timeout-counts-as-confirmed": 55,
    "ha-waits-for-nobody": 5,
}
"""Each with the first seed that finds it; the long run searches from 0."""

SHORTER_BUGS = {
    "ha-shorter-master-followed": 1,
    "ha-shorter-master-takes-messages": 0,
}
"""The same, of the lives in which the master comes back with a shorter log."""

STRANGER_BUGS = {"ha-answers-not-proven": 0}
"""The same, of the lives with a stranger among the callers."""
