"""The Raft paper, section by section ("In Search of an Understandable Consensus Algorithm", extended version)."""

from __future__ import annotations

import pytest

from ha.raft.dispatcher import State
from ha.raft.types import (
    NOTHING,
    Append,
    AppendAnswer,
    Heartbeat,
    Point,
    Received,
    Role,
    Run,
    Settings,
    Stuck,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import RemoteProtocolError
from tests.ha.raft.script import Script


def led() -> Script:
    """Three members, led by n0 in term 1, whose opening entry all have."""
    script = Script()
    script.elect("n0")
    script.wait(100)
    script.tick("n0")
    script.settle()
    return script


# -- 5.1 terms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [Heartbeat(5, -1, 1), AppendAnswer(5, False, -1, -1, -1, -1)])
def test_5_1_a_higher_term_in_any_message_ends_a_leadership(message: Heartbeat | AppendAnswer) -> None:
    script = led()
    script.step("n0", Received("n1", script.link_of("n0", "n1"), message, script.now))
    assert (script["n0"].term, script["n0"].role is Role.LEADER) == (5, False)


def test_5_1_a_message_of_an_older_term_is_answered_with_the_newer_one() -> None:
    script = led()
    script.elect("n1", "n1", "n2")
    link = script.link_of("n0", "n2")
    effects = script.step("n2", Received("n0", link, Heartbeat(1, 0, 9), script.now))
    assert effects.send == (("n0", script.wires["n2", "n0"][-1][0]),)
    assert effects.send[0][1].term == 2


# -- 5.2 leader election ---------------------------------------------------------------------------------


def test_5_2_a_follower_that_hears_nothing_campaigns() -> None:
    script = Script()
    script.tick("n0")
    script.wait(499)
    assert script.tick("n0").send == ()
    script.wait(1)
    assert {message for _, message in script.tick("n0").send} == {Vote(1, -1, -1, pre=True)}


def test_5_2_a_leader_is_elected_by_a_majority_and_says_so_at_once() -> None:
    script = Script()
    script.elect("n0", "n0", "n2")
    assert script["n0"].role is Role.LEADER
    assert any(isinstance(message, Heartbeat) for message, _, _ in script.wires["n0", "n1"])
    assert script["n2"].leader == "n0"


def test_5_2_one_vote_per_term() -> None:
    script = Script()
    first, second = script.link_of("n0", "n2"), script.link_of("n1", "n2")
    script.step("n2", Received("n0", first, Vote(1, -1, -1), 0))
    script.sync("n2")
    assert script.wires["n2", "n0"][-1][0] == VoteAnswer(1, False, VoteResult.ACCEPT)
    script.step("n2", Received("n1", second, Vote(1, -1, -1), 0))
    assert script.wires["n2", "n1"][-1][0] == VoteAnswer(1, False, VoteResult.REJECT_ALREADY_VOTED)
    script.step("n2", Received("n0", first, Vote(1, -1, -1), 0))
    assert script.wires["n2", "n0"][-1][0] == VoteAnswer(1, False, VoteResult.ACCEPT)


def test_5_2_one_vote_per_term_survives_a_restart() -> None:
    script = Script()
    script.step("n2", Received("n0", script.link_of("n0", "n2"), Vote(1, -1, -1), 0))
    script.sync("n2")
    script.crash("n2")
    script.start("n2")
    script.step("n2", Received("n1", script.link_of("n1", "n2"), Vote(1, -1, -1), 0))
    assert script.wires["n2", "n1"][-1][0] == VoteAnswer(1, False, VoteResult.REJECT_ALREADY_VOTED)


def test_5_2_a_vote_leaves_when_it_is_on_disk_and_not_before() -> None:
    script = Script()
    effects = script.step("n2", Received("n0", script.link_of("n0", "n2"), Vote(1, -1, -1), 0))
    assert effects.save is not None and effects.send == ()
    script.sync("n2")
    assert script.wires["n2", "n0"][-1][0] == VoteAnswer(1, False, VoteResult.ACCEPT)


def test_5_2_a_candidate_that_hears_the_leader_of_its_term_follows() -> None:
    script = Script()
    script.wait(1000)
    script.tick("n1")
    script.wait(1000)
    script.tick("n1")
    assert script["n1"].role is Role.CANDIDATE
    script.step("n1", Received("n0", script.link_of("n0", "n1"), Heartbeat(1, -1, 2), script.now))
    assert (script["n1"].role, script["n1"].leader) == (Role.FOLLOWER, "n0")


def test_5_2_two_leaders_of_one_term_stop_a_member() -> None:
    script = led()
    with pytest.raises(AssertionError, match="rule 6"):
        script.step("n0", Received("n1", script.link_of("n0", "n1"), Heartbeat(1, -1, 2), script.now))


def test_5_2_timeouts_are_drawn_from_their_range() -> None:
    script = Script()
    for draw, timeout in ((0.0, 500), (0.5, 700), (0.999, 899)):
        script["n0"].election._draw = draw
        script["n0"].election.set_deadline()
        assert script["n0"].election.deadline == timeout


# -- 5.3 log replication ---------------------------------------------------------------------------------


def test_5_3_an_entry_is_committed_when_a_majority_has_it_on_disk() -> None:
    script = led()
    script.append("n0", 2)
    script.sync("n0")
    assert script["n0"].log.commit.index == 0
    script.settle("n0", "n1")
    assert script["n0"].log.commit.index == 2


def test_5_3_a_leader_counts_itself_when_its_own_flush_is_done() -> None:
    script = led()
    script.append("n0", 1)
    script.deliver("n0", "n1")
    script.sync("n1")
    script.deliver("n1", "n0")
    assert script["n0"].log.commit.index == 0
    script.sync("n0")
    assert script["n0"].log.commit.index == 1


def test_5_3_a_commit_may_pass_the_leaders_own_disk() -> None:
    script = led()
    script.append("n0", 1)
    for follower in ("n1", "n2"):
        script.deliver("n0", follower)
        script.sync(follower)
        script.deliver(follower, "n0")
    assert (script["n0"].log.commit.index, script["n0"].log.durable) == (1, 0)


def test_5_3_a_follower_answers_when_its_flush_is_done() -> None:
    script = led()
    script.append("n0", 1)
    script.deliver("n0", "n1")
    assert not script.wires["n1", "n0"]
    script.sync("n1")
    assert script.wires["n1", "n0"][0][0] == AppendAnswer(1, True, -1, 1, 1, -1)


def test_5_3_an_append_behind_an_entry_that_is_not_here_is_refused() -> None:
    script = led()
    message = Append(1, Point(7, 1, 900), Run(8, 1, 1, 900, 100), 0)
    script.step("n1", Received("n0", script.link_of("n0", "n1"), message, script.now))
    assert script.wires["n1", "n0"][-1][0] == AppendAnswer(1, False, 7, -1, 0, 1)


def test_5_3_a_conflict_is_cut_and_the_leaders_entries_take_its_place() -> None:
    script = led()
    script.append("n0", 3)  # nobody hears of it
    for follower in ("n1", "n2"):
        script.drop("n0", follower)
    script.sync("n0")
    script.elect("n1", "n1", "n2")
    script.append("n1", 1)
    script.settle()
    assert script.terms("n0") == [1, 2, 2]
    assert {id: script.terms(id) for id in script.members} == {id: [1, 2, 2] for id in script.members}


def test_5_3_a_repeated_append_cuts_nothing() -> None:
    script = led()
    script.append("n0", 1)
    script.deliver("n0", "n1")
    first = script.last["n0", "n1"]
    script.append("n0", 3)
    script.settle("n0", "n1")
    script.last["n0", "n1"] = first
    script.repeat("n0", "n1")
    assert script.terms("n1") == [1] * 5


def test_5_3_a_repair_passes_over_whole_terms() -> None:
    script = led()
    for _ in range(40):  # entries of term 1 that only n0 has
        script.append("n0", 1)
    for follower in ("n1", "n2"):
        script.drop("n0", follower)
    script.sync("n0")
    script.elect("n1", "n1", "n2")
    script.told = []
    script.settle()
    assert script.terms("n0") == [1, 2]
    assert sum("n1 -> n0 Append[" in line for line in script.told) <= 3


# -- 5.4 safety ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_term", "last_index", "result"),
    [
        (1, 9, VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (2, 1, VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (2, 2, VoteResult.ACCEPT),
        (2, 3, VoteResult.ACCEPT),
        (3, 0, VoteResult.ACCEPT),
    ],
)
def test_5_4_1_a_vote_goes_to_a_log_that_is_at_least_as_new(
    last_term: int, last_index: int, result: VoteResult
) -> None:
    script = led()
    script.elect("n1", "n1", "n2")
    script.append("n1", 1)
    script.settle("n1", "n2")
    assert script.terms("n2") == [1, 2, 2]
    script.wait(1000)
    link = script.link_of("n0", "n2")
    script.step("n2", Received("n0", link, Vote(4, last_index, last_term), script.now))
    script.sync("n2")
    assert script.wires["n2", "n0"][-1][0] == VoteAnswer(4, False, result)


def test_5_4_2_an_older_terms_entry_is_not_committed_by_counting() -> None:
    script = led()
    script.append("n0", 2)
    script.deliver("n0", "n1")
    script.sync("n1")
    script.drop("n0", "n2")
    script.crash("n0")
    script.wait(1000)
    script.tick("n1")
    script.wait(1000)
    script.tick("n1")
    script.deliver("n1", "n2")
    script.deliver("n2", "n1")
    script.sync("n1", 1)  # its ballot
    script.deliver("n1", "n2")
    script.sync("n2")
    script.deliver("n2", "n1")
    assert script["n1"].role is Role.LEADER
    dispatcher = script["n1"].dispatchers["n2"]
    while dispatcher.match < 2:  # the entries of term 1 come first
        script.deliver("n1", "n2", 1)
        script.sync("n2")
        script.deliver("n2", "n1", 1)
    assert script["n1"].log.commit.index == 0
    script.settle("n1", "n2")
    assert script["n1"].log.commit.index == 3


# -- 5.5 crashes, 6 and 9 --------------------------------------------------------------------------------


def test_5_5_a_crashed_follower_is_caught_up_from_where_its_log_ends() -> None:
    script = led()
    script.crash("n2")
    for _ in range(3):
        script.append("n0", 2)
        script.settle("n0", "n1")
    script.drop("n0", "n2")
    script.start("n2")
    script.wait(100)
    script.tick("n0")
    script.settle()
    assert script.terms("n2") == [1] * 7
    assert script["n0"].dispatchers["n2"].state is State.REPLICATE


def test_6_a_member_that_hears_its_leader_refuses_votes_and_keeps_its_term() -> None:
    script = led()
    link = script.link_of("n1", "n2")
    script.step("n1", Received("n2", link, Vote(9, 99, 9), script.now))
    assert script["n1"].term == 1
    assert script.wires["n1", "n2"][-1][0] == VoteAnswer(1, False, VoteResult.REJECT_ALREADY_HAS_LEADER)
    script.step("n1", Received("n2", link, Vote(9, 99, 9, transfer=True), script.now))
    assert script["n1"].term == 9


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    script = led()
    script.wait(850)
    assert script.tick("n0").role is None
    script.wait(100)
    standing = script.tick("n0").role
    assert standing is not None and standing.role is Role.CANDIDATE


def test_a_lost_control_link_to_the_leader_brings_the_next_one_soon() -> None:
    script = led()
    script.tick("n1", draw=0.5)
    script.unlink("n0", "n1")
    script.wait(101)
    script.tick("n1", draw=0.5)
    assert script.wires["n1", "n2"][-1][0] == Vote(2, 0, 1, pre=True)


def test_leases_keep_the_protection_of_a_lost_link() -> None:
    script = Script(settings=Settings(lease_reads=True))
    script.elect("n0")
    script.unlink("n0", "n1")
    script.wait(101)
    script.tick("n1", draw=0.5)
    assert not script.wires["n1", "n2"]


def test_preferred_members_campaign_first() -> None:
    script = Script(settings=Settings(preferred=("n2",)))
    for id in script.members:
        script["n0"].election._draw = 0.0
        script.tick(id, draw=0.999 if id == "n2" else 0.0)
    deadlines = {id: script[id].election.deadline for id in script.members}
    assert deadlines["n2"] is not None and deadlines["n0"] is not None
    assert deadlines["n2"] < deadlines["n0"]


def test_a_leader_without_room_to_open_its_term_leaves_the_lead_to_members_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = Script()
    monkeypatch.setattr(
        script, "append", lambda id, count, config: None
    )  # as a shell does whose disk is full
    script.step("n1", Stuck(True))
    script.elect("n0")
    script.step("n0", Stuck(True))
    script.wait(100)
    script.tick("n0")
    assert script["n0"].leader == "n0", "one member with room is no quorum"
    script.step("n1", Stuck(False))
    script.wait(100)
    script.tick("n0")
    script.settle()
    script.tick("n0")
    standing = script.members["n0"].standing
    assert standing is not None and standing.leader is None and "no room" in standing.why
    monkeypatch.undo()
    script.wait(1000)
    script.tick("n1")
    script.settle()
    assert script["n1"].role is Role.LEADER and script["n0"].leader == "n1"


def test_members_that_disagree_about_segments_do_not_replicate() -> None:
    script = led()
    end = script["n1"].log.end
    message = Append(1, Point(end.index, end.term, end.pos + 8), None, 0)
    with pytest.raises(RemoteProtocolError, match="segments"):
        script.step("n1", Received("n0", script.link_of("n0", "n1"), message, script.now))
    assert script["n1"].log.end is not NOTHING


def test_an_answer_of_an_older_link_counts_for_nothing() -> None:
    script = led()
    script.append("n0", 1)
    script.deliver("n0", "n1")
    script.sync("n1")
    script.sync("n0")
    script.link("n0", "n1")
    script.deliver("n1", "n0", 1)  # the answer, of the link before
    assert script["n0"].dispatchers["n1"].match == 0
    assert script["n0"].log.commit.index == 0


def test_a_full_window_waits_and_a_pending_log_refuses() -> None:
    script = Script(settings=Settings(window_frames=4, pending_bytes_max=2000))
    script.elect("n0")
    for _ in range(6):
        script.append("n0", 2)
    assert len(script.wires["n0", "n1"]) <= 4 + 1  # and a heartbeat
    standing = script.members["n0"].standing
    assert standing is not None
    while standing.may_append:
        script.append("n0", 2)
        standing = script.members["n0"].standing
        assert standing is not None
    assert standing.why == "LEADER_PENDING_FULL"
    script.settle()
    standing = script.members["n0"].standing
    assert standing is not None and standing.may_append
