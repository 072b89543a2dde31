"""The process `ropewalk broker`: configuration in, tasks running, and a graceful end.

Starting goes in an order in which nothing is promised too early: lock and recover the store, bind the ports, tell
the embedded name server, ask the group who leads it, print the ready line. Stopping goes backwards: unregister, refuse
new messages, answer what waits for the disk, write the tables, close the store. A second signal cuts that short, which
is no worse than a crash.
"""

from __future__ import annotations

import errno
import gc
import ipaddress
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog
import trio

from broker.announcement import Ports, print_config, ready_line
from broker.broker import Broker
from broker.discovery.registrar import Registrar
from broker.discovery.route_finder import RouteFinder
from broker.discovery.route_guard import RouteGuard, silent_among
from broker.launch import (
    StartFailed,
    connections_max,
    monotonic_ms,
    now_ms,
    open_log,
    raise_file_limit,
    refuse_few_descriptors,
    refuse_unfit_interpreter,
    stop_signals,
    way_out,
)
from broker.logs import set_log_level
from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import NameServer
from broker.options import BrokerOptions
from broker.remoting.session import Handlers, Session
from broker.remoting.shell import Connection, Shell
from broker.remoting.shell import Session as Served
from broker.replication.group_member import LogCut, LogReplaced, OwnGroup
from broker.service_manager import notify
from broker.settings.config import METRICS_PORTS, BrokerConfig, keep_settings, load_config
from broker.settings.dledger import peers_of
from broker.state import json_file
from broker.web.server import MetricsServer
from ropewalk.client.core.ids import ip_of, local_ip
from store.io.disk import Disk, DiskFull
from store.log.commitlog import StoreDamaged
from store.offline.diverged import cut_store, empty_store

log = structlog.get_logger("broker.process")

_T = TypeVar("_T")

_GC_THRESHOLD = 50_000
_SWITCH_INTERVAL_S = 0.0005
_EXIT_FAILED = 70  # EX_SOFTWARE
_TICK_S = 0.05
_SETTLE_S = 5.0
_STOP_FLUSH_S = 5.0
_ROOM_S = 2.0


