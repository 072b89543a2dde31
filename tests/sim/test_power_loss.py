"""No promise of the store is broken by a crash at any moment, on a disk that forgets what was not synced."""

from __future__ import annotations

import pytest

from tests.sim.world import run

SEEDS = 1000
SEEDS_LONG = 10_000
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("sync_flush", [True, False], ids=["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_promise_is_broken_by_any_crash(sync_flush: bool, part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --seed N --mode sync|async`."""
    count = (SEEDS_LONG if long_run else SEEDS) // PARTS
    for seed in range(part * count, (part + 1) * count):
        try:
            run(seed, sync_flush=sync_flush)
        except BaseException as failure:
            failure.add_note(f"python -m tests.sim --seed {seed} --mode {'sync' if sync_flush else 'async'}")
            raise


def test_one_seed_tells_one_story() -> None:
    first, second = run(7, sync_flush=True), run(7, sync_flush=True)
    assert first.bodies == second.bodies
    assert first.acknowledged == second.acknowledged
