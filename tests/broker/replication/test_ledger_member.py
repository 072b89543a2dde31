"""Brokers of a DLedger group: who takes messages, what waits, and what a change of leader does to both."""

import json
from pathlib import Path

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import pull_ext, send_ext
from tests.support.ledger_brokers import LedgerBrokers, Member

V2 = RequestCode.SEND_MESSAGE_V2


def bodies(member: Member, topic: str = "T") -> list[bytes]:
    return [record.body for record in member.stored(topic)]


def test_a_message_is_acknowledged_when_a_quorum_has_it_and_every_member_shows_it(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        client = leader.connect()
        for number in range(5):
            assert client.send("T", b"%d" % number, queueId=0).code == ResponseCode.SUCCESS
        group.until(
            lambda: all(len(bodies(each)) == 5 for each in group.members.values()),
            lambda: str([(bodies(each), each.member.ledger.status()) for each in group.members.values()]),
        )
        assert len({tuple(bodies(each)) for each in group.members.values()}) == 1
        assert client.pull("T").code == ResponseCode.SUCCESS
        for follower in group.followers():
            assert follower.connect().pull("T").code == ResponseCode.SUCCESS, "followers serve reads"


def test_a_consumer_at_the_end_of_a_follower_goes_to_the_leader_and_waits_there_while_there_is_none(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        assert leader.connect().send("T", b"one", queueId=0).code == ResponseCode.SUCCESS
        follower, other = group.followers()
        group.until(lambda: len(bodies(follower)) == 1)
        consumer = follower.connect()
        at_the_end = pull_ext("T", queueOffset=1, sysFlag=6, suspendTimeoutMillis=60_000)
        assert consumer.call(RequestCode.PULL_MESSAGE, at_the_end).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        group.stop(int(other.id[1]))
        group.stop(int(leader.id[1]))
        group.until(lambda: not follower.broker.group.limits.has_master)
        consumer.ask(RequestCode.PULL_MESSAGE, at_the_end)
        group.turn()
        assert consumer.answers() == []


def test_a_follower_refuses_messages_with_a_code_that_producers_retry_elsewhere(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        for follower in group.followers():
            answer = follower.connect().send("T")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark is not None and f"follows {leader.id}" in answer.remark
        assert leader.broker.group.broker_id == 0
        assert sorted(each.broker.group.broker_id for each in group.followers()) == sorted(
            int(each.id[1]) + 1 for each in group.followers()
        )


def test_without_a_leader_messages_are_refused_and_readiness_says_why(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        for follower in group.followers():
            group.stop(int(follower.id[1]))
        group.until(lambda: not leader.leads, "the leader steps down without its quorum")
        answer = leader.connect().send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None and "no leader" in answer.remark
        leader.tick()
        assert any("no leader" in why for why in leader.broker.context.unready())


def test_what_waits_when_the_term_is_lost_fails_with_unknown_and_never_with_ok(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        client = old.connect()
        assert client.send("T", b"kept", queueId=0).code == ResponseCode.SUCCESS
        group.apart.add(int(old.id[1]))
        old.cut_off()
        opaque = client.ask(V2, send_ext("T", queueId=0), b"lost?")
        assert client.answers() == [], "nothing is acknowledged without a quorum"
        group.until(lambda: not old.leads, "the old leader steps down")
        (answer,) = client.answers()
        assert (answer.opaque, answer.code) == (opaque, ResponseCode.SYSTEM_ERROR)
        assert answer.remark is not None and answer.remark.startswith("TERM_CHANGED")
        new = group.leader()
        assert new is not old
        assert new.connect().send("T", b"after", queueId=0).code == ResponseCode.SUCCESS
        # It comes back: its tail is cut, and its queue names what everybody has.
        group.apart.clear()
        group.until(
            lambda: bodies(old) == [b"kept", b"after"],
            lambda: f"{bodies(old)} {old.member.ledger.status()} {new.member.ledger.status()}",
        )
        assert bodies(new) == [b"kept", b"after"]
        assert (tmp_path / old.id / "ropewalk" / "diverged").is_dir(), "what was cut is kept aside"


def test_an_uncommitted_message_is_seen_by_no_consumer(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        client = leader.connect()
        assert client.send("T", b"one", queueId=0).code == ResponseCode.SUCCESS
        group.apart.add(int(leader.id[1]))
        leader.cut_off()
        client.ask(V2, send_ext("T", queueId=0), b"two")
        for _ in range(5):
            leader.own_turn(1)
        assert bodies(leader) == [b"one"]
        answer = leader.connect().call(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, sysFlag=0))
        assert answer.code != ResponseCode.SUCCESS


def test_a_quorum_that_is_late_is_told_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.replication.dledger.member.QUORUM_MS", 100)
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        client = leader.connect()
        opaque = client.ask(V2, send_ext("T", queueId=0), b"slow")
        leader.clock.ms += 200
        leader.broker.acks.expire(leader.clock.monotonic(), 1 << 62, leader.broker.group.confirmed)
        (answer,) = client.answers()
        assert (answer.opaque, answer.code) == (opaque, ResponseCode.SYSTEM_ERROR)
        assert answer.remark is not None and answer.remark.startswith("QUORUM_LATE")


def test_a_new_leader_serves_the_topics_whose_messages_it_has(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        assert old.connect().send("Fresh", b"x", queueId=0).code == ResponseCode.SUCCESS
        group.until(lambda: all(len(bodies(each, "Fresh")) == 1 for each in group.members.values()))
        group.stop(int(old.id[1]))
        new = group.leader()
        assert "Fresh" in new.broker.topics
        assert new.broker.topics.data_version.state_version == new.broker.group.epoch
        assert new.connect().send("Fresh", b"y", queueId=0).code == ResponseCode.SUCCESS


def test_all_members_restart_and_go_on_with_what_they_had(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        client = group.leader().connect()
        for number in range(20):
            assert client.send("T", b"%d" % number, queueId=0).code == ResponseCode.SUCCESS
        for index in range(3):
            group.stop(index)
        for index in range(3):
            group.start(index)
        leader = group.leader()
        assert bodies(leader) == [b"%d" % number for number in range(20)]
        assert leader.connect().send("T", b"more", queueId=0).code == ResponseCode.SUCCESS
        ends = {each.broker.store.log.segments[0].file.read_at(0, 4096) for each in group.members.values()}
        assert len(ends) == 1, "the logs are equal to the byte"


def test_a_group_of_one_needs_nobody(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, 1) as group:
        leader = group.leader()
        assert leader.connect().send("T", b"alone", queueId=0).code == ResponseCode.SUCCESS
        words = leader.broker.group.ready_words()
        assert words.send_ok == "fsynced on this machine, the only member"
        assert words.mode == "DLEDGER n0 of 1"


def test_the_oldest_message_has_the_time_of_its_record_and_not_bytes_of_its_entrys_head(
    tmp_path: Path,
) -> None:
    """`mqadmin clusterList` shows it as `#Hour`."""
    with LedgerBrokers(tmp_path, 1) as group:
        member = group.leader()
        assert member.connect().send("T", b"x").code == ResponseCode.SUCCESS
        for _ in range(100):
            group.turn()
        now = member.clock.ms
        answer = member.connect().call(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(answer.body)["table"]
        assert now - 60_000 < int(table["earliestMessageTimeStamp"]) < now
        assert 0 <= float(table["commitLogDiskRatio"]) <= 1, "that of the folder that the log is in"
