"""`config/transactionMetrics`: how many half messages are open, by topic, in RocketMQ's form.

    {"dataVersion":{...},"transactionCount":{"Orders":{"count":2,"timeStamp":1700000000000}}}

The numbers are those of the open halves themselves, so a start makes them anew from the log; of a file that is found
only the version counts on. Commits, rollbacks and what was given up are counted beside it, for metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from broker.state.data_version import DataVersion
from broker.state.json_text import TextSlices, object_entry, object_text, value_entry
from broker.transactions.open_halves import OpenHalves
from store.io.durations import Durations

__all__ = ["FINISH_BOUNDS_S", "TransactionCounts"]

FINISH_BOUNDS_S: Final = (5, 60, 600, 3600, 43200, 86400)
"""Upper bounds of the classes of how long transactions took to be committed."""
TOPICS_MAX: Final = 10_000


class TransactionCounts:
    """The totals since the start of the process, and the text of `transactionMetrics`."""

    def __init__(self) -> None:
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        self.given_up: Counter[str] = Counter()
        self.checks = 0
        """Checks that were sent."""
        self.unasked = 0
        """Checks that were due while no producer of the group was there."""
        self.latencies: dict[str, Durations] = {}
        self.data_version = DataVersion()

    def load(self, value: Mapping[str, Any]) -> None:
        """Go on with the version of a file that was found."""
        self.data_version = DataVersion.from_json(value.get("dataVersion"))

    def finished(self, topic: str, seconds: float) -> None:
        """Count one commit, which came so long after its half message."""
        self.committed[topic] += 1
        durations = self.latencies.get(topic)
        if durations is None:
            if len(self.latencies) >= TOPICS_MAX:
                return
            durations = self.latencies[topic] = Durations(FINISH_BOUNDS_S)
        durations.add(seconds)

    def dump_in_slices(self, halves: OpenHalves, now_ms: int) -> TextSlices:
        """Write the text of the file, a slice at each step."""
        self.data_version = self.data_version.next(now_ms)
        counts = (
            value_entry(topic, {"count": halves.counts[topic], "timeStamp": when})
            for topic, when in tuple(halves.changed.items())
        )
        version = value_entry("dataVersion", self.data_version.to_json())
        return object_text(chain([version], object_entry("transactionCount", counts)))
