"""Tables of a group whose log has lost its beginning: they outlive the records that made them."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copytree
from typing import Any

from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from tests.broker.replication.test_ledger_state import tables
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
    log = member.broker.store.log
    for segment in log.segments[:-1]:
        os.utime(segment.file.path, (0, 0))
    member.broker.store.remove_expired()
    group.until(lambda: log.min_offset >= offset, lambda: f"the log begins at {log.min_offset}")
    gone = log.directory / f"{log.min_offset - log.segment_size:020d}"
    group.until(lambda: not gone.exists(), "the files are removed")


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
