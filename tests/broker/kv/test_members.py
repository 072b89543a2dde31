"""Regions of the key-value store whose group's members come and go: each region follows, by a majority of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker.kv import snapshots
from broker.kv.snapshots import Limits
from ha.raft.types import UNKNOWN
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.kv.items import Put, encode_values
from ropewalk.format.remoting import Command
from store import region_store
from tests.broker.kv.members import KvGroup, Session, get, region, regions, write_patiently
from tests.support.ledger_brokers import Member, raft_address


def ask(group: KvGroup, change: str, index: int, **fields: str) -> Command:
    group.until(lambda: any(each.leads for each in group.members.values()), "a leader")
    leader = next(each for each in group.members.values() if each.leads)
    header = {"change": change, "id": f"n{index}", **fields}
    return leader.connect().call(RequestCode.ROPEWALK_LEDGER_CHANGE, header)


def make(group: KvGroup, change: str, index: int, **fields: str) -> None:
    group.until(
        lambda: ask(group, change, index, **fields).code == ResponseCode.SUCCESS, f"{change} n{index}"
    )


def have_followed(group: KvGroup) -> bool:
    leaders = [each for each in group.members.values() if each.leads]
    return len(leaders) == 1 and not regions(leaders[0]).behind


def take_in(group: KvGroup, index: int, **fields: str) -> Member:
    new = group.start(index)
    make(group, "learn", index, address=raft_address(index))
    make(group, "promote", index, **fields)
    group.until(lambda: have_followed(group), "all regions have followed")
    return new


def voters(member: Member, id: int = 0) -> tuple[str, ...]:
    found = regions(member).get(id)
    return (
        found.ledger.members.config.voters
        if found is not None and not found.ledger.members.config.old
        else ()
    )


def put(group: KvGroup, key: bytes, value: bytes, id: int = 0) -> None:
    leader = group.region_leader(id)
    write_patiently(group, Session(leader, id), leader, Put(key, value))


def test_regions_grow_with_their_group_and_two_of_the_old_members_can_go(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "2") as group:
        group.region_leader(1)
        put(group, b"a", b"1")
        put(group, b"z", b"1", 1)
        for index in (3, 4):
            take_in(group, index)
        expected = ("n0", "n1", "n2", "n3", "n4")
        group.until(
            lambda: all(voters(each, id) == expected for each in group.members.values() for id in (0, 1)),
            "every member of each region knows it",
        )
        group.all_applied()
        for index in (0, 1):
            group.stop(index)
        put(group, b"b", b"2")
        put(group, b"y", b"2", 1)
        for each in group.members.values():
            assert get(each, b"a", b"b") == [b"1", b"2"]
            assert get(each, b"z", b"y", region=1) == [b"1", b"2"]
        group.all_applied()


def test_a_dead_member_is_replaced_in_all_regions_and_the_new_one_is_needed_then(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "2") as group:
        group.region_leader(1)
        put(group, b"a", b"1")
        put(group, b"z", b"1", 1)
        group.stop(1)
        take_in(group, 3, replacing="n1")
        group.stop(0)
        put(group, b"b", b"2")
        put(group, b"y", b"2", 1)
        assert get(group.members[3], b"a", b"b") == [b"1", b"2"]
        assert get(group.members[3], b"z", b"y", region=1) == [b"1", b"2"]
        assert voters(group.members[2]) == voters(group.members[2], 1) == ("n0", "n2", "n3")
        group.all_applied()


def test_a_member_that_leads_regions_is_removed_and_they_go_on_without_it(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "3") as group:
        for id in (0, 1, 2):
            group.region_leader(id)
        removed = group.region_leader(1)
        put(group, b"k", b"1", 1)
        make(group, "remove", int(removed.id[1:]))
        others = [each for each in group.members.values() if each is not removed]
        group.until(
            lambda: any(each.leads and not regions(each).behind for each in others), "all have followed"
        )
        group.until(lambda: regions(removed).is_removed, "it has heard that it is removed")
        stale = removed.connect().call(
            RequestCode.ROPEWALK_KV_GET, {"region": 1, "epoch": 1, "unsafe": True}, encode_values([b"k"])
        )
        assert stale.code == ResponseCode.SERVICE_NOT_AVAILABLE and "none of the group any more" in (
            stale.remark or ""
        )
        told = msgspec.json.decode(others[0].connect().call(RequestCode.ROPEWALK_KV_REGIONS).body)
        assert told["members"] == sorted(each.id for each in others)
        group.stop(int(removed.id[1:]))
        for id, key in enumerate((b"a", b"k", b"z")):
            put(group, key, b"2", id)
            assert all(removed.id not in voters(each, id) and len(voters(each, id)) == 2 for each in others)
            assert [get(each, key, region=id) for each in others] == [[b"2"]] * 2
        group.all_applied()


def test_a_learner_has_the_regions_and_is_in_no_majority_of_them(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        put(group, b"a", b"1")
        new = group.start(3)
        make(group, "learn", 3, address=raft_address(3))
        group.until(lambda: region(new).machine.get(b"a") == b"1", "it has the state")
        config = region(new).ledger.members.config
        assert (config.voters, config.learners) == (("n0", "n1", "n2"), ("n3",))
        assert get(new, b"a") == [b"1"]


def test_a_new_member_does_not_begin_a_region_with_the_members_in_its_settings(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        put(group, b"a", b"1")
        news = [group.start(index) for index in (3, 4)]
        for index in (0, 1, 2):
            group.stop(index)
        for _ in range(300):
            group.turn()
        for new in news:
            assert region(new).ledger.members.config == UNKNOWN and region(new).ledger.term == 0
        for index in (0, 1, 2):
            group.start(index)
        for index in (3, 4):
            make(group, "learn", index, address=raft_address(index))
        group.all_applied()
        assert [get(each, b"a") for each in news] == [[b"1"]] * 2


def test_regions_begin_with_the_members_in_the_log_where_the_store_comes_later(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "0") as group:
        group.leader()
        group.start(3)
        make(group, "learn", 3, address=raft_address(3))
        make(group, "promote", 3, replacing="n0")
        group.until(
            lambda: all(not each.member.ledger.members.config.old for each in group.members.values()), "done"
        )
        group.stop(0)
        for index in (1, 2, 3):
            group.stop(index)
            group.start(index, ropewalkKvRegions="1")
            group.leader()
        put(group, b"a", b"1")
        group.until(
            lambda: all(voters(each) == ("n1", "n2", "n3") for each in group.members.values()),
            "every member knows its region's members",
        )
        assert group.size == 3, "dLegerPeers of n1 and n2 name n0, and not n3"


def test_a_new_member_is_given_regions_whose_cut_is_gone_from_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "LIMITS", Limits(entries=20, keys_a_turn=10))
    monkeypatch.setattr(region_store, "SEGMENT_SIZE", 8 << 10)
    with KvGroup(tmp_path, "2") as group:
        group.region_leader(1)
        group.until(
            lambda: all(region(each, 1).snapshots.points for each in group.members.values()), "snapshots"
        )
        for id, key in ((0, b"a%02d"), (1, b"z%02d")):
            leader = group.region_leader(id)
            session = Session(leader, id)
            for number in range(400):
                write_patiently(group, session, leader, Put(key % (number % 90), b"%d" % number * 50))
                if int(str(region(leader, id).status()["logBegin"])) > 3 * (8 << 10):
                    break
            else:
                raise AssertionError(f"the log of region {id} is kept")
        for index in (0, 1, 2):
            group.stop(index)
            group.start(index)
            group.region_leader(0)
            group.region_leader(1)
        take_in(group, 3, replacing="n0")
        group.stop(0)
        new = group.members[3]
        group.until(lambda: region(new).restored > 0 and region(new, 1).restored > 0, "it has both states")
        put(group, b"a", b"2")
        put(group, b"z", b"2", 1)
        assert get(new, b"a") == get(new, b"z", region=1) == [b"2"]
        group.all_applied()


def test_a_region_that_is_cut_during_a_change_follows_it_too(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        put(group, b"a", b"1")
        put(group, b"z", b"1")
        new = group.start(3)
        make(group, "learn", 3, address=raft_address(3))
        leader = group.region_leader()
        outcomes: list[object] = []
        regions(leader).split(region(leader), b"n", outcomes.append)
        make(group, "promote", 3, replacing="n0")
        group.until(lambda: outcomes and have_followed(group), "both have followed")
        group.stop(0)
        put(group, b"b", b"2")
        put(group, b"y", b"2", 1)
        assert get(new, b"a", b"b") == get(new, b"z", b"y", region=1) == [b"1", b"2"]
        assert voters(new) == voters(new, 1) == ("n1", "n2", "n3")
        group.all_applied()


def test_a_member_starts_with_the_members_in_the_logs_of_its_regions(tmp_path: Path) -> None:
    with KvGroup(tmp_path, "2") as group:
        put(group, b"a", b"1")
        put(group, b"z", b"1", 1)
        take_in(group, 3)
        group.all_applied()
        for index in range(4):
            group.stop(index)
        for index in range(4):
            started = group.start(index)
            assert voters(started) == voters(started, 1) == ("n0", "n1", "n2", "n3")
        put(group, b"a", b"2")
        group.all_applied()


def test_the_next_change_waits_until_all_regions_have_followed_but_a_removal_does_not(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        put(group, b"a", b"1")
        leader = group.region_leader()
        region(leader).ledger.members.following.follow = lambda index, found: None  # type: ignore[method-assign]
        group.start(3)
        make(group, "learn", 3, address=raft_address(3))
        answer = ask(group, "promote", 3)
        assert (answer.remark or "").startswith(
            "CHANGE_IN_PROGRESS: the key-value store's regions 0 have still"
        )
        make(group, "remove", 3)
        group.until(lambda: have_followed(group), "nothing is left to follow")
