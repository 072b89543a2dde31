"""Whatever happens to an export, in the end the lake holds every row once, and its files can all be read."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from ropewalk.spark.jobs.common.tasks import Key, LocalTasks, TaskFailed
from ropewalk.spark.jobs.export.compact import compact
from ropewalk.spark.jobs.export.job import BadExport, Exported, ExportOptions, export, export_report
from ropewalk.spark.jobs.export.lake import BatchPlan, LakeDamaged, LakeMismatch, read_lake, record_plan
from ropewalk.spark.jobs.export.lake_writer import _parted, _size
from ropewalk.spark.jobs.export.sources import DamagedLog, StoreSource, selection_for
from ropewalk.spark.live.offsets import DataLoss
from tests.spark.jobs.faults import Pair, in_body, in_field
from tests.spark.jobs.stores import TOPICS, fill, replica_of, segment

pytestmark = pytest.mark.usefixtures("far_from_greenwich")

T = TypeVar("T")
R = TypeVar("R")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("export") / "store"
    fill(root, 500)
    return root


@pytest.fixture(scope="module", autouse=True)
def syncs_cost_nothing() -> Iterator[None]:
    """Nothing here pulls the plug."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


def source(root: Path, **more: Any) -> StoreSource:
    usual = StoreSource(str(root), (), selection_for((), "full"), "b", range_bytes=30_000)
    return replace(usual, **more)


def rows_of(lake: Path) -> list[tuple[Any, ...]]:
    """Every row that a reader of the directories sees."""
    rows: list[tuple[Any, ...]] = []
    for path in sorted(lake.glob("topic=*/**/*.parquet")):
        table = pq.ParquetFile(path).read()
        columns = (
            table.column(name).to_pylist() for name in ("topic", "queueId", "queueOffset", "body", "keys")
        )
        rows += zip(*columns, strict=True)
    return sorted(rows, key=repr)


def rows_in(root: Path) -> list[tuple[Any, ...]]:
    records = Pair.of(root, root).records
    rows = [(r.topic, r.queue_id, r.queue_offset, r.body, r.properties.get("KEYS")) for r in records]
    return sorted(rows, key=repr)


def manifest_agrees(lake: Path) -> bool:
    state = read_lake(str(lake))
    listed = {str(path.relative_to(lake)) for path in lake.glob("topic=*/**/*.parquet")}
    return listed == {file.path for file in state.files} and state.rows == sum(
        file.rows for file in state.files
    )


def run(root: Path, lake: Path, tasks: Any = None, **options: Any) -> Exported:
    return export(tasks or LocalTasks(), source(root), ExportOptions(str(lake), **options))


def test_a_store_becomes_a_lake_with_every_row_once(store: Path, tmp_path: Path) -> None:
    done = run(store, tmp_path / "lake")
    report = export_report(ExportOptions(str(tmp_path / "lake")), done)
    assert (report.exit_code, report.summary["rows"], report.summary["batches"]) == (0, 500, 1)
    assert rows_of(tmp_path / "lake") == rows_in(store)
    assert manifest_agrees(tmp_path / "lake")
    assert not (tmp_path / "lake" / "_staging").exists()
    first = next(iter(read_lake(str(tmp_path / "lake")).files))
    schema = pq.read_schema(tmp_path / "lake" / first.path)
    assert schema.equals(selection_for((), "full").arrow_schema())
    assert first.path.startswith("topic=orders/dt=2023-11-14/b=b/s=") and first.path.endswith(".zstd.parquet")


def test_a_second_run_adds_what_is_new_and_nothing_else(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "store")
    run(copy, tmp_path / "lake")
    assert not run(copy, tmp_path / "lake").batches
    fill(copy, 77, first=500, seed=3)
    assert sum(batch[3] for batch in run(copy, tmp_path / "lake").batches) == 77
    assert rows_of(tmp_path / "lake") == rows_in(copy)
    assert manifest_agrees(tmp_path / "lake")


def test_another_log_at_the_same_place_is_lost_data(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "store")
    run(copy, tmp_path / "lake")
    shutil.rmtree(copy)
    fill(copy, 900, seed=11)
    with pytest.raises(TaskFailed, match=r"holds other records before log offset \d+ .*Begin anew") as raised:
        run(copy, tmp_path / "lake")
    assert raised.value.kind == "DataLoss"
    shutil.rmtree(copy)
    fill(copy, 20, seed=11)
    with pytest.raises(Exception, match=r"come to log offset \d+, and the files of .* end at \d+ now"):
        run(copy, tmp_path / "lake")


def test_small_batches_hold_the_same(store: Path, tmp_path: Path) -> None:
    done = run(store, tmp_path / "lake", max_per_batch=100)
    assert len(done.batches) > 3 and all(rows < 200 for *_rest, rows in done.batches)
    assert rows_of(tmp_path / "lake") == rows_in(store)


