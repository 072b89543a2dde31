"""A member of a DLedger group that lost its disk: refused, let in by an operator, a learner, a voter again."""

from __future__ import annotations

import shutil
from pathlib import Path

from ha.dledger.ledger import LedgerShell
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.kv.members import KvGroup, Session, region
from tests.support.ledger_brokers import LedgerBrokers, Member

READMIT, STATUS = RequestCode.ROPEWALK_LEDGER_READMIT, RequestCode.ROPEWALK_LEDGER_STATUS
TRUST = RequestCode.ROPEWALK_LEDGER_TRUST


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def send(group: LedgerBrokers, *texts: bytes) -> None:
    group.until(lambda: any(each.leads for each in group.members.values()), "a leader")
    client = next(each for each in group.members.values() if each.leads).connect()
    for text in texts:
        assert client.send("T", text, queueId=0).code == ResponseCode.SUCCESS


def lose_disk(group: LedgerBrokers, index: int) -> Member:
    """Lose a member's disk, and start it empty."""
    group.stop(index)
    shutil.rmtree(group.root / f"n{index}")
    return group.start(index)


def let_in(group: LedgerBrokers, index: int, *by: int) -> None:
    for each in by:
        answer = group.members[each].connect().call(READMIT, {"id": f"n{index}"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def is_learner(member: Member) -> bool:
    return member.member.ledger.core.readmission.is_learner


def test_a_member_that_lost_its_disk_is_let_in_while_the_group_works_and_can_be_needed_afterwards(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "n0 leads")
        send(group, b"1", b"2")
        lost = lose_disk(group, 2)
        group.until(lambda: lost.member.ledger.peers.status["n0"].refusal, "it is refused")
        send(group, b"3")
        assert bodies(lost) == []
        let_in(group, 2, 0, 1)
        send(group, b"4")
        group.until(lambda: bodies(lost) == [b"1", b"2", b"3", b"4"] and not is_learner(lost), "it caught up")
        group.stop(0)
        send(group, b"5")
        group.until(
            lambda: bodies(lost) == [b"1", b"2", b"3", b"4", b"5"], "it has what only two members have"
        )
        group.stop(1)
        group.start(1)
        group.until(lambda: lost.leads or group.members[1].leads, "with its vote the group goes on")


def test_two_members_that_lost_their_disks_elect_nobody_over_the_third_which_has_its_log(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        send(group, b"1", b"2")
        Session(group.region_leader())
        group.all_applied()
        group.until(lambda: bodies(group.members[2]) == [b"1", b"2"], "n2 has both")
        for index in (0, 1):
            group.stop(index)
            shutil.rmtree(tmp_path / f"n{index}")
        lost = [group.start(index) for index in (0, 1)]
        group.until(lambda: all(is_learner(each) for each in lost), "n2 says that it remembers logs of them")
        for _ in range(300):
            group.turn()
        assert all(ledger.standing.leader is None for each in lost for ledger in ledgers(each))
        assert all(ledger.is_empty for each in lost for ledger in ledgers(each))
        for index in (0, 1, 2):
            group.stop(index)
        for index in (0, 1):
            root = tmp_path / f"n{index}"
            shutil.rmtree(root)
            shutil.copytree(tmp_path / "n2", root)
            (root / "dledger-n2").rename(root / f"dledger-n{index}")
        for index in (0, 1, 2):
            root = tmp_path / f"n{index}" / "ropewalk" / "dledger"
            (root / "identity").unlink()
            (root / "peers.json").unlink()
        for index in (0, 1, 2):
            group.start(index)
        send(group, b"3")
        leader = group.region_leader()
        assert len(region(leader).machine.sessions) == 1, "copies of a whole store go on with all it has"
        group.until(lambda: all(bodies(each) == [b"1", b"2", b"3"] for each in group.members.values()), "all")


def ledgers(member: Member) -> list[LedgerShell]:
    assert member.member.kv is not None
    return [member.member.ledger, *member.member.kv.ledgers]


def test_either_end_says_why_a_member_is_refused_and_what_to_do(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1")
        lost = lose_disk(group, 0)
        words = "n0 came back with an empty store"
        group.until(lambda: all(each.refusal for each in lost.member.ledger.peers.status.values()), "refused")
        for index in (1, 2):
            document = group.members[index].connect().call(STATUS).body.decode()
            assert words in document and "ropewalk admin dledger readmit n0" in document
        group.until(lambda: words in str(lost.broker.context.unready()), "its /readyz says so")
        place = lost.member.ready_words().place
        assert "`ropewalk admin dledger readmit n0`" in place
        assert "members of a new group elect a leader by themselves" in place


def test_a_member_is_no_voter_before_all_others_have_let_it_in(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "n0 leads")
        send(group, b"1")
        lost = lose_disk(group, 2)
        group.until(lambda: lost.member.ledger.peers.status["n0"].refusal, "it is refused")
        let_in(group, 2, 0)
        group.until(lambda: bodies(lost) == [b"1"], "it follows n0")
        for _ in range(20):
            group.turn()
        assert is_learner(lost) and lost.member.ledger_status().unmet == ("n1",)
        let_in(group, 2, 1)
        group.until(lambda: not is_learner(lost), "n1 has let it in too")


def test_what_was_let_in_and_who_votes_again_outlives_restarts_of_all(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "n0 leads")
        send(group, b"1")
        lost = lose_disk(group, 2)
        group.until(lambda: lost.member.ledger.peers.status["n0"].refusal, "it is refused")
        let_in(group, 2, 0)
        group.stop(2)
        group.stop(0)
        group.start(0)
        lost = group.start(2)
        group.until(lambda: is_learner(lost), "n0 knows after its restart that n2 lost its log")
        send(group, b"2")
        let_in(group, 2, 1)
        group.until(lambda: not is_learner(lost), "it votes")
        for index in (0, 1, 2):
            group.stop(index)
        for index in (0, 1, 2):
            group.start(index)
        send(group, b"3")
        assert not any(is_learner(each) for each in group.members.values())
        lost = lose_disk(group, 2)
        group.until(
            lambda: lost.member.ledger.peers.status["n0"].refusal,
            "a disk that is lost again is refused again",
        )


def test_a_member_that_is_linked_or_unknown_is_not_let_in_and_nobody_is_without_a_leader(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        follower = group.followers()[0]
        for member, id, words in (
            (leader, follower.id, "is linked to"),
            (leader, "n9", "no other member of this group"),
            (leader, leader.id, "no other member of this group"),
        ):
            answer = member.connect().call(READMIT, {"id": id})
            assert answer.code == ResponseCode.ILLEGAL_OPERATION and words in (answer.remark or "")
        last = group.followers()[1]
        for index in [index for index, each in group.members.items() if each is not last]:
            group.stop(index)
        group.until(lambda: last.member.ledger.standing.leader is None, "alone")
        answer = last.connect().call(READMIT, {"id": leader.id})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "knows no leader" in (answer.remark or "")


def test_a_copy_of_another_members_store_is_a_learner_too(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "n0 leads")
        send(group, b"1")
        group.stop(2)
        group.stop(1)
        shutil.rmtree(tmp_path / "n2")
        shutil.copytree(tmp_path / "n1", tmp_path / "n2")
        (tmp_path / "n2" / "dledger-n1").rename(tmp_path / "n2" / "dledger-n2")
        (tmp_path / "n2" / "ropewalk" / "dledger" / "identity").unlink()
        group.start(1)
        lost = group.start(2)
        group.until(lambda: lost.member.ledger.peers.status["n0"].refusal, "it is refused")
        let_in(group, 2, 0, 1)
        send(group, b"2")
        group.until(
            lambda: not is_learner(lost) and bodies(lost) == [b"1", b"2"], "it goes on behind the copy"
        )


def test_a_group_that_lost_all_its_disks_begins_again_with_copies_of_one_backup(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, b"1", b"2")
        group.until(lambda: bodies(group.members[1]) == [b"1", b"2"], "n1 has both")
        for index in (0, 1, 2):
            group.stop(index)
        shutil.copytree(tmp_path / "n1", tmp_path / "backup")
        for index in (0, 1, 2):
            root = tmp_path / f"n{index}"
            shutil.rmtree(root)
            shutil.copytree(tmp_path / "backup", root)
            if index != 1:
                (root / "dledger-n1").rename(root / f"dledger-n{index}")
            (root / "ropewalk" / "dledger" / "identity").unlink()
            (root / "ropewalk" / "dledger" / "peers.json").unlink()
        for index in (0, 1, 2):
            group.start(index)
        send(group, b"3")
        group.until(
            lambda: all(bodies(each) == [b"1", b"2", b"3"] for each in group.members.values()), "equal logs"
        )
        assert not any(is_learner(each) for each in group.members.values())


def test_a_lost_disk_is_lost_to_every_group_that_shares_the_links(tmp_path: Path) -> None:
    def learners(member: Member) -> list[bool]:
        return [is_learner(member), region(member).ledger.core.readmission.is_learner]

    with KvGroup(tmp_path) as group:
        send(group, b"1")
        group.region_leader()
        lost = lose_disk(group, 2)
        group.until(lambda: lost.member.ledger.peers.status["n0"].refusal, "it is refused")
        let_in(group, 2, 0)
        group.until(lambda: learners(lost) == [True, True], "a learner of both")
        let_in(group, 2, 1)
        group.until(lambda: learners(lost) == [False, False], "a voter of both")
        group.stop(2)
        lost = group.start(2)
        send(group, b"2")
        group.until(lambda: bodies(lost) == [b"1", b"2"], "it follows")
        assert learners(lost) == [False, False], "both are noted"


def test_a_log_in_doubt_beside_a_lost_disk_is_trusted_by_a_command_and_the_group_goes_on(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "n0 leads")
        send(group, b"1", b"2")
        answer = group.members[0].connect().call(TRUST, {"id": "n0"})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "not in doubt" in (answer.remark or "")
        group.apart.add(2)
        group.members[2].cut_off()
        lose_disk(group, 2)
        group.until(
            lambda: (
                not any(group.members[index].member.ledger.peers.status["n2"].control for index in (0, 1))
            ),
            "both know that n2 is gone",
        )
        let_in(group, 2, 0, 1)
        group.until(lambda: {len(bodies(group.members[index])) for index in (0, 1)} == {2}, "equal logs")
        end = group.members[0].member.ledger.core.log.end
        for stopped in (0, 1):
            group.stop(stopped)
        doubt = tmp_path / "n0" / "ropewalk" / "dledger" / "doubt"
        doubt.write_text(f"[{end.index + 3}, {end.term}, {end.pos + 900}]")
        group.apart.clear()
        first, lost = group.start(0), group.members[2]
        group.start(1)
        group.until(lambda: is_learner(lost), "all are linked")
        answer = first.connect().call(TRUST, {"id": "n0"})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "wait" in (answer.remark or "")
        for _ in range(300):
            group.turn()
        assert not any(each.member.ledger.standing.leader for each in group.members.values())
        status = first.connect().call(STATUS).body.decode()
        assert f'"doubt":{{"index":{end.index + 3},' in status
        answer = first.connect().call(TRUST, {"id": "n1"})
        assert answer.code == ResponseCode.ILLEGAL_OPERATION and "here is n0, and not n1" in (
            answer.remark or ""
        )
        assert first.connect().call(TRUST, {"id": "n0"}).code == ResponseCode.SUCCESS
        send(group, b"3")
        group.until(lambda: bodies(lost) == [b"1", b"2", b"3"] and not is_learner(lost), "it caught up")
        assert not doubt.exists()
