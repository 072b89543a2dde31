"""Topics that are deleted in a DLedger group, and created again under their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from tests.support.ledger_brokers import LedgerBrokers, Member


def bodies(member: Member, topic: str = "T") -> list[bytes]:
    return [record.body for record in member.stored(topic)]


def send(group: LedgerBrokers, *sent: bytes) -> None:
    client = group.leader().connect()
    for body in sent:
        assert client.send("T", body, queueId=0).code == ResponseCode.SUCCESS


def delete(group: LedgerBrokers) -> None:
    client = group.leader().connect()
    opaque = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    found = []

    def answered() -> bool:
        found.extend(client.answers())
        return bool(found)

    group.until(answered, "the deletion is answered")
    assert [(answer.opaque, answer.code) for answer in found] == [(opaque, ResponseCode.SUCCESS)]


def until_all(group: LedgerBrokers, expected: list[bytes]) -> None:
    group.until(
        lambda: all(bodies(member) == expected for member in group.members.values()),
        lambda: str({member.id: bodies(member) for member in group.members.values()}),
    )


OLD = [b"old %d" % number for number in range(5)]
NEW = [b"new %d" % number for number in range(2)]


@pytest.mark.parametrize("pause_ms", [0, 20, 500])
def test_messages_of_a_topic_created_again_are_there_after_a_change_of_leader(
    tmp_path: Path, pause_ms: int
) -> None:
    with LedgerBrokers(tmp_path) as group:
        send(group, *OLD)
        until_all(group, OLD)
        delete(group)
        group.turn(pause_ms)
        send(group, *NEW)
        until_all(group, NEW)
        group.stop(int(group.leader().id[1]))
        assert bodies(group.leader()) == NEW
        send(group, b"after")
        until_all(group, [*NEW, b"after"])


def test_the_queues_of_a_deleted_topic_go_on_every_member(tmp_path: Path) -> None:
    """The next leader's topic of that name begins without the messages of before."""
    with LedgerBrokers(tmp_path) as group:
        send(group, *OLD)
        until_all(group, OLD)
        away = int(group.followers()[0].id[1])
        group.stop(away)
        delete(group)
        group.start(away)
        group.until(lambda: not any("T" in member.broker.store.queues for member in group.members.values()))
        group.stop(int(group.leader().id[1]))
        send(group, *NEW)
        until_all(group, NEW)
        for index in list(group.members):
            group.stop(index)
            group.start(index)
            until_all(group, NEW)


def test_a_deletion_that_is_logged_late_spares_the_topic_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had no room for the record of the deletion before messages of the new topic found some."""
    with LedgerBrokers(tmp_path) as group:
        send(group, *OLD)
        until_all(group, OLD)
        state = group.leader().member.state
        with monkeypatch.context() as patch:
            patch.setattr(state, "_append", lambda tag, body: False)
            delete(group)
            group.turn()
            assert not state.is_logged
            send(group, *NEW)
        send(group, b"after")
        until_all(group, [*NEW, b"after"])
        group.turn()
        for index in list(group.members):
            group.stop(index)
            group.start(index)
            until_all(group, [*NEW, b"after"])


def test_a_member_that_starts_again_has_the_messages_of_the_topic_created_again(tmp_path: Path) -> None:
    """Its recovery finds records of both lives of the topic."""
    with LedgerBrokers(tmp_path) as group:
        send(group, *OLD)
        until_all(group, OLD)
        index = int(group.followers()[0].id[1])
        group.stop(index)
        delete(group)
        send(group, *NEW)
        group.start(index)
        until_all(group, NEW)
        for each in (0, 1, 2):
            group.stop(each)
            group.start(each)
            until_all(group, NEW)
        for each in (0, 1, 2):
            group.stop(each)
            (tmp_path / f"n{each}" / "ropewalk" / "bound").unlink()
            (tmp_path / f"n{each}" / "checkpoint").unlink()
        for each in (0, 1, 2):
            group.start(each)
        until_all(group, NEW)
        send(group, b"after")
        until_all(group, [*NEW, b"after"])


def test_a_member_that_gets_the_whole_log_at_once_has_the_messages_of_the_topic_created_again(
    tmp_path: Path,
) -> None:
    with LedgerBrokers(tmp_path) as group:
        group.stop(2)
        for _ in range(3):
            send(group, *OLD)
            delete(group)
        send(group, *NEW)
        group.start(2)
        until_all(group, NEW)
        group.stop(int(group.leader().id[1]))
        assert bodies(group.leader()) == NEW


def test_entries_that_an_uncommitted_record_replaced_count_again_when_it_is_cut(tmp_path: Path) -> None:
    """A member that was about to lead had begun the queue anew, for a record that no quorum got."""
    with LedgerBrokers(tmp_path) as group:
        send(group, *OLD)
        until_all(group, OLD)
        member = group.followers()[0]
        store = member.broker.store
        queue = store.find_queue("T", 0)
        assert queue is not None and store.replica is not None
        store.tick()
        store.dispatcher._begin_anew(queue, store.log.end_offset, 0)
        queue.add(store.log.end_offset, 100, 0)
        store.dispatcher.dispatched([queue], store.log.end_offset, store.log.end_offset + 100)
        assert (queue.readable, queue.next_offset) == (0, 1)
        store.replica.follow()
        assert bodies(member) == OLD and queue.next_offset == 5
        send(group, b"more")
        until_all(group, [*OLD, b"more"])
