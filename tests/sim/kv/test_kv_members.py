"""Members with a region of the key-value store under deaths, cuts and wrong clocks: their histories have an order."""

from __future__ import annotations

import pytest

from tests.sim.kv.world import run
from tests.sim.seeds import seeds_of, told

SEEDS, SEEDS_OF_THE_DAY = 16, 2
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 3000, 3000
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_calls_are_linearizable_and_members_equal(part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world kv --seed N`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed, daily):
        try:
            run(seed)
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world kv --seed {seed}"))
            raise


def test_one_seed_tells_one_story() -> None:
    first, second = run(7), run(7)
    assert first.told == second.told
    assert [str(call) for call in first.recorder.calls] == [str(call) for call in second.recorder.calls]


def test_the_world_is_worth_living_in() -> None:
    """Lives have deaths, snapshots and starts from them: a world in which nothing happens breaks no promise either."""
    lives = [run(seed) for seed in range(6)]
    assert sum(life.writes for life in lives) > 600
    assert sum(life.reads for life in lives) > 200
    assert sum(life.deaths for life in lives) > 2
    assert sum(life.snapshots for life in lives) > 20
    assert sum(life.restored for life in lives) > 3


def test_members_that_were_away_for_long_are_given_a_state() -> None:
    assert any(run(seed).installed for seed in range(10, 60))
