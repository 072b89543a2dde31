"""`ClientSizes`: the bytes that connected clients have the broker keep, each and all together.

Clients of one group send the same subscriptions. Expressions that are not short, with their tags, are one object for
all that send equal ones, and count once. Each connection counts as all that it has, so that the one that takes most, of
the address that takes most, is found.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import Final, Generic, TypeAlias, TypeVar

from broker.remoting.origins import origin_of
from broker.state.shares import Stranger
from broker.state.subscription import SubscriptionData

__all__ = ["SIZE_MAX", "ClientSize", "ClientSizes", "Ranking", "is_large"]

SIZE_MAX: Final = 256 << 20
"""Bytes of all clients, after which room is made; an eighth more, and they are told to come later."""
_MEMBER_SIZE: Final = 700
"""Bytes that a client takes in each of its groups, besides its id."""
_WISH_SIZE: Final = 500
_TAG_SIZE: Final = 160
_SHORT: Final = 4
"""Tags of a subscription that is not worth a look for an equal one."""
_SHORT_SIZE: Final = 200

_Parts: TypeAlias = tuple[str, tuple[str, ...], frozenset[int]]


@dataclass(slots=True)
class ClientSize:
    """The bytes that one connection takes."""

    own: int = 0
    """Of all that no other one shares."""
    shared: Counter[_Parts] = field(default_factory=Counter)
    """Parts of subscriptions that others may have, too, and how many of its subscriptions have them."""


@dataclass(slots=True)
class _Kept:
    parts: _Parts
    size: int
    count: int = 0


class ClientSizes:
    """The bytes of all clients, and the parts of subscriptions that they share."""

    def __init__(self) -> None:
        self.size = 0
        self._kept: dict[_Parts, _Kept] = {}

    def join(self, client: ClientSize, client_id: str, sign: int = 1) -> None:
        """Count a client's place in a group; -1 where it leaves."""
        size = sign * (_MEMBER_SIZE + getsizeof(client_id))
        client.own += size
        self.size += size

    def keep(self, client: ClientSize, wishes: Iterable[SubscriptionData]) -> tuple[SubscriptionData, ...]:
        """Count subscriptions, and return them with the parts that equal ones have."""
        return tuple([self._keep(client, wish) for wish in wishes])

    def _keep(self, client: ClientSize, wish: SubscriptionData) -> SubscriptionData:
        parts, size = _parts_of(wish)
        client.own += size
        self.size += size
        if parts is None:
            return wish
        kept = self._kept.get(parts)
        if kept is None:
            shared = 2 * getsizeof(wish.expression) + _TAG_SIZE * (len(wish.tags) + len(wish.codes))
            kept = self._kept[parts] = _Kept(parts, shared + sum(map(len, wish.tags)))
            self.size += kept.size
        kept.count += 1
        client.shared[kept.parts] += 1
        if wish.codes is kept.parts[2]:
            return wish
        expression, tags, codes = kept.parts
        return replace(wish, expression=expression, tags=tags, codes=codes)

    def drop(self, client: ClientSize, wishes: Iterable[SubscriptionData]) -> None:
        """Count subscriptions no more that were kept."""
        for wish in wishes:
            parts, size = _parts_of(wish)
            client.own -= size
            self.size -= size
            if parts is not None:
                client.shared[parts] -= 1
                if not client.shared[parts]:
                    del client.shared[parts]
                kept = self._kept[parts]
                kept.count -= 1
                if not kept.count:
                    del self._kept[parts]
                    self.size -= kept.size
        assert self.size >= 0, self.size

    def size_of(self, parts: _Parts) -> int:
        """Return the bytes of shared parts; 0 of parts without a subscription."""
        kept = self._kept.get(parts)
        return kept.size if kept is not None else 0


def _parts_of(wish: SubscriptionData) -> tuple[_Parts | None, int]:
    """Return the parts of a subscription that are to be shared, if any, and the bytes of the rest."""
    own = _WISH_SIZE + len(wish.topic)
    return ((wish.expression, wish.tags, wish.codes) if is_large(wish) else None), own


def is_large(wish: SubscriptionData) -> bool:
    """Tell whether a subscription is worth a look for an equal one."""
    return len(wish.tags) > _SHORT or len(wish.codes) > _SHORT or len(wish.expression) > _SHORT_SIZE


P = TypeVar("P", bound=Hashable)


class Ranking(Generic[P]):
    """Connections by the bytes that they take: again and again the one with most, of the address with most."""

    def __init__(self, sizes: ClientSizes) -> None:
        self._sizes = sizes
        self._origins: dict[str, _Origin[P]] = {}

    def add(self, peer: P, size: ClientSize) -> None:
        """Add a connection, before the first of them is popped."""
        origin = self._origins.setdefault(_origin_of(peer), _Origin())
        shared = sum(self._sizes.size_of(parts) for parts in size.shared)
        heapq.heappush(origin.peers, (-size.own - shared, len(origin.peers), peer, size))
        origin.size += size.own + sum(
            self._sizes.size_of(parts) for parts in size.shared if not origin.shared[parts]
        )
        origin.shared.update(size.shared.keys())

    def __iter__(self) -> Iterator[P]:
        origins = self._origins
        while origins:
            name, origin = max(origins.items(), key=lambda entry: entry[1].size)
            _weight, _number, peer, size = heapq.heappop(origin.peers)
            origin.size -= size.own
            for parts in size.shared:
                origin.shared[parts] -= 1
                if not origin.shared[parts]:
                    origin.size -= self._sizes.size_of(parts)
            if not origin.peers:
                del origins[name]
            yield peer


def _origin_of(peer: object) -> str:
    return origin_of(peer.peer_host) if isinstance(peer, Stranger) else ""


class _Origin(Generic[P]):
    """The connections of one address, in a heap, and what they take."""

    def __init__(self) -> None:
        self.size = 0
        self.peers: list[tuple[int, int, P, ClientSize]] = []
        self.shared: Counter[_Parts] = Counter()
