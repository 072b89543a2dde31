"""Serve codes 30001 to 30011: questions of a group's members, and of its operators, to a broker (`ha.group.hello`).

The answers about bytes of the log are made by the administrators' helper thread, with bounded questions. A promise is
on disk before it is answered. All of it is behind the door (`broker.admin.proof`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import structlog

from broker.admin.base import AdminContext, Handler
from broker.admin.proof import ProofDoor
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session, Stepwise
from broker.replication.log_view import LogPins
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from broker.replication.member_status import member_status
from ha.group.block_repair import BlockRequest, BlockResponse
from ha.group.block_repair import refusal_of as refusal_to_give
from ha.group.divergence import sums_of
from ha.group.hello import (
    PAGE_MAX,
    EpochRequest,
    Hello,
    RangesRequest,
    Sums,
    Welcome,
    decode_untrusted,
    encode,
    ranges_refusal,
    refusal_of,
)
from ha.group.metadata import SyncRequest
from ha.group.roles import RoleDecision
from ha.stream.service import Replica
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from ropewalk.format.sidecar import block_sum
from store.integrity.block_repair import NotVouched, vouched

__all__ = ["AdminHa"]

log = structlog.get_logger("broker.ha")

_T = TypeVar("_T")


class AdminHa:
    def __init__(
        self, context: AdminContext, door: ProofDoor, member: HaMember, replication: Replication
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._member = member
        self._replication = replication
        self._door = door
        self._introduced: weakref.WeakSet[Session] = weakref.WeakSet()
        """The connections on which a slave has said hello."""

    def handlers(self) -> dict[int, Handler]:
        return self._door.behind(
            {
                RequestCode.ROPEWALK_SLAVE_HELLO: self.hello,
                RequestCode.ROPEWALK_LOG_SUMS: self.sums,
                RequestCode.ROPEWALK_LOG_BYTES: self.bytes,
                RequestCode.ROPEWALK_LOG_BLOCK: self.block,
                RequestCode.ROPEWALK_SYNC: self.sync,
                RequestCode.ROPEWALK_MEMBER_STATUS: self.member_status,
                RequestCode.ROPEWALK_ACCEPT_EPOCH: self.accept,
                RequestCode.ROPEWALK_RELEASE_EPOCH: self.release,
                RequestCode.ROPEWALK_PROMOTE: self.promote,
                RequestCode.ROPEWALK_FOLLOW: self.follow,
                RequestCode.ROPEWALK_FORGET_SLAVE: self.forget_slave,
            }
        )

    # -- a slave's questions -------------------------------------------------------------------------

    def hello(self, session: Session, request: Command) -> None:
        """A slave introduces itself: judged at once, then compared, then added to the policy, and answered."""
        hello = decode_untrusted(Hello, request.body)
        broker, member = self._broker, self._member
        config, store, service = broker.config, broker.store, self._replication.service
        taken = ""
        for connection in service.connections:
            replica = service.replica_of(connection)
            if replica is not None and replica.broker_id == hello.broker_id:
                taken = replica.address
        refusal = refusal_of(
            hello,
            config.broker_cluster_name,
            config.broker_name,
            member.record,
            store.log.segment_size,
            taken,
        )
        if refusal is not None:
            if hello.promised_epoch > member.record.promised_epoch:
                member.suspect_newer_master(hello.address)
            log.warning(
                "a slave is refused", address=hello.address, broker_id=hello.broker_id, reason=refusal
            )
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, refusal)
        leader_epoch = member.record.leader_epoch
        view = LogPins(store.log, store.log.end_offset, store.damage)

        def welcome(sums: list[int | None]) -> Welcome:
            return Welcome(
                leader_epoch, view.begin, view.end, member.epochs.pairs(), sums, member.record.policy,
                config.flush_disk_type == "SYNC_FLUSH", member.ha_address,
            )  # fmt: skip

        def compared(sums: list[int | None]) -> None:
            if member.record.leader_epoch != leader_epoch or not member.core.is_master:
                self._send(
                    session, request, ResponseCode.ILLEGAL_OPERATION, "this broker is the master no longer"
                )
                return
            try:
                member.add_slave(hello.broker_id, hello.address, added_with(sums))
            except ValueError as exc:
                self._send(session, request, ResponseCode.ILLEGAL_OPERATION, str(exc))

        def added_with(sums: list[int | None]) -> Callable[[], None]:
            def added() -> None:
                self._introduced.add(session)
                if hello.socket:
                    host, _, port = hello.socket.rpartition(":")
                    if port.isascii() and port.isdigit() and len(port) <= 5:
                        service.identify((host, int(port)), Replica(hello.broker_id, hello.address))
                member.record_policy_version(hello.broker_id, hello.policy_version, hello.policy_epoch)
                answer = request.reply(ResponseCode.SUCCESS, body=encode(welcome(sums)))
                self._context.send(session, request, answer)

            return added

        self._later(session, request, view, lambda: list(sums_of(view, hello.ranges)), compared)

    def sums(self, session: Session, request: Command) -> None:
        self._check_introduced(session)
        ask = decode_untrusted(RangesRequest, request.body)
        if (why := ranges_refusal(ask.ranges)) is not None:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, why)
        log_of = self._broker.store.log
        view = LogPins(log_of, log_of.end_offset, self._broker.store.damage)

        def answer(sums: list[int | None]) -> None:
            self._context.send(session, request, request.reply(ResponseCode.SUCCESS, body=encode(Sums(sums))))

        self._later(session, request, view, lambda: list(sums_of(view, ask.ranges)), answer)

    def bytes(self, session: Session, request: Command) -> None:
        self._check_introduced(session)
        ask = decode_untrusted(RangesRequest, request.body)
        log_of = self._broker.store.log
        if len(ask.ranges) != 1 or not 0 < ask.ranges[0][1] - ask.ranges[0][0] <= PAGE_MAX:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"one range of at most {PAGE_MAX} bytes is read at a time"
            )
        start, end = ask.ranges[0]
        if not log_of.min_offset <= start < end <= log_of.end_offset:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"the log has no bytes from {start} to {end}"
            )
        view = LogPins(log_of, log_of.end_offset, self._broker.store.damage)

        def answer(data: bytes) -> None:
            self._context.send(session, request, request.reply(ResponseCode.SUCCESS, body=data))

        self._later(session, request, view, lambda: view.read(start, end - start), answer)

    def block(self, session: Session, request: Command) -> None:
        """Another member's copy of these bytes is damaged: it gets them, if this one's match their checksums."""
        self._check_introduced(session)
        ask = decode_untrusted(BlockRequest, request.body)
        broker, config = self._broker, self._broker.config
        store, member, damage = broker.store, self._member, broker.store.damage
        why = refusal_to_give(
            ask,
            config.broker_cluster_name,
            config.broker_name,
            store.log.segment_size,
            member.epochs,
            store.log.min_offset,
            min(store.log.flushed_offset, store.whole_end),
        )
        if why is None and member.diverged is not None:
            why = "this log is about to be cut, because it is not the beginning of its master's"
        segment = store.log.find(ask.start)
        if why is not None or segment is None or damage is None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, why or f"this log has no byte {ask.start}")
        view = LogPins(store.log, ask.end)
        sidecar, start = damage.frozen(segment), ask.start - segment.base_offset

        def read() -> bytes | NotVouched:
            try:
                return vouched(
                    segment, sidecar, start, start + ask.end - ask.start, ask.wanted, damage.report
                )
            except NotVouched as exc:
                return exc

        def answer(found: bytes | NotVouched) -> None:
            if isinstance(found, NotVouched):
                self._send(session, request, ResponseCode.ILLEGAL_OPERATION, str(found))
                return
            log.info("bytes for a damaged copy", member=ask.address, offset=ask.start, size=len(found))
            body = encode(BlockResponse(ask.start, block_sum(found), found))
            self._context.send(session, request, request.reply(ResponseCode.SUCCESS, body=body))

        self._later(session, request, view, read, answer)

    def sync(self, session: Session, request: Command) -> Stepwise:
        """Answer with the tables that moved; a request that is refused is so at once."""
        ask = decode_untrusted(SyncRequest, request.body)
        member = self._member
        if not member.core.is_master or self._replication.is_slave:
            # Also while a promotion is not on disk yet: a topic of the log that is in no table so far would be taken
            # for deleted, and a slave would remove its queues.
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, "this broker is a slave, and knows only what it was told"
            )
        if ask.promised_epoch > member.record.leader_epoch:
            member.suspect_newer_master(ask.address)
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, f"this broker leads epoch {member.record.leader_epoch} only"
            )
        if str(ask.broker_id) not in member.record.policy.slaves:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, f"slave {ask.broker_id} has not said hello")
        return self._answer_sync(request, ask)

    def _answer_sync(self, request: Command, ask: SyncRequest) -> Stepwise:
        member, epoch = self._member, self._member.record.leader_epoch
        answer = yield from member.answer_sync(ask)
        if not member.core.is_master or self._replication.is_slave or member.record.leader_epoch != epoch:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, "this broker leads no more")
        return request.reply(ResponseCode.SUCCESS, body=encode(answer))

    # -- a handover's questions ----------------------------------------------------------------------

    def member_status(self, session: Session, request: Command) -> Command:
        return self._member_status(request)

    def accept(self, session: Session, request: Command) -> None:
        ask = self._ask(request)
        self._apply_decision(session, request, self._member.core.accept(ask.epoch, ask.operator))

    def release(self, session: Session, request: Command) -> None:
        ask = self._ask(request)
        self._apply_decision(session, request, self._member.core.release(ask.epoch, ask.operator))

    def promote(self, session: Session, request: Command) -> None:
        ask = self._ask(request)
        member = self._member
        self._apply_decision(
            session,
            request,
            member.core.promote(ask.epoch, ask.operator, old_master=ask.master, policy=ask.policy),
        )

    def follow(self, session: Session, request: Command) -> None:
        ask = self._ask(request)
        member = self._member
        if ask.master == member.address:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, "a broker cannot be its own slave")
        self._apply_decision(
            session, request, member.core.follow(ask.epoch, ask.broker_id, ask.master, ask.policy)
        )

    def forget_slave(self, session: Session, request: Command) -> None:
        """A slave will not come back: it is not waited for, nor asked for its promise, any more.

        Only while all the others have everything: else what was acknowledged might be on the lost one alone.
        """
        ask = self._ask(request)
        broker, member = self._broker, self._member
        service, end = self._replication.service, broker.store.log.end_offset
        here = {
            replica.broker_id: connection.acknowledged
            for connection in service.counted()
            if (replica := service.replica_of(connection)) is not None
        }
        if ask.broker_id in here:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION, f"slave {ask.broker_id} is connected: stop it first"
            )
        roster = member.record.policy.slaves
        for name, address in roster.items() if str(ask.broker_id) in roster else ():
            if int(name) != ask.broker_id and here.get(int(name), -1) < end:
                raise RequestRefused(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"slave {name} at {address} does not have everything, or is not here: what was acknowledged might "
                    f"be on slave {ask.broker_id} alone",
                )
        member.remove_slave(
            ask.broker_id, lambda: self._context.send(session, request, self._member_status(request))
        )

    # -- who may ask ---------------------------------------------------------------------------------

    def _check_group(self) -> None:
        if not self._member.has_group:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                "this broker has no group: no slave has ever said hello to it, it is none itself, and neither "
                "haMasterAddress nor ropewalkSecret is set",
            )

    def _check_introduced(self, session: Session) -> None:
        """Raise `RequestRefused` unless bytes of the log may be told on this connection.

        Where there is a secret it was proven. A master that repairs its log never says hello: its address is known.
        """
        self._check_group()
        if self._broker.config.ropewalk_secret or session in self._introduced:
            return
        record, replication, config = self._member.record, self._replication, self._broker.config
        known = (
            record.master, config.ropewalk_master_address, config.ha_master_address, *record.policy.slaves.values()
        )  # fmt: skip
        hosts = {address.rpartition(":")[0] for address in known if address}
        service = replication.service  # a slave that is called by name in the policy has an IP here
        hosts.update(
            each.link.peer[0] for each in service.connections if service.replica_of(each) is not None
        )
        if session.link.peer[0] not in hosts:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "bytes of the log are for members of the group: no slave has said hello on this connection, and no "
                "member is known at its address. A ropewalkSecret lets members prove themselves",
            )

    def _ask(self, request: Command) -> EpochRequest:
        self._check_group()
        ask = decode_untrusted(EpochRequest, request.body)
        config = self._broker.config
        if (ask.cluster, ask.broker_name) != (config.broker_cluster_name, config.broker_name):
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"this broker belongs to {config.broker_name} of cluster {config.broker_cluster_name}",
            )
        return ask

    def _apply_decision(self, session: Session, request: Command, decision: RoleDecision) -> None:
        if decision.refusal is not None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, decision.refusal)
        self._member.apply_decision(
            decision, lambda: self._context.send(session, request, self._member_status(request))
        )

    def _member_status(self, request: Command) -> Command:
        return request.reply(
            ResponseCode.SUCCESS, body=encode(member_status(self._member, self._broker, self._replication))
        )

    def _later(
        self,
        session: Session,
        request: Command,
        view: LogPins,
        job: Callable[[], _T],
        done: Callable[[_T], None],
    ) -> None:
        """Read bytes of the log on the helper thread; `done` on the loop, unless the disk could not."""

        def look() -> _T | OSError:
            try:
                return job()
            except OSError as exc:
                return exc

        def bring(found: _T | OSError) -> None:
            view.release()
            if isinstance(found, OSError):
                self._send(
                    session, request, ResponseCode.SYSTEM_ERROR, f"the disk could not be read: {found}"
                )
            else:
                done(found)

        try:
            self._context.run(look, bring)
        except RequestRefused:
            view.release()
            raise

    def _send(self, session: Session, request: Command, code: int, remark: str) -> None:
        self._context.send(session, request, request.reply(code, remark))
