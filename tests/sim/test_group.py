"""A master and two slaves under crashes, cuts, slow disks and handovers: nobody is promised what is not kept."""

from __future__ import annotations

import pytest

from tests.sim import group_shorter
from tests.sim.group import run
from tests.sim.seeds import seeds_of, told

# Of both safe classes together, as the parts below halve them.
SEEDS, SEEDS_OF_THE_DAY = 110, 20
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 4000, 4000
PARTS = 5


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("safe_class", ["A1", "A3"])
def test_a_group_keeps_its_promises_whatever_dies_and_whoever_is_cut_off(
    safe_class: str, part: int, long_run: bool
) -> None:
    """A failing seed is seen again with `python -m tests.sim --world group --seed N --mode A1|A3`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed // 2, daily // 2):
        try:
            run(seed, safe_class)
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world group --seed {seed} --mode {safe_class}"))
            raise


def test_what_was_acknowledged_survives_a_master_that_lost_its_power_and_comes_back_with_a_shorter_log(
    long_run: bool,
) -> None:
    """A failing seed is seen again with `python -m tests.sim --world shorter --seed N`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (12, 4)
    shorter = 0
    for seed in seeds_of(0, 1, fixed, daily):
        try:
            shorter += group_shorter.live(seed)[1]
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world shorter --seed {seed}"))
            raise
    assert shorter, "no master came back shorter"


def test_one_seed_tells_one_story() -> None:
    first, second = run(7, "A1", 2.0), run(7, "A1", 2.0)
    assert first.events == second.events
    assert first.acknowledged == second.acknowledged
