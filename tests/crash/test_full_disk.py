"""A small disk that a broker fills with its own traffic: what is removed, what is lost and what is refused.

The cases of `tests.bench.full_disk` in small: real brokers, a real file system.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.full_disk import CASES, MODES, NEAR, Form, Outcome, disk_of, run
from tests.support.processes import ROOT
from tools.drill.testbed.group import CannotRun

pytestmark = pytest.mark.slow

SIZE = 64 << 20
FORM = Form(segment=4 << 20, rate=3 << 19, seconds=25.0, asks=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_costs_no_more_than_it_must(mode: str, case: str, tmp_path: Path) -> None:
    try:
        with disk_of(tmp_path, SIZE) as disk:
            outcome = run(mode, case, disk, ROOT, FORM)
    except CannotRun as exc:
        pytest.skip(str(exc))
    assert outcome.held == 0 and abs(outcome.used - outcome.du) < 2, outcome
    CHECKS[case](outcome)


def expired(outcome: Outcome) -> None:
    """Only expired segments go, and sends go on."""
    assert outcome.young == 0 and len(outcome.removed) > 2, outcome
    assert outcome.refused == 0 and outcome.taken_at_end, outcome


def young(outcome: Outcome) -> None:
    """Young segments go, said before the first, and no more of them than the level asks for."""
    assert outcome.young == len(outcome.removed) > 0, outcome
    assert outcome.room_before_first is not None and 0 <= outcome.room_before_first < NEAR, outcome
    assert outcome.taken_at_end and 78 < outcome.used <= 90, outcome


def other(outcome: Outcome) -> None:
    """One segment is lost at most, and sends are refused in words."""
    assert len(outcome.removed) <= 1, outcome
    assert outcome.refused > 0 and not outcome.taken_at_end, outcome
    assert "disk is full" in outcome.words and "forced cleaning has stopped" in outcome.words, outcome


CHECKS = {"expired": expired, "young": young, "other": other}
