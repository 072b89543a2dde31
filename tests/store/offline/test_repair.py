"""Repair takes bytes from another copy of the same log, names what nobody has, and builds the rest again."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.config import StoreConfig
from store.io.disk import Disk, StoreLocked
from store.log.commitlog import StoreDamaged
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
from store.offline.layout import Layout, guess_layout
from store.offline.repair import Repaired, repair
from store.offline.start_preview import recover_store, try_start
from tests.store.worlds import bodies, put, settle
from tests.support.clocks import Clock
from tests.support.stores import GEOMETRY, RECORDS, SEGMENT_SIZE, config, damages, fill, flip, segments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def backup(root: Path, tmp_path: Path) -> Path:
    shutil.copytree(root, tmp_path / "backup")
    return tmp_path / "backup"


def layout_of(root: Path) -> Layout:
    return guess_layout(DryRunDisk(), Layout(root, root / "commitlog", index=GEOMETRY))


def mend(root: Path, *others: Path, accept_loss: bool = False) -> Repaired:
    return repair(layout_of(root), others, accept_loss=accept_loss)


def everything(root: Path, settings: StoreConfig | None = None) -> dict[tuple[str, int], list[bytes]]:
    """What a broker would serve."""
    store = MessageStore(settings or config(root), Disk(), Clock(), lambda: None)
    store.open()
    found = {
        (topic, queue_id): bodies(store, topic, queue_id)
        for topic, queues in sorted(store.queues.items())
        for queue_id in sorted(queues)
    }
    store.close()
    return found


def test_any_damage_to_the_log_is_mended_from_a_backup(root: Path, backup: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    expected = everything(backup)
    for number in range(30):
        broken = tmp_path / f"broken-{number}"
        shutil.copytree(root, broken)
        path = chance.choice(segments(broken)[:4])
        kind = number % 4
        if kind == 0:
            flip(path, chance.randrange(SEGMENT_SIZE), chance.randrange(8))
        elif kind == 1:
            path.write_bytes(path.read_bytes()[: chance.randrange(SEGMENT_SIZE)])
        elif kind == 2:
            path.unlink()
        else:
            data = bytearray(path.read_bytes())
            at = chance.randrange(SEGMENT_SIZE - 600)
            data[at : at + 600] = bytes(600)
            path.write_bytes(data)
        done = mend(broken, backup)
        assert done.rebuilt and not done.lost, (kind, path)
        assert not damages(broken)
        assert everything(broken) == expected


def test_a_record_without_our_checksums_comes_from_a_replica_too(root: Path, backup: Path) -> None:
    for directory in (root, backup):
        shutil.rmtree(directory / "ropewalk" / "checksums")
    flip(segments(root)[1], 300, 3)
    done = mend(root, backup)
    assert done.rebuilt and done.taken
    assert everything(root) == everything(backup)


def test_another_log_is_not_taken_for_a_backup(root: Path, tmp_path: Path) -> None:
    other = MessageStore(config(tmp_path / "other"), Disk(), Clock(), lambda: None)
    other.open()
    for number in range(RECORDS):  # records of the same sizes at the same offsets
        body = f"massage {number} ".encode() * 10
        put(other, [body], topic="T" if number % 3 else "U", queue_id=number % 2, tags=f"t{number % 4}")
    settle(other)
    other.close()
    shutil.rmtree(root / "ropewalk" / "checksums")
    flip(segments(root)[1], 300, 3)
    before = {path: path.read_bytes() for path in segments(root)}
    done = mend(root, tmp_path / "other")
    assert done.lost and not done.taken and not done.rebuilt
    assert {path: path.read_bytes() for path in segments(root)} == before


def test_what_nobody_has_is_named_and_given_up_only_when_asked(root: Path, backup: Path) -> None:
    path = segments(root)[1]
    flip(path, 5, 6)  # a magic: nothing can be read there
    done = mend(root)
    assert not done.rebuilt
    assert any(str(path) in text and "log offset" in text for text in done.lost)
    assert try_start(layout_of(root), sync_flush=False).refusal is not None

    done = mend(root, accept_loss=True)
    assert done.rebuilt and done.lost and done.cut
    assert done.end == SEGMENT_SIZE
    assert not damages(root)
    before, after = everything(backup), everything(root)
    assert all(found == before[queue][: len(found)] for queue, found in after.items())
    assert sum(map(len, after.values())) > 5
    assert list((root / "ropewalk" / "tails").iterdir()), "what was cut is kept"


def test_queue_files_and_index_are_built_from_the_log(root: Path, backup: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "T")
    for path in (root / "index").iterdir():
        path.unlink()
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            flip(path, 7, 4)
    assert damages(root)
    assert mend(root).rebuilt
    assert not damages(root)
    for path in (p for p in (backup / "consumequeue").rglob("*") if p.is_file()):
        assert (root / path.relative_to(backup)).read_bytes() == path.read_bytes(), path
    (ours,), (theirs,) = (list((where / "index").iterdir()) for where in (root, backup))
    assert ours.read_bytes() == theirs.read_bytes()


def test_without_any_queue_file_they_are_built_in_the_usual_size(root: Path, backup: Path) -> None:
    """Nothing tells what mappedFileSizeConsumeQueue was, and a broker that was told nothing either has to start."""
    shutil.rmtree(root / "consumequeue")
    assert mend(root).rebuilt
    usual = replace(config(root), queue_file_size=6_000_000)
    assert everything(root, usual) == everything(backup)


def test_a_log_of_one_segment_is_known_to_be_cut(tmp_path: Path) -> None:
    root, backup = tmp_path / "store", tmp_path / "backup"
    fill(root, records=8)
    shutil.copytree(root, backup)
    (path,) = segments(root)
    path.write_bytes(path.read_bytes()[:1000])
    (queue_file,) = (root / "consumequeue" / "T" / "0").iterdir()
    queue_file.write_bytes(queue_file.read_bytes()[:55])
    alone = guess_layout(DryRunDisk(), Layout(root, root / "commitlog", index=GEOMETRY))
    assert (alone.segment_size, alone.queue_file_size) == (SEGMENT_SIZE, 200)
    shutil.rmtree(root / "ropewalk" / "checksums")  # a store of RocketMQ has none: then the backup tells
    layout = guess_layout(DryRunDisk(), Layout(root, root / "commitlog", index=GEOMETRY), [backup])
    assert repair(layout, [backup]).rebuilt
    assert not damages(root)
    assert everything(root) == everything(backup)


@pytest.mark.parametrize("folder_too", [False, True])
def test_a_log_without_any_file_comes_from_a_backup(root: Path, backup: Path, folder_too: bool) -> None:
    for path in segments(root):
        path.unlink()
    if folder_too:
        shutil.rmtree(root / "commitlog")
    assert mend(root, backup).rebuilt
    assert everything(root) == everything(backup)


def test_what_was_replaced_is_kept(root: Path, backup: Path) -> None:
    flip(segments(root)[0], 100, 1)
    damaged = segments(root)[0].read_bytes()
    mend(root, backup)
    (kept,) = (root / "ropewalk" / "replaced").iterdir()
    assert kept.read_bytes() == damaged[:512]


def test_a_store_in_use_is_not_repaired(root: Path) -> None:
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    with pytest.raises(StoreLocked):
        mend(root)
    store.close()


# -- recover -----------------------------------------------------------------------------------------


def test_the_preview_says_what_the_start_then_does(root: Path) -> None:
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    put(store, [b"more " * 20] * 5)
    settle(store)
    killed = root.with_name("killed")
    shutil.copytree(root, killed)
    store.close()
    before = {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()}
    preview = try_start(layout_of(killed), sync_flush=True)
    assert {path: path.read_bytes() for path in killed.rglob("*") if path.is_file()} == before
    done = recover_store(layout_of(killed), cut=False)
    assert preview.refusal is None
    assert (preview.end, preview.records, preview.scanned_from) == (done.end, done.records, done.scanned_from)
    assert everything(killed) == everything(root)


def test_the_decision_left_to_a_person_is_shown_first_and_costs_nothing_that_is_not_kept(
    tmp_path: Path,
) -> None:
    """Under SYNC_FLUSH: a place that cannot be read, behind the durable bound, with whole records behind it."""
    root = tmp_path / "store"
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    placed = put(store, [b"first"] * 3)
    settle(store)
    store._write_back.write_bound(clean=False)
    settle(store)
    placed += put(store, [b"second"] * 4)
    killed = tmp_path / "killed"
    shutil.copytree(root, killed)
    store.close()
    shutil.rmtree(killed / "ropewalk" / "checksums", ignore_errors=True)
    bad = placed[4][0]
    flip(segments(killed)[0], bad + 4, 1)

    strict = try_start(layout_of(killed), sync_flush=True)
    assert strict.refusal is not None and "ropewalk store recover" in strict.refusal
    cut = try_start(layout_of(killed), sync_flush=False)
    assert (cut.refusal, cut.end, cut.records_cut) == (None, bad, 2)
    assert recover_store(layout_of(killed), cut=True).end == bad
    assert everything(killed)["T", 0] == [b"first"] * 3 + [b"second"]
    (tail,) = (killed / "ropewalk" / "tails").iterdir()
    assert tail.read_bytes().count(b"second") == 3


# -- whole is clean ----------------------------------------------------------------------------------


def _stale_sidecar(root: Path) -> None:
    (root / "ropewalk" / "checksums" / f"{1 << 30:020d}").write_bytes(b"x")


def _more_entries(root: Path) -> None:
    directory = root / "consumequeue" / "U" / "0"
    (directory / f"{200:020d}").write_bytes(struct.pack(">qiq", 0, 100, 0).ljust(200, b"\0"))


def _queue_of_nothing(root: Path) -> None:
    directory = root / "consumequeue" / "gone" / "0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}").write_bytes(struct.pack(">qiq", 0, 100, 0).ljust(200, b"\0"))


def _torn_checkpoint(root: Path) -> None:
    (root / "checkpoint").write_bytes(b"short")


def _foreign_files(root: Path) -> None:
    for folder in ("consumequeue/T/0", "index"):
        (root / folder / "notes.txt").write_bytes(b"mine")


def test_a_foreign_file_in_the_log_is_refused_before_anything_is_changed(root: Path) -> None:
    (root / "commitlog" / "notes.txt").write_bytes(b"mine")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StoreDamaged, match="move it out"):
        mend(root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def _short_index(root: Path) -> None:
    (path,) = (root / "index").iterdir()
    path.write_bytes(path.read_bytes()[:100])


def _cut_queue_file(root: Path) -> None:
    path = sorted((root / "consumequeue" / "T" / "1").iterdir())[0]
    path.write_bytes(path.read_bytes()[:77])


def _odd_queue_name(root: Path) -> None:
    path = sorted((root / "consumequeue" / "T" / "1").iterdir())[0]
    path.rename(path.with_name("00000000000000000007"))


def _negative_times(root: Path) -> None:
    (root / "checkpoint").write_bytes(b"\xff" * 4096)


def _oldest_segment_gone(root: Path) -> None:
    segments(root)[0].unlink()


@pytest.mark.parametrize(
    "change",
    [
        _stale_sidecar, _more_entries, _queue_of_nothing, _torn_checkpoint, _foreign_files, _short_index,
        _cut_queue_file, _odd_queue_name, _negative_times, _oldest_segment_gone,
    ],
)  # fmt: skip
@pytest.mark.parametrize("accept_loss", [False, True])
def test_what_repair_calls_whole_verify_calls_clean(
    root: Path, change: Callable[[Path], None], accept_loss: bool
) -> None:
    change(root)
    done = mend(root, accept_loss=accept_loss)
    left = damages(root)
    assert done.rebuilt is not bool(left), "\n".join(map(str, left or done.lost))
