"""Replicate in one of three roles: join `ha.stream` to this broker's log and its turns.

    ASYNC_MASTER   sends its log to whoever follows, and waits for nobody
    SYNC_MASTER    acknowledges what `inSyncReplicas` machines have, itself among them
    SLAVE          takes its master's bytes and nothing else; it serves reads

The decisions are made in `ha`; here they meet the broker's turns. At the beginning of a turn it is known whether
there are slaves to wait for; at its end everything that was appended is one wait, and leaves for the slaves before
any producer's answer does. A slave's connection is dialled by the one task of this module and served by the epoll of
all others. Roles change while the broker runs, by `lead` and `follow`; who may ask for that is not decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog
import trio

from broker.remoting.connection import Connection
from broker.remoting.shell import Shell
from broker.settings.config import BrokerConfig
from broker.state.ha_status import GroupLimits, HaStatus, MasterLink, SlaveLink
from ha.group.refusals import Conversation, Refusals
from ha.group.roles import ASYNC_MASTER, SLAVE, SYNC_MASTER
from ha.stream.client import ClientState, HaClient, Stream
from ha.stream.connection import HaConnection, HaRules
from ha.stream.group_transfer import GroupTransfer
from ha.stream.service import HaService
from ha.stream.source import LogSource
from ropewalk.client.core.addresses import parse_address
from ropewalk.codes import ResponseCode
from store.log.limits import NO_LIMIT
from store.message_store import MessageStore

log = structlog.get_logger("broker.replication")

_CONNECT_TIMEOUT_S = 5.0
_PAUSE_S = 0.05
_TOLD_MAX = 100

BeforeReport = Callable[[Connection], Awaitable[None]]
"""Called with a fresh connection to the master before anything is said on it; raises OSError to give it up."""


def promise_of(role: str, flush: str, slaves: int) -> str:
    """Describe the promise of an acknowledgement; of a slave, that there are none."""
    if role == SLAVE:
        return "a slave: it takes no messages"
    here = "fsynced on this machine" if flush == "SYNC_FLUSH" else "in this machine's page cache"
    if role == SYNC_MASTER and slaves:
        there = f"{slaves} slave's" if slaves == 1 else f"{slaves} slaves'"
        return f"{here} and in {there} page cache (fsynced there with ackAfterFlush): survives the loss of a machine"
    return here if flush == "SYNC_FLUSH" else f"{here}: survives kill -9, not power loss"


class Replication:
    def __init__(self, config: BrokerConfig, store: MessageStore, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the clock that nobody sets."""
        self.role = config.broker_role
        self.store = store
        self.limits = GroupLimits(is_leader=self.role != SLAVE, patience_ms=config.slave_timeout)
        self.fence: str | None = None
        """Why a master must not take messages for the moment; whoever sets it clears it."""
        self.master_ha = ""
        """`host:port` to follow; empty while nobody knows."""
        self.master_address = ""
        """The master's remoting address, if the name server told."""
        self.before_report: BeforeReport | None = None
        self.refusals = Refusals()
        """The refusals between this slave and its master; whoever talks to the master notes them."""
        self.on_role: Callable[[], None] = lambda: None
        """Called when the role has changed."""
        self.counts: Callable[[HaConnection], bool] = lambda connection: True
        """Returns whether the group's policy lets a slave's reports count already."""
        self.source = LogSource(store.log, store.completions, config.warm_window_bytes)
        self.rules = HaRules(
            heartbeat_ms=config.ha_send_heartbeat_interval,
            housekeeping_ms=config.ha_housekeeping_interval,
            batch=config.ha_transfer_batch_size,
            gap_max=config.ha_max_gap_not_in_sync,
            bytes_per_second=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else 0,
            from_last_file=config.ha_sync_from_last_file,
        )
        self.service = HaService(self.source, self.rules, now_ms, self._reported)
        self.service.on_leave = self._count_last_report
        self.transfer = GroupTransfer(0, config.slave_timeout, 0)
        self.client: HaClient | None = None
        self._in_sync_replicas = config.in_sync_replicas
        self._min_in_sync = config.min_in_sync_replicas
        self._slave_timeout = config.slave_timeout
        self._static_master = config.ha_master_address
        self._ack_after_flush = config.ack_after_flush
        self._slave_reads = config.slave_read_enable
        self._now_ms = now_ms
        self._judged_by: tuple[bool, str] | None = None
        """The link and the master's address by which a slave's limits were judged; None while this is no slave."""
        self._dirty = False
        """Whether slaves, or what they have, may be others than at the last count."""
        self._live = 0
        """Slaves whose reports count, as of the last count."""
        self.on_abandoned: Callable[[], None] = lambda: None
        """Called when producers wait for more slaves than there are."""

    @property
    def reports_at_once(self) -> bool:
        """Return whether this slave tells its master of bytes as soon as it has appended them."""
        return self.client is not None and self.client.link is not None and not self._ack_after_flush

    # -- roles ---------------------------------------------------------------------------------------

    def open(self) -> None:
        """The store is open: take up the role that the configuration says."""
        if self.role == SLAVE:
            self.follow()
        else:
            self.lead(self.role)

    @property
    def seeks_master(self) -> bool:
        return self.role == SLAVE and not self.master_ha

    @property
    def seeks_slaves(self) -> bool:
        """Return whether registered slaves matter: to a SYNC_MASTER always, to others while they have slaves."""
        return self.role == SYNC_MASTER or (self.role != SLAVE and bool(self.service.connections))

    @property
    def is_slave(self) -> bool:
        return self.role == SLAVE

    def lead(self, role: str, in_sync_replicas: int | None = None) -> None:
        """Be a master from now on. A slave keeps what it has, up to its last whole record.

        `in_sync_replicas` is how many copies are waited for, whatever the role: a group that was a SYNC_MASTER's waits
        until its slaves have heard that it is none any more.
        """
        assert role in (ASYNC_MASTER, SYNC_MASTER)
        self.refusals.clear()
        if self.client is not None:
            self.client.shutdown()
            self.client = None
            self.store.lead()
        self.role = role
        if in_sync_replicas is None:
            in_sync_replicas = self._in_sync_replicas if role == SYNC_MASTER else 1
        needed = in_sync_replicas - 1
        self.limits.is_leader, self.limits.waits = True, needed > 0
        self._dirty = True
        self.transfer = GroupTransfer(needed, self._slave_timeout, self.store.log.end_offset)
        self.service.begin()
        self.store.limit_readable(self.transfer.decided if self.limits.waits else NO_LIMIT)
        self._judge()
        self.on_role()

    def follow(self) -> None:
        """Be a slave from now on: of whom, `learn` and the configuration tell."""
        self.service.end()
        self.refusals.clear()
        self.role = SLAVE
        self.limits.is_leader = self.limits.waits = False
        self.transfer = GroupTransfer(0, self._slave_timeout, 0)
        if self.client is None:
            follower = self.store.follow()
            self.client = HaClient(
                follower,
                self.rules,
                lambda: self.store.log.flushed_offset,
                self._now_ms,
                ack_after_flush=self._ack_after_flush,
            )
        self.store.limit_readable(NO_LIMIT)
        if self._static_master:
            self.set_master(self._static_master, self.master_address)
        self._judge()
        self.on_role()

    def set_master(self, ha_address: str, master_address: str) -> None:
        """Take the master's addresses. Another one than before is followed at once."""
        if master_address:
            self.master_address = master_address
        if self._static_master:
            ha_address = self._static_master
        if not ha_address or ha_address == self.master_ha:
            return
        try:
            parse_address(ha_address)
        except ValueError:  # whoever told it says anything
            log.warning("this is no address of a master", ha=ha_address[:_TOLD_MAX])
            return
        log.info("the master is at", ha=ha_address, address=master_address)
        self.master_ha = ha_address
        if self.client is not None:
            self.client.drop("the master is elsewhere now")

    # -- as a master ---------------------------------------------------------------------------------

    def new_session(self, link: Connection) -> HaConnection:
        """A peer on the HA port."""
        link.stall_exempt = True  # how long a slave may be silent is for replication to say
        link.go_first()  # producers wait for what it reports, and have more to send
        return self.service.accept(link)

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Take the numbers of this group's slaves at the name servers, by IP."""
        self.service.set_registered(slaves)

    def _reported(self) -> None:
        self._dirty = True

    def require_acks(self, acks: int) -> None:
        """Wait for so many slaves from now on."""
        self._dirty = True
        if (acks > 0) == self.limits.waits:
            self.transfer.needed = acks
            return
        self.limits.waits = acks > 0
        self.transfer = GroupTransfer(acks, self._slave_timeout, self.store.log.end_offset)
        self.store.limit_readable(self.transfer.decided if self.limits.waits else NO_LIMIT)
        self._judge()
        self.on_role()

    def recount(self) -> None:
        """Count reports anew, because other slaves may count."""
        self._dirty = True

    def _judge(self) -> None:
        """Judge whether there are slaves to wait for, and whether messages are taken. HOT: mostly once a turn."""
        if self.role == SLAVE:
            self._judge_slave()
            return
        limits = self.limits
        limits.refused, limits.available, limits.unread, limits.has_master = None, True, None, False
        self._judged_by = None
        if self.fence is not None:
            limits.refused = ResponseCode.SERVICE_NOT_AVAILABLE, self.fence
        elif limits.waits or (self.role == SYNC_MASTER and self._min_in_sync > 1):
            copies = 1 + sum([self.counts(slave) for slave in self.service.in_sync()])
            limits.available = copies > self.transfer.needed
            if self.role == SYNC_MASTER and copies < self._min_in_sync:
                limits.refused = (
                    ResponseCode.SYSTEM_ERROR,
                    f"[IN_SYNC_REPLICAS_NOT_ENOUGH]{copies} replicas are in sync, minInSyncReplicas is "
                    f"{self._min_in_sync}: nothing was stored",
                )

    def _judge_slave(self) -> None:
        limits, client = self.limits, self.client
        has_master = client is not None and client.link is not None
        master = self.master_address or self.master_ha
        if (has_master, master) == self._judged_by:
            return
        self._judged_by = has_master, master
        limits.available, limits.has_master = True, has_master
        limits.unread = (
            "[REJECTREQUEST]this broker is a slave whose master is there (slaveReadEnable): consumers are served by "
            f"{master}"
            if has_master and not self._slave_reads
            else None
        )
        limits.refused = (
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]this broker is a slave and takes no messages; its master is {master or 'not known yet'}",
        )

    @property
    def has_replicas(self) -> bool:
        """Return whether there is any replication to report."""
        return self.role != ASYNC_MASTER or bool(self.service.connections) or self.fence is not None

    def status(self, before: HaStatus, wall_ms: int) -> HaStatus:
        """Return the status of replication; `wall_ms` is the wall clock's time."""
        if self.client is not None:
            return replace(
                before, is_master=False, slaves=(), fence=None, quorum_missing=None, refused=self.refusal(),
                **self._as_slave(wall_ms),
            )  # fmt: skip
        end, in_sync = self.source.end, self.service.in_sync()
        missing = None
        if self.limits.waits and len(in_sync) < self.transfer.needed:
            missing = (
                f"{len(in_sync)} of the {self.transfer.needed} slaves that an answer waits for are in sync"
            )
        slaves = [
            SlaveLink(
                f"{slave.link.peer[0]}:{slave.link.peer[1]}",
                max(slave.acknowledged, 0),
                slave.is_in_sync(end),
                slave.rate,
                max(slave.next_offset, 0),
            )
            for slave in self.service.connections
        ]
        return replace(
            before,
            is_master=True,
            slaves=tuple(slaves),
            master=None,
            lag_bytes=0,
            fence=self.fence,
            quorum_missing=missing,
            refused=None,
        )

    def refusal(self) -> str | None:
        """Return in words why this slave and its master do not go on with each other; None while they do."""
        client = self.client
        if client is None:
            return None
        why = client.why if client.state is ClientState.ERROR else self.refusals.lasting(self._now_ms())
        return f"this slave does not follow its master: {why}" if why else None

    def _as_slave(self, wall_ms: int) -> dict[str, Any]:
        client = self.client
        assert client is not None
        link = None
        if client.link is not None:
            apart = wall_ms - self._now_ms()
            link = MasterLink(self.master_ha, client.rate, client.read_ms + apart, client.written_ms + apart)
        return {"master": link, "lag_bytes": client.behind}

    # -- turns ---------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        if (
            self.limits.waits
            or self.role != ASYNC_MASTER
            or self.fence is not None
            or self.limits.refused is not None
        ):
            self._judge()

    def end_turn(self) -> None:
        """Send appended bytes to the slaves and begin to wait for them; report received bytes to the master."""
        client = self.client
        if client is not None:
            if self._ack_after_flush and client.follower.boundary > self.store.log.flushed_offset:
                self.store.request_flush()
            client.turn_ended()
            return
        if self.limits.waits:
            transfer = self.transfer
            self._count_reports()
            if (end := self.store.log.end_offset) > transfer.noted:
                transfer.appended(end, self._now_ms(), available=self.limits.available)
            if self._live < transfer.needed and transfer.waits:
                self._abandon()
            # Else what may be seen is shown as the turn ends.
            if transfer.decided != self.store.readable_limit:
                self.store.limit_readable(transfer.decided)
        if self.service.connections:
            self.service.advance()

    def apply_reports(self) -> None:
        """Within a turn: what slaves have reported counts from now on, and consumers see as much. HOT."""
        if self.limits.waits and self.client is None:
            self._count_reports()
            if self.transfer.decided != self.store.readable_limit:
                self.store.limit_readable(self.transfer.decided)

    def _count_last_report(self) -> None:
        """Count what a slave reported in the turn in which it leaves: its producers are answered for good."""
        if self.limits.waits and self.client is None:
            self._count_reports()

    def _count_reports(self) -> None:
        if self._dirty:
            self._dirty = False
            acknowledged = [slave.acknowledged for slave in self.service.counted() if self.counts(slave)]
            self._live = len(acknowledged)
            self.transfer.reported(acknowledged)

    def _abandon(self) -> None:
        """Wait no longer: the connection of a slave has ended, and too few are left to report what waits.

        One that hangs up has stopped or was killed, as a rule. What is sent next is answered "no slave" at once; so is
        what waits, or its producers would sit through `slaveTimeout` in every planned stop of a slave.
        """
        log.warning(
            "producers are answered without a slave",
            slaves=self._live,
            needed=self.transfer.needed,
            turns=self.transfer.waits,
        )
        self.transfer.abandon()
        self.on_abandoned()

    def replicate_early(self) -> None:
        """Within a turn: slaves that are waited for get what there is, and work on it while this turn goes on."""
        if self.limits.waits:
            self.service.replicate_early()

    def tick(self) -> None:
        """The work of time, several times a second, inside a turn."""
        self.service.tick()
        if self.client is not None:
            self.client.tick()
            while self.client.follower.findings:
                log.warning("following", finding=self.client.follower.findings.pop(0))
        while self.source.findings:
            log.error("replication", finding=self.source.findings.pop(0))
        self.transfer.expire(self._now_ms())

    def leave(self) -> None:
        """Hang up on the master for good, before this broker stops: it waits for this slave no longer."""
        if self.client is not None:
            self.client.shutdown("this broker is stopping")

    def stop(self) -> None:
        """Hang up, and end the helper thread. Blocks for a moment."""
        if self.client is not None:
            self.client.shutdown()
        self.service.end()
        self.source.stop()

    # -- as a slave ----------------------------------------------------------------------------------

    async def run(self, shell: Shell) -> None:
        """Connect to the master whenever there is none; until cancelled."""
        while True:
            client, address = self.client, self.master_ha
            if (
                client is None
                or not address
                or client.link is not None
                or client.state is ClientState.SHUTDOWN
            ):
                await trio.sleep(_PAUSE_S)
            elif client.wait_ms:
                await trio.sleep(min(client.wait_ms / 1000, _PAUSE_S))
            else:
                await self._connect(shell, client, address)

    async def _connect(self, shell: Shell, client: HaClient, address: str) -> None:
        stream = Stream(client)
        try:
            host, port = parse_address(address)
            connection = await shell.dial(host, port, lambda link: stream, _CONNECT_TIMEOUT_S)
        except (OSError, ValueError) as exc:  # ValueError: a name that is none, of a name server's choice
            client.failed(f"{address}: {getattr(exc, 'strerror', None) or exc}")
            self.refusals.over(Conversation.HELLO)
            return
        if client is not self.client or address != self.master_ha:
            connection.close()  # the world changed meanwhile
            shell.flush()
            return
        connection.stall_exempt = True
        connection.raw_receiver = stream.receive
        stream.link = connection
        client.opened(connection)
        try:
            if self.before_report is not None:
                await self.before_report(connection)
            if client.link is connection:
                client.begin()
        except OSError as exc:
            if client.link is connection:
                connection.close()
                client.closed_for(f"{address}: {exc}")
        shell.flush()
