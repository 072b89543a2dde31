"""`Region`: the range of keys that a Raft group has, and the epoch of its cut; `RegionIds`: the ids of all regions.

An id is given in two steps. Region 0 reserves one for a region *and its epoch*; then the region itself is split, which
ends that epoch. So an id is given once, whoever asks, and whatever number of times: a split whose outcome nobody heard
is asked for again and gets the same id. No id is lost either: as long as the region has that epoch, the id is for its
next split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

REGIONS_MAX: Final = 16
"""Each is a Raft group in every member's process."""
_NUMBER_BITS: Final = 40


class Region(Struct, frozen=True):
    """A range of keys. An end that is empty stands behind every key."""

    id: int
    start: bytes = b""
    end: bytes = b""
    epoch: int = 1
    """Rises whenever the range changes: a request that was routed by an older cut is refused."""

    def has(self, key: bytes) -> bool:
        """Return whether a key is in the range."""
        return self.start <= key and (not self.end or key < self.end)

    def has_range(self, start: bytes, end: bytes) -> bool:
        """Return whether all keys from `start` to before `end` (empty: to the last) are in the range."""
        return self.has(start) and (not self.end or b"" < end <= self.end)

    def may_be_cut_at(self, key: bytes) -> bool:
        """Return whether a cut at this key leaves a range on either side."""
        return self.has(key) and key != self.start

    def session_id(self, number: int) -> int:
        """Return the id of a session: no other region gives it, as sessions go along with keys into new regions."""
        assert number < 1 << _NUMBER_BITS
        return self.id << _NUMBER_BITS | number


def gap_in(regions: Iterable[Region]) -> bytes | None:
    """Return the first key that none of the regions has; None if there is no such key."""
    covered = b""
    for start, end in sorted((each.start, each.end) for each in regions):
        if start > covered:
            break
        if not end:
            return None
        covered = max(covered, end)
    return covered


class RegionIds:
    """The ids that regions were given, beside 0. Region 0 keeps them."""

    def __init__(self) -> None:
        self._given: dict[tuple[int, int], int] = {}
        """By the region that is cut, and its epoch until then."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return ((parent, epoch, id) for (parent, epoch), id in sorted(self._given.items()))

    def __len__(self) -> int:
        return len(self._given)

    def get(self, parent: int, epoch: int) -> int | None:
        """Return the id that is reserved for the split of a region that has this epoch."""
        return self._given.get((parent, epoch))

    def reserve(self, parent: int, epoch: int) -> int | None:
        """Reserve an id, if none is yet, and return it; None if there are as many regions as there may be."""
        if (known := self.get(parent, epoch)) is not None:
            return known
        if len(self._given) + 1 >= REGIONS_MAX:
            return None
        return self.fill(parent, epoch, len(self._given) + 1)

    def fill(self, parent: int, epoch: int, id: int) -> int:
        """Note an id that was given, and return it."""
        self._given[parent, epoch] = id
        return id
