"""A disk that is full, and one that fails: what is refused, what goes on, and what ends the process."""

from __future__ import annotations

import errno
import os
import time

import pytest

from store.io.disk import Disk
from store.io.workers import FlushFailed
from store.log.durable_bound import decode_bound
from tests.store.disks import TroubledDisk
from tests.store.worlds import (
    World,
    abandon,
    bodies,
    put,
    queues,
    records,
    settle,
    wait_for,
    write_back,
)

# -- a full disk -------------------------------------------------------------------------------------


def test_a_full_disk_ends_a_put_early_and_the_store_goes_on_when_there_is_room(world: World) -> None:
    disk = TroubledDisk()
    with world.opened(disk) as store:
        put(store, [b"x" * 700])
        settle(store)
        disk.full = True
        if store.log.spare is not None:
            put(store, [b"x" * 700] * 11)
        before = len(records(store))
        stored = put(store, [b"y" * 700] * 100)
        assert len(stored) < 100
        assert "cannot allocate" in str(store.full)
        assert len(records(store)) == before + len(stored)
        assert store.queue("T", 0).next_offset == before + len(stored)
        assert put(store, [b"z" * 700]) == []
        assert put(store, [b"s"]) != [], "what fits in the last segment is still taken"
        disk.full = False
        for _ in range(3):
            world.clock.ms += 1100
            store.tick()
            settle(store)
        assert not store.full
        assert len(put(store, [b"z" * 700] * 5)) == 5
        count = before + len(stored) + 6
        assert len(records(store)) == count
    with world.opened() as store:
        assert len(records(store)) == count


def test_a_disk_that_is_full_from_the_start_stores_nothing_and_raises_nothing(world: World) -> None:
    disk = TroubledDisk()
    disk.full = True
    store = world.store(disk)
    store.open()
    wait_for(store, lambda: not store._preallocator.worker.pending)
    assert put(store, [b"x"]) == []
    assert store.full is not None
    disk.full = False
    world.clock.ms += 1100
    store.tick()
    wait_for(store, lambda: not store._preallocator.worker.pending)
    assert put(store, [b"x"]) == [(0, 0)]
    store.close()


def test_a_full_disk_is_asked_for_a_segment_once_a_second_and_not_by_every_put(world: World) -> None:
    disk = TroubledDisk()
    with world.opened(disk) as store:
        put(store, [b"x" * 700])
        wait_for(store, lambda: not store._preallocator.worker.pending)
        disk.full = True
        put(store, [b"x" * 700] * 40)
        settle(store)
        asked = disk.refused
        for _ in range(50):
            assert put(store, [b"x" * 7000]) == []
            store.tick()
            wait_for(store, lambda: not store._preallocator.worker.pending)
        assert disk.refused - asked <= 2
        disk.full = False


@pytest.mark.parametrize("room", [0, 1])
def test_queue_entries_that_find_no_room_are_written_later_and_none_is_lost(world: World, room: int) -> None:
    """The disk is full before a pass begins, or fills up in the middle of it."""
    disk = TroubledDisk()
    with world.opened(disk) as store:
        put(store, [b"x"] * 5, queue_id=0)
        put(store, [b"x"] * 5, queue_id=1)
        write_back(store)
        disk.full, disk.room = True, room
        put(store, [b"y"] * 7, queue_id=0)
        put(store, [b"y"] * 7, queue_id=2)
        write_back(store)
        assert disk.refused > 0
        assert disk.room == 0
        assert store._write_back.queues_written < store.log.end_offset
        put(store, [b"z"] * 2, queue_id=1)
        killed = world.killed()
        disk.full = False
        write_back(store)
        assert store._write_back.queues_written == store.log.end_offset
        expected = {q.queue_id: bodies(store, "T", q.queue_id) for q in queues(store)}
    for here in (world, killed):
        with here.opened() as store:
            assert {q.queue_id: bodies(store, "T", q.queue_id) for q in queues(store)} == expected


def test_a_disk_that_is_full_at_the_stop_leaves_the_queues_to_the_next_start(world: World) -> None:
    disk = TroubledDisk()
    store = world.store(disk)
    store.open()
    put(store, [b"x"] * 5)
    settle(store)
    disk.full = True
    put(store, [b"y"] * 5)
    store.close()
    bound = decode_bound((world.root / "ropewalk" / "bound").read_bytes())
    assert bound is None or not bound.clean
    with world.opened() as store:
        assert bodies(store) == [b"x"] * 5 + [b"y"] * 5


# -- failures ----------------------------------------------------------------------------------------


def test_a_failed_flush_reaches_the_loop_and_nothing_more_is_acknowledged(sync_world: World) -> None:
    disk = TroubledDisk()
    store = sync_world.store(disk)
    store.open()
    put(store, [b"before"])
    settle(store)
    flushed = store.log.flushed_offset
    disk.broken = True
    put(store, [b"doubtful"])
    with pytest.raises(FlushFailed, match="flushing the commit log failed"):
        wait_for(store, lambda: store.log.flushed_offset > flushed)
    disk.broken = False
    put(store, [b"after"])
    time.sleep(0.02)
    store.run_completions()
    assert store.log.flushed_offset == store.readable_offset == flushed
    assert bodies(store) == [b"before"]
    abandon(store)


def test_a_worker_that_fails_for_another_reason_ends_the_process_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.opened() as store:
        put(store, [b"x"])
        settle(store)

        def broken(_self: Disk, _path: str, _size: int, _position: int, _data: bytes) -> bool:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(Disk, "write_paged", broken)
        store._write_back.write_queues(store.readable_offset)
        with pytest.raises(OSError, match="Input/output error"):
            wait_for(store, lambda: not store._write_back.writing)
        monkeypatch.undo()
        store._write_back.writing = False
        store._write_back.mark_dirty(store.queue("T", 0))
