"""Stores of four regions and more in misfortune, used through the shipped client: their histories have an order."""

from __future__ import annotations

from tests.sim.kv.regions import LONG, OPERATIONS, RegionsWorld, run
from tests.sim.seeds import seeds_of, told
from tests.support.long_run import long_only

SEEDS, SEEDS_OF_THE_DAY = 1, 1
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 1000, 1000
LONG_LIVES = 40
"""Of ten thousand calls each."""


def _live(seed: int, operations: int) -> RegionsWorld:
    try:
        return run(seed, operations)
    except BaseException as failure:
        mode = "long" if operations == LONG else "short"
        failure.add_note(told(f"python -m tests.sim --world regions --mode {mode} --seed {seed}"))
        raise


def test_calls_over_all_regions_are_linearizable_while_these_are_cut(long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world regions --mode short --seed N`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    lives = [_live(seed, OPERATIONS) for seed in seeds_of(0, 1, fixed, daily)]
    assert all(life.book.operations >= OPERATIONS for life in lives)
    if long_run:  # a world in which nothing happens breaks no promise either
        assert sum(life.operator.cuts for life in lives) > len(lives)
        assert sum(life.deaths for life in lives) > len(lives)


@long_only
def test_histories_of_ten_thousand_calls_are_linearizable() -> None:
    """A failing seed is seen again with `python -m tests.sim --world regions --mode long --seed N`."""
    lives = [_live(seed, LONG) for seed in seeds_of(0, 1, LONG_LIVES, LONG_LIVES)]
    assert sum(life.installed for life in lives) > 10, "members are given a state after long absences"


def test_one_seed_tells_one_story_of_all_regions() -> None:
    first, second = run(7, 100), run(7, 100)
    assert first.told == second.told
    assert [str(call) for call in first.book.recorder.calls] == [
        str(call) for call in second.book.recorder.calls
    ]
