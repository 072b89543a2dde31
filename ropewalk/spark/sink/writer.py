"""Spark's writers: a batch writer and a stream writer over `Sender`, and over `exact` for rows that are written once.

Spark makes a writer for every micro-batch and another one to commit it, so a writer is nothing but its options. Rows
are visible as soon as they are stored, and neither `abort` nor a failed task takes any back.

A sink that writes exactly once begins a batch when its writer is pickled, which is when tasks are about to be sent out:
the writer that commits is made in the same way and is not. What was begun comes back with the tasks' messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ropewalk.client.core.produce.row_identity import BATCH_WRITE
from ropewalk.spark.log import log
from ropewalk.spark.options import BadOption, Options
from ropewalk.spark.sink.exact import SinkDriver
from ropewalk.spark.sink.idempotent import IdempotentSender
from ropewalk.spark.sink.keyed import KeyedSender
from ropewalk.spark.sink.reading_back import ReadingBackSender
from ropewalk.spark.sink.rows import Columns, columns_of, rows_of
from ropewalk.spark.sink.run import Run, TaskIdentity, TaskResult
from ropewalk.spark.sink.send import Sender, Sent, check_sink_options
from ropewalk.spark.versions import Stamp, check_stamp, stamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["LiveStreamWriter", "LiveWriter", "Written"]

QUERY_SIZE: Final = 8
"""Characters of a query's id that tell it from the others of a sink."""


@dataclass
class Written(WriterCommitMessage):
    """The commit message of one task."""

    sent: Sent
    result: TaskResult | None = None
    """The result that an exactly-once sink needs for its commit."""


@dataclass(frozen=True)
class _Work:
    """All that a task needs; travels to workers."""

    options: Options
    columns: Columns
    made_by: Stamp
    run: Run | None = None
    is_new: bool = True
    """Whether no batch of the query was committed yet, as far as can be seen."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        check_stamp(self.made_by)
        sender = (
            Sender(self.options) if self.run is None else sender_of(self.options, self.run, task_identity())
        )
        try:
            for batch in batches:
                for row in rows_of(batch, self.columns, wait_store_ok=self.options.wait_store_ok):
                    sender.add(row)
            sent = sender.finish()
            return Written(sent, sender.result() if isinstance(sender, KeyedSender) else None)
        finally:
            sender.close()

    def begun(self) -> _Work:
        """Return the work with what its tasks have to know of the brokers. Blocks. Raises WriteFailed."""
        if self.options.delivery != "exactly-once" or self.run is not None:
            return self
        driver = SinkDriver(self.options, is_new=self.is_new)
        try:
            return replace(self, run=driver.begin())
        finally:
            driver.close()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End a batch of an exactly-once sink. Blocks. Raises WriteFailed."""
        _log_unreplicated(messages)
        if self.options.delivery != "exactly-once":
            return
        results = [one.result for one in messages if isinstance(one, Written) and one.result is not None]
        driver = SinkDriver(self.options, is_new=False)
        try:
            driver.commit(results)
        finally:
            driver.close()


def sender_of(options: Options, run: Run, identity: TaskIdentity, **more: Any) -> KeyedSender:
    """Return the sender of a task in the way that the driver found the brokers to need."""
    kind = IdempotentSender if run.anchors is None else ReadingBackSender
    return kind(options, run, identity, **more)


def task_identity() -> TaskIdentity:
    """Return the identity of the task that this worker runs."""
    context = TaskContext.get()
    assert context is not None, "a task runs in a worker of Spark's"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    return TaskIdentity(
        query[:QUERY_SIZE] if query else BATCH_WRITE,
        int(batch) if batch else 0,
        context.partitionId(),
        context.taskAttemptId(),
        context.attemptNumber(),
    )


def _work(options: Options, schema: StructType, overwrite: bool) -> _Work:
    if overwrite:
        raise BadOption(
            "a log cannot be overwritten: write with mode append (outputMode append; for aggregations, foreachBatch "
            "with a batch write in it)"
        )
    check_sink_options(options)
    columns = columns_of(schema, options)
    if options.delivery == "exactly-once":
        for part in ("delay_level", "deliver_ms"):
            if part in columns.names:
                raise BadOption(
                    f"column {columns.names[part]}: delivery=exactly-once takes no delayed rows, which reach their "
                    f"queue later"
                )
    return _Work(options, columns, stamp())


def _is_new(checkpoint: str | None) -> bool:
    """Return whether a checkpoint has no committed batch; False for one that cannot be seen from here."""
    if checkpoint is None:
        return False
    path = checkpoint.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        return False
    commits = Path(path, "commits")
    return not (commits.is_dir() and any(commits.iterdir()))


def _log_unreplicated(messages: list[WriterCommitMessage | None]) -> None:
    reserved = sum(message.sent.unreplicated for message in messages if isinstance(message, Written))
    if reserved:
        log.warning("rows were stored with a reservation (flush or slave too late)", rows=reserved)


def _log_abort(messages: list[WriterCommitMessage | None]) -> None:
    rows = sum(message.sent.rows for message in messages if isinstance(message, Written))
    log.warning("a write was given up; rows that were stored stay visible", rows_of_finished_tasks=rows)


class LiveWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._work = _work(options, schema, overwrite)

    def __getstate__(self) -> dict[str, _Work]:
        self._work = self._work.begun()
        return {"_work": self._work}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._work.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._work.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_abort(messages)


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(
        self, options: Options, schema: StructType, overwrite: bool, checkpoint: str | None = None
    ) -> None:
        self._work = replace(_work(options, schema, overwrite), is_new=_is_new(checkpoint))

    def __getstate__(self) -> dict[str, _Work]:
        self._work = self._work.begun()
        return {"_work": self._work}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._work.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._work.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_abort(messages)
