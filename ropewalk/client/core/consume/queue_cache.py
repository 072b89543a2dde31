"""The unfinished messages of one queue: the offset that may be committed, and when to pause reading.

Messages finish in any order; committed is only what every earlier message is finished of:

    offsets    10   11   12   13   14 |          next to read: 15
    finished    x         x    x      |          committable: 11

Invariants: `committable` never goes back and never passes a message that is not finished; `count` and `size` are those
of the unfinished messages. A cache that was dropped (its queue belongs to somebody else now) takes nothing in.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.errors import RemoteProtocolError


class QueueCache:
    """The unfinished messages of one queue, in order of their offsets."""

    def __init__(self, next_offset: int, *, count_max: int, size_max: int, span_max: int) -> None:
        """`next_offset` is the first to read; the maxima are when to pause: messages, bytes, offsets apart."""
        self.next_offset = next_offset
        self.size = 0
        self.dropped = False
        self._count_max = count_max
        self._size_max = size_max
        self._span_max = span_max
        self._unfinished: dict[int, ReceivedMessage] = {}

    @property
    def count(self) -> int:
        return len(self._unfinished)

    @property
    def committable(self) -> int:
        """The offset the group may go on from, should we vanish now."""
        return next(iter(self._unfinished), self.next_offset)

    @property
    def is_full(self) -> bool:
        """True while reading has to pause."""
        return (
            self.count >= self._count_max
            or self.size >= self._size_max
            or self.next_offset - self.committable > self._span_max
        )

    @property
    def first(self) -> ReceivedMessage | None:
        """The earliest message that is not finished."""
        return next(iter(self._unfinished.values()), None)

    def holds(self, message: ReceivedMessage) -> bool:
        """Return True if a message is among the unfinished ones."""
        return self._unfinished.get(message.queue_offset) is message

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add the messages of a pull; `next_offset` may lie beyond them, where a filter passed over others.

        Raises `RemoteProtocolError` for a message that is here already; those in front of it are added.
        """
        assert not self.dropped
        for message in messages:
            if message.queue_offset in self._unfinished:
                raise RemoteProtocolError(
                    f"message {message.queue_offset} came again, while it is being handled"
                )
            self._unfinished[message.queue_offset] = message
            self.size += len(message.wire_body[1])
        self.next_offset = next_offset

    def finish(self, message: ReceivedMessage) -> None:
        """Remove a message that was handled or given up."""
        self._unfinished.pop(message.queue_offset)
        self.size -= len(message.wire_body[1])
