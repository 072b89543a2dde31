"""The bugs that tests of the core must find; `python -m tests.ha.raft.planted NAME` plants one and runs its tests.

No life of the simulation has found them since others that they led to were mended.
"""

from __future__ import annotations

import sys

import pytest

from tests.bugs import plant

BUGS = {
    "raft-lease-forgotten-at-start": ("test_leases", "refuses_votes_as_if_it_had_heard_a_leader"),
    "raft-old-link-counts": ("test_follower_reads", "connection_that_was_replaced"),
}
"""Each with the module of the test that finds it, and words of its name."""


if __name__ == "__main__":
    plant.install(sys.argv[1])
    sys.exit(pytest.main(["-q", "-n0", "-p", "no:cacheprovider", f"tests/ha/raft/{BUGS[sys.argv[1]][0]}.py"]))
