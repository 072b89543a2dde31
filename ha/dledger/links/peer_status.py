"""The links to a peer as people see them: their state, the last refusal, and the reasons why links were ended."""

from __future__ import annotations

from typing import Final

import structlog
from msgspec import Struct

from ha.raft.types import Link

__all__ = ["HangUpLog", "PeerStatus", "region_field"]

log = structlog.get_logger("ha.dledger")

_SAY_AGAIN_MS: Final = 60_000
_REASONS_MAX: Final = 64


class PeerStatus(Struct):
    """The links to one peer, for people."""

    address: str
    control: bool = False
    data: bool = False
    heard_at: int = -1
    """When it was heard last, on either link, by this member's monotonic clock; -1: never."""
    why: str = ""
    """The reason why a link is down, as far as it is known."""
    refusal: str = ""
    """The reason that one end gave the other for its last refusal; empty once a link is up."""

    def changed(self, kind: Link, up: bool, why: str) -> None:
        """Note that a link has come up, or ended for this reason."""
        self.why = why
        if kind is Link.CONTROL:
            self.control = up
        else:
            self.data = up


class HangUpLog:
    """The lines of the log that tell why links are ended: the same reason once a minute."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def say(self, peer: str, why: str, now: int) -> None:
        """Write the reason to the log; `peer` is the member, or the address of a stranger."""
        if now - self._said.get(why, -_SAY_AGAIN_MS) >= _SAY_AGAIN_MS:
            if len(self._said) >= _REASONS_MAX:
                self._said.clear()
            self._said[why] = now
            log.warning("hung up on a DLedger member", peer=peer, reason=why)


def region_field(group: int) -> dict[str, int]:
    """Return the region of a group as a field of a line of the log; none for the group of the messages."""
    return {"region": group - 1} if group else {}
