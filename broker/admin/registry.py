"""The administrators' entrance: every request that tools send and programs do not, and the file that answers it."""

from __future__ import annotations

from typing import Protocol

from broker.admin.base import AdminContext, Handler
from broker.admin.broker import AdminBroker
from broker.admin.groups import AdminGroups
from broker.admin.offsets import AdminOffsets
from broker.admin.relay import AdminRelay
from broker.admin.request_modes import AdminModes
from broker.admin.sinks import AdminSinks
from broker.admin.topics import AdminTopics
from broker.admin.upkeep import AdminUpkeep
from broker.remoting.session import Handlers, Session
from broker.sinks.service import SinkService

__all__ = ["Admin", "GroupCodes"]


class GroupCodes(Protocol):
    """The requests of a group's members and its operators."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""

    def forget(self, session: Session) -> None:
        """Drop the state of a connection that has ended."""


class Admin:
    """All of them over one broker, with the helper thread they share."""

    def __init__(self, context: AdminContext, group: GroupCodes, sinks: SinkService) -> None:
        self._context = context
        self._sinks = AdminSinks(context, sinks)
        self._group = group

    def register(self, handlers: Handlers) -> None:
        context = self._context
        for part in (
            AdminTopics(context),
            AdminGroups(context),
            AdminOffsets(context),
            AdminRelay(context),
            AdminBroker(context),
            AdminModes(context),
            AdminUpkeep(context),
            self._sinks,
            self._group,
        ):
            for code, handler in part.handlers().items():
                assert code not in handlers.cold, code
                handlers.cold[code] = context.guarded(handler)

    def forget(self, session: Session) -> None:
        """Drop the state of a connection that has ended."""
        self._group.forget(session)

    @property
    def waiting(self) -> int:
        """Requests that wait for the helper thread."""
        return self._context.waiting

    def stop(self) -> None:
        """End the helper thread. Blocks until its work is done."""
        self._context.stop()