class BrokerProcess:
    """A broker, its shell and its tasks."""

    def __init__(self, config: BrokerConfig, options: BrokerOptions) -> None:
        self.config = config
        self.options = options
        self.shell = Shell(
            self,
            out_max=config.outgoing_bytes_max,
            idle_s=config.server_channel_max_idle_time_seconds,
            connections_max=connections_max(),
        )
        self.name_server = None if config.namesrv_addr else NameServer(monotonic_ms)
        self.broker: Broker
        self._saved: dict[Path, int] = {}
        self._save_soon = trio.Event()
        self._settings: dict[str, str] = {}  # changed while running, not yet in the file
        self._registrar: Registrar
        self._guard: RouteGuard | None = None
        """None in DLedger mode: there a term decides between two that claim one place."""
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
            self.broker.share_time(self.shell.now, self.shell.idle_s)

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
        port, fast = self._bind()
        ha = self._bind_ha()
        namesrv_port = self._bind_name_server() if self.name_server is not None else None
        metrics_port = self._bind_metrics() if config.metrics_exporter_type == "PROM" else None
        self._ports = Ports(port, fast, namesrv_port, ha, metrics_port)
        self.broker = self._make_broker()
        try:
            self._open()
        except OSError as exc:
            root = config.store_path_root_dir
            raise StartFailed(
                f"cannot use {exc.filename or root} (storePathRootDir is {root}): {exc.strerror}"
            ) from exc
        if not config.enable_d_leger_commit_log:
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
            lambda: self.broker.topics.register_body(self.broker.config.broker_permission),
            group=OwnGroup(lambda: self.broker.group),
            generation=lambda: self.broker.topics.generation,
            on_registered=self.broker.announce_routes,
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
            wake=self.shell.wake,
        )
        own = f"{config.broker_ip1}:{ports.namesrv}" if ports.namesrv is not None else ""
        broker.group.bound(ports.ha, own)
        return broker

    def _join(self) -> None:
        """The broker is open: let it tell the others, and tell the name servers about it."""
        broker = self.broker
        broker.context.find_route = self._routes.find
        broker.context.rivals = lambda: len(self._registrar.rivals)
        broker.on_topics_changed = self._topics_changed
        broker.on_settings_changed = self._settings_changed
        broker.group.on_identity = self._identity_changed
        broker.publish_topics()

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
        return Session(link, Handlers(), lambda session: None)

    def _bind(self) -> tuple[int, int | None]:
        config = self.config
        port = self._listen("listenPort", config.listen_port, self._new_session)
        if config.listen_port == 0 or config.listen_port <= 2:
            # Any free port was asked for: the one at P-2 is served if it happens to be free.
            try:
                return port, self.shell.listen(config.bind_address, port - 2, self._new_fast_session)
            except OSError:
                return port, None
        fast = self._listen(
            "the fast port (listenPort - 2)",
            config.listen_port - 2,
            self._new_fast_session,
        )
        return port, fast

    def _new_member(self, link: Connection) -> Served:
        # The broker that is being closed would go on to answer for its groups, on a link that the next one cannot see.
        return self._refused(link) if self._is_reopening else self.broker.group.accept(link)

    def _bind_ha(self) -> int:
        """Listen for other members; return the port."""
        config = self.config
        if config.enable_d_leger_commit_log:
            (own,) = [
                each for each in peers_of(config.d_leger_peers) if each.member == config.d_leger_self_id
            ]
            return self._listen("dLegerPeers", own.port, self._new_member)
        return self._listen("haListenPort", config.ha_listen_port, self._new_member)

    def _bind_name_server(self) -> int:
        assert self.name_server is not None
        name_server = self.name_server
        handlers = name_server_handlers(name_server)
        port = self.config.namesrv_port
        return self._listen(
            "namesrvPort",
            port,
            lambda link: Session(link, handlers, name_server.closed, budget=self.broker.budget),
        )

    def _bind_metrics(self) -> int:
        config = self.config
        server = self._metrics_server = MetricsServer(lambda: self.broker.metrics, monotonic_ms)
        host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
        # Nobody asked for the default port, and another broker of this machine may well have it.
        asked = port == 0 or config.origin("metricsPromExporterPort") != "default"
        try:
            found = server.listen(host, port, tried=1 if asked else METRICS_PORTS)
        except OSError as exc:
            raise StartFailed(
                f"cannot listen on {host}:{port} (metricsPromExporterPort): {exc.strerror}. "
                + way_out(exc, "--set metricsPromExporterPort=0", "--set metricsPromExporterHost=ADDRESS")
                + "; --set metricsExporterType=DISABLE does without metrics"
            ) from exc
        if not asked and found != port:
            log.warning("the metrics port is taken: metrics are at the next free one", taken=port, port=found)
        return found

    def _listen(self, what: str, port: int, make: Callable[[Connection], Served]) -> int:
        try:
            return self.shell.listen(self.config.bind_address, port, make)
        except OSError as exc:
            key = what if what in ("namesrvPort", "haListenPort") else "listenPort"
            if what == "dLegerPeers":  # its port is known to the others: no free one will do
                advice = "Stop what uses it, or give this member another port in everybody's dLegerPeers"
            else:
                advice = way_out(exc, f"--set {key}=0", "--set bindAddress=ADDRESS")
            raise StartFailed(
                f"cannot listen on {self.config.bind_address}:{port} ({what}): {exc.strerror}. {advice}"
            ) from exc

    def _topics_changed(self) -> None:
        self._registrar.changed()
        self._save_soon.set()

    def _settings_changed(self, changes: dict[str, str]) -> None:
        set_log_level(self.broker.config.log_level)
        if self.options.config_file is None:
            log.warning("there is no configuration file to keep the change in: it ends with this process")
            return
        self._settings.update(changes)
        self._save_soon.set()

    # -- run and stop ----------------------------------------------------------------------------------

    async def run(self, started: float) -> None:
        """Serve until a signal comes, then stop in good order; `started` is the time for the ready line to count from.

        Raises `StartFailed` instead where another living broker has this one's place at a name server.
        """
        if self._guard is not None:
            if (why := await self._guard.find_rival(self.config.namesrv_addr)) is not None:
                raise StartFailed(why)
        with trio.open_signal_receiver(*stop_signals()) as signals:
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
                async for number in signals:
                    log.info("stopping", signal=signal.Signals(number).name)
                    notify("STOPPING=1")
                    break
                nursery.start_soon(self._second_signal, signals)
                await self._stop()
                nursery.cancel_scope.cancel()
            # Now that nothing is served any more, what was answered last is in the tables, and no task saves them too.
            await self._save_changed()

    async def _announce(self, started: float) -> None:
        with trio.move_on_after(_SETTLE_S):
            await self.broker.group.settle()
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
            if not isinstance(session, Session) or session.handled_by(broker.handlers, broker.fast_handlers):
                connection.close()
        self.shell.flush()
        with trio.CancelScope(shield=True):  # whoever stops it meanwhile need not close it
            await trio.to_thread.run_sync(broker.close)
        if isinstance(cut, LogCut):
            await self._when_room(partial(self._keep_aside, cut))
        self.broker = await self._when_room(self._opened_again)
        self._saved.clear()
        self._paused = self._is_reopening = False
        self._join()
        self._registrar.changed()

    async def _when_room(self, job: Callable[[], _T]) -> _T:
        """Do it off the loop, again and again for as long as the disk has no room for it."""
        is_told = False
        while True:
            try:
                done = await trio.to_thread.run_sync(job)
            except (DiskFull, OSError) as exc:
                if isinstance(exc, OSError) and exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not is_told:
                    log.error(
                        "no room on the disk to open the store again: nobody is served meanwhile",
                        reason=str(exc),
                        remedy="make room; it goes on by itself",
                    )
                is_told = True
                await trio.sleep(_ROOM_S)
            else:
                if is_told:
                    log.info("there is room to open the store again")
                return done

    def _opened_again(self) -> Broker:
        fresh = self._make_broker()
        try:
            fresh.open()
        except (DiskFull, OSError):
            fresh.abandon()
            raise
        return fresh

    def _keep_aside(self, cut: LogCut) -> None:
        config, about = self.config, cut.about
        root, directory = config.store_path_root_dir, config.store_path_commit_log
        disk = Disk()
        try:
            if cut.everything:
                kept = empty_store(root, directory, about, disk)
            else:
                kept = cut_store(root, directory, config.mapped_file_size_commit_log, about, disk)
        finally:
            disk.close()
        log.warning("what the master does not have is kept", path=str(kept))

    async def _second_signal(self, signals: AsyncIterator[int]) -> None:
        async for _signal in signals:
            os._exit(130)

    async def _tick(self) -> None:
        delays = self.broker.metrics.loop_delays
        while True:
            if not self._paused:
                self.broker.tick()
                now = time.monotonic()
                self.broker.share_time(now, self.shell.idle_until(now))
            self.shell.flush()
            due = trio.current_time() + _TICK_S
            await trio.sleep_until(due)
            delays.add(max(trio.current_time() - due, 0.0))

    async def _sweep(self) -> None:
        seconds = 0
        while True:
            await trio.sleep(1)
            seconds += 1
            self.shell.sweep()
            if seconds % 5 == 0 and self.name_server is not None:
                self.name_server.expire()
            if seconds % 10 == 0 and not self._paused:
                self.broker.expire_clients()
            self.shell.flush()

    async def _save(self) -> None:
        """Write the tables: topics at once when they change, the rest every few seconds."""
        while True:
            with trio.move_on_after(self.broker.config.flush_consumer_offset_interval / 1000):
                await self._save_soon.wait()
            self._save_soon = trio.Event()
            await self._save_changed()

    async def _save_changed(self) -> None:
        if self._paused:
            return
        settings, self._settings = self._settings, {}
        if settings and self.options.config_file is not None:
            try:
                await trio.to_thread.run_sync(keep_settings, self.options.config_file, settings)
            except OSError as exc:
                log.error("cannot keep changed settings", path=str(self.options.config_file), reason=str(exc))
                self._settings = settings | self._settings
        for path, (version, dump) in self.broker.dumps().items():
            if self._saved.get(path) != version:
                data = dump()
                try:
                    await trio.to_thread.run_sync(json_file.save, path, data)
                except OSError as exc:
                    # The older generation is whole; what could not be written is tried again at the next round.
                    log.error("cannot write a config file", path=str(path), reason=str(exc))
                else:
                    self._saved[path] = version

    async def _stop(self) -> None:
        if self._paused:
            await self._registrar.unregister()
            return
        await self.broker.group.hand_over()
        self.broker.group.leave()  # first: the producers of another member wait for this one
        self.shell.flush()
        await self._registrar.unregister()
        self.broker.context.stopping = True
        self.shell.stop_accepting()
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


