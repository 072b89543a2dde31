"""Pending timer messages by topic: `config/timermetrics`, and the answer to code 61.

    {"dataVersion":{...},"timingCount":{"TopicA":{"count":3,"timeStamp":1700000000000}}}

A marker that recalls a message counts -1 until its slot is due. The file is written with the others, so a kill leaves
the counts of a moment before, as the original's does; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from broker.state.data_version import DataVersion, int_of
from broker.state.json_text import TextSlices, object_entry, object_text, value_entry

__all__ = ["TimerMetrics"]


class TimerMetrics:
    """Counters by real topic. The loop owns them."""

    def __init__(self) -> None:
        self.generation = 0
        """Rises with every change."""
        self.data_version = DataVersion()
        self._counts: dict[str, list[int]] = {}
        self._versioned = 0

    def load(self, value: Mapping[str, Any]) -> list[str]:
        """Load the counts of a file; return findings about it."""
        table = value.get("timingCount")
        for topic, entry in table.items() if isinstance(table, dict) else ():
            if isinstance(entry, dict):
                self._counts[topic] = [int_of(entry.get("count"), 0), int_of(entry.get("timeStamp"), 0)]
        self.data_version = DataVersion.from_json(value.get("dataVersion"))
        return []

    def adopt(self, value: Mapping[str, Any]) -> None:
        """Take a master's counts over, whole."""
        if DataVersion.from_json(value.get("dataVersion")) == self.data_version and self._counts:
            return
        self._counts.clear()
        self.load(value)
        self.generation = self._versioned = self.generation + 1

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Count messages of a topic that have come, or gone."""
        entry = self._counts.get(topic)
        if entry is None:
            entry = self._counts[topic] = [0, 0]
        entry[0] += change
        entry[1] = now_ms
        self.generation += 1

    def remove(self, topic: str) -> None:
        """Forget a deleted topic."""
        if self._counts.pop(topic, None) is not None:
            self.generation += 1

    def counts(self) -> dict[str, int]:
        """Return the pending messages of each topic that has any."""
        return {topic: count for topic, (count, _time) in self._counts.items() if count > 0}

    def version_json(self, now_ms: int) -> dict[str, Any]:
        """Return the version of the counts, a new one where they have changed."""
        if self._versioned != self.generation:
            self._versioned = self.generation
            self.data_version = self.data_version.next(now_ms)
        return self.data_version.to_json()

    def entries(self) -> list[tuple[str, list[int]]]:
        """Return the count of each topic, and its time."""
        return list(self._counts.items())

    @staticmethod
    def entry_json(entry: Sequence[int]) -> dict[str, Any]:
        """Return one of `entries` as in file and answer."""
        return {"count": max(entry[0], 0), "timeStamp": entry[1]}

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """Return the object of file and answer."""
        counts = {topic: self.entry_json(entry) for topic, entry in self._counts.items()}
        return {"dataVersion": self.version_json(now_ms), "timingCount": counts}

    def dump_in_slices(self, now_ms: int) -> TextSlices:
        """Write the text of `timermetrics`, a slice at each step."""
        version = value_entry("dataVersion", self.version_json(now_ms))
        counts = (value_entry(topic, self.entry_json(entry)) for topic, entry in self.entries())
        return object_text(chain([version], object_entry("timingCount", counts)))
