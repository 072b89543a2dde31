"""Spark's readers of live topics: a batch reader, and a stream reader with limits and checkpoints.

The driver looks at the cluster (`cluster`), plans (`plan`, `offsets`) and hands out `Task`s; workers
carry them out (`read`). Spark makes these objects in several processes: a reader that plans is not the one whose
`read` runs, so nothing travels but the partitions and what `__init__` was given.

Of the stream protocol it matters that `initialOffset` is called more than once, that `commit` comes one batch late and
never for the last batch of a run, and that `stop` does not come at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ropewalk.spark.live.cluster import BoundsAnswer, Cluster, check_live_options
from ropewalk.spark.live.offsets import (
    Bounds,
    CheckpointMismatch,
    Loss,
    Position,
    QueueKey,
    Queues,
    Range,
    advance,
    backlog,
    batch_start,
    begin,
    check_belongs,
    clamp_to_target,
    enforce_losses,
    plan_ranges,
    reused_offsets,
    share_limit,
)
from ropewalk.spark.live.plan import chosen_queues, ending, split, starting, times_of, topic_filter
from ropewalk.spark.live.read import Task, read_task
from ropewalk.spark.options import BadOption, Options
from ropewalk.spark.rows.schema import Selection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LivePartition", "LiveReader", "LiveStreamReader"]

SIZE_GUESS = 1024.0
"""Bytes of a message, before one was seen."""

log = structlog.get_logger("ropewalk.spark")


class LivePartition(InputPartition):
    """A task on its way to a worker."""

    def __init__(self, task: Task) -> None:
        super().__init__(None)
        self.task = task


class LiveReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: Options, selection: Selection) -> None:
        check_live_options(options)
        self._options = options
        self._selection = selection

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the whole read against what the brokers have now. Empty where there is nothing."""
        options = self._options
        cluster = Cluster(options)
        try:
            cluster.refresh()
            missing = cluster.missing_topics()
            if missing:
                raise BadOption(
                    f"topic {missing[0]} does not exist"
                    + (f" (and {len(missing) - 1} others)" if len(missing) > 1 else "")
                )
            keys = chosen_queues(options, cluster.queues())
            bounds = cluster.wait_for_bounds(keys)
            found = cluster.offsets_at(times_of(options, keys))
            start = starting(options, bounds, found, stream=False)
            found = cluster.offsets_at(times_of(options, keys, end=True))
            end = ending(options, bounds, found)
            # An end before the start is an empty read of that queue, not a loss: both were chosen freely.
            end = {key: max(end[key], start[key]) for key in end}
            ranges, losses = plan_ranges(start, end, bounds)
            lost = enforce_losses(losses, fail=options.fail_on_data_loss)
            if lost:
                log.warning("messages are not there any more and are passed over", count=lost)
            return [LivePartition(task) for task in tasks_of(ranges, options, cluster)]
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on a worker. Spark sends an `InputPartition(None)` where `partitions` was empty."""
        if not isinstance(partition, LivePartition):
            return iter(())
        return read_task(partition.task, self._options, self._selection)


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read."""

    def __init__(
        self,
        options: Options,
        selection: Selection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        check_live_options(options)
        self._options = options
        self._selection = selection
        self._monotonic = monotonic
        self._driver: _StreamRun | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}  # sockets do not travel

    @property
    def driver(self) -> _StreamRun:
        if self._driver is None:
            cluster = Cluster(self._options, monotonic=self._monotonic)
            self._driver = _StreamRun(self._options, cluster, self._monotonic)
        return self._driver

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        return self.driver.initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            size = self._options.max_bytes_per_trigger
        position = Position.from_json(start)
        end = self.driver.latest(position, rows, size, all_of_it=isinstance(limit, ReadAllAvailable))
        return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        newest = self.driver.newest
        if newest is None:
            return None
        document = newest.to_json()
        if self.driver.lost:
            document["lost"] = self.driver.lost
        return document

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.pin_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        tasks = self.driver.tasks(Position.from_json(start), Position.from_json(end))
        return [LivePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LivePartition):
            return iter(())
        return read_task(partition.task, self._options, self._selection)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.commit_offsets and self._options.group_id is not None:
            self.driver.cluster.refresh()
            self.driver.cluster.commit(self._options.group_id, Position.from_json(end).queues)

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.cluster.close()


