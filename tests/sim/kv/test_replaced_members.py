"""Members that are replaced for good, one after the other, under deaths, cuts and wrong clocks: nothing is lost."""

from __future__ import annotations

import pytest

from tests.sim.kv.members import REPLACEMENTS, run
from tests.sim.seeds import seeds_of

SEEDS, SEEDS_OF_THE_DAY = 6, 2
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 1000, 1000
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_no_acknowledged_write_is_lost_when_no_member_of_the_beginning_is_left(
    part: int, long_run: bool
) -> None:
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed, daily):
        try:
            life = run(seed)
        except BaseException as failure:
            failure.add_note(f"again: tests.sim.kv.members.run({seed})")
            raise
        assert life.replaced == REPLACEMENTS
