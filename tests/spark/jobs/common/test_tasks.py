"""Pieces are done where they are sent, by the version that planned them, and their errors come back as sentences."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from ropewalk import __version__
from ropewalk.spark.jobs.audit.job import AuditOptions, audit
from ropewalk.spark.jobs.audit.repair import repair
from ropewalk.spark.jobs.common.tasks import Key, LocalTasks, SparkTasks, TaskFailed, do_piece, error_text
from ropewalk.spark.jobs.export.job import ExportOptions, export
from ropewalk.spark.jobs.export.sources import StoreSource, selection_for
from ropewalk.spark.jobs.rebuild.job import RebuildOptions, rebuild
from ropewalk.spark.jobs.records.log_files import UnreadableStore, open_store
from ropewalk.spark.jobs.stats.job import COLUMNS, stats
from ropewalk.spark.versions import Stamp, VersionMismatch, stamp
from tests.spark.jobs.faults import Pair, in_body
from tests.spark.jobs.stores import fill, replica_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


class ElsewhereTasks:
    """Does pieces in a process that stands in another directory, so that relative names mean something only there."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    @property
    def width(self) -> int:
        return 1

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        return [pickle.loads(self._do(function, piece)) for piece in pieces]

    def run_one(self, function: Callable[[T], R], piece: T, label: str) -> R:
        return self.run(function, [piece], label)[0]

    def _do(self, function: Callable[[T], R], piece: T) -> bytes:
        return self._pool.submit(do_piece, stamp(), pickle.dumps((function, piece))).result()

    def shuffle(
        self,
        spread: Callable[[T], Iterable[tuple[Key, bytes]]],
        gather: Callable[[tuple[Key, list[bytes]]], R],
        pieces: Sequence[T],
        label: str,
    ) -> list[R]:
        by_key: dict[Key, list[bytes]] = {}
        for piece in pieces:
            for key, value in self._pool.submit(_spread_all, spread, piece).result():
                by_key.setdefault(key, []).append(value)
        return self.run(gather, list(by_key.items()), label)


def _put_aside(_number: int) -> int:
    return gc.get_freeze_count()


def _spread_all(spread: Callable[[T], Iterable[tuple[Key, bytes]]], piece: T) -> list[tuple[Key, bytes]]:
    return list(spread(piece))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[ElsewhereTasks]:
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=os.chdir, initargs=(tmp_path,)) as pool:
        yield ElsewhereTasks(pool)


def test_no_job_opens_a_file_where_it_was_ordered(
    elsewhere: ElsewhereTasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "a", 300)
    replica_of(tmp_path / "a", tmp_path / "b")
    pair = Pair.of(tmp_path / "a", tmp_path / "b")
    in_body(0.5, 1)(pair, 50)
    (tmp_path / "driver").mkdir()
    monkeypatch.chdir(tmp_path / "driver")
    found = audit(elsewhere, AuditOptions(("a", "b")))
    assert len(found.findings) == 1
    (mended,) = repair(elsewhere, found, "mended")
    assert not audit(elsewhere, AuditOptions(("a", mended.path))).findings
    assert not rebuild(elsewhere, RebuildOptions("a", "out", verify=True)).different
    source = StoreSource("a", (), selection_for(COLUMNS, "default"), "b")
    assert sum(each.count for each in stats(elsewhere, source).total.queues.values()) == 300
    assert sum(batch[3] for batch in export(elsewhere, source, ExportOptions("lake")).batches) == 300
    assert not list((tmp_path / "driver").iterdir())


def test_a_worker_of_another_version_refuses() -> None:
    with pytest.raises(VersionMismatch, match=f"ropewalk 0.0.1.*{__version__}"):
        do_piece(Stamp("0.0.1", 1), pickle.dumps((open_store, "x")))


def test_what_a_task_met_comes_back_with_its_kind(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="is no store directory") as caught:
        LocalTasks().run(open_store, [str(tmp_path)], "x")
    assert caught.value.kind == UnreadableStore.__name__


def test_spark_does_pieces_in_their_order_and_brings_errors_back(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    tasks = SparkTasks(spark, lambda *args: seen.append(args))
    assert tasks.run(abs, [-3, 4, -5], "sizes") == [3, 4, 5]
    assert tasks.run(abs, [], "nothing") == []
    # What a worker has imported is not looked through again after each task.
    assert min(tasks.run(_put_aside, [1, 2], "x")) > 10_000
    with pytest.raises(TaskFailed, match="is no store directory") as caught:
        tasks.run(open_store, [str(tmp_path)], "x")
    assert caught.value.kind == "UnreadableStore"
    with pytest.raises(TaskFailed):
        tasks.run(len, [5], "x")  # type: ignore[arg-type] # our own bug: Spark's error, in a line
    assert all(0 <= done <= of for _label, done, of in seen)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted: all is lost",
            "Job aborted: all is lost",
        ),
        (
            "x\nropewalk.spark.versions.VersionMismatch: the driver runs ropewalk 1",
            "the driver runs ropewalk 1",
        ),
        (
            "y\nModuleNotFoundError: No module named 'ropewalk'\n",
            "No module named 'ropewalk': the workers have no ropewalk; install the driver's version on every machine",
        ),
        ("", "Exception('')"),
    ],
)
def test_of_a_spark_error_a_person_gets_the_line_that_helps(text: str, wanted: str) -> None:
    assert error_text(Exception(text)) == wanted
