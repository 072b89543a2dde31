"""Counts of timer messages since the start, by real topic, for metrics.

A rolled message is enqueued and dequeued once for each time that it waits, as RocketMQ counts it; how long a message
wants to wait is counted when it is enqueued for the first time.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from store.io.durations import Durations

__all__ = ["DELAY_BOUNDS_S", "TimerCounts"]

DELAY_BOUNDS_S: Final = (60, 600, 3_600, 43_200, 86_400, 259_200)
"""Upper bounds of the classes of how long messages want to wait."""
TOPICS_MAX: Final = 10_000


class TimerCounts:
    """Counters by topic. The loop adds, others look."""

    def __init__(self) -> None:
        self.enqueued: Counter[str] = Counter()
        self.dequeued: Counter[str] = Counter()
        self.delays: dict[str, Durations] = {}

    def add_enqueued(self, topic: str, delay_s: float | None) -> None:
        """Count a message that has come into the wheel; `delay_s` is None for one that comes again. HOT."""
        if topic not in self.enqueued and len(self.enqueued) >= TOPICS_MAX:
            return
        self.enqueued[topic] += 1
        if delay_s is not None:
            delays = self.delays.get(topic)
            if delays is None:
                delays = self.delays[topic] = Durations(DELAY_BOUNDS_S)
            delays.add(delay_s)

    def add_dequeued(self, topic: str, count: int) -> None:
        """Count copies that were appended, to the topic or to the timer topic again."""
        if topic in self.dequeued or len(self.dequeued) < TOPICS_MAX:
            self.dequeued[topic] += count
