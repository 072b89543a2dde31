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
        return cls(
            int_of(value.get("stateVersion"), 0),
            int_of(value.get("counter"), 0),
            int_of(value.get("timestamp"), 0),
        )


def int_of(value: Any, default: int) -> int:
    """The integer a JSON value stands for, as leniently as RocketMQ's reader takes it, else `default`.

    Its clients and tools write numbers as text here and there, and null where nothing was set.
    """
    if isinstance(value, bool):
        return default
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else default
    if isinstance(value, str) and len(value) <= 20:  # no i64 has more characters
        try:
            return int(value)
        except ValueError:
            return default
    return default
