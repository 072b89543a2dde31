"""Forced cleaning: one young segment at a time, said before, and none more where that gives the disk no room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ropewalk.format.index import Geometry
from store.config import StoreConfig
from store.io.disk import Disk, Space
from store.message_store import MessageStore
from store.retention.cleaner import Cleaner
from store.retention.forced import ForcedCleaning, LogOnDisk, QueueRoom
from store.retention.rules import HOUR_MS, RetentionRules
from tests.store import worlds
from tests.store.worlds import SEGMENT_SIZE, put, settle, write_back
from tests.support.waiting import until
from tools.drill.testbed.damage import small_disk
from tools.drill.testbed.group import CannotRun

GIB = 1 << 30


# --- the decision ---------------------------------------------------------------------------------------


def disk_of(
    used: int, *, removable: int = 50, expired: int = 0, allocated: int = 0, is_held: bool = False
) -> LogOnDisk:
    """A disk of 100 GiB of which so many are used."""
    space = Space(100 * GIB, (100 - used) * GIB, (100 - used) * GIB)
    return LogOnDisk("/log", space, GIB, removable, expired, allocated, is_held)


@pytest.fixture
def cleaning() -> ForcedCleaning:
    return ForcedCleaning(RetentionRules())


def test_nothing_goes_at_the_look_that_says_it(cleaning: ForcedCleaning) -> None:
    assert not cleaning.judge(disk_of(95), is_forced=True), "the disk was nearly empty a look ago"
    assert "until messages younger than fileReservedTime (72 hours) are removed" in cleaning.findings[0]
    assert cleaning.room == 0 and cleaning.note is not None
    assert cleaning.judge(disk_of(95), is_forced=True)


def test_it_is_said_while_there_is_room_and_once(cleaning: ForcedCleaning) -> None:
    for used in (70, 79, 80):
        assert not cleaning.judge(disk_of(used), is_forced=False)
        assert cleaning.findings == [] and cleaning.room == pytest.approx((85 - used) / 100)
    for used in (81, 79, 81, 84):
        cleaning.judge(disk_of(used), is_forced=False)
    assert len(cleaning.findings) == 1, "it is not said anew when the room grows and shrinks a little"


def test_expired_segments_are_room_because_they_go_first(cleaning: ForcedCleaning) -> None:
    cleaning.judge(disk_of(88, expired=10), is_forced=False)
    assert cleaning.room == pytest.approx(0.07) and cleaning.note is None


def test_each_segment_goes_when_the_room_of_the_one_before_has_appeared(cleaning: ForcedCleaning) -> None:
    cleaning.judge(disk_of(88), is_forced=True)
    assert cleaning.judge(disk_of(88), is_forced=True)
    assert not cleaning.judge(disk_of(88), is_forced=True), "its file system frees the room later"
    assert cleaning.stopped is None
    assert cleaning.judge(disk_of(87), is_forced=True)
    assert cleaning.judge(disk_of(87, allocated=GIB), is_forced=True), "the log itself took that room again"
    assert not cleaning.judge(disk_of(85, allocated=GIB), is_forced=False)
    assert cleaning.removed == 3 and cleaning.stopped is None


def test_where_a_removal_gives_no_room_no_other_follows_until_it_does(cleaning: ForcedCleaning) -> None:
    cleaning.judge(disk_of(95), is_forced=True)
    assert cleaning.judge(disk_of(95), is_forced=True)
    assert not any(cleaning.judge(disk_of(95), is_forced=True) for _ in range(1000))
    assert cleaning.removed == 1
    words = cleaning.stopped
    assert words is not None and "gave it no room: another file takes the room" in words
    assert len([each for each in cleaning.findings if "has stopped" in each]) == 1
    assert cleaning.judge(disk_of(94), is_forced=True), "the file that was held has been closed"
    assert cleaning.note != words


def test_looks_at_which_nothing_may_go_do_not_forget_a_removal_that_gave_no_room(
    cleaning: ForcedCleaning,
) -> None:
    """In a broker's first minute segments go only at an administrator's wish."""
    cleaning.judge(disk_of(95), is_forced=True, may_remove=False)
    assert not cleaning.judge(disk_of(95), is_forced=True, may_remove=False)
    assert cleaning.judge(disk_of(95), is_forced=True)
    for may_remove in (False, True) * 10:
        assert not cleaning.judge(disk_of(95), is_forced=True, may_remove=may_remove)
    assert cleaning.removed == 1 and cleaning.stopped is not None


def test_a_reader_of_the_broker_that_holds_the_file_is_named(cleaning: ForcedCleaning) -> None:
    cleaning.judge(disk_of(88), is_forced=True)
    assert cleaning.judge(disk_of(88), is_forced=True)
    assert not any(cleaning.judge(disk_of(88, is_held=True), is_forced=True) for _ in range(10))
    assert cleaning.stopped is not None and "a reader of this broker holds it" in cleaning.stopped


def test_nothing_goes_where_all_that_may_go_would_not_be_enough(cleaning: ForcedCleaning) -> None:
    assert not any(cleaning.judge(disk_of(95, removable=9), is_forced=True) for _ in range(10))
    assert cleaning.removed == 0
    assert (
        cleaning.stopped is not None
        and "all 9 segments that may go would not bring it to 85 %" in cleaning.stopped
    )
    assert cleaning.judge(disk_of(95, removable=10), is_forced=True)


def queues_of(used: int, *room: int, allocated: int = 0) -> LogOnDisk:
    """Return a look at a file system of the queues alone, to which segments give this room."""
    return replace(disk_of(used, allocated=allocated), directory="/queues", queue_room=QueueRoom(*room))


def test_no_segment_goes_for_the_disk_of_the_queues_unless_queue_files_go_with_it(
    cleaning: ForcedCleaning,
) -> None:
    assert not any(cleaning.judge(queues_of(95, 0, 50 * GIB, 0), is_forced=True) for _ in range(10))
    assert cleaning.removed == 0 and cleaning.stopped is not None
    assert "with its oldest segment no queue file would go. No message is removed" in cleaning.stopped
    assert cleaning.judge(queues_of(95, 2 * GIB, 50 * GIB, 0), is_forced=True)


def test_the_disk_of_the_queues_is_judged_by_the_queue_files_that_go(cleaning: ForcedCleaning) -> None:
    assert not any(cleaning.judge(queues_of(95, GIB, 9 * GIB, 0), is_forced=True) for _ in range(10))
    assert cleaning.stopped is not None and "would not bring it to 85 %" in cleaning.stopped
    assert cleaning.judge(queues_of(95, GIB // 4, 10 * GIB, 0), is_forced=True)
    half = replace(queues_of(95, GIB // 4, 10 * GIB, 0), space=Space(100 * GIB, 5 * GIB + GIB // 8, 5 * GIB))
    assert cleaning.judge(half, is_forced=True), "the queue files that went gave their room"
    assert not any(cleaning.judge(half, is_forced=True) for _ in range(10))
    assert cleaning.removed == 2 and "gave it no room" in str(cleaning.stopped)


def test_what_goes_with_expired_segments_is_room_of_the_queues_disk(cleaning: ForcedCleaning) -> None:
    cleaning.judge(queues_of(88, GIB, 20 * GIB, 10 * GIB), is_forced=False)
    assert cleaning.room == pytest.approx(0.07) and cleaning.note is None


def test_a_disk_with_room_again_is_as_new(cleaning: ForcedCleaning) -> None:
    for _ in range(5):
        cleaning.judge(disk_of(95), is_forced=True)
    cleaning.judge(disk_of(50), is_forced=False)
    assert cleaning.note is None
    assert not cleaning.judge(disk_of(95), is_forced=True), "said again before"
    assert cleaning.judge(disk_of(95), is_forced=True)


@pytest.mark.parametrize("space", [Space(-1, -1, -1), Space(100 * GIB, 5 * GIB, 5 * GIB)])
def test_no_room_is_told_where_it_is_unknown_or_cleaning_is_not_allowed(space: Space) -> None:
    cleaning = ForcedCleaning(RetentionRules(force=space.total < 0))
    for _ in range(3):
        assert not cleaning.judge(replace(disk_of(95), space=space), is_forced=True)
    assert cleaning.room == -1.0 and cleaning.note is None and cleaning.findings == []


# --- a store ----------------------------------------------------------------------------------------


class SmallDisk(Disk):
    """A disk of a few segments: what the log takes, what other files take, and what a holder does not give back."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 1 << 40
        self.others = self.held = 0
        self.holds = self.is_taken_by_others = False
        self.removed: list[int] = []

    def space(self, path: Path) -> Space:
        log = len(self.names(path.parent / "commitlog")) * SEGMENT_SIZE
        free = self.size - log - self.others - self.held
        return Space(self.size, free, free)

    def remove(self, path: Path) -> None:
        super().remove(path)
        if path.parent.name == "commitlog":
            self.removed.append(int(path.name))
            self.held += SEGMENT_SIZE * self.holds
            self.others += SEGMENT_SIZE * self.is_taken_by_others


