"""Requests about files and followers (329, 907)."""

from __future__ import annotations

from broker.admin.base import AdminContext, Handler, body_of
from broker.remoting.session import Session
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command

__all__ = ["AdminUpkeep"]


class AdminUpkeep:
    def __init__(self, context: AdminContext) -> None:
        self._broker = context.broker

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def delete_expired(self, session: Session, request: Command) -> Command:
        """Remove segments older than `fileReservedTime` now, and not only in the hours of `deleteWhen`."""
        self._broker.store.upkeep.remove_expired()
        return request.reply(ResponseCode.SUCCESS)

    def ha_status(self, session: Session, request: Command) -> Command:
        broker = self._broker
        return body_of(request, broker.ha_status.runtime_body(broker.store.log.end_offset))
