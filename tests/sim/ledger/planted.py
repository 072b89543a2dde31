"""The bugs that the simulated DLedger group must find, one patch in tests/bugs each."""

from __future__ import annotations

SEEDS = 400
"""Where a change of the brokers gives all seeds other lives, this makes a test longer and not red."""

STRANGER_BUGS = {"ledger-stranger-introduced": 30, "ledger-stranger-obeyed": 0}
"""Of the lives beside a stranger: each with the first seed that finds it."""

BUGS = {
    "ledger-answers-let-go-when-deposed": 18,
    "ledger-leader-reads-at-once": 80,
    "ledger-offsets-not-undone": 99,
    "ledger-query-of-unlogged-commit": 25,
    "ledger-queue-entries-kept": 9,
    "ledger-queues-of-deleted-topics-kept": 42,
    "ledger-recreated-topic-dropped": 27,
    "ledger-topics-not-undone": 3,
    "raft-read-without-round": 8,
}
"""Each with the first seed that finds it; the long run searches from 0."""
