"""Cut stores into splits, the input of one task each: on the driver, from file names, sizes and queue entries.

    LogSplit     the records that begin in a stretch of one segment. Unless the stretch begins where a record does,
                 the task looks for the first one by its magic; `splitMode=chain` walks the sizes on the driver
                 instead, so that a record forged inside a body cannot mislead anybody.
    QueueSplit   a run of one queue's entries: `splitMode=queue`, for few topics out of many.

No cut is made close to the end of a segment: behind the blank that closes it, left-over records may stand, and a task
that began there could take them for the log's. The plan is sorted by place and depends on nothing but the store.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ropewalk.errors import RopewalkError
from ropewalk.spark.options import EARLIEST, LATEST, BadOption, Options
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import SegmentDecoder
from ropewalk.spark.rows.row_filter import RowFilter
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.files import Queue, Segment, Store, open_stores
from ropewalk.spark.store.safe_end import end_of_log
from ropewalk.spark.versions import Stamp, stamp

__all__ = ["TAIL_SIZE", "DataLoss", "LogSplit", "QueueSplit", "Split", "plan_log", "plan_store", "row_filter"]

TAIL_SIZE: Final = 8 << 20
"""Bytes at the end of a segment in which no cut is made: more than the largest record, behind which a blank stands."""

_STEP: Final = 1 << 16


class DataLoss(RopewalkError):
    """Messages that were asked for are gone."""


@dataclass(frozen=True, slots=True)
class LogSplit:
    """The records of one segment that begin in `[start, end)`, which are log offsets."""

    stamp: Stamp
    broker_name: str | None
    segment: Segment
    start: int
    end: int
    exact: bool
    """Whether a record is known to begin at `start`."""
    log_end: int
    """Where the readable log ends."""
    io: str
    filter: RowFilter
    partition_bases: Mapping[str, int]

    @property
    def order(self) -> int:
        return self.start


@dataclass(frozen=True, slots=True)
class QueueSplit:
    """The entries `[low, high)` of one queue, and the segments their records lie in."""

    stamp: Stamp
    broker_name: str | None
    queue: Queue
    low: int
    high: int
    segments: tuple[Segment, ...]
    log_end: int
    io: str
    filter: RowFilter
    partition_bases: Mapping[str, int]


Split = LogSplit | QueueSplit


def plan_store(options: Options) -> list[Split]:
    """Plan the splits of a batch read. Raises UnreadableStore, BadOption and DataLoss."""
    assert options.path is not None
    stores = open_stores(options.path, options.broker_name, options.log_format)
    bases = _partition_bases(stores) if options.preset == "kafka" or "partition" in options.columns else {}
    splits: list[Split] = []
    total = sum(segment.size for store in stores for segment in store.segments)
    size = _split_size(options, total)
    for store in stores:
        end = end_of_log(store, options.end_at)
        wanted = row_filter(options, store)
        if options.on_corrupt == "fail":
            _check_gaps(store, end)
        io = options.io if options.io != "auto" else "pread" if store.is_locked() else "mmap"
        shared = bases.get(store.key, {})
        if options.split_mode == "queue":
            splits += _queue_splits(store, end, size, options.max_records_per_partition, io, wanted, shared)
        else:
            chain = options.split_mode == "chain"
            splits += plan_log(store, store.min_offset, end, size, io, wanted, shared, chain=chain)
    return splits


def _split_size(options: Options, total: int) -> int:
    if options.min_partitions is None:
        return options.split_bytes
    return max(1, min(options.split_bytes, total // options.min_partitions))


def _check_gaps(store: Store, end: int) -> None:
    for before, after in itertools.pairwise(store.segments):
        if before.end_offset < after.base_offset < end:
            raise DataLoss(
                f"{after.base_offset - before.end_offset} bytes of the log are missing between {before.path} and "
                f"{after.path}; onCorrupt=skip reads what there is"
            )


def plan_log(
    store: Store,
    start: int,
    end: int,
    split_size: int,
    io: str,
    wanted: RowFilter,
    partition_bases: Mapping[str, int],
    *,
    chain: bool = False,
    tail_size: int = TAIL_SIZE,
) -> list[LogSplit]:
    """Cut the log offsets `[start, end)` of one store at segment borders and about every `split_size`.

    `start` must be where a record begins.
    """
    splits: list[LogSplit] = []
    for segment in store.segments:
        first, last = max(start, segment.base_offset), min(end, segment.end_offset)
        if first >= last:
            continue
        cuts = [
            first,
            *range(first + split_size, min(last, segment.end_offset - tail_size), split_size),
            last,
        ]
        if chain:
            cuts = _at_records(segment, cuts)
        for number, (low, high) in enumerate(itertools.pairwise(cuts)):
            exact = chain or number == 0
            splits.append(
                LogSplit(
                    stamp(), store.broker_name, segment, low, high, exact, end, io, wanted, partition_bases
                )
            )
    return splits


def _at_records(segment: Segment, cuts: list[int]) -> list[int]:
    """Return the same cuts, each moved to where the next record of the chain begins."""
    moved = [cuts[0]]
    base = segment.base_offset
    with (
        open(segment.path, "rb") as opened,
        mmap.mmap(opened.fileno(), segment.size, prot=mmap.PROT_READ) as data,
    ):
        for begins in _chain(data, segment, cuts[0] - base, cuts[-1] - base):
            while len(moved) < len(cuts) - 1 and begins + base >= cuts[len(moved)]:
                moved.append(begins + base)
    return [*sorted(set(moved)), cuts[-1]]


def _chain(data: mmap.mmap, segment: Segment, start: int, end: int) -> Iterator[int]:
    """Where records, or DLedger's entries, begin; in steps, which is close enough for cuts."""
    plan = Plan(Selection(()), batch_rows=256, batch_bytes=_STEP)
    decoder = SegmentDecoder(data, segment.base_offset, start, end, plan, segment.log_format)
    for _ in decoder.steps():
        yield decoder.position


