"""The reference: try every order of a handful of calls. Slow, and short enough to be seen to be right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

from tests.linear.history import UNKNOWN, Call
from tests.linear.models import Model

__all__ = ["has_order"]


def has_order(calls: Sequence[Call], model: Model) -> bool:
    """Return whether some order of the calls explains their results, by trying them all."""
    known = [call for call in calls if call.result is not UNKNOWN]
    unknown = [call for call in calls if call.result is UNKNOWN]
    return any(
        _explains(order, model)
        for count in range(len(unknown) + 1)
        for happened in combinations(unknown, count)
        for order in permutations([*known, *happened])
    )


def _explains(order: Sequence[Call], model: Model) -> bool:
    if any(later.end < earlier.begin for at, earlier in enumerate(order) for later in order[at + 1 :]):
        return False
    state = model.initial
    for call in order:
        state, result = model.apply(state, call.operation)
        if call.result is not UNKNOWN and call.result != result:
            return False
    return True
