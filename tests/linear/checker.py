"""Search for an order of all calls that explains their results: linearizability, by Wing and Gong, with Lowe's memo.

Each call takes effect at one moment between its begin and its end. The search takes a call that could be next, one that
began before the first end among the calls that are left; applies it to the model; lifts it out of the list where its
result is the model's; and goes back where none can be next. A pair of (calls that were taken, state) that was reached
before is not entered twice. Calls without an end may be taken at any time, or never; of those that do the same, the one
that began first is taken first, since nothing can tell them apart.

    calls    doubly linked list of begins and ends, in the order of time; at one moment begins stand before ends
    taken    the calls that were lifted, as bits of one int
    cost     exponential in the calls that overlap, linear in the length of the history

A search that takes too long raises `Undecided`: a history that nobody has judged is no history that was found correct.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.linear.history import UNKNOWN, Call, Operation, by_key, tell
from tests.linear.models import Model

__all__ = ["NotLinearizable", "Undecided", "check", "explain", "is_linearizable"]

LIMIT_S: Final = 60.0
"""Processor time of one search."""
_CLOCK_EVERY: Final = 1 << 12
_TOLD_MAX: Final = 40


class NotLinearizable(AssertionError):
    """No order of the calls explains their results."""


class Undecided(AssertionError):
    """The search took too long."""


@dataclass(slots=True, eq=False)
class _Node:
    """The begin or the end of a call, in the list."""

    call: Call
    bit: int
    before: _Node | None = None
    after: _Node | None = None
    end: _Node | None = None
    """The end of a call, at its begin; None for a call that has no end."""
    twin: _Node | None = None
    """The begin of the call without an end that began before this one without an end, and does the same."""
    is_begin: bool = False


def check(calls: Iterable[Call], model: Model, limit_s: float = LIMIT_S) -> int:
    """Judge a history key by key, and return how many keys it has.

    Raises `NotLinearizable`, which tells the first key that has no order, and `Undecided`.
    """
    parts = by_key(calls)
    for key, own in parts.items():
        if not is_linearizable(own, model, limit_s):
            raise NotLinearizable(f"{model.name} {key!r} has no order of its calls:\n{explain(own, model)}")
    return len(parts)


def is_linearizable(calls: Iterable[Call], model: Model, limit_s: float = LIMIT_S) -> bool:
    """Return whether some order of the calls of one value explains their results. Raises `Undecided`."""
    head = _listed(list(calls))
    deadline = time.process_time() + limit_s
    state: Any = model.initial
    taken = steps = 0
    stack: list[tuple[_Node, Any]] = []
    seen: set[tuple[int, Hashable]] = set()
    node = head.after
    while node is not None:
        steps += 1
        if not steps % _CLOCK_EVERY and time.process_time() > deadline:
            raise Undecided(f"{len(seen)} states of a {model.name} were tried in {limit_s} s")
        if node.twin is not None and not taken & node.twin.bit:
            node = node.after
        elif node.is_begin:
            after, result = model.apply(state, node.call.operation)
            if node.call.result is UNKNOWN or node.call.result == result:
                place = taken | node.bit, after
                if place not in seen:
                    seen.add(place)
                    stack.append((node, state))
                    taken, state = place
                    _lift(node)
                    node = head.after
                    continue
            node = node.after
        else:  # this call has ended, so it should have been taken before
            if not stack:
                return False
            last, state = stack.pop()
            taken &= ~last.bit
            _put_back(last)
            node = last.after
    return True  # calls without an end are all that is left


def _listed(calls: list[Call]) -> _Node:
    moments: list[tuple[float, bool, int, _Node]] = []
    endless: dict[Operation, _Node] = {}
    for number, call in enumerate(sorted(calls, key=lambda call: call.begin)):
        begin = _Node(call, 1 << number, is_begin=True)
        moments.append((call.begin, False, number, begin))
        if call.result is not UNKNOWN:
            assert call.begin <= call.end < math.inf, call
            begin.end = _Node(call, 1 << number)
            moments.append((call.end, True, number, begin.end))
        else:
            begin.twin, endless[call.operation] = endless.get(call.operation), begin
    moments.sort(key=lambda moment: moment[:3])
    head = last = _Node(Call("", None, (), -math.inf), 0)
    for _time, _is_end, _number, node in moments:
        last.after, node.before = node, last
        last = node
    return head


def _lift(begin: _Node) -> None:
    for node in (begin, begin.end):
        if node is not None:
            assert node.before is not None
            node.before.after = node.after
            if node.after is not None:
                node.after.before = node.before


def _put_back(begin: _Node) -> None:
    for node in (begin.end, begin):
        if node is not None:
            assert node.before is not None
            node.before.after = node
            if node.after is not None:
                node.after.before = node


def explain(calls: list[Call], model: Model) -> str:
    """Return the shortest beginning of a history that has no order, or its last calls where that is long.

    A beginning through a moment leaves out what began later, and takes what ended later as unknown.
    """
    ends = sorted(call.end for call in calls if call.result is not UNKNOWN)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if is_linearizable(_until(calls, ends[middle]), model):
            low = middle + 1
        else:
            high = middle
    shown = sorted(_until(calls, ends[low]), key=lambda call: (call.begin, call.end)) if ends else calls
    left_out = f"({len(shown) - _TOLD_MAX} calls before)\n" if len(shown) > _TOLD_MAX else ""
    return left_out + tell(shown[-_TOLD_MAX:])


def _until(calls: Iterable[Call], moment: float) -> list[Call]:
    return [
        call if call.end <= moment else Call(call.client, call.key, call.operation, call.begin)
        for call in calls
        if call.begin <= moment
    ]
