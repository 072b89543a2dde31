"""What tells the next start where to begin: the checkpoint and the bound file follow the log, and never run ahead."""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

import store.write_back
from store.io.disk import Disk
from store.log.commitlog import segment_name
from store.log.durable_bound import decode_bound
from store.message_store import MessageStore
from store.recovery.record_scan import ScannedRecord
from tests.sim.world import SteppedHelpers
from tests.store.worlds import World, abandon, bodies, put, queues, settle, wait_for, write_back
from tests.support.clocks import Clock
from tests.support.long_run import LONG


def test_the_checkpoint_moves_on_under_steady_load(world: World) -> None:
    """It tells what was true some seconds ago, or a busy broker would never write it."""
    with world.opened() as store:
        written = []
        for _ in range(40):
            world.clock.ms += 1000
            put(store, [b"x"])
            store.tick()
            settle(store)
            put(store, [b"y"])  # at no tick is everything flushed and written
            path = world.root / "checkpoint"
            if path.exists():
                written.append(int.from_bytes(path.read_bytes()[8:16], "big"))
        assert len(set(written)) >= 2
        assert 0 < world.clock.ms - written[-1] <= 21_000


def test_the_checkpoint_claims_queue_entries_only_after_they_were_synced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real, write_paged = Disk.sync_file, Disk.write_paged
    writes: list[str] = []

    def write_after_it_was_full(self: Disk, path: str, size: int, position: int, data: bytes) -> bool:
        writes.append(path)
        write_paged(self, path, size, position, data)
        if len(writes) == 1:
            raise OSError(errno.ENOSPC, "the file is there, and its bytes found no room")
        return False

    def sync_file(self: Disk, path: Path) -> None:
        synced.append(path.name if path.is_file() else f"{path.name}/")
        assert not (world.root / "checkpoint").exists()
        real(self, path)

    with world.opened() as store:
        monkeypatch.setattr(Disk, "sync_file", sync_file)
        monkeypatch.setattr(Disk, "write_paged", write_after_it_was_full)
        put(store, [b"x"])
        for _ in range(3):
            world.clock.ms += 11_000
            store.tick()
            settle(store)
        monkeypatch.undo()
        assert (world.root / "checkpoint").exists()
        assert set(synced) >= {segment_name(0), "0/", "T/", "consumequeue/"}


def test_where_long_passes_are_made_their_files_are_synced_for_a_checkpoint_less_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.write_back, "_MANY", 3)
    gaps: dict[int, list[int]] = {}
    for count in (2, 5):
        here = World(world.root / str(count))
        synced: list[int] = []
        with here.opened() as opened:

            def note(*_args: int, clock: Clock = here.clock, synced: list[int] = synced) -> bool:
                synced.append(clock.ms // 1000)
                return True

            monkeypatch.setattr(opened._write_back, "_sync_queues", note)
            for _ in range(125):
                for queue_id in range(count):
                    put(opened, [b"x"], queue_id=queue_id)
                here.clock.ms += 1000
                opened.tick()
                settle(opened)
            gaps[count] = [after - before for before, after in itertools.pairwise(synced)]
            monkeypatch.undo()
            monkeypatch.setattr(store.write_back, "_MANY", 3)
    assert set(gaps[2]) == {10}
    assert set(gaps[5]) == {30}


def test_thousands_of_changed_queue_files_are_synced_by_one_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.write_back, "SYNC_SINGLY_MAX", 4)  # the first file and its three directories
    calls: list[tuple[Path, ...]] = []
    monkeypatch.setattr(Disk, "sync_file_systems", lambda _self, *paths: calls.append(paths))
    with world.opened() as opened:
        for queue_id in range(5):
            put(opened, [b"x"], queue_id=queue_id)
        for _ in range(3):
            world.clock.ms += 11_000
            opened.tick()
            settle(opened)
        # Of both, for the queue files may lie on another disk.
        assert set(calls) == {(world.root, world.root / "consumequeue")}


