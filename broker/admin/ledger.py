"""Serve code 30040: the status of a member of a DLedger group, as it sees itself and the others.

The body is JSON: `ha.dledger.status.LedgerStatus` and the broker that shows it. Every member answers, the leader knows
most: only it knows through which entry each of the others has the log on its disk.
"""

from __future__ import annotations

from typing import Any

import msgspec

from broker.admin.base import AdminContext, Handler
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.replication.ledger_member import LedgerMember
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command

__all__ = ["AdminLedger"]


class AdminLedger:
    """The codes of a DLedger group."""

    def __init__(self, context: AdminContext, member: LedgerMember | None) -> None:
        """`member` is None in a broker that is a member of no such group."""
        self._context = context
        self._member = member

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.ROPEWALK_LEDGER_STATUS: self.status}

    def status(self, session: Session, request: Command) -> Command:
        """Answer with the member's status."""
        if self._member is None:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                "this broker is a member of no DLedger group: it was started without enableDLegerCommitLog",
            )
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(self._document(self._member)))

    def _document(self, member: LedgerMember) -> dict[str, Any]:
        broker = self._context.broker
        found: dict[str, Any] = msgspec.to_builtins(member.ledger_status())
        return found | {
            "cluster": broker.config.broker_cluster_name,
            "brokerName": broker.config.broker_name,
            "brokerId": member.broker_id,
            "address": ":".join(map(str, broker.address)),
            "leads": member.is_leader,
            "members": sorted(member.addresses),
            "waiting": len(broker.acks),
            "timers": broker.timers.committed_progress() if broker.timers.enabled else None,
        }
