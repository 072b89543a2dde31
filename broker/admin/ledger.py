"""Serve the codes of a DLedger group: 30040, a member's status; 30041, a transfer of the lead; 30042, readmission.

The body of a status is JSON: `ha.dledger.status.LedgerStatus` and the broker that shows it. Every member answers, the
leader knows most: only it knows through which entry each of the others has the log on its disk.

A transfer is asked of the leader: `to` names the member that is to lead, none the one that lacks least. The answer
comes when that member leads, or when the leader goes on: after one election timeout at the latest.

A readmission is asked of every member but the one that lost its log (`id`), and each answers for itself.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.admin.base import AdminContext, Handler
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.replication.ledger_member import LedgerMember
from ha.raft.types import TransferResult
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command

__all__ = ["AdminLedger"]

_WORDS: Final = {
    TransferResult.NOT_LEADER: "{me} does not lead; the leader it knows is {leader}",
    TransferResult.NOT_READY: "{me} was elected a moment ago and opens its term; try again",
    TransferResult.UNKNOWN_MEMBER: "{to} is no member of this group; its members are {members}",
    TransferResult.UNREACHABLE: "{me} does not hear {to}, or it cannot lead now: see the links in "
    "`ropewalk admin dledger status`",
    TransferResult.FALL_BEHIND_TOO_MUCH: "{to} lacks too much of the log; try again when it has caught up",
    TransferResult.LEADER_TRANSFERRING: "another transfer is under way; try again in a second",
    TransferResult.TAKE_LEADERSHIP_FAILED: "{to} did not take the lead in time; the leader is {leader}",
}


class AdminLedger:
    """The codes of a DLedger group."""

    def __init__(self, context: AdminContext, member: LedgerMember | None) -> None:
        """`member` is None in a broker that is a member of no such group."""
        self._context = context
        self._member = member

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.ROPEWALK_LEDGER_STATUS: self.status,
            RequestCode.ROPEWALK_LEDGER_TRANSFER: self.transfer,
            RequestCode.ROPEWALK_LEDGER_READMIT: self.readmit,
        }

    def status(self, session: Session, request: Command) -> Command:
        """Answer with the member's status."""
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(self._document(self._own())))

    def transfer(self, session: Session, request: Command) -> None:
        """Hand the lead over, and answer when that is done or has failed."""
        member, target = self._own(), request.ext.get("to", "")

        def answer(result: TransferResult) -> None:
            leader = member.ledger.standing.leader
            if result is TransferResult.SUCCESS:
                reply = request.reply(ResponseCode.SUCCESS, ext={"leader": leader or target})
            else:
                words = _WORDS[result].format(
                    me=member.me,
                    to=target or "none of the others",
                    leader=leader,
                    members=", ".join(sorted(member.addresses)),
                )
                reply = request.reply(ResponseCode.SYSTEM_ERROR, f"{result.value}: {words}")
            self._context.send(session, request, reply)

        member.transfer(target, answer)

    def readmit(self, session: Session, request: Command) -> None:
        """Let a member in that lost its log, and answer when that is on disk."""

        def answer(why: str | None) -> None:
            code = ResponseCode.SUCCESS if why is None else ResponseCode.ILLEGAL_OPERATION
            self._context.send(session, request, request.reply(code, why))

        self._own().readmit(request.ext.get("id", ""), answer)

    def _own(self) -> LedgerMember:
        if self._member is None:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                "this broker is a member of no DLedger group: it was started without enableDLegerCommitLog",
            )
        return self._member

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
        }