def test_many_queues_keep_few_entries_each_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty thousand with the thousands that a few may keep would need gigabytes."""
    monkeypatch.setattr(store.write_back, "_KEEP_ALL", 80)
    with world.opened() as opened:
        for round_ in range(8):
            for queue_id in range(4):
                put(opened, [b"%d.%d" % (round_, n) for n in range(40)], queue_id=queue_id)
            opened.tick()
            settle(opened)
            world.clock.ms += 11_000
        assert all(len(queue.tail) <= 20 * 5 * 16 + 20 * 40 for queue in queues(opened))
        expected = [b"%d.%d" % (round_, n) for round_ in range(8) for n in range(40)]
        assert all(bodies(opened, "T", queue_id) == expected for queue_id in range(4))


def test_the_bound_claims_no_more_than_the_truth_at_any_moment(sync_world: World) -> None:
    with sync_world.opened() as store:
        for round_ in range(30):
            sync_world.clock.ms += 150 + round_ * 40
            put(store, [b"x" * 300] * 3, queue_id=round_ % 3)
            store.tick()
            store.run_completions()
            bound = (
                decode_bound((sync_world.root / "ropewalk" / "bound").read_bytes())
                if (sync_world.root / "ropewalk" / "bound").exists()
                else None
            )
            if bound is not None:
                assert bound.flushed <= store.log.end_offset
                assert bound.queues <= bound.flushed
                assert not bound.clean
                assert bound.entries <= sum(q.readable for q in queues(store))
        settle(store)


@pytest.mark.parametrize("seed", range(12 if LONG else 4))
def test_a_kill_in_the_middle_of_a_pass_over_many_queues_does_not_send_the_start_back_to_the_beginning(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Queues that the pass comes to later are written with what came meanwhile, and others are written already."""
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 3)
    chance, helpers = random.Random(seed), SteppedHelpers()
    full = False
    write_paged = Disk.write_paged

    def write_while_there_is_room(self: Disk, path: str, size: int, position: int, data: bytes) -> bool:
        if full and chance.random() < 0.5:
            raise OSError(errno.ENOSPC, "no room")
        return write_paged(self, path, size, position, data)

    monkeypatch.setattr(Disk, "write_paged", write_while_there_is_room)
    opened = MessageStore(world.config, Disk(), world.clock, lambda: None, helpers)
    opened.open()
    claimed = set()
    for step in range(200):
        topic = chance.choice("TU") if step < 120 else "T"
        put(opened, [b"x"] * chance.randrange(1, 4), topic, chance.randrange(8))
        world.clock.ms += chance.choice((0, 0, 160))
        full = step % 50 > 40
        if step == 120:
            opened.delete_topic("U", lambda _done: None)
        opened.tick()
        for _ in range(chance.randrange(4)):
            helpers.pause()
            opened.run_completions()
        bound_file = world.root / "ropewalk" / "bound"
        if step % 7 == 0 and bound_file.exists():
            bound = decode_bound(bound_file.read_bytes())
            assert bound is not None
            killed = world.killed()
            with killed.opened() as again:
                assert again.recovered.scanned_from == bound.queues
            claimed.add(bound.queues)
    full = False
    assert len(claimed) > 2, "there was little to believe"
    for _ in range(30):
        world.clock.ms += 20_000
        opened.tick()
        for _ in range(5):
            helpers.pause()
            opened.run_completions()
    bound = decode_bound(bound_file.read_bytes())
    assert bound is not None
    assert bound.entries == sum(queue.readable for queue in queues(opened))
    abandon(opened)


def test_a_stop_in_the_middle_of_a_pass_claims_all_entries_that_are_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By fewer nobody would notice that a queue's file is gone."""
    monkeypatch.setattr(store.write_back, "_QUEUES_AT_ONCE", 2)
    helpers = SteppedHelpers()
    opened = MessageStore(world.config, Disk(), world.clock, lambda: None, helpers)
    opened.open()
    for queue_id in range(12):
        put(opened, [b"first"], queue_id=queue_id)
    world.clock.ms += 5000
    opened.tick()
    for queue_id in range(12):
        put(opened, [b"x"] * 5, queue_id=queue_id)
    for _ in range(3):
        helpers.pause()
        opened.run_completions()
    opened.close()
    bound = decode_bound((world.root / "ropewalk" / "bound").read_bytes())
    assert bound is not None and bound.clean
    assert bound.entries == 12 * 6
    shutil.rmtree(world.root / "consumequeue" / "T" / "3")
    with world.opened() as again:
        assert len(bodies(again, queue_id=3)) == 6


def test_a_clean_stop_leaves_no_trace_of_running(world: World) -> None:
    with world.opened() as store:
        assert (world.root / "abort").read_text() == str(os.getpid())
        put(store, [b"x"] * 3)
        end = store.log.end_offset
    assert not (world.root / "abort").exists()
    assert [p.name for p in (world.root / "commitlog").iterdir()] == [segment_name(0)]
    bound = decode_bound((world.root / "ropewalk" / "bound").read_bytes())
    assert bound is not None
    assert (bound.clean, bound.end, bound.flushed, bound.queues) == (True, end, end, end)


def test_a_store_that_was_never_written_can_be_closed_and_opened(world: World) -> None:
    for _ in range(3):
        with world.opened() as store:
            assert (store.log.end_offset, store.recovered.end) == (0, 0)


def test_a_queue_that_begins_again_while_it_is_written_has_none_of_its_new_entries_written(
    world: World,
) -> None:
    """At a later number within the same file, whose head it has still to write."""
    with world.opened() as opened:
        put(opened, [b"1", b"2", b"3"])
        queue = opened.queue("T", 0)
        opened._write_back.write_queues(opened.readable_offset)
        assert opened._write_back.writing
        queue.restart_at(7)
        wait_for(opened, lambda: not opened._write_back.writing)
        assert (queue.written, queue.readable) == (0, 7)


def test_entries_that_a_slave_gives_up_for_a_later_number_are_claimed_no_more(world: World) -> None:
    with world.opened() as opened:
        put(opened, [b"1", b"2", b"3"])
        put(opened, [b"another's"], "U")
        write_back(opened)

        def claimed() -> int:
            bound = decode_bound((world.root / "ropewalk" / "bound").read_bytes())
            assert bound is not None
            return bound.entries

        assert claimed() == 4
        end = opened.log.end_offset
        opened.dispatcher.dispatch(ScannedRecord(end, 100, "T", 0, 7, 0, opened.last_store_ms, True, False))
        settle(opened)
        assert claimed() == 1
        opened.queue("T", 0).forget()  # there is no such record
