"""`BrokerProcess`: a broker, its shell and its tasks, from the start to a graceful end.

Starting goes in an order in which nothing is promised too early: lock and recover the store, bind the ports, tell
the embedded name server, ask the group who leads it, print the ready line. Stopping goes backwards: unregister, refuse
new messages, answer what waits for the disk, write the tables, close the store. A second signal cuts that short, which
is no worse than a crash.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

import structlog
import trio

from broker.broker import Broker
from broker.discovery.registrar import Registrar
from broker.discovery.route_finder import RouteFinder
from broker.discovery.route_guard import RouteGuard, silent_among
from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import EXPIRE_INTERVAL_S, NameServer
from broker.process.announcement import ready_line
from broker.process.launch import (
    STORE_FILES,
    StartFailed,
    connections_max,
    monotonic_ms,
    now_ms,
)
from broker.process.logs import set_log_level
from broker.process.options import BrokerOptions
from broker.process.ports import PortBinder, Ports
from broker.process.reopening import keep_aside, when_room
from broker.process.service_manager import notify
from broker.process.stop_signals import StopSignals
from broker.process.table_saver import Kept, TableSaver
from broker.remoting.connection import Connection, ConnectionHandler
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Session
from broker.remoting.shell import Shell
from broker.replication.group_member import LogCut, LogReplaced, OwnGroup
from broker.settings.config import BrokerConfig
from broker.settings.exposure import exposures
from broker.web.server import MetricsServer
from ropewalk.client.core.ids import ip_of
from store.io.disk import Disk, DiskFull
from store.log.commitlog import StoreDamaged

log = structlog.get_logger("broker.process")

_TICK_S = 0.05
_SETTLE_S = 5.0
_STOP_FLUSH_S = 5.0


class BrokerProcess:
    """A broker, its shell and its tasks."""

    def __init__(self, config: BrokerConfig, options: BrokerOptions) -> None:
        self.config = config
        self.options = options
        self.shell = Shell(
            self,
            out_max=config.outgoing_bytes_max,
            out_total_max=config.outgoing_bytes_total_max,
            idle_s=config.server_channel_max_idle_time_seconds,
            first_request_s=config.first_request_timeout_seconds,
            connections_max=connections_max(STORE_FILES),
        )
        self._budget = IncomingBudget(monotonic_ms, config.incoming_bytes_total_max)
        self.name_server = None if config.namesrv_addr else NameServer(monotonic_ms)
        self.broker: Broker
        self._tables = TableSaver(options.config_file)
        self._registrar: Registrar
        self._guard: RouteGuard | None = None
        """None in DLedger mode, where a term decides between two that claim one place, and with `--take-place`."""
        self._routes: RouteFinder
        self._metrics_server: MetricsServer | None = None
        self._ports: Ports
        self._ip: str
        self.next_turn_s: float | None = None
        self._paused = False
        """Whether the store is closed for a moment, and nobody is served."""
        self._is_reopening = False
        """Whether that is to open it again, and not to mend it from other members: these are not served either."""

    # -- turns: the shell asks, the broker answers -----------------------------------------------------

    def begin_turn(self) -> None:
        if not self._paused:
            self.broker.begin_turn()
            self.broker.share_time(self.shell.now, self.shell.loop.idle_s)

    def end_turn(self) -> None:
        if not self._paused:
            self.broker.end_turn()
        self.next_turn_s = None if self._paused else self.broker.next_turn_s

    def on_wakeup(self) -> None:
        if not self._paused:
            self.broker.on_wakeup()

    def on_priority_served(self) -> None:
        if not self._paused:
            self.broker.on_priority_served()

    @property
    def peer_reply_expected(self) -> bool:
        return not self._paused and self.broker.peer_reply_expected

    # -- start -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bind, recover, register. Blocks. Raises RopewalkError or OSError with a text for the user."""
        config = self.config
        try:
            self._ip = ip_of(config.broker_ip1)
        except OSError as exc:
            raise StartFailed(
                f"brokerIP1 = {config.broker_ip1}: {exc.strerror}. Clients are told to connect there: give an IPv4 "
                "address of this machine, or a host name that can be looked up"
            ) from exc
        binder = PortBinder(config, self.shell)
        port, fast = binder.bind_broker(self._new_session, self._new_fast_session)
        ha = binder.bind_members(self._new_member)
        namesrv_port = None
        if self.name_server is not None:
            namesrv_port = binder.bind_name_server(self._name_server_sessions(self.name_server))
        metrics_port = None
        if config.metrics_exporter_type == "PROM":
            self._metrics_server = MetricsServer(lambda: self.broker.metrics, monotonic_ms)
            metrics_port = binder.bind_metrics(self._metrics_server)
        self._ports = Ports(port, fast, namesrv_port, ha, metrics_port)
        self.broker = self._make_broker()
        try:
            self._open()
        except OSError as exc:
            root = config.store_path_root_dir
            raise StartFailed(
                f"cannot use {exc.filename or root} (storePathRootDir is {root}): {exc.strerror}"
            ) from exc
        if not config.enable_d_leger_commit_log and not self.options.take_place:
            self._guard = RouteGuard(
                config.broker_cluster_name,
                config.broker_name,
                f"{config.broker_ip1}:{port}",
                lambda: self.broker.member.record,
                config.ropewalk_secret,
            )
        self._registrar = Registrar(
            {
                "brokerName": config.broker_name,
                "brokerAddr": f"{config.broker_ip1}:{port}",
                "clusterName": config.broker_cluster_name,
                "haServerAddr": self.broker.group.ha_address,
                "brokerId": str(self.broker.group.broker_id),
                "heartbeatTimeoutMillis": "120000",
            },
            lambda: self.broker.topics,
            permission=lambda: self.broker.config.broker_permission,
            group=OwnGroup(lambda: self.broker.group),
            on_registered=lambda generation: self.broker.topic_changes.announce(generation),  # noqa: PLW0108 - the broker is replaced
            period_s=config.register_name_server_period / 1000,
            call_s=config.register_broker_timeout_mills / 1000,
            local=self.name_server,
            remote=config.namesrv_addr,
            guard=self._guard,
        )
        self._routes = RouteFinder(self.name_server, config.namesrv_addr)
        self._join()

    def _open(self) -> None:
        """Open the broker. A damaged log is mended from other members before, where there are any."""
        while True:
            try:
                self.broker.open()
            except StoreDamaged as damaged:
                self._paused = True
                trio.run(self._mend, damaged)
                self._paused = False
                self.broker = self._make_broker()
            else:
                return

    async def _mend(self, damaged: StoreDamaged) -> None:
        failed: StoreDamaged | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shell.run)
            try:
                await self.broker.group.mend(self.shell, damaged)
            except StoreDamaged as exc:
                failed = exc
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    def _make_broker(self) -> Broker:
        config, ports = self.config, self._ports
        broker = Broker(
            config,
            address=(config.broker_ip1, ports.broker),
            ip=self._ip,
            disk=Disk(),
            now_ms=now_ms,
            monotonic_ms=monotonic_ms,
            rng=random.Random(),
            wake=self.shell.loop.wake,
            budget=self._budget,
        )
        own = f"{config.broker_ip1}:{ports.namesrv}" if ports.namesrv is not None else ""
        broker.group.bound(ports.ha, own)
        return broker

    def _join(self) -> None:
        """The broker is open: let it tell the others, and tell the name servers about it."""
        broker = self.broker
        broker.context.find_route = self._routes.find
        broker.context.routes = self._registrar.routes
        broker.context.when_kept = self._when_kept
        broker.topic_changes.on_published = self._topics_changed
        broker.on_settings_changed = self._settings_changed
        broker.group.on_identity = self._identity_changed
        broker.topic_changes.publish()

    def _identity_changed(self) -> None:
        self._registrar.set_broker_id(self.broker.group.broker_id)

    # The ports are bound before there is a broker: its records carry the port that it got.

    def _new_session(self, link: Connection) -> Session:
        return self._refused(link) if self._paused else self.broker.new_session(link)

    def _new_fast_session(self, link: Connection) -> Session:
        return self._refused(link) if self._paused else self.broker.new_fast_session(link)

    def _refused(self, link: Connection) -> Session:
        """The log is being cut: nobody is served for a moment."""
        link.close()
        return Session(link, Handlers(), lambda session: None, budget=self._budget)

    def _name_server_sessions(self, name_server: NameServer) -> Callable[[Connection], Session]:
        handlers = name_server_handlers(name_server)
        return lambda link: Session(
            link, handlers, name_server.closed, budget=self._budget, lane=self.broker.lane
        )

    def _new_member(self, link: Connection) -> ConnectionHandler:
        # The broker that is being closed would go on to answer for its groups, on a link that the next one cannot see.
        return self._refused(link) if self._is_reopening else self.broker.group.accept(link)

    def _topics_changed(self) -> None:
        self._registrar.changed()
        self._tables.save_soon()

    def _when_kept(self, name: str, kept: Kept) -> None:
        path = self.config.store_path_root_dir / "config" / name
        self._tables.when_kept(path, self.broker.dumps()[path][0], kept)

    def _settings_changed(self, changes: dict[str, str]) -> None:
        set_log_level(self.broker.config.log_level)
        self._tables.keep(changes)

    # -- run and stop ----------------------------------------------------------------------------------

    async def run(self, started: float) -> None:
        """Serve until a signal comes, then stop in good order; `started` is the time for the ready line to count from.

        Raises `StartFailed` instead where another living broker has this one's place at a name server.
        """
        if self._guard is not None:
            if (why := await self._guard.find_rival(self.config.namesrv_addr)) is not None:
                raise StartFailed(why)
        signals = StopSignals()
        if self._metrics_server is not None:
            self._metrics_server.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.shell.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._save)
            nursery.start_soon(self._registrar.run)
            nursery.start_soon(self._replicate)
            nursery.start_soon(self._routes.run)
            nursery.start_soon(self._announce, started)
            first = await signals.wait()
            log.info("stopping", signal=first.name)
            notify("STOPPING=1")
            await self._stop()
            nursery.cancel_scope.cancel()
        # Now that nothing is served any more, what was answered last is in the tables, and no task saves them too.
        await self._save_changed()

    async def _announce(self, started: float) -> None:
        with trio.move_on_after(_SETTLE_S):
            await self.broker.group.settle()
        has_members = self.broker.context.ha_status.has_members
        for finding in exposures(self.config, has_members=has_members):
            log.warning("exposed", finding=finding)
        took_s = time.monotonic() - started
        silent = await silent_among(self.config.namesrv_addr)
        line = ready_line(
            self.config, self.broker.group, self._ports, took_s, silent, as_json=self.options.json
        )
        print(line, flush=True)  # who reads it may send a signal at once
        notify("READY=1")

    async def _replicate(self) -> None:
        """Be a member of the group; when the log turns out to have a part of its own, without that part."""
        while True:
            broker = self.broker
            await self._cut(broker, await broker.group.run(broker, self.shell))

    async def _cut(self, broker: Broker, cut: LogCut | LogReplaced) -> None:
        """Close the store, keep aside what its leader does not have, and open it again."""
        if isinstance(cut, LogCut):
            about = cut.about
            log.warning("the log is cut", at=about.begin, end=about.end, why=about.why)
        await self._save_changed()
        self._paused = self._is_reopening = True
        for connection in list(self.shell.connections.values()):
            session = connection.session
            if not isinstance(session, Session) or session.handled_by(
                broker.processors.handlers, broker.processors.fast_handlers
            ):
                connection.close()
        self.shell.flush()
        with trio.CancelScope(shield=True):  # whoever stops it meanwhile need not close it
            await trio.to_thread.run_sync(broker.close)
        if isinstance(cut, LogCut):
            await when_room(partial(keep_aside, self.config, cut))
        self.broker = await when_room(self._opened_again)
        self._tables.forget()
        self._paused = self._is_reopening = False
        self._join()
        self._registrar.changed()

    def _opened_again(self) -> Broker:
        fresh = self._make_broker()
        try:
            fresh.open()
        except (DiskFull, OSError):
            fresh.abandon()
            raise
        return fresh

    async def _tick(self) -> None:
        while True:
            if not self._paused:
                self.broker.tick()
                now = time.monotonic()
                self.broker.share_time(now, self.shell.loop.idle_until(now))
            self.shell.flush()
            due = trio.current_time() + _TICK_S
            await trio.sleep_until(due)
            self.broker.metrics.loop_delays.add(max(trio.current_time() - due, 0.0))

    async def _sweep(self) -> None:
        seconds = 0
        while True:
            await trio.sleep(1)
            seconds += 1
            self.shell.sweep()
            self._budget.sweep()
            if self.name_server is not None:
                self.name_server.purge()
                if seconds % EXPIRE_INTERVAL_S == 0:
                    self.name_server.expire()
            if seconds % 10 == 0 and not self._paused:
                self.broker.expire_clients()
            self.shell.flush()

    async def _save(self) -> None:
        """Write the tables: topics at once when they change, the rest every few seconds."""
        while True:
            await self._tables.wait(self.broker.config.flush_consumer_offset_interval / 1000)
            await self._save_changed()

    async def _save_changed(self) -> None:
        if not self._paused:
            await self._tables.save_settings()
            await self._tables.save_tables(self.broker.dumps())
            self.shell.flush()  # the answers that waited for them

    async def _stop(self) -> None:
        if self._paused:
            await self._registrar.unregister()
            return
        await self.broker.group.hand_over()
        self.broker.group.leave()  # first: the producers of another member wait for this one
        self.shell.flush()
        await self._registrar.unregister()
        self.broker.context.stopping = True
        self.shell.listeners.close()
        self.broker.store.request_flush()
        with trio.move_on_after(_STOP_FLUSH_S):
            await self._drain()
        self.shell.flush()

    async def _drain(self) -> None:
        """Until nobody waits for a flush any more: the shell's turns answer them."""
        while len(self.broker.acks):  # noqa: ASYNC110 - acks are completed in turns, which know nothing of trio
            await trio.sleep(0.01)

    def close(self) -> None:
        if self._metrics_server is not None:
            self._metrics_server.stop()
        if not self._paused:
            self.broker.close()  # its helper threads wake the shell until the end
        self.shell.close()
