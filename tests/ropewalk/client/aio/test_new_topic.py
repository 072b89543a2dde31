"""A topic that is made while its consumer waits: the broker tells, and the first message arrives at once."""

import threading
import time

import pytest

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.test_testing import SLOW_MACHINE

FIRST_MESSAGE_S = 0.2
LATE_S = 8.0
"""Behind looks after 1, 2 and 4 s: without being told, the next one would be at 15 s."""


@pytest.mark.slow
@pytest.mark.parametrize("broadcasting", [False, True])
def test_the_first_message_of_a_new_topic_reaches_a_running_consumer(
    ropewalk_broker: RopewalkBroker, broadcasting: bool
) -> None:
    topic, arrived = ropewalk_broker.name(f"late-{broadcasting}"), threading.Event()
    bodies: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        arrived.set()

    with (
        PushConsumer(
            ropewalk_broker.group(),
            {topic: "*"},
            handle,
            ropewalk_broker.namesrv,
            broadcasting=broadcasting,
            consume_from="earliest",
        ),
        Producer(ropewalk_broker.namesrv) as producer,
    ):
        time.sleep(LATE_S)
        began = time.monotonic()
        producer.send(topic, Message(b"first"))
        assert arrived.wait(5)
        took = time.monotonic() - began
    print(f"first message after {took * 1000:.0f} ms")
    assert bodies == [b"first"]
    assert took < FIRST_MESSAGE_S * SLOW_MACHINE
