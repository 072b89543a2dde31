"""Plan and read splits of a store without Spark, for the tests of readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ropewalk.spark.options import parse_options
from ropewalk.spark.rows.decode import DamagedPlace
from ropewalk.spark.store.plan import Split, plan_store
from ropewalk.spark.store.read import Report, read_split
from ropewalk.spark.store.source import decode_plan

Row = dict[str, Any]


class Told:
    """What a task said besides its rows."""

    def __init__(self) -> None:
        self.damaged: list[DamagedPlace] = []
        self.lost: list[str] = []

    def report(self) -> Report:
        return Report(lambda _, place: self.damaged.append(place), lambda reason, _: self.lost.append(reason))


def plan(path: Path | str, **options: Any) -> list[Split]:
    return plan_store(parse_options({"mode": "store", "path": str(path), **options}, "read"))


def read_splits(splits: list[Split], told: Told | None = None, **options: Any) -> list[Row]:
    parsed = parse_options({"mode": "store", "path": "-", "preset": "full", **options}, "read")
    told = told or Told()
    loss = parsed.fail_on_data_loss
    decode = decode_plan(parsed, parsed.selection())
    return [
        row
        for split in splits
        for batch in read_split(split, decode, told.report(), fail_on_data_loss=loss)
        for row in batch.to_pylist()
    ]


def read(path: Path | str, told: Told | None = None, **options: Any) -> list[Row]:
    return read_splits(plan(path, **options), told, **options)


def offsets(rows: list[Row]) -> list[int]:
    return [row["physicalOffset"] for row in rows]
