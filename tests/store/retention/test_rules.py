"""Retention: what may go and when, and that nobody reads what is going away."""

import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from ropewalk.format.index import Geometry
from ropewalk.format.properties import encode_properties
from store.config import StoreConfig
from store.index.file import index_names
from store.index.helper import WorkerIndex
from store.index.search import Query
from store.io.disk import Disk, DiskFull, MappedFile, Space
from store.message_store import MessageStore
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus, ReadLimits
from store.retention.cleaner import Cleaner
from store.retention.rules import HOUR_MS, Decision, RetentionRules, Usage, decide, delete_hours
from store.write_back import WriteBack
from tests.store import worlds
from tests.store.worlds import HOST, bodies, put, settle, wait_for, write_back
from tests.support.waiting import until

SEGMENT_SIZE = 8192
NOON = 12
NOW = 1_700_000_000_000
RULES = RetentionRules()
OLD, YOUNG = NOW - 73 * HOUR_MS, NOW - 71 * HOUR_MS


# --- the decision ---------------------------------------------------------------------------------------


def decided(
    log: int = 50,
    queues: int = 50,
    hour: int = NOON,
    ages: tuple[int, ...] = (OLD, OLD, YOUNG),
    **rules: object,
) -> Decision:
    return decide(replace(RULES, **rules), Usage(log, queues), hour, NOW, ages)  # type: ignore[arg-type]


def test_nothing_goes_outside_the_hours_while_there_is_room() -> None:
    assert decided() == Decision(None, 0, "")
    assert decided(75).delete == 0


def test_expired_files_go_in_the_hour_of_delete_when() -> None:
    assert decided(hour=4).delete == 2
    assert decided(hour=NOON, delete_hours=frozenset({NOON, 3})).delete == 2


def test_expired_files_go_early_above_the_first_level() -> None:
    decision = decided(76)
    assert (decision.delete, decision.refusal) == (2, None)
    assert "76 % full" in decision.reason


def test_young_files_are_in_question_above_the_second_level_and_only_where_none_is_expired() -> None:
    assert decided(86) == Decision(None, 2, "not written to for 72 hours, and the disk is 86 % full")
    decision = decided(86, ages=(YOUNG, OLD))
    assert (decision.delete, decision.is_forced) == (0, True)
    assert not decided(85, ages=(YOUNG, OLD)).is_forced
    assert not decided(86, ages=(YOUNG, OLD), force=False).is_forced


def test_messages_are_refused_above_the_third_level_with_the_ratios() -> None:
    decision = decided(91, 40)
    assert decision.delete == 2
    assert decision.refusal is not None and "[CL: 0.91 CQ: 0.40 INDEX: 0.40]" in decision.refusal
    assert decided(90).refusal is None
    assert decided(91, force=False).refusal is not None


def test_the_fuller_of_the_two_disks_counts() -> None:
    for log, queues in itertools.product((50, 76, 86, 91), repeat=2):
        both, worse = decided(log, queues), decided(max(log, queues), max(log, queues))
        assert (both.delete, both.refusal is None) == (worse.delete, worse.refusal is None)


def test_a_disk_nobody_knows_counts_as_above_the_first_level() -> None:
    assert decided(-1, 50).delete == decided(50, -1).delete == 2
    assert decided(-1, -1).refusal is None


def test_a_file_goes_to_the_millisecond_when_its_time_is_over() -> None:
    at = NOW - 72 * HOUR_MS
    assert decided(hour=4, ages=(at,)).delete == 1
    assert decided(hour=4, ages=(at + 1,)).delete == 0


def test_the_first_young_file_protects_those_behind_it() -> None:
    assert decided(hour=4, ages=(YOUNG, OLD, OLD)).delete == 0


def test_one_decision_gives_up_a_limited_number() -> None:
    assert decided(hour=4, ages=(OLD,) * 50).delete == 10
    assert decided(95, ages=(OLD,) * 50, batch_max=3).delete == 3


def test_every_combination_is_decided_and_fuller_disks_never_keep_more() -> None:
    for hour, force in itertools.product((4, NOON), (False, True)):
        counts = [decided(used, hour=hour, force=force).delete for used in range(101)]
        assert counts == sorted(counts)


def test_delete_when_names_hours() -> None:
    assert delete_hours("04") == {4}
    assert delete_hours("0; 23;;04") == {0, 23, 4}
    for text in ("", "24", "x", "-1", "4,5", "004"):
        with pytest.raises(ValueError, match="hours of the day"):
            delete_hours(text)


