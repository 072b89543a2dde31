"""Codes 14 and 30 in a group: whichever member is asked, the answer is the newest there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.replication.dledger.state import LedgerState
from broker.state.groups import SubscriptionGroupConfig
from ha.dledger.storage import LogPoint
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import send_ext
from tests.support.ledger_brokers import LedgerBrokers, Member

QUEUE = {"topic": "T", "queueId": 0}
GROUP = {"consumerGroup": "g", **QUEUE}


def prepared(group: LedgerBrokers) -> Member:
    leader = group.leader()
    assert leader.connect().send("T", b"0", queueId=0).code == ResponseCode.SUCCESS
    leader.broker.groups.update(SubscriptionGroupConfig("g"), leader.broker.context.now_ms())
    return leader


def test_every_member_answers_with_what_was_answered_before_anywhere(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = prepared(group)
        for number in range(1, 6):
            assert leader.connect().send("T", b"%d" % number, queueId=0).code == ResponseCode.SUCCESS
            committed = leader.connect().call(
                RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": number}
            )
            assert committed.code == ResponseCode.SUCCESS
            for member in group.members.values():
                end = member.connect().call(RequestCode.GET_MAX_OFFSET, QUEUE)
                offset = member.connect().call(RequestCode.QUERY_CONSUMER_OFFSET, GROUP)
                assert (end.ext["offset"], offset.ext["offset"]) == (str(number + 1), str(number)), member.id


def test_a_leader_without_its_quorum_answers_neither_reads_nor_commits_with_success(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = prepared(group)
        client = old.connect()
        group.apart.add(int(old.id[1]))
        old.cut_off()
        asked = [
            client.ask(RequestCode.GET_MAX_OFFSET, QUEUE),
            client.ask(RequestCode.QUERY_CONSUMER_OFFSET, GROUP),
            client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": 1}),
        ]
        new = group.leader()
        assert new.connect().send("T", b"1", queueId=0).code == ResponseCode.SUCCESS
        answers: dict[int, int] = {}

        def all_answered() -> bool:
            answers.update({answer.opaque: answer.code for answer in client.answers()})
            return len(answers) == len(asked)

        group.until(all_answered, lambda: str(answers))
        assert answers == dict.fromkeys(asked, ResponseCode.SERVICE_NOT_AVAILABLE)


def test_a_followers_commit_is_the_leaders(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = prepared(group), group.followers()[0]
        commit = RequestCode.UPDATE_CONSUMER_OFFSET
        answer = follower.connect().call(commit, {**GROUP, "commitOffset": 1})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for member in (leader, *group.followers()):
            found = member.connect().call(RequestCode.QUERY_CONSUMER_OFFSET, GROUP)
            assert found.ext["offset"] == "1", member.id
        unknown = follower.connect().call(commit, {**GROUP, "consumerGroup": "x", "commitOffset": 1})
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        follower.connect().ask(commit, {**GROUP, "commitOffset": 2}, flag=2)
        group.until(lambda: leader.broker.offsets.query("g", "T", 0) == 2, "a oneway commit")


def test_a_follower_without_a_leader_refuses_a_commit_and_one_whose_answer_is_lost_says_so(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = prepared(group), group.followers()[0]
        client = follower.connect()
        client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": 1})
        leader.cut_off()
        group.apart.add(int(leader.id[1]))
        assert client.answer().code == ResponseCode.SYSTEM_ERROR
        group.apart |= {int(member.id[1]) for member in group.members.values()}
        for member in group.members.values():
            member.cut_off()
        group.until(lambda: follower.member.ledger.standing.leader is None)
        answer = follower.connect().call(RequestCode.UPDATE_CONSUMER_OFFSET, {**GROUP, "commitOffset": 1})
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_leader_with_a_slow_disk_tells_no_older_end_than_its_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = prepared(group)
        storage = leader.broker.store.entry_log
        assert storage is not None
        flush = storage.flush
        waiting: list[Callable[[LogPoint, int], None]] = []
        monkeypatch.setattr(storage, "flush", waiting.append)
        leader.connect().ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"1")
        group.until(
            lambda: all(
                each.member.ledger.shown.end.pos == leader.member.ledger.core.log.end.pos
                for each in group.followers()
            )
        )
        follower = group.followers()[0].connect()
        assert follower.call(RequestCode.GET_MAX_OFFSET, QUEUE).ext["offset"] == "2"
        client = leader.connect()
        client.ask(RequestCode.GET_MAX_OFFSET, QUEUE)
        for _ in range(10):
            group.turn()
        assert not client.answers()
        monkeypatch.undo()
        for done in waiting:
            flush(done)
        assert client.answer().ext["offset"] == "2"


def test_a_deposed_leader_tells_no_offset_that_only_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = prepared(group)
        index = int(old.id[1])
        group.until(lambda: all("g" in member.broker.groups for member in group.members.values()))
        group.apart.add(index)
        old.cut_off()
        old.broker.offsets.commit("g", "T", 1, 7)
        log_changes, is_held = LedgerState.log_changes, True

        def held(self: LedgerState, *, offsets: bool = False) -> None:
            if not is_held:
                log_changes(self, offsets=offsets)

        monkeypatch.setattr(LedgerState, "log_changes", held)
        new = group.leader()
        group.apart.clear()
        assert group.leader() is new
        client = old.connect()
        client.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**GROUP, "queueId": 1, "setZeroIfNotFound": "false"})
        for _ in range(60):
            group.turn()
        assert not client.answers()
        is_held = False
        assert client.answer().ext["offset"] == "7", "it was forwarded, and the group has it"
        assert new.broker.offsets.query("g", "T", 1) == 7
