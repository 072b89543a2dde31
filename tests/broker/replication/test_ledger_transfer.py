"""A transfer of the lead in a group of brokers: what clients see, and where the lead goes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import send_ext
from tests.support.ledger_brokers import LedgerBrokers, Member
from tests.support.waiting import until

TRANSFER = RequestCode.ROPEWALK_LEDGER_TRANSFER


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def until_handed_over(group: LedgerBrokers, target: Member) -> None:
    """Give small turns until a member leads: its election must not be over before a slow disk has its ballot."""
    until(lambda: target.leads, "the target leads", turn=lambda: group.turn(1))


def test_a_transfer_answers_all_who_wait_and_the_next_leader_has_every_message(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old, target = group.leader(), group.followers()[0]
        client = old.connect()
        opaque = [
            client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", queueId=0), b"%d" % n) for n in range(5)
        ]
        operator = old.connect()
        asked = operator.ask(TRANSFER, {"to": target.id})
        until_handed_over(group, target)
        assert group.leader() is target
        answers = {answer.opaque: answer.code for answer in client.answers()}
        assert answers == dict.fromkeys(opaque, ResponseCode.SUCCESS)
        (answer,) = operator.answers()
        assert (answer.opaque, answer.code, answer.ext["leader"]) == (asked, ResponseCode.SUCCESS, target.id)
        assert client.send("T", queueId=0).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert target.connect().send("T", b"5", queueId=0).code == ResponseCode.SUCCESS
        group.until(lambda: all(len(bodies(each)) == 6 for each in group.members.values()), "equal logs")
        assert target.member.ledger.standing.term == old.member.ledger.standing.term


def test_a_leader_that_hands_over_refuses_messages_with_a_code_that_producers_retry_elsewhere(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        old, target = group.leader(), group.followers()[0]
        client = old.connect()
        assert client.send("T", b"0", queueId=0).code == ResponseCode.SUCCESS
        for each in group.followers():
            each.own_turn = lambda ms: None  # type: ignore[method-assign]  # they are asleep
        old.connect().ask(TRANSFER, {"to": target.id})
        answer = client.send("T", b"1", queueId=0)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None and "hands the lead over" in answer.remark
        assert old.leads


def test_a_leader_of_before_tells_the_address_of_the_next_one_as_soon_as_it_hears_it(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        old, target = group.leader(), group.followers()[0]
        old.connect().ask(TRANSFER, {"to": target.id})
        until_handed_over(group, target)
        group.until(lambda: not old.leads, "the old leader has heard it")
        old.member.set_master("", "192.0.2.9:10911")
        answer = old.connect().send("T", queueId=0)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None and f"follows {target.id}, at 192.0.2.9:10911" in answer.remark


@pytest.mark.parametrize(
    ("to", "code", "words"),
    [
        ("n9", ResponseCode.ILLEGAL_OPERATION, "n9 is no member of this group; its members are n0, n1, n2"),
        ("n1", ResponseCode.SYSTEM_ERROR, "UNREACHABLE"),
    ],
    ids=["unknown", "away"],
)
def test_a_transfer_that_cannot_be_is_refused_in_words_and_the_leader_goes_on(
    tmp_path: Path, to: str, code: int, words: str
) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n0") as group:
        group.until(lambda: group.members[0].leads, "the preferred member leads")
        leader = group.members[0]
        group.stop(1)
        group.turn()
        operator = leader.connect()
        answer = operator.call(TRANSFER, {"to": to})
        assert answer.code == code
        assert answer.remark is not None and answer.remark.startswith(words)
        assert leader.connect().send("T", b"0", queueId=0).code == ResponseCode.SUCCESS


def test_a_follower_says_who_leads_when_it_is_asked_for_a_transfer(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader, follower = group.leader(), group.followers()[0]
        answer = follower.connect().call(TRANSFER, {})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None and f"the leader it knows is {leader.id}" in answer.remark


def test_the_preferred_leader_takes_over_when_it_has_caught_up(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path, preferredLeaderId="n2") as group:
        group.until(lambda: group.members[2].leads, "the preferred member leads")
        group.stop(2)
        other = group.leader()
        for number in range(20):
            assert other.connect().send("T", b"%d" % number, queueId=0).code == ResponseCode.SUCCESS
        group.start(2)
        group.until(lambda: group.members[2].leads, "the preferred member leads again")
        group.until(lambda: len(bodies(group.members[2])) == 20, "it has what was sent meanwhile")
        assert group.leader().id == "n2"


def test_a_stop_of_all_members_says_that_nobody_was_left_to_hand_over_to(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        for follower in group.followers():
            follower.member.ledger.leave()  # they stop, too
        group.until(lambda: not any(each.is_able for each in leader.member.ledger.core.dispatchers.values()))
        with capture_logs() as told:
            trio.run(leader.member.hand_over)
        assert [each["event"] for each in told] == [
            "stops without a handover: no other member takes the lead"
        ], told
