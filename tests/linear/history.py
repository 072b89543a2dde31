"""Histories: the calls of clients on shared values, each with its begin, its end and its result.

A call whose answer never came, or said that nobody knows, has no end and no result: it may take effect at any moment
from its begin on, or never. A call that was refused before it changed anything is left out.

    recorder = Recorder(clock)
    call = recorder.begin("client 1", key, ("write", 7))
    recorder.end(call, None)              or recorder.forget(call): refused, nothing changed
    recorder.calls                        those that were neither ended nor forgotten are unknown
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["UNKNOWN", "Call", "Operation", "Recorder", "by_key", "tell"]

Operation = tuple[Any, ...]
"""A call: the name of what is done and its arguments, as the model of `models` knows them. ("read",), ("write", 7)"""


class _Unknown:
    def __repr__(self) -> str:
        return "?"


UNKNOWN: Final = _Unknown()
"""The result of a call whose answer never came."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of one client."""

    client: str
    key: Hashable
    operation: Operation
    begin: float
    end: float = math.inf
    result: Any = UNKNOWN

    def __str__(self) -> str:
        words = " ".join(map(str, self.operation))
        end = "never" if self.end == math.inf else f"{self.end:.6g}"
        return f"{self.begin:12.6g} .. {end:<12} {self.client}: {words} -> {self.result}"


class Recorder:
    """Note calls as they begin and end. One thread, or one lock around it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.calls: list[Call] = []

    def begin(self, client: str, key: Hashable, operation: Operation) -> Call:
        """Note a call that is about to be sent."""
        call = Call(client, key, operation, self._clock())
        self.calls.append(call)
        return call

    def end(self, call: Call, result: Any) -> None:
        """Note the result of a call."""
        call.end, call.result = self._clock(), result

    def forget(self, call: Call) -> None:
        """Drop a call that certainly changed nothing and learned nothing."""
        self.calls.remove(call)


def by_key(calls: Iterable[Call]) -> dict[Hashable, list[Call]]:
    """Return the calls of each key: a history is linearizable if that of each of its keys is."""
    found: dict[Hashable, list[Call]] = {}
    for call in calls:
        found.setdefault(call.key, []).append(call)
    return found


def tell(calls: Iterable[Call]) -> str:
    """Return a history in words, in the order in which its calls began."""
    return "\n".join(map(str, sorted(calls, key=lambda call: (call.begin, call.end))))
