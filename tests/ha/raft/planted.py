"""The bugs that tests of leases must find; `python -m tests.ha.raft.planted NAME` plants one and runs these tests."""

from __future__ import annotations

import sys

import pytest

from tests.bugs import plant

BUGS = {
    "raft-lease-ended-by-link": "a_lost_link_ends_no_protection",
    "raft-lease-forgotten-at-start": "refuses_votes_as_if_it_had_heard_a_leader",
    "raft-lease-from-answer": "from_when_the_round_left_and_not_from_its_answers",
    "raft-lease-kept-in-transfer": "over_once_another_member_was_told_to_lead",
}
"""Each with words of the name of the test that finds it."""


if __name__ == "__main__":
    plant.install(sys.argv[1])
    sys.exit(pytest.main(["-q", "-n0", "-p", "no:cacheprovider", "tests/ha/raft/test_leases.py"]))
