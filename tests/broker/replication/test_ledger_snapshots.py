"""Tables of a group whose log has lost its beginning: they outlive the records that made them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest

from broker.replication.dledger.state import LedgerState
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from ha.dledger.members.overrides import readmit
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.replication.group_tables import change_all, tables, until_equal
from tests.support.ledger_brokers import LedgerBrokers, Member

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 65_536, "fileReservedTime": 2, "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 95, "cleanFileForciblyEnable": False,
}  # fmt: skip
"""Settings of members whose logs retention shortens within a test."""


def fill(group: LedgerBrokers, bytes_min: int) -> None:
    """Send messages until the log is so much longer."""
    leader = group.leader()
    client, log = leader.connect(), leader.broker.store.log
    end = log.end_offset + bytes_min
    while log.end_offset < end:
        client.send("Filler", bytes(10_000))  # refused while the next segment is being made
        group.turn()


def expire(group: LedgerBrokers, member: Member, offset: int) -> None:
    """Have retention remove what it may, which goes as far as `offset`."""
    store = member.broker.store

    def is_removed() -> bool:
        for segment in store.log.segments[:-1]:
            os.utime(segment.file.path, (0, 0))
        store.upkeep.remove_expired()
        gone = store.log.directory / f"{store.log.min_offset - store.log.segment_size:020d}"
        return store.log.min_offset >= offset and not gone.exists()

    group.until(is_removed, lambda: f"the log begins at {store.log.min_offset}")


def test_what_retention_removes_takes_no_acknowledged_change_with_it(tmp_path: Path) -> None:
    """The files of the tables are as old as the last save: here there was none."""
    with LedgerBrokers(tmp_path / "a", 1, **SMALL) as group:
        leader = group.leader()
        broker, now = leader.broker, leader.broker.context.now_ms()
        assert broker.topics.update(TopicConfig("Made", 3, 3), now)
        broker.groups.update(SubscriptionGroupConfig("g"), now)
        fill(group, 300_000)
        broker.offsets.commit("g", "Made", 0, 7)
        fill(group, 300_000)
        expire(group, leader, 300_000)
        before = tables(leader)
        copytree(tmp_path / "a", tmp_path / "b")  # as a kill leaves it
    with LedgerBrokers(tmp_path / "b", 1, **SMALL) as group:
        assert tables(group.leader()) == before


def logs_of(group: LedgerBrokers) -> list[bytes]:
    """Return the bytes of each member's log, from where that of the first one begins that begins latest."""
    logs = [member.broker.store.log for member in group.members.values()]
    begin = max(log.min_offset for log in logs)
    found = []
    for log in logs:
        segments = [segment for segment in log.segments if segment.end_offset > begin]
        found.append(b"".join(bytes(each.map[: each.write_position]) for each in segments))
    return found


