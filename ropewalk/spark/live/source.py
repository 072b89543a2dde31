"""Spark's readers of live topics: a batch reader, and a stream reader with limits and checkpoints.

The driver looks at the cluster (`cluster`), plans (`plan`, `offsets`) and hands out `Task`s; workers
carry them out (`read`). Spark makes these objects in several processes: a reader that plans is not the one whose
`read` runs, so nothing travels but the partitions and what `__init__` was given.

Of the stream protocol it matters that `initialOffset` is called more than once, that `commit` comes one batch late and
never for the last batch of a run, and that `stop` does not come at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ropewalk.spark.live.cluster import Cluster, check_live_options
from ropewalk.spark.live.last_read import stored_before
from ropewalk.spark.live.offsets import Position, enforce_losses, plan_ranges
from ropewalk.spark.live.plan import chosen_queues, ending, starting, times_of
from ropewalk.spark.live.read import Task, read_task
from ropewalk.spark.live.stream_run import StreamRun
from ropewalk.spark.live.tasks import tasks_of
from ropewalk.spark.log import log
from ropewalk.spark.options import BadOption, Options
from ropewalk.spark.rows.schema import Selection

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LivePartition", "LiveReader", "LiveStreamReader"]


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
        """Plan the whole read against the offsets that the brokers have now. Empty where there is nothing."""
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
            # A frame keeps its plan: the topic may be another one of that name when it is read once more.
            last = Position(end, last_ms=stored_before(cluster, end, bounds, Position({})))
            kept = last if options.fail_on_data_loss else None
            return [LivePartition(task) for task in tasks_of(ranges, options, cluster, kept)]
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
        self._driver: StreamRun | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}  # sockets do not travel

    @property
    def driver(self) -> StreamRun:
        if self._driver is None:
            cluster = Cluster(self._options, monotonic=self._monotonic)
            self._driver = StreamRun(self._options, cluster, self._monotonic)
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
