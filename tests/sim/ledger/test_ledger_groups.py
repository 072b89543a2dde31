"""Three brokers of a DLedger group under deaths, cuts, stalls and transfers: nothing is lost, no read is stale."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.ledger import stranger
from tests.sim.ledger.world import run
from tests.sim.seeds import seeds_of, told

SEEDS, SEEDS_OF_THE_DAY = 280, 20
SEEDS_LONG, SEEDS_OF_THE_DAY_LONG = 4000, 4000
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_a_group_keeps_its_promises_and_reads_are_linearizable(part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world ledger --seed N`.

    Lives have elections, reads and deaths: a world in which nothing happens breaks no promise either.
    """
    seen = Counter[str]()
    fixed, daily = (SEEDS_LONG, SEEDS_OF_THE_DAY_LONG) if long_run else (SEEDS, SEEDS_OF_THE_DAY)
    for seed in seeds_of(part, PARTS, fixed, daily):
        try:
            life = run(seed)
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world ledger --seed {seed}"))
            raise
        seen += Counter(lives=1, elections=len(life.elected), reads=life.reads, messages=len(life.messages))
        seen += Counter(deaths=life.deaths, others=len(life.topics) + len(life.delayed))
    assert seen["elections"] > 1.5 * seen["lives"]
    assert seen["reads"] > 30 * seen["lives"]
    assert seen["messages"] > 12 * seen["lives"]
    assert seen["deaths"] > 0.6 * seen["lives"]
    assert seen["others"] > seen["lives"]


def test_a_stranger_who_lacks_the_secret_changes_nothing(long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim --world ledger-stranger --seed N`."""
    fixed, daily = (1000, 1000) if long_run else (12, 4)
    for seed in seeds_of(0, 1, fixed, daily):
        try:
            assert stranger.run(seed).stranger.tried
        except BaseException as failure:
            failure.add_note(told(f"python -m tests.sim --world ledger-stranger --seed {seed}"))
            raise


def test_one_seed_tells_one_story() -> None:
    first, second = run(7), run(7)
    assert first.told == second.told
    assert [str(call) for call in first.recorder.calls] == [str(call) for call in second.recorder.calls]
