"""Sources of an export: a store's directory, or live topics. Each plans ranges, and reads a range in a task.

A range is a small piece of JSON that names its rows for ever: the same range read again gives the same rows, which is
what makes a batch repeatable. Positions are JSON too, and lie in the lake's manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from ropewalk.errors import CorruptRecord, RopewalkError
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.lake_writer import TIME
from ropewalk.spark.jobs.records.log_files import SegmentFile, StoreFiles, open_store
from ropewalk.spark.jobs.records.walk import PIECE_SIZE, walk
from ropewalk.spark.live.cluster import Cluster
from ropewalk.spark.live.last_read import compare_last_read, stored_before
from ropewalk.spark.live.offsets import (
    Bounds,
    DataLoss,
    Loss,
    Position,
    QueueKey,
    Range,
    advance,
    begin,
    check_belongs,
    enforce_losses,
    plan_ranges,
    share_limit,
)
from ropewalk.spark.live.plan import chosen_queues, ending, split, starting, times_of, topic_filter
from ropewalk.spark.live.read import Task, read_task
from ropewalk.spark.options import Options, parse_options
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import Ended, SegmentDecoder
from ropewalk.spark.rows.row_filter import RowFilter
from ropewalk.spark.rows.schema import Selection, chosen_columns
from ropewalk.spark.store.files import broker_name_of, open_stores
from ropewalk.spark.store.safe_end import safe_end
from ropewalk.spark.store.tails import tail_of

_OVERREAD: Final = 1 << 20
_WINDOW: Final = 16 << 20
_PIECES_AT_ONCE: Final = 16


class DamagedLog(RopewalkError):
    """A log with bytes that are no records, where no option allows to leave them out."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The next batch, before it has a number."""

    start: Any
    end: Any
    ranges: list[Any]
    lost: int = 0


class Source(Protocol):
    """A source of rows for an export."""

    def identity(self) -> dict[str, Any]:
        """Return the identity of this source: two exports of different identity do not share a lake."""
        ...

    def plan(self, tasks: Tasks, position: Any, limit: int | None) -> Planned | None:
        """Plan the batch behind a position, of about `limit` messages but at least one; None if there is nothing."""
        ...

    def read(self, range_: Any) -> Iterator[Any]:
        """Yield the rows of a range as record batches. Runs in a task."""
        ...

    def name(self, range_: Any) -> tuple[str, str]:
        """Return the broker of a range, and a name that no other range has."""
        ...


def selection_for(columns: tuple[str, ...], preset: str) -> Selection:
    """Return the columns of a lake; topic and store time are always among them, because files are cut by them."""
    chosen = chosen_columns(preset, columns)
    missing = tuple(name for name in ("topic", TIME) if name not in chosen)
    return replace(chosen, names=(*chosen.names, *missing))


