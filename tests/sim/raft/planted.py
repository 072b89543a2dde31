"""The bugs that the simulation of Raft groups must find, one patch in tests/bugs each."""

from __future__ import annotations

BUGS = {
    "raft-ballot-not-read": 125,
    "raft-candidate-before-saved": 0,
    "raft-change-beside-lost-log": 83,
    "raft-commit-by-own-end": 1,
    "raft-current-term-as-last": 40,
    "raft-cut-keeps-configuration": 22,
    "raft-deposed-leader-cuts": 293,
    "raft-doubt-forgotten": 2116,
    "raft-end-for-matched": 1,
    "raft-final-before-joint": 2,
    "raft-flush-of-cut-bytes": 27,
    "raft-follower-before-flush": 1,
    "raft-follower-rolls": 1,
    "raft-higher-term-in-answer-ignored": 315,
    "raft-joint-by-new-half": 14,
    "raft-lateness-is-silence": 2,
    "raft-leader-before-flush": 1,
    "raft-learner-counts": 6,
    "raft-learner-lacks-entries": 480,
    "raft-lease-ended-by-link": 53,
    "raft-lease-from-answer": 213,
    "raft-lease-kept-in-transfer": 27,
    "raft-lost-log-votes": 3,
    "raft-older-terms-counted": 1,
    "raft-pre-vote-raises-term": 3,
    "raft-read-before-own-commit": 1,
    "raft-read-not-applied": 1,
    "raft-read-without-round": 11,
    "raft-repeated-append-cuts": 4,
    "raft-round-serves-later-read": 7,
    "raft-second-vote": 0,
    "raft-transfer-fence-kept": 315,
    "raft-transfer-too-early": 3,
    "raft-transfer-unfenced": 3,
    "raft-transfer-unprotected": 3,
    "raft-vote-before-saved": 0,
    "raft-vote-by-index": 505,
    "raft-votes-by-own-configuration": 173,
}
"""Each with a seed that finds it; the long run searches from 0."""

STORE_BUGS = {
    "raft-ballot-name-not-synced": 0,
    "raft-commit-ahead-of-log": 5,
    "raft-cut-not-redone": 322,
    "raft-flusher-not-lowered": 1,
    "raft-recovery-cuts-committed": 4,
    "raft-uncommitted-shown": 11,
}
"""Planted bugs of the shipped log and store, which only lives with `StoreMember` can find."""

LOST_LOG_BUGS = ("raft-change-beside-lost-log", "raft-learner-lacks-entries", "raft-lost-log-votes")
"""Those of `BUGS` that only lives in which members lose their logs can find."""

CHANGE_BUGS = ("raft-change-beside-lost-log",)
"""Bugs that are found where members also come and go, in every life."""

SEEDS = 2000
"""Where a change of the core gives all seeds other lives, this makes a test longer and not red."""
