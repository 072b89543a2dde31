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
    """The requests of this member that are under way at the leader, and those that followers forward to it."""

    __slots__ = ("_group", "_now", "_number", "_waiting", "on_request")

    def __init__(self, group: int, now: Callable[[], int]) -> None:
        """Begin without any; `group` is the number of the group on the links."""
        self.on_request: Callable[[bytes, Callable[[bytes], None]], None] = lambda request, answer: None
        """Called with a request that a follower was asked, and with the way of its answer."""
        self._group = group
        self._now = now
        self._number = 0
        self._waiting: dict[int, tuple[int, PeerLink, Done]] = {}
        """By number: until when an answer is waited for, on which link, and by whom."""

    def send(self, link: PeerLink, request: bytes, done: Done) -> None:
        """Send a request to the leader, at the other end of a control link."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._waiting[self._number] = self._now() + PATIENCE_MS, link, done
        self._send(link, Kind.FORWARD, self._number, request)

    def received(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        """Have a follower's request handled, or take the leader's answer; one that comes late counts for nothing."""
        if kind is Kind.FORWARD:
            self.on_request(body, lambda answer: self._send(link, Kind.FORWARD_ANSWER, number, answer))
        elif (waiting := self._waiting.pop(number, None)) is not None:
            waiting[2](body)

    def tick(self, now: int) -> None:
        """Give up the requests whose time has passed, or whose link is gone."""
        over = [
            number for number, (until, link, _done) in self._waiting.items() if now >= until or not link.is_up
        ]
        for number in over:
            self._waiting.pop(number)[2](None)

    def _send(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        if link.is_up:
            link.send(encode_head(kind, 0, self._group, number, (0, 0, 0, 0, 0, 0), body), body)
