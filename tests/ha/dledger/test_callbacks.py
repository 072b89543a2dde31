"""Callbacks under tokens: each is told its own outcome, once, and its token is free again."""

from __future__ import annotations

import pytest

from ha.dledger.callbacks import Callbacks


def test_each_caller_is_told_its_own_outcome_and_its_token_is_free_again() -> None:
    callbacks: Callbacks[str] = Callbacks()
    told: list[str] = []
    first, second = callbacks.add(lambda each: told.append(f"1 {each}")), callbacks.add(told.append)
    assert first != second
    callbacks.tell(first, "a")
    assert callbacks.add(told.append) == first
    callbacks.tell(second, "b")
    assert told == ["1 a", "b"]
    with pytest.raises(KeyError):
        callbacks.tell(second, "again")
