"""Stores whose regions have damaged logs now and then: their members come back, and no acknowledged write is lost."""

from __future__ import annotations

import pytest

from tests.sim.kv.damaged import DamagedWorld, run, run_regions
from tests.sim.seeds import seeds_of, told

PARTS = 2
SEEDS, SEEDS_OF_THE_DAY = 8, 2
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 2000, 2000
STORES, STORES_OF_THE_DAY = 1, 1
STORES_LONG, STORES_OF_THE_DAY_LONG = 1000, 1000


def _live(seed: int, mode: str) -> DamagedWorld:
    try:
        return run(seed) if mode == "one" else run_regions(seed)
    except BaseException as failure:
        failure.add_note(told(f"python -m tests.sim --world damage --mode {mode} --seed {seed}"))
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_no_acknowledged_write_is_lost_with_a_damaged_log_of_a_region(part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world damage --mode one --seed N`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    lives = [_live(seed, "one") for seed in seeds_of(part, PARTS, fixed, daily)]
    assert sum(life.damages.losses for life in lives), (
        "a world in which nothing happens breaks no promise either"
    )


def test_no_acknowledged_write_is_lost_where_one_of_several_regions_is_damaged(long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world damage --mode more --seed N`."""
    fixed, daily = (STORES_LONG, STORES_OF_THE_DAY_LONG) if long_run else (STORES, STORES_OF_THE_DAY)
    lives = [_live(seed, "more") for seed in seeds_of(0, 1, fixed, daily)]
    if long_run:
        assert sum(life.damages.losses for life in lives) > len(lives) / 4
        assert sum(life.installed for life in lives) > len(lives) / 10
