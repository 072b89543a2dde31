"""`verify` finds what is wrong with a store, says where, and finds nothing in stores that are as they should be."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.index import HEADER_SIZE, Geometry, IndexHeader
from ropewalk.format.queue_entry import ENTRY_SIZE
from store.io.disk import Disk, StoreLocked
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Finding
from store.offline.layout import Layout, guess_layout
from store.offline.verify import Verification
from tests.store.worlds import HOST, QUEUE_FILE_SIZE, put, settle
from tests.support.clocks import Clock
from tests.support.recorded_stores import unpack
from tests.support.stores import GEOMETRY, RECORDS, SEGMENT_SIZE, config, damages, fill, flip, look, segments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "store")
    return tmp_path / "store"


def test_a_store_that_was_stopped_is_clean_and_everything_was_looked_at(root: Path) -> None:
    found = look(root)
    assert not found.findings
    counts = found.counts
    assert (counts.records, counts.entries, counts.items, counts.queues) == (RECORDS, RECORDS, RECORDS, 4)
    assert counts.blocks * 512 >= found.end
    assert counts.segments > 3


def test_the_sizes_are_read_off_the_files(root: Path) -> None:
    layout = guess_layout(DryRunDisk(), Layout(root, root / "commitlog"))
    assert (layout.segment_size, layout.queue_file_size, layout.index) == (
        SEGMENT_SIZE,
        QUEUE_FILE_SIZE,
        GEOMETRY,
    )


def test_looking_changes_no_file(root: Path) -> None:
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }
    look(root)
    assert before == {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }


def test_a_store_in_use_is_not_judged(root: Path) -> None:
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    with pytest.raises(StoreLocked, match="in use"):
        look(root)
    store.close()
    assert not damages(root)


def test_any_bit_of_the_log_is_found_with_its_file_and_offset(root: Path) -> None:
    chance = random.Random(2)
    end = look(root).end
    for _ in range(150):
        offset = chance.randrange(end)
        path, position = segments(root)[offset // SEGMENT_SIZE], offset % SEGMENT_SIZE
        flip(path, position)
        found = damages(root)
        assert any(finding.path == str(path) for finding in found), (path.name, position)
        assert all("log offset" in f.place or f.advice for f in found)
        flip(path, position)
    assert not damages(root)


@pytest.mark.parametrize("name", ["consumequeue", "index"])
def test_any_bit_of_queue_files_and_index_is_found(root: Path, name: str) -> None:
    chance = random.Random(4)
    paths = [path for path in sorted((root / name).rglob("*")) if path.is_file()]
    for _ in range(200):
        path = chance.choice(paths)
        data = path.read_bytes()
        written = [at for at, byte in enumerate(data) if byte]
        position = chance.choice(written)
        flip(path, position, chance.randrange(8))
        assert damages(root), (path, position)
        path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("change", [remove, halve])
def test_a_file_gone_or_cut_is_found(root: Path, change: Callable[[Path], None], tmp_path: Path) -> None:
    names = [segments(root)[0], segments(root)[1]]
    names += [path for path in (root / "consumequeue").rglob("0*") if path.is_file()]
    for path in names:
        copy = tmp_path / "copy"
        shutil.copytree(root, copy)
        change(copy / path.relative_to(root))
        assert damages(copy), path
        shutil.rmtree(copy)


def test_an_index_file_cut_so_short_that_nobody_knows_its_shape_is_found(root: Path) -> None:
    (path,) = (root / "index").iterdir()
    for size in (100, 10):
        path.write_bytes(path.read_bytes()[:size])
        assert [finding.path for finding in look(root).findings if finding.damage] == [str(path)]


def test_a_hole_in_a_queue_file_names_file_entry_and_remedy(root: Path) -> None:
    (path,) = [p for p in (root / "consumequeue" / "T" / "1").iterdir() if p.name == "0" * 20]
    data = bytearray(path.read_bytes())
    data[3 * ENTRY_SIZE : 4 * ENTRY_SIZE] = bytes(ENTRY_SIZE)
    path.write_bytes(data)
    (found,) = damages(root)
    assert (found.path, found.place) == (str(path), "entry 3")
    assert "missing; its record stands at log offset" in found.text
    assert "ropewalk store repair" in found.advice


def test_a_message_missing_from_its_queue_and_an_end_missing_from_the_log_are_found(root: Path) -> None:
    shutil.rmtree(root / "ropewalk" / "checksums")
    first = segments(root)[0]
    at = 0
    for _ in range(9):
        at += int.from_bytes(first.read_bytes()[at : at + 4], "big")
    flip(first, at + 15, 3)  # a record says another queue: nothing but the numbers of the others tells
    assert any("are not in the log" in finding.text for finding in damages(root))
    flip(first, at + 15, 3)
    assert not damages(root)
    for path in segments(root)[3:]:
        path.unlink()
    assert any("promised to be durable" in finding.text for finding in damages(root))


def test_an_entry_that_no_record_asked_for_is_found(root: Path) -> None:
    directory = root / "consumequeue" / "U" / "0"
    assert len(list(directory.iterdir())) == 1, "all of its ten entries are in use"
    more = struct.pack(">qiq", 0, 100, 0).ljust(QUEUE_FILE_SIZE, b"\0")
    (directory / f"{QUEUE_FILE_SIZE:020d}").write_bytes(more)
    assert any("where no record of this queue stands" in finding.text for finding in damages(root))


@pytest.mark.parametrize("what", ["empty slot", "time", "hash"])
def test_what_is_zero_in_an_index_or_stays_in_its_chain_is_looked_at_too(root: Path, what: str) -> None:
    (path,) = (root / "index").iterdir()
    data = bytearray(path.read_bytes())
    item = GEOMETRY.item_position(7)
    if what == "empty slot":
        slots = [GEOMETRY.slot_position(slot) for slot in range(GEOMETRY.slots)]
        at = next(at for at in slots if not any(data[at : at + 4]))
        data[at : at + 4] = (1).to_bytes(4, "big")
    elif what == "time":
        data[item + 15] ^= 1
    else:
        value = int.from_bytes(data[item : item + 4], "big")
        value += GEOMETRY.slots if value < 1 << 30 else -GEOMETRY.slots
        data[item : item + 4] = value.to_bytes(4, "big")
    path.write_bytes(data)
    assert any(finding.path == str(path) for finding in damages(root))


def test_an_entry_that_waits_as_long_as_it_should_has_the_time_and_not_the_tag(root: Path) -> None:
    layout = guess_layout(DryRunDisk(), Layout(root, root / "commitlog"))
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    queue = store.queue("SCHEDULE_TOPIC_XXXX", 2)
    store.begin_turn()
    due = store.now + 10_000
    store.put([(queue, b"later", b"DELAY\x013\x02TAGS\x01x\x02", 0, 0, store.now, 0, 0, due)], HOST)
    store.publish()
    settle(store)
    store.close()
    assert not damages(root)
    path = root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "2" / ("0" * 20)
    path.write_bytes(path.read_bytes()[:12] + struct.pack(">q", 120) + path.read_bytes()[20:])
    verification = Verification(layout, DryRunDisk())
    verification.run()
    (found,) = [finding for finding in verification.findings if finding.damage]
    assert "time of delivery 120" in found.text


@pytest.mark.parametrize("records", [20, 60])
def test_what_a_kill_leaves_is_no_damage_however_much_it_is(tmp_path: Path, records: int) -> None:
    store = MessageStore(config(tmp_path / "store"), Disk(), Clock(), lambda: None)
    store.open()
    put(store, [b"x" * 50] * records)
    settle(store)
    shutil.copytree(tmp_path / "store", tmp_path / "killed")
    store.close()
    found = look(tmp_path / "killed").findings
    assert found and not any(finding.damage for finding in found)


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_a_store_of_rocketmq_is_clean_and_its_leftovers_are_notes(name: str, tmp_path: Path) -> None:
    unpack(name, tmp_path / "store")
    found = look(tmp_path / "store")
    assert not [finding for finding in found.findings if finding.damage]
    assert any("leftover" in finding.text for finding in found.findings)
    assert found.counts.records == found.counts.entries == 131
    assert found.layout.index == Geometry(100, 400)
    if name == "clean":
        assert found.counts.items == 386


def test_a_queue_that_began_anew_as_its_topic_was_created_again_is_no_damage(tmp_path: Path) -> None:
    """A slave's files: nobody deleted the topic there, so nothing beside the log tells of it."""
    store = MessageStore(config(tmp_path), Disk(), Clock(), lambda: None)
    store.open()
    put(store, [b"1", b"2", b"3"], "T")
    store.delete_topic("T", lambda _done: None)
    put(store, [b"new"], "T")
    settle(store)
    store.close()
    (tmp_path / "ropewalk" / "deleted").unlink()
    assert damages(tmp_path) == []
    assert any("deleted and created again" in finding.text for finding in look(tmp_path).findings)


