"""A lake as a source of rows: its files in the order of its manifest, so that an export can be sent again.

A position is a number of files: `{"files": 12}`. A manifest only grows, and what it names never changes, except when
its small files are made large ones; what was read of the lake before then cannot be told from what was not, and the
position says how often that had happened: `{"compactions": 1, "files": 12}`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.export.lake import LakeFile, LakeMismatch, read_lake
from ropewalk.spark.jobs.export.lake_writer import TIME
from ropewalk.spark.jobs.export.sources import Planned
from ropewalk.spark.live.offsets import DataLoss


class UnreadableLake(RopewalkError):
    """A file of the lake cannot be read."""


@dataclass(frozen=True, slots=True)
class LakeSource:
    """Files of a lake."""

    path: str
    topics: tuple[str, ...] = ()
    """All if empty."""
    since_ms: int | None = None
    until_ms: int | None = None
    columns: tuple[str, ...] = ()
    """All if empty; what a file does not have is missing in its rows."""

    def identity(self) -> dict[str, Any]:
        return {
            "source": "lake", "path": self.path, "topics": sorted(self.topics),
            "since": self.since_ms, "until": self.until_ms,
        }  # fmt: skip

    def plan(self, tasks: Tasks, position: Any, limit: int | None) -> Planned | None:
        state = tasks.run_one(read_lake, self.path, "reading the manifest")
        if not state.batches:
            raise LakeMismatch(f"{self.path} is no lake, or holds no batch yet")
        start = stop = 0 if position is None else int(position["files"])
        if position is not None and int(position.get("compactions", 0)) != state.compactions:
            raise LakeMismatch(
                f"the files of {self.path} were merged since {start} of them were read, and which those are is not "
                f"known any more: begin anew with a journal of its own, from --since the time it had come to"
            )
        merged = {"compactions": state.compactions} if state.compactions else {}
        if start > len(state.files):
            raise DataLoss(
                f"{self.path} has {len(state.files)} files, and {start} were read: it is another lake"
            )
        ranges: list[Any] = []
        rows = 0
        for file in state.files[start:]:
            if limit is not None and ranges and rows + file.rows > limit:
                break
            stop += 1
            if self._wants(file):
                ranges.append([file.path, file.topic])
                rows += file.rows
        if not ranges:
            return None
        return Planned({"files": start, **merged}, {"files": stop, **merged}, ranges)

    def _wants(self, file: LakeFile) -> bool:
        if self.topics and file.topic not in self.topics:
            return False
        after = self.since_ms is None or file.max_time_ms >= self.since_ms
        return after and (self.until_ms is None or file.min_time_ms < self.until_ms)

    def name(self, range_: Any) -> tuple[str, str]:
        return "", str(range_[0])

    def read(self, range_: Any) -> Iterator[Any]:
        path = os.path.join(self.path, range_[0])
        try:
            file = pq.ParquetFile(path)
            names = [name for name in file.schema_arrow.names if not self.columns or name in self.columns]
            for batch in file.iter_batches(batch_size=4096, columns=names):
                wanted = None
                if self.since_ms is not None:
                    wanted = pc.greater_equal(batch.column(TIME), _moment(self.since_ms))
                if self.until_ms is not None:
                    before = pc.less(batch.column(TIME), _moment(self.until_ms))
                    wanted = before if wanted is None else pc.and_(wanted, before)
                yield batch if wanted is None else batch.filter(wanted)
        except FileNotFoundError:
            raise DataLoss(f"{path} is named by the manifest and is not there") from None
        except (OSError, ValueError) as exc:
            raise UnreadableLake(f"{path} cannot be read: {exc}") from exc


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