# --- a store ----------------------------------------------------------------------------------------


class Scales(Disk):
    """A disk that is as full as it is told to be."""

    def __init__(self) -> None:
        super().__init__()
        self.used = 50
        self.removed: list[str] = []

    def space(self, path: Path) -> Space:
        return Space(1000, 1000 - 10 * self.used, 1000 - 10 * self.used)

    def remove(self, path: Path) -> None:
        self.removed.append(f"{path.parent.name}/{path.name}")
        super().remove(path)


@dataclass
class World(worlds.World):
    disk: Disk = field(default_factory=Scales)
    rules: RetentionRules = field(
        default_factory=lambda: replace(RULES, first_ms=0, log_pause_ms=0, queue_pause_ms=0, interval_ms=1000)
    )
    index: Geometry | None = None

    @property
    def config(self) -> StoreConfig:
        return replace(super().config, retention=self.rules, index=self.index, index_in_process=False)

    def store(self, disk: Disk | None = None) -> MessageStore:
        return super().store(disk or self.disk)

    @property
    def segments(self) -> list[int]:
        return [int(name) for name in Disk().names(self.root / "commitlog")]

    def queue_file_writer(self, topic: str = "T") -> list[int]:
        return [int(name) for name in Disk().names(self.root / "consumequeue" / topic / "0")]

    def used(self, percent: int) -> None:
        """Fill the disk; the segments that there are by now are expired."""
        assert isinstance(self.disk, Scales)
        self.disk.used = percent
        for name in Disk().names(self.root / "commitlog"):
            os.utime(self.root / "commitlog" / name, (0, 0))

    def age(self, hours: float, *indices: int) -> None:
        """Make segments so old that they were written `hours` ago by the clock."""
        for index in indices:
            path = sorted((self.root / "commitlog").iterdir())[index]
            stamp = (self.clock.ms - hours * HOUR_MS) / 1000
            os.utime(path, (stamp, stamp))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def fill(store: MessageStore, segments: int, topic: str = "T") -> None:
    """Messages until the log has so many segments and a little more; 700 bytes each."""
    for number in itertools.count():
        if len(store.log.segments) > segments:
            return
        put(store, [b"%06d" % number + bytes(600)], topic)


def look(store: MessageStore) -> None:
    """Have helpers do what is due, and hear what they did."""
    store.tick()
    store.run_completions()


def pass_time(world: World, store: MessageStore) -> None:
    """One look at the disk, and all that follows from it."""
    settle(store)
    world.clock.ms += 1001
    cleaner = store.upkeep.cleaner
    assert cleaner is not None
    store.tick()
    quiet = 0
    deadline = time.monotonic() + 30
    while quiet < 3:
        assert time.monotonic() < deadline
        store.run_completions()
        store.tick()
        busy = (
            cleaner._worker.pending or store._write_back.worker.pending or cleaner._emptied or cleaner._late
            or (cleaner._retired and not cleaner._retired[0].pins)
        )  # fmt: skip
        quiet = 0 if busy else quiet + 1
        time.sleep(0.001)


def test_the_oldest_segments_go_and_the_last_one_stays(world: World) -> None:
    with world.opened() as store:
        fill(store, 3)
        write_back(store)
        world.used(86)
        pass_time(world, store)
        (last,) = store.log.segments
        assert store.log.min_offset == last.base_offset == 3 * SEGMENT_SIZE
        assert world.segments[0] == last.base_offset
        pass_time(world, store)
        assert store.log.segments == [last]
        assert any("is removed (3 files)" in finding for finding in store.upkeep.take_findings())


def test_a_queue_begins_where_its_records_do(world: World) -> None:
    with world.opened() as store:
        fill(store, 3)
        store.queue("idle", 0)
        kept = [body for body in bodies(store) if int(body[:6]) >= 33]
        write_back(store)
        world.used(86)
        pass_time(world, store)
        queue = store.queue("T", 0)
        assert bodies(store) == kept
        assert 0 < queue.min_offset == 33
        assert world.queue_file_writer() == [
            600
        ]  # byte offsets: entries 0 to 29 were in the three files before it
        before = (queue.min_offset, queue.next_offset)
    with world.opened() as store:
        queue = store.queue("T", 0)
        assert (queue.min_offset, queue.next_offset) == before
        assert bodies(store) == kept
        assert store.recovered.records == 0


