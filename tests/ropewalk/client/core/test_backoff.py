"""The pauses of a client that tries again."""

from __future__ import annotations

from ropewalk.client.core.backoff import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert Backoff().next_s() == 0.05
