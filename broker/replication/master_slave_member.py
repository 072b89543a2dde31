"""`MasterSlaveMember`: the group of a master and its slaves, as the broker sees it.

Two halves behind one face: `Replication` copies the log and waits for copies, `HaMember` keeps the role. Its tasks are
the connection to a master, the conversation about metadata (`sync`) and the repair of damaged blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from broker.context import BrokerContext
from broker.remoting.connection import Connection, ConnectionHandler
from broker.remoting.shell import Shell
from broker.replication.block_repair import BlockRepair, GroupBlocks
from broker.replication.group_member import LogCut, ReadyWords, Turns
from broker.replication.master_slave import Replication, promise_of
from broker.replication.member import HaMember
from broker.replication.slave.sync import SlaveSync
from broker.state.ha_status import HaStatus
from ha.group.roles import SLAVE
from store.log.commitlog import StoreDamaged

__all__ = ["MasterSlaveMember"]

_PAUSE_S = 0.05


class MasterSlaveMember:
    """A `GroupMember` in the roles ASYNC_MASTER, SYNC_MASTER and SLAVE."""

    def __init__(
        self, context: BrokerContext, run: str, *, follow_delays: Callable[[dict[int, int]], None]
    ) -> None:
        """`run` and `follow_delays` as `HaMember` wants them."""
        self._context = context
        self.replication = replication = Replication(context.config, context.store, context.monotonic_ms)
        self.member = HaMember(context, replication, run, follow_delays=follow_delays)
        self.limits = replication.limits
        # HOT: the methods themselves, without a call in between.
        self.begin_turn = replication.begin_turn
        self.replicate_early = replication.replicate_early
        self.apply_reports = replication.apply_reports
        self.end_turn = replication.end_turn

    # -- identity ------------------------------------------------------------------------------------

    @property
    def on_role(self) -> Callable[[], None]:
        return self.replication.on_role

    @on_role.setter
    def on_role(self, call: Callable[[], None]) -> None:
        self.replication.on_role = call

    @property
    def on_identity(self) -> Callable[[], None]:
        return self.member.on_role

    @on_identity.setter
    def on_identity(self, call: Callable[[], None]) -> None:
        self.member.on_role = call

    @property
    def on_abandoned(self) -> Callable[[], None]:
        return self.replication.on_abandoned

    @on_abandoned.setter
    def on_abandoned(self, call: Callable[[], None]) -> None:
        self.replication.on_abandoned = call

    @property
    def role(self) -> str:
        return self.member.record.role

    @property
    def is_leader(self) -> bool:
        return self.limits.is_leader

    @property
    def broker_id(self) -> int:
        return self.member.record.broker_id

    @property
    def epoch(self) -> int:
        return self.member.record.leader_epoch

    @property
    def ha_address(self) -> str:
        return self.member.ha_address

    @property
    def has_replicas(self) -> bool:
        return self.member.has_replicas

    # -- what name servers say -----------------------------------------------------------------------

    @property
    def seeks_master(self) -> bool:
        return self.member.seeks_master

    @property
    def seeks_slaves(self) -> bool:
        return self.member.seeks_slaves

    def set_master(self, ha_address: str, master_address: str) -> None:
        self.member.set_master(ha_address, master_address)

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        self.member.set_registered(slaves)

    # -- limits of a turn ----------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        return self.replication.transfer.confirmed if self.limits.is_leader else -1

    @property
    def covers_flush(self) -> bool:
        return False

    def peer_awaited(self, answers_wait: bool, sync_flush: bool) -> bool:
        """Return whether producers wait for a slave's report alone, here or at this slave's master.

        Not where a flush is waited for: a spinning loop takes the interpreter from the flushing thread.
        """
        if self.replication.reports_at_once:
            return self.member.record.policy.required_acks > 0
        return answers_wait and not sync_flush

    # -- turns ---------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.replication.tick()

    def status(self, before: HaStatus, wall_ms: int) -> HaStatus | None:
        if self.replication.has_replicas or before.slaves:
            return self.replication.status(before, wall_ms)
        return None

    # -- life ----------------------------------------------------------------------------------------

    def bound(self, ha_port: int, name_server: str) -> None:
        self.member.ha_address = f"{self._context.config.broker_ip2}:{ha_port}"
        self.member.name_server = name_server

    def accept(self, link: Connection) -> ConnectionHandler:
        return self.replication.new_session(link)

    def load(self) -> None:
        self.member.load()

    def open(self) -> None:
        self.member.open()

    async def run(self, turns: Turns, shell: Shell) -> LogCut:
        context, member, replication = self._context, self.member, self.replication
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replication.run, shell)
            nursery.start_soon(SlaveSync(context, member, replication, turns, shell).run)
            nursery.start_soon(BlockRepair(context, GroupBlocks(context, member, replication)).run)
            while member.diverged is None:  # noqa: ASYNC110 - it is found in turns, which know no trio
                await trio.sleep(_PAUSE_S)
            nursery.cancel_scope.cancel()
        return LogCut(member.diverged, member.behind)

    async def mend(self, shell: Shell, why: StoreDamaged) -> None:
        """Raise: a log that cannot be opened is for `ropewalk store repair`."""
        raise why

    async def settle(self) -> None:
        """Wait until a master that has replicas has asked them whether another one became master meanwhile."""
        if self.is_leader and self.has_replicas:
            await self.member.asked.wait()

    async def hand_over(self) -> None:
        """Do nothing: an operator orders a handover."""

    def leave(self) -> None:
        """Hang up on the master: its producers wait for this slave no longer."""
        self.replication.leave()

    def stop(self) -> None:
        self.replication.stop()
        self.member.stop()

    def ready_words(self) -> ReadyWords:
        role, flush = self.replication.role, self._context.config.flush_disk_type
        record, fence = self.member.record, self.replication.fence
        return ReadyWords(
            f"{role} + {flush}",
            f"no messages are taken: {fence}"
            if fence
            else promise_of(role, flush, self.replication.transfer.needed),
            role != SLAVE and not fence,
            f"id {record.broker_id}, epoch {record.leader_epoch}: ropewalk/role.json"
            if record.leader_epoch
            else "",
        )
