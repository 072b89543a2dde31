"""`DiskRoom`: a log that waits for room on the disk or for a cut, as people are told of it."""

from __future__ import annotations

from typing import Final

import structlog

from ha.dledger.links.peer_status import region_field
from ha.raft.types import Role

__all__ = ["DiskRoom"]

log = structlog.get_logger("ha.dledger")

STUCK_MS: Final = 1_000
"""A log that waits for so long does not wait for its next segment only."""


class DiskRoom:
    """Since when the log waits, and whether people know."""

    __slots__ = ("_group", "_since", "is_stuck")

    def __init__(self, group: int) -> None:
        """Begin with room. `group` is the number of the group whose log it is."""
        self.is_stuck = False
        """Whether the log has waited for so long that people are told."""
        self._group = group
        self._since: int | None = None

    def waits(self, since: int | None) -> None:
        """Note since when the log waits; None: it does not."""
        self._since = since

    def tick(self, now: int, role: Role, end: int) -> None:
        """Tell people when the log has waited for long, and when it goes on; `end` is the index of its last entry."""
        is_stuck = self._since is not None and now - self._since >= STUCK_MS
        if is_stuck is self.is_stuck:
            return
        self.is_stuck = is_stuck
        if is_stuck:
            log.error(
                "no room on the disk for the log: this member cannot lead, and keeps what it has",
                role=role.value,
                end=end,
                remedy="make room; it goes on by itself",
                **region_field(self._group),
            )
        else:
            log.info("the log goes on", end=end, **region_field(self._group))
