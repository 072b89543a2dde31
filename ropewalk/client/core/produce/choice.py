"""Queue selection: the queue of the next message, and the brokers to avoid for a while. Pure.

Queues take turns. An attempt that follows a failed one avoids the brokers that failed this message, unless there is
no other. With latency faults switched on, a broker that answered slowly is left out of the turns for a time that
grows with its slowness, and one that failed for as long as the slowest; the classes are the official clients':

    answered within, ms     100   550  1800  3000  5000  15000  and longer
    left alone for, s         0     0     2     5     6     10    30

Messages of one group always get the same queue: Java's hash of the group's name, modulo the number of queues, so that
producers in both languages agree.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ropewalk.client.core.routes import Queue
from ropewalk.format.properties import java_hash

LATENCY_CLASSES_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
LEFT_ALONE_S = (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
FAILURE_COUNTS_AS_MS = 10_000


class LatencyFaults:
    """Send latencies by broker, and until when each slow broker is avoided."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._until: dict[str, float] = {}

    def answered(self, broker_name: str, latency_ms: float, now: float) -> None:
        """Record the latency of a send. `now` is in seconds."""
        if not self._enabled:
            return
        left_alone = 0.0
        for bound, seconds in zip(LATENCY_CLASSES_MS, LEFT_ALONE_S, strict=True):
            if latency_ms >= bound:
                left_alone = seconds
        self._until[broker_name] = now + left_alone

    def failed(self, broker_name: str, now: float) -> None:
        """Record a send without an answer, as the slowest class."""
        self.answered(broker_name, FAILURE_COUNTS_AS_MS, now)

    def is_available(self, broker_name: str, now: float) -> bool:
        return now >= self._until.get(broker_name, now)


class RoundRobin:
    """Round robin over a topic's queues; each topic has a turn of its own."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._turns: dict[str, int] = {}

    def next(
        self,
        topic: str,
        queues: Sequence[Queue],
        faults: LatencyFaults,
        now: float,
        avoid: Collection[str] = (),
    ) -> Queue:
        """Return the next queue, not at a broker of `avoid` nor at one that is left alone, if that is possible."""
        assert queues, "a topic without queues offers no choice"
        turn = self._turns.get(topic, self._start)
        first = queues[turn % len(queues)]
        if not avoid and faults.is_available(first.broker_name, now):
            self._turns[topic] = turn + 1
            return first
        rotated = [queues[(turn + step) % len(queues)] for step in range(len(queues))]
        best = min(
            range(len(rotated)),
            key=lambda step: (
                rotated[step].broker_name in avoid,
                not faults.is_available(rotated[step].broker_name, now),
                step,
            ),
        )
        self._turns[topic] = turn + best + 1
        return rotated[best]


def queue_of_group(group: str, queues: Sequence[Queue]) -> Queue:
    """Return the one queue for messages of this group, as Java's SelectMessageQueueByHash finds it."""
    assert queues, "a topic without queues offers no choice"
    return queues[abs(java_hash(group)) % len(queues)]
