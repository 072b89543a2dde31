"""The bugs that tests of leases must find; `python -m tests.ha.raft.planted NAME` plants one and runs these tests."""

from __future__ import annotations

import sys

import pytest

from tests.bugs import plant

BUGS = {
    "raft-lease-forgotten-at-start": "refuses_votes_as_if_it_had_heard_a_leader",
}
"""Each with words of the name of the test that finds it."""


if __name__ == "__main__":
    plant.install(sys.argv[1])
    sys.exit(pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "tests/ha/raft/test_leases.py"]))
