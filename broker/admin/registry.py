"""The administrators' entrance: every request that tools send and programs do not, and the file that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.admin.base import Desk
from broker.admin.broker import AdminBroker
from broker.admin.groups import AdminGroups
from broker.admin.ha import AdminHa
from broker.admin.offsets import AdminOffsets
from broker.admin.relay import AdminRelay
from broker.admin.request_modes import AdminModes
from broker.admin.topics import AdminTopics
from broker.admin.upkeep import AdminUpkeep
from broker.remoting.session import Handlers

if TYPE_CHECKING:
    from broker.broker import Broker

__all__ = ["Admin"]


class Admin:
    """All of them over one broker, with the helper thread they share."""

    def __init__(self, broker: Broker) -> None:
        self._desk = Desk(broker)
        self.ha = AdminHa(self._desk)

    def register(self, handlers: Handlers) -> None:
        desk = self._desk
        for part in (
            AdminTopics(desk),
            AdminGroups(desk),
            AdminOffsets(desk),
            AdminRelay(desk),
            AdminBroker(desk),
            AdminModes(desk),
            AdminUpkeep(desk),
            self.ha,
        ):
            for code, handler in part.handlers().items():
                assert code not in handlers.cold, code
                handlers.cold[code] = desk.guarded(handler)

    @property
    def waiting(self) -> int:
        """Requests that wait for the helper thread."""
        return self._desk.waiting

    def stop(self) -> None:
        """End the helper thread. Blocks until its work is done."""
        self._desk.stop()
