"""The key index in trouble: a full disk, damage, a log that it is far behind."""

import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.format.index import Geometry
from store.index.builder import IndexBuilder
from store.index.file import _last_items
from store.index.helper import KeyIndex
from store.index.search import search
from store.io.disk import Disk, PagedFile
from tests.store.index_world import FOREVER, SEGMENT_SIZE, World, built, find, index_of, send
from tests.store.worlds import wait_for


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


class NoRoom(Disk):
    """A disk whose index files cannot be written for a while: all of them but the header, or the header only."""

    def __init__(self, *, header_only: bool = False) -> None:
        super().__init__()
        self.full = False
        self._header_only = header_only

    def open_paged(self, path: Path) -> PagedFile:
        return self._file(super().open_paged(path))

    def create_paged(self, path: Path, size: int) -> PagedFile:
        return self._file(super().create_paged(path, size))

    def _file(self, file: PagedFile) -> PagedFile:
        if file.path.parent.name == "index":
            write: Callable[[int, bytes], None] = file.write_at

            def write_at(position: int, data: bytes) -> None:
                if self.full and (position == 0) is self._header_only:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                write(position, data)

            file.write_at = write_at  # type: ignore[method-assign,assignment]
        return file


def test_a_full_disk_delays_the_index_and_loses_nothing(world: World) -> None:
    disk = NoRoom()
    with world.opened(disk) as store:
        first = send(store, *[{"KEYS": "k"}] * 10)
        built(store)
        disk.full = True
        second = send(store, *[{"KEYS": "k"}] * 10)
        for _ in range(3):
            world.clock.ms += 300
            store.tick()
            time.sleep(0.01)
            store.run_completions()
        assert find(store, "k") == first
        assert index_of(store).position < store.readable_offset, "what waits for room cannot be found"
        disk.full = False

        def reached() -> bool:
            world.clock.ms += 300
            store.tick()
            return index_of(store).position >= store.readable_offset

        wait_for(store, reached)
        assert find(store, "k") == first + second, "though nothing more was sent"
        third = send(store, *[{"KEYS": "k"}] * 5)
        built(store)
        assert find(store, "k") == first + second + third


@pytest.mark.parametrize("at_once", [False, True], ids=["thread", "at the stop"])
def test_a_disk_that_becomes_full_between_slots_and_header_at_a_stop_costs_no_chain(
    world: World, at_once: bool
) -> None:
    disk = NoRoom(header_only=True)
    world.process = at_once  # which is not started for so little, so that a stop builds it right there
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 10)
    with world.opened(disk) as store:
        offsets += send(store, *[{"KEYS": "k"}] * 5)
        disk.full = True
    assert not (world.root / "abort").exists()
    with world.opened() as store:
        offsets += send(store, {"KEYS": "k"})
        built(store)
        assert find(store, "k") == offsets


def test_a_record_between_two_files_is_indexed_once_when_the_disk_becomes_full_there(world: World) -> None:
    world.geometry = Geometry(slots=10, items=11)  # room for two and a half
    with world.opened() as store:
        offsets = send(store, *[{"UNIQ_KEY": f"u{n}", "KEYS": f"a{n} b{n} k"} for n in range(4)])
        end = store.log.end_offset
    world.forget_index()
    disk = NoRoom()
    builder = IndexBuilder(world.place, disk, world.clock)
    builder.open(end, None)
    disk.full = True
    with pytest.raises(OSError, match="No space"):
        builder.advance(end, 0)
    assert builder.position == offsets[2]
    disk.full = False
    assert builder.advance(end, 0)
    builder.close()
    items = _last_items(Disk(), world.place, world.names, 100)
    assert [offset for _value, offset in items] == [offset for offset in offsets for _ in range(4)]


def test_a_chain_that_bites_its_tail_ends(world: World) -> None:
    with world.opened() as store:
        (offset,) = send(store, {"KEYS": "k"})
        built(store)
    path = world.place.directory / world.names[0]
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 240 + 20 + 16, 1)  # item 1 says that item 1 comes before it
    path.write_bytes(data)
    assert list(search(Disk(), world.place, "T", "k", 0, FOREVER)) == [offset]


def test_a_damaged_record_costs_the_rest_of_its_segment_and_is_told(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 120)
        end = store.log.end_offset
    assert offsets[-1] > SEGMENT_SIZE
    log = world.root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[offsets[3] + 4 : offsets[3] + 8] = b"\0\0\0\0"
    log.write_bytes(data)
    builder = world.rebuilding(end)
    builder.advance(end, 0)
    found = sorted(search(Disk(), world.place, "T", "k", 0, FOREVER))
    assert found == [offset for offset in offsets if offset < offsets[3] or offset >= SEGMENT_SIZE]
    assert f"log offset {offsets[3]} is no record" in builder.findings[0]


def test_a_query_is_answered_before_clients_give_up_when_the_index_is_far_behind(world: World) -> None:
    class Stuck(KeyIndex):
        def stop(self, through: int, min_offset: int) -> None:
            pass

        def _work(self, through: int, min_offset: int) -> None:
            pass

    index = Stuck(world.place, Disk(), world.clock)
    index.start(0, 0, 0, abnormal=False)
    answered: list[int] = []
    index.when_built(100, lambda: answered.append(1))
    index.follow(100, 0)
    assert not answered
    world.clock.ms += 2000
    index.follow(100, 0)
    assert answered


def test_a_log_that_grows_fast_is_indexed_when_it_rests_or_when_a_query_waits(world: World) -> None:
    asked: list[int] = []

    class Asked(KeyIndex):
        def stop(self, through: int, min_offset: int) -> None:
            pass

        def _work(self, through: int, min_offset: int) -> None:
            asked.append(through)

    def follow(through: int) -> None:
        world.clock.ms += 200
        index.follow(through, 0)

    index = Asked(world.place, Disk(), world.clock)
    index.start(0, 0, 0, abnormal=False)
    for megabytes in (5, 10, 50):
        follow(megabytes << 20)
    assert asked == []
    index.when_built(7 << 20, lambda: None)
    assert asked == [7 << 20]
    follow(1100 << 20)
    assert asked == [7 << 20, 7 << 20], "far behind, it is asked for a little"
    index._took(100 << 20, 0, [])
    follow(1200 << 20)
    assert asked[2:] == [103 << 20]
    follow(9 << 30)
    assert asked[3:] == [9 << 30], "and for everything when it is too far"
    index._took(9 << 30, 0, [])
    follow((9 << 30) + (40 << 20))
    assert len(asked) == 4
    end = (9 << 30) + (40 << 20)
    for grown, more in (
        (200 << 10, (1 << 20) + (200 << 10)),
        (1 << 20, 2 << 20),
        (64 << 10, 32 << 20),
        (0, 32 << 20),
    ):
        end += grown
        follow(end)
        assert asked.pop() == (9 << 30) + more, "slowly while it grows slowly, and in a hurry when it rests"
    follow((9 << 30) + (40 << 20))
    assert asked[4:] == [(9 << 30) + (32 << 20)], "a log that rests is followed in larger steps"


def test_the_builder_gives_way_before_each_record(world: World) -> None:
    with world.opened() as store:
        offsets = send(store, *[{"KEYS": "k"}] * 30)
        end = store.log.end_offset
    builder = world.rebuilding(end)
    given: list[None] = []
    builder.give_way = lambda: given.append(None)
    assert builder.advance(end, 0)
    assert len(given) >= len(offsets)
