"""Lives of one broker group: a master and two slaves, producers, and an operator, under seeded misfortune.

Everything that decides is shipped code: whole brokers with their stores, replication, members and their tasks, and the
handovers of `ha.promotion`. What is made up here is what surrounds them: clock, network, disks, the moment at which a
helper thread runs, who sends what when, which process or machine dies. One seed draws all of it.

What is checked, always and at the end:

    nobody is told 0 by two masters     once a master of a later epoch said 0, no earlier one does
    nothing acknowledged is lost        every message that was answered 0 is in the last master's queues, in order
    copies agree                        the logs of all that are left are the same bytes, from the first to the last

Runs of class A1 kill processes; runs of class A3 (both machines flush before it counts) take the power from machines.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest import mock

import structlog
import trio
import trio.testing
from trio._core import _run as trio_run  # its scheduler draws lots: they have to be the seed's

from broker import json_file, slave_sync
from broker.broker import Broker
from broker.config import load_config
from broker.slave_sync import SlaveSync
from ha.hello import EpochAsk, RangesAsk, StandingMessage, decode_untrusted, encode
from ha.promotion import Answer, Ask, Handover, Kind, Member, Phase, Send
from ha.roles import SLAVE
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, RemoteProtocolError, RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.record import decode_record
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from store.commitlog import StoreDamaged
from store.diverged import About, cut_store, empty_store
from store.workers import Completions, Flusher, FlushFailed, Worker
from tests.sim.disk import PowerLoss, SimDisk
from tests.sim.net import Address, End, Net

BROKER_PORT, HA_PORT = 10911, 10912
START_MS = 1_700_000_000_000
OPERATOR = "10.0.2.1"
TOPIC = "orders"
NAME = "b"
ASKS = {
    Ask.LOOK: RequestCode.ROPEWALK_LOOK,
    Ask.ACCEPT: RequestCode.ROPEWALK_ACCEPT_EPOCH,
    Ask.RELEASE: RequestCode.ROPEWALK_RELEASE_EPOCH,
    Ask.PROMOTE: RequestCode.ROPEWALK_PROMOTE,
    Ask.FOLLOW: RequestCode.ROPEWALK_FOLLOW,
}

CURRENT: ContextVar[Node] = ContextVar("node")


class Broken(AssertionError):
    """A promise of the group does not hold."""


# -- one machine -----------------------------------------------------------------------------------------


class Node:
    """A machine with a broker on it: it can die, and be started again on what its disk holds."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.net = world.net
        self.number = number
        self.ip = f"10.0.0.{number + 1}"
        self.address: Address = (self.ip, BROKER_PORT)
        self.disk = SimDisk(world.chance)
        self.tables: dict[Path, bytes] = {}
        self.alive = False
        self.refused = False
        """Whether its start was refused: a person would have to look."""
        self.slow_disk = False
        self.broker: Broker
        self.workers: list[Worker] = []
        self.flushers: list[Flusher] = []
        self.reason = ""
        self._scope = trio.CancelScope()
        self._woken = trio.Event()
        self._save_soon = trio.Event()
        self._saved: dict[Path, object] = {}
        role = "SYNC_MASTER" if number == 0 else "SLAVE"
        self.config = load_config(
            config_file=None,
            settings=[f"{key}={value}" for key, value in {**world.settings, "brokerRole": role}.items()],
            named={
                "brokerIP1": self.ip,
                "brokerIP2": self.ip,
                "brokerId": str(number),
                "brokerName": NAME,
                "storePathRootDir": f"/sim/{number}",
            },
            environ={},
        )

    def __repr__(self) -> str:
        return f"node {self.number}"

    # -- life ------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """From start to death."""
        if self.alive:
            return  # somebody was faster
        CURRENT.set(self)
        with trio.CancelScope() as self._scope:
            try:
                self._open()
            except StoreDamaged:
                self.refused = True
                return
            except (PowerLoss, FlushFailed):
                self.disk = self.disk.power_loss(self.world.chance)
                return
            async with trio.open_nursery() as nursery:
                for task in (self._replicate, self._tick, self._help, self._save, self._register):
                    nursery.start_soon(task)

    def _open(self) -> None:
        self.workers.clear()
        self.flushers.clear()
        self.broker = self._make()
        self.broker.open()
        self._join()
        self.alive = True

    def _make(self) -> Broker:
        world = self.world
        broker = Broker(
            self.config,
            address=self.address,
            disk=self.disk,
            now_ms=world.now_ms,
            monotonic_ms=world.monotonic_ms,
            chance=world.chance,
            wake=lambda: self._woken.set(),  # noqa: PLW0108 - the event is replaced
        )
        broker.member.ha_address = f"{self.ip}:{HA_PORT}"
        return broker

    def _join(self) -> None:
        self._saved = {}
        self.broker.on_topics_changed = lambda: self._save_soon.set()  # noqa: PLW0108 - as above
        self.broker.member.on_role = self.register

    def die(self, *, power: bool, reason: str = "") -> None:
        """The process is gone at this very moment, or the machine is."""
        if not self.alive:
            return
        self.alive = False
        self.world.log(self, f"dies{' with its power' if power else ''} {reason}")
        self._scope.cancel()
        self.net.reset_node(self.ip)
        self.disk = self.disk.power_loss(self.world.chance) if power else self.disk.killed()

    # -- turns, as the shell makes them ----------------------------------------------------------------

    def turn(self, act: Callable[[], object]) -> None:
        if not self.alive:
            return
        token = CURRENT.set(self)
        try:
            self.broker.begin_turn()
            act()
            self.broker.end_turn()
        except (PowerLoss, FlushFailed) as exc:
            self.die(power=True, reason=repr(exc))
        finally:
            CURRENT.reset(token)

    def received(self, end: End, piece: bytes) -> None:
        def act() -> None:
            try:
                if end.session is not None:
                    end.session.receive(piece)
            except RemoteProtocolError:
                end.close()

        self.turn(act)

    def accept(self, end: End) -> None:
        def act() -> None:
            if end.local[1] == HA_PORT:
                end.session = self.broker.replication.new_session(cast(Any, end))
            else:
                end.session = self.broker.new_session(cast(Any, end))

        self.turn(act)

    # -- what a broker's process does ------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self.world.chance.uniform(0.05, 0.12))
            if self.alive:
                try:
                    self.broker.tick()
                except (PowerLoss, FlushFailed) as exc:
                    self.die(power=True, reason=repr(exc))

    async def _help(self) -> None:
        """Run the helper threads' steps, some time after there was something to do."""
        chance = self.world.chance
        while True:
            with trio.move_on_after(0.01):
                await self._woken.wait()
            self._woken = trio.Event()
            await trio.sleep(chance.uniform(0.02, 0.4) if self.slow_disk else chance.uniform(0, 0.002))
            if not self.alive:
                continue
            try:
                self.step_helpers()
            except PowerLoss:
                self.die(power=True)
            self.turn(self.broker.wakened)

    def step_helpers(self) -> None:
        for worker in list(self.workers):
            while not worker.is_idle:
                if not worker.step():
                    self.workers.remove(worker)
                    break
        for flusher in self.flushers:
            flusher.step()

    async def _save(self) -> None:
        while True:
            with trio.move_on_after(2):
                await self._save_soon.wait()
            self._save_soon = trio.Event()
            await trio.sleep(self.world.chance.uniform(0, 0.005))
            self._save_tables()

    def _save_tables(self) -> None:
        for path, (version, dump) in self.broker.dumps().items():
            if self._saved.get(path) != version:
                self._saved[path] = version
                self.tables[path] = dump()

    async def _register(self) -> None:
        while True:
            self.register()
            await trio.sleep(0.3)

    def register(self) -> None:
        """Tell the name server, and hear from it."""
        broker, world = self.broker, self.world
        if (self.ip, "ns") in self.net.cuts:
            return
        member = broker.member
        if member.core.is_master:
            world.registered(member.record.reign, self)
        elif (found := world.registration) is not None and found[1] is not self:
            master = found[1]
            member.learn(f"{master.ip}:{HA_PORT}", f"{master.ip}:{BROKER_PORT}")

    async def _replicate(self) -> None:
        """As `broker.process` does it."""
        while True:
            broker = self.broker
            shell = cast(Any, SimShell(self))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.replication.run, shell)
                nursery.start_soon(SlaveSync(broker, shell).run)
                while broker.member.diverged is None:  # noqa: ASYNC110 - it is found in turns, which know no trio
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            self._cut(broker, broker.member.diverged)

    def _cut(self, broker: Broker, about: About) -> None:
        self.world.log(self, f"cuts its log from {about.begin} to {about.end}: {about.why}")
        self._save_tables()
        self.net.reset_node(self.ip)
        broker.close()
        root, directory = self.config.store_path_root_dir, self.config.store_path_commit_log
        if broker.member.behind:
            empty_store(root, directory, about, self.disk)
        else:
            cut_store(root, directory, self.config.mapped_file_size_commit_log, about, self.disk)
        self.workers.clear()
        self.flushers.clear()
        self.broker = self._make()
        self.broker.open()
        self._join()

    # -- what is in it ---------------------------------------------------------------------------------

    def state(self) -> str:
        if not self.alive:
            return f"{self} is {'refused' if self.refused else 'down'}"
        broker, replication = self.broker, self.broker.replication
        record, client = broker.member.record, replication.client
        link = f", {client.state.value} {client.why}" if client is not None else ""
        fence = f", fenced: {replication.fence}" if replication.fence else ""
        waiting = f", {len(broker.acks)} answers wait" if len(broker.acks) else ""
        return (
            f"{self} is {record.role} of {record.reign} (accepted {record.epoch}), ends at {broker.store.whole_end}"
            f"{link}{fence}{waiting}"
        )

    def log_bytes(self) -> tuple[int, bytes]:
        """Where its log begins, and all of it."""
        log, end = self.broker.store.log, self.broker.store.whole_end
        pieces = [bytes(each.map[: min(each.size, end - each.base_offset)]) for each in log.segments]
        return log.min_offset, b"".join(pieces)

    def bodies(self) -> dict[int, bytes]:
        """Every readable message of the topic by its place: queue id and queue offset in one number."""
        store, found = self.broker.store, {}
        for queue_id, queue in store.queues.get(TOPIC, {}).items():
            for number in range(queue.min_offset, queue.readable):
                offset, size, _tags = queue.read(number)
                segment = store.log.find(offset)
                assert segment is not None
                record = decode_record(segment.file.read_at(offset - segment.base_offset, size))
                found[queue_id << 40 | number] = record.body
        return found


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


