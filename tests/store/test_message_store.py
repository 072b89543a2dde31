"""The store as its broker sees it: promises in order, a clock of its own, one owner; and everything in any order."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from store.io.disk import Disk, StoreLocked
from store.log.commitlog import StoreDamaged, segment_name
from store.message_store import MessageStore
from tests.store.disks import TroubledDisk
from tests.store.worlds import (
    World,
    abandon,
    bodies,
    put,
    records,
    settle,
    wait_for,
    write_back,
)

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
        assert store.readable_offset == store.log.flushed_offset < store.log.end_offset
        queue = store.queue("T", 0)
        assert queue.pending_writes() == [] or queue.readable == 1
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
        wait_for(store, lambda: store.log.flushed_offset == store.log.end_offset)


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
            lambda: not self.store._write_back.worker.pending and not self.store._preallocator.worker.pending,
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
            lambda: not self.store._write_back.worker.pending and not self.store._preallocator.worker.pending,
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
        assert store.log.flushed_offset <= store.log.end_offset
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
                assert all(end <= store.log.flushed_offset for end in ends[: len(found)])
            else:
                assert len(found) == len(expected)

    def teardown(self) -> None:
        abandon(self.store)
        shutil.rmtree(self.folder)


TestStoreAgainstLists = StoreAgainstLists.TestCase
TestStoreAgainstLists.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
