"""Files that somebody removes under an open store: none ends it, each is said once and counted."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.format.index import Geometry
from store.io.disk import Disk
from store.log.commitlog import segment_name
from store.message_store import MessageStore
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from store.retention.rules import RetentionRules
from tests.store.worlds import SEGMENT_SIZE, World, bodies, put, settle, wait_for, write_back

LOOK_MS = 10_001


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


@pytest.fixture
def store(world: World) -> Iterator[MessageStore]:
    """A store of four segments, with everything that a broker's has."""
    config = replace(
        world.config,
        retention=RetentionRules(),
        checksum_block=512,
        check_at_start=1 << 20,
        scrub_bytes_per_second=1 << 20,
        index=Geometry(50, 300),
        index_in_process=False,
        warm_window=0,
    )
    opened = MessageStore(config, Disk(), world.clock, lambda: None)
    opened.open()
    while len(opened.log.segments) < 4:
        put(opened, [b"%04d" % opened.queue("T", 0).next_offset + bytes(900)])
        settle(opened)
    write_back(opened)
    yield opened
    opened.close()


def path_of(store: MessageStore, index: int) -> Path:
    return store.log.segments[index].file.path


def pass_time(world: World, store: MessageStore, seconds: int = 25) -> list[str]:
    """Let so many seconds pass in which every helper does what is due; return what the store says."""
    said: list[str] = []
    for _ in range(seconds):
        world.clock.ms += 1000
        store.begin_turn()
        store.tick()
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            store.run_completions()
            time.sleep(0.001)
        wait_for(store, lambda: not is_busy(store))
        said += store.upkeep.take_findings()
    return said


def is_busy(store: MessageStore) -> bool:
    """Tell whether a helper thread has not come to its last order yet."""
    assert store.upkeep.cleaner is not None
    helpers = store.upkeep.cleaner._worker, store._write_back.worker, store._preallocator.worker
    return any(each.pending for each in helpers)


def read(store: MessageStore, offset: int) -> GetResult | None:
    reader = Reader(store.log, ReadLimits(), store.completions, threads=1)
    found: list[GetResult | None] = []
    queue = store.find_queue("T", 0)
    reader.get(queue, offset, 1, 1 << 20, None, found.append)
    wait_for(store, lambda: bool(found))
    reader.stop()
    return found[0]


def test_the_oldest_files_of_the_log_are_served_as_gone(world: World, store: MessageStore) -> None:
    first = store.log.segments[2].base_offset
    for index in (0, 1):
        path_of(store, index).unlink()
    said = pass_time(world, store)
    assert store.log.min_offset == first
    assert store.upkeep.removed_files == 2
    (line,) = [line for line in said if "removed by something else" in line]
    assert str(first) in line and segment_name(0) in line
    found = read(store, 0)
    assert found is not None and found.status is GetStatus.OFFSET_TOO_SMALL
    put(store, [b"more"])
    settle(store)
    assert bodies(store)[-1] == b"more"


def test_a_log_whose_directory_was_removed_takes_no_message_though_it_has_a_new_file(
    world: World, store: MessageStore
) -> None:
    pass_time(world, store)
    shutil.rmtree(store.log.directory)
    while not path_of(store, -1).exists():  # the directory comes back with the next file but one
        put(store, [bytes(900)])
        settle(store)
    write_back(store)
    said = pass_time(world, store)
    assert store.refusal is not None and "messages are refused" in store.refusal
    assert len([line for line in said if line == store.refusal]) == 1
    pass_time(world, store)
    assert store.refusal is not None, "it stays like this until it is restarted"


def test_a_file_in_the_middle_of_the_log_is_said_with_how_to_save_it(
    world: World, store: MessageStore
) -> None:
    path, wanted = path_of(store, 1), bodies(store)
    saved = path.read_bytes()
    path.unlink()
    said = pass_time(world, store)
    (line,) = [line for line in said if str(path) in line]
    assert store.upkeep.removed_files == 1 and store.log.min_offset == 0
    assert bodies(store) == wanted, "it is open here, and so it is served as long as this process lives"
    command = line.split("`")[1].split()
    assert command[0] == "cp"
    shutil.copyfile(command[1], command[2])
    assert path.read_bytes() == saved
    assert not [line for line in pass_time(world, store) if str(path) in line]


