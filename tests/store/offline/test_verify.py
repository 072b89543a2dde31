"""`verify` finds what is wrong with a store, says where, and finds nothing in stores that are as they should be."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.format.index import Geometry
from ropewalk.format.queue_entry import ENTRY_SIZE
from store.io.disk import Disk, StoreLocked
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
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
