"""`Places`: the connections of clients, so many as the limit of open files leaves beside those of the store.

Strangers can connect as often as they like. When all places are taken the newest connection comes in, and another one
goes: first those over which nothing arrived in the second after they came, of the origin with most of these; then, of
the origin with most connections, the one over which nothing has arrived for longest. A whole cluster may come from one
origin, so an origin has no bound of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sized
from heapq import nsmallest
from typing import Final, Protocol

import structlog

__all__ = ["Places"]

log = structlog.get_logger("broker.serve")

_AHEAD_MIN: Final = 32
_AHEAD_SHARE: Final = 32
"""A 32nd of an origin's connections is chosen at once: sorting 20,000 for each newcomer would stop the loop."""
_MUTE_S: Final = 1.0
"""A connection that came a moment ago may have said something that is not read yet."""
_TOLD_MAX: Final = 3


class Guest(Protocol):
    """A connection of a client."""

    origin: str
    active: float
    """When something arrived last; 0 before anything has."""
    progress: float
    """When it came or, later, when the peer last took something."""

    def close(self) -> None: ...


class Places:
    """The connections of clients, by origin. Plain and synchronous; the loop owns it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.size = 0
        self._origins: dict[str, dict[Guest, None]] = {}
        self._next: list[tuple[Guest, float]] = []
        """The guests that go next, the last one first; with each the time of its last arrival, as it was chosen."""
        self._gone: Counter[str] = Counter()
        """How many of each origin have made room since the last `report`."""

    @property
    def is_pressed(self) -> bool:
        """Tell whether half of the places are taken."""
        return 2 * self.size >= self.total

    @property
    def is_overfull(self) -> bool:
        """Tell whether more are here than there are places for."""
        return self.size > self.total

    def add(self, guest: Guest) -> None:
        """Count a connection that came."""
        self._origins.setdefault(guest.origin, {})[guest] = None
        self.size += 1

    def remove(self, guest: Guest) -> None:
        """Count a connection no more; nothing if it is not here."""
        guests = self._origins.get(guest.origin)
        if guests is None or guest not in guests:
            return
        del guests[guest]
        self.size -= 1
        if not guests:
            del self._origins[guest.origin]

    def pop_next(self, now: float) -> Guest | None:
        """Remove and return the connection that has to go for a newcomer; None where there is none."""
        while self.size:
            while self._next:
                guest, active = self._next.pop()
                if guest.active == active and guest in self._origins.get(guest.origin, ()):
                    self.remove(guest)
                    self._gone[guest.origin] += 1
                    return guest
            self._choose(now)
        return None

    def _choose(self, now: float) -> None:
        count = max(_AHEAD_MIN, self.size // _AHEAD_SHARE)
        mute: dict[str, list[Guest]] = {}
        for origin, guests in self._origins.items():
            for guest in guests:
                if not guest.active and now - guest.progress > _MUTE_S:
                    mute.setdefault(origin, []).append(guest)
        chosen = nsmallest(count, mute[_most(mute)], key=_silence) if mute else []
        if len(chosen) < count:
            most = self._origins[_most(self._origins)]
            chosen += nsmallest(count - len(chosen), most.keys() - set(chosen), key=_silence)
        self._next = [(guest, guest.active) for guest in reversed(chosen)]

    def report(self) -> None:
        """Log which origins have made room since the last call."""
        if self._gone:
            log.warning(
                "closed silent connections for newer ones, as all places are taken",
                closed=self._gone.total(),
                most_from=dict(self._gone.most_common(_TOLD_MAX)),
                open=self.size,
                places=self.total,
            )
            self._gone.clear()


def _most(origins: Mapping[str, Sized]) -> str:
    return max(origins, key=lambda origin: len(origins[origin]))


def _silence(guest: Guest) -> tuple[float, float]:
    return guest.active, guest.progress
