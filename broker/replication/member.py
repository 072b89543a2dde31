"""Keep this broker's role in its group: on disk before any answer tells of it, and carry out what it entails.

The decisions are `ha.group.roles`'s; here they meet files (`role_files`), the stream (`master_slave`) and the tables
(`table_sync`). A change goes in an order in which nothing is promised too early: what must stop stops at once, then
the record is saved by a helper thread, then what may begin begins, and only then whoever asked is answered. A broker
that never had a role but the one of its configuration has no file of it, and is of epoch 0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace

import msgspec
import structlog
import trio

from broker.context import BrokerContext
from broker.remoting.refused import RequestRefused
from broker.replication.master_slave import Replication
from broker.replication.role_files import RoleFiles
from broker.replication.table_sync import TableSync
from broker.transactions.records import CONSUMER_GROUP
from ha.group.divergence import Finding
from ha.group.epochs import Epochs
from ha.group.hello import MemberStatusMessage
from ha.group.metadata import SyncRequest, SyncResponse
from ha.group.roles import (
    MASTER_ID,
    SLAVE,
    QuorumPolicy,
    RoleAction,
    RoleCore,
    RoleDecision,
    RoleRecord,
    SlaveRoster,
)
from ha.group.shorter_master import longer_slaves, way_out
from ha.stream.connection import HaConnection
from ropewalk.codes import ResponseCode
from ropewalk.errors import RemoteProtocolError
from store.log.limits import NO_LIMIT
from store.offline.diverged import About

log = structlog.get_logger("broker.ha")


class HaMember:
    """Role, epochs and slave roster of one broker. The loop owns it."""

    core: RoleCore
    roster: SlaveRoster

    def __init__(
        self,
        broker: BrokerContext,
        replication: Replication,
        run: str,
        *,
        follow_delays: Callable[[dict[int, int]], None] = lambda offsets: None,
    ) -> None:
        """Make the member; `run` and `follow_delays` as `TableSync` wants them."""
        self._broker = broker
        self._replication = replication
        config = broker.config
        self.address = f"{broker.address[0]}:{broker.address[1]}"
        self.ha_address = ""
        """The address that slaves connect to; known when the port is bound."""
        self.name_server = ""
        """The address of the name server in this very process, if there is one."""
        self.tables = TableSync(broker, replication, run, follow_delays)
        self.epochs = Epochs()
        self.heard: SyncResponse | None = None
        """A slave's last answer from its master."""
        self.heard_ms = 0
        self.lost_ms = -1
        """When contact with the master was lost, by the clock that nobody sets; -1 while there is contact."""
        self.master_hint = ""
        """An address that may be a newer master's: it is asked at once."""
        self.diverged: About | None = None
        """Set when the log has to be cut before this slave can follow: the process has to see to that."""
        self.behind = False
        """Set with `diverged` when nothing of the log can be kept."""
        self.asked = trio.Event()
        """Set when all other members have been asked once who leads."""
        self._longer: dict[str, int] = {}
        """Of a master: address and log end of the slaves that have more of its epoch than itself."""
        self.on_role: Callable[[], None] = lambda: None
        self._files = RoleFiles(
            config.store_path_root_dir / "ropewalk",
            RoleRecord(config.broker_role, config.broker_id),
            broker.disk,
        )
        self._unsaved = False

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read both files, and take the role from them. Blocks."""
        config = self._broker.config
        self.epochs = self._files.load()
        record = self.on_disk
        if (record.role, record.broker_id) != (config.broker_role, config.broker_id) and record.leader_epoch:
            log.info(
                "the role is not the configuration's: it was changed while the group ran",
                role=record.role, broker_id=record.broker_id, epoch=record.leader_epoch,
                file=str(self._files.role_path),
            )  # fmt: skip
        elif not record.leader_epoch:  # nobody ever changed it: the configuration says who this is
            master = record.master if config.broker_role == SLAVE else ""
            record = msgspec.structs.replace(
                record, role=config.broker_role, broker_id=config.broker_id, master=master
            )
        version = record.policy.version
        if record.role != SLAVE and config.broker_role != SLAVE:
            policy = record.policy.with_requirement(config.broker_role, config.in_sync_replicas)
            record = msgspec.structs.replace(record, role=config.broker_role, policy=policy)
        self._unsaved = self._files.has_role and record.policy.version > version
        self.core = RoleCore(record)
        self.roster = SlaveRoster(record.policy)

    def open(self) -> None:
        """Take up the role; the store and the tables are loaded."""
        record, replication = self.core.record, self._replication
        self._files.open(self._broker.store.completions)
        replication.counts = self.counts
        replication.service.member_hosts = self._slave_hosts
        if record.role == SLAVE:
            replication.follow()
        else:
            replication.lead(record.role, 1 + self.roster.required_acks)
            if self.roster.required_acks > record.policy.required_acks:
                log.warning(
                    "as many slaves are waited for as before, until each of them knows that fewer have to answer",
                    slaves=record.policy.slaves,
                    remedy="`ropewalk admin ha forget` removes one that will not come back",
                )
            if self.core.is_fenced:
                replication.fence = self._fenced()
            elif self.has_replicas:
                # Another member may have become master while this broker was down: ask before anything is promised.
                replication.fence = "asking whether another broker became master meanwhile"
        if self._unsaved:  # the configuration promises something else than before
            self._files.save(record, None, lambda: None)
        self._broker.topics.set_state_version(record.leader_epoch, self._broker.now_ms())
        self._publish()

    def stop(self) -> None:
        """End the helper thread. Blocks until what it writes is written."""
        self._files.stop()

    @property
    def record(self) -> RoleRecord:
        return self.core.record

    @property
    def on_disk(self) -> RoleRecord:
        """Return the record that the file holds, or would hold."""
        return self._files.on_disk

    @property
    def has_replicas(self) -> bool:
        """Return whether there is, or ever was, another replica of this broker.

        A removed slave counts: it may have come back all the same, and be the master by now. A policy that has changed
        is on disk only where there was a slave.
        """
        record = self.core.record
        return (
            record.role == SLAVE
            or bool(record.policy.slaves)
            or (self._files.has_role and record.policy.version > 0)
        )

    @property
    def has_group(self) -> bool:
        """Return whether there are other replicas, or may be: other members are listened to in no other case."""
        record, config = self.core.record, self._broker.config
        return (
            self.has_replicas
            or record.promised_epoch > 0
            or bool(config.ropewalk_secret or config.ha_master_address or config.ropewalk_master_address)
        )

    # -- changes -------------------------------------------------------------------------------------

    def apply_decision(self, decision: RoleDecision, done: Callable[[], None] = lambda: None) -> None:
        """Carry out a decision in its order; call `done` when the record is on disk and the rest has begun."""
        action, record = decision.action, decision.record
        replication = self._replication
        epochs = self.epochs
        if action is RoleAction.FENCE:
            replication.fence = self._fenced()
        elif action is RoleAction.DROP and replication.client is not None:
            replication.client.drop(
                f"epoch {record.promised_epoch} was accepted: no older master is followed"
            )
        elif action is RoleAction.LEAD:
            if replication.client is not None:
                replication.client.shutdown()
            epochs = epochs.begin(record.promised_epoch, self._broker.store.whole_end)
        elif action is RoleAction.FOLLOW:
            self._stop_leading()
            # Before its master's tables come: with their version it would win the master's place at a name server.
            self.on_role()
        if action is not RoleAction.NOTHING:
            log.info(
                "role",
                act=action.value,
                role=record.role,
                epoch=record.leader_epoch,
                promised_epoch=record.promised_epoch,
                promised_to=record.promised_to,
            )

        def saved() -> None:
            if action is RoleAction.LEAD:
                self.epochs = epochs
            # The policy may be newer by now, and another epoch may have been promised: a role that was given
            # begins all the same, or a master that is released again would be none.
            now = self.core.record
            same = (now.role, now.leader_epoch, now.master) == (
                record.role,
                record.leader_epoch,
                record.master,
            )
            if same and (action is not RoleAction.RESUME or now.promised_epoch == now.leader_epoch):
                self._begin(action, now)
            self._publish()
            done()

        self._files.save(record, epochs if action is RoleAction.LEAD else None, saved)

    def _begin(self, action: RoleAction, record: RoleRecord) -> None:
        broker, replication = self._broker, self._replication
        if action in (RoleAction.LEAD, RoleAction.FOLLOW):
            self.tables.forget_progress()
            self._longer = {}
        if action is RoleAction.RESUME:
            replication.fence = self._shorter()
        elif action is RoleAction.LEAD:
            self.roster = SlaveRoster(record.policy)
            replication.fence = self._fenced() if self.core.is_fenced else None
            replication.lead(record.role, 1 + self.roster.required_acks)
            broker.delays.load(self.tables.delays_known or broker.delays.offsets())
            broker.timers.lead()
            self.heard, self.lost_ms = None, -1
        elif action is RoleAction.FOLLOW:
            if record.master and record.master != replication.master_address:
                replication.master_ha = ""  # asked of the new master itself
                self.master_hint = record.master
            if replication.client is None:
                replication.follow()
            else:
                replication.client.drop("there is a newer master")
        if action in (RoleAction.LEAD, RoleAction.FOLLOW):
            broker.topics.set_state_version(record.leader_epoch, broker.now_ms())
            broker.groups.set_state_version(record.leader_epoch, broker.now_ms())
            self.on_role()

    def _stop_leading(self) -> None:
        """Answer producers that still wait for a slave "stored, but a slave was late"; status 0 is given no more."""
        broker = self._broker
        if self._replication.client is None:
            self._replication.fence = None
            broker.acks.expire(NO_LIMIT, broker.store.log.flushed_offset, -1)
            self._replication.follow()

    def _fenced(self) -> str:
        record = self.core.record
        return (
            f"epoch {record.promised_epoch} is about to begin under another master; this one still leads epoch "
            f"{record.leader_epoch}"
        )

    def confirm_no_newer_master(self) -> None:
        """Take messages after a start: no member that answered is a newer master, or a slave that has more."""
        if not self.core.is_fenced and self.core.is_master:
            self._replication.fence = self._shorter()

    def compare_ends(self, statuses: Iterable[MemberStatusMessage]) -> None:
        """Note, as a master, which slaves have more of its epoch than itself."""
        broker = self._broker
        if broker.config.flush_disk_type == "SYNC_FLUSH":
            return  # what is not here was never acknowledged
        before, end = self._longer, broker.store.log.end_offset
        self._longer = longer_slaves(self.core.record, end, before, statuses)
        if self._longer and not before:
            log.error("this master came back without what its slaves have", reason=self._shorter())

    def _shorter(self) -> str | None:
        """Return why a master with less than a slave of its epoch takes no message; None for any other."""
        if not self._longer:
            return None
        address, end = max(self._longer.items(), key=lambda each: each[1])
        broker = self._broker
        return (
            f"the slave {address} has the log of this epoch up to {end}, and this master, which came back without its "
            f"end, up to {broker.store.log.end_offset}: acknowledged messages may be on the slave alone. "
            f"{way_out(Finding.LONGER, broker.config.broker_name, address)} makes it the master"
        )

    def adopt_policy(self, policy: QuorumPolicy, done: Callable[[], None]) -> None:
        """Have the master's policy on disk, as a slave does before it reports to it.

        Raises `RemoteProtocolError` for a policy that no group can have come to.
        """
        decision = self.core.adopt_policy(policy)
        if decision.refusal is not None:
            raise RemoteProtocolError(decision.refusal)
        self.apply_decision(decision, done)

    def adopt_master(self, address: str) -> None:
        """Keep the address of the master that this slave has joined, so that no name server gives it another one.

        A master that settings name is not kept: they may be changed.
        """
        if address not in self.known_addresses():
            self.apply_decision(self.core.adopt_master(address))

    def add_slave(self, broker_id: int, address: str, done: Callable[[], None]) -> None:
        """Add a slave to the policy, durably. Raises ValueError when there is no room for one more."""
        decision = self.core.add_slave(broker_id, address)
        self.roster.policy = decision.record.policy
        self.apply_decision(decision, done)

    def remove_slave(self, broker_id: int, done: Callable[[], None]) -> None:
        """Remove a slave from the policy, durably. Raises `RequestRefused`."""
        decision = self.core.remove_slave(broker_id)
        if decision.refusal is not None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, decision.refusal)
        self.roster.policy = decision.record.policy
        self.roster.known_versions.pop(str(broker_id), None)
        self._replication.require_acks(self.roster.required_acks)
        self.apply_decision(decision, done)

    def request_cut(self, about: About, *, behind: bool) -> None:
        """Have the process cut the log; until it opened the store again, this member's role stays as it is."""
        self.behind = behind
        self.diverged = about
        self._broker.offsets.remove_group(CONSUMER_GROUP)  # it may be of what is cut
        self.core.is_cutting = True

    def adopt_epochs(self, epochs: Epochs, done: Callable[[], None]) -> None:
        """Take over the master's list of epochs, as a slave whose log was compared with its master's."""
        if epochs == self.epochs:
            done()
            return
        self.epochs = epochs
        self._files.save(None, epochs, done)

    def counts(self, connection: HaConnection) -> bool:
        """Return whether the reports of a slave that said hello count already (`SlaveRoster`)."""
        replica = self._replication.service.replica_of(connection)
        return replica is None or self.roster.counts(replica.broker_id)

    def record_policy_version(self, broker_id: int, version: int, leader_epoch: int) -> None:
        """Record the version of the policy that a slave has on disk, given to it by the master of `leader_epoch`."""
        if not self.core.is_master or leader_epoch != self.core.record.leader_epoch:
            return  # another master's policies have versions of their own
        replication, before = self._replication, self.roster.required_acks
        decision = self.core.confirm_policy(self.roster.record_version(broker_id, version))
        if decision.record.policy is not self.roster.policy:
            self.roster.policy = decision.record.policy
            self.apply_decision(decision)
        if before != self.roster.required_acks:
            replication.require_acks(self.roster.required_acks)
        replication.recount()

    def _slave_hosts(self) -> set[str]:
        return {address.rpartition(":")[0] for address in self.core.record.policy.slaves.values()}

    def _publish(self) -> None:
        self._broker.ha_status = replace(
            self._broker.ha_status, is_master=self.core.is_master, epoch=self.core.record.promised_epoch
        )

    # -- other members ---------------------------------------------------------------------------------

    def known_addresses(self) -> frozenset[str]:
        """Return the addresses of other members by settings, by the role on disk, and by the group's policy.

        What a name server or a stranger says is no part of it.
        """
        record, config = self.core.record, self._broker.config
        found = {record.master, config.ropewalk_master_address, *record.policy.slaves.values()}
        if config.ha_master_address:
            host, _, port = config.ha_master_address.rpartition(":")
            found.add(f"{host}:{int(port) - 1}")
        return frozenset(found - {"", self.address})

    def suspect_newer_master(self, address: str) -> None:
        """Have a member asked at once that knows of a newer epoch. A stranger's address is not dialed for that."""
        if self._broker.config.ropewalk_secret or address in self.known_addresses():
            self.master_hint = address

    def note(self, text: str | None) -> None:
        """Have `/readyz` tell this remark about the group, or none any more."""
        notes = () if text is None else (text,)
        if self._broker.ha_status.notes != notes:
            self._broker.ha_status = replace(self._broker.ha_status, notes=notes)

    # -- metadata ------------------------------------------------------------------------------------

    def answer_sync(self, ask: SyncRequest) -> Generator[None, None, SyncResponse]:
        """Return, as a master and in steps, the tables that moved since a slave's last question."""
        yield from self.tables.merge_in_slices(ask.commits)
        self.record_policy_version(ask.broker_id, ask.policy_version, ask.policy_epoch)
        return (yield from self.tables.answer(ask, self.core.record.leader_epoch, self.core.record.policy))

    def apply_sync(self, answer: SyncResponse) -> Generator[None, None, None]:
        """Apply, in steps, the master's answer to a slave's question."""
        self.heard, self.heard_ms, self.lost_ms = answer, self._broker.monotonic_ms(), -1
        if self._replication.client is not None:
            self._replication.client.master_end = answer.end
        yield from self.tables.apply(answer)
        if answer.policy != self.core.record.policy:
            self.adopt_policy(answer.policy, lambda: None)

    def lost_contact(self) -> None:
        """Note that the master does not answer any more."""
        if self.lost_ms < 0:
            self.lost_ms = self._broker.monotonic_ms()

    # -- what name servers say -----------------------------------------------------------------------

    @property
    def seeks_master(self) -> bool:
        return self._replication.seeks_master

    @property
    def seeks_slaves(self) -> bool:
        return self._replication.seeks_slaves

    def set_registered(self, slaves: Mapping[str, int]) -> None:
        """Take the numbers of registered slaves of this group, by IP."""
        self._replication.set_registered(slaves)

    def set_master(self, ha_address: str, master_address: str) -> None:
        """Take the master's addresses from a name server. A slave that knows its master asks it for its HA address."""
        master = self.core.record.master
        if not master:
            self._replication.set_master(ha_address, master_address)
        elif master_address and master_address != master:
            self.master_hint = master_address


__all__ = ["MASTER_ID", "HaMember"]
