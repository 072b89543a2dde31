"""A member that lost its log: what it may say before it has caught up, and when it votes again."""

from __future__ import annotations

from ha.raft.node import RaftNode
from ha.raft.types import Ballot, Config, DoubtDropped, Met, Role, Settings, VoteAnswer
from tests.ha.raft.script import Script, ScriptedMember


def losing(script: Script, id: str, *, told_by: tuple[str, ...] = (), linked: tuple[str, ...] = ()) -> None:
    """Have a member lose its log, and come back empty; these members tell it so, with the terms that they are in.

    Without any it has its ballot, and knows by itself.
    """
    ballot = Ballot(0) if told_by else script[id].election.saved
    script.crash(id)
    script.members[id] = ScriptedMember(id)
    for wire in script.wires:
        if id in wire:
            script.wires[wire].clear()
    terms = {peer: script[peer].term for peer in told_by}
    script.members[id].is_up = True
    core = RaftNode(id, script.config, script.settings, ballot=ballot, lost=not told_by)
    script.members[id].core = core
    for peer, term in terms.items():
        script.step(id, Met(peer, term, True))
    for peer in (*told_by, *linked):
        script.link(id, peer)


def group() -> Script:
    script = Script()
    script.elect("n0")
    script.append("n0", 3)
    script.settle()
    return script


def test_a_member_that_lost_its_log_grants_no_vote_and_asks_for_none() -> None:
    script = group()
    losing(script, "n2", told_by=("n0", "n1"))
    script.crash("n0")
    for _ in range(3):
        script.wait(1000)
        script.tick("n1")
        script.tick("n2")
        script.settle("n1", "n2")
    assert script["n1"].role is Role.CANDIDATE, "its own vote is none of a majority"
    assert script["n2"].readmission.is_learner and script["n2"].election.ballot.vote == ""


def test_what_a_learner_has_on_its_disk_counts_for_nothing() -> None:
    script = group()
    losing(script, "n2", told_by=("n0",))
    script.crash("n1")
    before = script["n0"].log.commit.index
    script.append("n0", 2)
    script.settle("n0", "n2")
    assert script["n2"].log.durable == script["n0"].log.end.index == script["n0"].dispatchers["n2"].match
    assert script["n0"].log.commit.index == before, "n1 may lead a later term, of which n2 was a part"
    for _ in range(15):
        script.wait(100)
        script.tick("n0")
        script.settle("n0", "n2")
    assert script["n0"].role is not Role.LEADER, "nor does it keep a leader in office"


def test_a_learner_votes_once_it_has_what_is_committed_and_all_others_have_told_their_terms() -> None:
    script = group()
    losing(script, "n2", told_by=("n0",))
    script.append("n0", 2)
    script.settle()
    learner = script["n2"]
    assert learner.log.end == script["n0"].log.end, "it has everything"
    assert learner.readmission.unmet == ("n1",) and learner.readmission.is_learner, "n1 has not let it in"
    script.step("n2", Met("n1", script["n1"].term, True))
    script.link("n2", "n1")
    script.wait(200)
    script.tick("n0")
    script.settle()
    assert not script["n2"].readmission.is_learner
    script.crash("n0")
    script.elect("n2", "n1", "n2")
    assert script.terms("n2")[:5] == [1, 1, 1, 1, 1], "with its vote the group goes on, and has every message"


def test_a_learner_takes_over_the_highest_term_that_it_is_told_so_that_an_older_leader_gets_nothing_of_it() -> (
    None
):
    script = group()
    script.unlink("n0", "n1")
    script.unlink("n0", "n2")
    script.elect("n1", "n1", "n2")
    losing(script, "n2", told_by=("n0", "n1"))
    assert script["n2"].term == script["n1"].term > script["n0"].term
    before = script["n0"].log.commit.index
    script.append("n0", 1)
    script.settle("n0", "n2")
    assert script["n0"].role is not Role.LEADER and script["n0"].log.commit.index == before


