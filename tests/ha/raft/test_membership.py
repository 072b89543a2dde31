"""Changes of a group's members: which are refused and why, how groups grow and shrink, who may lead meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.dledger.links.frames import config_of
from ha.raft.membership import MEMBERS_MAX, VOTERS_MAX
from ha.raft.node import RaftNode
from ha.raft.quorum import ConfigHistory
from ha.raft.types import (
    UNKNOWN,
    Append,
    AppendAnswer,
    Ballot,
    ChangeAsked,
    ChangeResult,
    Config,
    Founded,
    Link,
    Linked,
    Point,
    Received,
    Role,
    Run,
    Settings,
    TakeLead,
    Tick,
    Vote,
    VoteAnswer,
    VoteResult,
)
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.configuration import Configuration
from tests.ha.raft.script import Script

THREE = ("n0", "n1", "n2")
FIVE = (*THREE, "n3", "n4")
R = ChangeResult


def led(voters: tuple[str, ...] = THREE, others: tuple[str, ...] = ("n3", "n4")) -> Script:
    """Return a group led by its first member in term 1, whose opening entry all have."""
    script = Script(voters, others=others)
    script.elect(voters[0])
    beat(script, voters[0])
    return script


def beat(script: Script, leader: str) -> None:
    script.wait(100)
    script.tick(leader)
    script.settle()


def asked(script: Script, leader: str, voters: Iterable[str], learners: Iterable[str] = ()) -> R | None:
    """Ask for a change; return the answer, if there is one at once."""
    effects = script.step(leader, ChangeAsked(9, Config(tuple(voters), (), tuple(learners)), script.now))
    return effects.changed[0][1] if effects.changed else None


def leads(script: Script, id: str) -> bool:
    return script[id].role is Role.LEADER


def become(script: Script, leader: str, voters: Iterable[str], learners: Iterable[str] = ()) -> None:
    """Have the group change, and come to rest."""
    assert asked(script, leader, voters, learners) is None
    script.settle()
    beat(script, leader)


# -- what is refused -------------------------------------------------------------------------------------


def test_a_member_that_does_not_lead_changes_nothing() -> None:
    assert asked(led(), "n1", ("n1", "n2")) is R.NOT_LEADER


def test_a_change_is_refused_before_the_first_commit_of_the_own_term() -> None:
    script = Script(THREE)
    for _ in range(2):
        script.wait(1000)
        script.tick("n0")
    script.deliver("n0", "n1")
    script.deliver("n1", "n0")
    script.sync("n0")
    script.deliver("n0", "n1")
    script.sync("n1")
    script.deliver("n1", "n0")
    assert script["n0"].role is Role.LEADER and script["n0"].log.commit.index < script["n0"].term_first
    assert asked(script, "n0", ("n0", "n1")) is R.NOT_READY
    script.settle()
    assert asked(script, "n0", ("n0", "n1")) is None


def test_one_change_at_a_time() -> None:
    script = led()
    assert asked(script, "n0", THREE, ("n3",)) is None
    assert asked(script, "n0", THREE, ("n4",)) is R.CHANGE_IN_PROGRESS, "joint, and not committed"
    script.deliver("n0", "n1")
    script.sync("n0")
    script.sync("n1")
    script.deliver("n1", "n0")
    assert script["n0"].config == Config(THREE, (), ("n3",))
    assert asked(script, "n0", THREE, ("n4",)) is R.CHANGE_IN_PROGRESS, "final, and not committed"
    script.settle()
    assert asked(script, "n0", THREE, ("n3", "n4")) is None


def test_a_change_that_the_shell_has_still_to_append_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    script = led()
    monkeypatch.setattr(
        script, "append", lambda id, count, config: None
    )  # as a shell does whose disk is full
    assert asked(script, "n0", THREE, ("n3",)) is None
    assert asked(script, "n0", THREE, ("n4",)) is R.CHANGE_IN_PROGRESS
    assert script["n0"].config == Config(THREE)


def test_a_group_keeps_a_voter() -> None:
    assert asked(led(("n0",), ()), "n0", ()) is R.NO_QUORUM
    assert asked(led(), "n0", (), ("n0", "n1", "n2")) is R.NO_QUORUM


def test_a_group_has_bounds() -> None:
    many = [f"n{number}" for number in range(MEMBERS_MAX + 1)]
    assert asked(led(), "n0", many[: VOTERS_MAX + 1]) is R.TOO_MANY
    assert asked(led(), "n0", THREE, many) is R.TOO_MANY
    assert asked(led(), "n0", THREE, many[:MEMBERS_MAX]) is None


@pytest.mark.parametrize("voters", [THREE, ("n2", "n0", "n1"), ("n0", "n0", "n1", "n2")])
def test_the_same_members_in_another_order_are_nothing_to_change(voters: tuple[str, ...]) -> None:
    script = led()
    become(script, "n0", THREE, ("n3",))
    assert asked(script, "n0", voters, ("n3", "n1")) is R.NOTHING_TO_CHANGE, "a voter is no learner beside"


def test_who_is_no_learner_is_not_made_a_voter() -> None:
    assert asked(led(), "n0", (*THREE, "n3")) is R.NOT_CAUGHT_UP


def test_a_learner_that_lags_is_not_made_a_voter() -> None:
    script = Script(THREE, Settings(learner_lag_max=3), others=("n3",))
    script.elect("n0")
    beat(script, "n0")
    become(script, "n0", THREE, ("n3",))
    for _ in range(3):
        script.append("n0", 1)
    script.settle("n0", "n1", "n2")
    assert asked(script, "n0", (*THREE, "n3")) is R.NOT_CAUGHT_UP
    script.deliver("n0", "n3", 1)
    script.sync("n3")
    script.deliver("n3", "n0")
    assert asked(script, "n0", (*THREE, "n3")) is None, "two entries are few"


def test_a_learner_that_lacks_many_bytes_is_not_made_a_voter() -> None:
    script = Script(THREE, Settings(learner_bytes_max=300), others=("n3",))
    script.elect("n0")
    beat(script, "n0")
    become(script, "n0", THREE, ("n3",))
    script.append("n0", 3)
    script.settle("n0", "n1", "n2")
    assert asked(script, "n0", (*THREE, "n3")) is R.NOT_CAUGHT_UP
    script.settle()
    assert asked(script, "n0", (*THREE, "n3")) is None


def test_a_learner_whose_link_is_down_is_not_made_a_voter() -> None:
    script = led()
    become(script, "n0", THREE, ("n3",))
    script.unlink("n0", "n3")
    assert asked(script, "n0", (*THREE, "n3")) is R.NOT_CAUGHT_UP


def test_a_group_is_not_left_to_members_that_are_not_heard() -> None:
    script = led()
    script.crash("n2")
    for _ in range(8):
        script.wait(100)
        script.tick("n0")
        script.settle("n0", "n1")
    assert asked(script, "n0", ("n0", "n2")) is R.NO_QUORUM
    assert asked(script, "n0", ("n0", "n1")) is None


def test_a_member_that_lost_its_log_catches_up_before_members_change() -> None:
    script = led()
    link = script.link_of("n0", "n2")
    answer = AppendAnswer(1, True, -1, 0, 0, -1, counts=False)
    script.step("n0", Received("n2", link, answer, script.now))
    assert asked(script, "n0", THREE, ("n3",)) is R.NOT_CAUGHT_UP


def test_a_leader_that_is_left_out_changes_nothing() -> None:
    script = led()
    script.run("leave n1")
    script.run("leave n2")
    beat(script, "n0")
    become(script, "n0", ("n1", "n2"))
    assert leads(script, "n0"), "it waits for one that could take over"
    assert asked(script, "n0", THREE) is R.NOT_READY


def test_a_leader_that_hands_over_changes_nothing() -> None:
    script = led()
    script.append("n0", 1)
    script.run("transfer n0 n1")
    assert asked(script, "n0", THREE, ("n3",)) is R.NOT_READY


# -- groups grow and shrink ------------------------------------------------------------------------------


def test_a_group_goes_from_one_to_three_to_five_and_back_to_three() -> None:
    script = led(("n0",), ("n1", "n2", "n3", "n4"))
    sizes = []
    for voters in (THREE, FIVE, THREE):
        before = script["n0"].config.voters
        fresh = tuple(each for each in voters if each not in before)
        if fresh:
            become(script, "n0", before, fresh)
        become(script, "n0", voters)
        script.append("n0", 2)
        script.settle()
        beat(script, "n0")
        sizes.append(len(script["n0"].config.voters))
        for id in voters:
            assert script[id].config == Config(voters)
            assert script[id].log.commit.index == script["n0"].log.end.index
    assert sizes == [3, 5, 3]
    assert script["n4"].role is not Role.LEADER and not script["n4"].election.may_lead(script["n4"].log)


def test_of_an_even_group_half_is_no_majority() -> None:
    script = led(others=("n3",))
    become(script, "n0", THREE, ("n3",))
    become(script, "n0", (*THREE, "n3"))
    script.append("n0", 1)
    script.settle("n0", "n1")
    end = script["n0"].log.end.index
    assert script["n0"].log.commit.index == end - 1
    script.settle("n0", "n1", "n2")
    assert script["n0"].log.commit.index == end


def test_a_joint_configuration_is_committed_by_both_of_its_groups() -> None:
    script = led(("n0",), ("n1", "n2"))
    become(script, "n0", ("n0",), ("n1", "n2"))
    assert asked(script, "n0", ("n1", "n2")) is None
    joint = script["n0"].log.end.index
    for id in ("n1", "n2"):
        script.deliver("n0", id)
        script.sync(id)
        script.deliver(id, "n0")
    assert script["n0"].log.commit.index == joint - 1, (
        "the new ones have it on their disks, the old one has not"
    )
    script.sync("n0")
    assert script["n0"].log.commit.index == joint


def test_the_next_leader_completes_what_is_joint() -> None:
    script = led()
    become(script, "n0", THREE, ("n3",))
    assert asked(script, "n0", ("n1", "n2", "n3")) is None
    script.deliver("n0", "n1")
    script.sync("n1")
    for id in ("n1", "n2", "n3"):
        script.unlink("n0", id)
    assert script["n1"].config.old == THREE
    script.elect("n1", "n1", "n2", "n3")
    beat(script, "n1")
    assert script["n2"].config == script["n3"].config == Config(("n1", "n2", "n3"))
    assert script["n1"].log.commit.index == script["n1"].log.end.index


def test_who_is_left_out_hears_of_it_from_the_leader() -> None:
    script = led()
    become(script, "n0", ("n0", "n1"))
    assert script["n2"].config == Config(("n0", "n1"))
    assert script["n2"].log.commit.index == script["n2"].log.end.index
    for _ in range(12):
        beat(script, "n0")
    assert set(script["n0"].dispatchers) == {"n1"}
    assert script["n0"].peers == ("n1",)


def test_a_leader_that_is_left_out_steps_down_where_nobody_can_take_over() -> None:
    script = led()
    script.run("leave n1")
    script.run("leave n2")
    beat(script, "n0")
    assert asked(script, "n0", ("n1", "n2")) is None
    script.settle()
    assert leads(script, "n0"), "it waits a while for one that could"
    for _ in range(10):
        beat(script, "n0")
    assert not leads(script, "n0")
    script.wait(5000)
    script.tick("n0")
    script.tick("n0")
    assert not script.wires["n0", "n1"], "nor does it campaign"


def test_a_leader_that_is_left_out_while_it_hands_over_does_not_hand_over_again() -> None:
    """Messages would be refused for two timeouts, one behind the other."""
    script = led()
    hand_over = script._hand_over
    script._hand_over = lambda sender, peer, parcel: (  # type: ignore[method-assign]
        None if isinstance(parcel[0], TakeLead) else hand_over(sender, peer, parcel)
    )
    assert asked(script, "n0", ("n1", "n2")) is None
    script.run("transfer n0 n1")
    for _ in range(9):
        assert leads(script, "n0")
        beat(script, "n0")
    beat(script, "n0")
    assert not leads(script, "n0")


# -- who may lead, and who votes -------------------------------------------------------------------------

END = Point(5, 2, 600)


def member(
    id: str, base: tuple[str, ...], configs: Iterable[tuple[int, Config]] = (), commit: Point = END
) -> RaftNode:
    node = RaftNode(
        id,
        Config(base),
        Settings(),
        ballot=Ballot(2),
        rows=[(2, 0, 0)],
        end=END,
        commit=commit,
        configs=configs,
    )
    node.step(Tick(0, 0, 0.0))
    for kind in Link:
        node.step(Linked("n0", 1, kind, True, 0))
    return node


def answer_of(node: RaftNode, vote: Vote) -> VoteResult:
    """Return the answer of a member that heard no leader for long, in the step that saved its ballot."""
    node.step(Tick(600, 0, 0.0))
    ((_peer, message),) = node.step(Received("n0", 1, vote, 600)).send
    assert isinstance(message, VoteAnswer)
    return message.result


def campaigns(node: RaftNode) -> bool:
    return bool(node.step(Tick(5000, 0, 0.0)).send)


def test_a_learner_votes_for_who_knows_more_and_does_not_campaign() -> None:
    config = Config(("n0", "n2"), (), ("n1",))
    assert answer_of(member("n1", THREE, [(3, config)]), Vote(3, 6, 2, pre=True)) is VoteResult.ACCEPT
    assert not campaigns(member("n1", THREE, [(3, config)]))


def test_a_candidate_that_is_no_voter_and_knows_nothing_new_is_refused() -> None:
    config = Config(("n1", "n2"))
    for last in (4, 5):
        vote = Vote(3, last, 2, pre=True)
        assert answer_of(member("n1", THREE, [(3, config)]), vote) is VoteResult.REJECT_UNKNOWN_LEADER
    assert answer_of(member("n1", THREE, [(3, config)]), Vote(3, 6, 2, pre=True)) is VoteResult.ACCEPT


def test_who_is_left_out_by_an_entry_that_is_not_committed_may_be_the_one_to_commit_it() -> None:
    joint, final = Config(("n1", "n2"), THREE), Config(("n1", "n2"))
    before = Point(4, 2, 500)
    assert campaigns(member("n0", THREE, [(4, joint), (5, final)], before))
    assert not campaigns(member("n0", THREE, [(4, joint), (5, final)], END))
    for commit, result in ((before, VoteResult.ACCEPT), (END, VoteResult.REJECT_UNKNOWN_LEADER)):
        node = member("n1", THREE, [(4, joint), (5, final)], commit)
        assert answer_of(node, Vote(3, 5, 2, pre=True)) is result


def test_a_member_that_was_removed_is_refused_by_those_that_hear_a_leader() -> None:
    script = led()
    script.unlink("n0", "n2")
    script.unlink("n1", "n2")
    become(script, "n0", ("n0", "n1"))
    script.link("n1", "n2")  # it was away, and knows nothing of its removal
    for _ in range(12):
        beat(script, "n0")
        script.tick("n2")
        script.settle()
    assert script["n2"].config == Config(THREE)
    assert (script["n0"].role, script["n0"].term) == (Role.LEADER, 1)
    assert script["n2"].term == 1, "a pre-vote raises no term"


def test_a_run_with_a_configuration_and_others_is_refused_as_a_protocol_error() -> None:
    node = member("n1", THREE)
    run = Run(6, 2, 2, 600, 100, Config(THREE))
    with pytest.raises(RemoteProtocolError):
        for kind in Link:
            node.step(Linked("n0", 1, kind, True, 0))
        node.step(Received("n0", 1, Append(2, END, run, 0), 10))


# -- the history -----------------------------------------------------------------------------------------

CONFIGS = st.sampled_from([Config(THREE), Config(FIVE, THREE), Config(FIVE), Config(("n0",))])


@given(
    st.lists(st.tuples(st.integers(0, 30), CONFIGS), unique_by=lambda row: row[0], max_size=8),
    st.lists(st.integers(-1, 30), max_size=3),
)
def test_the_history_is_the_list_of_what_the_log_carries(
    rows: list[tuple[int, Config]], cuts: list[int]
) -> None:
    carried = sorted(rows)
    history = ConfigHistory(Config(("n9",)), carried)
    for cut in [30, *cuts]:
        history.cut(cut)
        carried = [row for row in carried if row[0] <= cut]
        in_log = [Config(("n9",)), *(config for _index, config in carried)]
        assert history.in_force == history.quorum.config == in_log[-1]
        for index in range(-1, 31):
            expected = [config for at, config in carried if at <= index]
            assert history.at(index) == (expected[-1] if expected else Config(("n9",)))
            assert set(history.since(index)) == {history.at(at) for at in range(index, 31)}
        changes = [at for (_, one), (at, other) in pairwise([(-1, None), *carried]) if one != other]
        assert [index for index, _config in history.rows] == changes
        for first in range(31):
            end = history.end_of_run(first, 30)
            assert not any(first < index <= end for index in changes)
            assert end == first or first not in changes


def test_the_core_sees_a_configuration_without_its_addresses() -> None:
    found = Configuration(3, "n0", ("n0", "n1"), ("n0",), ("n2",), {"n0": "h:1"}, {"n1": b"y", "n0": b"x"})
    assert config_of(found) == Config(("n0", "n1"), ("n0",), ("n2",), (("n0", b"x"), ("n1", b"y")))


def test_a_member_that_has_still_to_be_told_the_members_answers_candidates_and_is_none_itself() -> None:
    node = RaftNode("n1", UNKNOWN, Settings(), ballot=Ballot(0))
    for moment in range(0, 10_000, 100):
        assert not node.step(Tick(moment, 0, 0.0)).send
    node.step(Linked("n0", 1, Link.CONTROL, True, 10_000))
    effects = node.step(Received("n0", 1, Vote(1, 5, 1, pre=True), 10_000))
    assert effects.send == (("n0", VoteAnswer(1, True, VoteResult.ACCEPT)),)
    node.step(Founded(Config(("n1",)), 10_000))
    node.step(Tick(11_000, 0, 0.0))
    assert node.term == 1, "it is the only voter"


def test_members_take_turns_at_being_preferred_as_they_come_and_go() -> None:
    settings = Settings(turn=4)
    assert settings.preferred_of(("n0", "n1", "n2")) == ("n1",)
    assert settings.preferred_of(("n0", "n2")) == ("n0",)
    assert Settings(preferred=("n2",)).preferred_of(("n0", "n1")) == ("n2",)
