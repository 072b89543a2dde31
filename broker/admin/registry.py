"""The administrators' entrance: every request that tools send and programs do not, and the file that answers it."""

from __future__ import annotations

from broker.admin.base import AdminContext
from broker.admin.broker import AdminBroker
from broker.admin.groups import AdminGroups
from broker.admin.ha import AdminHa
from broker.admin.ledger import AdminLedger
from broker.admin.offsets import AdminOffsets
from broker.admin.proof import ProofDoor
from broker.admin.relay import AdminRelay
from broker.admin.request_modes import AdminModes
from broker.admin.sinks import AdminSinks
from broker.admin.topics import AdminTopics
from broker.admin.upkeep import AdminUpkeep
from broker.remoting.session import Handlers, Session
from broker.replication.dledger.member import LedgerMember
from broker.replication.group_member import GroupMember
from broker.replication.master_slave_member import MasterSlaveMember
from broker.sinks.service import SinkService

__all__ = ["Admin"]


class Admin:
    """All of them over one broker, with the helper thread they share."""

    def __init__(self, context: AdminContext, group: GroupMember, sinks: SinkService) -> None:
        self._context = context
        self._topics = AdminTopics(context, sinks.topic_deleted)
        self._sinks = AdminSinks(context, sinks)
        door = self._door = ProofDoor(context.broker)
        self._ledger = AdminLedger(context, door, group if isinstance(group, LedgerMember) else None)
        self._ha: AdminHa | None = None
        if isinstance(group, MasterSlaveMember):
            self._ha = AdminHa(context, door, group.member, group.replication)

    def register(self, handlers: Handlers) -> None:
        context = self._context
        for part in (
            self._topics,
            AdminGroups(context),
            AdminOffsets(context),
            AdminRelay(context),
            AdminBroker(context),
            AdminModes(context),
            AdminUpkeep(context),
            self._sinks,
            self._door,
            self._ledger,
            *([self._ha] if self._ha is not None else ()),
        ):
            for code, handler in part.handlers().items():
                assert code not in handlers.cold, code
                handlers.cold[code] = context.guarded(handler)

    def forget(self, session: Session) -> None:
        """Drop the state of a connection that has ended."""
        self._door.forget(session)

    @property
    def waiting(self) -> int:
        """Requests that wait for the helper thread."""
        return self._context.waiting

    def stop(self) -> None:
        """End the helper thread. Blocks until its work is done."""
        self._context.stop()
