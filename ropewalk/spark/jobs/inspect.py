"""Run the small jobs: the newest rows of a source, and the offsets of its queues.

They look at a few places only, so they need no Spark where files and brokers can be reached from here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ropewalk.errors import RopewalkError
from ropewalk.printable import printable
from ropewalk.spark.jobs.common.report import Cell, Report, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.lake import read_lake
from ropewalk.spark.jobs.export.sources import LiveSource, Source
from ropewalk.spark.live.cluster import Cluster
from ropewalk.spark.live.offsets import Position
from ropewalk.spark.live.plan import chosen_queues
from ropewalk.spark.rows.schema import COLUMNS, PRESETS
from ropewalk.spark.store.files import Queue, Store, open_stores

TAIL_COLUMNS: Final = (
    "storeTimestamp", "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "body"
)  # fmt: skip
_BODY_MAX: Final = 60


class CannotInspect(RopewalkError):
    """A checkpoint, lake or source with nothing to show; the text says why."""


# -- tail --------------------------------------------------------------------------------------------


def newest(tasks: Tasks, source: Source, count: int) -> list[dict[str, Any]]:
    """Return the newest rows of a source, oldest of them first."""
    planned = source.plan(tasks, None, None)
    ranges = planned.ranges if planned is not None else []
    if isinstance(source, LiveSource):
        ranges = [[*range_[:3], max(range_[3], range_[4] - count), range_[4]] for range_ in ranges]
        tables = tasks.run(_LastRows(source, count), ranges, "reading")
    else:
        tables, found = [], 0
        for range_ in reversed(ranges):
            tables += tasks.run(_LastRows(source, count - found), [range_], "reading")
            found += len(tables[-1])
            if found >= count:
                break
        tables.reverse()
    rows = [row for table in tables for row in table]
    rows.sort(key=lambda row: row["storeTimestamp"])
    return rows[-count:] if count else []


class _LastRows:
    """The last rows of a range: a function that travels to a task."""

    def __init__(self, source: Source, count: int) -> None:
        self._source = source
        self._count = count

    def __call__(self, range_: Any) -> list[dict[str, Any]]:
        kept: list[Any] = []
        for batch in self._source.read(range_):
            kept = [*kept[-1:], batch] if batch.num_rows < self._count else [batch]
            while sum(each.num_rows for each in kept[1:]) >= self._count:
                kept.pop(0)
        rows: list[dict[str, Any]] = pa.Table.from_batches(kept).to_pylist() if kept else []
        return rows[-self._count :]


def tail_report(what: str, rows: Sequence[dict[str, Any]]) -> Report:
    """Report rows as a table."""
    cells: list[tuple[Cell, ...]] = [tuple(_cell(row[name]) for name in TAIL_COLUMNS) for row in rows]
    table = Table("messages", TAIL_COLUMNS, cells)
    return Report("tail", f"The newest {len(rows)} messages of {what}", {"what": what}, [table])


def _cell(value: Any) -> Cell:
    if isinstance(value, bytes):
        text = printable(value.decode("utf-8", "backslashreplace"))
        return text if len(text) <= _BODY_MAX else f"{text[: _BODY_MAX - 1]}…"
    if hasattr(value, "isoformat"):
        return str(value.isoformat(timespec="milliseconds")).replace("+00:00", "Z")
    return value if isinstance(value, (int, float)) or value is None else str(value)


# -- offsets -----------------------------------------------------------------------------------------


def live_offsets(source: LiveSource, at_ms: int | None) -> list[tuple[Cell, ...]]:
    """Return topic, broker, queue, first and next offset of each queue of live topics, and the offset of a time."""
    options = source.parsed()
    cluster = Cluster(options)
    try:
        cluster.refresh()
        keys = chosen_queues(options, cluster.queues())
        bounds = cluster.wait_for_bounds(keys)
        found = cluster.offsets_at(dict.fromkeys(keys, at_ms)) if at_ms is not None else {}
        return [
            (*key, have.low, have.high, max(min(found[key], have.high), have.low) if key in found else None)
            for key, have in sorted(bounds.items())
        ]
    finally:
        cluster.close()


def store_offsets(work: tuple[str, tuple[str, ...], int | None]) -> list[tuple[Cell, ...]]:
    """Return topic, broker, queue, first and next offset of each queue of a store, and the offset of a time."""
    path, topics, at_ms = work
    rows: list[tuple[Cell, ...]] = []
    for store in open_stores(path):
        for queue in store.queues():
            if topics and queue.topic not in topics:
                continue
            low, high = queue.bounds(store.min_offset)
            at = None if at_ms is None else _at_time(store, queue, low, high, at_ms)
            rows.append((queue.topic, store.key, queue.queue_id, low, high, at))
    return sorted(rows, key=lambda row: (str(row[0]), str(row[1]), int(row[2] or 0)))


def _at_time(store: Store, queue: Queue, low: int, high: int, at_ms: int) -> int:
    """Return the first number whose record was stored at or after a time, or the one behind the last."""
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        record = store.record_at(entry.offset, entry.size) if entry is not None else None
        if record is not None and record.store_timestamp < at_ms:
            low = middle + 1
        else:
            high = middle
    return low


def checkpoint_offsets(path: str) -> list[tuple[Cell, ...]]:
    """Return the offsets in the checkpoint of a Spark query over live topics. Blocks; raises `CannotInspect`."""
    directory = Path(path, "offsets")
    try:
        numbers = [int(each.name) for each in directory.iterdir() if each.name.isdigit()]
    except OSError as exc:
        raise CannotInspect(
            f"{path} is no checkpoint of a Spark query: {directory} cannot be listed ({exc.strerror})"
        ) from exc
    if not numbers:
        raise CannotInspect(f"the query of {path} has not planned a batch yet")
    lines = (directory / str(max(numbers))).read_text().splitlines()
    # A version, what Spark itself remembers, and then one line for each source.
    if len(lines) < 3:
        raise CannotInspect(f"{directory / str(max(numbers))} is cut short")
    position = Position.from_json(json.loads(lines[2]))
    return [(*key, None, number, None) for key, number in sorted(position.queues.items())]


def lake_offsets(path: str) -> list[tuple[Cell, ...]]:
    """Return the offsets that a lake has reached. Blocks; raises `CannotInspect`."""
    position = read_lake(path).position
    if position is None:
        raise CannotInspect(f"{path} is no lake, or holds no batch yet")
    if "log" in position:
        return [("", "", None, None, position["log"], None)]
    return [(*key, None, number, None) for key, number in sorted(Position.from_json(position).queues.items())]


def offsets_report(what: str, rows: Sequence[tuple[Cell, ...]], at: str | None) -> Report:
    """Report queues as a table, without empty columns."""
    columns = ("topic", "broker", "queue", "first", "next", f"at {at}" if at else "at")
    used = [n for n in range(len(columns)) if any(row[n] is not None and row[n] != "" for row in rows)]
    table = Table("queues", tuple(columns[n] for n in used), [tuple(row[n] for n in used) for row in rows])
    return Report("offsets", f"Offsets of {what}", {"what": what, "at": at}, [table])


# -- schema ------------------------------------------------------------------------------------------


def schema_report() -> Report:
    """Report the columns that a read can have."""
    rows = [
        (name, column.type, ", ".join(preset for preset, names in PRESETS.items() if name in names))
        for name, column in COLUMNS.items()
    ]
    title = 'Columns of spark.read.format("ropewalk")'
    return Report("schema", title, {}, [Table("columns", ("column", "type", "presets"), rows)])
