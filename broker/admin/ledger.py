"""Serve the codes of a DLedger group: 30040, a member's status; 30041, a transfer of the lead; 30042, readmission;
30043, a change of its members; 30044, a member that goes on alone; 30045, a snapshot; 30046, trust in a log
that is in doubt.

All of it is behind the door (`broker.admin.proof`): with `ropewalkSecret` an operator has to prove it.

The body of a status is JSON: `ha.dledger.status.LedgerStatus` and the broker that shows it. Every member answers, the
leader knows most: only it knows through which entry each of the others has the log on its disk.

A transfer is asked of the leader: `to` names the member that is to lead, none the one that lacks least. The answer
comes when that member leads, or when the leader goes on: after one election timeout at the latest.

A readmission is asked of every member but the one that lost its log (`id`), and each answers for itself.

A change is asked of the leader, which answers when it is on a majority of the disks, the old and the new. It takes one
step: `ropewalk admin dledger add` asks for two, and looks at the status in between (`tools.admin.dledger.members`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.admin.base import AdminContext, Handler
from broker.admin.proof import ProofDoor
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.replication.dledger.member import LedgerMember
from broker.settings.dledger import is_member_id, read_member
from ha.dledger.members.changes import Change, ChangeKind, ChangeRefused
from ha.raft.types import ChangeResult, TransferResult
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.headers import LedgerChangeHeader, LedgerForceHeader, LedgerTrustHeader, decode_header
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

_CHANGE_WORDS: Final = {
    ChangeResult.NOT_LEADER: "{me} does not lead; the leader it knows is {leader}",
    ChangeResult.NOT_READY: "{me} opens its term, or hands the lead over; try again",
    ChangeResult.CHANGE_IN_PROGRESS: "another change of the members is under way; try again when it is done",
    ChangeResult.NOT_CAUGHT_UP: "{id} lacks too much of the log to vote, or is not heard; see the links in "
    "`ropewalk admin dledger status`",
    ChangeResult.NO_QUORUM: "{me} does not hear a majority of the members that would vote then: start them, or remove "
    "others first",
    ChangeResult.TOO_MANY: "the group would be too large",
    ChangeResult.UNKNOWN: "{me} leads no more, and it is unknown whether the change will be made; the leader now is "
    "{leader}",
}


class AdminLedger:
    """The codes of a DLedger group."""

    def __init__(self, context: AdminContext, door: ProofDoor, member: LedgerMember | None) -> None:
        """`member` is None in a broker that is a member of no such group."""
        self._context = context
        self._door = door
        self._member = member

    def handlers(self) -> dict[int, Handler]:
        return self._door.behind(
            {
                RequestCode.ROPEWALK_LEDGER_STATUS: self.status,
                RequestCode.ROPEWALK_LEDGER_TRANSFER: self.transfer,
                RequestCode.ROPEWALK_LEDGER_READMIT: self.readmit,
                RequestCode.ROPEWALK_LEDGER_CHANGE: self.change,
                RequestCode.ROPEWALK_LEDGER_FORCE: self.force,
                RequestCode.ROPEWALK_LEDGER_SNAPSHOT: self.snapshot,
                RequestCode.ROPEWALK_LEDGER_TRUST: self.trust,
            }
        )

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
                    members=", ".join(member.ledger.members.config.members),
                )
                reply = request.reply(ResponseCode.SYSTEM_ERROR, f"{result.value}: {words}")
            if result is TransferResult.UNKNOWN_MEMBER:  # as a change of a stranger is answered
                reply = request.reply(ResponseCode.ILLEGAL_OPERATION, words)
            self._context.send(session, request, reply)

        member.transfer(target, answer)

    def readmit(self, session: Session, request: Command) -> None:
        """Let a member in that lost its log, and answer when that is on disk."""

        def answer(why: str | None) -> None:
            code = ResponseCode.SUCCESS if why is None else ResponseCode.ILLEGAL_OPERATION
            self._context.send(session, request, request.reply(code, why))

        self._own().readmit(request.ext.get("id", ""), answer)

    def change(self, session: Session, request: Command) -> None:
        """Change the members of the group, and answer when that is on a quorum or has failed."""
        member, change = self._own(), _change_in(request)

        def answer(result: ChangeResult | str) -> None:
            if isinstance(result, str):
                reply = request.reply(ResponseCode.ILLEGAL_OPERATION, result)
            elif result in (ChangeResult.SUCCESS, ChangeResult.NOTHING_TO_CHANGE):
                config = member.ledger.members.config
                ext = {"result": result.value, "voters": ",".join(config.voters)}
                reply = request.reply(ResponseCode.SUCCESS, ext=ext | {"learners": ",".join(config.learners)})
            else:
                words = _CHANGE_WORDS[result].format(
                    me=member.me, id=change.member, leader=member.ledger.standing.leader
                )
                reply = request.reply(ResponseCode.SYSTEM_ERROR, f"{result.value}: {words}")
            self._context.send(session, request, reply)

        try:
            member.change(change, answer)
        except ChangeRefused as refused:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, str(refused)) from refused

    def force(self, session: Session, request: Command) -> Command:
        """Have this member go on alone: its next election, in which it has the only vote, makes that last."""
        member, id = self._own(), decode_header(LedgerForceHeader, request.ext).id
        why = member.force() if id == member.me else f"here is {member.me}, and not {id}"
        return request.reply(ResponseCode.SUCCESS if why is None else ResponseCode.ILLEGAL_OPERATION, why)

    def trust(self, session: Session, request: Command) -> Command:
        """Have this member count its log as it is, although a start had to cut its end."""
        member, id = self._own(), decode_header(LedgerTrustHeader, request.ext).id
        why = member.trust() if id == member.me else f"here is {member.me}, and not {id}"
        return request.reply(ResponseCode.SUCCESS if why is None else ResponseCode.ILLEGAL_OPERATION, why)

    def snapshot(self, session: Session, request: Command) -> Command:
        """Have all tables logged in the next turn; every member keeps a snapshot of them, and its status says so."""
        member = self._own()
        if not member.is_leader:
            words = _WORDS[TransferResult.NOT_LEADER].format(
                me=member.me, leader=member.ledger.standing.leader
            )
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"NOT_LEADER: {words}")
        member.state.log_all()
        return request.reply(ResponseCode.SUCCESS)

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
            "waiting": len(broker.acks),
            "snapshot": member.state.snapshots.newest,
            "regionsBehind": member.regions_behind,
            "hasRegions": member.kv is not None,
        }


def _change_in(request: Command) -> Change:
    """Return the change in a request. Raises `RequestRefused`."""
    header = decode_header(LedgerChangeHeader, request.ext)
    try:
        kind = ChangeKind(header.change)
        is_member_id(header.id)
        if kind is ChangeKind.LEARN:
            read_member(f"{header.id}-{header.address}")
    except ValueError as exc:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"no change of a DLedger group: {exc}") from exc
    return Change(kind, header.id, header.address, header.replacing)
