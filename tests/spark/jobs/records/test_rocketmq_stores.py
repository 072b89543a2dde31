"""Stores that an Apache RocketMQ broker wrote: stopped, killed, and restarted twice, once by kill -9."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ropewalk.spark.jobs.audit.job import AuditOptions, audit
from ropewalk.spark.jobs.common.tasks import LocalTasks
from ropewalk.spark.jobs.export.job import ExportOptions, export
from ropewalk.spark.jobs.export.sources import StoreSource, selection_for
from ropewalk.spark.jobs.rebuild.job import RebuildOptions, rebuild
from ropewalk.spark.jobs.records.findings import Kind
from ropewalk.spark.rows.row_filter import is_internal_topic
from tests.support.recorded_stores import STORES, unpack

NAMES = ("clean", "killed", "restarted")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def store(name: str, tmp_path: Path) -> Path:
    return unpack(name, tmp_path / "store")


def test_an_audit_finds_nothing_to_object_to(store: Path) -> None:
    found = audit(LocalTasks(), AuditOptions((str(store),), piece_size=10_000))
    assert not found.findings
    assert found.records == found.entries and found.records[0] > 100


def test_queues_are_the_brokers_own_and_so_is_the_index(store: Path, name: str, tmp_path: Path) -> None:
    done = rebuild(
        LocalTasks(), RebuildOptions(str(store), str(tmp_path / "out"), verify=True, piece_size=10_000)
    )
    assert not done.different and not done.walk.lost and done.verified > 5
    for path in sorted((store / "consumequeue").glob("*/*/*")):
        assert (tmp_path / "out" / path.relative_to(store)).read_bytes() == path.read_bytes()
    # After its crash the broker indexed the last records before it a second time, each with its three keys.
    assert done.indexed_twice == (1 if name == "restarted" else 0)
    if name == "clean":
        ((own,), (built,)) = (list((root / "index").iterdir()) for root in (store, tmp_path / "out"))
        assert own.read_bytes() == built.read_bytes()


def test_a_lake_holds_what_a_java_consumer_got(store: Path, name: str, tmp_path: Path) -> None:
    source = StoreSource(str(store), (), selection_for((), "full"), "b")
    export(LocalTasks(), source, ExportOptions(str(tmp_path / "lake")))
    rows: set[tuple[Any, ...]] = set()
    for path in (tmp_path / "lake").glob("topic=*/**/*.parquet"):
        table = pq.ParquetFile(path).read(["topic", "queueId", "queueOffset", "uniqKey", "body"])
        for *row, body in zip(*(column.to_pylist() for column in table.columns), strict=True):
            rows.add((*row, hashlib.sha256(body).hexdigest()))
    lines = [json.loads(line) for line in (STORES / f"{name}.jsonl").read_text().splitlines()]
    assert lines and rows == {_place(line) for line in lines if not is_internal_topic(line["topic"])}


def _place(line: dict[str, Any]) -> tuple[Any, ...]:
    unique = line["properties"].get("UNIQ_KEY")
    return line["topic"], line["queueId"], line["queueOffset"], unique, line["bodySha256"]


def test_what_a_kill_leaves_is_told_apart_from_damage(name: str, store: Path) -> None:
    kinds = {f.kind for f in audit(LocalTasks(), AuditOptions((str(store), str(store)))).findings}
    assert not kinds - {Kind.TORN_TAIL}
