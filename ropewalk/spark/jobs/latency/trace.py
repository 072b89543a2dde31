"""Measure how long messages lay in the store before a group began on them: `latency --group --trace-topic`.

Clients that trace write to a topic what they did with each message. Of every message that a consumer hands to its
listener there is an entry, in fields with 0x01 between them, and closed by 0x02:

    SubBefore | time in ms | region | group | request | id of the message | tries before | keys

The id is the message's UNIQ_KEY, or where it has none its offset message id. Messages and entries are spread over the
workers by it and meet there. Of a message that was handed over several times the first one counts.

Two clocks take part, the broker's and the consumer's: messages that were begun before they were stored are counted
apart, not cut off. Traces are sent as they come and may be lost, so a message without an entry says little.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.spark.jobs.common.tasks import Key, Tasks
from ropewalk.spark.jobs.export.sources import Source
from ropewalk.spark.jobs.latency.group import BadGroup
from ropewalk.spark.jobs.latency.job import Windows, add_delays, measure_delays

MESSAGE_COLUMNS: Final = ("topic", "uniqKey", "msgId", "storeTimestamp")
TRACE_COLUMNS: Final = ("topic", "body", "storeTimestamp")

_BUCKETS: Final = 64
_BEGUN: Final = b"SubBefore"
_FIELDS: Final = 8


@dataclass(slots=True)
class Traced:
    """The counts of messages and traces that matched."""

    messages: int = 0
    """That were read."""
    begun: int = 0
    """Of these, that the group had begun on by its traces."""
    others: int = 0
    """Messages that the group's traces tell of and that were not among those read."""


@dataclass(frozen=True, slots=True)
class _Work:
    source: Source
    range_: Any
    group: str | None
    """The key whose entries are looked for in traces; None for a range of messages."""


def trace_latency(
    tasks: Tasks, messages: Source, traces: Source, group: str, *, window_ms: int = 60_000
) -> tuple[Windows, Traced]:
    """Measure the messages and traces that there are now. The sources give `MESSAGE_COLUMNS` and `TRACE_COLUMNS`.

    Raises `TaskFailed`, and `BadGroup` where no trace tells of the group.
    """
    work: list[_Work] = []
    for source, whose in ((messages, None), (traces, group)):
        planned = source.plan(tasks, None, None)
        if planned is not None:
            work += [_Work(source, range_, whose) for range_ in planned.ranges]
    total: Windows = {}
    done = Traced()
    for found, traced in tasks.shuffle(key_rows, partial(join_traces, window_ms), work, "measuring"):
        add_delays(total, found)
        done.messages += traced.messages
        done.begun += traced.begun
        done.others += traced.others
    if not done.begun and not done.others:
        raise BadGroup(
            f"no trace tells of group {group}: its consumers do not trace, or to another topic, or its name is another"
        )
    return total, done


def key_rows(work: _Work) -> Iterator[tuple[Key, bytes]]:
    """Key the messages or the entries of a range by message id. Runs in a task."""
    for batch in work.source.read(work.range_):
        rows = _messages(batch) if work.group is None else _begun(batch, work.group.encode())
        buckets: dict[int, list[Any]] = {}
        for row in rows:
            buckets.setdefault(zlib.crc32(row[0]) % _BUCKETS, []).append(row)
        for bucket, found in buckets.items():
            yield (bucket,), pickle.dumps((work.group is None, found))


def _messages(batch: pa.RecordBatch) -> Iterable[tuple[bytes, str, int]]:
    """Id, topic and time of storage of each message."""
    ids = pc.coalesce(batch.column("uniqKey"), batch.column("msgId")).cast(pa.binary()).to_pylist()
    stored = pc.fill_null(batch.column("storeTimestamp").cast(pa.int64()), 0).to_numpy() // 1000
    return zip(ids, batch.column("topic").to_pylist(), stored.tolist(), strict=True)


def _begun(batch: pa.RecordBatch, group: bytes) -> Iterator[tuple[bytes, int]]:
    """Id and time of each entry that tells of the group. What is no entry is somebody else's, and passed over."""
    for body in batch.column("body").to_pylist():
        for entry in (body or b"").split(b"\2"):
            fields = entry.split(b"\1")
            if (
                len(fields) >= _FIELDS
                and fields[0] == _BEGUN
                and fields[3] == group
                and fields[1].isdigit()
                and len(fields[1]) < 19
            ):
                yield fields[5], int(fields[1])


def join_traces(window_ms: int, values: tuple[Key, list[bytes]]) -> tuple[Windows, Traced]:
    """Join the messages of some ids with their traces. Runs in a task."""
    stored: dict[bytes, tuple[str, int]] = {}
    begun: dict[bytes, int] = {}
    for value in values[1]:
        is_messages, rows = pickle.loads(value)
        for row in rows:
            if is_messages:
                stored[row[0]] = row[1:]
            else:
                begun[row[0]] = min(row[1], begun.get(row[0], row[1]))
    both = [(*stored[name], at) for name, at in begun.items() if name in stored]
    found: Windows = {}
    if both:
        topics, came, went = zip(*both, strict=True)
        at = np.array(came, np.int64)
        found = measure_delays(pa.array(topics, pa.string()), np.array(went, np.int64) - at, at, window_ms)
    return found, Traced(len(stored), len(both), len(begun) - len(both))
