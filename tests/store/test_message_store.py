"""The store as its broker sees it: promises in order, restarts and kills, a full disk, a flush that fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import store.write_back
from ropewalk.errors import LocalProtocolError
from ropewalk.format.properties import tags_code
from ropewalk.format.record_pattern import RecordPattern
from store.appending import Alike, Message
from store.bound import decode_bound
from store.commitlog import StoreDamaged, segment_name
from store.disk import Disk, DiskFull, MappedFile, PagedFile, StoreLocked
from store.message_store import NO_LIMIT, MessageStore
from store.workers import FlushFailed
from tests.store.worlds import (
    HOST,
    SEGMENT_SIZE,
    Clock,
    World,
    bodies,
    put,
    queues,
    records,
    settle,
    wait_for,
    write_back,
)


class TroubledDisk(Disk):
    """A disk that runs full, refuses to sync, or is slow about it, when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.broken = False
        self.refused = 0
        self.may_sync = threading.Event()
        self.may_sync.set()

    def allocate(self, path: Path, size: int) -> MappedFile:
        if self.full:
            self.refused += 1
            raise DiskFull(f"cannot allocate {size} bytes for {path}")
        return self._troubled(super().allocate(path, size))

    def open_mapped(self, path: Path) -> MappedFile:
        return self._troubled(super().open_mapped(path))

    def _troubled(self, file: MappedFile) -> MappedFile:
        whole = file.sync

        def sync() -> None:
            assert self.may_sync.wait(10)
            if self.broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            whole()

        file.sync = sync  # type: ignore[method-assign]
        return file

    def create_paged(self, path: Path, size: int) -> PagedFile:
        if self.full:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().create_paged(path, size)

    def open_paged(self, path: Path) -> PagedFile:
        file = super().open_paged(path)
        whole = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview) -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            whole(position, data)

        file.write_at = write_at  # type: ignore[method-assign]
        return file


# -- put ---------------------------------------------------------------------------------------------


def test_a_put_tells_log_and_queue_offset_of_each_message(world: World) -> None:
    with world.opened() as store:
        first = put(store, [b"a", b"b"], queue_id=0)
        second = put(store, [b"c"], queue_id=1)
        third = put(store, [b"d"], queue_id=0)
        assert [number for _, number in first + second + third] == [0, 1, 0, 2]
        offsets = [offset for offset, _ in first + second + third]
        assert offsets == [
            r.offset for r in (records(store)[:2] + records(store, queue_id=1) + records(store)[2:])
        ]
        assert bodies(store) == [b"a", b"b", b"d"]


def test_every_field_of_a_message_is_stored(world: World) -> None:
    with world.opened() as store:
        store.begin_turn()
        queue = store.queue("T" * 200, 3)  # a name this long makes a V2 record
        store.put([(queue, b"body", b"K\x01v\x02", 7, 0x100, 1234, 2, 99, 5)], HOST)
        store.publish()
        (record,) = records(store, "T" * 200, 3)
        assert (record.body, record.properties, record.flag) == (b"body", {"K": "v"}, 7)
        assert (record.sys_flag, record.born_timestamp, record.reconsume_times) == (0x100, 1234, 2)
        assert (record.prepared_transaction_offset, record.store_timestamp) == (99, world.clock.ms)
        assert queue.read(0)[2] == 5


def test_a_batch_runs_over_the_end_of_a_segment_and_no_record_spans_it(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 700] * 30)
        assert len(store.log.segments) > 2
        for record in records(store):
            assert record.offset // SEGMENT_SIZE == (record.offset + record.size + 7) // SEGMENT_SIZE
        assert len(records(store)) == 30


def test_what_fits_no_segment_is_refused_and_what_came_before_it_in_the_batch_is_kept(world: World) -> None:
    with world.opened() as store:
        with pytest.raises(LocalProtocolError, match="larger than a commit-log segment"):
            put(store, [b"fits", b"x" * SEGMENT_SIZE])
        store.publish()
        assert bodies(store) == [b"fits"]
        put(store, [b"next"])
        assert bodies(store) == [b"fits", b"next"]


