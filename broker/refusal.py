"""`Refusal`: the reason why this broker takes no message at the moment, judged before each send.

In this order: it stops; its group forbids it (a slave, a member without a leader, too few slaves); the disk is too
full; too many answers wait; an append was held up by the disk a moment ago, so that others may do better elsewhere.
"""

from __future__ import annotations

from typing import Final

import structlog

from broker.context import BrokerContext
from broker.replication.group_member import GroupMember
from ropewalk.codes import ResponseCode

__all__ = ["Refusal"]

log = structlog.get_logger("broker")

ACKS_WAITING_MAX: Final = 100_000
"""Producers' answers that may wait for a flush; beyond it sends are answered "busy"."""
STALL_ECHO_MS: Final = 50
"""After an append that took too long: how long what arrives counts as having waited behind it."""


class Refusal:
    """The judgement of whether messages are taken. The loop owns it."""

    group: GroupMember
    """The group that this broker is a member of; set before the first message."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._stalled_until_ms = 0
        self._stall = ""

    def judge(self) -> tuple[int, str] | None:
        """Return code and words with which every message is refused now, or None. HOT."""
        context = self._context
        if context.stopping:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is shutting down"
        if (refused := self.group.limits.refused) is not None:
            return refused
        if (why := context.store.refusal) is not None:
            return ResponseCode.SERVICE_NOT_AVAILABLE, why
        if context.acks.count >= ACKS_WAITING_MAX:
            return ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many messages wait for the disk"
        if self._stalled_until_ms:
            if context.monotonic_ms() < self._stalled_until_ms:
                return ResponseCode.SYSTEM_BUSY, self._stall
            self._stalled_until_ms = 0
        return None

    def append_stalled(self, took_s: float) -> None:
        """Refuse for a while the messages that came while the disk held an append up."""
        self._stalled_until_ms = self._context.monotonic_ms() + STALL_ECHO_MS
        self._stall = (
            f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while: an append took {took_s:.1f} s"
        )
        log.warning("the disk held an append up", seconds=round(took_s, 1))
