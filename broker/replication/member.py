"""Keep this broker's role in its group: on disk before any answer tells of it, and carry out what it entails.

    <root>/ropewalk/role.json     role, brokerId and epochs, promises and to which operator, the group's quorum policy
    <root>/ropewalk/epochs.json   the epochs of the log's parts

The decisions are `ha.group.roles`'s; here they meet files, the stream (`replication`) and the tables. A change goes in
an order in which nothing is promised too early: what must stop stops at once, then the record is saved by a helper
thread, then what may begin begins, and only then whoever asked is answered. A broker that never had a role but the one
of its configuration has neither file, and is of epoch 0.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
import trio

from broker.context import BrokerContext
from broker.remoting.refused import RequestRefused
from broker.replication.master_slave import Replication
from broker.state.data_version import DataVersion
from broker.state.json_file import StoreConfigDamaged
from broker.transactions.records import CONSUMER_GROUP, HALF_QUEUE
from ha.group.epochs import Epochs
from ha.group.hello import MemberStatusMessage, SlaveView
from ha.group.metadata import Seen, SyncRequest, SyncResponse
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
from ha.stream.client import ClientState
from ha.stream.connection import HaConnection
from ropewalk.codes import ResponseCode
from store.io.workers import Worker
from store.log.limits import NO_LIMIT
from store.offline.diverged import About
from store.timer.progress import Progress

log = structlog.get_logger("broker.ha")

_DELAYS_WAITING_MAX = 256
TABLES_MS = 800
"""A table that is large travels no more often: to write it out costs the loop a tenth of a second."""
_LARGE = 1_000
_NO_ROOM = errno.ENOSPC, errno.EDQUOT
_ROOM_AGAIN_S = 0.5
"""When it is looked again whether a full disk has room."""


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
        """Make the member; `follow_delays` has a slave keep how far its master has delivered delayed messages.

        `run` names this process to slaves: the generations of another process's tables mean nothing.
        """
        self._broker = broker
        self._replication = replication
        self.follow_delays = follow_delays
        config = broker.config
        self.address = f"{broker.address[0]}:{broker.address[1]}"
        self.ha_address = ""
        """The address that slaves connect to; known when the port is bound."""
        self.name_server = ""
        """The address of the name server in this very process, if there is one."""
        self.run = run
        self.epochs = Epochs()
        self.seen = Seen()
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
        self.on_role: Callable[[], None] = lambda: None
        self._directory = config.store_path_root_dir / "ropewalk"
        self._worker: Worker | None = None
        self._has_file = self._unsaved = False
        self.on_disk = RoleRecord(config.broker_role, config.broker_id)
        """The record that the file holds, or would hold."""
        self._handed_over: RoleRecord | None = None
        """The record that the file will hold when the helper thread has done all that it was asked to."""
        self._stopping = threading.Event()
        self.adopted_topics = self.adopted_groups = DataVersion()
        """The versions of the master's tables that a slave took over, whatever it has added since for its consumers."""
        self._tables_ms: dict[int, int] = {}
        """Broker id -> time at which a large table was last sent to this slave."""
        self._delays: deque[tuple[int, dict[int, int]]] = deque(maxlen=_DELAYS_WAITING_MAX)
        self._timers: deque[tuple[int, Progress]] = deque(maxlen=_DELAYS_WAITING_MAX)
        self._transactions: deque[tuple[int, dict[str, int]]] = deque(maxlen=_DELAYS_WAITING_MAX)
        """How far the queues of transactions are worked through, by topic, and the end of the master's log then."""
        self._asks_progress = False
        """Whether the master has to tell all its progress again."""
        self._delays_generation = 0
        self._delays_known: dict[int, int] = {}

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read both files, and take the role from them. Blocks."""
        config = self._broker.config
        found = _read(self._directory / "role.json", RoleRecord, self._broker)
        pairs = _read(self._directory / "epochs.json", _EpochFile, self._broker)
        self._has_file = found is not None
        try:
            self.epochs = Epochs.of(pairs.epochs) if pairs is not None else Epochs()
        except ValueError as exc:
            raise StoreConfigDamaged(f"{self._directory / 'epochs.json'} makes no sense: {exc}") from exc
        record = self.on_disk
        if found is not None:
            record = self.on_disk = self._handed_over = found
        if (record.role, record.broker_id) != (config.broker_role, config.broker_id) and record.leader_epoch:
            log.info(
                "the role is not the configuration's: it was changed while the group ran",
                role=record.role, broker_id=record.broker_id, epoch=record.leader_epoch,
                file=str(self._directory / "role.json"),
            )  # fmt: skip
        elif not record.leader_epoch:  # nobody ever changed it: the configuration says who this is
            record = msgspec.structs.replace(record, role=config.broker_role, broker_id=config.broker_id)
        version = record.policy.version
        if record.role != SLAVE and config.broker_role != SLAVE:
            policy = record.policy.with_requirement(config.broker_role, config.in_sync_replicas)
            record = msgspec.structs.replace(record, role=config.broker_role, policy=policy)
        self._unsaved = self._has_file and record.policy.version > version
        self.core = RoleCore(record)
        self.roster = SlaveRoster(record.policy)

    def open(self) -> None:
        """Take up the role; the store and the tables are loaded."""
        record, replication = self.core.record, self._replication
        self._worker = Worker("ropewalk-role", self._broker.store.completions)
        replication.counts = self.counts
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
            self._save(record, None, lambda: None)
        self._broker.topics.set_state_version(record.leader_epoch, self._broker.now_ms())
        self._publish()

    def stop(self) -> None:
        """End the helper thread. Blocks until what it writes is written."""
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    @property
    def record(self) -> RoleRecord:
        return self.core.record

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
            or (self._has_file and record.policy.version > 0)
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

        self._save(record, epochs if action is RoleAction.LEAD else None, saved)

    def _begin(self, action: RoleAction, record: RoleRecord) -> None:
        broker, replication = self._broker, self._replication
        if action in (RoleAction.LEAD, RoleAction.FOLLOW):
            self.forget_progress()
        if action is RoleAction.RESUME:
            replication.fence = None
        elif action is RoleAction.LEAD:
            self.roster = SlaveRoster(record.policy)
            replication.fence = self._fenced() if self.core.is_fenced else None
            replication.lead(record.role, 1 + self.roster.required_acks)
            broker.delays.load(self._delays_known or broker.delays.offsets())
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
            broker.acks.expire(NO_LIMIT, broker.store.flushed_offset, -1)
            self._replication.follow()

    def _fenced(self) -> str:
        record = self.core.record
        return (
            f"epoch {record.promised_epoch} is about to begin under another master; this one still leads epoch "
            f"{record.leader_epoch}"
        )

    def confirm_no_newer_master(self) -> None:
        """Take messages after a start: no member that answered is a newer master."""
        if not self.core.is_fenced and self._replication.fence is not None and self.core.is_master:
            self._replication.fence = None

    def adopt_policy(self, policy: QuorumPolicy, done: Callable[[], None]) -> None:
        """Have the master's policy on disk, as a slave does before it reports to it."""
        self.apply_decision(self.core.adopt_policy(policy), done)

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
        self._save(None, epochs, done)

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

    def _save(self, record: RoleRecord | None, epochs: Epochs | None, done: Callable[[], None]) -> None:
        """Save record and epochs after everything that was handed over before; then call `done`.

        No answer tells of a promise before that. A disk without room is waited for, and this broker stays as careful as
        it would be if the promise were on disk: the request is not answered.
        """
        assert self._worker is not None
        disk, directory = self._broker.disk, self._directory
        config = self._broker.config
        if record == self._handed_over or (
            not self._has_file and record == RoleRecord(config.broker_role, config.broker_id)
        ):
            record = None  # it is there, or nothing but what the configuration says
        if record is not None:
            self._has_file, self._handed_over = True, record

        def write() -> bool:
            if epochs is not None and not self._written(
                lambda: disk.replace_file(
                    directory / "epochs.json", msgspec.json.encode(_EpochFile(epochs.pairs()))
                )
            ):
                return False
            return record is None or self._written(
                lambda: disk.replace_file(directory / "role.json", msgspec.json.encode(record))
            )

        def saved(is_there: bool) -> None:
            if is_there:
                self.on_disk = record or self.on_disk
                done()

        self._worker.submit(write, saved)

    def _written(self, write: Callable[[], None]) -> bool:
        """Write a file as soon as there is room for it; False if the broker ends before that. On the helper thread."""
        told = False
        while True:
            try:
                write()
            except OSError as exc:
                if exc.errno not in _NO_ROOM:
                    raise
                if not told:
                    log.error(
                        "no room for this broker's role", directory=str(self._directory), reason=str(exc)
                    )
                told = True
                if self._stopping.wait(_ROOM_AGAIN_S):
                    return False
            else:
                if told:
                    log.info("there is room for this broker's role again", directory=str(self._directory))
                return True

    # -- status ---------------------------------------------------------------------------------------

    def status(self) -> MemberStatusMessage:
        """Return this member's status as its group and `admin ha status` get it."""
        broker, record = self._broker, self.core.record
        store, heard = broker.store, self.heard
        end = store.whole_end
        age = -1
        if heard is not None:
            age = (self.lost_ms if self.lost_ms >= 0 else broker.monotonic_ms()) - self.heard_ms
        return MemberStatusMessage(
            broker_name=broker.config.broker_name,
            broker_id=record.broker_id,
            address=self.address,
            role=record.role,
            newest_open_promise=record.superseded[-1][0] if record.superseded else 0,
            promised_epoch=record.promised_epoch,
            leader_epoch=record.leader_epoch,
            begin=store.log.min_offset,
            end=end,
            log_epoch=self.epochs.of_end(end),
            waiting=len(broker.acks) if record.role != SLAVE else 0,
            policy=record.policy,
            master=record.master or self._replication.master_address
            if record.role == SLAVE
            else self.address,
            master_end=heard.end if heard is not None else 0,
            master_age_ms=age,
            name_server=self.name_server,
            ha_address=self.ha_address,
            cluster=broker.config.broker_cluster_name,
            flushed=store.flushed_offset,
            readable=store.readable_offset,
            stored_ms=store.last_store_ms,
            has_master=self.lost_ms < 0 and heard is not None,
            link=self._link(),
            slaves=self._slaves() if record.role != SLAVE else [],
            damaged=len(store.damage) if store.damage is not None else 0,
            repaired=store.damage.mended if store.damage is not None else 0,
        )

    def _link(self) -> str:
        client = self._replication.client
        if client is None:
            return ""
        if client.link is None and client.why:
            return f"{client.state.value}: {client.why}"
        return (
            f"{client.state.value}, {client.copy_progress.text}"
            if client.copy_progress.text
            else client.state.value
        )

    def _slaves(self) -> list[SlaveView]:
        service, end = self._replication.service, self._broker.store.log.end_offset
        counted = service.counted()
        views = []
        for connection in service.connections:
            replica = service.replica_of(connection)
            views.append(
                SlaveView(
                    replica.address if replica is not None else ":".join(map(str, connection.link.peer)),
                    replica.broker_id if replica is not None else -1,
                    connection.acknowledged,
                    connection.is_in_sync(end),
                    connection in counted and self.counts(connection),
                    connection.rate,
                )
            )
        return views

    def _publish(self) -> None:
        self._broker.ha_status = replace(
            self._broker.ha_status, is_master=self.core.is_master, epoch=self.core.record.promised_epoch
        )

    # -- metadata: as a master -----------------------------------------------------------------------

    def answer_sync(self, ask: SyncRequest) -> SyncResponse:
        """Return the tables that moved since a slave's last question, and how far this master's log reaches."""
        broker = self._broker
        self.merge_commits(ask.commits)
        self.record_policy_version(ask.broker_id, ask.policy_version, ask.policy_epoch)
        known = ask.seen if ask.seen.run == self.run else Seen()
        delays, timers = broker.delays.offsets(), broker.timers.progress()
        if delays != self._delays_known:
            self._delays_known = delays
            self._delays_generation += 1
        changed, sequence = broker.offsets.journal.since(known.offsets)
        commits = [
            (topic, group, queue_id, offset, time_ms)
            for (topic, group, queue_id), time_ms in changed
            if (offset := broker.offsets.query(group, topic, queue_id)) is not None
        ]
        if ask.topics is not None or ask.groups is not None:
            self._restore_tables(ask)
            known = Seen(self.run, -1, -1, known.offsets, known.delays)
        wants = ask.topics is None and self._has_forgotten(ask)
        topics, groups = broker.topics.generation, broker.groups.generation
        if wants or (
            (known.topics, known.groups) != (topics, groups) and not self._may_travel(ask.broker_id)
        ):
            topics, groups = known.topics, known.groups
        seen = Seen(self.run, topics, groups, sequence, self._delays_generation)
        return SyncResponse(
            leader_epoch=self.core.record.leader_epoch,
            seen=seen,
            end=broker.store.log.end_offset,
            readable=broker.store.readable_offset,
            time_ms=broker.now_ms(),
            policy=self.core.record.policy,
            topics=broker.topics.to_wrapper() if known.topics != seen.topics else None,
            groups=broker.groups.to_wrapper() if known.groups != seen.groups else None,
            delays={str(level): offset for level, offset in delays.items()}
            if known.delays != seen.delays
            else None,
            timers=(timers.read_ms, timers.queue_offset, timers.done),
            commits=commits,
            more=sequence < broker.offsets.journal.sequence,
            wants_tables=wants,
        )

    def _has_forgotten(self, ask: SyncRequest) -> bool:
        """Return whether the slave's tables are newer: this master was killed before it had saved its last changes."""
        topics, groups = self._broker.topics.data_version, self._broker.groups.data_version
        return DataVersion(*ask.topics_version) > topics or DataVersion(*ask.groups_version) > groups

    def _restore_tables(self, ask: SyncRequest) -> None:
        broker, now = self._broker, self._broker.now_ms()
        if ask.topics is not None and DataVersion(*ask.topics_version) > broker.topics.data_version:
            self._log_restored("topics", broker.topics.supplement(ask.topics, now), ask.address)
            broker.topics_changed()
        if ask.groups is not None and DataVersion(*ask.groups_version) > broker.groups.data_version:
            self._log_restored("groups", broker.groups.supplement(ask.groups, now), ask.address)

    def _log_restored(self, what: str, names: list[str], address: str) -> None:
        if names:
            log.warning(
                "taken back from a slave", what=what, names=names[:20], count=len(names), slave=address
            )

    def _may_travel(self, broker_id: int) -> bool:
        """Return whether the tables of topics and groups may be sent to this slave now."""
        if len(self._broker.topics) + len(self._broker.groups) < _LARGE:
            return True
        now = self._broker.monotonic_ms()
        if now - self._tables_ms.get(broker_id, now - TABLES_MS) < TABLES_MS:
            return False
        self._tables_ms[broker_id] = now
        return True

    # -- metadata: as a slave ------------------------------------------------------------------------

    def apply_sync(self, answer: SyncResponse) -> None:
        """Apply the master's answer to a slave's question."""
        broker = self._broker
        self.heard, self.heard_ms, self.lost_ms = answer, broker.monotonic_ms(), -1
        if self._replication.client is not None:
            self._replication.client.master_end = answer.end
        if answer.topics is not None:
            self.adopt_topics(answer.topics)
            self.adopted_topics = broker.topics.data_version
        if answer.groups is not None:
            gone = broker.groups.adopt(answer.groups)
            self.adopted_groups = broker.groups.data_version
            if gone:
                log.warning(
                    "groups that the master does not have are removed here", groups=gone[:20], count=len(gone)
                )
        self.merge_commits(answer.commits)
        worked = {
            topic: offset for topic, group, _queue, offset, _ in answer.commits if group == CONSUMER_GROUP
        }
        if worked:
            before = self._transactions[-1][1] if self._transactions else {}
            self._transactions.append((answer.end, before | worked))
        if answer.delays is not None:
            delays = {int(level): offset for level, offset in answer.delays.items() if level.isdigit()}
            self._delays.append((answer.end, delays))
            self._asks_progress = False
        if answer.timers is not None:
            self._timers.append((answer.end, Progress(*answer.timers)))
        self.seen = answer.seen
        if self._asks_progress:
            self.seen = msgspec.structs.replace(answer.seen, offsets=0, delays=-1)
        self.apply_progress()
        broker.store.limit_readable(answer.readable)
        if answer.policy != self.core.record.policy:
            self.adopt_policy(answer.policy, lambda: None)

    def adopt_topics(self, value: dict[str, object]) -> None:
        """Replace the table of topics by the master's, and remove topics of this broker alone."""
        broker = self._broker
        gone = broker.topics.adopt(value)
        for name in gone:
            broker.offsets.remove_topic(name)
            broker.store.delete_topic(name, lambda _done: None)
        if gone:
            log.warning(
                "topics that the master does not have are removed here", topics=gone[:20], count=len(gone)
            )
        broker.topics_changed()

    def merge_commits(self, commits: list[tuple[str, str, int, int, int]]) -> None:
        """Merge consumer offsets of another replica: the later commit wins.

        But for the progress of transactions, which is of one log: with another's, halves that are open here were lost.
        """
        offsets = self._broker.offsets
        for topic, group, queue_id, offset, time_ms in commits:
            if group == CONSUMER_GROUP:
                continue
            try:
                offsets.merge(group, topic, queue_id, offset, time_ms)
            except ValueError as exc:
                log.warning(
                    "an offset of another replica is not taken", topic=topic, group=group, reason=str(exc)
                )

    def apply_progress(self) -> None:
        """Adopt the progress of deliveries and transactions whose copies are in the own log: others would be lost.

        A log that is as long as the master's has other bytes, until it is compared with it and follows it.
        """
        client = self._replication.client
        if client is None or client.state is not ClientState.TRANSFER:
            return
        end, found = self._broker.store.whole_end, None
        while self._delays and self._delays[0][0] <= end:
            found = self._delays.popleft()[1]
        if found is not None:
            self._delays_known = found
            self.follow_delays(found)
        timers = None
        while self._timers and self._timers[0][0] <= end:
            timers = self._timers.popleft()[1]
        if timers is not None:
            self._broker.timers.follow(timers)
        worked: dict[str, int] = {}
        while self._transactions and self._transactions[0][0] <= end:
            worked = self._transactions.popleft()[1]
        for topic, offset in worked.items():
            self._broker.offsets.commit(CONSUMER_GROUP, topic, HALF_QUEUE, offset)

    def forget_progress(self) -> None:
        """Forget the progress that is not adopted yet: it was told of another log, or before a comparison."""
        self._delays.clear()
        self._timers.clear()
        self._transactions.clear()
        self._asks_progress = True

    def lost_contact(self) -> None:
        """Note that the master does not answer any more."""
        if self.lost_ms < 0:
            self.lost_ms = self._broker.monotonic_ms()

    @property
    def master_is_gone(self) -> bool:
        """Return whether this is a slave whose master does not answer."""
        return not self.core.is_master and (self.lost_ms >= 0 or self.heard is None)

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
        """Take the master's address from a name server. Under an epoch of its own, a slave asks there first."""
        record, replication = self.core.record, self._replication
        if record.master and master_address and master_address != record.master:
            self.master_hint = master_address
            return
        replication.set_master(ha_address, master_address)


class _EpochFile(msgspec.Struct, frozen=True):
    epochs: list[tuple[int, int]] = []


_S = TypeVar("_S", bound=msgspec.Struct)


def _read(path: Path, kind: type[_S], broker: BrokerContext) -> _S | None:
    data = broker.disk.read_file(path)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise StoreConfigDamaged(
            f"{path} cannot be read ({exc}). It holds this broker's promises to its group: put back a copy, or, if the "
            "rest of the group agrees on a master, remove it together with epochs.json and start as a slave"
        ) from exc


__all__ = ["MASTER_ID", "HaMember"]
