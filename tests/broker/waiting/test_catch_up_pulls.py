"""Consumers far behind get a share of a loop that producers keep busy: a floor, a ceiling, and all time of no one's."""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.remoting.session import Session
from broker.waiting import catch_up_pulls
from broker.waiting.catch_up_pulls import (
    APPENDS_S,
    CREDIT_MAX_S,
    DEBT_MAX_S,
    FREE_TURN_S,
    QUIET_AFTER_S,
    CatchUpPulls,
    CatchUpShare,
)
from tests.support.links import FakeLink


class Loop:
    """A loop whose time is what its work is said to take."""

    def __init__(self, percent: int) -> None:
        self.now = 100.0
        self.waited = 50.0
        self.log_end = 1 << 30
        self.pulls = CatchUpPulls(percent, lambda: self.now)
        self.share = self.pulls.share
        self.turn()

    def turn(self, *, appends: bool = False, work: float = 0.0) -> None:
        """Begin a turn and read in it; then other work of this turn, an append with it if it is said."""
        self.share.begin_turn(self.now, self.waited, self.log_end)
        self.pulls.run()
        self.now += work
        self.log_end += appends

    def puts_off(self) -> bool:
        return self.share.is_active

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds

    def read(self, took: float) -> Callable[[], None]:
        """Return a read that takes so long."""

        def read() -> None:
            self.now += took

        return read


def session(number: int = 0) -> Session:
    link = FakeLink(("127.0.0.1", number))
    return cast(Session, type("Peer", (), {"link": link, "number": number})())


@settings(max_examples=30)
@given(
    percent=st.integers(1, 80),
    took=st.floats(0.00001, 0.0005),
    work=st.lists(st.floats(0.00002, 0.002), min_size=1, max_size=20),
)
def test_beside_appends_without_a_pause_the_share_is_floor_and_ceiling(
    percent: int, took: float, work: list[float]
) -> None:
    loop = Loop(percent)
    consumer = session()
    loop.turn(appends=True)
    began, worked, reads = loop.now, 0.0, 0
    for n in range(2000):
        while loop.pulls.size < 4:
            loop.pulls.add(consumer, loop.read(took))
        queued = loop.pulls.size
        loop.turn(appends=True, work=work[n % len(work)])
        reads += queued - loop.pulls.size
        worked += work[n % len(work)]
    share = reads * took / (loop.now - began)
    most_at_once = 4 * took * 2000 / (loop.now - began)
    slack = (CREDIT_MAX_S + DEBT_MAX_S + max(work) + took) / worked
    assert share <= percent / 100 + slack
    # Credit beyond its bound is gone: a turn that took long does not make the next one long as well.
    kept = sum(min(one, CREDIT_MAX_S * (100 - percent) / percent) for one in work) / sum(work)
    assert share >= min(percent / 100 * kept * 0.9, most_at_once * 0.9) - slack


@settings(max_examples=30)
@given(gap=st.floats(0.000005, 0.00009), work=st.floats(0.00002, 0.0005), took=st.floats(0.00002, 0.0003))
def test_gaps_between_an_answer_and_the_next_request_are_not_always_filled(
    gap: float, work: float, took: float
) -> None:
    """A producer that is back before `QUIET_AFTER_S` keeps half of the gaps, and its share of the rest."""
    loop = Loop(5)
    consumer = session()
    began, worked, waited, reads = loop.now, 0.0, 0.0, 0
    for _ in range(1000):
        loop.turn(appends=True, work=work)
        worked += work
        due = loop.now + gap
        while loop.now < due:
            while loop.pulls.size < 4:
                loop.pulls.add(consumer, loop.read(took))
            waits = min(loop.share.wait_s, due - loop.now)
            loop.wait(waits)
            waited += waits
            if loop.now < due:
                before = loop.pulls.size
                loop.turn()
                reads += before - loop.pulls.size
    assert reads > 0, "it is never starved"
    bound = waited + worked * 5 / 95 + CREDIT_MAX_S + DEBT_MAX_S + took
    assert reads * took <= bound * 1.01, (reads * took, waited, loop.now - began)


def test_after_a_wait_that_no_append_ended_all_time_is_for_reads() -> None:
    loop = Loop(5)
    loop.turn(appends=True, work=0.01)
    loop.turn()
    loop.share.spend(1.0)
    assert loop.puts_off()
    for _ in range(10):
        loop.pulls.add(session(), loop.read(0.0001))
    loop.turn()
    assert loop.pulls.size == 10, "the credit is overdrawn"
    assert loop.share.wait_s == QUIET_AFTER_S
    loop.wait(QUIET_AFTER_S * 1.01)
    for left in reversed(range(10)):
        loop.turn()
        assert loop.pulls.size == left, "a read in each turn, so that what arrives waits for one"
        assert loop.share.wait_s == 0
    loop.turn(appends=True)
    loop.pulls.add(session(), loop.read(0.0001))
    loop.turn()
    assert loop.pulls.size == 1


