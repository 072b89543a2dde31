"""What the core knows of its log: a flush and a cut in every order, and points at which commit may stand."""

from __future__ import annotations

from itertools import permutations

import pytest

from ha.raft.log_state import LogState
from ha.raft.quorum import ConfigHistory
from ha.raft.terms import TermTable
from ha.raft.types import NOTHING, Config, Point, Run


def log_of(*runs: Run) -> LogState:
    log = LogState(TermTable(), ConfigHistory(Config(("n0",))), NOTHING, NOTHING)
    for run in runs:
        log.add(run)
    return log


def test_a_flush_from_before_a_cut_counts_only_as_far_as_the_cut() -> None:
    log = log_of(Run(0, 5, 1, 0, 500))
    log.cut(Point(2, 1, 300))
    log.add(Run(3, 2, 2, 300, 200))
    assert log.flushed(Point(4, 1, 500), 0)  # it began before the cut
    assert log.durable == 2
    log.cut_done()
    assert log.flushed(Point(4, 2, 500), 1)
    assert log.durable == 4


@pytest.mark.parametrize("order", list(permutations(["old flush", "second cut", "cut done"])))
def test_a_report_never_vouches_for_what_was_placed_after_its_flush(order: tuple[str, ...]) -> None:
    log = log_of(Run(0, 9, 1, 0, 900))
    log.cut(Point(5, 1, 600))
    log.add(Run(6, 4, 2, 600, 400))
    for step in order:
        match step:
            case "old flush":
                log.flushed(Point(8, 1, 900), 0)
            case "second cut":
                log.cut(Point(3, 1, 400))
                log.add(Run(4, 9, 3, 400, 900))
            case "cut done":
                log.cut_done()
    assert log.durable == 3
    assert log.end == Point(12, 3, 1300)
    log.flushed(Point(9, 2, 1000), 1)  # between the cuts
    assert log.durable == 3
    log.flushed(Point(12, 3, 1300), 2)
    assert log.durable == 12


def test_a_cut_below_commit_stops_the_member() -> None:
    log = log_of(Run(0, 5, 1, 0, 500))
    assert log.commit_through(4) == Point(4, 1, 500)
    with pytest.raises(AssertionError, match="rule 5"):
        log.cut(Point(3, 1, 400))


def test_commit_moves_from_one_known_point_to_the_next() -> None:
    log = log_of(Run(0, 3, 1, 0, 300), Run(3, 3, 1, 300, 300), Run(6, 3, 1, 600, 300))
    assert log.commit_through(1) is None  # nobody knows where entry 1 ends
    assert log.commit_through(4) == Point(2, 1, 300)
    log.flushed(Point(6, 1, 700), 0)
    assert log.commit_through(7) == Point(6, 1, 700)
    assert log.commit_through(6) is None
    assert log.uncommitted_bytes == 200


def test_a_run_that_is_here_in_part_is_placed_without_its_beginning() -> None:
    log = log_of(Run(0, 3, 1, 0, 300))
    log.add(Run(1, 4, 1, 100, 400), skip=200)
    assert log.end == Point(4, 1, 500)
    with pytest.raises(AssertionError):
        log.add(Run(4, 4, 1, 400, 400), skip=50)


def test_a_run_at_the_next_segment_leaves_room_for_a_filler() -> None:
    log = log_of(Run(0, 3, 1, 0, 300), Run(3, 1, 2, 1000, 100))
    assert log.end == Point(3, 2, 1100)
    log.cut(log.terms.start_of(3))
    assert log.end == Point(2, 1, 300)
