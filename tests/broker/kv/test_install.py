"""A member that a region's log has left behind gets the state, and then the log; also of regions that it lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.kv import snapshots
from broker.kv.snapshots import Limits
from ha.kv.snapshot import StateWalk
from ropewalk.format.kv.commands import Outcome
from ropewalk.format.kv.items import Count, Put
from store import region_store
from tests.broker.harness import without_fsync
from tests.broker.kv.members import KvGroup, Session, region, regions, write_patiently
from tests.support.ledger_brokers import Member


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    without_fsync(monkeypatch)
    monkeypatch.setattr(snapshots, "LIMITS", Limits(entries=20, keys_a_turn=10))
    monkeypatch.setattr(region_store, "SEGMENT_SIZE", 8 << 10)


def leave_behind(group: KvGroup) -> None:
    """Write until the log of these members begins behind the end of one that is stopped; no memory holds more of it."""
    leader = group.region_leader()
    session = Session(leader)
    for number in range(400):
        write_patiently(group, session, leader, Put(b"n%03d" % (number % 90), b"%d" % number * 50))
        begins = [region(each).status()["logBegin"] for each in group.members.values()]
        if min(map(int, map(str, begins))) > 3 * (8 << 10):
            break
    else:
        raise AssertionError(begins)
    for index in list(group.members):
        group.stop(index)
        group.start(index)
        group.region_leader()


def begin_again(group: KvGroup, index: int) -> Member:
    """Open a member again as its process does when a snapshot is to replace a log."""
    group.until(group.members[index].member.replaced.is_set, "a state was sent")
    group.stop(index)
    return group.start(index)


def test_a_member_left_behind_begins_with_the_leaders_state_and_catches_up(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        group.region_leader()
        group.all_applied()
        group.stop(2)
        leave_behind(group)
        group.start(2)
        member = begin_again(group, 2)
        assert region(member).restored > 50
        group.region_leader()
        group.all_applied()
        leader = group.region_leader()
        Session(leader).write(leader, Put(b"k", b"v"))
        group.all_applied()
        group.stop(2)
        group.start(2)
        group.region_leader()
        group.all_applied()


def test_a_member_whose_state_is_ahead_of_its_log_starts_again(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        group.region_leader()
        group.all_applied()
        group.stop(2)
        leave_behind(group)
        group.start(2)
        member = begin_again(group, 2)
        begun = region(member)
        assert begun.restored > begun.ledger.core.log.end.index, (
            "only the first entry of the log came with it"
        )
        group.stop(2)
        member = group.start(2)
        assert region(member).restored == begun.restored
        group.region_leader()
        group.all_applied()


def split(group: KvGroup, key: bytes, id: int = 0) -> None:
    """Cut a region at a key, and wait until all that run lead or follow both parts."""
    leader, outcomes = group.region_leader(id), list[Outcome | None]()
    regions(leader).split(region(leader, id), key, outcomes.append)
    group.until(lambda: outcomes, "the region is cut")
    assert outcomes[0] is not None
    (new,) = outcomes[0].results
    assert isinstance(new, Count)
    group.region_leader(new.number)


def lose_regions(group: KvGroup) -> None:
    """Cut a region twice while a member is away, whose part is gone from the log when it comes back."""
    leader = group.region_leader()
    Session(leader).write(leader, Put(b"a", b"1"), Put(b"q", b"2"), Put(b"u", b"3"))
    group.all_applied()
    group.stop(2)
    split(group, b"p")
    split(group, b"t", id=1)
    leave_behind(group)


def awaits(member: Member) -> set[int]:
    """Return the regions whose state a member waits for."""
    return {*regions(member)._awaiting}


def test_a_member_that_was_away_over_cuts_is_given_the_new_regions_first(tmp_path: Path) -> None:
    """The log of a new region is whole at its leader: entries alone would be applied to nothing."""
    with KvGroup(tmp_path) as group:
        lose_regions(group)
        assert all(region(each, 1).status()["logBegin"] == 0 for each in group.members.values())
        group.start(2)
        group.until(lambda: awaits(group.members[2]), "it looks for the regions that it lacks")
        assert [each["id"] for each in regions(group.members[2]).table()] == [0]
        group.until(lambda: regions(group.members[2]).get(2) is not None, "it has one of them")
        assert region(group.members[2]).machine.region.end == b"", (
            "and its own is the old one until it has all"
        )
        group.all_applied()
        for id, key, value in ((0, b"a", b"1"), (1, b"q", b"2"), (2, b"u", b"3")):
            leader = group.region_leader(id)
            Session(leader, id).write(leader, Put(key + b"!", value))
            group.all_applied()
            found = region(group.members[2], id).machine
            assert found.get(key) == found.get(key + b"!") == value
        assert not awaits(group.members[2])


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_start_goes_on_with_the_regions_that_are_still_to_come(tmp_path: Path, again: int) -> None:
    """The member stops before it has a new region's state, before the second one's, or before its own narrower one."""
    with KvGroup(tmp_path) as group:
        lose_regions(group)
        group.start(2)
        group.until(lambda: awaits(group.members[2]), "it looks for the regions that it lacks")
        group.until(lambda: len([*regions(group.members[2])]) > again, "it has so many")
        before = awaits(group.members[2])
        group.stop(2)
        group.start(2)
        known = {each.machine.region.id for each in regions(group.members[2])}
        assert before <= awaits(group.members[2]) | known
        group.all_applied()


def test_a_member_that_lost_its_log_learns_in_the_regions_that_it_lacks_before_it_votes(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        lose_regions(group)
        shutil.rmtree(group.root / "n2")
        group.leader()
        answers: list[str | None] = []
        for each in group.members.values():
            each.member.readmit("n2", answers.append)
        group.until(lambda: answers == [None, None], lambda: str(answers))
        group.start(2)
        group.until(lambda: awaits(group.members[2]), "it looks for the regions that it lacks")
        for id in awaits(group.members[2]):
            readmission = regions(group.members[2])._awaiting[id].ledger.core.readmission
            assert readmission.is_learner
        group.all_applied()
        group.until(
            lambda: not any(each.ledger.core.readmission.is_learner for each in regions(group.members[2])),
            "it votes",
        )


def test_an_entry_that_comes_after_all_is_applied_by_a_member_that_waits_for_its_region(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        group.region_leader()
        group.all_applied()
        group.stop(2)
        split(group, b"p")
        for each in group.members.values():
            region(each, 1).ledger.snapshots.make = lambda done: None  # else the state may come first
        member = group.start(2)
        regions(member)._await_state(1)
        group.until(member.member.replaced.is_set, "it begins anew with the state of the entry")
        group.region_leader(1)
        group.all_applied()
        assert region(group.members[2], 1).restored < 0 and not awaits(group.members[2])


def test_a_narrower_state_does_not_replace_the_log_in_which_another_region_begins(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        group.region_leader()
        split(group, b"p")
        group.all_applied()
        member = group.members[2]
        cut, new = region(member), region(member, 1)
        head = StateWalk(cut.machine, 1, 0).head
        group.until(lambda: new.snapshots.points, "the new region has a snapshot")
        assert cut._refuse_state(cut, head) is None
        new.snapshots.points.clear()
        cut.cut_off.append(new)
        assert cut._refuse_state(cut, head) is not None


def test_a_region_that_begins_in_a_log_that_stays_covers_its_keys_without_a_snapshot(tmp_path: Path) -> None:
    """A member that lacks two regions, one cut from the other, waited for either with the other's state."""
    with KvGroup(tmp_path) as group:
        group.region_leader()
        split(group, b"p")
        split(group, b"t", id=1)
        group.all_applied()
        member = group.members[2]
        first, middle, last = (region(member, id) for id in range(3))
        group.until(lambda: middle.snapshots.points and last.snapshots.points, "new regions have snapshots")
        head = StateWalk(last.machine, 1, 0).head
        middle.snapshots.points.clear()
        first.cut_off.append(middle)
        assert last._refuse_state(last, head) is None