# -- who talks over the remoting port ------------------------------------------------------------------------


class Caller:
    """A client's connection: requests, and answers by opaque."""

    has_backlog = False

    def __init__(self, end: End, address: str) -> None:
        self.address = address
        self._end = end
        self._frames = FrameBuffer()
        self._waiting: dict[int, tuple[trio.Event, list[Command]]] = {}
        self._opaque = 0
        end.session = self

    @property
    def is_open(self) -> bool:
        return self._end.is_open

    async def call(self, command: Command, timeout: float | None = None) -> Command:
        if not self._end.is_open:
            raise OutcomeUnknown(f"{self.address}: the connection is gone")
        self._opaque += 1
        command.opaque = self._opaque
        event, found = self._waiting[command.opaque] = trio.Event(), []
        self._end.send(encode_frame(command))
        with trio.move_on_after(timeout or 3.0):
            await event.wait()
        del self._waiting[command.opaque]
        if not found:
            raise OutcomeUnknown(f"{self.address}: no answer")
        return found[0]

    def receive(self, data: bytes) -> None:
        for payload in self._frames.feed(data):
            command = decode_frame(payload)
            waiting = self._waiting.get(command.opaque)
            if command.is_response and waiting is not None:
                waiting[1].append(command)
                waiting[0].set()

    def closed(self) -> None:
        for event, _found in self._waiting.values():
            event.set()

    def close(self) -> None:
        self._end.close()


