"""`Routes`: the regions of a store, as far as a client has heard of them, and which of them has a key.

Members tell their regions as they have applied the cuts, each at its own time. Of a region the highest epoch counts: a
cut ends an epoch for good, and whoever knows the new epoch also knows the region that was cut off. So what several
members tell adds up to all keys, each in one region.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import RemoteProtocolError


@dataclass(slots=True)
class Route:
    """A region, and where its leader is."""

    id: int
    start: bytes
    end: bytes
    """Empty: behind every key."""
    epoch: int
    leader: str
    """Empty if it is not known."""

    def has(self, key: bytes) -> bool:
        """Return whether a key is in the region."""
        return self.start <= key and (not self.end or key < self.end)

    def clip(self, end: bytes) -> bytes:
        """Return the end of the part that a range with this end (empty: behind every key) has in the region."""
        return min(end, self.end) if end and self.end else end or self.end

    def reaches(self, end: bytes) -> bool:
        """Return whether a range with this end has no part behind the region."""
        return self.clip(end) == end


class Routes:
    """The regions of a store, as far as a client has heard of them."""

    def __init__(self, members: tuple[str, ...]) -> None:
        self.members = members
        """The addresses of all members, which serve all regions."""
        self._by_id: dict[int, Route] = {}
        self._ordered: list[Route] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def learn(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Take over the regions that a member tells of, where their epochs are newer than the known ones.

        Raises `RemoteProtocolError` for what is none.
        """
        for new in [_route_untrusted(each) for each in told]:
            known = self._by_id.get(new.id)
            if known is None or known.epoch < new.epoch:
                self._by_id[new.id] = new
            elif known.epoch == new.epoch and not known.leader:
                known.leader = new.leader
        self._ordered = sorted(self._by_id.values(), key=lambda route: route.start)

    def of(self, key: bytes) -> Route:
        """Return the region that has a key. Raises `RemoteProtocolError` where none was told of."""
        at = bisect_right(self._ordered, key, key=lambda route: route.start) - 1
        if at < 0 or not self._ordered[at].has(key):
            raise RemoteProtocolError(
                f"the members of the key-value store told of no region that has {key!r}"
            )
        return self._ordered[at]

    def epoch(self, id: int) -> int:
        """Return the newest known epoch of a region."""
        return self._by_id[id].epoch if id in self._by_id else 0

    def get(self, id: int) -> Route | None:
        """Return a region; None if it is not known (any more)."""
        return self._by_id.get(id)


def _route_untrusted(told: Mapping[str, Any]) -> Route:
    try:
        start, end = bytes.fromhex(told["start"]), bytes.fromhex(told["end"])
        return Route(int(told["id"]), start, end, int(told["epoch"]), str(told["leader"]))
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise RemoteProtocolError(f"a region in an answer cannot be read: {exc!r}") from exc
