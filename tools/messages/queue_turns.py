"""`QueueTurns`: the queue of the next message: the queues take turns, and messages of a group have one of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.client.core.messages import Message
from ropewalk.client.core.produce.choice import queue_of_group
from ropewalk.client.core.routes import Queue

__all__ = ["QueueTurns"]


class QueueTurns:
    """Queues that take turns."""

    def __init__(self, queues: Sequence[Queue]) -> None:
        assert queues, "nowhere to send to"
        self.queues = queues
        self._turn = 0

    def queue_for(self, message: Message) -> Queue:
        """Return the queue of a message."""
        if message.group:
            return queue_of_group(message.group, self.queues)
        return self.next_of(self.queues)

    def next_of(self, queues: Sequence[Queue]) -> Queue:
        """Return the queue among these whose turn it is."""
        queue = queues[self._turn % len(queues)]
        self._turn += 1
        return queue
