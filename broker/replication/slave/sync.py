"""`SlaveSync`: a slave's conversation with its master, ten times a second over the remoting port.

It fetches what moved at the master, and brings what consumers committed here. None of it decides: roles are
`ha.group.roles`'s, tables are taken over by `broker.replication.table_sync`.

A master that answers 3 to the challenge is RocketMQ's: `rocketmq` fetches the tables of that one.
"""

from __future__ import annotations

import trio

from broker.context import BrokerContext
from broker.remoting.shell import Shell
from broker.replication.group_member import Turns
from broker.replication.master_slave import Replication
from broker.replication.member import HaMember
from broker.replication.slave.hello import SlaveHello
from broker.replication.slave.master_search import MasterSearch
from broker.replication.slave.peer import CALL_S, Peer, reading_answers
from broker.replication.slave.rocketmq import RocketMQTables
from broker.replication.slave.slave_broker import SlaveBroker
from ha.group.hello import decode_untrusted
from ha.group.metadata import SyncRequest, SyncResponse
from ha.group.refusals import Conversation
from ropewalk.client.aio.connection import open_connection
from ropewalk.codes import RequestCode
from ropewalk.errors import RopewalkError

__all__ = ["SlaveSync"]

SYNC_S = 0.1
RETRY_S = 0.4
TIMER_COUNTS_S = 5.0
_PAUSE_S = 0.05
_TROUBLE = "no metadata from the master"


class SlaveSync:
    """The tasks of one broker."""

    def __init__(
        self, context: BrokerContext, member: HaMember, replication: Replication, turns: Turns, shell: Shell
    ) -> None:
        self._broker = SlaveBroker(context, member, replication, turns, shell)
        self._context = context
        self._member = member
        self._sent = 0
        """Of the own journal of commits, up to where this master was told."""
        self._search = MasterSearch(self._broker)
        self._rocketmq = RocketMQTables(self._broker, self._synced)
        self.hello = SlaveHello(self._broker)
        replication.before_report = self.hello.before_report
        replication.service.secret_required = bool(self._broker.secret)

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_synced)
            nursery.start_soon(self._search.run)

    async def _keep_synced(self) -> None:
        while True:
            address = self._broker.master_address if not self._member.core.is_master else ""
            if not address:
                await trio.sleep(_PAUSE_S)
                continue
            try:
                with reading_answers(address):
                    async with open_connection(address, timeout=CALL_S) as link:
                        peer = await Peer.of(link, self._broker.trust)
                        if peer is None:
                            self.hello.refuse_rocketmq(address)
                            await self._rocketmq.sync(link, address)
                        else:
                            await self._sync(peer, address)
            except (RopewalkError, OSError) as exc:
                self._broker.note_contact(Conversation.METADATA, exc)
                with self._broker.turn():
                    self._member.lost_contact()
                self._broker.report_trouble(_TROUBLE, str(exc))
                await trio.sleep(RETRY_S)
            await trio.sleep(SYNC_S)

    def _synced(self) -> None:
        self._broker.note_contact(Conversation.METADATA, None)
        self._broker.report_trouble(_TROUBLE, None)

    async def _sync(self, peer: Peer, address: str) -> None:
        member, broker, context = self._member, self._broker, self._context
        self._sent = 0
        wanted = False
        counted = -TIMER_COUNTS_S
        while broker.follows(address):
            counts = None
            if context.timers.enabled and trio.current_time() - counted >= TIMER_COUNTS_S:
                counted, counts = trio.current_time(), await peer.timer_counts()
            topics, groups = member.tables.adopted_topics, member.tables.adopted_groups
            commits, sequence = context.offsets.journal.since(self._sent)
            record = member.record
            ask = SyncRequest(
                broker_id=record.broker_id,
                address=member.address,
                promised_epoch=record.promised_epoch,
                seen=member.tables.seen,
                end=context.store.whole_end,
                flushed=context.store.log.flushed_offset,
                policy_version=member.on_disk.policy.version,
                policy_epoch=member.on_disk.leader_epoch,
                commits=[
                    (topic, group, queue_id, offset, time_ms)
                    for (topic, group, queue_id), time_ms in commits
                    if (offset := context.offsets.query(group, topic, queue_id)) is not None
                ],
                topics_version=(topics.state_version, topics.counter, topics.timestamp),
                groups_version=(groups.state_version, groups.counter, groups.timestamp),
                topics=context.topics.to_wrapper() if wanted else None,
                groups=context.groups.to_wrapper() if wanted else None,
                takes_changes=member.tables.takes_changes,
            )
            answer = decode_untrusted(SyncResponse, await peer.ask(RequestCode.ROPEWALK_SYNC, ask))
            if not broker.follows(address) or answer.leader_epoch < member.record.leader_epoch:
                return
            self._sent, wanted = sequence, answer.wants_tables
            if not await broker.in_turns(member.apply_sync(answer), address):
                return
            with broker.turn():
                if counts is not None:
                    context.timers.metrics.adopt(counts)
            self._synced()
            if not wanted and not answer.more and len(commits) == len(ask.commits):
                await trio.sleep(SYNC_S)
