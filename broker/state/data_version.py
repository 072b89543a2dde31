"""The version a table of metadata carries, so that others can tell in three numbers whether it moved.

    {"counter":n,"stateVersion":n,"timestamp":ms}

It travels in registrations, in the JSON config files and in the tables slaves copy. A name server that sees
the same version again does not look at the table at all: a change without a new version is a change nobody
sees. `stateVersion` is the epoch of the broker's role and outranks the rest; inside one epoch the counter
decides, and the time only tells apart two brokers that counted alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DataVersion", "int_of"]

_NUMBER_MAX = (1 << 62) - 1
"""A number above is no count of changes: the next one would soon be none that 64 bits can have."""
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """A version. The order of the fields is the order in which versions are compared."""

    state_version: int = 0
    counter: int = 0
    timestamp: int = 0
    """Milliseconds since 1970 of the last change."""

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """The version after one more change, in the same epoch unless a new one is given."""
        return DataVersion(
            self.state_version if state_version is None else state_version, self.counter + 1, now_ms
        )

    def next_after(self, other: DataVersion, now_ms: int) -> DataVersion:
        """Return the version of a table that has taken over entries of another one: newer than both, in this epoch."""
        newest = max(self, DataVersion(self.state_version, other.counter, other.timestamp))
        return newest.next(now_ms)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: object) -> DataVersion:
        """Read the JSON form; absent fields count as 0 (4.9 knows no stateVersion, old files nothing)."""
        if not isinstance(value, Mapping):
            return cls()
        numbers = (int_of(value.get(name), 0) for name in ("stateVersion", "counter", "timestamp"))
        return cls(*(number if 0 <= number <= _NUMBER_MAX else 0 for number in numbers))


def int_of(value: Any, default: int) -> int:
    """The 64 bit integer a JSON value stands for, as leniently as RocketMQ's reader takes it, else `default`.

    Its clients and tools write numbers as text here and there, and null where nothing was set.
    """
    if isinstance(value, bool):
        return default
    if isinstance(value, str) and len(value) <= 20:  # no i64 has more characters
        try:
            value = int(value)
        except ValueError:
            return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value in _INT64 else default
