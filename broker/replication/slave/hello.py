"""`SlaveHello`: with the HA connection open, compare the logs; only a log that continues the master's goes on.

    slave   --ROPEWALK_SLAVE_HELLO-->   its log, and the sums of its end
    slave   <--Welcome--                its master's log, epochs, and sums
    slave   --ROPEWALK_LOG_SUMS, ROPEWALK_LOG_BYTES-->   until it knows where the logs part

The comparison is `ha.group.divergence`'s. A log with a part of its own is cut by the process, which closes the store.
"""

from __future__ import annotations

from typing import Any

import structlog
import trio

from broker.remoting.connection import Connection
from broker.replication.log_view import LogPins
from broker.replication.slave.peer import CALL_S, NotSame, Peer, reading_answers
from broker.replication.slave.slave_broker import SlaveBroker
from ha.group.divergence import Bytes, Compared, Extent, Finding, LogQuery, compare, sums_of, tail
from ha.group.epochs import Epochs
from ha.group.hello import Hello, RangesRequest, Sums, Welcome, decode_untrusted
from ha.group.refusals import Conversation
from ha.group.shorter_master import may_be_acknowledged, way_out
from ropewalk.client.aio.connection import open_connection
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError
from store.offline.diverged import About

__all__ = ["COMPARE_S", "SlaveHello"]

log = structlog.get_logger("broker.ha")

COMPARE_S = 30.0


