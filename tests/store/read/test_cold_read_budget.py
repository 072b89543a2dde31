"""Consumers far behind get a share of a loop without time: a floor and a ceiling; and all they want of one that has."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import store.read.reader
from store.io.disk import Disk
from store.read.cold_read_budget import WAIT_MAX_S, WINDOW_BYTES, WINDOW_S, ColdReadBudget
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus
from tests.store.read.reading import COLD, EVERYTHING, WARM, ColdDisk, numbers, reading
from tests.store.worlds import World, put, wait_for


class Loop:
    """A loop whose turns take a millisecond, of which it waits a part; and whose log grows, or does not."""

    def __init__(self, share: ColdReadBudget) -> None:
        self.share = share
        self.now, self.idle_s, self.end = 100.0, 50.0, 1 << 30
        share.observe(self.now, self.idle_s, self.end)

    def turn(self, *, idle: float = 0.0, grows: bool = True) -> None:
        self.now += 0.001
        self.idle_s += 0.001 * idle
        self.end += 1000 if grows else 0
        self.share.observe(self.now, self.idle_s, self.end)

    def turns(self, seconds: float, *, idle: float = 0.0, grows: bool = True) -> None:
        for _ in range(round(seconds * 1000)):
            self.turn(idle=idle, grows=grows)


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(2_000, 300_000), min_size=1, max_size=50))
def test_while_the_loop_has_no_time_old_messages_come_at_a_rate_that_is_floor_and_ceiling(
    sizes: list[int],
) -> None:
    share = ColdReadBudget()
    loop = Loop(share)
    loop.turns(0.1)
    read, most, seconds = 0, max(sizes), 1.0
    for number in range(round(seconds * 1000)):
        loop.turn()
        while share.has_room:
            share.spend(size := sizes[number % len(sizes)])
            read += size
    rate = WINDOW_BYTES / WINDOW_S
    assert rate * (seconds - 0.3) - most <= read <= rate * seconds + WINDOW_BYTES + most


@settings(max_examples=15)
@given(idle=st.floats(0.2, 1.0), grows=st.booleans())
def test_a_loop_that_has_time_or_stores_nothing_puts_no_read_off(idle: float, grows: bool) -> None:
    share = ColdReadBudget()
    loop = Loop(share)
    for _ in range(300):
        loop.turn(idle=idle if grows else 0.0, grows=grows)
        assert share.has_room
        share.spend(1 << 20)
    loop.turns(0.1)
    share.spend(1 << 20)
    assert not share.has_room
    loop.turns(0.15, idle=idle if grows else 0.0, grows=grows)
    assert share.has_room, "the load has ended, and so has all that it held up"


def test_who_never_asks_the_clock_is_never_put_off() -> None:
    share = ColdReadBudget()
    share.spend(1 << 30)
    assert share.has_room


def busy(reader: Reader) -> Loop:
    """Its loop has no time, and what it had for old messages has been read."""
    loop = Loop(reader.cold_budget)
    loop.turns(0.1)
    reader.cold_budget.spend(8 << 20)
    assert not reader.cold_budget.has_room
    return loop


def test_reads_that_are_put_off_are_made_in_order_each_within_its_time_and_none_is_lost(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 30)
    with world.opened(ColdDisk()) as store, reading(store, COLD, threads=1) as reader:
        loop = busy(reader)
        queue = store.queue("T", 0)
        results: list[GetResult | None] = []
        began: list[float] = []

        def answered(count: int) -> bool:
            return len(results) == count

        for offset in range(20):
            began.append(loop.now)
            reader.get(queue, offset, 1, EVERYTHING, None, results.append)
            loop.turns(0.01)
            reader.resume_deferred()
        assert results == []
        loop.turns(WAIT_MAX_S - 0.2 - 0.005)
        reader.resume_deferred()
        assert results == [], "the first has some milliseconds left"
        for _ in range(round(0.25 * 1000)):
            loop.turn()
            reader.resume_deferred()
            due = sum(start + WAIT_MAX_S <= loop.now for start in began)
            wait_for(store, partial(answered, due))
        assert [numbers(result) for result in results if result is not None] == [[n] for n in range(20)]


def test_what_was_put_off_is_refused_at_a_stop(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 5)
    results: list[GetResult | None] = []
    with world.opened(ColdDisk()) as store:
        with reading(store, COLD) as reader:
            busy(reader)
            for offset in range(3):
                reader.get(store.queue("T", 0), offset, 1, EVERYTHING, None, results.append)
            assert results == []
        assert results == [None] * 3


def test_only_the_deferrable_who_are_far_behind_wait(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 5)
    for disk, limits, deferrable, waits in (
        (ColdDisk(), COLD, True, True),
        (ColdDisk(), COLD, False, False),
        (Disk(), COLD, True, False),  # it is in the page cache
        (Disk(), WARM, True, False),
    ):
        with world.opened(disk) as store, reading(store, limits) as reader:
            busy(reader)
            results: list[GetResult | None] = []
            reader.get(
                store.queue("T", 0),
                0,
                9,
                EVERYTHING,
                lambda _code: True,
                results.append,
                deferrable=deferrable,
            )
            if waits:
                assert results == []
            else:
                wait_for(store, partial(bool, results))
            reader.get(store.queue("T", 0), 5, 9, EVERYTHING, None, results.append, deferrable=deferrable)
            assert results[-1] is not None, "there is nothing to read at the end"
            assert results[-1].status is GetStatus.OFFSET_OVERFLOW_ONE


def test_a_gap_in_the_page_cache_makes_what_follows_cold_until_much_was_read_without_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.read.reader, "_MISSED_BYTES", 1000)
    disk = ColdDisk()
    with world.opened(disk) as opened, reading(opened, COLD) as reader:
        put(opened, [b"x" * 100] * 30)
        queue = opened.queue("T", 0)
        results: list[GetResult | None] = []

        def read(offset: int) -> None:
            reader.get(queue, offset, 1, EVERYTHING, None, results.append)

        loop = busy(reader)
        read(0)  # its entries are at hand, and nobody knows yet that its record is not
        wait_for(opened, lambda: len(results) == 1)
        read(1)
        assert len(results) == 1
        loop.turns(1.0)
        reader.resume_deferred()
        wait_for(opened, lambda: len(results) == 2)
        loop.turns(0.5, idle=1.0)
        segment = opened.log.segments[0].file
        segment.read_at_nowait = segment.read_at  # type: ignore[method-assign]
        for offset in range(2, 9):
            read(offset)  # the loop has time
        loop.turns(0.1)
        reader.cold_budget.spend(8 << 20)
        assert not reader.cold_budget.has_room
        read(9)
        assert [numbers(result) for result in results if result is not None] == [[n] for n in range(10)]


def test_more_than_may_be_read_at_once_do_not_wait_either(world: World) -> None:
    with world.opened() as store:
        put(store, [b"x" * 100] * 5)
    with world.opened(ColdDisk()) as store, reading(store, COLD, in_flight_max=4) as reader:
        busy(reader)
        results: list[GetResult | None] = []
        for _ in range(6):
            reader.get(store.queue("T", 0), 0, 9, EVERYTHING, None, results.append)
        assert results == [None] * 2
