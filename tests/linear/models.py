"""Sequential models: what a value answers to one operation after the other.

A model is a function (state, operation) -> (next state, result), and an initial state. It is deterministic and accepts
every operation in every state; states are hashable. The checker asks nothing else of it.

    register    read, write, compare_and_put, put_if_absent, delete,    None stands for "there is nothing"
                remove: `delete` that does not tell whether there was a value
    counter     add, read                                               `add n` returns the value before
    log         append, read                                            the length of a queue, and a message's place
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tests.linear.history import Operation

__all__ = ["COUNTER", "LOCK", "LOG", "REGISTER", "Model"]


@dataclass(frozen=True, slots=True)
class Model:
    """A kind of value."""

    name: str
    initial: Hashable
    apply: Callable[[Any, Operation], tuple[Hashable, Any]]


def _register(state: Any, operation: Operation) -> tuple[Hashable, Any]:
    match operation:
        case ("read",):
            return state, state
        case ("write", value):
            return value, None
        case ("compare_and_put", expected, value):
            return (value, True) if state == expected else (state, False)
        case ("put_if_absent", value):
            return (value, None) if state is None else (state, state)
        case ("delete",):
            return None, state is not None
        case ("remove",):  # as a part of a call that does not tell of each
            return None, None
    raise ValueError(operation)


def _counter(state: int, operation: Operation) -> tuple[Hashable, Any]:
    match operation:
        case ("read",):
            return state, state
        case ("add", count):
            return state + count, state
    raise ValueError(operation)


def _log(state: int, operation: Operation) -> tuple[Hashable, Any]:
    match operation:
        case ("read",):
            return state, state
        case ("append",):
            return state + 1, state
    raise ValueError(operation)


def _lock(state: tuple[int, int | None], operation: Operation) -> tuple[Hashable, Any]:
    newest, held = state
    match operation:
        case ("granted", token):
            return ((token, token), True) if token > newest else (state, False)
        case ("taken",):  # by a call of unknown outcome: nobody knows its token
            return (newest, _UNKNOWN_TOKEN), None
        case ("refused",):
            return state, True
        case ("renewed", token):
            return state, held == token
        case ("released", token):
            return ((newest, None), True) if held == token else (state, False)
        case ("guarded", token):
            return state, held == token
    raise ValueError(operation)


_UNKNOWN_TOKEN = -2
REGISTER = Model("register", None, _register)
COUNTER = Model("counter", 0, _counter)
LOG = Model("log", 0, _log)
LOCK = Model("lock", (-1, None), _lock)