def test_only_the_topics_and_columns_that_were_asked_for(store: Path, tmp_path: Path) -> None:
    chosen = source(store, topics=("trüb",), selection=selection_for(("queueOffset", "body"), "default"))
    export(
        LocalTasks(),
        chosen,
        ExportOptions(str(tmp_path / "lake"), partition_by=("dt", "hour"), codec="snappy"),
    )
    (path, *_rest) = sorted((tmp_path / "lake").glob("topic=*/**/*.parquet"))
    assert path.relative_to(tmp_path / "lake").parts[:3] == ("topic=trüb", "dt=2023-11-14", "hour=22")
    assert pq.ParquetFile(path).schema_arrow.names == ["queueOffset", "body", "topic", "storeTimestamp"]
    assert read_lake(str(tmp_path / "lake")).rows == sum(row[0] == "trüb" for row in rows_in(store))


class Crash(BaseException):
    """As if the driver had been killed."""


class CrashingTasks(LocalTasks):
    """Does pieces until its time has come, in the middle of a list of them as well as between two."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._left = pieces

    def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
        answers = []
        for piece in pieces:
            if self._left == 0:
                raise Crash
            self._left -= 1
            answers += super().run(function, [piece], label)
        return answers

    def shuffle(
        self,
        spread: Callable[[T], Iterable[tuple[Key, bytes]]],
        gather: Callable[[tuple[Key, list[bytes]]], R],
        pieces: Sequence[T],
        label: str,
    ) -> list[R]:
        raise AssertionError("an export needs no shuffle")


def test_an_export_that_dies_after_any_piece_goes_on_where_it_was(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    crashes = left_a_plan = 0
    rng = random.Random(1)
    for _run in range(400):
        try:
            run(store, lake, CrashingTasks(rng.randrange(6, 18)), max_per_batch=100)
            break
        except Crash:
            crashes += 1
            left_a_plan += (lake / "_ropewalk").exists() and read_lake(str(lake)).pending is not None
            rows = rows_of(lake)
            assert len(rows) == len(set(rows)), "a reader of the directories saw a row twice"
    assert crashes > 8 and left_a_plan > 1
    assert rows_of(lake) == rows_in(store) and manifest_agrees(lake)
    assert not (lake / "_staging").exists()


@pytest.mark.parametrize("call", ["replace", "link", "fsync"])
def test_an_export_that_dies_at_any_step_of_a_commit_goes_on(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    lake = tmp_path / "lake"
    original = getattr(os, call)
    for at in range(0, 60, 4):
        left = at

        def dying(*args: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, dying)
            try:
                run(store, lake, max_per_batch=150)
                break
            except Crash:
                continue
    run(store, lake, max_per_batch=150)
    assert rows_of(lake) == rows_in(store) and manifest_agrees(lake)


def test_files_are_whole_on_disk_before_they_get_their_names(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are their names before the manifest says that there are such files."""
    lake = tmp_path / "lake"
    synced: dict[int, int] = {}
    unsynced: set[Path] = set()
    named: list[str] = []
    replace_file, link_file = os.replace, os.link

    def fsync(fd: int) -> None:
        found = os.fstat(fd)
        synced[found.st_ino] = found.st_size
        unsynced.discard(Path(os.readlink(f"/proc/self/fd/{fd}")))

    def replaced(source: Any, target: Any) -> None:
        found = os.stat(source)
        assert synced.get(found.st_ino) == found.st_size > 0
        named.append(str(target))
        replace_file(source, target)
        unsynced.update(path for path in Path(target).parents if path == lake or lake in path.parents)

    def linked(source: Any, target: Any) -> None:
        found = os.stat(source)
        assert synced.get(found.st_ino) == found.st_size > 0
        assert not unsynced
        link_file(source, target)
        unsynced.add(Path(target).parent)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "link", linked)
    done = run(store, lake)
    assert len(named) == len(done.files) > 10
    assert not unsynced


def test_a_full_disk_is_told_and_nothing_counts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".parquet"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TaskFailed, match=r"cannot write below .*No space left"):
            run(store, lake)
    assert read_lake(str(lake)).rows == 0 and rows_of(lake) == []
    assert not list((lake / "_staging").rglob("*.parquet")), (
        "what was left takes the room that was made since"
    )
    run(store, lake)
    assert rows_of(lake) == rows_in(store) and manifest_agrees(lake)


