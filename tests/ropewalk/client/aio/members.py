"""Messages for a group to consume, and a handler that remembers them."""

from __future__ import annotations

from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.testing import RopewalkBroker


def fill(broker: RopewalkBroker, topic: str, count: int, first: int = 0) -> set[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        broker.client.send(topic, Message(body))
    return set(bodies)


class Seen:
    """A handler that remembers."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []

    @property
    def bodies(self) -> set[bytes]:
        return {message.body for message in self.messages}

    async def __call__(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
