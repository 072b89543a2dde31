"""Traces of a member that leads no more: none of anything that only it had."""

from __future__ import annotations

from pathlib import Path

from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import send_ext
from tests.support.ledger_brokers import STEP_MS, LedgerBrokers, Member

ENTRY_SIZE = 20


def bodies(member: Member) -> list[bytes]:
    return [record.body for record in member.stored("T")]


def queue_entries(member: Member) -> int:
    """Return how many entries stand in the files of the queue."""
    data = b"".join(
        path.read_bytes() for path in sorted((member.root / "consumequeue" / "T" / "0").iterdir())
    )
    return sum(any(data[at : at + ENTRY_SIZE]) for at in range(0, len(data), ENTRY_SIZE))


def cut_off(group: LedgerBrokers, member: Member) -> None:
    group.apart.add(int(member.id[1]))
    member.cut_off()


def test_a_stop_writes_no_queue_entry_of_a_message_that_is_not_committed(tmp_path: Path) -> None:
    with LedgerBrokers(tmp_path) as group:
        leader = group.leader()
        client = leader.connect()
        assert client.send("T", b"kept", queueId=0).code == ResponseCode.SUCCESS
        cut_off(group, leader)
        client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T", queueId=0), b"lost")
        for _ in range(5):
            leader.own_turn(1)
        assert leader.leads
        group.stop(int(leader.id[1]))
        assert queue_entries(leader) == 1


def test_a_delayed_message_whose_copy_was_cut_is_delivered_by_the_same_member_when_it_leads_again(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        old = group.leader()
        client = old.connect()
        assert client.send("T", b"late", queueId=0, properties={"DELAY": "3"}).code == ResponseCode.SUCCESS
        cut_off(group, old)
        old.clock.set_wall(11_000)  # it alone delivers: its clock is ahead
        group.until(lambda: old.broker.delays.offsets().get(3) == 1, "it delivers")
        old.clock.set_wall(-11_000)
        group.until(lambda: not old.leads, "it leads no more")
        group.apart.clear()
        new = group.leader()
        assert new is not old and bodies(new) == []
        group.until(
            lambda: (
                bodies(old) == bodies(new)
                and old.member.ledger.core.log.commit == new.member.ledger.core.log.commit
            )
        )
        operator, target = new.connect(), {"to": old.id}
        group.until(
            lambda: old.leads or (operator.ask(RequestCode.ROPEWALK_LEDGER_TRANSFER, target) and False),
            lambda: f"it leads again: {operator.answers()}",
        )
        assert bodies(old) == []
        for _ in range(15_000 // STEP_MS):
            group.turn()
        assert bodies(old) == [b"late"], "it delivers again"
