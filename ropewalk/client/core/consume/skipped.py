"""Skipped messages: what a consumer passes over without having handled it, and never in silence. Pure.

    removed       retention removed messages before the group came to them
    reset         an administrator sent the group forward
    missing       the broker has no record at offsets that it gave out
    failed        a broadcasting member dropped a message that its handler failed on
    truncated     the queue ends before the group's offset, and nobody can say what lies between

Each is logged, counted and told to the program's `on_skipped`. What a subscription's tags leave out is not skipped, nor
is what a group that begins at the end never saw; a dead letter is kept, and read from its own topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue

SkipReason = Literal["removed", "reset", "missing", "failed", "truncated"]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A range of offsets of one queue that was passed over: `first` up to, without, `next`."""

    queue: TopicQueue
    first: int
    next: int
    reason: SkipReason

    @property
    def count(self) -> int:
        return self.next - self.first


OnSkipped = Callable[[Skipped], None]


def gaps(queue: TopicQueue, begin: int, messages: Sequence[ReceivedMessage], end: int) -> list[Skipped]:
    """Return the offsets of `[begin, end)` that have no message. HOT: nearly always there are none."""
    if len(messages) == end - begin:
        return []
    if any("INNER_NUM" in message.properties for message in messages):
        return []  # one record stands for several offsets
    found: list[Skipped] = []
    expected = begin
    for offset in (*(message.queue_offset for message in messages), end):
        if offset > expected:
            found.append(Skipped(queue, expected, offset, "missing"))
        expected = max(expected, offset + 1)
    return found
