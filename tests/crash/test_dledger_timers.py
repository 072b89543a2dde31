"""Timer messages of a DLedger group whose leader is killed: none lost, none early, recalls heard by the next leader."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from ropewalk import Message, Producer, PullConsumer, ReceivedMessage, Refused
from tests.crash.ledger_group import LedgerGroup
from tests.support.waiting import until

pytestmark = [pytest.mark.crash, pytest.mark.slow]

AHEAD_MS = (2_500, 8_500, 9_500)
TAKEN_BACK_S = (11, 25, 50)
"""When the messages are due of which one is taken back at the next leader: the first that is still waiting then."""


def test_the_next_leader_delivers_what_waits_and_hears_recalls(tmp_path: Path) -> None:
    due_ms: dict[bytes, int] = {}
    handles: dict[int, str] = {}

    def send(body: bytes, ahead_ms: int) -> None:
        earliest = time.time_ns() // 1_000_000 + ahead_ms
        result = producer.send("T", Message(body, delay=timedelta(milliseconds=ahead_ms)))
        due_ms[body] = earliest
        assert result.recall_handle is not None
        handles[ahead_ms] = result.recall_handle

    with LedgerGroup(tmp_path, settings={"recallMessageEnable": "true"}) as group:
        leader = group.leader()
        with Producer(group.name_server, timeout=30.0) as producer:
            producer.send("T", b"so that every member has the topic")
            for ahead_ms in AHEAD_MS:
                send(b"%d" % ahead_ms, ahead_ms)
            for seconds in TAKEN_BACK_S:
                send(b"taken back %d" % seconds, seconds * 1_000 + 1)  # a level's delay would be no timer
                send(b"witness %d" % seconds, seconds * 1_000 + 1_501)
            killed_ms = time.time_ns() // 1_000_000
            leader.kill()
            group.leader([member for member in group.members if member is not leader])
            recalled = next(
                seconds for seconds in TAKEN_BACK_S if is_recalled(producer, handles[seconds * 1_000 + 1])
            )
        expected = {b"%d" % ahead_ms for ahead_ms in AHEAD_MS} | {b"witness %d" % recalled}
        found: list[ReceivedMessage] = []
        with PullConsumer("audit", {"T": "*"}, group.name_server, consume_from="earliest") as consumer:

            def complete() -> bool:
                found.extend(consumer.poll(timeout=0.5))
                return expected <= {message.body for message in found}

            until(complete, lambda: f"{expected}: {found}")
    bodies = [message.body for message in found if message.store_timestamp_ms >= killed_ms]
    assert len(bodies) == len(set(bodies)), "delivered twice by the new leader"
    assert b"taken back %d" % recalled not in bodies
    assert [message for message in found if message.store_timestamp_ms < due_ms.get(message.body, 0)] == []


def is_recalled(producer: Producer, handle: str) -> bool:
    """Recall a message; False if its time has come."""
    try:
        producer.recall(handle)
    except Refused:
        return False
    return True
