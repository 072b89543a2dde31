"""The pauses of a client that tries again."""

from __future__ import annotations

import pytest

from ropewalk.client.core.backoff import Backoff, Standstill


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert Backoff().next_s() == 0.05
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_questions_whose_answers_move_nobody_keep_a_growing_distance() -> None:
    standstill = Standstill()
    rests = [standstill.rest_s(0.02, moved=False) for _ in range(7)]
    assert rests == pytest.approx([0.03, 0.08, 0.18, 0.38, 0.78, 0.98, 0.98])
    assert standstill.goes_on is True
    assert standstill.rest_s(0.0, moved=True) == 0.0
    assert not bool(standstill.goes_on)
    assert standstill.rest_s(0.0, moved=False) == 0.05
    assert standstill.rest_s(15.0, moved=False) == 0.0, "a broker that held it has kept the distance itself"
    assert standstill.rest_s(0.0, moved=False) == 0.05