class _StreamRun:
    """The state of one run of a streaming query."""

    def __init__(
        self,
        options: Options,
        cluster: Cluster,
        monotonic: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.cluster = cluster
        self._now_ms = now_ms
        self._masters_seen: dict[str, str] = {}
        self._sleep = sleep
        self.newest: Position | None = None
        """The end of all queues at the last look, for lag."""
        self.lost = 0
        self._options = options
        self._monotonic = monotonic
        self._wants = topic_filter(options)
        self._target: dict[QueueKey, int] | None = None
        self._belongs = False
        self._began = monotonic()
        self._vanished_since: dict[QueueKey, float] = {}
        self._sizes: dict[str, float] = {}

    # -- where to begin ------------------------------------------------------------------------------

    def initial(self) -> Position:
        """Return the start of a new query. Spark asks more than once; only the first batch's end makes it last."""
        options, cluster = self._options, self.cluster
        cluster.refresh(force=True)
        for topic in cluster.missing_topics():
            log.warning(
                "a topic does not exist yet; it is read from its first message when it does", topic=topic
            )
        keys = self._keys()
        bounds = cluster.wait_for_bounds(keys)
        found = cluster.offsets_at(times_of(options, keys))
        start = starting(options, bounds, found, stream=True)
        beyond = {key: max(number, bounds[key].high) for key, number in start.items()}
        _, losses = plan_ranges(start, beyond, bounds)
        if losses and options.starting_offsets is not None and not isinstance(options.starting_offsets, int):
            self.lost += enforce_losses(losses, fail=options.fail_on_data_loss)
            start = {
                key: min(max(number, bounds[key].low), bounds[key].high) for key, number in start.items()
            }
        return Position(start, cluster.cluster_name, fresh=True)

    # -- how far to go -------------------------------------------------------------------------------

    def latest(
        self, start: Position, rows: int | None, size: int | None, *, all_of_it: bool
    ) -> Position | None:
        """Return the end of the next batch, or None if there is nothing (or not yet enough) to read.

        A query that is fresh gets an end in any case: with it, its beginning is logged.
        """
        options, cluster = self._options, self.cluster
        cluster.refresh(force=bool(self._vanished_since))
        self._check_belongs(start)
        found = cluster.bounds(self._keys(start))
        bounds = self._ignoring_slave_lag(found, start.queues)
        self.newest = Position({key: have.high for key, have in bounds.items()}, cluster.cluster_name)
        self._check_losses(start.queues, found)
        self._check_reused_offsets(start, bounds)
        have = begin(start.queues, bounds)
        end = advance(start.queues, bounds, follow_back=not options.fail_on_data_loss)
        if self._target is not None:
            end = clamp_to_target(end, self._target, start.queues)
            have = {key: number for key, number in have.items() if key in end}
        if not all_of_it:
            too_little = self._is_below_minimum(backlog(have, end))
            end = dict(start.queues) if too_little else self._apply_limits(have, end, rows, size)
        if end == dict(start.queues) and not start.fresh:
            return None
        if backlog(have, end):
            self._began = self._monotonic()
        return Position(
            end,
            start.cluster or cluster.cluster_name,
            init=start.queues if start.fresh else None,
            masters=cluster.masters,
            time_ms=self._now_ms(),
        )

    def pin_target(self) -> None:
        """AvailableNow: what is there now is what is read, and nothing that comes later."""
        self.cluster.refresh(force=True)
        bounds = self.cluster.wait_for_bounds(self._keys())
        self._target = {key: have.high for key, have in bounds.items()}

    def _keys(self, start: Position | None = None) -> list[QueueKey]:
        present = self.cluster.queues()
        if self._options.assign is None:
            return present
        if start is not None:
            named = {key for key in present if self._is_assigned(key)}
            return sorted(named)
        return chosen_queues(self._options, present)

    def _is_assigned(self, key: QueueKey) -> bool:
        assign = self._options.assign or {}
        return key.queue_id in assign.get(key.topic, {}).get(key.broker, ())

    def _ignoring_slave_lag(self, found: BoundsAnswer, start: Queues) -> dict[QueueKey, Bounds]:
        """Return the bounds, raised to `start` where a slave that may be behind answers for its dead master."""
        return {
            key: Bounds(have.low, max(have.high, start.get(key, 0)))
            if key.broker in found.from_slaves
            else have
            for key, have in found.bounds.items()
        }

    def _check_losses(self, start: Queues, found: BoundsAnswer) -> None:
        """Judge at once what no later batch would notice: offsets that went back, queues that are gone."""
        bounds = self._ignoring_slave_lag(found, start)
        asked = {key: number for key, number in start.items() if key.broker not in found.unreachable}
        losses = plan_ranges(asked, asked, bounds)[1]
        if self._options.fail_on_data_loss:
            losses += [Loss(key, 0, "it is gone") for key in self._vanished_queues(asked, bounds)]
        self.lost += enforce_losses(losses, fail=self._options.fail_on_data_loss)

    def _check_reused_offsets(self, start: Position, bounds: Mapping[QueueKey, Bounds]) -> None:
        """Where a broker set has another master than when the start was found: are the messages still the same?"""
        if not start.masters or start.time_ms is None:
            return
        now = self.cluster.masters
        changed = {
            broker
            for broker, address in now.items()
            if address != self._masters_seen.get(broker, start.masters.get(broker, address))
        }
        last = {
            key: number - 1
            for key, number in start.queues.items()
            if key.broker in changed and key in bounds and bounds[key].low < number <= bounds[key].high
        }
        if last:
            losses = reused_offsets(start.queues, self.cluster.stored_ms(last), start.time_ms)
            self.lost += enforce_losses(losses, fail=self._options.fail_on_data_loss)
            for loss in losses:
                log.warning("offsets were used again", queue=str(loss.key), reason=loss.reason)
        self._masters_seen |= now

    def _vanished_queues(self, asked: Queues, bounds: Mapping[QueueKey, Bounds]) -> list[QueueKey]:
        """Queues that no name server has known for a while. A broker that is started anew comes back before that."""
        now = self._monotonic()
        self._vanished_since = {
            key: self._vanished_since.get(key, now) for key in sorted(asked) if key not in bounds
        }
        patience = self._options.pull_timeout_ms / 1000
        late = [key for key, since in self._vanished_since.items() if now - since >= patience]
        if self._vanished_since and not late:
            log.warning(
                "queues are gone",
                first=str(next(iter(self._vanished_since))),
                count=len(self._vanished_since),
            )
        return late

    def _is_below_minimum(self, waiting: int) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or waiting >= least:
            return False
        return self._monotonic() - self._began < self._options.max_trigger_delay_ms / 1000

    def _apply_limits(
        self, have: Queues, end: Queues, rows: int | None, size: int | None
    ) -> dict[QueueKey, int]:
        if size is not None:
            waiting = [key for key in sorted(end) if end[key] > have.get(key, end[key])]
            self._sizes |= self.cluster.mean_sizes(have, waiting)
            total = backlog(have, end)
            if total:
                mean = (
                    sum((end[key] - have[key]) * self._sizes.get(key.topic, SIZE_GUESS) for key in waiting)
                    / total
                )
                by_size = max(1, int(size / mean))
                rows = by_size if rows is None else min(rows, by_size)
        return dict(end) if rows is None else share_limit(have, end, rows)

    def _check_belongs(self, start: Position) -> None:
        if not self._belongs:
            check_belongs(start, self._wants, self.cluster.cluster_name)
            if self._options.assign is not None:
                others = [key for key in sorted(start.queues) if not self._is_assigned(key)]
                if others:
                    raise CheckpointMismatch(
                        f"the checkpoint stands in {others[0]}, which option assign does not name: give this query a "
                        f"checkpointLocation of its own"
                    )
            self._belongs = True

    # -- what to read --------------------------------------------------------------------------------

    def tasks(self, start: Position, end: Position) -> list[Task]:
        """Return the pieces of one batch. The same for a batch that is repeated after a crash."""
        options, cluster = self._options, self.cluster
        cluster.refresh()
        self._check_belongs(end)
        begins = batch_start(start, end)
        bounds = self._bounds_for(begins, end.queues)
        ranges, losses = plan_ranges(begins, end.queues, bounds)
        lost = enforce_losses(losses, fail=options.fail_on_data_loss)
        if lost:
            self.lost += lost
            log.warning("messages are not there any more and are passed over", count=lost)
        return tasks_of(ranges, options, cluster)

    def _bounds_for(self, start: Queues, end: Queues) -> dict[QueueKey, Bounds]:
        """What brokers have of the queues that a batch reads. A silent one is waited for: its range was promised."""
        keys = [key for key in sorted(end) if end[key] != start.get(key)]
        present = set(self.cluster.queues())
        deadline = self._monotonic() + self._options.pull_timeout_ms / 1000
        while not present.issuperset(keys) and self._monotonic() < deadline:
            self.cluster.refresh(force=True)
            present = set(self.cluster.queues())
            if not present.issuperset(keys):
                self._sleep(0.2)
        wanted = [key for key in keys if key in present]
        found = self.cluster.bounds(wanted)
        bounds = self._ignoring_slave_lag(found, end)
        late = [key for key in wanted if key not in bounds]
        if late:
            bounds |= self.cluster.wait_for_bounds(late)
        return bounds


def tasks_of(ranges: list[Range], options: Options, cluster: Cluster) -> list[Task]:
    """Split ranges into tasks, each with the address to read from."""
    pieces = split(
        ranges, max_records=options.max_records_per_partition, min_partitions=options.min_partitions
    )
    bases = _partition_bases(cluster)
    return [
        Task(piece.key, piece.low, piece.high, cluster.member(piece.key)[0], bases.get(piece.key[:2], 0))
        for piece in pieces
    ]


def _partition_bases(cluster: Cluster) -> dict[tuple[str, str], int]:
    """For each topic and broker: how many queues of the topic the brokers sorted before it have."""
    bases: dict[tuple[str, str], int] = {}
    for topic, route in cluster.routes.items():
        count = 0
        for data in sorted(route.queues, key=lambda data: data.broker_name):
            bases[topic, data.broker_name] = count
            count += data.read_queue_count
    return bases
