"""No promise of Raft is broken in thousands of short lives of groups, with every fault that the world knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.sim.raft.store_member import StoreMember
from tests.sim.raft.world import run

SEEDS, SEEDS_LONG = 1_400, 40_000
LOST_LOG_SEEDS = 180
RETENTION_SEEDS = 120
ALL_SEEDS = 180
PARTS = 10
STORE_EVERY = 8
"""One life in so many has members with the shipped shell and store: it costs five times as much."""


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Members of the shipped shell tell each change of role."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_by_any_fault(part: int, long_run: bool, quiet_log: None) -> None:
    """A failing seed is named, and seen again with `python -m tests.sim.raft --seed N`, with or without `--store`."""
    count = (SEEDS_LONG if long_run else SEEDS) // PARTS
    for seed in range(part * count, (part + 1) * count):
        if seed % STORE_EVERY:
            run(seed)
        else:
            run(seed, make_member=StoreMember)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_where_members_lose_their_disks_and_are_let_in_again(
    part: int, long_run: bool
) -> None:
    """A failing seed is seen again with `python -m tests.sim.raft --lost-logs --seed N`."""
    count = (SEEDS_LONG // 4 if long_run else LOST_LOG_SEEDS) // PARTS
    lives = [run(seed, loses_logs=True) for seed in range(part * count, (part + 1) * count)]
    assert sum(life.readmissions for life in lives) > count // 2, (
        "a world in which no disk is lost shows nothing"
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_where_retention_overtakes_members(part: int, long_run: bool) -> None:
    """A failing seed is seen again with `python -m tests.sim.raft --retention --seed N`."""
    count = (SEEDS_LONG // 4 if long_run else RETENTION_SEEDS) // PARTS
    lives = [run(seed, retires=True) for seed in range(part * count, (part + 1) * count)]
    assert sum(life.installed for life in lives) >= count // 20, "a world without snapshots shows nothing"


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_where_members_come_and_go_beside_lost_disks_and_retention(
    part: int, long_run: bool
) -> None:
    """A failing seed is seen again with `python -m tests.sim.raft --lost-logs --retention --seed N`."""
    count = (SEEDS_LONG // 4 if long_run else ALL_SEEDS) // PARTS
    lives = [run(seed, loses_logs=True, retires=True) for seed in range(part * count, (part + 1) * count)]
    assert all(life.changes_members for life in lives)
    assert sum(life.readmissions for life in lives) > count // 2
    assert sum(life.installed for life in lives) >= count // 20


def test_one_seed_tells_one_story_with_stores_too(quiet_log: None) -> None:
    first, second = run(8, make_member=StoreMember), run(8, make_member=StoreMember)
    assert first.told == second.told
    assert first.checks.truth == second.checks.truth


def test_one_seed_tells_one_story() -> None:
    first, second = run(7), run(7)
    assert first.told == second.told
    assert first.checks.truth == second.checks.truth
    assert first.events == second.events


def test_the_world_is_worth_living_in() -> None:
    """Lives have elections, commits and cuts: a world in which nothing happens breaks no promise either."""
    lives = [run(seed) for seed in range(60)]
    assert sum(len(life.checks.leaders) for life in lives) > 90
    assert sum(len(life.checks.acknowledged) for life in lives) > 1500
    assert sum(life.cuts for life in lives) > 10
    assert {len(life.ids) for life in lives} >= {1, 3, 5, 7}