# -- a store -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A store's directory. A position is a log offset, and what is in front of it: `{"log": 4711, "tail": "9f…"}`."""

    path: str
    topics: tuple[str, ...]
    """All but the system's own if empty."""
    selection: Selection
    broker_name: str
    on_corrupt: str = "fail"
    since_ms: int | None = None
    until_ms: int | None = None
    range_bytes: int = PIECE_SIZE
    check_crc: bool = True
    for_files: bool = False
    """Give rows as a writer of files wants them: by topic and hour, their bodies not copied."""

    def identity(self) -> dict[str, Any]:
        return {
            "source": "store", "broker": self.broker_name, "topics": sorted(self.topics),
            "columns": list(self.selection.names), "since": self.since_ms, "until": self.until_ms,
        }  # fmt: skip

    def plan(self, tasks: Tasks, position: Any, limit: int | None) -> Planned | None:
        store, end = tasks.run_one(_open_for_export, (self.path, position), "listing")
        start = store.min_offset if position is None else int(position["log"])
        if start < store.min_offset:
            raise DataLoss(
                f"this job has come to log offset {start}, and {self.path} begins at {store.min_offset} now: "
                f"retention took {store.min_offset - start} bytes before they were read. Begin anew, with a lake or a "
                f"journal of its own"
            )
        if start > store.end_offset:
            raise DataLoss(
                f"this job has come to log offset {start}, and the files of {self.path} end at {store.end_offset} now: "
                f"its tail was lost, or it is another log. Begin anew, with a lake or a journal of its own"
            )
        if end is not None and end <= start:
            return None
        rest = replace(store, min_offset=start)
        pieces_max = _PIECES_AT_ONCE if limit is not None else None
        while True:
            found = walk(tasks, rest, piece_size=self.range_bytes, pieces_max=pieces_max)
            # A small batch out of a large log: its next few pieces are enough, unless they hold too little.
            if pieces_max is None or found.records > (limit or 0) or pieces_max > self._pieces(rest):
                break
            pieces_max *= 4
        stop = found.end if end is None else min(found.end, end)
        lost = [stretch for stretch in found.lost if stretch[0] < stop]
        if lost and self.on_corrupt == "fail":
            raise DamagedLog(
                f"{self.path} is damaged from log offset {lost[0][0]} to {lost[0][1]}: mend it (`ropewalk pipeline "
                f"audit --repair`), or leave such places out with --on-corrupt skip"
            )
        ranges: list[Any] = []
        count = 0
        for stretch in found.stretches:
            if stretch.start >= stop or (limit is not None and ranges and count + stretch.records > limit):
                break
            ranges.append([stretch.start, min(stretch.stop, stop)])
            count += stretch.records
        if not ranges:
            return None
        # A range ends where the next begins, which is known exactly; the last ends where the walk did.
        after = [s.start for s in found.stretches if s.start > ranges[-1][0]]
        behind = tasks.run_one(_position_at, (self.path, min(after[0] if after else stop, stop)), "listing")
        return Planned({"log": start}, behind, ranges)

    def _pieces(self, store: StoreFiles) -> int:
        return (store.end_offset - store.min_offset) // self.range_bytes + len(store.segments) + 1

    def name(self, range_: Any) -> tuple[str, str]:
        return self.broker_name, f"s={range_[0]:020d}-{range_[1]:020d}"

    def read(self, range_: Any) -> Iterator[Any]:
        start, stop = range_
        store = open_store(self.path)
        segment = store.segment(start)
        if segment is None:
            raise DataLoss(f"{self.path} no longer holds log offset {start}: retention took its segment")
        wanted = RowFilter(
            topics=frozenset(self.topics) if self.topics else None,
            hide_system=not self.topics,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
        )
        plan = Plan(
            self.selection,
            self.broker_name,
            wanted,
            on_corrupt=self.on_corrupt,
            check_crc=self.check_crc,
            grouped=self.for_files,
            body_views=self.for_files,
        )
        yield from _decoded(store, segment, start, stop, plan)


def readable_end(path: str) -> int:
    """Return the log offset up to which a store can be read now. Raises `UnreadableStore`. Blocks."""
    store, end = _open_for_export((path, None))
    return store.end_offset if end is None else end


def _open_for_export(work: tuple[str, Any]) -> tuple[StoreFiles, int | None]:
    """Return the store, and where reading has to stop; None if the end of its records is the end.

    Raises DataLoss where the log in front of the position is not the one that was read.
    """
    path, position = work
    store = open_store(path)
    if position is not None and "tail" in position:
        found = tail_of(open_stores(path)[0], int(position["log"]))
        if found not in (None, position["tail"]):
            raise DataLoss(
                f"{path} holds other records before log offset {position['log']} than the ones that this job read "
                f"there: it is another log, or its tail was cut and written anew. Begin anew, with a lake or a journal "
                f"of its own"
            )
    return store, None if store.is_clean else safe_end(open_stores(path)[0])


def _position_at(work: tuple[str, int]) -> dict[str, Any]:
    path, offset = work
    tail = tail_of(open_stores(path)[0], offset)
    return {"log": offset} | ({"tail": tail} if tail is not None else {})


def _decoded(store: StoreFiles, segment: SegmentFile, start: int, stop: int, plan: Plan) -> Iterator[Any]:
    """Yield the rows of the records that begin in [start, stop)."""
    read, end = store.reader(segment), segment.base + segment.size
    # A mapping takes no memory, whatever its size.
    window = segment.size if store.is_clean else _WINDOW
    size = min(window, stop - start + _OVERREAD)
    while True:
        base = store.page_start(segment, start)
        data = read(base, min(start - base + size, end - base))
        decoder = SegmentDecoder(data, base, start - base, stop - base, plan, "plain", end - base)
        for piece in decoder.pieces():
            for place in piece.damage:
                if plan.on_corrupt == "fail":
                    raise CorruptRecord(f"{segment.path}: {place}")
            if piece.batch is not None:
                yield piece.batch
        if decoder.ended is not Ended.SHORT:
            break
        start = base + decoder.position
        # The record that did not fit may be larger than any window.
        size = max(min(window, stop - start + _OVERREAD), decoder.needed())
    if base + decoder.position < stop and decoder.ended is not Ended.BLANK and plan.on_corrupt == "fail":
        raise DataLoss(
            f"{segment.path} holds no record at log offset {base + decoder.position}, and there were records up to "
            f"{stop} when this part of it was planned: somebody cut the log, or it is damaged. Give it back what it "
            f"had (`ropewalk pipeline audit --repair`), or leave such places out with --on-corrupt skip"
        )


