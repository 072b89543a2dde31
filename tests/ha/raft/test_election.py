"""Who campaigns and who does not, beside what the transcripts tell."""

from __future__ import annotations

import pytest

from ha.raft.election import INDEX_FIRST_BYTES
from ha.raft.node import RaftNode
from ha.raft.types import (
    NOTHING,
    Ballot,
    Config,
    Effects,
    Heartbeat,
    Link,
    Linked,
    Message,
    Point,
    Received,
    Role,
    Saved,
    Settings,
    Stuck,
    Tick,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import RemoteProtocolError

CONFIG = Config(("n0", "n1", "n2"), learners=("n3",))


def member(
    id: str = "n0", *, end: Point = NOTHING, ballot: Ballot | None = None, applied: bool = True
) -> RaftNode:
    rows = [(end.term, 0, 0)] if end is not NOTHING else []
    commit = end if applied else NOTHING
    node = RaftNode(
        id, CONFIG, Settings(), ballot=ballot or Ballot(max(end.term, 0)), rows=rows, end=end, commit=commit
    )
    for peer in node.peers:
        for kind in Link:
            node.step(Linked(peer, 1, kind, True, 0))
    node.step(Tick(0, 0, 0.0))
    return node


def campaigns(effects: Effects) -> bool:
    return any(isinstance(message, Vote) for _, message in effects.send)


def test_silence_of_one_timeout_begins_a_campaign() -> None:
    node = member()
    assert not campaigns(node.step(Tick(499, 0, 0.0)))
    assert campaigns(node.step(Tick(500, 0, 0.0)))


def test_a_loop_that_was_late_does_not_take_its_own_silence_for_the_leaders() -> None:
    node = member()
    assert not campaigns(node.step(Tick(1400, 1000, 0.0)))
    assert not campaigns(node.step(Tick(1499, 1, 0.0)))  # the deadline moved as well
    assert campaigns(node.step(Tick(1500, 1, 0.0)))


def test_who_is_stuck_does_not_campaign() -> None:
    node = member()
    node.step(Stuck(True))
    assert not campaigns(node.step(Tick(1000, 0, 0.0)))
    node.step(Stuck(False))
    assert campaigns(node.step(Tick(1500, 0, 0.0)))


def test_a_learner_does_not_campaign() -> None:
    assert not campaigns(member("n3").step(Tick(1000, 0, 0.0)))


def test_who_has_much_to_index_leaves_the_first_chance_to_others_and_not_the_second() -> None:
    node = member(end=Point(9, 1, INDEX_FIRST_BYTES + 1), applied=False)
    assert not campaigns(node.step(Tick(500, 0, 0.0)))
    assert campaigns(node.step(Tick(1000, 0, 0.0)))


def test_a_log_that_is_newer_than_the_ballot_brings_its_term() -> None:
    # A crash fell between the write of a leader's first entries and the save of its term.
    node = RaftNode("n0", CONFIG, Settings(), ballot=Ballot(2, "n1"), rows=[(4, 0, 0)], end=Point(3, 4, 400))
    effects = node.step(Tick(0, 0, 0.0))
    assert (node.term, effects.save) == (4, Ballot(4))


@pytest.mark.parametrize("late", [0, 100])
def test_a_leader_of_one_is_elected_by_itself(late: int) -> None:
    node = RaftNode("n0", Config(("n0",)), Settings(), ballot=Ballot(0))
    node.step(Tick(0, 0, 0.0))
    assert node.step(Tick(500, late, 0.0)).save == Ballot(1, "n0")
    effects = node.step(Saved(Ballot(1, "n0")))
    assert effects.open_term == Config(("n0",))
    assert node.role is Role.LEADER


def test_a_follower_hears_its_leader_for_a_whole_timeout_more() -> None:
    node = member()
    node.step(Received("n1", 1, Heartbeat(1, -1, 2), 400))
    assert (node.role, node.leader) == (Role.FOLLOWER, "n1")
    assert not campaigns(node.step(Tick(899, 0, 0.0)))
    assert campaigns(node.step(Tick(900, 0, 0.0)))


def test_a_member_that_granted_a_pre_vote_lets_that_candidate_go_first() -> None:
    node = member("n0")
    node.step(Tick(490, 0, 0.0))
    node.step(Received("n1", 1, Vote(1, -1, -1, pre=True), 495))
    assert not campaigns(node.step(Tick(500, 0, 0.0)))
    assert campaigns(node.step(Tick(645, 0, 0.0)))


@pytest.mark.parametrize(("id", "goes_on"), [("n0", True), ("n2", False)])
def test_of_two_members_at_their_pre_votes_the_smaller_id_goes_on(id: str, goes_on: bool) -> None:
    node = member(id)
    assert campaigns(node.step(Tick(500, 0, 0.0)))
    node.step(Received("n1", 1, Vote(1, -1, -1, pre=True), 501))
    answer = node.step(Received("n1", 1, VoteAnswer(1, True, VoteResult.ACCEPT), 502))
    assert (answer.save == Ballot(1, id)) is goes_on


@pytest.mark.parametrize(
    "message",
    [
        Vote((1 << 63) - 1, 99, 9),
        Heartbeat(1_000_007, 0, 1),
        VoteAnswer(1 << 62, False, VoteResult.ACCEPT),
    ],
)
def test_a_term_far_above_the_own_one_is_no_message_of_a_member(message: Message) -> None:
    """Behind the highest number there is no next term: whoever had it taken would end every later election."""
    node = member(ballot=Ballot(6))
    with pytest.raises(RemoteProtocolError, match="far above 6"):
        node.step(Received("n1", 1, message, 1))
    assert node.term == 6
    node.step(Received("n1", 1, Heartbeat(1_000_006, 0, 1), 2))
    assert node.term == 1_000_006
    new = member(ballot=Ballot(0))
    new.step(Received("n1", 1, Heartbeat(5_000_000, 0, 1), 2))
    assert new.term == 5_000_000, "a new member of an old group"
