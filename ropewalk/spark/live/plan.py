"""Plan a query of live topics from its options: which topics, from where to where, in which pieces.

Pure: what brokers have comes in as `Bounds`, what they answered to questions about times as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ropewalk.spark.live.offsets import Bounds, QueueKey, Queues, Range
from ropewalk.spark.options import EARLIEST, LATEST, BadOption, Options
from ropewalk.spark.rows.row_filter import is_internal_topic

__all__ = ["Times", "chosen_queues", "ending", "split", "starting", "times_of", "topic_filter"]

PIECE_MIN: Final = 1000
"""Offsets. Below this a task costs more than it reads."""

Times = Mapping[QueueKey, int]
"""A time in ms for each queue."""


def topic_filter(options: Options) -> Callable[[str], bool]:
    """Return a predicate for the topics that the options ask for."""
    if options.assign is not None:
        return set(options.assign).__contains__
    if options.subscribe_pattern is None:
        return set(options.topics).__contains__
    pattern = re.compile(options.subscribe_pattern)

    def matches(topic: str) -> bool:
        if is_internal_topic(topic) and not options.include_system_topics:
            return False
        return pattern.fullmatch(topic) is not None

    return matches


def chosen_queues(options: Options, queues: Iterable[QueueKey]) -> list[QueueKey]:
    """Return the readable queues that were asked for. Raises BadOption for an assigned one that is not there."""
    present = sorted(queues)
    if options.assign is None:
        return present
    known = set(present)
    wanted = [
        QueueKey(topic, broker, queue_id)
        for topic, brokers in sorted(options.assign.items())
        for broker, queue_ids in sorted(brokers.items())
        for queue_id in queue_ids
    ]
    missing = [key for key in wanted if key not in known]
    if missing:
        of_topic = [str(key) for key in present if key.topic == missing[0].topic]
        raise BadOption(
            f"option assign names {missing[0]}, which does not exist; there "
            + (f"are {', '.join(of_topic)}" if of_topic else "is no such topic")
        )
    return wanted


# -- from where to where ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RangeEnd:
    """How one end of a range is given; the first that is set counts."""

    name: str
    timestamp: int | None
    by_timestamp: Mapping[str, Mapping[str, Mapping[str, int]]] | None
    offsets: int | Mapping[str, Mapping[str, Mapping[str, int]]]


def _start(options: Options, *, stream: bool) -> _RangeEnd:
    offsets = options.starting_offsets
    if offsets is None:
        offsets = LATEST if stream else EARLIEST
    return _RangeEnd("starting", options.starting_timestamp, options.starting_offsets_by_timestamp, offsets)


def _end(options: Options) -> _RangeEnd:
    offsets = LATEST if options.ending_offsets is None else options.ending_offsets
    return _RangeEnd("ending", options.ending_timestamp, options.ending_offsets_by_timestamp, offsets)


def times_of(options: Options, queues: Iterable[QueueKey], *, end: bool = False) -> dict[QueueKey, int]:
    """Return the times that brokers have to be asked about, for each queue whose start (or end) is a time."""
    bound = _end(options) if end else _start(options, stream=False)
    if bound.timestamp is not None:
        return dict.fromkeys(queues, bound.timestamp)
    if bound.by_timestamp is None:
        return {}
    named = _named(f"{bound.name}OffsetsByTimestamp", bound.by_timestamp, queues)
    return dict(named)


def starting(
    options: Options, bounds: Mapping[QueueKey, Bounds], found: Queues, *, stream: bool
) -> dict[QueueKey, int]:
    """Return the start of each queue. `found` are the brokers' answers about the times of `times_of`.

    Raises BadOption where a time has no message at or after it, unless the strategy says to take the end; a queue
    without any message has no wrong times. An offset that was given is not moved: whether it can be read is judged
    with everybody else's (`plan_ranges`).
    """
    bound = _start(options, stream=stream)
    if bound.timestamp is not None or bound.by_timestamp is not None:
        late = [
            key
            for key, offset in found.items()
            if offset >= bounds[key].high and bounds[key].high > bounds[key].low
        ]
        if late and options.starting_offsets_by_timestamp_strategy == "error":
            raise BadOption(
                f"{late[0]} has no message at or after the starting time"
                + (f" (and so {len(late) - 1} other queues)" if len(late) > 1 else "")
                + "; startingOffsetsByTimestampStrategy=latest begins such queues at their end"
            )
        # A broker answers 0 for a queue whose first messages are gone.
        return {key: max(min(found[key], bounds[key].high), bounds[key].low) for key in bounds}
    return _resolved("startingOffsets", bound.offsets, bounds)


def ending(options: Options, bounds: Mapping[QueueKey, Bounds], found: Queues) -> dict[QueueKey, int]:
    """Return the exclusive end of each queue; a time with no message behind it is the end of the queue."""
    bound = _end(options)
    if bound.timestamp is not None or bound.by_timestamp is not None:
        return {key: max(min(found[key], bounds[key].high), bounds[key].low) for key in bounds}
    return _resolved("endingOffsets", bound.offsets, bounds)


def _resolved(
    option: str,
    offsets: int | Mapping[str, Mapping[str, Mapping[str, int]]],
    bounds: Mapping[QueueKey, Bounds],
) -> dict[QueueKey, int]:
    if isinstance(offsets, int):
        return {key: have.low if offsets == EARLIEST else have.high for key, have in bounds.items()}
    result: dict[QueueKey, int] = {}
    for key, number in _named(option, offsets, bounds).items():
        have = bounds[key]
        result[key] = have.low if number == EARLIEST else have.high if number == LATEST else number
    return result


def _named(
    option: str, nested: Mapping[str, Mapping[str, Mapping[str, int]]], queues: Iterable[QueueKey]
) -> dict[QueueKey, int]:
    """Return the number of each queue. Exactly the queues that are read must be named, as with Kafka's source."""
    present = set(queues)
    given = {
        QueueKey(topic, broker, int(queue_id)): number
        for topic, brokers in nested.items()
        for broker, numbers in brokers.items()
        for queue_id, number in numbers.items()
    }
    strange = sorted(given.keys() - present)
    if strange:
        raise BadOption(f"option {option} names {strange[0]}, which is not among the queues that are read")
    missing = sorted(present - given.keys())
    if missing:
        raise BadOption(f"option {option} says nothing about {missing[0]}: name every queue that is read")
    return {key: given[key] for key in sorted(present)}


# -- in pieces --------------------------------------------------------------------------------------------


def split(ranges: Iterable[Range], *, max_records: int, min_partitions: int | None) -> list[Range]:
    """Split ranges into pieces of at most `max_records` offsets; sorted, and the same every time.

    What is missing to `min_partitions` comes from the largest pieces, but none gets smaller than `PIECE_MIN`.
    """
    whole = sorted(range_ for range_ in ranges if range_.size > 0)
    counts = [-(-range_.size // max_records) for range_ in whole]
    wanted = min_partitions or 0
    while sum(counts) < wanted:
        # The range whose pieces are the largest gets one more.
        at = max(range(len(whole)), key=lambda n: whole[n].size / counts[n], default=-1)
        if at < 0 or whole[at].size // (counts[at] + 1) < PIECE_MIN:
            break
        counts[at] += 1
    return [piece for range_, count in zip(whole, counts, strict=True) for piece in _cut(range_, count)]


def _cut(range_: Range, count: int) -> list[Range]:
    cuts = [range_.low + range_.size * n // count for n in range(count + 1)]
    return [Range(range_.key, low, high) for low, high in pairwise(cuts) if high > low]