class SlaveHello:
    """The hello of one broker, for each HA connection anew."""

    def __init__(self, broker: SlaveBroker) -> None:
        self._broker = broker
        self._flushed_first = True
        """Whether the master that was followed last acknowledged nothing that it had not flushed."""
        self._told = ""
        """Why the log is kept although the master's is shorter, as it was logged."""

    async def before_report(self, connection: Connection) -> None:
        """Say hello about this connection, and compare the logs. Raises OSError where the slave must not go on."""
        try:
            await self._say_hello(connection)
        except (RopewalkError, OSError) as exc:
            self._broker.note_contact(Conversation.HELLO, exc)
            raise NotSame(str(exc)) from exc
        self._broker.note_contact(Conversation.HELLO, None)

    async def _say_hello(self, connection: Connection) -> None:
        address = self._broker.master_address
        with reading_answers(address):
            async with open_connection(address, timeout=CALL_S) as link:
                peer = await Peer.of(link, self._broker.trust)
                if peer is None:
                    self.refuse_rocketmq(address)
                    if not self._broker.context.store.log.segments:
                        log.info(
                            "a RocketMQ master gives an empty slave its newest segment only", master=address
                        )
                    return
                await self._hello(peer, address, connection)

    def refuse_rocketmq(self, address: str) -> None:
        """Raise `NotSame` where this slave follows no RocketMQ broker. With a secret, `Peer.of` has refused it."""
        if epoch := self._broker.member.record.promised_epoch:
            raise NotSame(
                f"{address} is a RocketMQ broker, which knows of no epochs: epoch {epoch} was accepted here"
            )

    async def _hello(self, peer: Peer, address: str, connection: Connection) -> None:
        broker, member = self._broker, self._broker.member
        config, store = broker.context.config, broker.context.store
        record = member.record
        view = LogPins(store.log, store.whole_end if store.log.segments else 0, store.damage)
        try:
            ranges = tail(view.begin, view.end)
            sums = await trio.to_thread.run_sync(sums_of, view, ranges)
            host, port = connection.local
            hello = Hello(
                cluster=config.broker_cluster_name,
                broker_name=config.broker_name,
                broker_id=record.broker_id,
                address=member.address,
                socket=f"{host}:{port}",
                promised_epoch=record.promised_epoch,
                begin=view.begin,
                end=view.end,
                segment_size=store.log.segment_size,
                epochs=member.epochs.pairs(),
                ranges=list(ranges),
                sums=list(sums),
                policy_version=member.on_disk.policy.version,
                policy_epoch=member.on_disk.leader_epoch,
            )
            body = await peer.ask(RequestCode.ROPEWALK_SLAVE_HELLO, hello, COMPARE_S)
            welcome = decode_untrusted(Welcome, body)
            if not member.core.listens_to(welcome.leader_epoch):
                raise NotSame(
                    f"{address} leads epoch {welcome.leader_epoch}, and {member.record.promised_epoch} is accepted here"
                )
            self._check_stream(address, welcome)
            if welcome.leader_epoch > member.record.leader_epoch:
                if not broker.may_lead(peer):
                    raise NotSame(_unbelieved(address, f"leads epoch {welcome.leader_epoch}", broker.secret))
                await broker.become_slave(welcome.leader_epoch, address, welcome.policy)
                raise NotSame(f"epoch {welcome.leader_epoch} has begun: connecting anew")
            epochs = Epochs.of(welcome.epochs, welcome.leader_epoch)
            mine = Extent(view.begin, view.end)
            theirs = Extent(welcome.begin, welcome.end)
            parted = member.epochs.agree_up_to(mine.end, epochs, theirs.end)
            kept = may_be_acknowledged(
                member.epochs,
                mine.end,
                welcome.leader_epoch,
                member.record.policy,
                flushes_first=welcome.flushes_first and self._flushed_first,
            )
            if tuple(welcome.sums) == sums and None not in sums:
                found = Compared(Finding.SAME, view.end)
            else:
                found = await self._compare(peer, view, mine, theirs)
        except ValueError as exc:
            raise NotSame(f"{address} says what makes no sense: {exc}") from exc
        finally:
            view.release()
        self._check_followed(address, welcome.leader_epoch)
        if kept:
            self._refuse_to_cut(found, mine, address)
        if found.finding not in (Finding.SAME, Finding.STRANGERS) and not broker.may_lead(peer):
            raise NotSame(
                _unbelieved(address, "has another log, for which this one would be cut", broker.secret)
            )
        self._judge(found, mine, theirs, address, welcome.leader_epoch, parted)
        self._flushed_first = welcome.flushes_first
        await broker.saved(lambda done: member.adopt_epochs(epochs, done))
        self._check_followed(address, welcome.leader_epoch)
        member.adopt_master(address)
        await broker.saved(lambda done: member.adopt_policy(welcome.policy, done))
        member.tables.forget_progress()

    def _check_stream(self, address: str, welcome: Welcome) -> None:
        """Reject a stream from elsewhere than this master serves its log at. Raises `NotSame`.

        A name server names both addresses, and may have named a member's beside a stranger's.
        """
        broker = self._broker
        replication = broker.replication
        if (
            welcome.ha_address
            and welcome.ha_address != replication.master_ha
            and not broker.context.config.ha_master_address
        ):
            with broker.turn():
                replication.set_master(welcome.ha_address, address)
            raise NotSame(f"{address} serves its log at {welcome.ha_address}: connecting anew")

    def _check_followed(self, address: str, epoch: int) -> None:
        """Reject what a master said that was overtaken meanwhile. Raises `NotSame`.

        A member that was promoted while it compared its log has to keep what it was promoted for.
        """
        core = self._broker.member.core
        if not core.listens_to(epoch) or core.record.leader_epoch != epoch:
            raise NotSame(
                f"{address} leads epoch {epoch}, and meanwhile {core.record.promised_epoch} was accepted here"
            )

    async def _compare(self, peer: Peer, view: LogPins, mine: Extent, theirs: Extent) -> Compared:
        """Ask the master what the search wants to know; the own log is read by a thread."""
        search = compare(view, mine, theirs)
        answer: Any = None

        def step() -> LogQuery | Compared:
            try:
                return search.send(answer)
            except StopIteration as end:
                found: Compared = end.value
                return found

        while True:
            asked = await trio.to_thread.run_sync(step)
            if isinstance(asked, Compared):
                return asked
            if isinstance(asked, Bytes):
                question = RangesRequest([(asked.start, asked.end)])
                answer = await peer.ask(RequestCode.ROPEWALK_LOG_BYTES, question, COMPARE_S)
            else:
                question = RangesRequest(list(asked.ranges))
                answer = decode_untrusted(
                    Sums, await peer.ask(RequestCode.ROPEWALK_LOG_SUMS, question, COMPARE_S)
                ).sums

    def _refuse_to_cut(self, found: Compared, mine: Extent, address: str) -> None:
        """Raise `NotSame` where the master came back without bytes that it may have acknowledged."""
        if found.finding not in (Finding.LONGER, Finding.DIVERGED):
            return
        broker = self._broker
        command = way_out(found.finding, broker.context.config.broker_name, broker.member.address)
        why = (
            f"the master came back without the {mine.end - found.common} bytes from {found.common} on, which were "
            f"confirmed to it from here: acknowledged messages may be among them, and nothing is cut. {command} makes "
            "this slave the master; to give them up, move this slave's store away"
        )
        if why != self._told:
            self._told = why
            log.error(
                "this slave does not follow a master that came back shorter", master=address, reason=why
            )
        raise NotSame(why)

    def _judge(
        self, found: Compared, mine: Extent, theirs: Extent, address: str, epoch: int, parted: int
    ) -> None:
        """Go on, or say why not; a log that has to be cut is left to the process."""
        if found.finding is Finding.SAME:
            return
        here, there = f"{mine.begin} to {mine.end}", f"{theirs.begin} to {theirs.end}"
        if found.finding is Finding.STRANGERS:
            raise NotSame(
                f"the log here ({here}) and that of {address} ({there}) have no record in common. Nothing was "
                "changed: if the master's is the right one, move this slave's store away, and it starts with a copy"
            )
        begin = found.common
        why = f"{mine.end - begin} bytes that {address} does not have, from {begin} on"
        if found.finding is Finding.BEHIND:
            begin, why = (
                mine.begin,
                f"the log ends at {mine.end}, and that of {address} begins at {theirs.begin}",
            )
        log.warning(
            "this log is not the beginning of its master's",
            finding=found.finding.value,
            why=why,
            writers_part_at=parted,
        )
        about = About(why, begin, mine.end, self._broker.context.now_ms(), address, epoch)
        self._broker.member.request_cut(about, behind=found.finding is Finding.BEHIND)
        raise NotSame(f"the log has to be cut first: {why}")


def _unbelieved(address: str, what: str, secret: str) -> str:
    """Return why a master is not followed that is not believed, and what to do about it."""
    return f"{address} {what}, and is not followed: " + (
        "it does not prove its answers, because it is of an older release. Upgrade it first"
        if secret
        else "only a name server tells of it, which believes everybody. If it is the master, set "
        f"ropewalkMasterAddress={address} here, or give all members a ropewalkSecret"
    )
