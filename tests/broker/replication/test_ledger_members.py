"""Members of a DLedger group that come and go while it works: whole brokers, asked by an operator's codes."""

from __future__ import annotations

import shutil
from pathlib import Path

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.support.ledger_brokers import LedgerBrokers, Member, raft_address

CHANGE, FORCE = RequestCode.ROPEWALK_LEDGER_CHANGE, RequestCode.ROPEWALK_LEDGER_FORCE


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def send(group: LedgerBrokers, *texts: bytes) -> None:
    group.until(lambda: any(each.leads for each in group.members.values()), "a leader")
    client = next(each for each in group.members.values() if each.leads).connect()
    for text in texts:
        assert client.send("T", text, queueId=0).code == ResponseCode.SUCCESS


def ask(group: LedgerBrokers, change: str, index: int, **fields: str) -> Command:
    group.until(lambda: any(each.leads for each in group.members.values()), "a leader")
    leader = next(each for each in group.members.values() if each.leads)
    return leader.connect().call(CHANGE, {"change": change, "id": f"n{index}", **fields})


def make(group: LedgerBrokers, change: str, index: int, **fields: str) -> None:
    answer = ask(group, change, index, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def voters(member: Member) -> tuple[str, ...]:
    config = member.member.ledger.members.config
    return config.voters if not config.old else ()


def take_in(group: LedgerBrokers, index: int, **fields: str) -> Member:
    new = group.start(index)
    make(group, "learn", index, address=raft_address(index))
    leader = group.leader()
    group.until(lambda: len(bodies(new)) == len(bodies(leader)), "it has the log")
    group.until(lambda: ask(group, "promote", index, **fields).code == ResponseCode.SUCCESS, "it votes")
    return new


def test_a_group_grows_from_three_to_five_and_two_of_the_old_ones_can_go(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1", b"2")
        for index in (3, 4):
            take_in(group, index)
            send(group, b"with %d" % index)
        group.until(lambda: all(len(voters(each)) == 5 for each in group.members.values()), "all know it")
        for index in (0, 1):
            group.stop(index)
        send(group, b"3")
        expected = [b"1", b"2", b"with 3", b"with 4", b"3"]
        group.until(lambda: all(bodies(each) == expected for each in group.members.values()), "equal logs")


def test_a_dead_member_is_replaced_in_one_step_and_the_new_one_is_needed_then(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        lost = group.followers()[0]
        group.stop(int(lost.id[1:]))
        new = take_in(group, 3, replacing=lost.id)
        send(group, b"2")
        leader = group.leader()
        assert lost.id not in voters(leader) and new.id in voters(leader) and len(voters(leader)) == 3
        group.stop(int(leader.id[1:]))
        send(group, b"3")
        group.until(lambda: bodies(new) == [b"1", b"2", b"3"], "it has all")


def test_a_leader_that_is_removed_hands_over_and_the_group_goes_on(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        removed = group.leader()
        make(group, "remove", int(removed.id[1:]))
        others = [each for each in group.members.values() if each is not removed]
        group.until(lambda: any(each.leads for each in others), "another one leads")
        send(group, b"2")
        assert all(removed.id not in voters(each) for each in others)
        assert not removed.leads


def test_a_learner_gets_the_log_and_is_in_no_majority(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        new = group.start(3)
        make(group, "learn", 3, address=raft_address(3))
        group.until(lambda: bodies(new) == [b"1"], "it has the log")
        followers = [each for each in group.followers() if each is not new]
        for each in followers:
            group.stop(int(each.id[1:]))
        group.until(lambda: not any(each.leads for each in group.members.values()), "two of four, one voter")
        status = new.member.ledger_status()
        assert status.learners == ("n3",) and len(status.voters) == 3
        assert new.broker.context.ha_status.notes == ("n3 learns, and does not vote",)


def test_a_member_starts_with_the_members_in_its_log_and_not_with_those_in_its_settings(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        take_in(group, 3)
        group.until(lambda: all(len(voters(each)) == 4 for each in group.members.values()), "all know it")
        for index in range(4):
            group.stop(index)
        for index in range(4):
            started = group.start(index)
            assert voters(started) == ("n0", "n1", "n2", "n3"), "dLegerPeers of n0 names three"
            assert started.member.ledger.peers.book.places("n3")[:1] == (raft_address(3),) or index == 3
        send(group, b"2")
        group.until(
            lambda: all(bodies(each) == [b"1", b"2"] for each in group.members.values()), "equal logs"
        )


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        follower = group.followers()[0]
        for answer, words in (
            (ask(group, "remove", 7), "n7 is no member of this group, where n0, n1, n2 vote"),
            (ask(group, "promote", 7), "n7 is no learner of this group"),
            (ask(group, "learn", 1, address="127.0.0.1:5"), "n1 is a member already, at 127.0.0.1:40912"),
            (ask(group, "learn", 7, address="nowhere"), "write ID-HOST:PORT"),
            (ask(group, "learn", 7, address="h:1;n8-h:2"), "one member is taken in at a time"),
            (ask(group, "learn", 7, address="0.0.0.0:1"), "nobody reaches 0.0.0.0"),
            (ask(group, "grow", 7), "no change of a DLedger group"),
            (follower.connect().call(CHANGE, {"change": "remove", "id": "n0"}), "NOT_LEADER"),
            (follower.connect().call(FORCE, {"id": follower.id}), "leads: the group works"),
            (follower.connect().call(FORCE, {"id": "n9"}), f"here is {follower.id}, and not n9"),
        ):
            assert answer.code != ResponseCode.SUCCESS and words in (answer.remark or ""), answer
        leader = group.leader().member
        leader.probe_member = lambda member, address, done: done(f"{member} is not what listens at {address}")
        answer = ask(group, "learn", 3, address=raft_address(1).replace("127", "128"))
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "n3 is not what listens at" in (
            answer.remark or ""
        )
        assert "n3" not in leader.ledger.members.config.members, "nothing is entered in the log"
        leader.probe_member = lambda member, address, done: done(None)
        make(group, "learn", 3, address=raft_address(3))
        answer = ask(group, "promote", 3)
        assert answer.code != ResponseCode.SUCCESS and "NOT_CAUGHT_UP" in (answer.remark or "")
        make(group, "remove", 3)


def test_a_member_with_a_key_value_store_does_not_go_on_alone(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, ropewalkKvRegions="1") as group:
        send(group, b"1")
        for index in (0, 2):
            group.stop(index)
        last = group.members[1]
        group.until(lambda: last.member.ledger.standing.leader is None, "alone")
        answer = last.connect().call(FORCE, {"id": "n1"})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "ropewalkKvRegions" in (answer.remark or "") and "readmit" in (answer.remark or "")


def test_the_last_member_goes_on_alone_by_force_and_takes_others_in_again(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1", b"2")
        group.until(lambda: bodies(group.members[1]) == [b"1", b"2"], "n1 has both")
        term = group.members[1].member.ledger.core.term
        for index in (0, 2):
            group.stop(index)
        last = group.members[1]
        group.until(lambda: last.member.ledger.standing.leader is None, "alone")
        answer = last.connect().call(FORCE, {"id": "n1"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        group.until(lambda: last.leads, "it leads")
        assert voters(last) == ("n1",) and last.member.ledger.core.term > term + 50
        send(group, b"3")
        group.stop(1)
        last = group.start(1)
        send(group, b"4")
        assert voters(last) == ("n1",), "it is so after a restart"
        for index in (0, 2):
            shutil.rmtree(tmp_path / f"n{index}")
            take_in(group, index)
        group.stop(1)
        send(group, b"5")
        expected = [b"1", b"2", b"3", b"4", b"5"]
        group.until(lambda: all(bodies(each) == expected for each in group.members.values()), "equal logs")