def _partition_bases(stores: tuple[Store, ...]) -> dict[str, dict[str, int]]:
    """For each store, how many queues of each topic the brokers sorted before it have."""
    counted: dict[str, int] = {}
    bases: dict[str, dict[str, int]] = {}
    for store in sorted(stores, key=lambda store: store.key):
        bases[store.key] = dict(counted)
        highest: dict[str, int] = {}
        for queue in store.queues():
            highest[queue.topic] = max(highest.get(queue.topic, 0), queue.queue_id + 1)
        for topic, count in highest.items():
            counted[topic] = counted.get(topic, 0) + count
    return bases


# Which rows


def row_filter(options: Options, store: Store) -> RowFilter:
    """Return the filter that the options ask of one store's records. Raises DataLoss and BadOption."""
    tags = None
    if options.filter_tags.strip() != "*":
        tags = frozenset(tag.strip() for tag in options.filter_tags.split("||") if tag.strip())
    queues = None
    if options.assign is not None:
        queues = {
            topic: frozenset(ids)
            for topic, brokers in options.assign.items()
            for name, ids in brokers.items()
            if store.broker_name in (None, name)
        }
    wanted = RowFilter(
        topics=frozenset(options.topics) if options.topic is not None else None,
        pattern=options.subscribe_pattern,
        queues=queues,
        hide_system=options.subscribe_pattern is not None and not options.include_system_topics,
        since_ms=options.starting_timestamp,
        until_ms=options.ending_timestamp,
        tags=tags,
    )
    return replace(wanted, offsets=_offset_ranges(options, store, wanted))


_Table = Mapping[str, Mapping[str, Mapping[str, int]]]


def _offset_ranges(
    options: Options, store: Store, wanted: RowFilter
) -> dict[tuple[str, int], tuple[int, int]]:
    """Queue offsets [low, high) of the queues for which the options name any."""
    by_time = (options.starting_offsets_by_timestamp, options.ending_offsets_by_timestamp)
    starts = options.starting_offsets if options.starting_timestamp is None else None
    ends = options.ending_offsets if options.ending_timestamp is None else None
    tables: list[_Table] = [table for table in (*by_time, starts, ends) if isinstance(table, Mapping)]
    if not tables:
        return {}
    queues = {(queue.topic, queue.queue_id): queue for queue in store.queues()}
    named = {
        (topic, int(queue_id))
        for table in tables
        for topic, brokers in table.items()
        for name, numbers in brokers.items()
        if store.broker_name in (None, name)
        for queue_id in numbers
        if wanted.matches_queue(topic, int(queue_id))
    }
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for key in sorted(named):
        if key not in queues:
            raise BadOption(
                f"offsets are given for queue {key[1]} of {key[0]}, which {store.roots[0]} does not have"
            )
        ranges[key] = _range_of(options, store, queues[key])
    return ranges


