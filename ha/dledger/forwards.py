"""`Forwards`: requests of clients that reached a follower, and that only the leader may answer.

    client -> follower   --FORWARD-->   leader   handles it as its own
    client <- follower   <--FORWARD_ANSWER--   once a quorum has what the answer tells

A request travels once. Where its answer does not come, because the link broke, the leader changed or two seconds have
passed, nobody knows whether it was carried out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ha.dledger.links.link import PeerLink
from ropewalk.format.dledger.frame import Kind, encode_head

PATIENCE_MS: Final = 2_500

Done = Callable[[bytes | None], None]
"""Takes the answer of the leader, or None where nobody knows what became of the request."""


class Forwards:
    """The requests of this member that are under way at the leader."""

    __slots__ = ("_number", "_waiting")

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, tuple[int, PeerLink, Done]] = {}
        """By number: until when an answer is waited for, on which link, and by whom."""

    def send(self, link: PeerLink, group: int, request: bytes, now: int, done: Done) -> None:
        """Send a request to the leader, at the other end of a control link."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._waiting[self._number] = now + PATIENCE_MS, link, done
        send(link, Kind.FORWARD, group, self._number, request)

    def answered(self, number: int, answer: bytes) -> None:
        """Take the leader's answer; one that comes late counts for nothing."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting[2](answer)

    def tick(self, now: int) -> None:
        """Give up the requests whose time has passed, or whose link is gone."""
        over = [
            number for number, (until, link, _done) in self._waiting.items() if now >= until or not link.is_up
        ]
        for number in over:
            self._waiting.pop(number)[2](None)


def send(link: PeerLink, kind: Kind, group: int, number: int, body: bytes) -> None:
    """Send a request, or the answer to one."""
    if link.is_up:
        link.send(encode_head(kind, 0, group, number, (0, 0, 0, 0, 0, 0), body), body)
