"""This broker as a member of its group: the role it has, on disk before anybody hears of it, and what follows from it.

    <root>/ropewalk/role.json     role, brokerId and epoch, what was promised to whom, the group's terms
    <root>/ropewalk/epochs.json   who wrote which part of the log

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

from broker.context import BrokerContext
from broker.remoting.refused import RequestRefused
from broker.replication.master_slave import Replication
from broker.state.data_version import DataVersion
from broker.state.json_file import StoreConfigDamaged
from ha.group.epochs import Epochs
from ha.group.hello import SlaveView, StandingMessage
from ha.group.metadata import Seen, SyncAnswer, SyncAsk
from ha.group.roles import MASTER_ID, SLAVE, Act, Outcome, RoleCore, RoleRecord, Roll, Terms
from ha.stream.connection import HaConnection
from ropewalk.codes import ResponseCode
from store.io.workers import Worker
from store.offline.diverged import About

log = structlog.get_logger("broker.ha")

ALL_GONE_MS = 1 << 62
_DELAYS_WAITING_MAX = 256
TABLES_MS = 800
"""A table that is large travels no more often: to write it out costs the loop a tenth of a second."""
_LARGE = 1_000
_NO_ROOM = errno.ENOSPC, errno.EDQUOT
_ROOM_AGAIN_S = 0.5
"""When it is looked again whether a full disk has room."""


class HaMember:
    """Role, epochs and roll of one broker. The loop owns it."""

    core: RoleCore
    roll: Roll

    def __init__(
        self,
        broker: BrokerContext,
        replication: Replication,
        run: str,
        *,
        follow_delays: Callable[[dict[int, int]], None] = lambda offsets: None,
    ) -> None:
        """Keep this member's part; `follow_delays` has a slave keep how far its master has delivered delayed messages.

        `run` names this process to slaves: what they know of another one's tables means nothing."""
        self._broker = broker
        self._replication = replication
        self.follow_delays = follow_delays
        config = broker.config
        self.address = f"{broker.address[0]}:{broker.address[1]}"
        self.ha_address = ""
        """Where slaves connect to; known when the port is bound."""
        self.name_server = ""
        """Of the name server in this very process, if there is one."""
        self.run = run
        self.epochs = Epochs()
        self.seen = Seen()
        self.heard: SyncAnswer | None = None
        """What a slave heard last of its master."""
        self.heard_ms = 0
        self.lost_ms = -1
        """When contact with the master was lost, by the clock that nobody sets; -1 while there is contact."""
        self.hint = ""
        """An address that may be a newer master's; somebody should look."""
        self.diverged: About | None = None
        """Set when the log has to be cut before this slave can follow: the process has to see to that."""
        self.behind = False
        """Set with `diverged` when nothing of the log can be kept."""
        self.on_role: Callable[[], None] = lambda: None
        self._directory = config.store_path_root_dir / "ropewalk"
        self._worker: Worker | None = None
        self._has_file = self._unsaved = False
        self.on_disk = RoleRecord(config.broker_role, config.broker_id)
        """What the file says, or would say."""
        self._handed_over: RoleRecord | None = None
        """What the file will say when the helper thread has done all that it was asked to."""
        self._stopping = threading.Event()
        self.adopted_topics = self.adopted_groups = DataVersion()
        """What a slave has of its master's tables, whatever it has added since for consumers of its own."""
        self._tables_ms: dict[int, int] = {}
        """When each slave was last given a table that is large."""
        self._delays: deque[tuple[int, dict[int, int]]] = deque(maxlen=_DELAYS_WAITING_MAX)
        self._delays_generation = 0
        self._delays_known: dict[int, int] = {}

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the files, and be what they say. Blocks."""
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
        if (record.role, record.broker_id) != (config.broker_role, config.broker_id) and record.reign:
            log.info(
                "the role is not the configuration's: it was changed while the group ran",
                role=record.role, broker_id=record.broker_id, epoch=record.epoch,
                file=str(self._directory / "role.json"),
            )  # fmt: skip
        elif not record.reign:  # nobody ever changed it: the configuration says who this is
            record = msgspec.structs.replace(record, role=config.broker_role, broker_id=config.broker_id)
        version = record.terms.version
        if record.role != SLAVE and config.broker_role != SLAVE:
            terms = record.terms.with_promise(config.broker_role, config.in_sync_replicas)
            record = msgspec.structs.replace(record, role=config.broker_role, terms=terms)
        self._unsaved = self._has_file and record.terms.version > version
        self.core = RoleCore(record)
        self.roll = Roll(record.terms)

    def open(self) -> None:
        """The store and the tables are loaded: take up the role."""
        record, replication = self.core.record, self._replication
        self._worker = Worker("ropewalk-role", self._broker.store.completions)
        replication.counts = self.counts
        if record.role == SLAVE:
            replication.follow()
        else:
            replication.lead(record.role, 1 + self.roll.required_acks)
            if self.roll.required_acks > record.terms.required_acks:
                log.warning(
                    "slaves are waited for as before, until each of them has heard that fewer have to answer",
                    slaves=record.terms.slaves,
                    remedy="`ropewalk admin ha forget` strikes one off that will not come back",
                )
            if self.core.is_fenced:
                replication.fence = self._fenced()
            elif self.has_company:
                # Somebody may have taken its place while this broker was down: look before anything is promised.
                replication.fence = "looking whether another broker became master meanwhile"
        if self._unsaved:  # the configuration promises something else than before
            self._save(record, None, lambda: None)
        self._broker.topics.set_state_version(record.reign, self._broker.now_ms())
        self._publish()

    def stop(self) -> None:
        self._stopping.set()
        if self._worker is not None:
            self._worker.stop()

    @property
    def record(self) -> RoleRecord:
        return self.core.record

    @property
    def has_company(self) -> bool:
        """Whether there is, or ever was, another replica of this broker.

        One that was struck off the roll counts: it may have come back all the same, and be the master by now. Terms
        that changed are on disk only of who had one.
        """
        record = self.core.record
        return (
            record.role == SLAVE or bool(record.terms.slaves) or (self._has_file and record.terms.version > 0)
        )

    # -- changes -------------------------------------------------------------------------------------

    def carry_out(self, outcome: Outcome, done: Callable[[], None] = lambda: None) -> None:
        """Do what a decision asks for, in its order; `done` when the record is on disk and the rest has begun."""
        act, record = outcome.act, outcome.record
        replication = self._replication
        epochs = self.epochs
        if act is Act.FENCE:
            replication.fence = self._fenced()
        elif act is Act.DROP and replication.client is not None:
            replication.client.drop(f"epoch {record.epoch} was accepted: no older master is followed")
        elif act is Act.LEAD:
            if replication.client is not None:
                replication.client.shutdown()
            epochs = epochs.begin(record.epoch, self._broker.store.whole_end)
        elif act is Act.FOLLOW:
            self._stop_leading()
            # Before its master's tables come: with their version it would win the master's place at a name server.
            self.on_role()
        if act is not Act.NOTHING:
            log.info(
                "role", act=act.value, role=record.role, epoch=record.epoch, reign=record.reign, by=record.by
            )

        def saved() -> None:
            if act is Act.LEAD:
                self.epochs = epochs
            # The terms may be newer by now, and somebody may have asked for another epoch: a role that was given
            # begins all the same, or a master that is released again would be none.
            now = self.core.record
            same = (now.role, now.reign, now.master) == (record.role, record.reign, record.master)
            if same and (act is not Act.RESUME or now.epoch == now.reign):
                self._begin(act, now)
            self._publish()
            done()

        self._save(record, epochs if act is Act.LEAD else None, saved)

    def _begin(self, act: Act, record: RoleRecord) -> None:
        broker, replication = self._broker, self._replication
        if act is Act.RESUME:
            replication.fence = None
        elif act is Act.LEAD:
            self.roll = Roll(record.terms)
            replication.fence = self._fenced() if self.core.is_fenced else None
            replication.lead(record.role, 1 + self.roll.required_acks)
            broker.delays.load(self._delays_known or broker.delays.offsets())
            self.heard, self.lost_ms = None, -1
        elif act is Act.FOLLOW:
            if record.master and record.master != replication.master_address:
                replication.master_ha = ""  # asked of the new master itself
                self.hint = record.master
            if replication.client is None:
                replication.follow()
            else:
                replication.client.drop("there is a newer master")
        if act in (Act.LEAD, Act.FOLLOW):
            broker.topics.set_state_version(record.reign, broker.now_ms())
            broker.groups.set_state_version(record.reign, broker.now_ms())
            self.on_role()

    def _stop_leading(self) -> None:
        """Nobody is told 0 any more: whoever still waits for a slave gets "stored, but a slave was late"."""
        broker = self._broker
        if self._replication.client is None:
            self._replication.fence = None
            broker.acks.expire(ALL_GONE_MS, broker.store.flushed_offset, -1)
            self._replication.follow()

    def _fenced(self) -> str:
        record = self.core.record
        return f"epoch {record.epoch} is about to begin under another master; this one still reigns in {record.reign}"

    def looked_around(self) -> None:
        """Nobody who answered is a newer master."""
        if not self.core.is_fenced and self._replication.fence is not None and self.core.is_master:
            self._replication.fence = None

    def learn_terms(self, terms: Terms, done: Callable[[], None]) -> None:
        """A slave keeps its master's terms on disk before it reports to it."""
        self.carry_out(self.core.learn(terms), done)

    def enrol(self, broker_id: int, address: str, done: Callable[[], None]) -> None:
        """A slave is on the roll, durably. Raises ValueError when there is no room for one more."""
        outcome = self.core.enrol(broker_id, address)
        self.roll.terms = outcome.record.terms
        self.carry_out(outcome, done)

    def forget(self, broker_id: int, done: Callable[[], None]) -> None:
        """Strike a slave off the roll, durably. Raises `RequestRefused`."""
        outcome = self.core.forget(broker_id)
        if outcome.refusal is not None:
            raise RequestRefused(ResponseCode.ILLEGAL_OPERATION, outcome.refusal)
        self.roll.terms = outcome.record.terms
        self.roll.taken.pop(str(broker_id), None)
        self._replication.need(self.roll.required_acks)
        self.carry_out(outcome, done)

    def adopt_epochs(self, epochs: Epochs, done: Callable[[], None]) -> None:
        """A slave whose log was compared with its master's takes the master's list over."""
        if epochs == self.epochs:
            done()
            return
        self.epochs = epochs
        self._save(None, epochs, done)

    def counts(self, connection: HaConnection) -> bool:
        """Whether a slave that said hello may be counted already (`Roll`)."""
        replica = self._replication.service.replica_of(connection)
        return replica is None or self.roll.counts(replica.broker_id)

    def has_terms(self, broker_id: int, version: int, reign: int) -> None:
        """A slave says which terms it has on disk, and from the master of which epoch."""
        if not self.core.is_master or reign != self.core.record.reign:
            return  # another master's terms have versions of their own
        replication, before = self._replication, self.roll.required_acks
        outcome = self.core.settle(self.roll.has(broker_id, version))
        if outcome.record.terms is not self.roll.terms:
            self.roll.terms = outcome.record.terms
            self.carry_out(outcome)
        if before != self.roll.required_acks:
            replication.need(self.roll.required_acks)
        replication.recount()

    def _save(self, record: RoleRecord | None, epochs: Epochs | None, done: Callable[[], None]) -> None:
        """Have it on disk, and everything that was handed over before; then `done`.

        Nobody hears of a promise before that. A disk without room is waited for, and this broker stays as careful as
        it would be if the promise were on disk: whoever asked is not answered.
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
        """Write a file, when there is room for it; False if the broker ends before that. On the helper thread."""
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

    # -- what others are told ------------------------------------------------------------------------

    def standing(self) -> StandingMessage:
        broker, record = self._broker, self.core.record
        store, heard = broker.store, self.heard
        end = store.whole_end
        age = -1
        if heard is not None:
            age = (self.lost_ms if self.lost_ms >= 0 else broker.monotonic_ms()) - self.heard_ms
        return StandingMessage(
            broker_name=broker.config.broker_name,
            broker_id=record.broker_id,
            address=self.address,
            role=record.role,
            doubt=record.overtaken[-1][0] if record.overtaken else 0,
            epoch=record.epoch,
            reign=record.reign,
            begin=store.log.min_offset,
            end=end,
            log_epoch=self.epochs.of_end(end),
            waiting=len(broker.acks) if record.role != SLAVE else 0,
            terms=record.terms,
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
            mended=store.damage.mended if store.damage is not None else 0,
        )

    def _link(self) -> str:
        client = self._replication.client
        if client is None:
            return ""
        if client.link is None and client.why:
            return f"{client.state.value}: {client.why}"
        return f"{client.state.value}, {client.copying.text}" if client.copying.text else client.state.value

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
            self._broker.ha_status, is_master=self.core.is_master, epoch=self.core.record.epoch
        )

    # -- metadata: as a master -----------------------------------------------------------------------

    def answer_sync(self, ask: SyncAsk) -> SyncAnswer:
        """What a slave gets to know: the tables that moved since, and where this master stands."""
        broker = self._broker
        self.take_commits(ask.commits)
        self.has_terms(ask.broker_id, ask.terms_version, ask.terms_of)
        known = ask.seen if ask.seen.run == self.run else Seen()
        delays = broker.delays.offsets()
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
            self._take_back(ask)
            known = Seen(self.run, -1, -1, known.offsets, known.delays)
        wants = ask.topics is None and self._has_forgotten(ask)
        topics, groups = broker.topics.generation, broker.groups.generation
        if wants or (
            (known.topics, known.groups) != (topics, groups) and not self._may_travel(ask.broker_id)
        ):
            topics, groups = known.topics, known.groups
        seen = Seen(self.run, topics, groups, sequence, self._delays_generation)
        return SyncAnswer(
            epoch=self.core.record.reign,
            seen=seen,
            end=broker.store.log.end_offset,
            readable=broker.store.readable_offset,
            time_ms=broker.now_ms(),
            terms=self.core.record.terms,
            topics=broker.topics.to_wrapper() if known.topics != seen.topics else None,
            groups=broker.groups.to_wrapper() if known.groups != seen.groups else None,
            delays={str(level): offset for level, offset in delays.items()}
            if known.delays != seen.delays
            else None,
            commits=commits,
            more=sequence < broker.offsets.journal.sequence,
            wants_tables=wants,
        )

    def _has_forgotten(self, ask: SyncAsk) -> bool:
        """Whether the slave's tables are newer: this master was killed before it had saved its last changes."""
        topics, groups = self._broker.topics.data_version, self._broker.groups.data_version
        return DataVersion(*ask.topics_version) > topics or DataVersion(*ask.groups_version) > groups

    def _take_back(self, ask: SyncAsk) -> None:
        broker, now = self._broker, self._broker.now_ms()
        if ask.topics is not None and DataVersion(*ask.topics_version) > broker.topics.data_version:
            self._tell_taken("topics", broker.topics.supplement(ask.topics, now), ask.address)
            broker.topics_changed()
        if ask.groups is not None and DataVersion(*ask.groups_version) > broker.groups.data_version:
            self._tell_taken("groups", broker.groups.supplement(ask.groups, now), ask.address)

    def _tell_taken(self, what: str, names: list[str], address: str) -> None:
        if names:
            log.warning(
                "taken back from a slave", what=what, names=names[:20], count=len(names), slave=address
            )

    def _may_travel(self, broker_id: int) -> bool:
        """Whether the tables of topics and groups may be sent to this slave now."""
        if len(self._broker.topics) + len(self._broker.groups) < _LARGE:
            return True
        now = self._broker.monotonic_ms()
        if now - self._tables_ms.get(broker_id, now - TABLES_MS) < TABLES_MS:
            return False
        self._tables_ms[broker_id] = now
        return True

    # -- metadata: as a slave ------------------------------------------------------------------------

    def take_answer(self, answer: SyncAnswer) -> None:
        """Take over what the master said."""
        broker = self._broker
        self.heard, self.heard_ms, self.lost_ms = answer, broker.monotonic_ms(), -1
        if self._replication.client is not None:
            self._replication.client.master_end = answer.end
        if answer.topics is not None:
            self.take_topics(answer.topics)
            self.adopted_topics = broker.topics.data_version
        if answer.groups is not None:
            gone = broker.groups.adopt(answer.groups)
            self.adopted_groups = broker.groups.data_version
            if gone:
                log.warning(
                    "groups that the master does not have are removed here", groups=gone[:20], count=len(gone)
                )
        self.take_commits(answer.commits)
        if answer.delays is not None:
            delays = {int(level): offset for level, offset in answer.delays.items() if level.isdigit()}
            self._delays.append((answer.end, delays))
        self.seen = answer.seen
        self.take_delays()
        broker.store.limit_readable(answer.readable)
        if answer.terms != self.core.record.terms:
            self.learn_terms(answer.terms, lambda: None)

    def take_topics(self, value: dict[str, object]) -> None:
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

    def take_commits(self, commits: list[tuple[str, str, int, int, int]]) -> None:
        offsets = self._broker.offsets
        for topic, group, queue_id, offset, time_ms in commits:
            try:
                offsets.merge(group, topic, queue_id, offset, time_ms)
            except ValueError as exc:
                log.warning(
                    "an offset of another replica is not taken", topic=topic, group=group, reason=str(exc)
                )

    def take_delays(self) -> None:
        """Believe in deliveries whose copies are in the own log, and in no others: they would be lost."""
        end, found = self._broker.store.whole_end, None
        while self._delays and self._delays[0][0] <= end:
            found = self._delays.popleft()[1]
        if found is not None:
            self._delays_known = found
            self.follow_delays(found)

    def lost_contact(self) -> None:
        """The master does not answer any more."""
        if self.lost_ms < 0:
            self.lost_ms = self._broker.monotonic_ms()

    @property
    def master_is_gone(self) -> bool:
        """Whether a slave has to manage without its master."""
        return not self.core.is_master and (self.lost_ms >= 0 or self.heard is None)

    # -- what name servers say -----------------------------------------------------------------------

    @property
    def seeks_master(self) -> bool:
        return self._replication.seeks_master

    @property
    def seeks_slaves(self) -> bool:
        return self._replication.seeks_slaves

    def register(self, slaves: Mapping[str, int]) -> None:
        """How many slaves of the group are registered, by IP."""
        self._replication.register(slaves)

    def learn(self, ha_address: str, master_address: str) -> None:
        """Where a name server thinks the master is. Under an epoch of its own, a slave asks there first."""
        record, replication = self.core.record, self._replication
        if record.master and master_address and master_address != record.master:
            self.hint = master_address
            return
        replication.learn(ha_address, master_address)


class OwnGroup:
    """What the registrar asks and tells about the group, of whichever member there is at the moment."""

    def __init__(self, member: Callable[[], HaMember]) -> None:
        self._member = member

    @property
    def seeks_master(self) -> bool:
        return self._member().seeks_master

    @property
    def seeks_slaves(self) -> bool:
        return self._member().seeks_slaves

    def learn(self, ha_address: str, master_address: str) -> None:
        self._member().learn(ha_address, master_address)

    def register(self, slaves: Mapping[str, int]) -> None:
        self._member().register(slaves)


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


__all__ = ["MASTER_ID", "HaMember", "OwnGroup"]
