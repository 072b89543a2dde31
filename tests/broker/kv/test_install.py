"""A member that a region's log has left behind gets the state, and then the log; one that lacks a region is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.kv import snapshots
from broker.kv.region import KvRegion
from broker.kv.snapshots import Limits
from ropewalk.format.kv.items import Put
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


def test_a_member_that_lacks_a_region_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        leader = group.region_leader()
        Session(leader).write(leader, Put(b"a", b"1"))
        group.all_applied()
        group.stop(2)
        split = regions(leader)
        outcomes: list[object] = []
        split.split(region(leader), b"p", outcomes.append)
        group.until(lambda: outcomes, "the region is cut")
        group.region_leader(1)
        leave_behind(group)
        member = group.start(2)
        before = region(member).machine.applied
        for _ in range(300):
            group.turn()
        assert not member.member.replaced.is_set()
        assert region(member).machine.applied == before
        group.until(
            lambda: any(each.leads for each in map(upper, group.members.values()) if each), "the rest goes on"
        )


def upper(member: Member) -> KvRegion | None:
    return regions(member).get(1)
