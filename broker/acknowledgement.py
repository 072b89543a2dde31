"""`Acknowledgement`: when producers are answered, which is the promise that an answer makes.

    SYNC_FLUSH         when the disk has it, or where members of the group report flushed bytes, they have
    SYNC_MASTER        when enough members of the group have it; at once, with a code, where there are too few members
    both               when both have come true
    neither            at once: such an answer never comes here

The answers wait in an `AckQueue`, which knows offsets and deadlines alone. This is the rule of what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.context import BrokerContext
from broker.remoting.outbox import Owed, release
from broker.remoting.rpc_times import Kind
from broker.replication.group_member import GroupMember
from ropewalk.codes import ResponseCode
from store.log.limits import NO_LIMIT

__all__ = ["Acknowledgement"]

_TOO_FEW_SLAVES: Final = "stored, but there are fewer slaves than inSyncReplicas asks for"


class Acknowledgement:
    """The rule by which a broker answers producers. The loop owns it."""

    def __init__(self, context: BrokerContext, group: GroupMember) -> None:
        self._context = context
        self._group = group
        self._acks = context.acks
        self._store = context.store
        self._times = context.rpc_times

    def wait(self, owed: Sequence[Owed], read_at: float, kinds: Sequence[Kind] = ()) -> None:
        """Have answers wait for all that is appended, or fail them at once where too few members are there. HOT.

        `kinds` and `read_at` as `AckQueue.add` wants them.
        """
        limits = self._group.limits
        if limits.waits and not limits.available:
            self._times.clock_now()
            code = ResponseCode.SLAVE_NOT_AVAILABLE
            release(self._times, owed, kinds, read_at, code, _TOO_FEW_SLAVES)
            return
        now = self._context.monotonic_ms()
        self._acks.add(
            owed,
            self._store.log.end_offset,
            now + self._context.config.sync_flush_timeout,
            now + limits.patience_ms,
            kinds=kinds,
            read_at=read_at,
        )

    def complete(self) -> None:
        """Answer producers whose promise is kept. HOT."""
        if self._acks.count:
            confirmed = self._group.confirmed
            self._acks.complete(
                min(self._flushed(), confirmed) if self._store.config.sync_flush else confirmed
            )

    def abandon(self) -> None:
        """Fail answers that wait for a slave that has left, where too few are there: all but those it had reported."""
        self.complete()
        self._acks.abandon(self._group.confirmed, ResponseCode.SLAVE_NOT_AVAILABLE, _TOO_FEW_SLAVES)

    def expire(self, now_ms: int) -> None:
        """Fail answers that have waited too long."""
        self._acks.expire(now_ms, self._flushed(), self._group.confirmed)

    def _flushed(self) -> int:
        """Through where answers need not wait for the disk."""
        waits = self._store.config.sync_flush and not self._group.covers_flush
        return self._store.log.flushed_offset if waits else NO_LIMIT