def gone(name: str) -> Callable[[Path], None]:
    return lambda root: shutil.rmtree(root / name)


def end_gone(root: Path) -> None:
    for path in segments(root)[3:]:
        path.unlink()


def queue_file(root: Path, index: int) -> Path:
    return sorted((root / "consumequeue" / "T" / "1").iterdir())[index]


@pytest.mark.parametrize(
    "change",
    [
        gone("consumequeue"),
        gone("consumequeue/T"),
        gone("consumequeue/T/0"),
        gone("commitlog"),
        lambda root: queue_file(root, 0).unlink(),
        lambda root: queue_file(root, -1).unlink(),
        lambda root: halve(queue_file(root, 0)),
        lambda root: queue_file(root, 0).write_bytes(bytes(QUEUE_FILE_SIZE)),
        lambda root: segments(root)[0].unlink(),
        lambda root: segments(root)[1].unlink(),
        lambda root: halve(segments(root)[1]),
        end_gone,
        lambda root: flip(segments(root)[1], 300, 3),
    ],
)
def test_one_cause_is_one_finding(root: Path, change: Callable[[Path], object]) -> None:
    change(root)
    found = damages(root)
    assert len(found) == 1, "\n".join(map(str, found))


def test_two_holes_in_a_queue_are_two_findings(root: Path) -> None:
    path = queue_file(root, 0)
    data = bytearray(path.read_bytes())
    data[: 2 * ENTRY_SIZE] = bytes(2 * ENTRY_SIZE)
    data[5 * ENTRY_SIZE : 6 * ENTRY_SIZE] = bytes(ENTRY_SIZE)
    path.write_bytes(data)
    assert [finding.place for finding in damages(root)] == ["entry 0", "entry 5"]


