"""Exactly once as a property: random plans, cuts and kills, then another cut (`lives`, which also runs by itself)."""

from __future__ import annotations

import pytest

from tests.spark.sink.lives import run_lives
from tests.support.long_run import LONG, long_only

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=long_only)])
def test_rows_are_stored_once_whatever_is_killed_and_however_they_are_cut_then(with_spark: bool) -> None:
    said: list[str] = []
    count, rows = (40, 400) if LONG else (8, 100)
    failures = run_lives("ropewalk", count, 1, rows, said.append, with_spark=with_spark)
    assert not failures, "\n".join(said)
