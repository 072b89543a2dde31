"""Shares of a bounded table by the origin of the clients that made its entries: one stranger cannot fill it for all.

Two rules, both of which bite only while half of a table is taken, as whole clusters come from one address:

- `NewNames`, for names that clients make by using them (topics, groups): one origin makes so many a minute, and fewer
  than three times as many as are still free: a quarter of the table is left to the others.
- `Shares`, for all other entries: one origin has no more of them than are still free, and half of the table is left.

What was loaded, replicated or made by an administrator has no origin and no such bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Protocol, runtime_checkable

from broker.remoting.origins import origin_of

__all__ = ["NewNames", "Shares", "Stranger"]

_WINDOW_MS: Final = 60_000
_SHARE: Final = 3
"""How many times as many names as are still free one origin may have made."""


@runtime_checkable
class Stranger(Protocol):
    """A client's session, as far as new entries count under its origin."""

    @property
    def peer_host(self) -> str:
        """Return the address of the peer."""


class Shares:
    """The makers of a table's entries, as far as they are known, by key."""

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self._makers: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._makers

    def refuses(self, by: Stranger | None, used: int, more: int = 1) -> bool:
        """Tell whether so many `more` entries are refused, where `used` are there already."""
        free = self.total - used
        if more > free:
            return True
        return (
            by is not None and 2 * used >= self.total and self._counts[origin_of(by.peer_host)] + more > free
        )

    def add(self, key: Hashable, by: Stranger | None) -> None:
        """Note the maker of an entry, which has a weight of one."""
        if by is not None:
            origin = origin_of(by.peer_host)
            self.discard(key)
            self._makers[key] = origin
            self._counts[origin] += 1

    def grow(self, key: Hashable, more: int) -> None:
        """Note that the weight of an entry has grown by so many; less than none for one that shrank."""
        origin = self._makers.get(key)
        if origin is not None:
            self._counts[origin] += more

    def discard(self, key: Hashable, weight: int = 1) -> None:
        """Forget an entry that is gone, or is noted anew."""
        origin = self._makers.pop(key, None)
        if origin is not None:
            self._counts[origin] -= weight
            if self._counts[origin] <= 0:
                del self._counts[origin]

    def of(self, by: Stranger) -> int:
        """Return the number of entries that the origin of a client made."""
        return self._counts[origin_of(by.peer_host)]


class NewNames:
    """The names of a table that clients made by using them, and how many of these each origin made in this minute."""

    def __init__(self, per_minute: int, monotonic_ms: Callable[[], int]) -> None:
        self._per_minute = per_minute
        self._monotonic_ms = monotonic_ms
        self._window = 0
        self._recent: Counter[str] = Counter()
        self._shares = Shares()

    def refusal(self, by: Stranger | None, used: int, total: int) -> str | None:
        """Return why a client may not make one more name now, in words for its user; None if it may."""
        if by is None or 2 * used < total:
            return None
        self._turn()
        if self._recent[origin_of(by.peer_host)] >= self._per_minute:
            return (
                f"{used} of {total} names are taken, and {by.peer_host} made {self._per_minute} in this minute, as "
                "many as newNamesPerMinute allows: try again in a minute"
            )
        if self._shares.of(by) >= _SHARE * (total - used):
            return (
                f"{used} of {total} names are taken, and {by.peer_host} made {self._shares.of(by)} of them: have an "
                "administrator create this one, or delete others"
            )
        return None

    def note(self, name: str, by: Stranger | None) -> None:
        """Count a name that a client made."""
        if by is not None:
            self._turn()
            self._recent[origin_of(by.peer_host)] += 1
            self._shares.add(name, by)

    def forget(self, name: str) -> None:
        """Count a name no more that is deleted."""
        self._shares.discard(name)

    def _turn(self) -> None:
        window = self._monotonic_ms() // _WINDOW_MS
        if window != self._window:
            self._window = window
            self._recent.clear()