def index_of_two_files(root: Path) -> list[Path]:
    """A store with an index of which the first file is full in the middle of a record's items."""
    geometry = Geometry(10, 50)
    settings = replace(config(root), index=geometry)
    store = MessageStore(settings, Disk(), Clock(), lambda: None)
    store.open()
    for number in range(20):
        properties = f"KEYS\x01a{number} b{number} c{number}\x02UNIQ_KEY\x01u{number}\x02".encode()
        store.begin_turn()
        store.put([(store.queue("T", 0), b"x", properties, 0, 0, store.now, 0, 0, 0)], HOST)
        store.publish()
    settle(store)
    store.close()
    files = sorted((root / "index").iterdir())
    assert len(files) == 2
    header = IndexHeader.decode(files[0].read_bytes()[:HEADER_SIZE])
    assert header.end_offset == IndexHeader.decode(files[1].read_bytes()[:HEADER_SIZE]).begin_offset
    return files


def index_damages(root: Path) -> list[Finding]:
    disk = DryRunDisk()
    layout = guess_layout(disk, Layout(root, root / "commitlog", index=Geometry(10, 50)))
    verification = Verification(layout, disk)
    verification.run()
    return [finding for finding in verification.findings if finding.damage]


def test_a_record_whose_other_items_the_next_start_builds_again_is_no_damage(tmp_path: Path) -> None:
    """As RocketMQ leaves it behind a kill: the checkpoint vouches for the full file alone."""
    root = tmp_path / "store"
    index_of_two_files(root)
    (root / "abort").write_bytes(b"1")
    assert not index_damages(root)


@pytest.mark.parametrize("which", [0, 1])
def test_a_record_whose_other_items_went_with_their_file_is_no_damage(tmp_path: Path, which: int) -> None:
    """The older file goes with retention; the newer one is built again."""
    root = tmp_path / "store"
    index_of_two_files(root)[which].unlink()
    assert not index_damages(root)


def test_an_item_of_no_key_is_damage_also_where_two_files_meet(tmp_path: Path) -> None:
    root = tmp_path / "store"
    files = index_of_two_files(root)
    geometry = Geometry(10, 50)
    (root / "abort").write_bytes(b"1")
    flip(files[0], geometry.item_position(geometry.items - 1) + 3, 4)
    assert index_damages(root)


def test_a_clock_that_was_set_back_is_no_damage(root: Path) -> None:
    point = Checkpoint.decode((root / "checkpoint").read_bytes())
    point.physic_msg_timestamp += 3 * 86_400_000
    (root / "checkpoint").write_bytes(point.encode())
    assert not damages(root)
    assert any("clock" in finding.text for finding in look(root, GEOMETRY).findings)
