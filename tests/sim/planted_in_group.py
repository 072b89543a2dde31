"""The bugs that the simulated group must find, one patch in tests/bugs each, with the seeds to search."""

from __future__ import annotations

SEEDS = 400
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""


BUGS = {
    "ha-ack-before-flush": 5,
    "ha-answers-let-go-when-deposed": 0,
    "ha-append-at-a-gap": 0,
    "ha-deposed-keeps-its-place": 0,
    "ha-diverged-tail-kept": 0,
    "ha-master-not-fenced": 0,
    "ha-never-looks-for-a-newer-master": 8,
    "ha-old-connection-counted": 0,
    "ha-old-master-still-followed": 76,
    "ha-old-tail-wins": 203,
    "ha-promise-not-saved": 55,
    "ha-promoted-by-too-few": 0,
    "ha-report-before-flush": 140,
    "ha-shortest-log-wins": 0,
    "ha-switch-without-catching-up": 35,
    "ha-timeout-counts-as-confirmed": 0,
    "ha-waits-for-nobody": 0,
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""
