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
from store.timer.layout import (
    NONE,
    SLOT_SIZE,
    SLOTS_TOTAL,
    UNIT_SIZE,
    WHEEL_SIZE,
    Checkpoint,
    Unit,
    decode_history,
)
from store.timer.progress import Progress
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
    root: Path,
    now_ms: int = START_MS,
    log_end: int = 1 << 40,
    rules: TimerRules = RULES,
    progress: tuple[int, int] | None = None,
    disk: Disk | None = None,
) -> TimerStore:
    timers = TimerStore(root, rules, disk or Disk())
    timers.open(now_ms, log_end, number_of, Progress(*progress) if progress else None)
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


def test_a_log_that_is_cut_before_the_first_claim_has_every_timer_delivered_again(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    assert walked(timers, START_MS + 1_000) == [(START_MS, 0, 1)]
    timers.forget(timers.read_ms)
    timers.flushed(timers.flush(Checkpoint(timers.read_ms, 0, 1, 1), 1_000)())
    cut = opened(tmp_path, START_MS + 60_000, log_end=500)
    assert walked(cut, START_MS + 60_000) == [(START_MS, 0, 1)]


def test_claims_that_another_broker_left_behind_its_checkpoint_count_for_nothing(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    wanted = Checkpoint(START_MS, 0, 1, 1)
    timers.flushed(timers.flush(wanted, 5_000)())
    path = tmp_path / "config" / "timercheck"
    page = path.read_bytes()
    assert [claim.log_end for claim in decode_history(page)] == [0, 5_000]
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
    timers.forget(timers.read_ms)
    assert not timers.enqueue(START_MS + 2_000, START_MS, 200, RECORD_SIZE, 7, delete=False, follows=True)
    assert walked(timers, START_MS + 60_000) == [(START_MS + 9_000, 1, 1)]


def test_a_clock_that_was_set_back_is_followed_when_no_start_would_find_what_is_delivered(
    tmp_path: Path,
) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    timers.write()
    assert walked(timers, START_MS + 1_000) == [(START_MS, 0, 1)]
    timers.forget(timers.read_ms)
    went_back = timers.set_back(START_MS + 999)
    killed = opened(tmp_path, START_MS + 999, progress=(timers.read_ms, 1))
    assert walked(killed, START_MS + 9_000) == []
    assert not went_back, "the checkpoint is from before the delivery, and the unit still behind it"
    assert timers.needs_flush(timers.checkpoint)
    flush(timers)
    assert timers.set_back(START_MS + 999)
    again = opened(tmp_path, START_MS + 999, progress=(timers.read_ms, 1))
    assert walked(again, START_MS + 9_000) == []


def test_a_flush_under_way_does_not_count_as_one_that_covers_what_is_delivered(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    assert walked(timers, START_MS + 1_000) == [(START_MS, 0, 1)]
    timers.forget(timers.read_ms)
    job = timers.flush(Checkpoint(timers.read_ms, 0, 1, 1))
    assert not timers.set_back(START_MS)
    failed = replace(job(), failure="the disk is full")
    timers.flushed(failed)
    assert not timers.set_back(START_MS)
    flush(timers)
    assert timers.set_back(START_MS)


def test_a_store_without_a_timer_follows_every_clock_without_a_file(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    assert walked(timers, START_MS + 5_000) == []
    timers.forget(timers.read_ms)
    assert timers.set_back(START_MS)
    timers.follow(START_MS - 9_000)
    assert timers.read_ms == START_MS - 9_000 and not list(tmp_path.iterdir())


def test_a_flush_that_failed_may_have_written_its_checkpoint(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    assert walked(timers, START_MS + 5_000) == []
    timers.forget(timers.read_ms)
    result = timers.flush(Checkpoint(START_MS + 5_000))()
    timers.flushed(replace(result, failure="the sync failed"))
    assert timers.set_back(START_MS)
    assert timers.claimed_ms > timers.read_ms, "a start would drop the slots before that time"
    assert timers.needs_flush(timers.checkpoint)
    timers.flushed(timers.flush(Checkpoint(START_MS))())
    assert timers.claimed_ms == timers.read_ms


def test_a_checkpoint_without_timers_follows_a_clock_that_was_set_back(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(Checkpoint(START_MS + 9_000).encode())
    timers = opened(tmp_path)
    assert timers.set_back(START_MS)
    assert timers.needs_flush(Checkpoint(timers.read_ms)), "nothing is enqueued before the file says so"


def test_a_follower_goes_back_with_its_master_when_no_start_would_find_what_is_delivered(
    tmp_path: Path,
) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 1_000)
    enqueue(timers, 1, START_MS + 9_000)
    timers.write()
    assert timers.follow(START_MS + 5_000)
    timers.forget(timers.read_ms)
    assert not timers.follow(START_MS)
    assert timers.read_ms == START_MS + 5_000
    flush(timers)
    assert timers.follow(START_MS)
    assert timers.read_ms == START_MS
    again = opened(tmp_path, START_MS, progress=(START_MS, 2))
    assert walked(again, START_MS + 60_000) == [(START_MS + 9_000, 1, 1)]


def test_a_follower_keeps_what_its_master_delivered_until_the_copies_are_on_its_own_disk(
    tmp_path: Path,
) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 1_000)
    assert timers.follow(START_MS + 5_000)
    timers.flushed(timers.flush(Checkpoint(START_MS, 0, 1, 1))())
    again = opened(tmp_path, START_MS)  # all members have lost their power, and this one leads
    assert walked(again, START_MS + 60_000) == [(START_MS + 1_000, 0, 1)]


def test_a_follower_enqueues_what_its_master_delivered_until_the_copies_are_on_its_own_disk(
    tmp_path: Path,
) -> None:
    timers = opened(tmp_path)
    assert timers.follow(START_MS + 5_000)
    for number, due_s in enumerate((1, 9)):
        timers.enqueue(START_MS + due_s * 1000, START_MS, number * 100, 100, 7, delete=False, follows=True)
        timers.queue_offset += 1
    timers.flushed(timers.flush(Checkpoint(START_MS, 0, 0, 2))())
    assert [
        number for _slot, number in waiting(opened(tmp_path, START_MS, progress=(START_MS + 5_000, 2)))
    ] == [1]
    again = opened(tmp_path, START_MS)  # all members have lost their power, and this one leads
    assert walked(again, START_MS + 60_000) == [(START_MS + 1_000, 0, 1), (START_MS + 9_000, 1, 1)]
    timers.forget(timers.read_ms)
    assert not timers.enqueue(START_MS + 2_000, START_MS, 200, 100, 7, delete=False, follows=True)


def test_a_follower_that_delivered_itself_goes_back_to_what_is_not_forgotten(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS)
    assert walked(timers, START_MS + 1_000) == [(START_MS, 0, 1)]
    assert timers.follow(START_MS), "its copy may be cut"
    assert walked(timers, START_MS + 1_000) == [(START_MS, 0, 1)]


def test_a_cut_log_takes_delivery_back_to_the_earliest_time_whose_copies_it_lost(tmp_path: Path) -> None:
    timers = opened(tmp_path)
    enqueue(timers, 0, START_MS + 9_000)
    assert walked(timers, START_MS + 10_000) == [(START_MS + 9_000, 0, 1)]
    for read_s, commit_end in ((10, 1_000), (4, 1_200), (12, 1_400)):  # the clock was set back, and caught up
        if read_s == 4:
            assert timers.set_back(START_MS + 4_000)
        elif read_s == 12:
            enqueue(timers, 1, START_MS + 5_000)
            assert walked(timers, START_MS + 12_000) == [(START_MS + 5_000, 1, 1)]
        timers.forget(timers.read_ms)
        wanted = Checkpoint(timers.read_ms, 0, timers.queue_offset, timers.queue_offset)
        timers.flushed(timers.flush(wanted, commit_end)())
    cut = opened(tmp_path, START_MS + 60_000, log_end=1_100)
    assert (START_MS + 5_000, 1, 1) in walked(cut, START_MS + 60_000), "its copy was between the two ends"


def waiting(timers: TimerStore) -> list[tuple[int, int]]:
    """Return (slot time, number of the record) of every unit that a walk would find."""
    found: list[tuple[int, int]] = []
    time = timers.read_ms // 1000
    until = time + 2 * SLOTS_TOTAL
    while (time := timers.wheel.next_used(time, until)) < until:
        position = timers.wheel.get(time).last
        stop = timers._done_to if time * 1000 == timers.read_ms else NONE
        while position > stop:
            unit = timers.log.unit_nowait(position)
            if unit is None:
                place = timers.log.block_of(position)
                timers.log.keep_block(place, timers.log.read_block(place))
                continue
            found.append((time * 1000, number_of(unit)))
            position = unit.prev
        time += 1
    return sorted(found)


class TimerWorld(RuleBasedStateMachine):
    """A timer store beside a list of what is pending. The clock may be set, and the process may be killed at any time.

    What is known on the disk: the copies that were delivered before `durable`, the page `page`, and the checkpoint.
    """

    @initialize()
    def start(self) -> None:
        self.root = TemporaryDirectory()
        self.now = START_MS
        self.disk = Disk()
        self.timers = opened(Path(self.root.name), disk=self.disk)
        self.pending: list[tuple[int, int]] = []
        self.number = 0
        self.part: list[tuple[int, int]] = []
        """Delivered timers of a slot that is delivered in part."""
        self.durable = self.progress()
        self.page: tuple[int, int] | None = None
        self.page_is_old = False
        """Whether the page is from before the clock was set back last."""
        self.since_page: list[tuple[int, int]] = []
        self.since_durable: list[tuple[int, int]] = []
        self.since_flush: list[tuple[int, int]] = []
        """What was delivered since then."""

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.disk.close()
            self.root.cleanup()

    def progress(self) -> tuple[int, int]:
        return self.timers.read_ms, self.timers.queue_offset

    # As the service does: it waits until the store has gone back, and its checkpoint too.
    def takes_timers(self) -> bool:
        timers = self.timers
        page_is_old = self.page_is_old and not timers.is_unused
        return not timers.is_ahead_of(self.now) and timers.claimed_ms <= timers.read_ms and not page_is_old

    def enqueue(self, due_ms: int, count: int) -> None:
        for _ in range(count):
            enqueue(self.timers, self.number, due_ms, self.now)
            self.pending.append((due_ms, self.number))
            self.number += 1
        self.timers.write()

    @rule(ahead_s=st.integers(0, 40), count=st.integers(1, 30))
    def add(self, ahead_s: int, count: int) -> None:
        if self.takes_timers():
            self.enqueue((self.now // 1000 + ahead_s) * 1000, count)

    @rule(
        by_ms=st.integers(-40_000, 40_000),
        slots=st.sampled_from([0, 1, 100]),
        flushed=st.booleans(),
        written=st.booleans(),
    )
    def turn(self, by_ms: int, slots: int, flushed: bool, written: bool) -> None:
        """Let time pass, or set the clock: copies reach the disk, the store follows, and slots are delivered."""
        self.now += by_ms
        if flushed:
            self.copies_are_flushed()
        self.follow_clock()
        while (
            slots and not self.timers.is_ahead_of(self.now) and self.timers.read_ms < self.now // 1000 * 1000
        ):
            self.deliver_slot(0)
            slots -= 1
        if slots:
            assert not [item for item in self.pending if item[0] < self.now // 1000 * 1000]
        if written:
            self.write_page()

    @rule(meanwhile=st.integers(0, 3))
    def deliver_slot(self, meanwhile: int) -> None:
        """Deliver the next slot, into which some more timers come at the same time."""
        walk = self.timers.next_due(self.now // 1000 * 1000)
        if walk is None:
            return
        if meanwhile and self.takes_timers():
            self.enqueue(walk.slot_ms, meanwhile)
        finish(self.timers, walk)
        found = [(walk.slot_ms, offset // RECORD_SIZE) for offset in reversed(walk.offsets)]
        assert found == sorted(found)
        assert walk.slot_ms == min(self.pending)[0]
        for item in found:
            self.pending.remove(item)
        self.part = [*self.part, *found] if self.timers.read_ms == walk.slot_ms else []
        for delivered in (self.since_page, self.since_durable, self.since_flush):
            delivered += found

    def follow_clock(self) -> None:
        if self.timers.set_back(self.now):
            assert not self.timers.is_ahead_of(self.now)
            self.pending += self.part  # the owner leaves those out
            self.part = []
            self.durable, self.page_is_old = min(self.durable, self.progress()), True
            self.since_durable = []

    def copies_are_flushed(self) -> None:
        self.durable, self.since_durable = self.progress(), self.part[:]
        self.timers.forget(self.timers.read_ms)

    def write_page(self) -> None:
        if self.timers.is_unused:
            return
        self.page, self.page_is_old, self.since_page = self.progress(), False, self.part[:]

    @rule(fails=st.booleans())
    def flush(self, fails: bool) -> None:
        read_ms, queue_offset = self.durable
        if read_ms < self.timers.claimed_ms and self.page_is_old:
            self.write_page()
        job = self.timers.flush(Checkpoint(read_ms, 0, queue_offset, queue_offset))
        if fails:
            self.timers.flushed(replace(job(), failure="the disk is full"))
            self.timers.findings.clear()
        else:
            self.timers.flushed(job())
            self.since_flush = self.since_durable[:]

    @rule(stopped=st.booleans(), rebooted=st.booleans())
    def restart(self, stopped: bool, rebooted: bool) -> None:
        """A clean stop, or a kill; after another boot the page counts for nothing."""
        if stopped:
            self.copies_are_flushed()
            self.write_page()
            self.flush(False)
        self.disk.close()
        if rebooted:
            self.page = None
        self.timers = opened(Path(self.root.name), self.now, progress=self.page, disk=self.disk)
        again = self.since_flush if rebooted else self.since_page
        found, pending = waiting(self.timers), sorted([*self.pending, *self.part])
        assert set(pending) <= set(found), "some are lost"
        assert set(found) <= {*pending, *again}, "some are delivered again that are known to be delivered"
        assert len(found) == len(set(found))
        assert self.timers.queue_offset == self.number
        self.pending, self.part = found, []
        self.durable, self.since_durable = self.progress(), []
        self.since_page = [item for item in self.since_page if item not in found]
        self.since_flush = [item for item in self.since_flush if item not in found]

    @invariant()
    def what_waits_is_what_is_pending(self) -> None:
        if hasattr(self, "timers"):
            assert waiting(self.timers) == sorted(self.pending)


TestTimerWorld: Callable[..., object] = TimerWorld.TestCase
TimerWorld.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_markers_are_told_from_messages() -> None:
    assert [is_delete(magic) for magic in (1, 3, 5, 7)] == [False, False, True, False]
