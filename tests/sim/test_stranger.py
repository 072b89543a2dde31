"""A group with a secret, and a stranger that speaks every code: no role, epoch or byte of a log changes by it."""

from __future__ import annotations

import pytest

from tests.sim import group_stranger
from tests.sim.seeds import seeds_of, told

SEEDS, SEEDS_OF_THE_DAY = 16, 4
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 1000, 1000


@pytest.mark.parametrize("safe_class", ["A1", "A3"])
def test_a_group_keeps_its_promises_and_roles_whatever_a_stranger_says(
    safe_class: str, long_run: bool
) -> None:
    """A failing seed is seen again with `python -m tests.sim --world stranger --seed N --mode A1|A3`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(0, 1, fixed // 2, daily // 2):
        try:
            group_stranger.live(seed, safe_class)
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world stranger --seed {seed} --mode {safe_class}"))
            raise
