"""A snapshot replaces the log of a member that lacks what retention has removed, and nothing else."""

from __future__ import annotations

import pytest

from ha.raft.node import RaftNode
from ha.raft.types import (
    NOTHING,
    Append,
    AppendAnswer,
    Ballot,
    Config,
    Durable,
    Link,
    Linked,
    Point,
    Received,
    Run,
    Saved,
    Settings,
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotTaken,
    TakeLead,
    Tick,
    Vote,
    VoteAnswer,
    VoteResult,
)

OLD, NEW = Point(4, 1, 500), Point(50, 2, 5000)
BEGIN = SnapshotBegin(3, NEW, 1000)


def stateless() -> RaftNode:
    """Return a member that lacks the state in front of the log, in term 3."""
    node = RaftNode("n1", Config(("n0", "n1", "n2")), Settings(lacks_state=True), ballot=Ballot(3))
    for kind in Link:
        node.step(Linked("n0", 7, kind, True, 0))
    return node


def follower() -> RaftNode:
    """Return a member in term 3 with entries through 9, of which those through 4 are committed."""
    node = RaftNode(
        "n1", Config(("n0", "n1", "n2")), Settings(), ballot=Ballot(3), rows=[(1, 0, 0)], end=Point(9, 1, 1000),
        commit=OLD,
    )  # fmt: skip
    for kind in Link:
        node.step(Linked("n0", 7, kind, True, 0))
    return node


def test_a_snapshot_goes_on_by_the_shell_where_it_is_needed_and_replaces_the_log_once_it_is_whole() -> None:
    node = follower()
    for message in (BEGIN, SnapshotChunk(3, 50, 0)):
        assert node.step(Received("n0", 7, message, 1)).snapshot == ("n0", message)
    assert node.step(SnapshotTaken("n0", 3, NEW)).install == NEW


def test_whatever_comes_after_the_decision_to_begin_anew_is_answered_by_nobody() -> None:
    """The log goes: an entry or a vote that is confirmed now would be forgotten."""
    node = follower()
    node.step(Received("n0", 7, BEGIN, 1))
    node.step(SnapshotTaken("n0", 3, NEW))
    run = Run(10, 1, 3, 1000, 100)
    for event in (Received("n0", 7, Append(3, Point(9, 1, 1000), run, 9), 2), Tick(9000, 0, 0.5)):
        effects = node.step(event)
        assert not effects.send and not effects.place


@pytest.mark.parametrize("index", [3, 4])
def test_a_snapshot_that_covers_no_more_than_what_is_committed_is_not_needed(index: int) -> None:
    effects = follower().step(Received("n0", 7, SnapshotBegin(3, Point(index, 1, 400), 1000), 1))
    assert effects.snapshot is None
    assert effects.send == (("n0", SnapshotAnswer(3, index, -1)),)


def test_a_snapshot_that_comes_late_replaces_no_newer_state() -> None:
    """The snapshot was taken while the leader had to send it; meanwhile another one had all that was missing."""
    node = follower()
    node.step(Received("n0", 7, BEGIN, 1))
    for kind in Link:
        node.step(Linked("n2", 8, kind, True, 2))
    run = Run(10, 60, 4, 1000, 6000)
    node.step(Received("n2", 8, Append(4, Point(9, 1, 1000), run, 69), 3))
    node.step(Durable(run.end, 0))
    assert node.log.commit.index == 69
    assert node.step(SnapshotTaken("n0", 3, NEW)).install is None


def test_a_snapshot_of_a_leader_of_an_older_term_is_not_heard() -> None:
    node = follower()
    assert node.step(Received("n0", 7, SnapshotBegin(2, NEW, 1000), 1)).snapshot is None
    node.step(Received("n0", 7, BEGIN, 1))
    assert node.step(SnapshotTaken("n0", 2, NEW)).install is None


@pytest.mark.parametrize("run", [None, Run(0, 3, 1, 0, 300)])
def test_a_member_that_lacks_the_state_in_front_of_the_log_takes_a_snapshot_and_no_entry(
    run: Run | None,
) -> None:
    node = stateless()
    effects = node.step(Received("n0", 7, Append(3, NOTHING, run, 2), 1))
    assert (
        effects.send == (("n0", AppendAnswer(3, False, -1, -1, -1, -1, lacks_state=True)),)
        and not effects.place
    )
    begin = SnapshotBegin(3, Point(0, 1, 100), 1000)
    assert node.step(Received("n0", 7, begin, 2)).snapshot == ("n0", begin)
    assert node.step(SnapshotTaken("n0", 3, begin.point)).install == begin.point


def test_a_member_that_lacks_the_state_in_front_of_the_log_votes_and_does_not_campaign() -> None:
    """Its vote is that of an empty log; leading it could apply nothing."""
    node = stateless()
    for at_ms in range(0, 5000, 100):
        assert not node.step(Tick(at_ms, 0, 0.5)).send
    assert node.step(Received("n0", 7, Vote(4, 9, 3), 6000)).save == Ballot(4, "n0")
    sent = node.step(Saved(Ballot(4, "n0"))).send
    assert sent == (("n0", VoteAnswer(4, False, VoteResult.ACCEPT)),)
    assert not node.step(Received("n0", 7, TakeLead(4), 6001)).save
