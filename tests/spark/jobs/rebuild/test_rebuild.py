"""Queues and index that are built from the log alone are those of the broker, byte by byte."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ropewalk.format.index import Geometry, IndexHeader
from ropewalk.spark.jobs.audit.job import AuditOptions, audit
from ropewalk.spark.jobs.common.tasks import LocalTasks, TaskFailed
from ropewalk.spark.jobs.export.job import ExportOptions, export
from ropewalk.spark.jobs.export.sources import StoreSource, selection_for
from ropewalk.spark.jobs.rebuild.index_files import items_of, pack_index
from ropewalk.spark.jobs.rebuild.job import CannotRebuild, RebuildOptions, rebuild, rebuild_report
from ropewalk.spark.jobs.rebuild.queue_files import QueueFiles
from ropewalk.spark.jobs.records.log_files import open_store
from ropewalk.spark.jobs.records.queue_check import pack
from ropewalk.spark.jobs.records.walk import scan_stretch, walk
from store.index.file import IndexFile
from store.io.disk import Disk
from tests.spark.jobs.faults import Pair, in_field
from tests.spark.jobs.stores import GEOMETRY, fill, replica_of
from tests.spark.stores import MadeStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rebuild") / "store"
    # Slowly: an index counts in seconds, also from the end of one file to the first item of the next. And some of its
    # files end between two records, which those of the usual size never do here.
    fill(root, 700, step_ms=1700, index=Geometry(GEOMETRY.slots, GEOMETRY.items - 2))
    # Stopped and started between.
    fill(root, 500, first=700, seed=8, step_ms=1700, index=Geometry(GEOMETRY.slots, GEOMETRY.items - 2))
    return root


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()
    }


def test_queues_and_index_are_the_brokers_own(store: Path, tmp_path: Path) -> None:
    options = RebuildOptions(str(store), str(tmp_path / "out"), verify=True, piece_size=20_000)
    done = rebuild(LocalTasks(), options)
    report = rebuild_report(options, done)
    assert report.exit_code == 0 and not done.different
    assert report.summary["records"] == report.summary["entries"] == 1200
    assert contents(tmp_path / "out" / "consumequeue") == contents(store / "consumequeue")
    built, own = (sorted((root / "index").iterdir()) for root in (tmp_path / "out", store))
    assert len(own) > 3
    assert [path.read_bytes() for path in built] == [path.read_bytes() for path in own]


def test_one_topic_alone_can_be_rebuilt(store: Path, tmp_path: Path) -> None:
    options = RebuildOptions(str(store), str(tmp_path / "out"), ("consumequeue",), ("trüb",), verify=True)
    done = rebuild(LocalTasks(), options)
    assert not done.different and not (tmp_path / "out" / "index").exists()
    assert contents(tmp_path / "out" / "consumequeue" / "trüb") == contents(store / "consumequeue" / "trüb")
    assert [path.name for path in (tmp_path / "out" / "consumequeue").iterdir()] == ["trüb"]


def test_what_differs_from_the_stores_own_is_named(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "copy")
    pair = Pair.of(copy, copy)
    pair.set_entry(0, pair.records[30], bytes(20))
    index = sorted((copy / "index").iterdir())[1]
    data = bytearray(index.read_bytes())
    data[GEOMETRY.item_position(7)] ^= 1
    index.write_bytes(data)
    options = RebuildOptions(str(copy), str(tmp_path / "out"), verify=True)
    done = rebuild(LocalTasks(), options)
    record = pair.records[30]
    assert done.different == [
        (f"consumequeue/{record.topic}/{record.queue_id}", "1 entries differ"),
        ("index", f"{index.name} differs from byte {GEOMETRY.item_position(7)} on"),
    ]
    assert rebuild_report(options, done).exit_code == 1


def test_a_source_and_a_used_directory_are_not_written_to(store: Path, tmp_path: Path) -> None:
    with pytest.raises(CannotRebuild, match="never writes into the store"):
        rebuild(LocalTasks(), RebuildOptions(str(store), str(store / "new")))
    (tmp_path / "file").touch()
    with pytest.raises(TaskFailed, match="not empty"):
        rebuild(LocalTasks(), RebuildOptions(str(store), str(tmp_path)))
    with pytest.raises(CannotRebuild, match="'queues'"):
        rebuild(LocalTasks(), RebuildOptions(str(store), str(tmp_path), ("queues",)))


# -- the cores, without Spark ------------------------------------------------------------------------


@pytest.mark.parametrize("piece_size", [700, 3000, 1 << 20])
def test_a_walk_in_pieces_finds_what_a_walk_in_one_finds(store: Path, piece_size: int) -> None:
    files = open_store(str(store))
    whole = walk(LocalTasks(), files)
    pieces = walk(LocalTasks(), files, piece_size=piece_size)
    assert (
        (pieces.records, pieces.end, pieces.lost) == (whole.records, whole.end, ()) == (1200, whole.end, ())
    )

    def offsets(stretches: object) -> list[int]:
        return [o for s in stretches for o in scan_stretch(s)[0].records.offset.tolist()]  # type: ignore[attr-defined]

    assert offsets(pieces.stretches) == offsets(whole.stretches)


def test_a_walk_goes_on_behind_damage_and_says_what_is_lost(store: Path, tmp_path: Path) -> None:
    copy = replica_of(store, tmp_path / "copy")
    pair = Pair.of(copy, copy)
    in_field(3)(pair, 500)
    record = pair.records[500]
    found = walk(LocalTasks(), open_store(str(copy)), piece_size=4000)
    assert found.records == 1199
    assert found.lost == ((record.offset, record.offset + record.size),)


def test_a_topic_that_no_directory_can_have_leads_nowhere(tmp_path: Path) -> None:
    """A damaged record can name any, and a foreign one a place to write to."""
    made = MadeStore(tmp_path / "store")
    for topic in (f"{tmp_path}/a", "../../../../b", "..", "c\0c", "d" * 300, "%RETRY%e|f", "orders"):
        made.append(topic, dispatch=False)
    assert len(audit(LocalTasks(), AuditOptions((str(made.root),))).findings) == 7
    options = RebuildOptions(str(made.root), str(tmp_path / "out"), ("consumequeue",))
    assert [queue.topic for queue in rebuild(LocalTasks(), options).queues] == ["%RETRY%e|f", "orders"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]
    lake = tmp_path / "lake"
    rows = StoreSource(str(made.root), ("d" * 300,), selection_for((), "default"), "b")
    with pytest.raises(TaskFailed, match=r"topic=ddd\S* is longer than the name of a directory can be"):
        export(LocalTasks(), rows, ExportOptions(str(lake)))


@pytest.mark.parametrize("at", [20, 22])
def test_a_number_far_from_all_others_makes_no_files_between(store: Path, tmp_path: Path, at: int) -> None:
    """A flipped bit of a record's number, which no checksum covers: a file would be made for each 100 in between."""
    copy = replica_of(store, tmp_path / "copy")
    pair = Pair.of(copy, copy)
    record = pair.records[500]
    pair.flip(0, record.offset + at, 0x40)
    options = RebuildOptions(str(copy), str(tmp_path / "out"), ("consumequeue",), verify=True)
    done = rebuild(LocalTasks(), options)
    assert rebuild_report(options, done).exit_code == 1
    assert [q.topic for q in done.queues if q.astray] == [record.topic] and done.walk.records == 1200
    assert done.different == [(f"consumequeue/{record.topic}/{record.queue_id}", "1 entries differ")]


