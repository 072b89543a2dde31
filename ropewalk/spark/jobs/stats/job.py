"""Count messages, sizes, times and offsets, and find irregular ones: `ropewalk pipeline stats`.

Every task sums up its own ranges; the sums are small and are put together by whoever asked. Only what has to be seen
whole travels further: the unique keys, to find those that are there twice, and the keys, to count the commonest.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.report import FINDINGS, OK, Bars, Lines, Plot, Report, Table
from ropewalk.spark.jobs.common.tasks import Key, Tasks
from ropewalk.spark.jobs.export.sources import Source
from ropewalk.spark.jobs.stats.histogram import Histogram, merge_histograms

COLUMNS: Final = (
    "topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "storeSize", "tags", "keys", "uniqKey"
)  # fmt: skip
BY: Final = {"topic": 0, "queue": 0, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_BUCKETS: Final = 64
_QUANTILES: Final = (0.5, 0.9, 0.99)


class BadStats(RopewalkError):
    """Statistics whose options make no sense."""


@dataclass(slots=True)
class Sum:
    """The counts of a group of messages."""

    count: int = 0
    bytes: int = 0
    low: int = 1 << 62
    """The least queue offset."""
    high: int = -1
    first_ms: int = 1 << 62
    last_ms: int = -(1 << 62)
    largest: int = 0
    sizes: Histogram = field(default_factory=Histogram)

    def add(self, other: Sum) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.first_ms, self.last_ms = min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms)
        self.largest = max(self.largest, other.largest)
        self.sizes.add(other.sizes)


QueueName = tuple[str, str, int]
GroupName = tuple[str | int, ...]


@dataclass(slots=True)
class Partial:
    """The counts of one range."""

    groups: dict[GroupName, Sum] = field(default_factory=dict)
    queues: dict[QueueName, Sum] = field(default_factory=dict)
    tags: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[int] = field(default_factory=Counter)
    """Messages by the minute they were stored in, for the plot."""

    def add(self, other: Partial) -> None:
        for group, each in other.groups.items():
            self.groups.setdefault(group, Sum()).add(each)
        for queue, each in other.queues.items():
            self.queues.setdefault(queue, Sum()).add(each)
        self.tags.update(other.tags)
        self.seconds.update(other.seconds)


@dataclass(slots=True)
class Stats:
    """The counts of all ranges."""

    total: Partial
    doubles: int = 0
    """Messages whose unique key another one has too."""
    double_keys: list[tuple[str, int]] = field(default_factory=list)
    top_keys: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Work:
    source: Source
    range_: Any
    by: tuple[str, ...]


def stats(tasks: Tasks, source: Source, *, by: Sequence[str] = ("topic",), top_keys: int = 0) -> Stats:
    """Count the messages that a source holds now. It has to give the columns `COLUMNS`."""
    for name in by:
        if name not in BY:
            raise BadStats(f"--by {name}: it is any of {', '.join(BY)}")
    planned = source.plan(tasks, None, None)
    if planned is None:
        return Stats(Partial())
    work = [_Work(source, range_, tuple(by)) for range_ in planned.ranges]
    total = Partial()
    for each in tasks.run(sum_range, work, "counting"):
        total.add(each)
    done = Stats(total)
    found = tasks.shuffle(_Spread(top_keys > 0), _Gather(top_keys), work, "looking for doubles")
    for doubles, examples, top in found:
        done.doubles += doubles
        done.double_keys += examples
        done.top_keys += top
    done.double_keys = sorted(done.double_keys, key=lambda each: (-each[1], each[0]))[:20]
    done.top_keys = sorted(done.top_keys, key=lambda each: (-each[2], each[:2]))[:top_keys]
    return done


def sum_range(work: _Work) -> Partial:
    """Count one range. Runs in a task."""
    done = Partial()
    for batch in work.source.read(work.range_):
        done.add(sum_batch(batch, work.by))
    return done


def sum_batch(batch: Any, by: Sequence[str]) -> Partial:
    """Count one record batch."""
    done = Partial()
    if not batch.num_rows:
        return done
    stored = np.asarray(batch.column("storeTimestamp").cast(pa.int64())) // 1000
    sizes = np.asarray(batch.column("storeSize")).astype(np.int64)
    offsets = np.asarray(batch.column("queueOffset"))
    queue = np.asarray(batch.column("queueId")).astype(np.int64)
    topic_ids, topics = _encoded(batch.column("topic"))
    broker_ids, brokers = _encoded(batch.column("brokerName"))
    values = (sizes, offsets, stored)
    for chosen, ids in _groups([topic_ids, broker_ids, queue]):
        name = (topics[ids[0]], brokers[ids[1]], ids[2])
        done.queues.setdefault(name, Sum()).add(_sum(*values, chosen))
    columns = [topic_ids if n == "topic" else queue if n == "queue" else stored // BY[n] * BY[n] for n in by]
    for chosen, ids in _groups(columns):
        group = tuple(topics[i] if n == "topic" else i for n, i in zip(by, ids, strict=True))
        done.groups.setdefault(group, Sum()).add(_sum(*values, chosen))
    tag_ids, tags = _encoded(batch.column("tags"))
    for chosen, ids in _groups([topic_ids, tag_ids]):
        done.tags[topics[ids[0]], tags[ids[1]]] += len(chosen)
    minutes, counts = np.unique(stored // 60_000 * 60, return_counts=True)
    done.seconds.update(dict(zip(minutes.tolist(), counts.tolist(), strict=True)))
    return done


def _encoded(column: Any) -> tuple[Any, list[str]]:
    encoded = pc.fill_null(column, "").dictionary_encode()
    return np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()


def _groups(columns: Sequence[Any]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """(rows, values) for each combination of values that occurs; one of all rows if there are no columns."""
    if not columns:
        yield slice(None), ()
        return
    order = np.lexsort(tuple(reversed(columns)))
    changes = np.zeros(len(order), np.bool_)
    for column in columns:
        changes[1:] |= np.diff(column[order]) != 0
    for chosen in np.split(order, np.flatnonzero(changes)):
        yield chosen, tuple(int(column[chosen[0]]) for column in columns)


def _sum(sizes: Any, offsets: Any, stored: Any, chosen: Any) -> Sum:
    mine, numbers, times = sizes[chosen], offsets[chosen], stored[chosen]
    return Sum(
        len(mine), int(mine.sum()), int(numbers.min()), int(numbers.max()), int(times.min()), int(times.max()),
        int(mine.max()), Histogram.of(mine),
    )  # fmt: skip


# -- what has to be seen whole -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Spread:
    """Unique keys, and keys, by a part of their hash: a function that travels to a task."""

    keys: bool

    def __call__(self, work: _Work) -> Iterable[tuple[Key, bytes]]:
        for batch in work.source.read(work.range_):
            unique = [key for key in batch.column("uniqKey").to_pylist() if key]
            yield from _bucketed("unique", unique)
            if self.keys:
                pairs = zip(batch.column("topic").to_pylist(), batch.column("keys").to_pylist(), strict=True)
                words = [
                    f"{topic}\n{word}" for topic, keys in pairs if keys for word in keys.split(" ") if word
                ]
                yield from _bucketed("key", words)


def _bucketed(kind: str, values: list[str]) -> Iterator[tuple[Key, bytes]]:
    buckets: dict[int, list[bytes]] = {}
    for value in values:
        data = value.encode()
        buckets.setdefault(zlib.crc32(data) % _BUCKETS, []).append(data)
    for number, some in buckets.items():
        yield (kind, number), b"\0".join(some)


@dataclass(frozen=True, slots=True)
class _Gather:
    """Counts what came together: a function that travels to a task."""

    top: int

    def __call__(
        self, values: tuple[Key, list[bytes]]
    ) -> tuple[int, list[tuple[str, int]], list[tuple[str, str, int]]]:
        (kind, _bucket), some = values
        counts = Counter(key for part in some for key in part.split(b"\0"))
        if kind == "unique":
            twice = [(key.decode(), count) for key, count in counts.items() if count > 1]
            examples = sorted(twice, key=lambda each: (-each[1], each[0]))[:20]
            return sum(count - 1 for _key, count in twice), examples, []
        top = []
        for key, count in counts.most_common(self.top):
            topic, _, word = key.decode().partition("\n")
            top.append((topic, word, count))
        return 0, [], top


# -- the report --------------------------------------------------------------------------------------


def stats_report(what: str, done: Stats, by: Sequence[str]) -> Report:
    """Report the counts. Missing numbers in a queue, and unique keys that come twice, are findings."""
    total = done.total
    everything = Sum()
    for each in total.queues.values():
        everything.add(each)
    holes = {name: each.high - each.low + 1 - each.count for name, each in total.queues.items()}
    missing = sum(count for count in holes.values() if count > 0)
    summary: dict[str, Any] = {
        "what": what,
        "messages": everything.count,
        "bytes": everything.bytes,
        "first": time_text(everything.first_ms) if everything.count else None,
        "last": time_text(everything.last_ms) if everything.count else None,
        "missing": missing,
        "doubles": done.doubles,
    }
    sizes = ("size p50", "p90", "p99", "largest")
    columns = (*by, "messages", "bytes", "first stored", "last stored", *sizes)
    rows = [
        (
            *(time_text(int(v)) if BY[n] else v for n, v in zip(by, group, strict=True)), each.count, each.bytes,
            time_text(each.first_ms), time_text(each.last_ms), *each.sizes.quantiles(_QUANTILES),
            each.largest,
        )
        for group, each in sorted(total.groups.items(), key=lambda item: item[0])
    ]  # fmt: skip
    tables = [
        Table("groups", columns, rows),
        Table(
            "queues",
            ("topic", "broker", "queue", "from", "to", "messages", "missing", "bytes"),
            [
                (*n, s.low, s.high, s.count, max(holes[n], 0), s.bytes)
                for n, s in sorted(total.queues.items())
            ],
        ),
        Table("tags", ("topic", "tag", "messages"), [(*n, c) for n, c in total.tags.most_common(100)]),
        Table("top keys", ("topic", "key", "messages"), done.top_keys),
        Table("unique keys that come more than once", ("key", "messages"), done.double_keys),
    ]
    bytes_by_topic: Counter[str] = Counter()
    for (topic, _broker, _queue), each in total.queues.items():
        bytes_by_topic[topic] += each.bytes
    plots: list[Plot] = [
        Lines(
            "Messages stored in each minute", "UTC", "messages",
            {"all topics": [(float(at), float(count)) for at, count in sorted(total.seconds.items())]},
            x_is_time=True, step=60.0,
        ),
        Bars("Bytes by topic", "bytes", [(n, float(c)) for n, c in bytes_by_topic.most_common(30)]),
        Lines(
            "Sizes of stored messages: share at or below", "bytes", "share",
            {"all": merge_histograms(each.sizes for each in total.queues.values()).curve()}, x_is_log=True,
        ),
    ]  # fmt: skip
    wrong = FINDINGS if missing or done.doubles else OK
    bad = frozenset(("missing", "doubles"))
    return Report("stats", f"Statistics of {what}", summary, tables, plots, wrong, bad)


def time_text(ms: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        return str(ms)
