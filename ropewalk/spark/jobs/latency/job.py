"""Measure how long messages took from their producer into the store: `ropewalk pipeline latency`.

A message carries two times: when its producer made it and when the broker stored it. Their difference is the way plus
whatever the two clocks disagree. Negative ones are clocks and nothing else: they are counted and shown, not cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.spark.jobs.common.report import FINDINGS, OK, Lines, Plot, Report, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.sources import Source
from ropewalk.spark.jobs.stats.histogram import Histogram, merge_histograms
from ropewalk.spark.jobs.stats.job import time_text

COLUMNS: Final = ("topic", "bornTimestamp", "storeTimestamp")
_BAD: Final = frozenset(("stored_before_made", "worst_skew_ms", "over_limit"))


@dataclass(slots=True)
class Delays:
    """The delays of the messages of one topic in one window."""

    histogram: Histogram = field(default_factory=Histogram)
    """Of those that are not negative, ms."""
    skewed: int = 0
    """Messages that were stored before they were made."""
    worst_skew_ms: int = 0
    longest_ms: int = 0

    @property
    def count(self) -> int:
        return self.histogram.count + self.skewed

    def add(self, other: Delays) -> None:
        self.histogram.add(other.histogram)
        self.skewed += other.skewed
        self.worst_skew_ms = min(self.worst_skew_ms, other.worst_skew_ms)
        self.longest_ms = max(self.longest_ms, other.longest_ms)


Windows = dict[tuple[str, int], Delays]
"""By topic and the beginning of the window, ms since 1970."""


@dataclass(frozen=True, slots=True)
class _Work:
    source: Source
    range_: Any
    window_ms: int


def latency(tasks: Tasks, source: Source, *, window_ms: int = 60_000) -> Windows:
    """Measure the messages that a source holds now. It has to give the columns `COLUMNS`."""
    planned = source.plan(tasks, None, None)
    total: Windows = {}
    if planned is not None:
        work = [_Work(source, range_, window_ms) for range_ in planned.ranges]
        for found in tasks.run(measure_range, work, "measuring"):
            add_delays(total, found)
    return total


def measure_range(work: _Work) -> Windows:
    """Measure one range. Runs in a task."""
    done: Windows = {}
    for batch in work.source.read(work.range_):
        add_delays(done, measure_batch(batch, work.window_ms))
    return done


def add_delays(into: Windows, found: Windows) -> None:
    """Add delays that were measured elsewhere."""
    for name, each in found.items():
        into.setdefault(name, Delays()).add(each)


def measure_batch(batch: Any, window_ms: int) -> Windows:
    """Measure one record batch."""
    stored, born = (
        np.asarray(pc.fill_null(batch.column(name).cast(pa.int64()), 0)) // 1000
        for name in ("storeTimestamp", "bornTimestamp")
    )
    return measure_delays(batch.column("topic"), stored - born, stored, window_ms)


def measure_delays(topic: Any, delays: Any, at_ms: Any, window_ms: int) -> Windows:
    """Count delays of rows in ms, by topic and window."""
    done: Windows = {}
    if not len(delays):
        return done
    encoded = topic.dictionary_encode()
    ids, topics = np.asarray(encoded.indices), encoded.dictionary.to_pylist()
    windows = at_ms // window_ms * window_ms
    order = np.lexsort((windows, ids))
    changes = (np.diff(ids[order]) != 0) | (np.diff(windows[order]) != 0)
    for chosen in np.split(order, np.flatnonzero(changes) + 1):
        mine = delays[chosen]
        late = mine[mine >= 0]
        done[topics[ids[chosen[0]]], int(windows[chosen[0]])] = Delays(
            Histogram.of(late),
            len(mine) - len(late),
            min(int(mine.min()), 0),
            max(int(mine.max()), 0),
        )
    return done


def latency_report(
    what: str,
    found: Windows,
    quantiles: Sequence[float],
    limit_ms: int | None = None,
    *,
    window_ms: int | None = None,
    way: str = "from producer to store",
    more: Sequence[Table] = (),
) -> Report:
    """Report the measured delays. Above `limit_ms` at the highest quantile is a finding. `more` stands below it."""
    topics = sorted({topic for topic, _window in found})
    by_topic = {topic: Delays() for topic in topics}
    for (topic, _window), each in found.items():
        by_topic[topic].add(each)
    names = tuple(f"p{share * 100:g} ms" for share in quantiles)
    rows = [
        (t, d.count, *d.histogram.quantiles(quantiles), d.longest_ms, d.skewed, d.worst_skew_ms)
        for t, d in by_topic.items()
    ]
    windows = [
        (topic, time_text(window), d.count, *d.histogram.quantiles(quantiles), d.longest_ms, d.skewed)
        for (topic, window), d in sorted(found.items())
    ]
    worst = {
        topic: ms
        for topic, d in by_topic.items()
        if limit_ms is not None and (ms := d.histogram.quantiles([max(quantiles)])[0] or 0) > limit_ms
    }
    summary: dict[str, Any] = {
        "what": what,
        "messages": sum(d.count for d in by_topic.values()),
        "way": way,
        "stored_before_made": sum(d.skewed for d in by_topic.values()),
        "worst_skew_ms": min((d.worst_skew_ms for d in by_topic.values()), default=0),
        "over_limit": sorted(worst),
    }
    tables = [
        Table("topics", ("topic", "messages", *names, "longest ms", "skewed", "worst skew ms"), rows),
        Table("windows", ("topic", "from", "messages", *names, "longest ms", "skewed"), windows),
    ]
    last = max(quantiles)
    plots: list[Plot] = [
        Lines(
            f"p{last * 100:g} by window", "UTC", "ms",
            {
                topic: [
                    (window / 1000, float(d.histogram.quantiles([last])[0] or 0))
                    for (name, window), d in sorted(found.items()) if name == topic
                ]
                for topic in topics[:8]
            },
            x_is_time=True,
            step=window_ms / 1000 if window_ms is not None else None,
        ),
        Lines(
            f"{way[0].upper()}{way[1:]}: share at or below", "ms", "share",
            {"all": [(max(x, 0.5), y) for x, y in merge_histograms(d.histogram for d in by_topic.values()).curve()]},
            x_is_log=True,
        ),
    ]  # fmt: skip
    title = f"Latency of {what}, {way}"
    return Report("latency", title, summary, [*tables, *more], plots, FINDINGS if worst else OK, _BAD)