def test_behind_the_newest_file_of_the_log_nothing_is_taken(world: World, store: MessageStore) -> None:
    path = path_of(store, -1)
    path.unlink()
    said = pass_time(world, store)
    assert store.refusal is not None and str(path) in store.refusal
    assert [line for line in said if str(path) in line]
    assert store.upkeep.removed_files == 1


def test_a_removed_spare_is_made_again(world: World, store: MessageStore) -> None:
    room = store.log.segments[-1]
    while room is store.log.segments[-1] and store.log.spare is None:
        put(store, [bytes(500)])
        store.tick()
        settle(store)
    assert store.log.spare is not None
    path = store.log.spare.file.path
    path.unlink()
    pass_time(world, store)
    for _ in range(12):
        put(store, [bytes(900)])
        settle(store)
    assert path.exists()


@pytest.mark.parametrize("which", range(3))
def test_a_removed_queue_file_is_said_and_written_on(
    world: World, store: MessageStore, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted((world.root / "consumequeue" / "T" / "0").iterdir())
    files[(0, len(files) // 2, -1)[which]].unlink()
    store._disk.close()  # no descriptor of it is left in the pool
    put(store, [b"more"])
    write_back(store)
    queue = store.queue("T", 0)
    queue.mark_written(queue.readable, keep=0)
    for offset in range(queue.next_offset):
        read(store, offset)
    said = pass_time(world, store)
    assert [line for line in said if "consumequeue" in line], said
    assert store.upkeep.removed_files == 1
    put(store, [b"and more"])
    write_back(store)


def test_the_next_start_builds_a_removed_queue_file_again(world: World, store: MessageStore) -> None:
    wanted = bodies(store)
    for path in (world.root / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    put(store, [b"more"])
    write_back(store)
    killed = world.killed()
    with killed.opened() as again:
        assert bodies(again) == [*wanted, b"more"]


def test_a_removed_queue_file_is_not_read_through_an_old_descriptor(
    world: World, store: MessageStore
) -> None:
    (last,) = sorted((world.root / "consumequeue" / "T" / "0").iterdir())[-1:]
    store._disk.open_paged(last).read_at(0, 20)
    last.unlink()
    queue = store.queue("T", 0)
    put(store, [b"more"])
    write_back(store)
    number = queue.next_offset - 1
    file, position, size = queue.place(number, 1)
    assert any(file.read_at(position, size))


@pytest.mark.parametrize("name", ["checkpoint", "abort", "ropewalk/bound", "ropewalk/deleted"])
def test_a_small_file_is_written_again(world: World, store: MessageStore, name: str) -> None:
    path = world.root / name
    if name == "ropewalk/deleted":
        store.queue("other", 0)
        store.delete_topic("other", lambda _done: None)
    pass_time(world, store, 15)
    path.unlink(missing_ok=True)
    put(store, [b"more"])
    store.queue("another", 0)
    store.delete_topic("another", lambda _done: None)
    pass_time(world, store, 40)
    if name != "abort":
        data = path.read_bytes()
        assert data.count(0) < len(data)


@pytest.mark.parametrize(
    "folder", ["index", "ropewalk/checksums", "ropewalk", "consumequeue", "commitlog", "."]
)
def test_a_whole_folder_can_go(world: World, store: MessageStore, folder: str) -> None:
    pass_time(world, store, 5)
    shutil.rmtree(world.root / folder, ignore_errors=True)
    for _ in range(6):
        put(store, [b"more" + bytes(900)])
        pass_time(world, store, 3)
    store.upkeep.remove_expired()
    pass_time(world, store, 15)


@pytest.mark.parametrize("index", [0, -1])
def test_a_removed_index_file_is_left_out(world: World, store: MessageStore, index: int) -> None:
    pass_time(world, store, 5)
    names = sorted(os.listdir(world.root / "index"))
    assert names
    (world.root / "index" / names[index]).unlink()
    for number in range(200):
        put(store, [b"%d" % number])
    settle(store)
    pass_time(world, store, 10)
    assert SEGMENT_SIZE
