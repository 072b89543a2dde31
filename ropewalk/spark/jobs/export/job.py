"""Export rows of a store or of live topics into a Parquet lake, each exactly once: `ropewalk pipeline export`.

Batch by batch: what `lake` says there is, what the source says comes next, a settled plan, its ranges written by
tasks, a commit. A run that ends at any point leaves a lake from which the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.report import DATA_LOSS, OK, Report, Table
from ropewalk.spark.jobs.common.tasks import SparkTasks, TaskFailed, Tasks
from ropewalk.spark.jobs.export.compact import merge_group
from ropewalk.spark.jobs.export.lake import (
    BatchPlan,
    LakeFile,
    LakeState,
    clear_staging,
    commit,
    is_begun,
    open_lake,
    read_lake,
    record_plan,
)
from ropewalk.spark.jobs.export.lake_writer import CODECS, PARTITIONS, LakeWriteFailed, Target, write_rows
from ropewalk.spark.jobs.export.sources import Planned, Source, StoreSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BadExport(RopewalkError):
    """An export whose options make no sense."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The target of the rows, and the steps to it."""

    lake: str
    codec: str = "zstd"
    partition_by: tuple[str, ...] = ("dt",)
    max_per_batch: int | None = None
    """Messages in one batch, about; the lake shows a batch at a time."""

    def check(self) -> None:
        if self.codec not in CODECS:
            raise BadExport(f"--codec {self.codec}: it is one of {', '.join(CODECS)}")
        for name in self.partition_by:
            if name not in PARTITIONS:
                raise BadExport(f"--partition-by {name}: it is one of {', '.join(PARTITIONS)}")


@dataclass(slots=True)
class Exported:
    """The result of one run."""

    batches: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Number, ranges, files and rows of each."""
    files: list[LakeFile] = field(default_factory=list)
    resumed: bool = False
    """Whether the first batch had been planned by a run that did not finish."""
    rows_before: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _Work:
    source: Source
    target: Target
    range_: object


def export(
    tasks: Tasks,
    source: Source,
    options: ExportOptions,
    *,
    wait: Callable[[], bool] = lambda: False,
    on_batch: Callable[[int, int], None] = lambda _batch, _rows: None,
) -> Exported:
    """Export until the source has no more. `wait` is asked then: True looks again, False ends the run."""
    options.check()
    identity = source.identity() | {"partition_by": list(options.partition_by)}
    first = None
    if not tasks.run_one(is_begun, options.lake, "looking for the lake"):
        # A lake is of what it was begun with: a mistyped topic must not be what it is of.
        first = source.plan(tasks, None, options.max_per_batch)
        if first is None and not wait():
            return Exported()
    state = tasks.run_one(open_lake, (options.lake, identity), "opening the lake")
    done = Exported(resumed=state.pending is not None, rows_before=state.rows)
    while True:
        plan = state.pending or _next_plan(tasks, source, options, state, first)
        first = None
        if plan is None:
            if wait():
                continue
            return done
        try:
            files = _write(tasks, source, options, plan)
        except TaskFailed:
            state = tasks.run_one(read_lake, options.lake, "reading the manifest")
            if state.batches <= plan.batch:
                raise
            # Another export has completed the batch, and removed what was being written here.
            done.rows_before = state.rows - sum(batch[3] for batch in done.batches)
            continue
        state = tasks.run_one(commit, (options.lake, plan, tuple(files)), "committing")
        if plan.replaces:
            continue
        rows = sum(file.rows for file in files)
        done.batches.append((plan.batch, len(plan.ranges), len(files), rows))
        done.files += files
        done.lost += plan.lost
        on_batch(plan.batch, rows)


def _next_plan(
    tasks: Tasks, source: Source, options: ExportOptions, state: LakeState, first: Planned | None
) -> BatchPlan | None:
    """Return the plan of the next batch. `first` is one that was made before the lake was there."""
    if first is None or state.batches:
        first = source.plan(tasks, state.position, options.max_per_batch)
    planned = first
    if planned is None:
        return None
    plan = BatchPlan(state.batches, planned.start, planned.end, planned.ranges, state.last, planned.lost)
    return tasks.run_one(record_plan, (options.lake, plan), "planning")


def _write(tasks: Tasks, source: Source, options: ExportOptions, plan: BatchPlan) -> list[LakeFile]:
    if plan.replaces:
        # A run that merged files did not finish: nothing new, and nothing may be put in front of it.
        return tasks.run(merge_group, [(options.lake, plan.batch, group) for group in plan.ranges], "merging")
    work = []
    for range_ in plan.ranges:
        broker, name = source.name(range_)
        target = Target(options.lake, plan.batch, broker, name, options.codec, options.partition_by)
        work.append(_Work(source, target, range_))
    try:
        return [file for files in tasks.run(write_range, work, f"batch {plan.batch}") for file in files]
    except TaskFailed as exc:
        if exc.kind == LakeWriteFailed.__name__:
            tasks.run_one(clear_staging, (options.lake, plan.batch), "making room")
        raise


def write_range(work: _Work) -> list[LakeFile]:
    """Write the rows of one range to files. Runs in a task."""
    source = work.source
    if isinstance(source, StoreSource):
        source = replace(source, for_files=True)
    return write_rows(work.target, source.read(work.range_))


def lake_frame(tasks: SparkTasks, lake: str) -> DataFrame:
    """Return the rows of a lake by its manifest: whole batches only, also while an export runs. Raises `BadExport`."""
    state = tasks.run_one(read_lake, lake, "reading the manifest")
    if not state.files:
        raise BadExport(f"{lake} is no lake, or holds no row yet")
    reader = tasks.spark.read.option("basePath", lake)
    return reader.parquet(*(f"{lake}/{file.path}" for file in state.files))


def export_report(options: ExportOptions, done: Exported) -> Report:
    """Report the rows that a run wrote."""
    rows = sum(batch[3] for batch in done.batches)
    topics: dict[str, tuple[int, int, int]] = {}
    for file in done.files:
        count, total, size = topics.get(file.topic, (0, 0, 0))
        topics[file.topic] = (count + 1, total + file.rows, size + file.bytes)
    summary = {
        "lake": options.lake,
        "batches": len(done.batches),
        "rows": rows,
        "files": len(done.files),
        "bytes": sum(file.bytes for file in done.files),
        "rows_in_lake": done.rows_before + rows,
        "resumed": done.resumed,
        "lost": done.lost,
    }
    tables = [
        Table(
            "topics",
            ("topic", "files", "rows", "bytes"),
            [(name, *each) for name, each in sorted(topics.items())],
        ),
        Table("batches", ("batch", "ranges", "files", "rows"), done.batches),
    ]
    title = f"Exported {rows} rows to {options.lake}"
    return Report("export", title, summary, tables, [], DATA_LOSS if done.lost else OK)
