"""Conversations that change the members of a DLedger group: steps, waits, leaders that are lost in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from ropewalk.client.admin.ledger import LedgerSteps
from ropewalk.client.admin.results import BrokerMember, LedgerMembers, LedgerPeerStatus, LedgerStatus
from ropewalk.client.core.steps import Pause, Steps
from ropewalk.codes import ResponseCode
from ropewalk.errors import Refused, Rejected, error_for
from ropewalk.format.headers import LedgerChangeHeader
from ropewalk.format.remoting import Command

GROUP = LedgerMembers(("n0", "n1", "n2"))
PEER = LedgerPeerStatus("n3", "h3:1", True, "REPLICATE", 5, 4_999, "", True)
LEADER = LedgerStatus(
    BrokerMember("c", "b", 0, "a:1"), "n0", "g", GROUP, "LEADER", 3, "n0", True, "", 5_000, 5_000, 5_000, 5_000, 1,
    (PEER,), False, (), False,
)  # fmt: skip
NO_LEADER = replace(LEADER, leads=False, leader="")


def said(code: int, remark: str) -> Refused:
    error = error_for(code, remark)
    assert isinstance(error, Refused)
    return error


class Group(LedgerSteps):
    """A leader that answers as it is told."""

    def __init__(self, answers: dict[str, list[LedgerMembers | Refused]], found: list[LedgerStatus]) -> None:
        self.asked: list[LedgerChangeHeader] = []
        self._answers = {change: iter(each) for change, each in answers.items()}
        self._found: Iterator[LedgerStatus] = iter(found)
        self._last = found[-1]

    def ledger_status(self, *, broker: str | None = None) -> Steps[tuple[LedgerStatus, ...]]:
        self._last = next(self._found, self._last)
        yield from ()
        return (self._last,)

    def ask_group(self, address: str, code: int, header: msgspec.Struct | None = None) -> Steps[Command]:
        assert isinstance(header, LedgerChangeHeader) and address == "a:1"
        yield from ()
        self.asked.append(header)
        answer = next(self._answers[header.change])
        if isinstance(answer, Refused):
            raise answer
        ext = {"voters": ",".join(answer.voters), "learners": ",".join(answer.learners)}
        return Command(code, ext=ext)


def driven(steps: Steps[LedgerMembers]) -> tuple[LedgerMembers, float]:
    """Return the result, and for how long it paused."""
    paused = 0.0
    while True:
        try:
            effect = next(steps)
        except StopIteration as over:
            return over.value, paused
        assert isinstance(effect, Pause)
        paused += effect.seconds


LEARNS = LedgerMembers(GROUP.voters, (), ("n3",))
VOTES = LedgerMembers((*GROUP.voters, "n3"))


def test_a_new_member_learns_and_is_promoted_when_it_has_the_log() -> None:
    told: list[str] = []
    behind = [replace(LEADER, peers=(replace(PEER, match=match),)) for match in range(0, 4_500, 500)]
    group = Group({"learn": [LEARNS], "promote": [VOTES]}, [LEADER, *behind, LEADER])
    members, paused = driven(group.add_member("b", "n3", "h3:1", told=told.append))
    assert members == VOTES and paused > 3
    assert [(each.change, each.id, each.address) for each in group.asked] == [
        ("learn", "n3", "h3:1"),
        ("promote", "n3", ""),
    ]
    assert told[0] == "n3 learns, and votes when it has the log"
    assert told[1].startswith("n3 has ") and told[1].endswith(" of 5,001 entries")


def test_a_replacement_names_the_member_that_leaves_when_the_new_one_is_promoted() -> None:
    group = Group({"learn": [LEARNS], "promote": [LedgerMembers(("n0", "n1", "n3"))]}, [LEADER])
    members, _paused = driven(group.add_member("b", "n3", "h3:1", replacing="n2"))
    assert members.voters == ("n0", "n1", "n3") and group.asked[-1].replacing == "n2"


def test_one_that_was_added_before_is_not_waited_for_again() -> None:
    group = Group({"learn": [VOTES], "promote": [VOTES]}, [LEADER])
    assert driven(group.add_member("b", "n3", "h3:1")) == (VOTES, 0.0)


def test_the_next_leader_is_asked_when_one_is_lost() -> None:
    lost = said(ResponseCode.SYSTEM_ERROR, "UNKNOWN: n0 leads no more")
    group = Group({"learn": [lost, LEARNS]}, [LEADER, NO_LEADER, NO_LEADER, LEADER])
    assert driven(group.change_members("b", "learn", "n3", "h3:1")) == (LEARNS, 1.5)


def test_a_removal_that_was_made_meanwhile_is_no_unknown_member() -> None:
    lost = said(ResponseCode.SYSTEM_ERROR, "UNKNOWN: n0 leads no more")
    without = replace(LEADER, members=LedgerMembers(("n0", "n1")))
    group = Group({"remove": [lost]}, [LEADER, without])
    assert driven(group.change_members("b", "remove", "n2"))[0] == without.members


def test_a_learner_that_lags_a_little_is_promoted_a_little_later() -> None:
    lags = said(ResponseCode.SYSTEM_ERROR, "NOT_CAUGHT_UP: n3 lacks too much")
    group = Group({"promote": [lags, lags, VOTES]}, [LEADER])
    assert driven(group.promote_member("b", "n3")) == (VOTES, 1.0)


class Readmissions(LedgerSteps):
    """Members that let everybody in."""

    def __init__(self, found: tuple[LedgerStatus, ...]) -> None:
        self.asked: list[str] = []
        self._found = found

    def ledger_status(self, *, broker: str | None = None) -> Steps[tuple[LedgerStatus, ...]]:
        yield from ()
        return self._found

    def ask_group(self, address: str, code: int, header: msgspec.Struct | None = None) -> Steps[Command]:
        yield from ()
        self.asked.append(address)
        return Command(code)


def test_a_member_is_let_in_by_those_that_the_group_has_now_and_by_none_that_its_settings_still_name() -> (
    None
):
    leader = replace(LEADER, members=LedgerMembers(("n0", "n1", "n3")))
    removed = replace(NO_LEADER, id="n2", member=BrokerMember("c", "b", 2, "a:2"), committed=4_000)
    empty = replace(NO_LEADER, id="n3", member=BrokerMember("c", "b", 3, "a:3"), term=9, committed=-1)
    for found in ((empty, removed, leader), (empty, removed, replace(leader, leads=False))):
        group = Readmissions(found)
        steps = group.readmit("b", "n3")
        with pytest.raises(StopIteration) as over:
            next(steps)
        assert over.value.value == {"n0": "", "n1": "n1 does not answer"}
        assert group.asked == ["a:1"]


def test_a_refusal_for_good_is_told_at_once() -> None:
    group = Group(
        {"remove": [said(ResponseCode.ILLEGAL_OPERATION, "n7 is no member of this group")]}, [LEADER]
    )
    with pytest.raises(Refused, match="n7 is no member of this group"):
        driven(group.change_members("b", "remove", "n7"))


def test_a_group_without_a_leader_is_told_of_what_to_do() -> None:
    with pytest.raises(Rejected, match=r"most voters have to be there.*`ropewalk admin dledger force`"):
        driven(Group({}, [NO_LEADER]).change_members("b", "remove", "n2"))


def test_a_removal_without_a_leader_tells_what_it_waits_for_and_ends_when_its_wait_is_over() -> None:
    told: list[str] = []
    steps = Group({}, [NO_LEADER]).change_members("b", "remove", "n2", wait_s=4, told=told.append)
    paused = 0.0
    with pytest.raises(Rejected, match="no member of b leads"):
        for effect in steps:
            assert isinstance(effect, Pause)
            paused += effect.seconds
    assert paused == 4 and told == ["no member of b leads; it is tried for 4 s"]


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (replace(PEER, is_linked=False, why="h3:1: refused", match=-1), r"n3 is not reached at h3:1 \(h3:1: ref"),
        (replace(PEER, match=17), "n3 got nothing for 2 s, and has 18 entries"),
    ],
)  # fmt: skip
def test_a_member_that_gets_nothing_is_given_up_with_the_reason(peer: LedgerPeerStatus, words: str) -> None:
    group = Group({"learn": [LEARNS]}, [replace(LEADER, peers=(peer,))])
    with pytest.raises(Rejected, match=words) as caught:
        driven(group.add_member("b", "n3", "h3:1", wait_s=2))
    assert "`ropewalk admin dledger remove n3`" in str(caught.value)


def test_a_change_is_over_when_the_regions_of_the_key_value_store_have_followed() -> None:
    behind = replace(LEADER, regions_behind=(0, 2))
    group = Group({"remove": [GROUP]}, [LEADER, behind, NO_LEADER, behind, LEADER])
    assert driven(group.change_members("b", "remove", "n3")) == (GROUP, 1.5)


def test_regions_that_do_not_follow_are_named_and_a_removal_is_waited_for_again() -> None:
    behind = replace(LEADER, regions_behind=(0, 2))
    with pytest.raises(
        Rejected, match=r"the regions 0, 2 of its key-value store have still to follow: stop none of"
    ):
        driven(Group({"remove": [GROUP]}, [LEADER, behind]).change_members("b", "remove", "n3", wait_s=5))
    gone = said(ResponseCode.ILLEGAL_OPERATION, "n3 is no member of this group")
    group = Group({"remove": [gone]}, [behind, behind, LEADER])
    assert driven(group.change_members("b", "remove", "n3"))[0] == GROUP and not group.asked


def test_the_next_step_waits_for_regions_that_have_still_to_follow_the_one_before() -> None:
    busy = said(
        ResponseCode.ILLEGAL_OPERATION, "CHANGE_IN_PROGRESS: the key-value store's regions 0 have still to"
    )
    group = Group({"promote": [busy, VOTES]}, [LEADER])
    assert driven(group.promote_member("b", "n3")) == (VOTES, 0.5)