@dataclass
class World(worlds.World):
    disk: SmallDisk = field(default_factory=SmallDisk)

    @property
    def config(self) -> StoreConfig:
        rules = RetentionRules(
            reserved_ms=72 * HOUR_MS, first_ms=0, log_pause_ms=0, queue_pause_ms=0, interval_ms=1000
        )
        return replace(super().config, retention=rules, index=Geometry(50, 300), index_in_process=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


@pytest.fixture
def store(world: World) -> Iterator[MessageStore]:
    """Ten young segments on a disk that they fill by 88 %."""
    opened = MessageStore(world.config, world.disk, world.clock, lambda: None)
    opened.open()
    while len(opened.log.segments) < 10:
        put(opened, [bytes(900)])
        settle(opened)
    write_back(opened)

    def turn() -> None:
        world.clock.ms += 100
        opened.tick()
        opened.run_completions()

    until(lambda: opened.log.spare is not None, turn=turn, patience_s=20)
    opened.upkeep.take_findings()
    fill(world, store=opened, percent=88)
    yield opened
    opened.close()


def fill(world: World, store: MessageStore, percent: int) -> None:
    """Make the disk so small that the log fills so much of it."""
    world.disk.size = len(world.disk.names(store.log.directory)) * SEGMENT_SIZE * 100 // percent


def look(world: World, store: MessageStore, ms: int = 1001) -> list[str]:
    """Let time pass, and everything that is due then; return what was said."""
    cleaner = store.upkeep.cleaner
    assert cleaner is not None
    world.clock.ms += ms
    until(lambda: not cleaner._looking, turn=store.run_completions, pause_s=0.001)
    store.tick()

    def is_done() -> bool:
        store.tick()
        return not (cleaner._looking or cleaner._removing or cleaner._retired)

    until(is_done, turn=store.run_completions, pause_s=0.001)
    return store.upkeep.take_findings()


def test_one_segment_at_a_time_goes_only_until_the_level_is_met_and_is_said_before(
    world: World, store: MessageStore
) -> None:
    said = look(world, store)
    assert world.disk.removed == [] and any("until messages younger than" in each for each in said)
    for _ in range(10):
        look(world, store)
    assert world.disk.removed == [0], "88 % of eleven files is met by one"
    assert world.disk.space(store.log.directory).used_percent <= 85
    assert store.refusal is None


def test_a_log_that_takes_the_room_of_a_removal_at_once_gets_the_next_one_without_a_pause(
    world: World, store: MessageStore
) -> None:
    fill(world, store, 91)
    look(world, store)
    look(world, store)
    assert world.disk.removed == [0]
    look(world, store, ms=300)
    assert world.disk.removed == [0], "another file may take the room"
    count = len(store.log.segments)
    while len(store.log.segments) == count:
        put(store, [bytes(900)])
        settle(store)

    def turn() -> None:
        store.tick()
        store.run_completions()

    until(lambda: store.log.spare is not None, turn=turn, patience_s=20)
    look(world, store, ms=300)
    assert world.disk.removed == [0, SEGMENT_SIZE]


def test_a_disk_that_another_file_fills_again_and_again_costs_one_segment(
    world: World, store: MessageStore
) -> None:
    fill(world, store, 92)
    world.disk.is_taken_by_others = True
    said = [line for _ in range(20) for line in look(world, store)]
    assert world.disk.removed == [0]
    assert store.refusal is not None and "forced cleaning has stopped" in store.refusal
    assert len([line for line in said if line.startswith("forced cleaning has stopped")]) == 1
    world.disk.others = 0
    look(world, store)
    assert not store.refusal
    assert world.disk.removed == [0]


def test_a_removed_file_that_a_process_holds_costs_one_segment_until_it_is_closed(
    world: World, store: MessageStore
) -> None:
    fill(world, store, 95)
    world.disk.holds = True
    for _ in range(20):
        look(world, store)
    assert world.disk.removed == [0] and store.refusal is not None
    world.disk.holds, world.disk.held = False, 0
    for _ in range(5):
        look(world, store)
    assert world.disk.removed == [0, SEGMENT_SIZE]


def test_a_disk_that_other_files_fill_costs_nothing(world: World, store: MessageStore) -> None:
    world.disk.size, world.disk.others = 100 * SEGMENT_SIZE, 86 * SEGMENT_SIZE
    for _ in range(20):
        look(world, store)
    assert world.disk.removed == []
    assert store.refusal is not None and "other files fill it. No message is removed" in store.refusal


def test_an_administrators_wish_takes_no_young_segment_unsaid(world: World, store: MessageStore) -> None:
    store.upkeep.remove_expired()
    look(world, store)
    assert world.disk.removed == []


# --- two file systems -------------------------------------------------------------------------------


@dataclass
class TwoDisks(worlds.World):
    """A store whose log and queues lie on two small file systems."""

    log_directory: Path = Path()

    @property
    def config(self) -> StoreConfig:
        rules = RetentionRules(
            reserved_ms=72 * HOUR_MS, first_ms=0, log_pause_ms=0, queue_pause_ms=0, interval_ms=1000
        )
        return replace(super().config, log_directory=self.log_directory, retention=rules)


@pytest.fixture
def two_disks(tmp_path: Path) -> Iterator[TwoDisks]:
    queues, log = tmp_path / "queues", tmp_path / "log"
    try:
        with small_disk(queues, 1 << 20), small_disk(log, 4 << 20):
            yield TwoDisks(
                queues / "store", segment_size=32 << 10, queue_file_size=4000, log_directory=log / "commitlog"
            )
    except CannotRun as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize("queue_file_size", [4000, 400_000], ids=["queue files go", "no queue file would go"])
def test_a_full_disk_of_the_queues_costs_messages_only_where_queue_files_go_with_them(
    two_disks: TwoDisks, queue_file_size: int
) -> None:
    two_disks.queue_file_size = queue_file_size
    with two_disks.opened() as store:
        while len(store.log.segments) < 12:
            put(store, [bytes(20)] * 20)
            settle(store)
        write_back(store)
        root, segments = two_disks.root.parent, len(store.log.segments)
        disk = Disk()
        assert disk.are_apart(root, store.log.directory)
        with (root / "another").open("wb") as other:
            while disk.space(root).used_percent < 88:
                other.write(bytes(4096))
                other.flush()
        said: list[str] = []
        cleaner = store.upkeep.cleaner
        assert cleaner is not None
        for _ in range(20):
            two_disks.clock.ms += 2001
            store.tick()

            def rests(cleaner: Cleaner = cleaner) -> bool:
                store.tick()
                return not (
                    cleaner._looking or cleaner._removing or cleaner._retired or cleaner._late or cleaner._emptied
                    or cleaner._correcting
                )  # fmt: skip

            until(rests, turn=store.run_completions, pause_s=0.001)
            settle(store)
            said += store.upkeep.take_findings()
        removed = segments - len(store.log.segments)
        if queue_file_size > 4000:
            assert removed == 0 and "no queue file would go. No message is removed" in "\n".join(said), said
        else:
            assert 2 <= removed <= 8 and disk.space(root).used_percent <= 85, (removed, said)
            assert cleaner.forced.stopped is None and store.refusal is None
