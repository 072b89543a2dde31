"""RocketMQ's own tools ask a Python consumer what they ask a Java one, through a broker, and understand the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage
from tests.compat.conftest import Server
from tests.compat.mqadmin import Mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC, GROUP = "pythonAnswers", "pythonAnswering"
MESSAGES = 8


class Member:
    """A Python consumer that has consumed everything, and goes on."""

    def __init__(self, consumer: PushConsumer, ids: list[str], bodies: list[bytes]) -> None:
        self.consumer = consumer
        self.ids = ids
        self.bodies = bodies

    @property
    def client_id(self) -> str:
        return self.consumer.client_id


@pytest.fixture(scope="module")
def member(mqadmin: Mqadmin, server: Server) -> Iterator[Member]:
    bodies: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    assert "success" in mqadmin.run("updateTopic", "-b", server.broker, "-t", TOPIC, "-r", "2", "-w", "2")
    with Producer(server.namesrv, timeout=20) as producer:
        ids = [
            producer.send(TOPIC, Message(b"%d" % n, keys=f"k{n}")).offset_message_ids[0]
            for n in range(MESSAGES)
        ]
    with PushConsumer(
        GROUP, {TOPIC: "*"}, handle, server.namesrv, consume_from="first", commit_interval=0.5
    ) as consumer:
        until(lambda: len(bodies) == MESSAGES, "everything is consumed")
        yield Member(consumer, ids, bodies)


def test_what_a_consumer_is_doing_is_shown_and_found_in_order(mqadmin: Mqadmin, member: Member) -> None:
    output = mqadmin.run("consumerStatus", "-g", GROUP)
    assert re.search(rf"^1\s+{re.escape(member.client_id)}\s", output, re.MULTILINE), output
    assert "Same subscription in the same group of consumer" in output
    assert "Rebalance OK" in output
    one = mqadmin.run("consumerStatus", "-g", GROUP, "-i", member.client_id, "-s", "true")
    assert re.search(r"PROP_CONSUME_TYPE\s+: CONSUME_PASSIVELY", one), one
    assert re.search(rf"^{TOPIC}\s+broker-a\s+0\s", one, re.MULTILINE), one


def test_progress_names_the_client_that_has_a_queue(mqadmin: Mqadmin, member: Member) -> None:
    until(
        lambda: (
            sum(int(row[4]) for row in mqadmin.table("consumerProgress", "-g", GROUP) if row[0] == TOPIC)
            == MESSAGES
        ),
        "its progress is committed",
    )
    rows = [row for row in mqadmin.table("consumerProgress", "-g", GROUP, "-s", "true") if row[0] == TOPIC]
    assert len(rows) == 2 and all(member.client_id.split("@")[0] in row for row in rows), rows


def test_a_message_is_consumed_at_the_tools_wish(mqadmin: Mqadmin, member: Member) -> None:
    words = ("queryMsgById", "-i", member.ids[3], "-t", TOPIC, "-g", GROUP, "-d", member.client_id)
    output = mqadmin.run(*words)
    assert "consumeResult=CR_SUCCESS" in output, output
    assert member.bodies.count(b"3") == 2


def test_a_reset_reaches_a_running_consumer(mqadmin: Mqadmin, member: Member) -> None:
    before = len(member.bodies)
    rows = mqadmin.table("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert sorted(row[1:3] for row in rows[1:]) == [["0", "0"], ["1", "0"]], rows
    until(lambda: len(member.bodies) >= before + MESSAGES, "everything is consumed again")
    assert sorted(member.bodies[before:]) == [b"%d" % n for n in range(MESSAGES)]
