"""Export the same rows by Spark's own file sink, for readers of its metadata: `--engine spark`.

A streaming query over a store or live topics, until there is no more or it is stopped, into directories by topic and
time. It goes on from its checkpoint. Each row is there once for Spark's reader, which believes `_spark_metadata` and
no directory; a run that was killed leaves files behind that other readers take for rows, some of them unreadable. The
direct engine has no such files, and writes several times as fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.report import OK, Report, Table
from ropewalk.spark.jobs.common.tasks import SparkTasks, TaskFailed, error_text, report_progress
from ropewalk.spark.jobs.export.lake import LakeMismatch
from ropewalk.spark.jobs.export.lake_writer import TIME
from ropewalk.spark.jobs.export.sources import LiveSource, StoreSource
from ropewalk.spark.registration import register_source

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_CODECS: Final = {"lz4": "lz4_raw"}
_PARTS: Final = {"dt": "yyyy-MM-dd", "hour": "HH"}
_LOOK_S: Final = 0.5


class BadSinkExport(RopewalkError):
    """An export that Spark's file sink cannot do."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The target of the rows, and the steps to it."""

    lake: str
    checkpoint: str
    codec: str = "zstd"
    partition_by: tuple[str, ...] = ("dt",)
    max_per_batch: int | None = None
    interval_s: float | None = None
    """Go on, and look this often; None ends when all that was there at the start is written."""


@dataclass(slots=True)
class Written:
    """The result of one run: rows by batch."""

    batches: dict[int, int] = field(default_factory=dict)


def read_options(source: StoreSource | LiveSource, max_per_batch: int | None) -> dict[str, str]:
    """Return the options that make the format give the rows that the direct engine would."""
    given: dict[str, str] = {"columns": ",".join(source.selection.names)}
    if isinstance(source, StoreSource):
        if source.until_ms is not None:
            raise BadSinkExport(
                "--until is for the direct engine: a file sink of Spark's goes on from its checkpoint"
            )
        given |= {
            "mode": "store", "path": source.path, "brokerName": source.broker_name, "onCorrupt": source.on_corrupt,
            "splitBytes": str(source.range_bytes),
        }  # fmt: skip
        if source.topics:
            given["topic"] = ",".join(source.topics)
        if source.since_ms is not None:
            given["startingTimestamp"] = str(source.since_ms)
    else:
        given |= source.options
    given.setdefault("startingTimestamp", "")
    if not given["startingTimestamp"]:
        del given["startingTimestamp"]
        given["startingOffsets"] = "earliest"
    if max_per_batch is not None:
        given["maxOffsetsPerTrigger"] = str(max_per_batch)
    return given


def export_by_sink(
    tasks: SparkTasks,
    source: StoreSource | LiveSource,
    options: SinkOptions,
    *,
    on_batch: Callable[[int, int], None] = lambda _batch, _rows: None,
) -> Written:
    """Write the source's messages with Spark's file sink. Raises `TaskFailed`, `BadSinkExport` and `LakeMismatch`."""
    if Path(options.lake, "_ropewalk").exists():
        raise LakeMismatch(
            f"{options.lake} is a lake of the direct engine, whose readers would not see what Spark's sink writes: "
            f"give this export a directory of its own"
        )
    from pyspark.sql import functions

    spark = tasks.spark
    register_source(spark)
    given = read_options(source, options.max_per_batch)
    written = Written()
    with report_progress(spark, "writing", tasks.progress):
        try:
            frame = spark.readStream.format("ropewalk").options(**given).load()
            for name in options.partition_by:
                frame = frame.withColumn(name, functions.date_format(TIME, _PARTS[name]))
            writer = (
                frame.writeStream.format("parquet")
                .option("path", options.lake)
                .option("checkpointLocation", options.checkpoint)
                .option("compression", _CODECS.get(options.codec, options.codec))
                .partitionBy("topic", *options.partition_by)
            )
            if options.interval_s is None:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{options.interval_s} seconds")
            query = writer.start()
        except Exception as exc:
            raise TaskFailed(error_text(exc)) from exc
        try:
            while query.isActive:
                time.sleep(_LOOK_S)
                _record_batch(query, written, on_batch)
        finally:
            if query.isActive:
                query.stop()
        _record_batch(query, written, on_batch)
        failure = query.exception()
        if failure is not None:
            raise TaskFailed(error_text(failure)) from failure
    return written


def _record_batch(query: StreamingQuery, written: Written, on_batch: Callable[[int, int], None]) -> None:
    for progress in query.recentProgress:
        found: Mapping[str, Any] = progress
        batch, rows = int(found["batchId"]), int(found["numInputRows"])
        if rows > 0 and batch not in written.batches:
            written.batches[batch] = rows
            on_batch(batch, rows)


def sink_report(options: SinkOptions, done: Written) -> Report:
    """Report the rows that a run wrote."""
    rows = sum(done.batches.values())
    summary = {
        "lake": options.lake,
        "engine": "spark",
        "batches": len(done.batches),
        "rows": rows,
        "checkpoint": options.checkpoint,
    }
    tables = [Table("batches", ("batch", "rows"), sorted(done.batches.items()))]
    return Report("export", f"Exported {rows} rows to {options.lake}", summary, tables, [], OK)
