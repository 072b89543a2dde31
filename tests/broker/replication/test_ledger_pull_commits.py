"""Offsets that pulls commit at a follower, as consumers do whose route is older than the last change of leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.replication.dledger.pull_commits import BATCH_BYTES, BATCH_MS, KEEP_MS, PullCommits
from broker.state.groups import SubscriptionGroupConfig
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, pull_ext
from tests.support.ledger_brokers import STEP_MS, LedgerBrokers, Member
from tests.support.waiting import until

COMMITS = 1 | 4
"""The flags of a pull that commits an offset, and brings its subscription."""


def prepared(group: LedgerBrokers) -> Member:
    leader = group.leader()
    assert leader.connect().send("T", b"0", queueId=0).code == ResponseCode.SUCCESS
    leader.broker.groups.update(SubscriptionGroupConfig("cg"), leader.broker.context.now_ms())
    group.until(lambda: all("cg" in each.broker.groups for each in group.members.values()))
    group.until(lambda: all("T" in each.broker.topics for each in group.members.values()))
    return leader


def pull(consumer: Client, offset: int) -> None:
    consumer.ask(RequestCode.PULL_MESSAGE, pull_ext("T", sysFlag=COMMITS, commitOffset=offset))


def committed(member: Member) -> int:
    ext = {"consumerGroup": "cg", "topic": "T", "queueId": 0}
    answer = member.connect().call(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.ext["offset"])


def test_a_consumer_that_commits_by_pulls_at_a_follower_goes_back_by_no_more_than_a_batch_after_a_failover(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = prepared(group), group.followers()[0]
        consumer = follower.connect()
        at: list[int] = []
        for number in range(50):
            pull(consumer, number + 1)
            at.append(follower.clock.ms)
            group.turn()
            until(lambda: not follower.member.reads._pull_commits._sent, turn=lambda: group.turn(0))
        died = follower.clock.ms
        group.stop(int(leader.id[1]))
        group.apart.add(int(follower.id[1]))  # what it has not forwarded stays with it at first
        follower.cut_off()
        group.start(int(leader.id[1]))
        new = group.leader()
        on_the_way_ms = 5 * STEP_MS
        told = sum(each <= died - BATCH_MS - on_the_way_ms for each in at)
        assert committed(new) >= told > 30, (committed(new), told)
        group.apart.clear()
        group.until(lambda: new.broker.offsets.query("cg", "T", 0) == 50, "the follower forwards the rest")
        assert {committed(each) for each in group.members.values()} == {50}


def test_a_follower_tells_no_offset_that_the_group_does_not_have(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = prepared(group), group.followers()[0]
        commit = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 1}
        assert leader.connect().call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == ResponseCode.SUCCESS
        assert committed(follower) == 1
        pull(follower.connect(), 7)
        assert follower.broker.offsets.query("cg", "T", 0) == 1
        group.until(lambda: follower.broker.offsets.query("cg", "T", 0) == 7, "the leader logs it")
        assert committed(leader) == 7


def test_a_follower_that_comes_to_lead_stores_what_pulls_have_committed_there(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = prepared(group), group.followers()[0]
        group.apart.add(int(leader.id[1]))
        leader.cut_off()
        pull(follower.connect(), 7)
        group.until(lambda: any(each.leads for each in group.members.values() if each is not leader))
        group.apart.clear()
        group.until(
            lambda: all(each.broker.offsets.query("cg", "T", 0) == 7 for each in group.members.values())
        )


def test_a_deposed_leader_forwards_the_commits_that_it_did_not_log_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = prepared(group)
        monkeypatch.setattr(old.member.state, "log_changes", lambda *, offsets=False: None)
        group.apart.add(int(old.id[1]))
        old.cut_off()
        pull(old.connect(), 7)
        new = group.leader()
        assert new.broker.offsets.query("cg", "T", 0) is None
        group.apart.clear()
        group.until(lambda: new.broker.offsets.query("cg", "T", 0) == 7, "it is forwarded")


def test_what_is_sent_again_is_older_than_what_came_since_and_is_dropped_after_a_while() -> None:
    commits = PullCommits()
    commits.note("g", "T", 0, 5, 1000)
    commits.note("g", "T", 1, 5, 1000)
    assert commits.next_batch(1000) == {"offsets": {"T@g": {0: 5, 1: 5}}, "again": {}}
    commits.note("g", "T", 1, 6, 1010)
    assert commits.next_batch(1200) is None, "one is under way"
    commits.answered(False)
    assert commits.next_batch(1200) == {"offsets": {"T@g": {1: 6}}, "again": {"T@g": {0: 5}}}
    commits.answered(False)
    assert commits.next_batch(1000 + KEEP_MS) == {"offsets": {}, "again": {"T@g": {1: 6}}}
    commits.answered(True)
    assert commits.next_batch(9000) is None


def test_a_batch_has_what_a_forwarded_request_has_room_for_and_the_rest_follows_at_once() -> None:
    commits = PullCommits()
    for number in range(1000):
        commits.note("g" * 100, f"{number // 4}" + "T" * 100, number % 4, 1 << 40, 0)
    found = 0
    while (batch := commits.next_batch(500)) is not None:
        assert len(str(batch)) < BATCH_BYTES * 4 // 3
        found += sum(len(queues) for queues in batch["offsets"].values())
        commits.answered(True)
    assert found == 1000
