"""`Table`: items in the order of their keys, which a walk can read as they were when it began, while they change.

The walk reads some items at a time. An item that changes before the walk has come to it keeps its old value aside until
then; so nothing is copied that does not change, and a change costs a comparison of keys. The walk ends by itself, or
when it is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, islice, takewhile
from typing import Generic, TypeVar

from sortedcontainers import SortedDict

V = TypeVar("V")


class Table(SortedDict, Generic[V]):  # type: ignore[misc]
    """Items in the order of their keys. Change it through `replace`, `fill` and `cut_off` alone; no key is empty."""

    def __init__(self) -> None:
        super().__init__()
        self._walked: bytes | None = None
        """The last key that the walk has come to; None where there is no walk."""
        self._aside: SortedDict[bytes, V | None] = SortedDict()
        """Items behind it as they were when the walk began; None for one that was not there."""

    def replace(self, key: bytes, value: V | None) -> V | None:
        """Store a value, None for none; return the one that was there."""
        before: V | None = self.get(key)
        if self._walked is not None and key > self._walked:
            self._aside.setdefault(key, before)
        if value is not None:
            self[key] = value
        elif before is not None:
            del self[key]
        return before

    def fill(self, keys: Sequence[bytes], values: Sequence[V]) -> None:
        """Add items behind all those that are there, in order."""
        assert self._walked is None
        if not len(self):
            self.update(zip(keys, values, strict=True))
        else:
            for key, value in zip(keys, values, strict=True):
                self[key] = value

    def cut_off(self, key: bytes) -> Table[V]:
        """Return a table with the items from a key on, which are not in this one any more. No walk is under way."""
        assert self._walked is None
        keys = list(self.keys())
        at = self.bisect_left(key)
        lower, upper = [self[each] for each in keys[:at]], [self[each] for each in keys[at:]]
        other = Table[V]()
        other.fill(keys[at:], upper)
        self.clear()
        self.fill(keys[:at], lower)
        return other

    # -- the walk ----------------------------------------------------------------------------------------

    def begin_walk(self) -> None:
        """Begin a walk over the items as they are now."""
        assert self._walked is None, "one walk at a time"
        self._walked = b""

    def walk(self, count: int, size: Callable[[V], int], size_max: int) -> tuple[list[bytes], list[V]] | None:
        """Return the next items of the walk, fewer than `count` where they have `size_max`; None at its end."""
        assert self._walked is not None
        aside = self._aside
        keys: list[bytes] = list(islice(self.irange(self._walked, inclusive=(False, True)), count))
        if aside:
            keys = sorted({*keys, *islice(aside, count)})[:count]
        if not keys:
            self.end_walk()
            return None
        values: list[V | None]
        if aside and aside.peekitem(0)[0] <= keys[-1]:
            values = [aside[key] if key in aside else self[key] for key in keys]
        else:
            values = list(map(self.__getitem__, keys))
        sizes = accumulate(0 if value is None else size(value) for value in values)
        fit = 1 + sum(1 for _ in takewhile(size_max.__gt__, sizes))
        keys, values = keys[:fit], values[:fit]
        self._walked = keys[-1]
        while aside and aside.peekitem(0)[0] <= keys[-1]:
            aside.popitem(0)
        there = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
        return [key for key, _value in there], [value for _key, value in there]

    def end_walk(self) -> None:
        """Give the walk up, if there is one."""
        self._walked = None
        self._aside.clear()
