"""Lives of one broker group: a master and two slaves, producers, and an operator, under seeded misfortune.

Everything that decides is shipped code: whole brokers with their stores, replication, members and their tasks, the
name server, and the handovers of `ha.group.handover`. What is made up is what surrounds them: clock, network, disks,
the moment at which a helper thread runs, who sends what when, which process or machine dies. One seed draws all of it.

    events         time, and what is due              net             connections, cuts
    disk           a machine's disk                   group_node      one machine, and what its process does
    group_callers  who talks to the group             group_trouble   what happens to it

What is checked, always and at the end:

    nobody is told 0 by two masters     once a master of a later epoch said 0, no earlier one does, nor does a slave,
                                        but late and for what the later one has
    nothing acknowledged is lost        every message that was answered 0 is in the last master's queues, in order
    copies agree                        the logs of all that are left are the same bytes, from the first to the last
    the route names the master          whoever was deposed never takes a newer master's place at the name server
    it comes to rest                    when misfortune ends, the group is one master and its slaves again, in time

Runs of class A1 kill processes; runs of class A3 (both machines flush before it counts) take the power from machines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
import trio
from trio._core import _run as trio_run  # its scheduler draws lots: they have to be the seed's

from ha.group.handover import HandoverKind
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.sim.events import START_S, Events
from tests.sim.group_callers import NameServerHost, Operator, Producer
from tests.sim.group_node import (
    CLUSTER,
    HA_PORT,
    NAME,
    NAME_SERVER,
    TOPIC,
    Broken,
    Node,
    surroundings,
)
from tests.sim.group_trouble import NAME_SERVER_IP, Trouble
from tests.sim.machine import BROKER_PORT
from tests.sim.net import End, Net

__all__ = ["Broken", "History", "World", "run"]

START_MS = 1_700_000_000_000
REST_S = 40
"""How long the group may take to come to rest when nothing disturbs it any more."""

_STORED = b'{"code":0,"extFields":{"MSG_REGION"'
_ANSWERED = re.compile(rb'"queueId":"(\d+)","queueOffset":"(\d+)","transactionId":"([0-9A-F]+)"')
"""How the answer to a send begins that was stored and is as safe as its broker promises."""


@dataclass
class History:
    """What happened, for the verdict and for whoever reads it."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Place (as in `Node.bodies`) -> body of each message that was answered 0."""
    unknown: int = 0
    handovers: int = 0
    failed_handovers: int = 0
    deaths: int = 0
    seconds: float = 0.0
    """How long the life was, by its own clock."""
    unfinished: str = ""
    """Why only a person can bring the group to rest: a store is damaged, or a promise left to an operator that died."""
    events: list[str] = field(default_factory=list)


