"""Work that no request waits for: a first step at once, then a few a turn, the jobs in turns."""

from __future__ import annotations

from collections.abc import Iterator

from broker.turn_work import TURN_S, TurnWork


def test_jobs_take_turns_and_some_steps_of_each_turn() -> None:
    now, wakes = 0.0, 0
    done: list[str] = []

    def job(name: str, steps: int) -> Iterator[None]:
        nonlocal now
        for number in range(steps):
            done.append(f"{name}{number}")
            now += TURN_S / 2
            yield

    def wake() -> None:
        nonlocal wakes
        wakes += 1

    work = TurnWork(lambda: now, wake)
    work.begin(job("a", 3))
    work.begin(job("b", 1))
    assert done == ["a0", "b0"] and wakes == 2
    work.run()
    assert done == ["a0", "b0", "a1", "a2"], "the end of b took no time"
    work.run()
    assert (work.is_busy, wakes) == (False, 3), "nothing is left that a turn is wanted for"


def test_a_job_without_a_second_step_is_done_at_once() -> None:
    work = TurnWork(lambda: 0.0, lambda: None)
    work.begin(iter(()))
    assert not work.is_busy
