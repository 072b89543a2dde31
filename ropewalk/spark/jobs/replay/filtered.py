"""Run pieces of a job whose rows pass a condition of Spark's SQL on their way.

    piece -> read -> rows -> WHERE condition -> rows -> use -> answer

Each piece is one partition, which nothing reorders: its rows come to `use` in the order in which `read` gave them. The
rows pass the JVM and come back, which costs more than all the rest; a job without a condition has `Tasks.run`.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.tasks import SparkTasks, TaskFailed, Tasks, error_text, report_progress
from ropewalk.spark.rows.schema import Selection, chosen_columns
from ropewalk.spark.versions import Stamp, check_stamp, stamp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")
R = TypeVar("R")

_ROWS: Final = 1000


class BadCondition(RopewalkError):
    """A condition that Spark cannot parse, or that names columns which do not exist."""


def check_condition(tasks: Tasks, condition: str, columns: Sequence[str]) -> None:
    """Parse a condition over these columns with Spark. Raises `BadCondition`."""
    spark = _spark(tasks).spark
    from pyspark.errors import PySparkException

    chosen = chosen_columns(columns=tuple(columns))
    try:
        empty = spark.createDataFrame([], _ddl(chosen)).where(condition)
        assert empty.schema is not None
    except PySparkException as exc:
        raise BadCondition(
            f"{condition!r} is no condition over {', '.join(columns)}: {_reason(exc)}"
        ) from exc


def run_filtered(
    tasks: Tasks,
    pieces: Sequence[T],
    read: Callable[[T], Iterator[pa.RecordBatch]],
    condition: str,
    columns: Sequence[str],
    use: Callable[[T, Iterable[pa.RecordBatch]], R],
    label: str,
) -> list[R]:
    """Run a function over the rows of each piece that meet the condition; answers come in the order of the pieces.

    Raises `TaskFailed`.
    """
    if not pieces:
        return []
    running, chosen = _spark(tasks), chosen_columns(columns=tuple(columns))
    spark = running.spark
    work = pickle.dumps((stamp(), read, chosen, list(pieces)))
    with report_progress(spark, label, running.progress):
        try:
            from pyspark.sql import functions

            spark.dataSource.register(_Pieces)
            reader = spark.read.format(_Pieces.name()).schema(_ddl(chosen))
            kept = reader.option("work", b64encode(work).decode()).load().where(condition)
            # As Python values times are local ones, and nobody knows of which place.
            plain = kept.select(
                *(
                    functions.unix_micros(name).alias(name) if name in _times(chosen) else name
                    for name in chosen.names
                )
            )
            answers: list[R] = plain.rdd.mapPartitionsWithIndex(
                partial(_use, stamp(), use, list(pieces), chosen)
            ).collect()
        except Exception as exc:
            raise TaskFailed(error_text(exc)) from exc
    assert len(answers) == len(pieces)
    return answers


def _spark(tasks: Tasks) -> SparkTasks:
    if not isinstance(tasks, SparkTasks):
        raise BadCondition("a condition is read by Spark: this job has to run there")
    return tasks


def _ddl(selection: Selection) -> str:
    return ", ".join(f"`{name}` {selection.type_of(name)}" for name in selection.names)


def _reason(exc: Exception) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__


def _times(selection: Selection) -> frozenset[str]:
    return frozenset(name for name in selection.names if selection.type_of(name) == "timestamp")


class _Pieces(DataSource):
    """The rows of pieces as a source of Spark's: one partition for each, in their order."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk-pieces"

    def reader(self, schema: StructType) -> _PiecesReader:
        return _PiecesReader(b64decode(self.options["work"]))


class _PiecesReader(DataSourceReader):
    def __init__(self, work: bytes) -> None:
        self._work = work

    def partitions(self) -> list[InputPartition]:
        _made_by, _read, _selection, pieces = pickle.loads(self._work)
        return [InputPartition(number) for number in range(len(pieces))]

    # -- in tasks ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        made_by, read, selection, pieces = pickle.loads(self._work)
        check_stamp(made_by)
        for rows in read(pieces[partition.value]):
            yield conform_batch(rows, selection)


def conform_batch(batch: pa.RecordBatch, selection: Selection) -> pa.RecordBatch:
    """Return a batch with exactly these columns; a missing one is null."""
    import pyarrow as pa

    schema = selection.arrow_schema()
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _use(
    made_by: Stamp,
    use: Callable[[Any, Iterable[pa.RecordBatch]], R],
    pieces: Sequence[Any],
    selection: Selection,
    number: int,
    rows: Iterator[Any],
) -> Iterator[R]:
    check_stamp(made_by)
    # None of the steps before moves a row to another partition.
    yield use(pieces[number], _gathered(rows, selection))


def _gathered(rows: Iterator[Any], selection: Selection) -> Iterator[pa.RecordBatch]:
    """Rows as record batches again."""
    import pyarrow as pa

    schema, times = selection.arrow_schema(), _times(selection)
    kinds = [pa.int64() if field.name in times else field.type for field in schema]
    while some := list(islice(rows, _ROWS)):
        columns = [
            pa.array([list(value.items()) if isinstance(value, dict) else value for value in values], kind)
            for values, kind in zip(zip(*some, strict=True), kinds, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