def test_a_loop_that_appends_nothing_puts_no_pull_off_and_reads_what_was_queued() -> None:
    loop = Loop(5)
    loop.wait(2 * APPENDS_S)
    loop.turn()
    assert not loop.puts_off()
    loop.turn(appends=True, work=0.01)
    loop.turn()
    assert loop.puts_off()
    loop.share.spend(1.0)
    for _ in range(50):
        loop.pulls.add(session(), loop.read(0.0001))
    loop.now += 2 * APPENDS_S  # it was busy with something else
    turns = 0
    while loop.pulls.size:
        before = loop.now
        loop.turn()
        assert not loop.puts_off()
        assert loop.now - before <= FREE_TURN_S + 0.00011
        turns += 1
    assert turns <= 4


def test_at_100_percent_nothing_is_put_off_and_the_share_can_be_changed_while_it_counts() -> None:
    loop = Loop(100)
    loop.turn(appends=True)
    loop.turn()
    assert not loop.puts_off()
    loop.share.configure(5)
    loop.turn(appends=True)
    loop.turn()
    assert loop.puts_off()
    loop.pulls.add(session(), loop.read(0.1))
    loop.share.spend(1.0)
    loop.share.configure(100)
    loop.turn()
    assert not loop.puts_off() and not loop.pulls.size


def test_a_clock_that_stands_still_puts_nothing_off_for_ever() -> None:
    pulls = CatchUpPulls(5, lambda: 0.0)
    done: list[int] = []
    for n in range(3):
        pulls.add(session(n), partial(done.append, n))
    pulls.run()
    assert done == [0, 1, 2], "nobody said that anything is appended"


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 4)),
            st.tuples(st.just("read"), st.integers(1, 3)),
            st.tuples(st.just("close"), st.integers(0, 4)),
        ),
        max_size=60,
    )
)
def test_the_queue_goes_round_its_sessions_and_keeps_the_order_of_each(steps: list[tuple[str, int]]) -> None:
    sessions = [session(n) for n in range(5)]
    now = 0.0

    def clock() -> float:
        return now

    pulls = CatchUpPulls(5, clock)
    queues: dict[int, deque[int]] = {}
    order: list[int] = []
    read: list[tuple[int, int]] = []
    added: Counter[int] = Counter()
    budget = 1

    def note(what: tuple[int, int]) -> None:
        nonlocal now
        read.append(what)
        now += FREE_TURN_S / budget * 1.01

    for step, number in steps:
        if step == "add":
            added[number] += 1

            pulls.add(sessions[number], partial(note, (number, added[number])))
            if number not in queues:
                order.append(number)
            queues.setdefault(number, deque()).append(added[number])
        elif step == "close":
            pulls.release(sessions[number])
            if queues.pop(number, None) is not None:
                order.remove(number)
        else:
            budget, wanted = number, []
            for _ in range(min(number, sum(map(len, queues.values())))):
                who = order.pop(0)
                wanted.append((who, queues[who].popleft()))
                if queues[who]:
                    order.append(who)
                else:
                    del queues[who]
            read.clear()
            pulls.share.begin_turn(now, 0.0, 0)
            pulls.run()
            assert read == wanted
        assert pulls.size == sum(map(len, queues.values()))


def test_a_pull_by_itself_does_not_wait_behind_all_that_another_client_has_asked_for() -> None:
    pulls = CatchUpPulls(5, lambda: 0.0)
    done: list[str] = []
    greedy, lone = session(1), session(2)
    for _ in range(100):
        pulls.add(greedy, lambda: done.append("greedy"))
    pulls.add(lone, lambda: done.append("lone"))
    pulls.run()
    assert done[:3] == ["greedy", "lone", "greedy"] and len(done) == 101


def test_a_pull_too_many_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up_pulls, "PULLS_MAX", 3)
    pulls = CatchUpPulls(5, lambda: 0.0)
    done: list[int] = []
    for n in range(5):
        pulls.add(session(n), partial(done.append, n))
    assert (done, pulls.size) == ([3, 4], 3)


def test_queued_pulls_keep_so_many_bytes_and_the_next_is_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stranger's pulls far behind bring thousands of tags each."""
    monkeypatch.setattr(catch_up_pulls, "SIZE_MAX", 1_000)
    pulls = CatchUpPulls(5, lambda: 0.0)
    done: list[int] = []
    for n in range(5):
        pulls.add(session(n), partial(done.append, n), 300)
    assert (done, pulls.size, pulls.kept) == ([3, 4], 3, 900)
    pulls.run()
    assert (pulls.size, pulls.kept) == (0, 0)
    gone = session(7)
    pulls.add(gone, partial(done.append, 7), 300)
    pulls.release(gone)
    assert (pulls.size, pulls.kept) == (0, 0)


def test_a_share_is_a_percentage() -> None:
    for percent in (0, 101):
        with pytest.raises(AssertionError):
            CatchUpShare(percent)