@asynccontextmanager
async def _connected(address: str, *, timeout: float = 3.0) -> AsyncIterator[Caller]:
    """`open_connection` for the tasks of a node."""
    node = CURRENT.get()
    host, _, port = str(address).rpartition(":")
    await trio.sleep(node.world.chance.uniform(0.0001, 0.002))
    try:
        end = node.net.connect(node.ip, None, (host, int(port)))
    except OSError as exc:
        await trio.sleep(timeout if isinstance(exc, TimeoutError) else 0.001)
        raise RopewalkError(f"cannot connect to {address}: {exc}") from exc
    caller = Caller(end, str(address))
    try:
        yield caller
    finally:
        caller.close()


# -- the world ---------------------------------------------------------------------------------------------


@dataclass
class History:
    """What happened, for the verdict and for whoever reads it."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Place (as in `Node.bodies`) -> body of each message that was answered 0."""
    unknown: int = 0
    handovers: int = 0
    failed_handovers: int = 0
    cuts: int = 0
    deaths: int = 0
    unfinished: str = ""
    """Why the group could not be brought to rest by the rules; nothing is said about it then."""
    events: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, safe_class: str) -> None:
        assert safe_class in ("A1", "A3")
        self.seed = seed
        self.safe_class = safe_class
        self.chance = random.Random(seed)
        self.net = Net(self.chance)
        self.history = History()
        self.registration: tuple[int, Node] | None = None
        flushes = safe_class == "A3"
        self.settings = {
            "mappedFileSizeCommitLog": str(self.chance.choice((1 << 16, 1 << 18))),
            "mappedFileSizeConsumeQueue": "2000",
            "messageIndexEnable": "false",
            "inSyncReplicas": "2",
            "slaveTimeout": "800",
            "flushDiskType": "SYNC_FLUSH" if flushes else "ASYNC_FLUSH",
            "ackAfterFlush": "true" if flushes else "false",
            "haListenPort": str(HA_PORT),
            "listenPort": str(BROKER_PORT),
            "namesrvAddr": "10.0.0.9:9876",
        }
        self.nodes = [Node(self, number) for number in range(3)]
        self.net.nodes = {node.ip: node for node in self.nodes}
        self._numbers = 0
        self._last_reign = 0
        self._asked = 0
        self._nursery: trio.Nursery
        self.quiet = False
        """Whether misfortune is over."""

    def now_ms(self) -> int:
        return START_MS + int(trio.current_time() * 1000)

    def monotonic_ms(self) -> int:
        return 86_400_000 + int(trio.current_time() * 1000)

    def log(self, who: object, text: str) -> None:
        self.history.events.append(f"{trio.current_time():8.3f} {who}: {text}")

    def registered(self, reign: int, node: Node) -> None:
        if self.registration is None or reign >= self.registration[0]:
            self.registration = reign, node

    # -- producers -------------------------------------------------------------------------------------

    async def produce(self, number: int) -> None:
        """Send one message after the other to whoever takes them."""
        chance, ip = self.chance, f"10.0.1.{number}"
        caller: Caller | None = None
        node = self.nodes[0]
        while True:
            await trio.sleep(chance.choice((0.001, 0.01, 0.05, 0.2)))
            if caller is None or not caller.is_open:
                node = chance.choice(self.nodes) if chance.random() < 0.5 else self._supposed_master()
                try:
                    caller = Caller(self.net.connect(ip, None, node.address), str(node))
                except OSError:
                    await trio.sleep(0.05)
                    continue
            self._numbers += 1
            body = f"{self.seed}:{self._numbers}:".encode() + bytes(chance.choice((0, 10, 900)))
            queue_id = chance.randrange(2)
            key = f"7F0000010ABC18B4AAC2{self._numbers:012X}"
            ext = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "2", "e": str(queue_id), "f": "0", "h": "0"}
            ext |= {
                "g": str(self.now_ms()),
                "i": f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
                "j": "0",
                "k": "false",
            }
            try:
                answer = await caller.call(
                    Command(RequestCode.SEND_MESSAGE_V2, {**ext, "m": "false"}, body), 3.0
                )
            except RopewalkError:
                self.history.unknown += 1
                caller.close()
                caller = None
                continue
            if answer.code == ResponseCode.SUCCESS:
                self._acknowledged(node, int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body)
            else:
                self.history.unknown += 1
                caller.close()
                caller = None

    def _supposed_master(self) -> Node:
        return self.registration[1] if self.registration is not None else self.nodes[0]

    def _acknowledged(self, node: Node, queue_id: int, queue_offset: int, body: bytes) -> None:
        place = queue_id << 40 | queue_offset
        if self.history.acknowledged.setdefault(place, body) != body:
            raise Broken(
                f"{node} gave place {queue_offset} of queue {queue_id} to a second message, with status 0"
            )

    def told_zero(self, node: Node) -> None:
        """A broker lets an answer of status 0 go, at this very moment."""
        reign = node.broker.member.record.reign
        if reign < self._last_reign:
            raise Broken(
                f"{node} gave status 0 in epoch {reign}, after a master of epoch {self._last_reign} did"
            )
        self._last_reign = reign

    # -- the operator ------------------------------------------------------------------------------------

    async def hand_over(self, kind: Kind, by: str) -> bool:
        """Carry out one handover, as `tools.ha_operator` does; whether it came to its end."""
        standings = await self.look_around()
        newest = max((each.reign for each in standings.values()), default=0)
        master = next(
            (each for each in standings.values() if each.role != SLAVE and each.reign == newest), None
        )
        target = ""
        if kind is Kind.SWITCH:
            slaves = [each for each in standings.values() if each.role == SLAVE]
            if master is None or not slaves:
                return False
            target = self.chance.choice(slaves).address
            old = master.address
        else:
            if master is not None:
                return False
            old = next((each.master for each in standings.values() if each.master not in standings), "")
        epoch = 1 + max((each.epoch for each in standings.values()), default=0)
        members = [Member(f"{node.ip}:{BROKER_PORT}", 0) for node in self.nodes]
        self.log("operator", f"{kind.value} to epoch {epoch}")
        handover = Handover(kind, members, epoch, by, master=old, target=target)
        async with trio.open_nursery() as nursery:
            phase = handover.phase
            until = trio.current_time() + 3

            def post(sends: list[Send]) -> None:
                for send in sends:
                    nursery.start_soon(carry, send)

            async def carry(send: Send) -> None:
                if send.ask is Ask.LOOK:
                    await trio.sleep(0.01)
                answer = await self._ask(send)
                if not handover.is_over:
                    post(handover.heard(send.address, send.ask, answer))

            post(handover.start())
            while not handover.is_over:
                await trio.sleep(0.01)
                if handover.phase is not phase:
                    phase, until = handover.phase, trio.current_time() + 3
                elif trio.current_time() > until:
                    until = trio.current_time() + 3
                    post(handover.time_is_up())
            nursery.cancel_scope.cancel()
        done = handover.phase is Phase.DONE
        self.history.handovers += done
        self.history.failed_handovers += not done
        self.log(
            "operator",
            f"{handover.phase.value}: {handover.winner.address if handover.winner else handover.reason}",
        )
        return done

    async def _ask(self, send: Send) -> Answer:
        message: Any = (
            RangesAsk([])
            if send.ask is Ask.LOOK
            else EpochAsk("DefaultCluster", NAME, send.epoch, send.by, send.broker_id, send.master)
        )
        try:
            answer = await self._call(send.address, Command(ASKS[send.ask], {}, encode(message)))
        except (RopewalkError, OSError):
            return Answer()
        if answer.code != ResponseCode.SUCCESS:
            return Answer(refusal=answer.remark or f"code {answer.code}")
        return Answer(decode_untrusted(StandingMessage, answer.body).standing())

    async def _call(self, address: str, command: Command) -> Command:
        host, _, port = address.rpartition(":")
        caller = Caller(self.net.connect(OPERATOR, None, (host, int(port))), address)
        try:
            return await caller.call(command, 1.0)
        finally:
            caller.close()

    async def look_around(self) -> dict[str, StandingMessage]:
        found: dict[str, StandingMessage] = {}
        for node in self.nodes:
            address = f"{node.ip}:{BROKER_PORT}"
            try:
                answer = await self._call(
                    address, Command(RequestCode.ROPEWALK_LOOK, {}, encode(RangesAsk([])))
                )
            except (RopewalkError, OSError):
                continue
            if answer.code == ResponseCode.SUCCESS:
                found[address] = decode_untrusted(StandingMessage, answer.body)
        return found

    # -- misfortune --------------------------------------------------------------------------------------

    async def trouble(self, seconds: float) -> None:
        """One thing after the other, until time is up: single strokes of bad luck, and such that go together."""
        chance, end = self.chance, trio.current_time() + seconds
        stories = (
            self._stroke,
            self._stroke,
            self._stroke,
            self._lagging_slave,
            self._lagging_slave,
            self._blind_operator,
            self._isolated_master,
            self._blackout,
        )
        while trio.current_time() < end:
            await trio.sleep(chance.uniform(0.05, 0.6))
            await chance.choice(stories)()
            if chance.random() < 0.3:
                self.net.heal()

    async def _stroke(self) -> None:
        chance, node = self.chance, self.chance.choice(self.nodes)
        kind = chance.choice(("die", "cut", "slow", "disk", "heal", "switch", "failover"))
        if kind == "die":
            self._kill(node)
        elif kind == "cut":
            self._cut(node, chance.choice([*(each.ip for each in self.nodes if each is not node), "ns"]))
        elif kind == "slow":
            self.net.slow.add(node.ip)
        elif kind == "disk":
            node.slow_disk = not node.slow_disk
        elif kind == "heal":
            self.net.heal()
        else:
            await self._operate(Kind.SWITCH if kind == "switch" else Kind.FAILOVER)

    async def _lagging_slave(self) -> None:
        """One slave misses a part; then the master goes, perhaps with the other slave, and somebody has to lead."""
        master, slaves = self._master_and_slaves()
        late = self.chance.choice(slaves)
        self._cut(master, late.ip)
        await trio.sleep(self.chance.uniform(0.2, 1.5))
        self._kill(master, self.chance.uniform(0.5, 4))
        if self.chance.random() < 0.4:
            self._kill(next(each for each in slaves if each is not late), self.chance.uniform(0.5, 4))
        self.net.heal()
        await self._operate(Kind.FAILOVER)
        await trio.sleep(self.chance.uniform(0, 1))

    async def _blind_operator(self) -> None:
        """The master is well, and the operator alone cannot reach it."""
        master, _slaves = self._master_and_slaves()
        self._cut(master, OPERATOR)
        await trio.sleep(self.chance.uniform(0, 0.3))
        await self._operate(Kind.FAILOVER)
        await trio.sleep(self.chance.uniform(0.1, 1.5))

    async def _isolated_master(self) -> None:
        """Producers reach the master, its slaves do not, or hear it without being heard."""
        master, slaves = self._master_and_slaves()
        for slave in slaves:
            self._cut(master, slave.ip)
        if self.chance.random() < 0.5:
            self._cut(master, OPERATOR)
        await trio.sleep(self.chance.uniform(0.2, 2))
        if self.chance.random() < 0.3:
            self._kill(master, self.chance.uniform(0.5, 4))
        await self._operate(self.chance.choice((Kind.FAILOVER, Kind.SWITCH)))
        await trio.sleep(self.chance.uniform(0, 1))

    async def _blackout(self) -> None:
        """Everybody goes at once, after one slave has missed a part; the old master comes back last."""
        master, slaves = self._master_and_slaves()
        late = self.chance.choice(slaves)
        self._cut(master, late.ip)
        late.slow_disk = self.chance.random() < 0.5
        await trio.sleep(self.chance.uniform(0.2, 1))
        for slave in slaves:
            self._kill(slave, self.chance.uniform(0.1, 0.5))
        self._kill(master, self.chance.uniform(2, 4))
        self.net.heal()
        await trio.sleep(0.7)
        await self._operate(Kind.FAILOVER)

    def _master_and_slaves(self) -> tuple[Node, list[Node]]:
        masters = [node for node in self.nodes if node.alive and node.broker.member.core.is_master]
        master = max(masters, key=lambda each: each.broker.member.record.reign, default=self.nodes[0])
        return master, [node for node in self.nodes if node is not master]

    def _kill(self, node: Node, down_s: float | None = None) -> None:
        if node.alive:
            self.history.deaths += 1
            node.die(power=self.safe_class == "A3" and self.chance.random() < 0.7)
            self._nursery.start_soon(self._start_later, node, down_s or self.chance.uniform(0.1, 4))

    def _cut(self, node: Node, other: str) -> None:
        way = self.chance.random()
        if way < 0.75:
            self.net.cuts.add((node.ip, other))
        if way > 0.25:
            self.net.cuts.add((other, node.ip))
        self.log(node, f"is cut from {other}")

    async def _operate(self, kind: Kind) -> None:
        self._asked += 1
        await self.hand_over(kind, f"operator {self._asked}")

    async def _start_later(self, node: Node, delay_s: float) -> None:
        await trio.sleep(delay_s)
        self.log(node, "starts")
        await node.live()
        if node.refused:
            self.log(node, "refuses to start")

    async def settle(self) -> Node | None:
        """Misfortune is over: bring the group to rest by the rules. None if these do not allow it."""
        self.quiet = True
        self.net.heal()
        for node in self.nodes:
            node.slow_disk = False
        for round_number in range(40):
            await trio.sleep(1)
            for node in self.nodes:
                if not node.alive and not node.refused:
                    self._nursery.start_soon(node.live)
            up = [node for node in self.nodes if node.alive]
            masters = [node for node in up if node.broker.member.core.is_master]
            if len(masters) == 1 and len(up) + sum(node.refused for node in self.nodes) == 3:
                (master,) = masters
                ends = {node.broker.store.whole_end for node in up}
                if (
                    len(ends) == 1
                    and len(master.broker.acks) == 0
                    and master.broker.replication.fence is None
                ):
                    return master
            if not masters and round_number % 4 == 3:
                await self.hand_over(Kind.FAILOVER, f"end{round_number}")
        return None

    # -- one run -----------------------------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        async with trio.open_nursery() as self._nursery:
            nursery = self._nursery
            nursery.start_soon(self.net.run)
            for node in self.nodes:
                nursery.start_soon(node.live)
            await trio.sleep(1)
            with trio.CancelScope() as producing:
                async with trio.open_nursery() as producers:
                    for number in range(3):
                        producers.start_soon(self.produce, number)
                    await self.trouble(seconds)
                    producing.cancel()
            await trio.sleep(2)
            master = await self.settle()
            if master is None:
                self.history.unfinished = "; ".join(node.state() for node in self.nodes)
                if not any(node.refused for node in self.nodes):
                    raise Broken(
                        f"everybody is up, and the group does not come to rest: {self.history.unfinished}"
                    )
            else:
                self.audit(master)
            nursery.cancel_scope.cancel()

    def audit(self, master: Node) -> None:
        found = master.bodies()
        for place, body in self.history.acknowledged.items():
            there = found.get(place)
            if there != body:
                what = "is gone" if there is None else f"is another one: {there[:30]!r}"
                raise Broken(
                    f"message {body[:20]!r}, answered 0 at offset {place & 0xFFFFFFFFFF} of queue {place >> 40}, {what}"
                    f" on {master}, the last master"
                )
        begin, data = master.log_bytes()
        for node in self.nodes:
            if node is master or not node.alive:
                continue
            its_begin, its_data = node.log_bytes()
            shift = its_begin - begin
            if data[max(shift, 0) :] != its_data[max(-shift, 0) :]:
                raise Broken(f"the logs of {master} and {node} are not the same bytes")


