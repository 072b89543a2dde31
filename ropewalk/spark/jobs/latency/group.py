"""Measure how long messages lay in the store before a group had consumed them: `ropewalk pipeline latency --group`.

No message says when it was consumed. What a broker knows is how far the group has come in each queue, so that is looked
at again and again for a while; a message is consumed when the group's offset is first seen behind it:

    seen        10:00:00   10:00:01   10:00:02
    offset             7          7         19        messages 7 to 18 were consumed at 10:00:02, at the latest

This is as exact as the group's own notes. Clients of RocketMQ commit every five seconds, and the looks add their
interval. What the group had consumed before the first look is not measured; what it has not come to at the last one is
counted as waiting, with the age of the oldest such message of each queue.

Two clocks take part, the brokers' and that of whoever looks. A message that was consumed before it was stored shows
that they disagree: it is counted apart, not cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.sources import LiveSource
from ropewalk.spark.jobs.latency.job import Windows, add_delays, measure_delays
from ropewalk.spark.live.cluster import Cluster
from ropewalk.spark.live.offsets import QueueKey

COLUMNS: Final = ("topic", "queueOffset", "storeTimestamp")


class BadGroup(RopewalkError):
    """A group of which nothing can be measured."""


@dataclass(frozen=True, slots=True)
class OffsetSnapshot:
    """The committed offsets of a group at one moment."""

    at_ms: int
    offsets: Mapping[QueueKey, int]


@dataclass(slots=True)
class GroupWatch:
    """The snapshots of a while, and the backlog of the group at the last one."""

    snapshots: list[OffsetSnapshot] = field(default_factory=list)
    waiting: dict[QueueKey, tuple[int, int | None]] = field(default_factory=dict)
    """Of each queue: messages, and how old the oldest is in ms."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """Messages [low, high) of a queue; those below `steps[i][0]` were seen consumed at `steps[i][1]` ms."""

    key: QueueKey
    low: int
    high: int
    steps: tuple[tuple[int, int], ...]


def group_latency(
    tasks: Tasks,
    source: LiveSource,
    group: str,
    *,
    watch_s: float,
    interval_s: float,
    window_ms: int = 60_000,
) -> tuple[Windows, GroupWatch]:
    """Watch a group for a while, and measure the messages that it consumes meanwhile.

    Raises `TaskFailed` and `BadGroup`.
    """
    (watched,) = tasks.run(
        watch_group, [(source, group, watch_s, interval_s)], f"watching {group} for {watch_s:g} s"
    )
    if not any(snapshot.offsets for snapshot in watched.snapshots):
        raise BadGroup(
            f"group {group} has committed no offset of {source.options['topic']}: it never consumed there, or its name "
            f"is another"
        )
    total: Windows = {}
    work = [(source, consumed, window_ms) for consumed in consumed_ranges(watched.snapshots)]
    for found in tasks.run(measure_consumed, work, "measuring"):
        add_delays(total, found)
    return total, watched


def consumed_ranges(snapshots: Sequence[OffsetSnapshot]) -> list[Consumed]:
    """Return the ranges that were consumed between the first snapshot and the last, by queue."""
    places: dict[QueueKey, int] = {}
    lows: dict[QueueKey, int] = {}
    steps: dict[QueueKey, list[tuple[int, int]]] = {}
    for snapshot in snapshots:
        for key, offset in snapshot.offsets.items():
            if key not in places:
                lows[key] = offset
            elif offset > places[key]:
                steps.setdefault(key, []).append((offset, snapshot.at_ms))
            # A group that was sent back consumes again; what it consumed once is measured once.
            places[key] = max(places.get(key, offset), offset)
    return [Consumed(key, lows[key], made[-1][0], tuple(made)) for key, made in sorted(steps.items())]


def watch_group(
    work: tuple[LiveSource, str, float, float],
    *,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    sleep: Callable[[float], None] = time.sleep,
) -> GroupWatch:
    """Take snapshots of a group's offsets until the time is over. Runs in a task. Blocks."""
    source, group, watch_s, interval_s = work
    cluster = Cluster(source.parsed())
    try:
        cluster.refresh()
        watched = GroupWatch()
        end = now_ms() + int(watch_s * 1000)
        while True:
            keys = cluster.queues()
            watched.snapshots.append(OffsetSnapshot(now_ms(), cluster.group_offsets(group, keys)))
            left = end - now_ms()
            if left <= 0:
                break
            sleep(min(interval_s, left / 1000))
            cluster.refresh()
        last = watched.snapshots[-1]
        bounds = cluster.wait_for_bounds(last.offsets)
        nexts = {
            key: max(offset, bounds[key].low)
            for key, offset in last.offsets.items()
            if key in bounds and offset < bounds[key].high
        }
        stored = cluster.stored_ms(nexts)
        for key, offset in nexts.items():
            since = stored.get(key)
            watched.waiting[key] = (bounds[key].high - offset, None if since is None else last.at_ms - since)
        return watched
    finally:
        cluster.close()


def measure_consumed(work: tuple[LiveSource, Consumed, int]) -> Windows:
    """Measure the consumed messages of one queue. Runs in a task. Blocks."""
    source, consumed, window_ms = work
    done: Windows = {}
    for batch in source.read([*consumed.key, consumed.low, consumed.high]):
        add_delays(done, measure_rows(batch, consumed.steps, window_ms))
    return done


def measure_rows(batch: pa.RecordBatch, steps: Iterable[tuple[int, int]], window_ms: int) -> Windows:
    """Measure one record batch of a queue."""
    ends, seen = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    offsets = np.asarray(batch.column("queueOffset"))
    stored = np.asarray(pc.fill_null(batch.column("storeTimestamp").cast(pa.int64()), 0)) // 1000
    consumed = seen[np.searchsorted(ends, offsets, side="right")]
    return measure_delays(batch.column("topic"), consumed - stored, stored, window_ms)


def waiting_rows(watched: GroupWatch) -> list[tuple[Any, ...]]:
    """Return the backlog of the group as rows of a table."""
    return [
        (key.topic, key.broker, key.queue_id, count, age)
        for key, (count, age) in sorted(watched.waiting.items())
    ]
