"""Which seeds a run tries."""

from __future__ import annotations

import pytest

from tests.sim.seeds import seeds_of, told


def all_seeds() -> list[int]:
    return [seed for part in range(10) for seed in seeds_of(part, 10, 1000, 200)]


def test_the_fixed_seeds_are_tried_every_day_and_others_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SIM_DAY", "2026-11-25")
    today = all_seeds()
    assert len(set(today)) == len(today) == 1200
    monkeypatch.setenv("ROPEWALK_SIM_DAY", "2026-11-26")
    assert sorted(set(today) & set(all_seeds())) == list(range(1000))


def test_a_failure_names_the_seed_and_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SIM_DAY", "2026-11-25")
    assert "--seed 7 " in told("python -m tests.sim --seed 7 --mode sync") and "2026-11-25" in told("x")
