"""A drill's messages: every one has an identity, and says itself what its bytes must be.

    drill <run> <lane> <number> <queue> <sha256 of these words> filler …

`lane` is one producer that sends in order, `number` rises along it. The filler follows from the words, so a body can be
computed from its identity, and any change to it shows.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_HEAD = re.compile(rb"drill ([0-9a-z]{1,32}) (\d{1,6}) (\d{1,12}) (\d{1,6}) ([0-9a-f]{64}) ")


class Identity(NamedTuple):
    """Which message of which producer, and the queue it was sent to."""

    lane: int
    number: int
    queue: int

    def __str__(self) -> str:
        return f"{self.lane}-{self.number}"


def body_of(run: str, identity: Identity, size: int) -> bytes:
    """The only body this message can have, of `size` bytes or as many as its head needs."""
    words = f"drill {run} {identity.lane} {identity.number} {identity.queue}"
    digest = hashlib.sha256(words.encode())
    head = f"{words} {digest.hexdigest()} ".encode()
    filler = digest.digest()
    return (head + filler * (size // len(filler) + 1))[: max(size, len(head))]


def identify(run: str, body: bytes) -> tuple[Identity | None, bool]:
    """Return the number of a body, and whether it is exactly as sent; (None, False) for another run's body."""
    match = _HEAD.match(body)
    if match is None or match[1].decode() != run:
        return None, False
    identity = Identity(int(match[2]), int(match[3]), int(match[4]))
    return identity, body == body_of(run, identity, len(body))
