"""Spark's writers: a batch writer and a stream writer over `Sender`. At least once.

Spark makes a writer for every micro-batch and another one to commit it, so a writer is nothing but its options. There
is nothing to commit: rows are visible as soon as they are stored, and neither `abort` nor a failed task takes any back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ropewalk.spark.options import BadOption, Options
from ropewalk.spark.sink.rows import Columns, columns_of, rows_of
from ropewalk.spark.sink.send import Sender, Sent, check_sink_options
from ropewalk.spark.versions import Stamp, check_stamp, stamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["LiveStreamWriter", "LiveWriter", "Written"]

log = structlog.get_logger("ropewalk.spark")


@dataclass
class Written(WriterCommitMessage):
    """The commit message of one task."""

    sent: Sent


@dataclass(frozen=True)
class _Work:
    """All that a task needs; travels to workers."""

    options: Options
    columns: Columns
    made_by: Stamp

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        check_stamp(self.made_by)
        sender = Sender(self.options)
        try:
            for batch in batches:
                for row in rows_of(batch, self.columns, wait_store_ok=self.options.wait_store_ok):
                    sender.add(row)
            return Written(sender.finish())
        finally:
            sender.close()


def _work(options: Options, schema: StructType, overwrite: bool) -> _Work:
    if overwrite:
        raise BadOption(
            "a log cannot be overwritten: write with mode append (outputMode append; for aggregations, foreachBatch "
            "with a batch write in it)"
        )
    check_sink_options(options)
    return _Work(options, columns_of(schema, options), stamp())


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._work.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_unreplicated(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log_abort(messages)


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._work = _work(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._work.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_unreplicated(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _log_abort(messages)
