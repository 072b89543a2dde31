"""`IncomingBudget`: the bytes of requests that are kept unfinished or unread, over all connections of a process.

Strangers can open many connections, begin a frame of 16 MiB on each, and send nothing more. Two rules keep that from
becoming the trouble of others:

- A frame that has begun must be complete within `FRAME_GRACE_MS` and a second more for every `PACE` bytes of its size.
- While all together are more than `total` bytes, connections of the origin that holds most are closed: the one whose
  frame began first among those that hold at least half the average of this origin. A newcomer from elsewhere, and a
  small request from the same place, find room.

A length alone takes no memory: only bytes that arrived are kept and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from broker.remoting.origins import origin_of

__all__ = ["FRAME_GRACE_MS", "PACE", "TOTAL_MAX", "IncomingBudget"]

log = structlog.get_logger("broker.session")

TOTAL_MAX: Final = 256 << 20
FRAME_GRACE_MS: Final = 30_000
PACE: Final = 64 << 10
"""Bytes of its size for which a frame has a second more."""
_LATE_MS: Final = 5_000
"""A sweep that comes so late tells of a process that stood still, and whose peers' bytes are not read yet."""


class Holder(Protocol):
    """A session, as far as it keeps bytes of unfinished requests."""

    incoming: int
    """Bytes that its budget knows of."""
    frame_began_ms: int

    @property
    def peer_host(self) -> str: ...

    @property
    def congested(self) -> bool:
        """Tell whether the peer is not read, because it takes no answers: then it cannot finish its frame either."""

    @property
    def frame_size(self) -> int:
        """Return the size of the frame that has begun to arrive; 0 without any."""

    def discard_incoming(self, reason: str) -> None:
        """Forget the kept bytes, and close the connection."""


class _Origin:
    """The holders of one origin, the one whose frame began first in front."""

    __slots__ = ("holders", "size")

    def __init__(self) -> None:
        self.size = 0
        self.holders: dict[Holder, None] = {}


class IncomingBudget:
    """Bytes of unfinished requests, which the sessions of a process share. Plain and synchronous."""

    def __init__(self, now_ms: Callable[[], int], total: int = TOTAL_MAX) -> None:
        """`now_ms` tells milliseconds of a clock that nobody sets."""
        self.total = total
        self.size = 0
        """The sum of `incoming` over all holders."""
        self._now_ms = now_ms
        self._origins: dict[str, _Origin] = {}
        self._swept_ms = now_ms()
        self._closed: Counter[str] = Counter()
        """How many connections of each origin were closed for their size since the last sweep."""

    def count(self, holder: Holder, size: int, *, anew: bool) -> None:
        """Count `size` bytes as kept by a holder; `anew` where its kept frame is another one than before."""
        name = origin_of(holder.peer_host)
        origin = self._origins.get(name)
        if origin is None:
            if not size:
                return
            origin = self._origins[name] = _Origin()
        grown = size - holder.incoming
        holder.incoming = size
        self.size += grown
        origin.size += grown
        if anew or not size:
            origin.holders.pop(holder, None)
        if size and holder not in origin.holders:
            holder.frame_began_ms = self._now_ms()
            origin.holders[holder] = None
        if not origin.holders:
            del self._origins[name]
        while self.size > self.total:
            self._make_room()

    def _make_room(self) -> None:
        name, origin = max(self._origins.items(), key=lambda entry: entry[1].size)
        count = len(origin.holders)
        holder = next(each for each in origin.holders if 2 * each.incoming * count >= origin.size)
        self._closed[name] += 1
        self._discard(
            holder,
            f"its unfinished request holds {holder.incoming} bytes, and all together exceed "
            f"incomingBytesTotalMax = {self.total}",
        )

    def _discard(self, holder: Holder, reason: str) -> None:
        self.count(holder, 0, anew=True)
        holder.discard_incoming(reason)

    def sweep(self) -> None:
        """Close connections whose frame is overdue, and log which were closed for room; call every second or so."""
        now = self._now_ms()
        stood_still, self._swept_ms = now - self._swept_ms > _LATE_MS, now
        for name, number in self._closed.items():
            log.warning(
                "closed connections whose unfinished requests held most memory, as all together reached the bound",
                address=name,
                connections=number,
                incomingBytesTotalMax=self.total,
            )
        self._closed.clear()
        if stood_still:
            return
        for origin in list(self._origins.values()):
            for holder in list(self._due(origin, now)):
                if holder.congested:
                    self.count(holder, holder.incoming, anew=True)
                elif now - holder.frame_began_ms > FRAME_GRACE_MS + holder.frame_size * 1000 // PACE:
                    log.warning(
                        "closed a connection whose request took too long to arrive",
                        peer=holder.peer_host,
                        arrived=holder.incoming,
                        of=holder.frame_size,
                        seconds=(now - holder.frame_began_ms) // 1000,
                    )
                    self._discard(holder, "its request took too long to arrive")

    @staticmethod
    def _due(origin: _Origin, now: float) -> list[Holder]:
        """Return the holders of an origin whose grace is over; the others came after them."""
        found = []
        for holder in origin.holders:
            if now - holder.frame_began_ms <= FRAME_GRACE_MS:
                break
            found.append(holder)
        return found
