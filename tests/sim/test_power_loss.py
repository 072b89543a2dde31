"""No promise of the store is broken by a crash at any moment, on a disk that forgets what was not synced."""

from __future__ import annotations

import pytest

from tests.sim.seeds import seeds_of, told
from tests.sim.world import run

SEEDS, SEEDS_OF_THE_DAY = 200, 60
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 10_000, 5000
PARTS = 10
ONCE_BROKEN: dict[bool, tuple[int, ...]] = {False: (7001043, 20002411), True: ()}
"""Lives that broke a promise when they were first tried, by `sync_flush`: each was found long after it could be."""


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sync_flush", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_promise_is_broken_by_any_crash(sync_flush: bool, part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --seed N --mode sync|async`."""
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed, daily):
        _live(seed, sync_flush=sync_flush)


@pytest.mark.parametrize("sync_flush", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_promise_is_broken_by_what_once_broke_one(sync_flush: bool) -> None:
    for seed in ONCE_BROKEN[sync_flush]:
        _live(seed, sync_flush=sync_flush)


def _live(seed: int, *, sync_flush: bool) -> None:
    try:
        run(seed, sync_flush=sync_flush)
    except BaseException as failure:
        failure.add_note(
            told(f"python -m tests.sim --seed {seed} --mode {'sync' if sync_flush else 'async'}")
        )
        raise


def test_one_seed_tells_one_story() -> None:
    first, second = run(7, sync_flush=True), run(7, sync_flush=True)
    assert first.bodies == second.bodies
    assert first.acknowledged == second.acknowledged