def test_a_queue_whose_records_are_all_gone_keeps_its_numbers(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x"] * 25, "old")
        fill(store, 2)
        write_back(store)
        world.used(86)
        pass_time(world, store)
        queue = store.queue("old", 0)
        assert (queue.min_offset, queue.next_offset) == (25, 25)
        assert world.queue_file_writer("old") == [400]
        put(store, [b"new"], "old")
        assert bodies(store, "old") == [b"new"]
    with world.opened() as store:
        queue = store.queue("old", 0)
        assert (queue.min_offset, queue.next_offset) == (25, 26)


def test_entries_never_written_to_a_file_are_skipped_too(world: World) -> None:
    with world.opened() as store:
        fill(store, 2)
        queue = store.queue("T", 0)
        assert queue.written == 0
        world.used(86)
        pass_time(world, store)
        assert queue.min_offset == 22
        assert next(int(body[:6]) for body in bodies(store)) == 22


def test_a_kill_after_queue_files_went_is_recovered_without_reading_the_log(
    world: World, tmp_path: Path
) -> None:
    with world.opened() as store:
        fill(store, 3)
        write_back(store)
        world.used(86)
        pass_time(world, store)
        write_back(store)
        shutil.copytree(world.root, tmp_path / "killed")
        expected = bodies(store)
    killed = World(tmp_path / "killed")
    with killed.opened() as store:
        assert bodies(store) == expected
        assert store.recovered.records == 0


def test_claims_go_before_what_they_are_about(tmp_path: Path) -> None:
    """A crash in between must not look as if somebody had taken a segment or a queue file away."""
    steps: list[str] = []
    cleaner = object.__new__(Cleaner)
    cleaner._checksum_directory = tmp_path / "checksums"
    cleaner._log = SimpleNamespace(directory=tmp_path / "commitlog")  # type: ignore[assignment]
    cleaner._disk = SimpleNamespace(  # type: ignore[assignment]
        remove=lambda path: steps.append(path.parent.name),
        sync_directory=lambda path: steps.append(f"{path.name} synced"),
    )
    file = SimpleNamespace(close=lambda: None, path=tmp_path / "commitlog" / "0")
    cleaner._remove_segment(SimpleNamespace(file=file))  # type: ignore[arg-type]
    # Synced before the next one goes: files that came back out of order would be a gap.
    assert steps == ["checksums", "commitlog", "commitlog synced"]

    write_back = object.__new__(WriteBack)
    write_back.give_up = lambda entries: steps.append(f"{entries} fewer")  # type: ignore[method-assign]
    write_back.worker = SimpleNamespace(submit=lambda _job, _done: steps.append("files"))  # type: ignore[assignment]
    write_back.remove_files(10, [tmp_path / "0"])
    assert steps[3:] == ["10 fewer", "files"]


def test_age_is_counted_from_the_last_write(world: World) -> None:
    world.rules = replace(world.rules, delete_hours=frozenset(range(24)))
    with world.opened() as store:
        fill(store, 3)
        settle(store)
        world.clock.ms = time.time_ns() // 1_000_000
        world.age(71, 0, 1, 2)
        pass_time(world, store)
        assert len(store.log.segments) == 4
        world.age(73, 0, 2)
        pass_time(world, store)
        assert store.log.min_offset == SEGMENT_SIZE  # the third is older than the second, and waits for it


def test_nothing_goes_in_the_first_minute(world: World) -> None:
    world.rules = replace(world.rules, first_ms=60_000)
    with world.opened() as store:
        fill(store, 2)
        world.used(95)
        pass_time(world, store)
        assert len(store.log.segments) == 3
        assert store.refusal is not None  # but it is known at once that the disk is full
        world.clock.ms += 60_000
        pass_time(world, store)
        assert len(store.log.segments) == 1


def test_a_clock_set_back_does_not_put_retention_off(world: World) -> None:
    world.rules = replace(world.rules, first_ms=60_000)
    with world.opened() as store:
        fill(store, 2)
        world.used(95)
        world.clock.ms -= 24 * HOUR_MS
        pass_time(world, store)
        assert len(store.log.segments) == 1


def test_what_is_not_flushed_never_goes(world: World) -> None:
    release = threading.Event()

    class Slow(Scales):
        def open_mapped(self, path: Path) -> MappedFile:
            return self._slow(super().open_mapped(path))

        def allocate(self, path: Path, size: int) -> MappedFile:
            return self._slow(super().allocate(path, size))

        def _slow(self, file: MappedFile) -> MappedFile:
            sync = file.sync

            def wait() -> None:
                assert release.wait(30)
                sync()

            file.sync = wait  # type: ignore[method-assign]
            return file

    world.disk = Slow()
    with world.opened() as store:
        fill(store, 1)
        world.used(95)
        world.clock.ms += 5_000
        until(lambda: store.refusal is not None, turn=partial(look, store))
        for _ in range(20):
            look(store)
            time.sleep(0.002)
        assert len(store.log.segments) == 2
        release.set()
        pass_time(world, store)
        assert len(store.log.segments) == 1


# --- readers --------------------------------------------------------------------------------------------


class SlowReads(Scales):
    """A disk whose segments are read only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.reading = threading.Event()

    def allocate(self, path: Path, size: int) -> MappedFile:
        file = super().allocate(path, size)
        read = file.read_at

        def wait(position: int, size: int) -> bytes:
            self.reading.set()
            assert self.go.wait(30)
            return read(position, size)

        file.read_at = wait  # type: ignore[method-assign]
        file.read_at_nowait = lambda position, size: None  # type: ignore[method-assign]
        file.is_resident = lambda position, size: False  # type: ignore[method-assign]
        return file


def test_a_segment_held_by_a_cold_read_is_not_pulled_away_under_it(world: World, tmp_path: Path) -> None:
    world.disk = disk = SlowReads()
    with world.opened() as store:
        fill(store, 2)
        write_back(store)
        reader = Reader(store.log, ReadLimits(warm_window=0), store.completions)
        results: list[GetResult | None] = []
        reader.get(store.queue("T", 0), 0, 3, 1 << 20, None, results.append)
        assert disk.reading.wait(30)
        world.used(86)
        pass_time(world, store)
        assert store.log.min_offset == 2 * SEGMENT_SIZE  # new reads do not find it any more
        # Its file is there, and so is the next one's, which nobody holds: a crash must not leave a gap between files.
        assert world.segments[:2] == [0, SEGMENT_SIZE]
        shutil.copytree(world.root, tmp_path / "killed")
        with World(tmp_path / "killed").opened() as killed:
            assert killed.log.min_offset == 0
        later: list[GetResult | None] = []
        reader.get(store.queue("T", 0), 0, 3, 1 << 20, None, later.append)
        assert later[0] is not None and later[0].status is GetStatus.OFFSET_TOO_SMALL
        disk.go.set()
        wait_for(store, lambda: bool(results))
        (result,) = results
        assert result is not None and result.status is GetStatus.FOUND
        assert b"".join(result.records).count(bytes(600)) == 3
        pass_time(world, store)
        assert world.segments[0] == 2 * SEGMENT_SIZE
        reader.stop()


def test_look_ups_by_offset_and_by_key_hold_what_they_read(world: World) -> None:
    world.disk = disk = SlowReads()
    world.index = Geometry(50, 400)
    with world.opened() as store:
        store.begin_turn()
        queue = store.queue("T", 0)
        store.put([(queue, b"body", encode_properties({"KEYS": "k"}), 0, 0, store.now, 0, 0, 0)], HOST)
        store.publish()
        fill(store, 2)
        write_back(store)
        assert store.upkeep.index is not None
        index = store.upkeep.index
        index.follow(store.readable_offset, 0)
        wait_for(store, lambda: index.position >= store.readable_offset)
        reader = Reader(store.log, ReadLimits(), store.completions)
        records: list[object] = []
        looked_up: list[object] = []
        reader.look_up(0, store.find_queue, looked_up.append, lambda _none: looked_up.append("refused"))
        reader.query(index, store.readable_offset, Query("T", "k", 32, 0, 1 << 62), records.append)
        reader.run(lambda: store.log.segments[0].file.read_at(0, 4), records.append, records.append)
        assert disk.reading.wait(30)
        world.used(86)
        pass_time(world, store)
        assert world.segments[0] == 0
        disk.go.set()
        wait_for(store, lambda: len(records) == 2 and bool(looked_up))
        assert None not in records
        assert looked_up == [None], "it was read, and its queue had given it up by then"
        pass_time(world, store)
        assert 0 not in world.segments
        assert all(segment.pins == 0 for segment in store.log.segments)
        reader.stop()


def test_a_read_that_is_turned_away_as_busy_holds_nothing(world: World) -> None:
    with world.opened() as store:
        fill(store, 1)
        reader = Reader(store.log, ReadLimits(), store.completions, in_flight_max=0)
        answers: list[object] = []
        turned_away: list[object] = []
        reader.look_up(0, store.find_queue, answers.append, turned_away.append)
        assert (answers, turned_away) == ([], [None])
        assert store.log.segments[0].pins == 0
        reader.stop()


def test_index_files_follow(world: World) -> None:
    world.index = Geometry(slots=10, items=11)
    with world.opened() as store:
        for number in range(30):
            store.begin_turn()
            queue = store.queue("T", 0)
            properties = encode_properties({"KEYS": f"k{number}"})
            store.put([(queue, bytes(700), properties, 0, 0, store.now, 0, 0, 0)], HOST)
            store.publish()
            world.clock.ms += 300
            store.tick()
        pass_time(world, store)
        index = store.upkeep.index
        assert isinstance(index, WorkerIndex)
        wait_for(store, lambda: index.position == store.readable_offset)
        names = index_names(Disk(), world.root / "index")
        assert len(names) == 3
        world.used(86)
        pass_time(world, store)
        pass_time(world, store)
        wait_for(store, lambda: not index._worker.pending)
        left = index_names(Disk(), world.root / "index")
        assert left and left == names[-len(left) :] and len(left) < 3


# --- the full disk --------------------------------------------------------------------------------------


def test_messages_are_refused_above_the_warning_level_and_taken_again_below(world: World) -> None:
    world.rules = replace(world.rules, force=False)
    with world.opened() as store:
        put(store, [b"a"])
        world.used(91)
        pass_time(world, store)
        assert "CL: 0.91" in (store.refusal or "")
        assert bodies(store) == [b"a"]
        world.used(90)
        pass_time(world, store)
        assert store.refusal is None
        first, second = store.upkeep.take_findings()
        assert first.startswith("the broker's disk is full") and "messages are taken" in second


def test_without_retention_nothing_is_refused_or_removed(world: World) -> None:
    config = StoreConfig(
        root=world.root, log_directory=world.root / "commitlog", store_host=HOST, segment_size=SEGMENT_SIZE
    )
    world.used(99)
    store = MessageStore(config, world.disk, world.clock, lambda: None)
    store.open()
    fill(store, 2)
    settle(store)
    world.clock.ms += 3_600_000
    store.tick()
    assert store.refusal is None and len(store.log.segments) == 3
    store.close()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one mebibyte."""
    target = tmp_path / "small"
    target.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "none", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_real_small_disk_fills_refuses_reads_on_and_resumes(small_file_system: Path) -> None:
    world = World(small_file_system / "store", disk=Disk())
    world.rules = replace(world.rules, force=False)  # so that it fills up
    store = world.store()
    store.open()
    acknowledged = 0
    try:
        for number in range(10_000):
            if store.refusal is not None:
                break
            if not put(store, [b"%06d" % number + bytes(600)]):
                break
            acknowledged += 1
            if number % 50 == 49:
                write_back(store)
                pass_time(world, store)
    except DiskFull:
        pass
    assert acknowledged > 500
    assert store.refusal is not None or store.full is not None
    settle(store)
    assert [int(body[:6]) for body in bodies(store)] == list(range(acknowledged))
    cleaner = store.upkeep.cleaner
    assert cleaner is not None
    cleaner.follow_rules(replace(world.rules, force=True))  # as an operator allows it

    def pass_seconds() -> None:
        world.clock.ms += 2_000
        pass_time(world, store)

    until(lambda: store.refusal is None, turn=pass_seconds)
    assert store.refusal is None
    assert put(store, [b"again"])
    left = bodies(store)
    assert left[-1] == b"again"
    numbers = [int(body[:6]) for body in left[:-1]]
    assert numbers == list(range(numbers[0], acknowledged))  # the newest, without a gap
    store.close()


def test_how_full_a_disk_is_leaves_reserved_blocks_aside_and_rounds_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    assert 0 <= disk.space(tmp_path).used_percent <= 100
    assert disk.space(tmp_path / "missing").used_percent == -1
    # 1000 blocks, 400 of them free, 100 of those not for this user: 600 used of 900.
    blocks = os.statvfs_result((4096, 4096, 1000, 400, 300, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: blocks)
    space = disk.space(tmp_path)
    assert space.used_percent == 67
    assert space.above(50) == 150 * 4096 and space.above(80) == -120 * 4096


def test_a_files_age_is_its_modification_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.utime(tmp_path / "file", (1_000, 1_000))
    assert Disk().modified_ms(tmp_path / "file") == 1_000_000
