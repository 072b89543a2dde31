"""The bugs that the simulation of Raft groups must find, one patch in tests/bugs each."""

from __future__ import annotations

BUGS = (
    "raft-ballot-not-read",
    "raft-candidate-before-saved",
    "raft-commit-by-own-end",
    "raft-current-term-as-last",
    "raft-deposed-leader-cuts",
    "raft-doubt-forgotten",
    "raft-end-for-matched",
    "raft-flush-of-cut-bytes",
    "raft-follower-before-flush",
    "raft-follower-rolls",
    "raft-higher-term-in-answer-ignored",
    "raft-lateness-is-silence",
    "raft-leader-before-flush",
    "raft-older-terms-counted",
    "raft-pre-vote-raises-term",
    "raft-repeated-append-cuts",
    "raft-second-vote",
    "raft-vote-before-saved",
    "raft-vote-by-index",
)


SEEDS = 2000
