"""The bugs that tests of snapshots must find; `python -m tests.broker.replication.planted NAME` plants one of them."""

from __future__ import annotations

import sys

import pytest

from tests.bugs import plant

BUGS = {
    "ledger-changes-made-twice": (
        "tests/broker/replication/test_ledger_snapshots.py",
        "changes_that_a_snapshot_has_are_not_made_once_more",
    ),
    "raft-snapshot-over-newer-state": (
        "tests/ha/raft/test_snapshots.py",
        "a_snapshot_that_comes_late_replaces_no_newer_state",
    ),
    "raft-snapshot-then-answers": (
        "tests/ha/raft/test_snapshots.py",
        "whatever_comes_after_the_decision",
    ),
}
"""Each with the file of the test that finds it, and words of its name."""


if __name__ == "__main__":
    name = sys.argv[1]
    plant.install(name)
    file, words = BUGS[name]
    sys.exit(pytest.main(["-q", "-n0", "-p", "no:cacheprovider", file, "-k", words]))