def test_a_queue_that_begins_late_is_filled_up_to_its_first_number() -> None:
    files: dict[int, bytes] = {}
    writer = QueueFiles("T", 0, 200, files.__setitem__)
    numbers = np.array([13, 14, 14, 16, 31], np.int64)
    writer.add(numbers, pack(numbers * 100, numbers, np.array([1, 2, 3, 4, 5])))
    built = writer.finish()
    assert (built.first, built.following, built.doubles, built.holes, built.files) == (13, 32, 1, 15, 3)
    blank = (0).to_bytes(8, "big") + (0x7FFFFFFF).to_bytes(4, "big") + bytes(8)

    def entry(number: int, code: int) -> bytes:
        return (number * 100).to_bytes(8, "big") + number.to_bytes(4, "big") + code.to_bytes(8, "big")

    assert files == {
        200: blank * 3 + entry(13, 1) + entry(14, 3) + blank + entry(16, 4) + blank * 3,
        400: blank * 10,
        600: blank + entry(31, 5),
    }


@pytest.mark.parametrize("seed", range(5))
def test_a_packed_index_is_what_the_store_would_have_written(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    geometry = Geometry(rng.randrange(1, 40), 60)
    before = IndexHeader(5000, 9000, 10, 90, 3, 60) if seed % 2 else None
    path = tmp_path / "own"
    disk = Disk()
    own = IndexFile(
        disk.create_paged(path, geometry.file_size), geometry, before.following() if before else IndexHeader()
    )
    hashes: list[int] = []
    offsets: list[int] = []
    stored: list[int] = []
    offset, at = 100, 8000 if seed < 3 else 12_000
    while len(hashes) < 59:
        values = [rng.randrange(1 << 31) for _ in range(rng.randrange(3))][: 59 - len(hashes)]
        own.put(values, offset, at)
        hashes += values
        offsets += [offset] * len(values)
        stored += [at] * len(values)
        offset, at = offset + rng.randrange(1, 500), at + rng.randrange(3000)
    own.write_back()
    disk.close()
    made = bytearray(geometry.file_size)
    for part in pack_index(np.array(hashes), np.array(offsets), np.array(stored), geometry, before):
        made[part.position : part.position + len(part.data)] = part.data
    assert bytes(made) == path.read_bytes()


def test_items_are_counted_with_the_records_that_have_none(store: Path) -> None:
    (stretch, *_rest) = walk(LocalTasks(), open_store(str(store))).stretches
    found, window = scan_stretch(stretch)
    items = items_of(window.data, found.records)
    assert items.records == len(found.records) and items.last_offset == found.records.offset[-1]
    assert len(items.hashes) > items.records
    none = items_of(window.data, found.records.select(slice(0, 0)))
    assert (len(none.hashes), none.records, none.last_offset) == (0, 0, -1)