@contextmanager
def _surroundings(world: World) -> Iterator[None]:
    """Threads take steps, config files are in memory, connections are simulated, and lots are the seed's."""
    make_worker, make_flusher = Worker.__init__, Flusher.__init__

    def worker(self: Worker, name: str, completions: Completions, *, start: bool = True) -> None:
        make_worker(self, name, completions, start=False)
        CURRENT.get().workers.append(self)

    def flusher(
        self: Flusher, completions: Completions, on_flushed: Callable[[int], None], *, start: bool = True
    ) -> None:
        make_flusher(self, completions, on_flushed, start=False)
        CURRENT.get().flushers.append(self)

    def load(path: Path, crc_file: Path | None = None) -> tuple[dict[str, Any] | None, list[str]]:
        text = CURRENT.get().tables.get(path)
        return (None if text is None else fastjson.loads(text)), []

    def save(path: Path, data: bytes, crc_file: Path | None = None) -> None:
        CURRENT.get().tables[path] = data

    async def inline(function: Callable[..., Any], *args: Any) -> Any:
        await trio.sleep(world.chance.uniform(0, 0.003))
        return function(*args)

    with (
        mock.patch.object(Worker, "__init__", worker),
        mock.patch.object(Flusher, "__init__", flusher),
        mock.patch.object(json_file, "load", load),
        mock.patch.object(json_file, "save", save),
        mock.patch.object(slave_sync, "open_connection", _connected),
        mock.patch.object(trio.to_thread, "run_sync", inline),
        mock.patch("store.workers.Helpers.pause", lambda self: CURRENT.get().step_helpers()),
    ):
        yield


def run(seed: int, safe_class: str, seconds: float = 8.0) -> History:
    """One run. Raises `Broken`."""
    world = World.__new__(World)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)

    async def main() -> None:
        world.__init__(seed, safe_class)  # type: ignore[misc]
        with _surroundings(world):
            await world.run(seconds)

    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except* Broken as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        first.args = (f"{first}\n" + "\n".join(world.history.events[-40:]),)
        raise first from None
    return world.history
