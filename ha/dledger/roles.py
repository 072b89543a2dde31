"""`RoleHistory`: the roles that a member has had in this life, as logs and metrics tell of them."""

from __future__ import annotations

import structlog

from ha.dledger.links.peer_status import region_field
from ha.raft.types import Point, Role, Standing

__all__ = ["RoleHistory"]

log = structlog.get_logger("ha.dledger")


class RoleHistory:
    """Elections, changes of the role, and the time without a leader."""

    __slots__ = ("_group", "_leaderless_at", "changes", "elections")

    def __init__(self, group: int, now: int) -> None:
        """Begin as a candidate that knows no leader. `group` is the number of the group on the links."""
        self.elections = 0
        """How often this member became the leader."""
        self.changes = 0
        self._group = group
        self._leaderless_at: int | None = now

    def note(self, before: Standing, standing: Standing, now: int, end: Point, commit: Point) -> None:
        """Note a standing and the one before it; `end` and `commit` are those of the log."""
        if standing.leader is not None:
            self._leaderless_at = None
        elif self._leaderless_at is None:
            self._leaderless_at = now
        if (before.role, before.term) != (standing.role, standing.term):
            self.changes += before.role is not standing.role
            self.elections += standing.role is Role.LEADER
            log.info(
                "role", role=standing.role.value, term=standing.term, leader=standing.leader, why=standing.why,
                end=end.index, commit=commit.index, **region_field(self._group),
            )  # fmt: skip

    def leaderless_ms(self, now: int) -> int | None:
        """Return for how long no leader was known; None if one is."""
        return now - self._leaderless_at if self._leaderless_at is not None else None