def test_a_reserved_run_stands_in_one_piece(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 7500])
        store.reserve(3 * 200)
        stored = put(store, [b"y" * 100] * 3)
        assert [offset // SEGMENT_SIZE for offset, _ in stored] == [1, 1, 1]


@pytest.mark.parametrize("size", range(SEGMENT_SIZE - 8 - 92 - 3, SEGMENT_SIZE - 8 - 92))
def test_the_largest_record_fills_a_segment_up_to_its_filler(world: World, size: int) -> None:
    with world.opened() as store:
        put(store, [b"small"])
        put(store, [b"x" * size])
        put(store, [b"after"])
        assert [len(body) for body in bodies(store)] == [5, size, 5]
    with world.opened() as store:
        assert [len(body) for body in bodies(store)] == [5, size, 5]


# -- readable, flushed -------------------------------------------------------------------------------


def test_under_async_flush_a_message_is_readable_when_its_turn_ends(world: World) -> None:
    disk = TroubledDisk()
    with world.opened(disk) as store:
        disk.may_sync.clear()
        put(store, [b"x"])
        assert bodies(store) == [b"x"]
        assert store.readable_offset == store.log.end_offset
        disk.may_sync.set()


def test_under_sync_flush_nothing_is_readable_before_its_flush(sync_world: World) -> None:
    disk = TroubledDisk()
    with sync_world.opened(disk) as store:
        put(store, [b"first"])
        settle(store)
        disk.may_sync.clear()
        put(store, [b"second"])
        time.sleep(0.02)
        store.run_completions()
        store._write_back.write_queues(store.readable_offset)
        assert bodies(store) == [b"first"]
        assert store.readable_offset == store.flushed_offset < store.log.end_offset
        queue = store.queue("T", 0)
        assert queue.take_writes() == [] or queue.readable == 1
        disk.may_sync.set()
        settle(store)
        assert bodies(store) == [b"first", b"second"]


def test_whoever_waits_for_a_queue_is_woken_when_it_grows_and_not_before(sync_world: World) -> None:
    disk = TroubledDisk()
    with sync_world.opened(disk) as store:
        queue = store.queue("T", 0)
        queue.held = object()
        disk.may_sync.clear()
        put(store, [b"x"])
        assert store.woken == []
        disk.may_sync.set()
        settle(store)
        assert store.woken == [queue]


def test_queue_entries_in_files_never_run_ahead_of_what_is_readable(sync_world: World) -> None:
    disk = TroubledDisk()
    with sync_world.opened(disk) as store:
        put(store, [b"x"] * 3)
        settle(store)
        disk.may_sync.clear()
        put(store, [b"y"] * 3)
        store._write_back.write_queues(store.readable_offset)
        wait_for(store, lambda: not store._write_back.writing)
        content = (sync_world.root / "consumequeue" / "T" / "0" / segment_name(0)).read_bytes()
        assert content[60:].strip(b"\0") == b""
        disk.may_sync.set()
        settle(store)
        store._write_back.write_queues(store.readable_offset)
        wait_for(store, lambda: not store._write_back.writing)
        content = (sync_world.root / "consumequeue" / "T" / "0" / segment_name(0)).read_bytes()
        assert content[60:120].strip(b"\0") != b""


# -- the clock ---------------------------------------------------------------------------------------


def test_store_times_never_go_back_whatever_the_clock_does_nor_over_a_restart(world: World) -> None:
    with world.opened() as store:
        put(store, [b"early"])
        world.clock.ms += 5000
        put(store, [b"a"])
        world.clock.ms -= 3_600_000
        put(store, [b"b"])
        _, first, second = records(store)
        assert second.store_timestamp == first.store_timestamp
    world.clock.ms -= 3_600_000
    with world.opened() as store:
        put(store, [b"c"])
        assert records(store)[3].store_timestamp >= second.store_timestamp


def test_a_clock_that_is_set_back_does_not_put_off_the_flush(world: World) -> None:
    with world.opened() as store:
        store.tick()
        settle(store)
        world.clock.ms -= 3_600_000
        put(store, [b"x"])
        store.tick()
        wait_for(store, lambda: store.flushed_offset == store.log.end_offset)


# -- hints -------------------------------------------------------------------------------------------


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
    real = Disk.sync_file

    def sync_file(self: Disk, path: Path) -> None:
        synced.append(path.name if path.is_file() else f"{path.name}/")
        assert not (world.root / "checkpoint").exists()
        real(self, path)

    with world.opened() as store:
        monkeypatch.setattr(Disk, "sync_file", sync_file)
        put(store, [b"x"])
        for _ in range(3):
            world.clock.ms += 11_000
            store.tick()
            settle(store)
        monkeypatch.undo()
        assert (world.root / "checkpoint").exists()
        assert set(synced) >= {segment_name(0), "0/", "T/", "consumequeue/"}


def test_thousands_of_changed_queue_files_are_synced_by_one_call(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.write_back, "SYNC_SINGLY_MAX", 3)
    calls: list[Path] = []
    monkeypatch.setattr(Disk, "sync_file_system", lambda _self, path: calls.append(path))
    with world.opened() as opened:
        for queue_id in range(5):
            put(opened, [b"x"], queue_id=queue_id)
        for _ in range(3):
            world.clock.ms += 11_000
            opened.tick()
            settle(opened)
        assert calls


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


# -- the lock ----------------------------------------------------------------------------------------


def test_an_open_store_is_locked_until_it_is_closed(world: World) -> None:
    with world.opened(), pytest.raises(StoreLocked):
        world.store().open()
    with world.opened():
        pass


def test_a_refused_start_lets_go_of_the_lock(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"])
    stray = world.root / "commitlog" / "notes"
    stray.touch()
    with pytest.raises(StoreDamaged):
        world.store().open()
    stray.unlink()
    with world.opened() as store:
        assert bodies(store) == [b"x"]


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
    wait_for(store, lambda: not store._ahead.worker.pending)
    assert put(store, [b"x"]) == []
    assert store.full is not None
    disk.full = False
    world.clock.ms += 1100
    store.tick()
    wait_for(store, lambda: not store._ahead.worker.pending)
    assert put(store, [b"x"]) == [(0, 0)]
    store.close()


def test_a_full_disk_is_asked_for_a_segment_once_a_second_and_not_by_every_put(world: World) -> None:
    disk = TroubledDisk()
    with world.opened(disk) as store:
        put(store, [b"x" * 700])
        wait_for(store, lambda: not store._ahead.worker.pending)
        disk.full = True
        put(store, [b"x" * 700] * 40)
        settle(store)
        asked = disk.refused
        for _ in range(50):
            assert put(store, [b"x" * 7000]) == []
            store.tick()
            wait_for(store, lambda: not store._ahead.worker.pending)
        assert disk.refused - asked <= 2
        disk.full = False


def test_queue_entries_that_find_no_room_are_written_later_and_none_is_lost(world: World) -> None:
    disk = TroubledDisk()
    with world.opened(disk) as store:
        put(store, [b"x"] * 5, queue_id=0)
        put(store, [b"x"] * 5, queue_id=1)
        write_back(store)
        disk.full = True
        put(store, [b"y"] * 7, queue_id=0)
        put(store, [b"y"] * 7, queue_id=2)
        write_back(store)
        assert disk.refused > 0
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
    flushed = store.flushed_offset
    disk.broken = True
    put(store, [b"doubtful"])
    with pytest.raises(FlushFailed, match="flushing the commit log failed"):
        wait_for(store, lambda: store.flushed_offset > flushed)
    disk.broken = False
    put(store, [b"after"])
    time.sleep(0.02)
    store.run_completions()
    assert store.flushed_offset == store.readable_offset == flushed
    assert bodies(store) == [b"before"]
    abandon(store)


def test_a_worker_that_fails_for_another_reason_ends_the_process_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.opened() as store:
        put(store, [b"x"])
        settle(store)

        def broken(_self: PagedFile, _position: int, _data: bytes) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(PagedFile, "write_at", broken)
        store._write_back.write_queues(store.readable_offset)
        with pytest.raises(OSError, match="Input/output error"):
            wait_for(store, lambda: not store._write_back.writing)
        monkeypatch.undo()
        store._write_back.writing = False
        store._write_back.mark_dirty(store.queue("T", 0))


def abandon(store: MessageStore) -> None:
    """Drop a store as a dying process does, without a word to its files."""
    for helper in (store._flusher, store._write_back.worker, store._ahead.worker):
        assert helper is not None
        helper.stop()
    store.log.close(keep_spare=True)
    store._disk.close()
    store._disk.unlock(store._lock_fd)


# -- kills -------------------------------------------------------------------------------------------


class WatchedDisk(Disk):
    """Calls back before each write of a queue file, bound or checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.before_write: object = None

    def create_paged(self, path: Path, size: int) -> PagedFile:
        return self._watched(super().create_paged(path, size))

    def open_paged(self, path: Path) -> PagedFile:
        return self._watched(super().open_paged(path))

    def _watched(self, file: PagedFile) -> PagedFile:
        whole = file.write_at

        def write_at(position: int, data: bytes | bytearray | memoryview) -> None:
            if callable(self.before_write):
                self.before_write()
            whole(position, data)

        file.write_at = write_at  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("sync_flush", [False, True])
def test_a_kill_before_any_single_write_of_a_helper_thread_loses_nothing(
    tmp_path: Path, sync_flush: bool
) -> None:
    world = World(tmp_path / "store", sync_flush=sync_flush)
    disk = WatchedDisk()
    worlds: list[tuple[World, dict[int, list[bytes]]]] = []
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    with world.opened(disk) as store:
        settle(store)
        disk.before_write = lambda: worlds.append(
            (world.killed(), {queue_id: list(found) for queue_id, found in expected.items()})
        )
        for round_ in range(4):
            for queue_id in expected:
                some = [b"%d.%d.%d" % (round_, queue_id, n) * 20 for n in range(4 + queue_id)]
                put(store, some, queue_id=queue_id)
                expected[queue_id] += some
            world.clock.ms += 5000
            settle(store)
            store.tick()
            settle(store)
        disk.before_write = None
    assert len(worlds) > 10
    for killed, had in worlds:
        with killed.opened() as store:
            assert {queue_id: bodies(store, "T", queue_id) for queue_id in had} == had
        shutil.rmtree(killed.root)


_LOAD = """
import sys, time
from pathlib import Path
from tests.store.worlds import World, put, wait_for
world = World(Path(sys.argv[1]), sync_flush=sys.argv[2] == "sync")
world.clock.ms = int(time.time() * 1000)
store = world.store()
store.open()
number = 0
while True:
    world.clock.ms = int(time.time() * 1000)
    for queue_id in range(3):
        put(store, [b"%d" % number], queue_id=queue_id)
    number += 1
    store.tick()
    store.run_completions()
    if world.sync_flush:
        wait_for(store, lambda: store.flushed_offset == store.log.end_offset)
    sys.stdout.write(f"{number}\\n")  # everything up to here is promised
    sys.stdout.flush()
"""


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_kill_9_keeps_every_acknowledged_message_in_order(tmp_path: Path, mode: str) -> None:
    checkout = Path(__file__).resolve().parents[2]
    world = World(tmp_path / "store", sync_flush=mode == "sync", clock=Clock(int(time.time() * 1000)))
    for wait in (0.3, 0.12):
        shutil.rmtree(world.root, ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-c", _LOAD, str(world.root), mode],
            cwd=checkout,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        answered = int(
            [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")][-1]
        )
        process.stdout.close()
        process.wait()
        with world.opened() as store:
            for queue_id in range(3):
                found = [int(body) for body in bodies(store, "T", queue_id)]
                assert found == list(range(len(found)))
                assert len(found) >= answered


# -- everything, in any order ------------------------------------------------------------------------


class StoreAgainstLists(RuleBasedStateMachine):
    """Two topics of two queues; the model is a list of bodies for each queue."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-"))
        self.world = World(self.folder / "store")
        self.disk = Disk()
        self.store: MessageStore
        self.model: dict[tuple[str, int], list[bytes]] = {(t, q): [] for t in "AB" for q in (0, 1)}
        self.ends: dict[tuple[str, int], list[int]] = {key: [] for key in self.model}
        self.counter = 0

    @initialize(sync_flush=st.booleans())
    def begin(self, sync_flush: bool) -> None:
        self.world.sync_flush = sync_flush
        self.store = self.world.store()
        self.store.open()

    @rule(
        topic=st.sampled_from("AB"),
        queue_id=st.sampled_from([0, 1]),
        sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=12),
        late_ms=st.sampled_from([0, 1, 600, 1100, 11_000, -5000]),
    )
    def put(self, topic: str, queue_id: int, sizes: list[int], late_ms: int) -> None:
        self.world.clock.ms += late_ms
        new = []
        for size in sizes:
            self.counter += 1
            new.append(b"%d" % self.counter + b"." * size)
        stored = put(self.store, new, topic, queue_id)
        key = (topic, queue_id)
        assert [number for _, number in stored] == list(
            range(len(self.model[key]), len(self.model[key]) + len(new))
        )
        self.model[key] += new
        self.ends[key] += [offset + 1 for offset, _ in stored]

    @rule()
    def tick(self) -> None:
        self.store.tick()
        self.store.run_completions()

    @rule()
    def rest(self) -> None:
        settle(self.store)

    @rule()
    def write_back(self) -> None:
        write_back(self.store)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.world.store()
        self.store.open()

    @rule()
    def kill(self) -> None:
        """Under either mode a kill keeps what was appended: it is in the page cache."""
        wait_for(
            self.store,
            lambda: not self.store._write_back.worker.pending and not self.store._ahead.worker.pending,
        )
        killed = self.world.killed()
        abandon(self.store)
        self.world = killed
        self.store = self.world.store()
        found = self.store.open()
        assert found.findings == ()

    @rule()
    def kill_and_forget_the_hints(self) -> None:
        wait_for(
            self.store,
            lambda: not self.store._write_back.worker.pending and not self.store._ahead.worker.pending,
        )
        killed = self.world.killed()
        abandon(self.store)
        self.world = killed
        self.world.forget_hints()
        self.store = self.world.store()
        self.store.open()

    @invariant()
    def readable_messages_are_the_models(self) -> None:
        store = self.store
        assert store.flushed_offset <= store.log.end_offset
        assert store.readable_offset <= store.log.end_offset
        for (topic, queue_id), expected in self.model.items():
            queue = store.find_queue(topic, queue_id)
            if queue is None:
                assert not expected
                continue
            assert queue.next_offset == len(expected), "queue offsets are dense"
            found = bodies(store, topic, queue_id)
            assert found == expected[: len(found)]
            if self.world.sync_flush:
                ends = self.ends[topic, queue_id]
                assert all(end <= store.flushed_offset for end in ends[: len(found)])
            else:
                assert len(found) == len(expected)

    def teardown(self) -> None:
        abandon(self.store)
        shutil.rmtree(self.folder)


