"""Programs whose tests freeze the time with freezegun: clients go on, and messages carry the frozen time."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import freezegun

from ropewalk import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, SendStatus
from ropewalk.testing import RopewalkBroker

FROZEN = datetime(2031, 1, 2, tzinfo=UTC)


def test_blocking_clients_work_while_the_time_stands_still(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    handled, seen = threading.Event(), []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message)
        handled.set()

    with freezegun.freeze_time(FROZEN), Producer(ropewalk_broker.namesrv) as producer:
        producer.send(topic, Message(b"one"))
        pending = producer.send_async(topic, Message(b"two"))
        assert pending.result(30).status is SendStatus.SEND_OK, "it does not linger for ever"
        with PullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv, consume_from="earliest") as consumer:
            received: list[ReceivedMessage] = []
            while len(received) < 2:
                received += consumer.poll(timeout=1)
            assert consumer.poll(timeout=0.3) == [], "a poll that brings nothing ends"
        with PushConsumer(
            f"{group}-p", {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="earliest"
        ):
            assert handled.wait(30)
        with Admin(ropewalk_broker.namesrv) as admin:
            assert topic in admin.topics()
    assert {message.born_timestamp_ms for message in received} == {round(FROZEN.timestamp() * 1000)}
