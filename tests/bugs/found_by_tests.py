"""Planted bugs that a test of its own must find: `python -m tests.bugs.found_by_tests NAME` plants one and runs that.

A second defence hides most of them from the lives of the simulation, or they need an order that is rare there.
"""

from __future__ import annotations

import sys

import pytest

from tests.bugs import plant

BUGS = {
    "kv-read-lease-by-wall-clock": (
        "tests/broker/kv/test_region.py",
        "elects_its_next_leader_though_all_wall_clocks_were_set_back",
    ),
    "ledger-changes-made-twice": (
        "tests/broker/replication/test_ledger_snapshots.py",
        "changes_that_a_snapshot_has_are_not_made_once_more",
    ),
    "ledger-deliveries-kept": (
        "tests/broker/replication/test_ledger_demotion.py",
        "a_delayed_message_whose_copy_was_cut",
    ),
    "ledger-stop-shows-uncommitted": (
        "tests/broker/replication/test_ledger_demotion.py",
        "a_stop_writes_no_queue_entry",
    ),
    "raft-lease-forgotten-at-start": (
        "tests/ha/raft/test_leases.py",
        "refuses_votes_as_if_it_had_heard_a_leader",
    ),
    "raft-old-link-counts": (
        "tests/ha/raft/test_follower_reads.py",
        "connection_that_was_replaced",
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