def run_broker(options: BrokerOptions) -> None:
    """Run a broker in the foreground. Raises RopewalkError with a text for the user if it cannot start."""
    started = time.monotonic()
    refuse_unfit_interpreter()
    named = {}
    if options.name_server is not None:
        named["namesrvAddr"] = options.name_server
    if options.namesrv_port is not None:
        named["namesrvPort"] = str(options.namesrv_port)
    for key, value in (
        ("logLevel", options.log_level),
        ("logFormat", options.log_format),
        ("logFile", options.log_file),
    ):
        if value is not None:
            named[key] = str(value)
    temporary = tempfile.mkdtemp(prefix="ropewalk-") if options.ephemeral else None
    if temporary is not None:
        named["storePathRootDir"] = temporary
    try:
        config = load_config(
            config_file=options.config_file,
            settings=options.settings,
            named=named,
            environ=os.environ,
            local_ip=lambda: str(ipaddress.IPv4Address(local_ip())),
            ephemeral=options.ephemeral,
        )
        if options.print_config:
            print_config(config, as_json=options.json)
            return
        open_log(config.log_level, config.log_format, config.log_file)
        for warning in config.warnings:
            log.warning("configuration", finding=warning)
        raise_file_limit()
        refuse_few_descriptors()
        process = BrokerProcess(config, options)
        process.start()
        # What exists now lives as long as the process: the collector need not look at it again, and a turn makes
        # thousands of short-lived objects that reference counting alone takes care of.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD, 20, 20)
        # A helper thread in the middle of Python code gives the interpreter back after this, when the loop wants it;
        # the default of 5 ms would be the p99 of every answer.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        try:
            trio.run(process.run, started)
        except StartFailed:
            process.close()
            raise
        except BaseException:
            # Closing in good order would claim more than is known, after a failed flush above all. What this leaves
            # is for the next start's recovery to judge, like any other crash.
            log.critical("the broker failed", exc_info=True)
            sys.stderr.flush()
            os._exit(_EXIT_FAILED)
        process.close()
        log.info("stopped")
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