def _range_of(options: Options, store: Store, queue: Queue) -> tuple[int, int]:
    low, high = queue.bounds(store.min_offset)
    where = f"queue {queue.queue_id} of {queue.topic}"
    start = _number(options.starting_offsets_by_timestamp, store, queue)
    if start is not None and options.starting_timestamp is None:
        start = _offset_at_time(store, queue, start)
        if start >= high and options.starting_offsets_by_timestamp_strategy == "error":
            raise DataLoss(
                f"{where} has no message at or after the given time; startingOffsetsByTimestampStrategy=latest would "
                f"start at its end"
            )
    elif options.starting_timestamp is None:
        start = _number(options.starting_offsets, store, queue)
    if start is None or start == EARLIEST:
        start = low
    end = _number(options.ending_offsets_by_timestamp, store, queue)
    if end is not None and options.ending_timestamp is None:
        end = _offset_at_time(store, queue, end)
    elif options.ending_timestamp is None:
        end = _number(options.ending_offsets, store, queue)
    if end is None or end == LATEST:
        end = high
    if options.fail_on_data_loss and (start < low or start > high):
        what = "are gone" if start < low else "do not exist"
        raise DataLoss(
            f"{where} is to be read from offset {start}, but has [{low}, {high}): messages {what}; "
            f"failOnDataLoss=false reads what there is"
        )
    return max(start, low), min(end, high)


def _number(table: object, store: Store, queue: Queue) -> int | None:
    """Return the number that an option's JSON gives for one queue."""
    if not isinstance(table, Mapping):
        return None
    for name, numbers in table.get(queue.topic, {}).items():
        if store.broker_name in (None, name) and str(queue.queue_id) in numbers:
            return int(numbers[str(queue.queue_id)])
    return None


def _offset_at_time(store: Store, queue: Queue, time_ms: int) -> int:
    """Return the first offset of a queue whose message was stored at or after a time; its end if there is none."""
    low, high = queue.bounds(store.min_offset)
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        record = None if entry is None else store.record_at(entry.offset, entry.size)
        if record is None or record.store_timestamp < time_ms:
            low = middle + 1
        else:
            high = middle
    return low


# By queue


def _queue_splits(
    store: Store,
    log_end: int,
    split_size: int,
    records_max: int,
    io: str,
    wanted: RowFilter,
    partition_bases: Mapping[str, int],
) -> Iterator[QueueSplit]:
    bases = [segment.base_offset for segment in store.segments]
    for queue in store.queues():
        if not wanted.matches_queue(queue.topic, queue.queue_id):
            continue
        low, high = wanted.offsets.get((queue.topic, queue.queue_id), queue.bounds(store.min_offset))
        while low < high:
            entries = queue.entries(low, min(high, low + records_max, low + _STEP * 4))
            sizes = entries["size"].astype(np.int64)
            real = (sizes > 0) & (sizes < 0x7FFFFFFF) & (entries["offset"] >= 0)
            count = int(np.searchsorted(np.cumsum(np.where(real, sizes, 0)), split_size, side="left")) + 1
            count = min(count, len(entries))
            taken = real[:count]
            if taken.any() or not sizes[:count].all():
                segments: tuple[Segment, ...] = ()
                if taken.any():
                    offsets = entries["offset"][:count].astype(np.int64)[taken]
                    first = max(bisect.bisect_right(bases, int(offsets.min())) - 1, 0)
                    segments = store.segments[first : bisect.bisect_right(bases, int(offsets.max()))]
                yield QueueSplit(
                    stamp(),
                    store.broker_name,
                    queue,
                    low,
                    low + count,
                    segments,
                    log_end,
                    io,
                    wanted,
                    partition_bases,
                )
            low += count
