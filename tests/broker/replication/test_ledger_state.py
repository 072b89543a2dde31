"""Topics, groups, offsets of consumers and delay progress in the log of a group: no change of leader loses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.replication.dledger import state as ledger_state
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import names
from store.queues.consume_queue import ConsumeQueue
from tests.broker.replication.group_tables import change_all, tables, until_equal
from tests.support.ledger_brokers import LedgerBrokers
from tests.support.walks import Walked


def until_delivered(group: LedgerBrokers, offset: int) -> None:
    """Wait until every member knows how far the third delay level is delivered."""
    found = [member.broker.delays for member in group.members.values()]
    group.until(lambda: all(delays.offsets().get(3) == offset for delays in found), "delay progress")


def test_the_next_leader_has_every_table_at_once(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        for number in (1, 2):
            leader = group.leader()
            change_all(leader, number)
            until_equal(group)
            leader.broker.delays.load({3: number})
            leader.broker.delays.changed += 1
            until_delivered(group, number)
            before = tables(leader)
            group.stop(int(leader.id[1]))
            new = group.leader()
            assert tables(new) == before
            assert new.broker.offsets.query("g", "Wide", 0) == number
            group.start(int(leader.id[1]))
            until_equal(group)


def test_removals_reach_every_member(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        change_all(leader, 1)
        until_equal(group)
        broker, now = leader.broker, leader.broker.context.now_ms()
        broker.topics.delete("Made1", now)
        broker.groups.delete("g1", now)
        broker.offsets.remove_group("g1")
        until_equal(group)
        for member in group.members.values():
            assert "Made1" not in member.broker.topics and "g1" not in member.broker.groups
            assert member.broker.offsets.queues("g1", "Wide") == {}


def test_what_a_deposed_leader_did_not_commit_is_undone_by_the_next_one(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        change_all(old, 1)
        until_equal(group)
        group.apart.add(int(old.id[1]))
        old.cut_off()
        now = old.broker.context.now_ms()
        old.broker.topics.update(TopicConfig("Never", 1, 1), now)
        old.broker.offsets.commit("g", "Wide", 0, 77)
        old.broker.offsets.commit("never", "Wide", 0, 1)
        group.until(lambda: not old.leads, "the old leader steps down")
        new = group.leader()
        new.broker.offsets.commit("g", "Wide", 0, 5)
        group.apart.clear()
        until_equal(group)
        assert "Never" not in old.broker.topics
        assert old.broker.offsets.query("g", "Wide", 0) == 5
        assert old.broker.offsets.query("never", "Wide", 0) is None


def test_members_that_are_all_killed_have_the_tables_of_the_log(tmp_path: Path) -> None:
    """Their files are as old as the last save: here there was none."""
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        change_all(leader, 1)
        until_equal(group)
        before = tables(leader)
        for index in (0, 1, 2):
            group.stop(index)
        assert not list(tmp_path.glob("*/config/consumerOffset.json"))
        for index in (0, 1, 2):
            group.start(index)
        assert tables(group.leader()) == before
        until_equal(group)


def test_a_start_reads_from_the_last_full_copy_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_state, "RECORDS_MAX", 3)
    monkeypatch.setattr(ledger_state, "PART_NUMBERS", 4)
    with LedgerBrokers(tmp_path, 1) as group:
        leader = group.leader()
        for number in range(40):
            change_all(leader, number)
            group.turn(120)
        before = tables(leader)
        queue = leader.broker.store.find_queue(names.META_TOPIC, 0)
        assert queue is not None
        full = [n for n in range(queue.readable) if queue.read(n)[2] == ledger_state._FULL_CODE]
        assert len(full) > 2, "there were copies beside the first"
        group.stop(0)
        again = group.start(0)
        state, read = again.member.state, set[int]()
        real = state._read

        def note(queue: ConsumeQueue, number: int) -> dict[str, Any]:
            read.add(number)
            return real(queue, number)

        monkeypatch.setattr(state, "_read", note)
        state.open()
        assert min(read) > full[-3]
        assert tables(group.leader()) == before


def test_a_consumers_commit_reaches_every_member(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        client = leader.connect()
        assert client.send("T", b"x", queueId=0).code == ResponseCode.SUCCESS
        leader.broker.groups.update(SubscriptionGroupConfig("g"), leader.broker.context.now_ms())
        client.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1},
        )
        group.until(
            lambda: all(m.broker.offsets.query("g", "T", 0) == 1 for m in group.members.values()),
            "every member has the commit",
        )


def test_a_deposed_leader_forgets_the_offset_of_one_queue_that_was_never_committed(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        change_all(old, 1)
        until_equal(group)
        group.apart.add(int(old.id[1]))
        old.cut_off()
        old.broker.offsets.commit("g", "Wide", 1, 5)
        group.leader()
        group.apart.clear()
        until_equal(group)
        assert old.broker.offsets.query("g", "Wide", 1) is None


def test_a_leader_logs_a_changed_topic_or_group_and_looks_at_no_other_one(tmp_path: Path) -> None:
    """A delayed message that is delivered, or a new topic, would else cost it the tables of all."""
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        change_all(leader, 1)
        until_equal(group)
        broker, now = leader.broker, leader.broker.context.now_ms()
        walked = [Walked(broker.topics._topics), Walked(broker.groups._groups)]
        broker.topics._topics, broker.groups._groups = walked
        broker.topics.update(TopicConfig("Made7", 1, 1), now)
        broker.groups.update(SubscriptionGroupConfig("g7"), now)
        broker.delays.load({3: 7})
        broker.delays.changed += 1
        until_delivered(group, 7)
        assert [each.walks for each in walked] == [0, 0]
        broker.topics.delete("Made7", now)
        broker.groups.set_forbidden("g7", "Wide", 1, now)
        until_equal(group)
        assert all("g7" in member.broker.groups for member in group.members.values())
        assert all(member.broker.groups.forbidden() for member in group.members.values())