def test_a_member_that_has_its_ballot_votes_again_when_it_has_caught_up_whoever_is_away() -> None:
    script = Script(("n0", "n1", "n2", "n3", "n4"))
    script.elect("n0")
    script.append("n0", 3)
    script.settle()
    script.crash("n4")
    losing(script, "n2", linked=("n0", "n1", "n3"))
    assert not script["n2"].election.may_vote and script["n2"].term == script["n0"].term
    for _ in range(3):
        script.wait(100)
        script.tick("n0")
        script.settle()
    assert not script["n2"].readmission.is_learner
    assert script["n2"].log.end == script["n0"].log.end


def test_a_member_that_is_told_that_its_ballot_was_lost_too_has_to_meet_all_others() -> None:
    node = RaftNode("n2", Config(("n0", "n1", "n2")), Settings(), ballot=Ballot(3), lost=True)
    node.step(Met("n0", 4, False))
    assert not node.readmission.unmet
    node.step(Met("n0", 4, True))
    assert node.readmission.unmet == ("n1",)


def test_a_member_that_has_caught_up_once_is_no_learner_in_its_next_life() -> None:
    config = Config(("n0", "n1", "n2"))
    node = RaftNode("n2", config, Settings(), ballot=Ballot(3), readmitted=True)
    node.step(Met("n0", 4, True))
    assert not node.readmission.is_learner
    fresh = RaftNode("n2", config, Settings(), ballot=Ballot(0))
    fresh.step(Met("n0", 4, False))
    assert not fresh.readmission.is_learner, "a member of a new group has lost nothing"


def test_a_vote_that_waits_for_the_disk_does_not_leave_a_member_that_hears_that_it_lost_its_log() -> None:
    script = Script()
    for id in ("n0", "n1"):
        script.wait(1000)
        script.tick(id)
    script.deliver("n1", "n2")
    script.deliver("n2", "n1")
    script.sync("n1")
    script.deliver("n1", "n2")
    script.step("n2", Met("n0", 0, True))
    script.sync("n2")
    granted = [message for message, _, _ in script.wires["n2", "n1"] if isinstance(message, VoteAnswer)]
    assert not [answer for answer in granted if answer.result == 1 and not answer.pre]


def lose_power(script: Script, damaged: int | None = None) -> None:
    """Cut the power of all members, and start them; n0 and n1 know that n2 had lost its log.

    Of n0, the entry `damaged` is torn.
    """
    for id in ("n0", "n1", "n2"):
        script.crash(id)
    if damaged is not None:
        script.members["n0"].log.damage(damaged)
    for id in ("n0", "n1", "n2"):
        script.start(id)
    for peer in ("n0", "n1"):
        script.step("n2", Met(peer, script[peer].term, True))


def test_a_group_that_loses_power_in_a_readmission_elects_among_the_others_and_teaches_its_learner_again() -> (
    None
):
    script = group()
    losing(script, "n2", told_by=("n0", "n1"))
    script.append("n0", 2)
    script.settle("n0", "n1")
    lose_power(script)
    learner = script["n2"].readmission
    assert learner.is_learner
    script.elect("n1", "n0", "n1")
    for _ in range(3):
        script.wait(100)
        script.tick("n1")
        script.settle()
    assert not script["n2"].readmission.is_learner
    assert script.terms("n2") == script.terms("n1") == [1, 1, 1, 1, 1, 1, 2]


def test_what_power_tore_off_while_a_member_was_without_its_log_is_trusted_by_a_person_or_nobody_leads() -> (
    None
):
    # n0 may have confirmed entry 7 to n2's old log, and n1 lacks it: that the learner's log was shorter nobody can say.
    script = group()
    losing(script, "n2", told_by=("n0", "n1"))
    for _ in range(4):
        script.append("n0", 1)
        if script["n0"].log.end.index < 7:
            script.settle("n0", "n1")
    script.sync("n0")
    lose_power(script, damaged=5)
    assert script["n0"].election.doubt is not None and script["n0"].log.end.index == 4
    for _ in range(6):
        script.wait(1000)
        for id in ("n0", "n1", "n2"):
            script.tick(id)
            script.settle()
    assert Role.LEADER not in {script[id].role for id in ("n0", "n1", "n2")}
    script.step("n0", DoubtDropped())
    assert script.members["n0"].log.doubt is None
    script.elect("n1", "n0", "n1")
    assert Role.LEADER in {script[id].role for id in ("n0", "n1", "n2")}, "n0 votes for the longer log"
