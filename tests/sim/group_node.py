"""One machine of the simulated group of master and slaves, and what its process does around its broker.

The tasks that are shipped as tasks (replication, slave's sync, the look around, registration) run as they are; ticks
are callbacks, as everything in `machine`. A machine that died starts again on what its disk holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import trio

from broker.broker import Broker
from broker.discovery import registrar
from broker.discovery.registrar import Registrar
from broker.replication.group_member import OwnGroup
from broker.replication.slave import hello, master_search, rocketmq, sync
from broker.replication.slave.sync import SlaveSync
from broker.settings.config import BrokerConfig, load_config
from ha.stream.client import ClientState
from store.io.workers import FlushFailed
from store.log.commitlog import StoreDamaged
from store.offline.diverged import About, cut_store, empty_store
from tests.sim.disk import PowerLoss
from tests.sim.group_callers import dialled_by
from tests.sim.machine import BROKER_PORT, CURRENT, Machine, machinery
from tests.sim.net import End

if TYPE_CHECKING:
    from tests.sim.group import World

HA_PORT = 10912
CLUSTER, NAME, TOPIC = "DefaultCluster", "b", "orders"
NAME_SERVER = "10.0.0.9:9876"


class Broken(AssertionError):
    """A promise of the group does not hold."""


@functools.cache
def _config(number: int, settings: tuple[tuple[str, str], ...]) -> BrokerConfig:
    ip = f"10.0.0.{number + 1}"
    role = "SYNC_MASTER" if number == 0 else "SLAVE"
    # The time of an append is that of the real clock: a machine that stands still meanwhile is no part of a life.
    every = {"osPageCacheBusyTimeOutMills": "30000", **dict(settings), "brokerRole": role}
    return load_config(
        config_file=None,
        settings=[f"{key}={value}" for key, value in every.items()],
        named={
            "brokerIP1": ip,
            "brokerIP2": ip,
            "brokerId": str(number),
            "brokerName": NAME,
            "storePathRootDir": f"/sim/{number}",
        },
        environ={},
    )


class Node(Machine):
    """A member of a group of master and slaves: it can be started again on what its disk holds."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.world = world
        self.refused = False
        """Whether its start was refused: a person would have to look."""
        self.led = -1
        """The newest epoch in which it was the master."""
        self.config = _config(number, tuple(world.settings.items()))
        self._scope = trio.CancelScope()
        self._diverged = trio.Event()
        self._registrar: Registrar

    def configure(self, settings: Mapping[str, str]) -> None:
        """Have the broker start with other settings."""
        self.config = _config(self.number, tuple(settings.items()))

    # -- life ------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """From start to death."""
        if self.alive:
            return  # somebody was faster
        CURRENT.set(self)
        with trio.CancelScope() as self._scope:
            try:
                self._open()
            except StoreDamaged as exc:
                self.refused = True
                self.world.log(self, f"refuses to start: {exc}")
                return
            except (PowerLoss, FlushFailed):
                self._after_death(power=self.world.power_fails)
                return
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._registrar.run)
                    nursery.start_soon(self._replicate)
            except* (PowerLoss, FlushFailed) as group:
                self.die(power=self.world.power_fails, reason=repr(group.exceptions[0]))

    def _open(self) -> None:
        self._life += 1
        self._helpers.clear()
        self._wakes = self._saves = False
        self.broker = self._make()
        self.broker.open()
        self._registrar = Registrar(
            {
                "brokerName": NAME,
                "brokerAddr": f"{self.ip}:{BROKER_PORT}",
                "clusterName": CLUSTER,
                "haServerAddr": f"{self.ip}:{HA_PORT}",
                "brokerId": str(self.broker.member.record.broker_id),
                "heartbeatTimeoutMillis": "120000",
            },
            lambda: self.broker.topics,
            permission=lambda: self.broker.config.broker_permission,
            group=OwnGroup(lambda: self.broker.group),
            period_s=self.config.register_name_server_period / 1000,
            call_s=3.0,
            local=None,
            remote=(NAME_SERVER,),
        )
        self.alive = True
        self._join()
        self._later(self.world.chance.uniform(0, 0.1), self._tick)
        self._later(2, self._save_now_and_then)

    def _make(self) -> Broker:
        world = self.world
        self._diverged = trio.Event()
        broker = Broker(
            self.config,
            address=self.address,
            disk=self.disk,
            now_ms=world.now_ms,
            monotonic_ms=world.monotonic_ms,
            rng=world.chance,
            wake=self._wake,
            clock=lambda: world.events.now,
        )
        broker.member.ha_address = f"{self.ip}:{HA_PORT}"
        return broker

    def _join(self) -> None:
        self._saved = {}
        self.broker.topic_changes.on_published = self._topics_changed
        self.broker.member.on_role = self._role_changed
        self._note_reign()
        self.broker.topic_changes.publish()

    def _topics_changed(self) -> None:
        self._registrar.changed()
        self._save_soon()

    def _role_changed(self) -> None:
        self._note_reign()
        self._registrar.set_broker_id(self.broker.member.record.broker_id)

    def _note_reign(self) -> None:
        if self.broker.member.core.is_master:
            self.led = self.broker.member.record.leader_epoch

    def _ended(self) -> None:
        self._scope.cancel()

    def accept(self, end: End) -> None:
        def act() -> None:
            if end.local[1] == HA_PORT:
                end.session = self.broker.replication.new_session(cast(Any, end))
            else:
                end.session = self.broker.new_session(cast(Any, end))

        self.turn(act)

    # -- what a broker's process does ------------------------------------------------------------------

    def _tick(self) -> None:
        self._guarded(self.broker.tick)
        self._later(self.world.chance.uniform(0.05, 0.12), self._tick)
        if not self.alive:
            return
        if self.broker.member.diverged is not None:
            self._diverged.set()
        client = self.broker.replication.client
        if client is not None and client.state is ClientState.ERROR:
            raise Broken(f"{self} got bytes of its master that do not continue its log: {client.why}")

    async def _replicate(self) -> None:
        """As `broker.process.broker` does it."""
        while True:
            broker = self.broker
            shell = cast(Any, SimShell(self))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.replication.run, shell)
                nursery.start_soon(
                    SlaveSync(broker.context, broker.member, broker.replication, broker, shell).run
                )
                await self._diverged.wait()
                nursery.cancel_scope.cancel()
            assert broker.member.diverged is not None
            self._cut(broker, broker.member.diverged)

    def _cut(self, broker: Broker, about: About) -> None:
        self.world.log(self, f"cuts its log from {about.begin} to {about.end}: {about.why}")
        self._save_tables()
        self.net.reset_host(self.ip)
        broker.close()
        root, directory = self.config.store_path_root_dir, self.config.store_path_commit_log
        if broker.member.behind:
            empty_store(root, directory, about, self.disk)
        else:
            cut_store(root, directory, self.config.mapped_file_size_commit_log, about, self.disk)
        self._helpers.clear()
        self.broker = self._make()
        self.broker.open()
        self._join()
        self._registrar.changed()

    # -- what is in it ---------------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        return self.alive and self.broker.member.core.is_master

    def state(self) -> str:
        if not self.alive:
            return f"{self} is {'refused' if self.refused else 'down'}"
        broker, replication = self.broker, self.broker.replication
        record, client = broker.member.record, replication.client
        link = f", {client.state.value} {client.why}" if client is not None else ""
        fence = f", fenced: {replication.fence}" if replication.fence else ""
        waiting = f", {len(broker.acks)} answers wait" if len(broker.acks) else ""
        return (
            f"{self} is {record.role} {record.broker_id} of {record.leader_epoch} (accepted "
            f"{record.promised_epoch}), ends at {broker.store.whole_end}{link}{fence}{waiting}"
        )


class SimShell:
    """What replication and members need of the broker's shell."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def dial(self, host: str, port: int, make: Callable[[Any], Any], timeout_s: float) -> End:
        await trio.sleep(self._node.world.chance.uniform(0.0001, 0.002))
        end = self._node.net.connect(self._node.ip, self._node, (host, port))
        end.session = make(end)
        return end

    def flush(self) -> None:
        pass


@contextmanager
def surroundings(world: World) -> Iterator[None]:
    """Threads take steps, config files are in memory, and connections are simulated."""

    async def inline(function: Callable[..., Any], *args: Any) -> Any:
        await trio.sleep(world.chance.uniform(0, 0.003))
        return function(*args)

    dialled = dialled_by(lambda: (CURRENT.get().ip, world))
    with (
        machinery(),
        mock.patch.object(hello, "open_connection", dialled),
        mock.patch.object(master_search, "open_connection", dialled),
        mock.patch.object(rocketmq, "open_connection", dialled),
        mock.patch.object(sync, "open_connection", dialled),
        mock.patch.object(registrar, "open_connection", dialled),
        mock.patch.object(trio.to_thread, "run_sync", inline),
    ):
        yield