def queues_of(member: Member) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the first and the next number of each queue that ever had a message."""
    return {
        (topic, id): (queue.min_offset, queue.readable)
        for topic, queues in member.broker.store.queues.items()
        for id, queue in queues.items()
        if queue.readable
    }


def left_behind(group: LedgerBrokers, index: int) -> Member:
    """Stop a member, and have retention pass it on the others; return the leader."""
    group.stop(index)
    leader = group.leader()
    client = leader.connect()
    assert client.send("Idle", b"the last of its queue", queueId=0).code == 0
    change_all(leader, 1)
    fill(group, 400_000)
    leader.broker.offsets.commit("g", "Filler", 0, 5)
    group.turn(200)
    fill(group, 400_000)
    for member in group.members.values():
        expire(group, member, 400_000)
    group.hand_over(leader)  # this one has the removed entries in its memory still
    return group.leader()


def caught_up(group: LedgerBrokers) -> None:
    """Wait until all members have and show the same."""

    def same() -> bool:
        stores = [member.broker.store for member in group.members.values()]
        ends = {(store.log.end_offset, store.readable_offset) for store in stores}
        return len(stores) == group.size and len(ends) == 1

    group.until(same, lambda: str([m.member.ledger.status() for m in group.members.values()]))


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_member_behind_retention_comes_back_by_a_snapshot(tmp_path: Path, is_empty: bool) -> None:
    with LedgerBrokers(tmp_path, **SMALL) as group:
        leader = group.leader()
        assert leader.connect().send("Old", b"x", queueId=0).code == 0
        caught_up(group)
        index = next(i for i, m in group.members.items() if not m.leads)
        leader = left_behind(group, index)
        if is_empty:
            rmtree(tmp_path / f"n{index}")
            for member in group.members.values():
                ledger = member.member.ledger
                assert readmit(f"n{index}", ledger.peers, ledger.standing.leader) is None
        group.start(index)
        caught_up(group)
        until_equal(group)
        back = group.members[index]
        assert back.broker.store.log.min_offset == leader.broker.store.log.min_offset >= 400_000
        first, *others = logs_of(group)
        assert all(other == first for other in others)
        group.until(
            lambda: queues_of(back) == queues_of(leader), lambda: f"{queues_of(back)} {queues_of(leader)}"
        )
        assert queues_of(back)["Idle", 0] == (1, 1), "its messages are gone, and its numbers go on"
        assert back.member.ledger.core.readmission.is_learner is False


def test_a_member_that_came_back_by_a_snapshot_leads_and_its_queues_go_on(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, **SMALL) as group:
        group.leader()
        index = next(i for i, m in group.members.items() if not m.leads)
        left_behind(group, index)
        group.start(index)
        caught_up(group)
        group.stop(index)  # once more, from what the installation has left on the disk
        back = group.start(index)
        caught_up(group)
        ended: list[object] = ["not begun"]

        def leads() -> bool:
            # A handover that a busy machine was too late for has failed, and is asked for once more.
            leader = next((member for member in group.members.values() if member.leads), back)
            if ended and leader is not back:
                ended.clear()
                leader.member.transfer(f"n{index}", ended.append)
            return back.leads

        group.until(leads, "it leads")
        assert back.connect().send("Idle", b"y", queueId=0).code == 0
        answer = back.connect().send("Idle", b"z", queueId=0)
        assert answer.ext["queueOffset"] == "2"
        caught_up(group)
        assert [record.body for record in back.stored("Idle")] == [b"y", b"z"]
        assert back.broker.offsets.query("g", "Filler", 0) == 5


def test_changes_that_a_snapshot_has_are_not_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that asked this member meanwhile would go back to where it was long ago."""
    applied: dict[LedgerState, list[int]] = {}

    def noted(real: Callable[[LedgerState, dict[str, Any]], None]) -> Callable[..., None]:
        def change_tables(state: LedgerState, change: dict[str, Any]) -> None:
            applied.setdefault(state, []).extend(change.get("offsets", {}).get("Filler@g", {}).values())
            real(state, change)

        return change_tables

    monkeypatch.setattr(LedgerState, "_replace", noted(LedgerState._replace))
    monkeypatch.setattr(LedgerState, "_apply_change", noted(LedgerState._apply_change))
    with LedgerBrokers(tmp_path, **SMALL) as group:
        leader = group.leader()
        index = next(i for i, m in group.members.items() if not m.leads)
        group.stop(index)
        leader = group.leader()
        for offset in range(1, 40):
            fill(group, 20_000)
            leader.broker.offsets.commit("g", "Filler", 0, offset)
            group.turn(200)
        for member in group.members.values():
            expire(group, member, 400_000)
        group.hand_over(leader)
        group.start(index)
        caught_up(group)
        until_equal(group)
        offsets = applied[group.members[index].member.state]
        assert offsets[0] > 20, "those of the snapshot"
        assert offsets == sorted(offsets) and offsets[-1] == 39


def test_an_administrator_has_every_member_make_a_snapshot_now(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        snapshots = [member.member.state.snapshots for member in group.members.values()]
        group.until(
            lambda: len({each.newest for each in snapshots}) == 1 and snapshots[0].newest >= 0,
            "the first one",
        )
        before = snapshots[0].newest
        refused = group.followers()[0].connect().call(RequestCode.ROPEWALK_LEDGER_SNAPSHOT)
        assert refused.code == ResponseCode.SYSTEM_ERROR and f"the leader it knows is {leader.id}" in str(
            refused.remark
        )
        assert leader.connect().call(RequestCode.ROPEWALK_LEDGER_SNAPSHOT).code == ResponseCode.SUCCESS
        group.until(lambda: min(each.newest for each in snapshots) > before, "every member has a newer one")
        group.until(lambda: len({each.newest for each in snapshots}) == 1, "every member has the same one")