# -- live topics -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Topics of running brokers. A position is what Spark would keep of a query over them."""

    options: Mapping[str, str]
    selection: Selection
    fixed: bool = False
    """Whether the options also say where to stop: then there is one answer, whenever it is asked for."""
    range_messages: int = 1_000_000

    def parsed(self) -> Options:
        return parse_options(self.options, "read")

    def identity(self) -> dict[str, Any]:
        named = {key: value for key, value in sorted(self.options.items()) if key in _MATTERS}
        return {"source": "live", "columns": list(self.selection.names), **named}

    def plan(self, tasks: Tasks, position: Any, limit: int | None) -> Planned | None:
        (planned,) = tasks.run(_plan_live, [(self, position, limit)], "asking the brokers")
        return planned

    def name(self, range_: Any) -> tuple[str, str]:
        _topic, broker, queue_id, low, high = range_
        return broker, f"q={queue_id}-{low:020d}-{high:020d}"

    def read(self, range_: Any) -> Iterator[Any]:
        topic, broker, queue_id, low, high = range_
        options = self.parsed()
        key = QueueKey(topic, broker, queue_id)
        cluster = Cluster(options)
        try:
            cluster.refresh()
            address = cluster.member(key)[0]
        finally:
            cluster.close()
        yield from read_task(Task(key, low, high, address), options, self.selection)


_MATTERS: Final = frozenset(
    {"topic", "subscribePattern", "filterTags", "startingTimestamp", "endingTimestamp"}
)


def _plan_live(work: tuple[LiveSource, Any, int | None]) -> Planned | None:
    source, position, limit = work
    options = source.parsed()
    cluster = Cluster(options)
    try:
        cluster.refresh()
        missing = cluster.missing_topics()
        if missing:
            raise (
                DataLoss(
                    f"topic {missing[0]} does not exist any more; this job has come to {_came_to(position)}"
                )
                if position
                else NoTopic(f"topic {missing[0]} does not exist: a topic is created by its first message")
            )
        keys = chosen_queues(options, cluster.queues())
        bounds = cluster.wait_for_bounds(keys)
        if position is None:
            before = Position({})
            start = starting(options, bounds, cluster.offsets_at(times_of(options, keys)), stream=False)
        else:
            before = Position.from_json(position)
            check_belongs(before, topic_filter(options), cluster.cluster_name)
            _check_losses(before, bounds, cluster, fail=options.fail_on_data_loss)
            start = begin(before.queues, bounds)
        if source.fixed:
            stops = ending(options, bounds, cluster.offsets_at(times_of(options, keys, end=True)))
            end = {key: max(stops.get(key, low), low) for key, low in start.items()}
        else:
            end = advance(start, bounds)
        if limit is not None:
            end = share_limit(start, end, limit)
        ranges, losses = plan_ranges(start, end, bounds)
        lost = enforce_losses(losses, fail=options.fail_on_data_loss)
        if not ranges and not lost and position is not None:
            return None
        pieces: list[Range] = split(ranges, max_records=source.range_messages, min_partitions=None)
        if not pieces:
            return None
        name = cluster.cluster_name
        return Planned(
            Position(start, name, last_ms=before.last_ms).to_json(),
            Position(end, name, last_ms=stored_before(cluster, end, bounds, before)).to_json(),
            [[*piece.key, piece.low, piece.high] for piece in pieces],
            lost,
        )
    finally:
        cluster.close()


def _came_to(position: Any) -> str:
    queues = Position.from_json(position).queues
    return ", ".join(f"offset {number} of {key}" for key, number in sorted(queues.items())[:5])


class NoTopic(RopewalkError):
    """The topic that was named does not exist."""


def _check_losses(
    before: Position, bounds: Mapping[QueueKey, Bounds], cluster: Cluster, *, fail: bool
) -> None:
    """Judge what a plan of ranges does not notice: queues that are gone, and other messages in front of a position."""
    losses = [
        Loss(key, 0, f"this job has come to offset {number}, and {cluster.absence_of(key)}")
        for key, number in sorted(before.queues.items())
        if key not in bounds
    ]
    losses += compare_last_read(cluster, before, before.queues, bounds)
    enforce_losses(losses, fail=fail)


def default_broker_name(path: str) -> str:
    """Return the broker name of a store's directory: its own, as live rows carry it, else the directory's name."""
    root = Path(path).resolve()
    return broker_name_of(root) or root.name