TestStoreAgainstLists = StoreAgainstLists.TestCase
TestStoreAgainstLists.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_messages_that_are_alike_are_stored_as_any_others_are(tmp_path: Path) -> None:
    """Two stores get the same messages, one of them by the quick way; their segments fill up several times."""
    before, after = b"TAGS\x01A\x02UNIQ_KEY\x01", b"\x02"
    kinds: dict[bytes, RecordPattern] = {}
    ends: list[int] = []
    with World(tmp_path / "one").opened() as one, World(tmp_path / "alike").opened() as alike:
        for store in (one, alike):
            store.limit_readable(0)
        number = 0
        while len(alike.log.segments) < 4:
            turn = [
                (b"TU"[n % 2 : n % 2 + 1], n % 3, b"%04d" % n, b"x" * (n * 7 % 60))
                for n in range(number, number + 5)
            ]
            number += len(turn)
            messages: list[Message] = []
            others: list[Alike] = []
            for topic, queue_id, key, body in turn:
                name = topic.decode()
                properties = before + key + after
                messages.append((one.queue(name, queue_id), body, properties, 5, 0, 77, 2, 0, tags_code("A")))
                kind = kinds.get(topic)
                if kind is None:
                    kind = kinds[topic] = RecordPattern(
                        topic, 5, 0, HOST, alike.config.store_host, 2, before, 4, after
                    )
                others.append((alike.queue(name, queue_id), body, 77, key, kind, tags_code("A")))
            for store in (one, alike):
                store.begin_turn()
            assert alike.put_alike(others) == one.put(messages, HOST)
            for store in (one, alike):
                store.publish()
            ends += [queue.max_physical for queue, *_rest in others]
        assert not any(queue.readable for queue in queues(alike)), "nobody is answered yet"
        for count, end in enumerate(sorted(ends), 1):
            alike.limit_readable(end - 1)
            assert sum(queue.readable for queue in queues(alike)) == count - 1
            alike.limit_readable(end)
            assert sum(queue.readable for queue in queues(alike)) == count
        one.limit_readable(NO_LIMIT)
        for queue in queues(one):
            assert records(alike, queue.topic, queue.queue_id) == records(one, queue.topic, queue.queue_id)
        assert len(queues(one)) == len(queues(alike)) == 6
        write_back(alike)
        assert all(queue.written == queue.next_offset for queue in queues(alike))
