"""The filter of a read: topic, queue, queue offset, store time and tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ropewalk.format.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic

__all__ = ["RowFilter", "is_internal_topic"]

_OTHER_PREFIXES: Final = ("%LMQ%", "%SYS%")


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The filter of a read. Empty means all."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    queues: Mapping[str, frozenset[int]] | None = None
    """For each topic the queue ids wanted; a topic that is missing here is not wanted."""
    hide_system: bool = False
    offsets: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Queue offsets [low, high) wanted of a queue; queues that are missing here are wanted whole."""
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None

    @property
    def by_topic(self) -> bool:
        return (
            self.topics is not None or self.pattern is not None or self.queues is not None or self.hide_system
        )

    def matches_topic(self, topic: str) -> bool:
        """Return whether any record of a topic can match."""
        if self.topics is not None:
            return topic in self.topics
        if self.queues is not None:
            return topic in self.queues
        if self.hide_system and is_internal_topic(topic):
            return False
        return self.pattern is None or re.fullmatch(self.pattern, topic) is not None

    def matches_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether any record of a queue can match."""
        if not self.matches_topic(topic):
            return False
        return self.queues is None or queue_id in self.queues[topic]


def is_internal_topic(topic: str) -> bool:
    """Return whether a topic is one that patterns match only on request: the broker's own, retries and dead letters."""
    return is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX, *_OTHER_PREFIXES))
