"""The broker as one object: its state, its life, and what happens in each turn. No sockets, no tasks.

`process` gives it a shell, a clock and a disk. A turn goes: `begin_turn`, any number of `Session.receive`,
`end_turn`. In `end_turn` everything moves that the turn made possible: the store publishes, pulls that waited for
what is now readable are answered, producers whose bytes are now flushed are answered. Nothing in it waits.

Here all parts meet. Left to others: what is kept (`assembly`), who handles what (`processors`), when messages are
refused (`refusal`), when producers are answered (`acknowledgement`), who hears of changed topics
(`discovery.topic_changes`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from broker.acknowledgement import Acknowledgement
from broker.admin.base import AdminContext
from broker.adoption import TopicAdoption
from broker.assembly import new_context
from broker.config_files import ConfigFiles
from broker.consume.filters import FilterRules, FilterTable
from broker.consume.member_notifier import MemberNotifier
from broker.discovery.topic_changes import TopicChanges
from broker.intake import FastIntake
from broker.metrics.snapshot import Family, HistogramFamily, Metrics, Source
from broker.processors import Processors
from broker.refusal import Refusal
from broker.remoting.cold_lane import TURN_S, ColdLane, Steps
from broker.remoting.connection import Connection
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Session
from broker.replication.dledger.files import refuse_other_mode
from broker.replication.dledger.member import LedgerMember
from broker.replication.group_member import GroupMember
from broker.replication.master_slave import Replication
from broker.replication.master_slave_member import MasterSlaveMember
from broker.replication.member import HaMember
from broker.rules import (
    bloom_geometry,
    placement_rules,
    read_limits,
    retention_rules,
)
from broker.settings.config import BrokerConfig
from broker.state.json_text import TextSlices
from broker.timers.delay_progress import DelayProgress
from broker.timers.deliveries import Deliveries
from broker.timers.placement import Placement
from broker.transactions.service import TransactionService
from broker.turn_work import TurnWork
from broker.unused_groups import UnusedGroups
from ha.dledger.storage import LogStorage, ReplicaStore
from store.io.disk import Disk
from store.io.workers import Worker
from store.log.durable_bound import boot_id
from store.read.bulk import BulkReader

log = structlog.get_logger("broker")


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        address: tuple[str, int],
        disk: Disk,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        rng: random.Random,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
        ip: str | None = None,
        budget: IncomingBudget | None = None,
    ) -> None:
        """`address` is what clients are told to connect to, and `ip` its IP, where it is a name: records hold no names.
        `wake` has the loop call `on_wakeup` soon.

        `now_ms` is the wall clock: what is stored, scheduled and shown goes by it. How long something may still take
        or last (locks, clients, waiting pulls and answers) is measured with `monotonic_ms` alone, which nobody sets.
        `clock` tells seconds finely, for statistics and the shares of a turn. `budget` is shared with the sessions of
        the process that are not the broker's.
        """
        self._wake = wake
        self.context = context = new_context(
            config,
            address=address,
            ip=ip,
            disk=disk,
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            rng=rng,
            wake=wake,
            clock=clock,
        )
        self.store = context.store
        self.reader = context.reader
        self.topics = context.topics
        self.groups = context.groups
        self.offsets = context.offsets
        self.clients = context.clients
        self.statistics = context.statistics
        self.rpc_times = context.rpc_times
        self.delays = context.delays
        self.timers = context.timers
        self.acks = context.acks
        self.held_pulls = context.held_pulls
        self.catch_up_pulls = context.catch_up_pulls
        self.filters = FilterTable(FilterRules.of(config), bloom_geometry(config))
        self.clients.group_left = lambda group: self.filters.unregister(group, now_ms())
        self._notifier = MemberNotifier(self.clients.members_of)
        self._work = TurnWork(clock, wake)
        self.clients.pressed = lambda: self._work.begin(self._close_greediest())
        self.groups.make_room = UnusedGroups(context).make_room
        self.topic_changes = TopicChanges(self.topics, self.clients, self._notifier)
        context.topics_changed = self.topic_changes.note
        self._placement = Placement(
            placement_rules(config), self.delays, self.store, self.timers.timers.waiting_at, now_ms
        )
        refusal = Refusal(context)
        self._adoption = TopicAdoption(context, lambda: self.group.is_leader)
        self.bulk_reader = BulkReader(
            self.store.log, self.store.completions, warm_window=config.warm_window_bytes
        )
        progress = DelayProgress(
            config.store_path_root_dir,
            disk,
            boot_id(disk),
            lambda: Worker("ropewalk-delay", self.store.completions),
            has_page=not self.store.may_be_cut,
        )
        self.deliveries = Deliveries(
            self.delays,
            self.timers,
            progress,
            self.store,
            is_refused=lambda: refusal.judge() is not None,
            wake=wake,
        )
        self.group = refusal.group = self._make_group()
        self.group.on_role = self._role_changed
        self.acknowledgement = Acknowledgement(context, self.group)
        self.group.on_abandoned = self.acknowledgement.abandon
        self.metrics = Metrics(context, self.count_metrics)
        self.on_settings_changed: Callable[[dict[str, str]], None] = lambda changes: None
        self.transactions = TransactionService(
            context, is_slave=lambda: not self.group.is_leader, refusal=refusal.judge, wake=wake
        )
        self._files = ConfigFiles(
            context, self.filters, self.deliveries, self.transactions, lambda: self.group.has_replicas
        )
        admin = AdminContext(
            context,
            reconfigure=self.reconfigure,
            settings_changed=lambda changes: self.on_settings_changed(changes),  # noqa: PLW0108 - replaced later
            delay_offsets=self.deliveries.table,
        )
        self.processors = Processors(
            context,
            self.group,
            admin=admin,
            transactions=self.transactions,
            placement=self._placement,
            filters=self.filters,
            bulk_reader=self.bulk_reader,
            notifier=self._notifier,
            refusal=refusal,
            acknowledgement=self.acknowledgement,
            wake=wake,
        )
        self.sinks = self.processors.sinks
        self.budget = budget or IncomingBudget(monotonic_ms, config.incoming_bytes_total_max)
        self.lane = ColdLane(clock, wake)
        """The lane of all requests that are not hot, the embedded name server's too."""

    @property
    def config(self) -> BrokerConfig:
        """Return the configuration that counts at the moment."""
        return self.context.config

    @property
    def replication(self) -> Replication:
        """Return the replication between a master and its slaves; there is none in DLedger mode."""
        assert isinstance(self.group, MasterSlaveMember)
        return self.group.replication

    @property
    def member(self) -> HaMember:
        """Return the member of a group of master and slaves; there is none in DLedger mode."""
        assert isinstance(self.group, MasterSlaveMember)
        return self.group.member

    def _make_group(self) -> GroupMember:
        context = self.context
        if context.config.enable_d_leger_commit_log:
            return LedgerMember(
                context,
                self._wake,
                self._ledger_storage,
                self.deliveries.take_back,
                self.deliveries.follow,
            )
        run = f"{context.rng.getrandbits(64):016x}"
        return MasterSlaveMember(context, run, follow_delays=self.deliveries.follow)

    def _ledger_storage(self) -> tuple[LogStorage, ReplicaStore]:
        log, replica = self.store.entry_log, self.store.replica
        assert log is not None and replica is not None, "the store is not open in DLedger mode"
        return log, replica

    def count_metrics(self) -> tuple[list[Family | HistogramFamily], list[Source]]:
        """Return the metric families that are known at once, and the jobs that bring the rest."""
        from broker.metrics import families  # nothing of it is needed before somebody asks

        return families.of_broker(
            families.MetricSources(
                self.context,
                self.group.role,
                self.group.ledger_status() if isinstance(self.group, LedgerMember) else None,
                self.group.kv if isinstance(self.group, LedgerMember) else None,
                self.transactions,
                self.timers,
                self.sinks,
                self.processors.admin.waiting,
                self.metrics.loop_delays,
                self.metrics.on_loop,
            )
        )

    # -- life ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store and load the tables. Blocks."""
        refuse_other_mode(self.config)
        self.group.load()
        recovered = self.store.open()
        for finding in recovered.findings:
            log.warning("recovery", finding=finding)
        if recovered.records:
            log.info("read the end of the log again", records=recovered.records, ends_at=recovered.end)
        now = self.context.now_ms()
        self._files.load(now)
        self.timers.open()
        self.topics.create_system_topics(now)
        self.groups.create_built_in(now)
        self._adoption.adopt_orphans(now)
        self.group.open()
        self.transactions.role_changed()
        self.sinks.role_changed()

    def _role_changed(self) -> None:
        self.processors.sends.wait(self.store.config.sync_flush or self.group.limits.waits)
        self.transactions.role_changed()
        self.sinks.role_changed()
        if self.group.is_leader:
            # A topic made moments before its master died: its messages came here, its configuration did not.
            self._adoption.adopt_orphans(self.context.now_ms())
            self.topic_changes.note()

    def dumps(self) -> dict[Path, tuple[int, Callable[[], TextSlices]]]:
        """Return the config files: path -> (a number that changes with the content, how to write the text)."""
        return self._files.dumps()

    def close(self) -> None:
        """Flush and close the store. Blocks; sessions must be gone or refused by then."""
        self.group.stop()
        self.processors.admin.stop()
        self.reader.stop()
        self.bulk_reader.stop()
        self.store.run_completions()
        self.deliveries.stop()
        self.store.close()
        self._files.save_last()

    def abandon(self) -> None:
        """End the threads of a broker that could not open its store. Blocks."""
        self.reader.stop()
        self.bulk_reader.stop()
        self.context.disk.close()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take another configuration over, as far as it may change while the broker runs."""
        before, self.context.config = self.context.config, config
        now = self.context.now_ms()
        self.processors.configure(config)
        self._placement.rules = placement_rules(config)
        self.transactions.configure()
        self.filters.rules = FilterRules.of(config)
        self.reader.limits = read_limits(config)
        self.catch_up_pulls.share.configure(config.catch_up_read_ratio)
        rules = retention_rules(config)
        self.store.config = replace(
            self.store.config, flush_interval_ms=config.flush_interval_commit_log, retention=rules
        )
        if self.store.upkeep.cleaner is not None:
            self.store.upkeep.cleaner.follow_rules(rules)
        self.groups.auto_create_subscription_group = config.auto_create_subscription_group
        self.topics.rules = replace(
            self.topics.rules, auto_create_topic_enable=config.auto_create_topic_enable
        )
        self.topics.create_system_topics(now)
        if config.broker_permission != before.broker_permission:
            self.topics.touch(now)
        self.topic_changes.note()

    # -- sessions ------------------------------------------------------------------------------------

    def new_session(self, link: Connection) -> Session:
        """Return the session of a new connection to the main port."""
        return self._session(link, self.processors.handlers, self.processors.intake)

    def new_fast_session(self, link: Connection) -> Session:
        """Return a session of the port at P-2: the same codes without the pull family."""
        return self._session(link, self.processors.fast_handlers, self.processors.fast_port_intake)

    def _session(self, link: Connection, handlers: Handlers, intake: FastIntake | None) -> Session:
        return Session(
            link,
            handlers,
            self._session_closed,
            times=self.rpc_times,
            intake=intake,
            wait=self.acknowledgement.wait,
            budget=self.budget,
            lane=self.lane,
        )

    def _session_closed(self, session: Session) -> None:
        self.held_pulls.release(session)
        self.catch_up_pulls.release(session)
        self.transactions.targets.closed(session)
        self.processors.admin.forget(session)
        self._work.begin(self._forget_client(session))

    def _forget_client(self, session: Session) -> Steps:
        changed: list[str] = []
        for _ in self.clients.closed_in_slices(session, changed):
            yield
        self._notifier.notify(changed)

    def _close_greediest(self) -> Steps:
        yield  # the heartbeat that was one too many is told so first
        for closed, changed in self.clients.make_room():
            for peer in closed:
                assert isinstance(peer, Session)
                log.warning(
                    "closed a client that takes most, as all clients together take too many bytes of subscriptions",
                    peer=peer.link.peer,
                )
                peer.link.close()
            self._notifier.notify(changed)
            yield

    # -- turns ---------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        self.rpc_times.clock_now()
        self.lane.left_s = TURN_S
        self.catch_up_pulls.begin_turn()
        self.store.begin_turn()
        self.group.begin_turn()

    def share_time(self, now_s: float, idle_s: float) -> None:
        """Read for consumers that were put off, as far as the loop has time, which waited `idle_s` in its life. HOT."""
        end = self.store.log.end_offset
        self.reader.cold_budget.observe(now_s, idle_s, end)
        self.reader.resume_deferred()
        catch_up = self.catch_up_pulls
        catch_up.share.begin_turn(now_s, idle_s, end)
        if catch_up.size:
            catch_up.run()

    @property
    def peer_reply_expected(self) -> bool:
        """Return whether producers, here or elsewhere, wait for another member of the group alone."""
        return self.group.peer_awaited(len(self.acks) > 0, self.store.config.sync_flush)

    @property
    def next_turn_s(self) -> float | None:
        """Return after how many seconds without an event pulls that were put off want a turn; None without any."""
        catch_up = self.catch_up_pulls
        return catch_up.share.wait_s if catch_up.size else None

    def on_wakeup(self) -> None:
        self.store.run_completions()
        self.transactions.wakened()
        self.sinks.wakened()
        self.deliveries.on_wakeup()

    def end_turn(self) -> None:
        if self.lane.size:
            self.lane.run()
        store, intake = self.store, self.processors.intake
        if intake is not None:
            intake.flush_deferred()
        transactions = self.transactions
        if transactions.halves.decided:
            transactions.end_turn()
        if self.topic_changes.noted:
            self.topic_changes.publish()
        self.group.end_turn()
        store.publish()
        if transactions.questions:
            transactions.published()
        while store.woken:
            woken = dict.fromkeys(store.woken)
            store.woken.clear()
            for queue in woken:
                if queue.held is not None:
                    self.held_pulls.arrived(queue)
        if self.held_pulls.is_busy:
            self.held_pulls.run()
        if self._work.is_busy:
            self._work.run()
        self.acknowledgement.complete()

    def on_priority_served(self) -> None:
        """Within a turn, before others have theirs: what slaves have said counts, and answers leave. HOT."""
        self.group.apply_reports()
        self.acknowledgement.complete()

    def tick(self) -> None:
        """The work of time, several times a second: flush, expire, look ahead."""
        self.begin_turn()
        now = self.context.monotonic_ms()
        self.store.tick()
        self.group.tick()
        if self.store.may_be_cut or self.group.is_leader:
            self._adoption.adopt_new_queues()
        if (status := self.group.status(self.context.ha_status, self.context.now_ms())) is not None:
            self.context.ha_status = status
        for finding in self.store.upkeep.take_findings():
            log.warning("store", finding=finding)
        while self.reader.findings:
            log.warning("store", finding=self.reader.findings.pop(0))
        self.deliveries.run()
        self.transactions.tick()
        self.sinks.tick()
        self.deliveries.tick()
        self.held_pulls.expire(now)
        self.acknowledgement.expire(now)
        self._notifier.tell_members()
        self.context.client_calls.expire(now)
        self.statistics.tick(self.context.now_ms())
        self.metrics.tick()
        self.end_turn()

    def expire_clients(self) -> None:
        """Drop clients without a heartbeat; every ten seconds."""
        now = self.context.monotonic_ms()
        self._work.begin(self._expire_clients(now))
        self._work.begin(self.context.locks.expire(now))
        self.filters.prune(self.context.now_ms())
        for finding in self.clients.take_findings():
            log.warning("clients", finding=finding)

    def _expire_clients(self, now: int) -> Steps:
        for dead, changed in self.clients.expire_in_slices(now):
            for peer in dead:
                assert isinstance(peer, Session)
                peer.link.close()
            self._notifier.notify(changed)
            yield
