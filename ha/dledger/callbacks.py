"""`Callbacks`: the callers that wait for an outcome from the core, each under a token."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

__all__ = ["Callbacks"]

_T = TypeVar("_T")


class Callbacks(Generic[_T]):
    """Callbacks by token; a token is free again once its outcome was told."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[_T], None]] = {}

    def add(self, done: Callable[[_T], None]) -> int:
        """Have a callback wait, and return its token: the smallest that is free."""
        token = next(token for token in count() if token not in self._waiting)
        self.put(token, done)
        return token

    def put(self, token: int, done: Callable[[_T], None]) -> None:
        """Have a callback wait under a token of the caller's."""
        self._waiting[token] = done

    def tell(self, token: int, outcome: _T) -> None:
        """Tell the outcome to the callback that waits for it."""
        self._waiting.pop(token)(outcome)
