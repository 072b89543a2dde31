"""A cache of values whose bytes are counted: the ones that were used the longest ago go beyond either bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["SizedCache"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """Values by key, at most `count_max` of them and `size_max` bytes; any thread may use it."""

    def __init__(self, *, count_max: int, size_max: int) -> None:
        self._count_max = count_max
        self._size_max = size_max
        self._lock = Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size = 0
        """The sum of the sizes of all values."""

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used now; None if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value of this many bytes; others go for it. One that is larger than all may be is kept alone."""
        with self._lock:
            before = self._values.pop(key, None)
            if before is not None:
                self.size -= before[1]
            self._values[key] = value, size
            self.size += size
            while len(self._values) > 1 and (
                self.size > self._size_max or len(self._values) > self._count_max
            ):
                _value, gone = self._values.popitem(last=False)[1]
                self.size -= gone
