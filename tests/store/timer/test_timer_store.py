"""Wheel and log against a dumb list, through restarts, kills and clocks that are set."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from store.io.disk import Disk
from store.log.commitlog import StoreDamaged
from store.timer.layout import SLOT_SIZE, UNIT_SIZE, WHEEL_SIZE, WHEEL_SLOTS, Checkpoint, Unit, decode_history
from store.timer.timer_store import TimerRules, TimerStore, Walk, is_delete, is_rolled

START_MS = 1_700_000_000_000
RECORD_SIZE = 100
FILE_SIZE = 20 * UNIT_SIZE + 20
RULES = TimerRules(log_file_size=FILE_SIZE)


def no_offset(_unit: Unit) -> int:
    return -1


def number_of(unit: Unit) -> int:
    """The place in the timer topic of the record at an offset, where every record has 100 bytes."""
    return unit.offset // RECORD_SIZE


def opened(
    root: Path, now_ms: int = START_MS, log_end: int = 1 << 40, rules: TimerRules = RULES
) -> TimerStore:
    timers = TimerStore(root, rules, Disk())
    timers.open(now_ms, log_end, number_of)
    return timers


def enqueue(
    timers: TimerStore, number: int, due_ms: int, write_ms: int = START_MS, *, delete: bool = False
) -> None:
    timers.enqueue(due_ms, write_ms, number * RECORD_SIZE, RECORD_SIZE, 7, delete=delete)
    timers.queue_offset = number + 1


def flush(timers: TimerStore) -> None:
    timers.forget(timers.read_ms)
    wanted = Checkpoint(timers.read_ms, 0, timers.queue_offset, timers.queue_offset)
    timers.flushed(timers.flush(wanted)())


def walked(timers: TimerStore, until_ms: int) -> list[tuple[int, int, int]]:
    """Deliver every slot before a time; (slot time, number of the record, magic), the oldest unit of a slot first."""
    found: list[tuple[int, int, int]] = []
    while (walk := timers.next_due(until_ms)) is not None:
        finish(timers, walk)
        units = zip(walk.offsets, walk.magics, strict=True)
        found += [(walk.slot_ms, offset // RECORD_SIZE, magic) for offset, magic in reversed(list(units))]
    return found


def finish(timers: TimerStore, walk: Walk) -> None:
    while not walk.is_done:
        place = timers.step(walk)
        if place is not None:
            timers.log.keep_block(place, timers.log.read_block(place))
    assert not walk.damage
    timers.finish(walk)


def test_names_of_files_are_on_the_disk_before_the_checkpoint_claims_their_units(tmp_path: Path) -> None:
    class Names(Disk):
        synced: list[Path]

        def sync_directory(self, path: Path) -> None:
            self.synced.append(path)
            super().sync_directory(path)

    disk = Names()
    disk.synced = []
    timers = TimerStore(tmp_path, RULES, disk)
    timers.open(START_MS, 1 << 40, number_of)
    enqueue(timers, 0, START_MS + 5_000)
    flush(timers)
    assert disk.synced[:2] == [tmp_path / "timerlog", tmp_path], (
        "a loss of power would take the log, not the claim"
    )
    assert {tmp_path / "config"} <= set(disk.synced)
    before = len(disk.synced)
    enqueue(timers, 1, START_MS + 6_000)
    flush(timers)
    assert len(disk.synced) == before, "once for each file"


def test_copies_that_a_cut_log_has_lost_are_delivered_again(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for number in range(6):
        enqueue(timers, number, START_MS + 1_000 * number)
    for second, commit_end in ((2, 1_000), (4, 2_000)):
        assert len(walked(timers, START_MS + 1_000 * second)) == 2
        timers.forget(timers.read_ms)
        wanted = Checkpoint(timers.read_ms, 0, timers.queue_offset, timers.queue_offset)
        timers.flushed(timers.flush(wanted, commit_end)())
    whole = opened(tmp_path, START_MS + 60_000, log_end=2_000)
    assert [number for _slot, number, _magic in walked(whole, START_MS + 60_000)] == [4, 5]
    cut = opened(tmp_path, START_MS + 60_000, log_end=1_500)
    assert "delivered again" in cut.findings[0]
    assert [number for _slot, number, _magic in walked(cut, START_MS + 60_000)] == [2, 3, 4, 5]


def test_claims_that_another_broker_left_behind_its_checkpoint_count_for_nothing(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    wanted = Checkpoint(START_MS, 0, 1, 1)
    timers.flushed(timers.flush(wanted, 5_000)())
    path = tmp_path / "config" / "timercheck"
    page = path.read_bytes()
    assert [claim.log_end for claim in decode_history(page)] == [5_000]
    path.write_bytes(Checkpoint(START_MS + 9_000, 52, 1, 1).encode() + page[56:])  # as RocketMQ writes it
    assert decode_history(path.read_bytes()) == []
    assert opened(tmp_path, START_MS + 60_000, log_end=1_000).read_ms == START_MS + 9_000
    assert decode_history(page[:70]) == [] == decode_history(page[:90] + b"x" + page[91:])


def test_a_timer_is_found_when_its_slot_has_passed(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 5_000)
    enqueue(timers, 1, START_MS + 5_000)
    enqueue(timers, 2, START_MS + 3_000, delete=True)
    assert timers.waiting_at(START_MS + 5_999) == 2
    assert walked(timers, START_MS + 3_000) == []
    assert walked(timers, START_MS + 4_000) == [(START_MS + 3_000, 2, 5)]
    assert walked(timers, START_MS + 6_000) == [(START_MS + 5_000, 0, 1), (START_MS + 5_000, 1, 1)]
    assert timers.read_ms == START_MS + 6_000


@pytest.mark.parametrize(
    ("ahead_s", "slot_s", "rolled"),
    [
        (172_799, 172_799, False),
        (172_800, 86_400, True),
        (200_100, 86_400, True),
        (230_399, 86_400, True),
        (230_400, 172_800, True),
        (259_200, 172_800, True),
    ],
)
def test_what_lies_beyond_the_window_is_rolled_as_by_the_original(
    tmp_path: Path, ahead_s: int, slot_s: int, rolled: bool
) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + ahead_s * 1000)
    ((slot_ms, number, magic),) = walked(timers, START_MS + 300_000_000)
    assert (slot_ms, number, is_rolled(magic)) == (START_MS + slot_s * 1000, 0, rolled)


def test_files_are_those_that_the_original_opens(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for number in range(50):
        enqueue(timers, number, START_MS + 5_000)
    flush(timers)
    assert (tmp_path / "timerwheel").stat().st_size == WHEEL_SIZE == 38_707_200
    names = sorted(path.name for path in (tmp_path / "timerlog").iterdir())
    assert names == [f"{number * FILE_SIZE:020d}" for number in range(3)]
    data = (tmp_path / "timerlog" / names[0]).read_bytes()
    used = 20 * UNIT_SIZE
    assert data[used - UNIT_SIZE : used - UNIT_SIZE + 4] == b"\0\0\0\x34"
    assert data[used:] == bytes.fromhex("00000014" + "00" * 8 + "cbd43194") + bytes(4)
    with (tmp_path / "timerwheel").open("rb") as wheel:
        wheel.seek((START_MS + 5_000) // 1000 % 1_209_600 * SLOT_SIZE)
        slot = wheel.read(SLOT_SIZE)
    assert slot[:8] == ((START_MS + 5_000) // 1000).to_bytes(8, "big")
    assert slot[24:28] == (50).to_bytes(4, "big")
    assert Checkpoint.decode((tmp_path / "config" / "timercheck").read_bytes()).log_end == timers.log.end


def test_a_wheel_that_is_gone_is_built_again_from_the_log(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for number in range(100):
        enqueue(timers, number, START_MS + number % 7 * 1000)
    flush(timers)
    (tmp_path / "timerwheel").unlink()
    again = opened(tmp_path)
    assert again.queue_offset == 100
    assert len(walked(again, START_MS + 10_000)) == 100


def test_units_of_records_that_the_log_lost_are_cut(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for number in range(100):
        enqueue(timers, number, START_MS + number % 7 * 1000)
    flush(timers)
    again = opened(tmp_path, log_end=70 * RECORD_SIZE)
    assert (
        again.queue_offset <= 100
    )  # the owner holds it against the timer topic, which is as short as the log
    assert sorted(number for _slot, number, _magic in walked(again, START_MS + 10_000)) == list(range(70))
    assert again.findings == ["the timer wheel is built again from the timer log"]
    third = opened(tmp_path, log_end=70 * RECORD_SIZE)
    assert third.log.end == again.log.end


def test_units_behind_the_checkpoint_are_not_enqueued_again(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 5_000)
    flush(timers)
    enqueue(timers, 1, START_MS + 6_000)
    timers.write()
    assert opened(tmp_path).queue_offset == 2, "the unit is there, and a second one would deliver it twice"


@pytest.mark.parametrize("count", [0, 3, 20])
def test_units_follow_each_other_without_a_gap_after_a_checkpoint_that_claimed_more(
    tmp_path: Path, count: int
) -> None:
    timers = opened(tmp_path)
    for number in range(count):
        enqueue(timers, number, START_MS + 5_000)
    flush(timers)
    path = tmp_path / "config" / "timercheck"
    known = Checkpoint.decode(path.read_bytes())
    if not count:
        enqueue(timers, 0, START_MS + 5_000)
        timers.write()
        path_of_log = tmp_path / "timerlog" / f"{0:020d}"
        path_of_log.write_bytes(bytes(FILE_SIZE))
    path.write_bytes(replace(known, log_end=(count + 5) * UNIT_SIZE).encode())
    again = opened(tmp_path)
    enqueue(again, count, START_MS + 5_000)
    again.write()
    units = [unit.offset // RECORD_SIZE for _position, unit in opened(tmp_path).log.units(0)]
    assert units == list(range(count + 1)), "the original reads up to the first bytes that are no unit"


def test_a_week_without_the_broker_loses_what_was_due_before_it(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 1_000)
    enqueue(timers, 1, START_MS + 500_000)
    flush(timers)
    again = opened(tmp_path, START_MS + 604_800_000)
    assert "more than a week" in again.findings[0]
    assert [number for _slot, number, _magic in walked(again, START_MS + 604_800_000)] == [1]


@pytest.mark.parametrize("name", ["timerwheel", "timerlog/00000000000000000000"])
def test_a_file_of_another_size_is_refused_with_the_way_out(tmp_path: Path, name: str) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    flush(timers)
    with (tmp_path / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(StoreDamaged, match=r"mappedFileSizeTimerLog|a timer wheel has"):
        opened(tmp_path)


def test_files_go_whose_last_record_the_log_no_longer_has(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    for number in range(50):
        enqueue(timers, number, START_MS)
    timers.write()
    assert timers.log.expired(19 * RECORD_SIZE) == []
    (path,) = timers.log.expired(20 * RECORD_SIZE)
    timers.log.remove(path)
    assert [path.name for path in sorted((tmp_path / "timerlog").iterdir())] == [
        f"{FILE_SIZE:020d}",
        f"{2 * FILE_SIZE:020d}",
    ]
    assert len(timers.log.expired(1 << 40)) == 1  # the last file stays


def test_units_that_come_into_a_slot_under_way_are_walked_alone(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    walk = timers.next_due(START_MS + 1_000)
    assert walk is not None
    enqueue(timers, 1, START_MS)
    finish(timers, walk)
    assert list(walk.offsets) == [0] and timers.read_ms == START_MS
    assert walked(timers, START_MS + 1_000) == [(START_MS, 1, 1)]


def test_a_follower_leaves_out_what_its_master_has_delivered(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 1_000)
    enqueue(timers, 1, START_MS + 9_000)
    timers.follow(START_MS + 5_000)
    assert not timers.enqueue(START_MS + 2_000, START_MS, 200, RECORD_SIZE, 7, delete=False, follows=True)
    assert walked(timers, START_MS + 60_000) == [(START_MS + 9_000, 1, 1)]


class TimerWorld(RuleBasedStateMachine):
    """A timer store beside a list of what is pending; the clock may be set, the process may be killed."""

    @initialize()
    def start(self) -> None:
        self.root = TemporaryDirectory()
        self.now = START_MS
        self.timers = opened(Path(self.root.name))
        self.pending: list[tuple[int, int]] = []
        self.number = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.root.cleanup()

    @rule(ahead_s=st.integers(0, 40), count=st.integers(1, 30))
    def add(self, ahead_s: int, count: int) -> None:
        if self.timers.is_ahead_of(self.now) or self.timers.checkpoint.read_ms > self.timers.read_ms:
            return  # as the service does: it waits until the store has gone back, and its checkpoint too
        for _ in range(count):
            due = (self.now // 1000 + ahead_s) * 1000
            enqueue(self.timers, self.number, due, self.now)
            self.pending.append((due, self.number))
            self.number += 1
        self.timers.write()

    @rule(later_ms=st.integers(0, 20_000))
    def pass_time(self, later_ms: int) -> None:
        self.now += later_ms
        self.deliver()

    @rule(by_ms=st.integers(-40_000, 40_000))
    def set_clock(self, by_ms: int) -> None:
        self.now += by_ms
        self.deliver()

    def deliver(self) -> None:
        limit = self.now // 1000 * 1000
        if self.timers.is_ahead_of(self.now):
            self.timers.forget(self.timers.read_ms)
            assert self.timers.set_back(self.now)
        found = [(slot, number) for slot, number, _magic in walked(self.timers, limit)]
        due = [item for item in self.pending if item[0] < limit]
        assert sorted(found) == sorted(due)
        assert found == sorted(found)
        self.pending = [item for item in self.pending if item[0] >= limit]

    @rule()
    def flush(self) -> None:
        flush(self.timers)

    @rule(flushed=st.booleans())
    def restart(self, flushed: bool) -> None:
        """A clean stop, or a kill after which the page says how far it was."""
        progress = self.timers.read_ms, self.timers.queue_offset
        if flushed:
            flush(self.timers)
        elif self.timers.is_ahead_of(self.now):
            return
        else:
            self.timers.forget(self.timers.read_ms)
        self.timers = TimerStore(Path(self.root.name), RULES, Disk())
        self.timers.open(self.now, 1 << 40, number_of, progress)
        assert self.timers.queue_offset == self.number

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "timers"):
            time = self.timers.read_ms // 1000
            assert self.timers.wheel.count(time, time + WHEEL_SLOTS) == len(self.pending)


TestTimerWorld: Callable[..., object] = TimerWorld.TestCase
TimerWorld.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_markers_are_told_from_messages() -> None:
    assert [is_delete(magic) for magic in (1, 3, 5, 7)] == [False, False, True, False]
