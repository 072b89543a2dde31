"""The bugs that the simulation of Raft groups must find, one patch in tests/bugs each."""

from __future__ import annotations

BUGS = {
    "raft-ballot-not-read": 120,
    "raft-candidate-before-saved": 0,
    "raft-change-beside-lost-log": 80,
    "raft-commit-by-own-end": 0,
    "raft-current-term-as-last": 40,
    "raft-cut-keeps-configuration": 0,
    "raft-deposed-leader-cuts": 290,
    "raft-doubt-forgotten": 2100,
    "raft-end-for-matched": 0,
    "raft-final-before-joint": 0,
    "raft-flush-of-cut-bytes": 20,
    "raft-follower-before-flush": 0,
    "raft-follower-rolls": 0,
    "raft-higher-term-in-answer-ignored": 310,
    "raft-joint-by-new-half": 0,
    "raft-lateness-is-silence": 0,
    "raft-leader-before-flush": 0,
    "raft-learner-counts": 0,
    "raft-learner-lacks-entries": 470,
    "raft-lease-ended-by-link": 50,
    "raft-lease-from-answer": 210,
    "raft-lease-kept-in-transfer": 20,
    "raft-lost-log-votes": 0,
    "raft-older-terms-counted": 0,
    "raft-pre-vote-raises-term": 0,
    "raft-read-before-own-commit": 0,
    "raft-read-not-applied": 0,
    "raft-read-without-round": 0,
    "raft-repeated-append-cuts": 0,
    "raft-round-serves-later-read": 0,
    "raft-second-vote": 0,
    "raft-transfer-fence-kept": 300,
    "raft-transfer-too-early": 0,
    "raft-transfer-unfenced": 0,
    "raft-transfer-unprotected": 0,
    "raft-vote-before-saved": 0,
    "raft-vote-by-index": 500,
    "raft-votes-by-own-configuration": 170,
}
"""Each with a seed shortly before one that finds it; the long run searches from 0."""

STORE_BUGS = {
    "raft-ballot-name-not-synced": 0,
    "raft-commit-ahead-of-log": 0,
    "raft-cut-not-redone": 320,
    "raft-flusher-not-lowered": 0,
    "raft-recovery-cuts-committed": 0,
    "raft-uncommitted-shown": 0,
}
"""Planted bugs of the shipped log and store, which only lives with `StoreMember` can find."""

LOST_LOG_BUGS = ("raft-change-beside-lost-log", "raft-learner-lacks-entries", "raft-lost-log-votes")
"""Those of `BUGS` that only lives in which members lose their logs can find."""

CHANGE_BUGS = ("raft-change-beside-lost-log",)
"""Bugs that are found where members also come and go, in every life."""

SEEDS = 2000
"""Where a change of the core gives all seeds other lives, this makes a test longer and not red."""