def test_two_exports_at_once_do_not_double_a_row(store: Path, tmp_path: Path) -> None:
    """Whichever of them plans a batch, both write the same files, and one commit counts."""
    lake = tmp_path / "lake"
    for pieces in range(5, 40):
        with pytest.raises(Crash):
            run(store, lake, CrashingTasks(pieces), max_per_batch=150)
        state = read_lake(str(lake))
        if state.pending is not None:
            break
    assert state.pending is not None
    other = BatchPlan(state.batches, None, {"log": 1}, [[0, 1]], "")
    assert record_plan((str(lake), other)) == state.pending

    class Overtaken(LocalTasks):
        def run(self, function: Callable[[T], R], pieces: Sequence[T], label: str) -> list[R]:
            if label == "batch 1":
                run(store, lake, max_per_batch=200)
                raise TaskFailed("no such file: the other export has removed it", "CannotWriteLake")
            return super().run(function, pieces, label)

    done = run(store, lake, Overtaken(), max_per_batch=150)
    assert export_report(ExportOptions(str(lake)), done).summary["rows_in_lake"] == 500 > done.rows_before > 0
    run(store, lake, max_per_batch=400)
    assert rows_of(lake) == rows_in(store) and manifest_agrees(lake)


def test_small_files_become_large_ones_of_the_same_rows_whatever_happens_in_between(
    store: Path, tmp_path: Path
) -> None:
    copy = replica_of(store, tmp_path / "store")
    lake = tmp_path / "lake"
    run(copy, lake, max_per_batch=60)
    before = read_lake(str(lake))
    largest = max(file.bytes for file in before.files)
    crashes = 0
    for pieces in range(1, 40):
        try:
            done = compact(CrashingTasks(pieces), str(lake), target_bytes=4 * largest)
            break
        except Crash:
            crashes += 1
            state = read_lake(str(lake))
            assert state.rows == 500 and all((lake / file.path).exists() for file in state.files)
    assert crashes > 3 and done.resumed and done.replaced > len(done.merged) > 0
    after = read_lake(str(lake))
    assert len(after.files) == done.files_before - done.replaced + len(done.merged) < len(before.files)
    assert after.position == before.position and manifest_agrees(lake)
    assert rows_of(lake) == rows_in(copy) and not (lake / "_staging").exists()
    schema = selection_for((), "full").arrow_schema()
    for merged in done.merged:
        assert pq.read_schema(lake / merged.path).equals(schema)
        times = (
            pq.read_table(lake / merged.path, columns=["storeTimestamp"]).column(0).cast("int64").to_pylist()
        )
        assert (merged.min_time_ms, merged.max_time_ms) == (min(times) // 1000, max(times) // 1000)
    assert not compact(LocalTasks(), str(lake), target_bytes=1).merged
    # What an export finds begun it completes, and goes on behind it.
    fill(copy, 77, first=500, seed=3)
    run(copy, lake, max_per_batch=20)
    with pytest.raises(Crash):
        compact(CrashingTasks(3), str(lake), target_bytes=4 * largest)
    assert read_lake(str(lake)).pending is not None
    fill(copy, 11, first=577, seed=3)
    assert sum(batch[3] for batch in run(copy, lake).batches) == 11
    assert rows_of(lake) == rows_in(copy) and manifest_agrees(lake)
    assert read_lake(str(lake)).compactions == 2


def test_a_lake_is_not_compacted_under_a_batch_that_was_begun(store: Path, tmp_path: Path) -> None:
    with pytest.raises(LakeMismatch, match="is no lake"):
        compact(LocalTasks(), str(tmp_path), target_bytes=1 << 20)
    lake = tmp_path / "lake"
    run(store, lake, max_per_batch=100)
    state = read_lake(str(lake))
    begun = BatchPlan(state.batches, state.position, {"log": 1}, [[0, 1]], state.last)
    record_plan((str(lake), begun))
    with pytest.raises(LakeMismatch, match="has begun batch"):
        compact(LocalTasks(), str(lake), target_bytes=1 << 20)


def test_a_lake_of_something_else_is_refused(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "lake")
    with pytest.raises(TaskFailed, match=r"lake with topics \[\].*has \['orders'\]"):
        export(LocalTasks(), source(store, topics=("orders",)), ExportOptions(str(tmp_path / "lake")))
    with pytest.raises(TaskFailed, match="partition_by"):
        run(store, tmp_path / "lake", partition_by=("dt", "hour"))
    for wrong in ({"codec": "zip"}, {"partition_by": ("day",)}):
        with pytest.raises(BadExport):
            run(store, tmp_path / "lake", **wrong)


def test_a_mistake_in_what_is_read_leaves_no_lake_behind(store: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = ExportOptions(str(lake))
    with pytest.raises(TaskFailed, match="no store directory"):
        export(LocalTasks(), source(tmp_path / "nowhere"), options)
    assert not lake.exists()
    export(LocalTasks(), source(store, topics=("orders",)), options)
    assert rows_of(lake) and manifest_agrees(lake)


def test_a_lake_that_cannot_be_made_is_named(store: Path, tmp_path: Path) -> None:
    (tmp_path / "lake").write_bytes(b"")
    with pytest.raises(TaskFailed, match=r"lake .*cannot be made \(Not a directory\): give a directory"):
        run(store, tmp_path / "lake")


def test_a_manifest_that_somebody_changed_is_refused(store: Path, tmp_path: Path) -> None:
    run(store, tmp_path / "lake", max_per_batch=150)
    commit = tmp_path / "lake" / "_ropewalk" / "commits" / "00000001.json"
    document = json.loads(commit.read_text())
    document["previous"] = "0" * 32
    commit.write_text(json.dumps(document))
    with pytest.raises(LakeDamaged, match="does not follow"):
        read_lake(str(tmp_path / "lake"))


def test_damage_is_refused_or_left_out_as_asked(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "store")
    pair = Pair.of(copy, copy)
    in_field(3)(pair, 300)
    with pytest.raises(DamagedLog, match="audit --repair"):
        run(copy, tmp_path / "refused")
    in_body(0.5, 1)(pair, 310)
    export(LocalTasks(), source(copy, on_corrupt="skip"), ExportOptions(str(tmp_path / "lake")))
    gone = {(r.topic, r.queue_id, r.queue_offset) for r in (pair.records[300], pair.records[310])}
    wanted = [row for row in rows_in(store) if row[:3] not in gone]
    assert rows_of(tmp_path / "lake") == wanted


def test_what_retention_took_before_it_was_exported_is_lost_data(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "store")
    export(LocalTasks(), source(copy), ExportOptions(str(tmp_path / "lake"), max_per_batch=50))
    commits = tmp_path / "lake" / "_ropewalk" / "commits"
    plans = tmp_path / "lake" / "_ropewalk" / "plans"
    for path in sorted(commits.iterdir())[1:] + sorted(plans.iterdir())[1:]:
        path.unlink()
    for path in sorted((copy / "commitlog").iterdir())[:2]:
        path.unlink()
    with pytest.raises(DataLoss, match=r"has come to log offset \d+, and"):
        run(copy, tmp_path / "lake")


def test_records_that_are_gone_when_their_turn_comes_are_not_passed_over(store: Path, tmp_path: Path) -> None:
    """A plan that a crash left counts on them; the log, cut where a record begins, looks whole."""
    copy = replica_of(store, tmp_path / "store")
    lake = tmp_path / "lake"
    with pytest.raises(Crash):
        run(copy, lake, CrashingTasks(20))
    assert read_lake(str(lake)).pending is not None
    log = segment(copy, 3)
    cut = [r.offset - int(log.name) for r in Pair.of(copy, copy).records if r.offset < int(log.name) + 32768][
        -3
    ]
    whole = log.read_bytes()
    for left in (whole[:cut], whole[:cut] + bytes(len(whole) - cut)):
        log.write_bytes(left)
        with pytest.raises(TaskFailed, match=r"98304 holds no record at log offset"):
            run(copy, lake)
    log.write_bytes(whole)
    run(copy, lake)
    assert rows_of(lake) == rows_in(store) and manifest_agrees(lake)


def test_a_batch_is_cut_by_topic_and_day() -> None:
    import pyarrow as pa

    rng = random.Random(4)
    days = [1_700_000_000_000_000 + 86_400_000_000 * rng.randrange(3) for _ in range(50)]
    topics = [rng.choice(TOPICS) for _ in range(50)]
    batch = pa.record_batch(
        {
            "topic": topics,
            "storeTimestamp": pa.array(days).cast(pa.timestamp("us", tz="UTC")),
            "n": list(range(50)),
            "body": pa.array([b"x" * n for n in range(50)]).cast(pa.binary_view()),
        }
    )
    parts = list(_parted(batch, ("dt", "hour")))
    assert sorted(n for _key, part, _low, _high in parts for n in part.column("n").to_pylist()) == list(
        range(50)
    )
    for key, part, low, high in parts:
        assert [len(body) for body in part.column("body").to_pylist()] == part.column("n").to_pylist()
        # What counts for a row group: the bytes of these rows, and not of all that their views could look at.
        assert _size(part) == sum(part.column("n").to_pylist()) + sum(
            part.column(name).nbytes for name in ("topic", "storeTimestamp", "n")
        )
        assert set(part.column("topic").to_pylist()) == {key[0]}
        assert {value.strftime("%Y-%m-%d") for value in part.column("storeTimestamp").to_pylist()} == {key[1]}
        assert low <= high and key[2] == "22"
    assert len(parts) == len(set(zip(topics, days, strict=True)))