class World:
    def __init__(self, seed: int, safe_class: str, events: Events) -> None:
        assert safe_class in ("A1", "A3")
        self.seed = seed
        self.chance = random.Random(f"{seed} {safe_class}")
        self.power_fails = safe_class == "A3"
        """Whether machines lose their power, and not only processes their lives."""
        self.events = events
        self.net = Net(self.chance, events)
        self.net.on_sent = self._sent
        self.net.half_open = self.chance.choice((0.0, 0.3))
        self.history = History()
        self.copies = self.chance.choice((2, 2, 3))
        """On how many machines a message has to be before it is acknowledged."""
        self.settings = {
            "mappedFileSizeCommitLog": str(self.chance.choice((1 << 16, 1 << 17))),
            "mappedFileSizeConsumeQueue": "2000",
            "messageIndexEnable": "false",
            "inSyncReplicas": str(self.copies),
            "slaveTimeout": "800",
            "flushDiskType": "SYNC_FLUSH" if self.power_fails else "ASYNC_FLUSH",
            "ackAfterFlush": "true" if self.power_fails else "false",
            "haListenPort": str(HA_PORT),
            "listenPort": str(BROKER_PORT),
            "namesrvAddr": NAME_SERVER,
        }
        self.nodes = [Node(self, number) for number in range(3)]
        self.name_server = NameServerHost(self.monotonic_ms, self._registered)
        self.net.hosts = {node.ip: node for node in self.nodes} | {NAME_SERVER_IP: self.name_server}
        self.operator = Operator(self)
        self.step_ms = 0
        """By how much the clocks of all machines were set."""
        self.quiet = False
        """Whether misfortune is over."""
        self._numbers = 0
        self._last_reign = 0
        self._in_route: Node | None = None
        self._nursery: trio.Nursery

    def now_ms(self) -> int:
        return START_MS + int(self.events.now * 1000) + self.step_ms

    def monotonic_ms(self) -> int:
        return 86_400_000 + int(self.events.now * 1000)

    def log(self, who: object, text: str) -> None:
        self.history.events.append(f"{self.events.now - START_S:8.3f} {who}: {text}")

    # -- what producers send and are told ----------------------------------------------------------------

    def next_message(self) -> tuple[Command, bytes]:
        """A send that nobody sent before, and its body."""
        self._numbers += 1
        body = f"{self.seed}:{self._numbers}:".encode() + bytes(self.chance.choice((0, 10, 900, 5000)))
        key = f"7F0000010ABC18B4AAC2{self._numbers:012X}"
        ext = {
            "a": "p",
            "b": TOPIC,
            "c": "TBW102",
            "d": "2",
            "e": str(self.chance.randrange(2)),
            "f": "0",
            "g": str(self.now_ms()),
            "h": "0",
            "i": f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        return Command(RequestCode.SEND_MESSAGE_V2, ext, body), body

    def acknowledged(self, node: Node, queue_id: int, queue_offset: int, body: bytes) -> None:
        place = queue_id << 40 | queue_offset
        if self.history.acknowledged.setdefault(place, body) != body:
            raise Broken(
                f"{node} gave place {queue_offset} of queue {queue_id} to a second message, with status 0"
            )

    def _sent(self, end: End, piece: bytes) -> None:
        """Something leaves, at this very moment."""
        node = end.host
        if _STORED not in piece or not isinstance(node, Node):
            return
        leader_epoch = node.broker.member.record.leader_epoch
        if not node.is_master:
            self._broken(f"{node} gave status 0 when it was deposed already")
        elif leader_epoch < self._last_reign and not self._is_late_truth(piece):
            self._broken(
                f"{node} gave status 0 in epoch {leader_epoch}, after a master of epoch {self._last_reign} did"
            )
        self._last_reign = max(leader_epoch, self._last_reign)

    def _is_late_truth(self, piece: bytes) -> bool:
        """Whether the newest master has all that is answered here: what slaves had before they followed it is safe.

        Its answer can come late, because the old master waited for its own disk, or because the network did.
        """
        newest = [
            node for node in self.nodes if node.alive and node.is_master and node.led == self._last_reign
        ]
        if not newest:
            return False
        found = newest[0].bodies(TOPIC)
        for queue_id, queue_offset, key in _ANSWERED.findall(piece):
            body = found.get(int(queue_id) << 40 | int(queue_offset), b"")
            if not body.startswith(b"%d:%d:" % (self.seed, int(key[-12:], 16))):
                return False
        return True

    def _broken(self, why: str) -> None:
        """End the run, though whoever is on the stack may catch what a handler raises."""

        def end() -> None:
            raise Broken(why)

        self.events.later(0, end)

    # -- what the name server knows ----------------------------------------------------------------------

    def _members(self) -> dict[int, str]:
        group = self.name_server.server.table.members(CLUSTER, NAME)
        return {int(number): address for number, address in group.broker_addrs.items()}

    def supposed_master(self) -> Node:
        return self._in_route or self.chance.choice(self.nodes)

    def _registered(self) -> None:
        address = self._members().get(0)
        node = next((each for each in self.nodes if f"{each.ip}:{BROKER_PORT}" == address), None)
        before, self._in_route = self._in_route, node
        if before is not None and node is not None and node.led < before.led:
            self._broken(
                f"{node}, which led in epoch {node.led} last, took the place of {before}, the master of epoch "
                f"{before.led}, at the name server"
            )

    # -- one run -----------------------------------------------------------------------------------------

    async def start(self, node: Node, delay_s: float = 0.0) -> None:
        await trio.sleep(delay_s)
        if not node.alive and not node.refused:
            self.log(node, "starts")
            await node.live()

    async def run(self, seconds: float | None) -> None:
        async with trio.open_nursery() as self._nursery:
            nursery = self._nursery
            nursery.start_soon(self.events.run)
            for node in self.nodes:
                nursery.start_soon(self.start, node)
            await self._until_rest(5.0)
            self.begin_load()
            await trio.sleep(self.chance.uniform(0, 0.4))
            await self.suffer(nursery, seconds)
            self.net.heal()
            await trio.sleep(self.chance.uniform(0, 0.5))
            self.quiet = True
            master = await self._settle()
            if master is not None:
                await self.until_done(master)
                self._audit(master)
                self._compare(master)
            elif (newest := max(self.nodes, key=lambda each: each.led)).is_master:
                self._audit(newest)  # where it does not start any more, nobody else need have all
            nursery.cancel_scope.cancel()
        self.history.seconds = self.events.now - START_S

    async def suffer(self, nursery: trio.Nursery, seconds: float | None) -> None:
        """Have misfortune, for so long or as long as the seed says."""
        await Trouble(self, nursery).go_on(seconds or self.chance.choice((1.0, 2.0, 3.0, 6.0)))

    def begin_load(self) -> None:
        """Have clients send until misfortune is over."""
        for number in range(3):
            Producer(self, number)

    async def until_done(self, master: Node) -> None:
        """Wait for the work that a group at rest still has to do."""

    async def _until_rest(self, seconds: float) -> Node | None:
        until = self.events.now + seconds
        while self.events.now < until:
            await trio.sleep(0.1)
            if (master := self._at_rest()) is not None:
                return master
        return None

    def _at_rest(self) -> Node | None:
        """The one master, if all that can be up is up and has the same."""
        up = [node for node in self.nodes if node.alive]
        masters = [node for node in up if node.is_master]
        if len(masters) != 1 or len(up) + sum(node.refused for node in self.nodes) != len(self.nodes):
            return None
        (master,) = masters
        broker = master.broker
        others = [node for node in up if node is not master]
        if len(broker.acks) or broker.replication.fence is not None or self._in_route is not master:
            return None
        if len({node.broker.store.whole_end for node in up}) != 1:
            return None
        if len(broker.replication.service.counted()) != len(others):
            return None
        return master

    async def _settle(self) -> Node | None:
        """Misfortune is over: bring the group to rest by the rules. None if these do not allow it."""
        for node in self.nodes:
            node.slow_disk = False
            node.disk.crash_after = 1 << 60
        until = self.events.now + REST_S
        while self.events.now < until:
            for node in self.nodes:
                if not node.alive and not node.refused:
                    self._nursery.start_soon(self.start, node)
            if (master := await self._until_rest(4.0)) is not None:
                return master
            await self.act_as_a_person()
        states = "; ".join(node.state() for node in self.nodes)
        records = [node.broker.member.record for node in self.nodes if node.alive]
        free = len(records) == len(self.nodes) and not any(
            record.promised_epoch > record.leader_epoch for record in records
        )
        # Two operators who asked at once can have made two masters of one epoch where three copies are needed: neither
        # gets them, so neither acknowledges anything, and a person has to say which one stays.
        leader_epochs = [node.broker.member.record.leader_epoch for node in self.nodes if node.is_master]
        if free and len(set(leader_epochs)) == len(leader_epochs):
            raise Broken(f"everybody is up and free, and the group does not come to rest: {states}")
        self.history.unfinished = states
        return None

    async def act_as_a_person(self) -> None:
        """Nothing moves any more: promises to operators that are gone, or two that asked at once, are left."""
        up = [node for node in self.nodes if node.alive]
        masters = [node for node in up if node.is_master]
        records = [node.broker.member.record for node in up]
        if not masters:
            await self.operator.hand_over(HandoverKind.FAILOVER)
        elif len(masters) > 1 or any(record.promised_epoch > record.leader_epoch for record in records):
            if not await self.operator.hand_over(HandoverKind.SWITCH, closest=True):
                await self.operator.hand_over(HandoverKind.FAILOVER, unseen=masters)

    def _audit(self, master: Node) -> None:
        found = master.bodies(TOPIC)
        for place, body in self.history.acknowledged.items():
            there = found.get(place)
            if there != body:
                what = "is gone" if there is None else f"is another one: {there[:30]!r}"
                raise Broken(
                    f"message {body[:20]!r}, answered 0 at offset {place & 0xFFFFFFFFFF} of queue {place >> 40}, {what}"
                    f" on {master}, the last master"
                )

    def _compare(self, master: Node) -> None:
        begin, data = master.log_bytes()
        for node in self.nodes:
            if node is master or not node.alive:
                continue
            its_begin, its_data = node.log_bytes()
            shift = its_begin - begin
            if data[max(shift, 0) :] != its_data[max(-shift, 0) :]:
                raise Broken(f"the logs of {master} and {node} are not the same bytes")


@contextmanager
def _quiet_and_determined() -> Iterator[None]:
    """Nothing in the log, and trio's tasks in an order that the seed decides; afterwards as before."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        yield
    finally:
        structlog.configure(**before)
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = False  # type: ignore[misc]


def run(
    seed: int,
    safe_class: str,
    seconds: float | None = None,
    make: Callable[[int, str, Events], World] = World,
) -> History:
    """One life, in which misfortune lasts for so long, or as long as the seed says. Raises `Broken`."""
    trio_run._r.seed(seed)
    events = Events()
    world: World | None = None

    async def main() -> None:
        nonlocal world
        world = make(seed, safe_class, events)
        with surroundings(world):
            await world.run(seconds)

    first: BaseException | None = None
    try:
        with _quiet_and_determined():
            trio.run(main, clock=events)
    except* Broken as group:
        first = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
    assert world is not None
    if first is not None:  # raised in the clause above it would be a group again on some Pythons
        first.args = (f"{first}\n" + "\n".join(world.history.events[-40:]),)
        raise first
    return world.history
