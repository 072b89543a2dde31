"""Merge the small files of a lake into fewer and larger ones: `ropewalk pipeline export --compact`.

An export of live topics with `--mode stream` leaves a file for every queue, day and batch. Merging them is a batch like
others: a plan that says which files become one, files written aside, renames, a commit, by which the merged files count
and those they replace do not. Then these are removed. A run that ends at any point has changed nothing that a reader by
the manifest sees, or all; the next run, of an export too, completes it.

Files are merged within their directory, in the order of the manifest, a row group after the other; rows are not looked
at. Who reads the directories, and not the manifest, sees rows twice between the renames and the removal.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.spark.jobs.common.report import Report, Table
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.lake import (
    BatchPlan,
    LakeDamaged,
    LakeFile,
    LakeMismatch,
    LakeState,
    commit,
    read_lake,
    record_plan,
    staging,
)
from ropewalk.spark.jobs.export.lake_writer import ROW_GROUP_BYTES, new_writer, synced_size

SMALL: Final = 2
"""A file of half the wanted size or more stays as it is."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one run."""

    files_before: int
    replaced: int
    merged: tuple[LakeFile, ...]
    rows: int
    """In the lake."""
    resumed: bool = False


def compact(tasks: Tasks, lake: str, *, target_bytes: int, codec: str = "zstd") -> Compacted:
    """Merge small files of a lake to about `target_bytes`. Raises `TaskFailed`, and `LakeMismatch` where none is."""
    state = tasks.run_one(read_lake, lake, "reading the manifest")
    if not state.batches:
        raise LakeMismatch(f"{lake} is no lake, or holds no batch yet")
    plan = state.pending
    if plan is not None and not plan.replaces:
        raise LakeMismatch(
            f"an export to {lake} has begun batch {plan.batch} and not completed it: run it again first, or let it end"
        )
    resumed = plan is not None
    if plan is None:
        groups = plan_groups(state, target_bytes, codec)
        if not groups:
            return Compacted(len(state.files), 0, (), state.rows)
        replaced = [file["path"] for group in groups for file in group["files"]]
        wanted = BatchPlan(
            state.batches, state.position, state.position, groups, state.last, replaces=replaced
        )
        plan = tasks.run_one(record_plan, (lake, wanted), "planning")
        if not plan.replaces:
            raise LakeMismatch(f"an export to {lake} began batch {plan.batch} just now: let it end first")
    merged = tasks.run(merge_group, [(lake, plan.batch, group) for group in plan.ranges], "merging")
    tasks.run_one(commit, (lake, plan, tuple(merged)), "committing")
    return Compacted(len(state.files), len(plan.replaces), tuple(merged), state.rows, resumed)


def plan_groups(state: LakeState, target_bytes: int, codec: str) -> list[dict[str, Any]]:
    """Plan which files become which, in a form that a plan can hold."""
    folders: dict[str, list[LakeFile]] = {}
    for file in state.files:
        if file.bytes < target_bytes / SMALL:
            folders.setdefault(os.path.dirname(file.path), []).append(file)
    groups: list[dict[str, Any]] = []
    for folder, files in sorted(folders.items()):
        for number, together in enumerate(_packed(files, target_bytes)):
            path = f"{folder}/c={state.batches:08d}-{number:05d}.{codec}.parquet"
            groups.append({"path": path, "codec": codec, "files": [asdict(file) for file in together]})
    return groups


def _packed(files: Sequence[LakeFile], target_bytes: int) -> list[list[LakeFile]]:
    """Runs of files of about the wanted size, two at least."""
    runs: list[list[LakeFile]] = []
    size = target_bytes
    for file in files:
        if size + file.bytes > target_bytes:
            runs.append([])
            size = 0
        runs[-1].append(file)
        size += file.bytes
    return [run for run in runs if len(run) > 1]


def merge_group(work: tuple[str, int, dict[str, Any]]) -> LakeFile:
    """Merge some files into one below the staging directory. Runs in a task. Raises `LakeDamaged`. Blocks."""
    lake, batch, group = work
    files = [LakeFile(**each) for each in group["files"]]
    directory = staging(lake, batch)
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory / f"{uuid.uuid4().hex}.parquet"
    rows, size = 0, 0
    if not Path(lake, files[0].path).exists() and Path(lake, group["path"]).exists():
        # The batch counts already, and another run removes what it replaced.
        rows, size = sum(file.rows for file in files), Path(lake, group["path"]).stat().st_size
    else:
        rows = _merge([Path(lake, file.path) for file in files], staged, group["codec"])
        size = synced_size(staged)
    if rows != sum(file.rows for file in files):
        raise LakeDamaged(
            f"the files that were to become {group['path']} hold {rows} rows, and the manifest says "
            f"{sum(file.rows for file in files)}: nothing was changed"
        )
    return LakeFile(
        group["path"],
        rows,
        size,
        files[0].topic,
        min(file.min_time_ms for file in files),
        max(file.max_time_ms for file in files),
        str(staged.relative_to(lake)),
    )


def _merge(paths: Sequence[Path], staged: Path, codec: str) -> int:
    """Rows written."""
    writer: Any = None
    waiting: list[Any] = []
    rows = 0

    def flush() -> None:
        table = pa.concat_tables(waiting)
        writer.write_table(table, row_group_size=table.num_rows)
        waiting.clear()

    try:
        for path in paths:
            with pq.ParquetFile(path) as file:
                if writer is None:
                    schema = file.schema_arrow.remove_metadata()
                    writer = new_writer(staged, schema, codec)
                for number in range(file.num_row_groups):
                    waiting.append(file.read_row_group(number).cast(schema))
                    rows += waiting[-1].num_rows
                    if sum(each.nbytes for each in waiting) >= ROW_GROUP_BYTES:
                        flush()
        if waiting:
            flush()
    except (OSError, ValueError) as exc:
        raise LakeDamaged(f"files of the lake cannot be merged: {exc}") from exc
    finally:
        if writer is not None:
            writer.close()
    return rows


def compact_report(lake: str, done: Compacted) -> Report:
    """Report the result of a run."""
    after = done.files_before - done.replaced + len(done.merged)
    summary = {
        "lake": lake,
        "files_before": done.files_before,
        "files": after,
        "replaced": done.replaced,
        "rows_in_lake": done.rows,
        "resumed": done.resumed,
    }
    rows = [(file.path, file.rows, file.bytes) for file in done.merged]
    title = f"Made {done.replaced} files of {lake} into {len(done.merged)}; it has {after} now"
    return Report("export", title, summary, [Table("merged files", ("file", "rows", "bytes"), rows)], [], 0)
