"""A topic that is made while its consumers wait: the broker tells them, and the first message arrives at once."""

import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from ropewalk import Message, Producer, PushConsumer, ReceivedMessage
from ropewalk.testing import RopewalkBroker
from tests.support.long_run import LONG

FIRST_MESSAGE_S = 0.2
SLOW_MACHINE = 4 if LONG else 100
LATE_S = 3.3
"""Behind looks after 1 and 2 s: without being told, the next one would be at 7 s."""


@pytest.mark.slow
def test_the_first_message_of_a_new_topic_reaches_its_running_consumers(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic = ropewalk_broker.name("late")
    arrived: SimpleQueue[tuple[str, bytes]] = SimpleQueue()

    def handle_as(who: str) -> Callable[[ReceivedMessage], None]:
        return lambda message: arrived.put((who, message.body))

    def consumer(who: str, *, broadcasting: bool) -> PushConsumer:
        return PushConsumer(
            ropewalk_broker.group(),
            {topic: "*"},
            handle_as(who),
            ropewalk_broker.namesrv,
            broadcasting=broadcasting,
            consume_from="earliest",
        )

    with (
        consumer("sharing", broadcasting=False),
        consumer("broadcasting", broadcasting=True),
        Producer(ropewalk_broker.namesrv) as producer,
    ):
        time.sleep(LATE_S)
        began = time.monotonic()
        producer.send(topic, Message(b"first"))
        found = [arrived.get(timeout=30) for _ in range(2)]
        took = time.monotonic() - began
    print(f"first message after {took * 1000:.0f} ms")
    assert sorted(found) == [("broadcasting", b"first"), ("sharing", b"first")]
    assert took < FIRST_MESSAGE_S * SLOW_MACHINE
