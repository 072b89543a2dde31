"""`Readmission`: the note that a member, which had lost its log, votes again.

Such a member learns until it has what was acknowledged before (`ha.raft.readmission`). That it does so no more stands
beside the incarnations of its peers, as the incarnation of its own that votes, for each group by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from ha.dledger.links.peer_status import region_field
from ha.dledger.links.peers import Peers

__all__ = ["Readmission"]

log = structlog.get_logger("ha.dledger")


class Readmission:
    """The end of a member's readmission to one group."""

    def __init__(self, peers: Peers, group: int) -> None:
        """Begin with what is noted. `group` is the number of the group on the links."""
        self.through = -1
        """The end of the log when the readmission ended, in this life."""
        self.on_ended: Callable[[], None] = lambda: None
        """Called when this member has caught up and votes again."""
        self._peers = peers
        self._group = group
        self._key = f"{peers.me.id}/{group}" if group else peers.me.id

    @property
    def is_noted(self) -> bool:
        """Tell whether this member votes with its log, although the one before was lost."""
        return self._peers.known.get(self._key) == self._peers.me.incarnation

    def note(self) -> None:
        """Have it written down that this member votes with its log."""
        self._peers.known[self._key] = self._peers.me.incarnation
        self._peers.groups[0][0].noted()

    def ended(self, end: int) -> None:
        """Note that this member has caught up, with `end` as the index of its last entry."""
        log.info(
            "this member has caught up, and votes again",
            member=self._peers.me.id, end=end, **region_field(self._group),
        )  # fmt: skip
        self.through = end
        self.note()
        self.on_ended()
