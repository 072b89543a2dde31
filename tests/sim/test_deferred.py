"""A group whose messages come later: no timer is early or lost, no transaction is decided twice or forgotten."""

from __future__ import annotations

import pytest

from tests.sim.deferred import live
from tests.sim.seeds import seeds_of, told

# Of both safe classes together.
SEEDS, SEEDS_OF_THE_DAY = 8, 4
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 1000, 400
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("safe_class", ["A1", "A3"])
def test_a_group_keeps_its_promises_of_what_comes_later(safe_class: str, part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world deferred --seed N --mode A1|A3`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed // 2, daily // 2):
        try:
            live(seed, safe_class)
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world deferred --seed {seed} --mode {safe_class}"))
            raise


def test_one_seed_tells_one_story() -> None:
    first, second = live(7, "A1", 0.3), live(7, "A1", 0.3)
    assert first.events == second.events
