"""Lives of one DLedger group of whole brokers: three members, clients, and misfortune, all from one seed. No trio.

Everything that decides is shipped code: brokers with their stores, the Raft core and its shell, links between members,
tables in the log. Clock, network, disks, helper threads and clients are made up.

    storm    members die, lose power, stall, stop, are cut off one way or both; the lead is handed over
    calm     all is healed and started: the group comes to rest

What is checked:

    one leader in a term                no two members say that they were elected in it
    reads are linearizable              of the ends of queues (30) and offsets of a group (14), at any member
    nothing acknowledged is lost        every message that was answered 0 is in its place on every member; delayed
                                        ones were delivered; those of a topic that was deleted and created again,
                                        since then
    members are equal                   bytes of the log, queues, topics, groups, offsets
    it comes to rest                    in time, with one leader
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import structlog

from broker.state.groups import SubscriptionGroupConfig
from ropewalk.format import names
from tests.linear.checker import NotLinearizable, check
from tests.linear.history import Call, Recorder
from tests.linear.models import LOG, REGISTER
from tests.sim.events import START_S, Events
from tests.sim.ledger.clients import DELAYED, GROUP, PATIENCE_S, TOPIC, Client, Recreator
from tests.sim.ledger.node import SIZE, Broken, LedgerNode
from tests.sim.ledger.trouble import Trouble
from tests.sim.machine import machinery
from tests.sim.net import Net

__all__ = ["START_MS", "Broken", "World", "live", "run"]

START_MS = 1_700_000_000_000
REST_S = 20.0
"""How long the group may take to come to rest when nothing disturbs it any more."""
LOOK_S = 0.04
SETTLE_S = 0.2
"""More than offsets of consumers wait to be logged."""


class World:
    """One life of a group."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(f"ledger {seed}")
        self.power_fails = True
        self.events = Events()
        self.net = Net(chance, self.events)
        self.net.half_open = chance.choice((0.0, 0.3))
        self.told: list[str] = []
        self.recorder = Recorder(lambda: self.events.now - START_S)
        self.quiet = False
        """Whether clients send no more."""
        self.delayed: list[bytes] = []
        """Bodies of acknowledged messages that are to be delivered later."""
        self.topics: list[str] = []
        """Topics that were made by a message that was acknowledged."""
        self.recreated_topic = "again"
        self.recreated: list[bytes] = []
        """Bodies of acknowledged messages of that topic since it was deleted last."""
        self.deletions = 0
        self.reads = self.deaths = self.transfers = 0
        self.messages: dict[int, bytes] = {}
        """By place, queue id and offset in one number: the body of each message that was answered 0."""
        self._number = 0
        self.callers: list[Client] = []
        """All clients: each adds itself."""
        self.elected: dict[int, str] = {}
        """By term: who was elected in it."""
        settings = {
            "mappedFileSizeCommitLog": str(chance.choice((1 << 16, 1 << 17))),
            "mappedFileSizeConsumeQueue": "2000",
            "messageIndexEnable": "false",
            "timerWheelEnable": "false",
            "messageDelayLevel": "1s 2s",
            "raftHeartbeatMs": "40",
            "raftElectionMs": "200-360",
            "raftLeaseReads": str(seed % 3 == 1).lower(),
        }
        self.nodes = self._make_nodes(settings)
        self.net.hosts = {node.ip: node for node in self.nodes}
        if chance.random() < 0.5:
            for node in self.nodes:  # leases stand a tenth between two clocks
                node.rate, node.offset_ms = chance.uniform(0.96, 1.04), chance.randrange(1_000_000)

    # -- what members and clients ask of it --------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the wall clock of all machines."""
        return START_MS + int((self.events.now - START_S) * 1000)

    def log(self, who: object, text: str) -> None:
        """Note an event."""
        self.told.append(f"{self.events.now - START_S:8.3f} {who}: {text}")

    def next_number(self) -> int:
        """Return a number that nobody had before."""
        self._number += 1
        return self._number

    def next_body(self) -> bytes:
        """Return a body that nobody sent before."""
        return f"{self.seed}:{self.next_number()}:".encode() + bytes(self.chance.choice((0, 10, 900, 5000)))

    def offset_key(self) -> int:
        """Return the queue whose offset is written at the moment, or was a moment ago."""
        return int((self.events.now - START_S) * 2) + self.chance.randrange(2)

    def supposed_leader(self) -> LedgerNode:
        """Return the member that a client takes for the leader."""
        leaders = [node for node in self.nodes if node.leads]
        return max(leaders, key=lambda node: node.term) if leaders else self.chance.choice(self.nodes)

    def acknowledged(self, queue_id: int, place: int, body: bytes) -> None:
        """Note a message that was answered 0."""
        if self.messages.setdefault(queue_id << 40 | place, body) != body:
            raise Broken(f"place {place} of queue {queue_id} was given to two messages, with status 0")

    def start_later(self, node: LedgerNode, delay_s: float) -> None:
        """Have a machine start again."""
        self.events.later(delay_s, node.start)

    # -- a life ------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Live it. Raises `Broken`."""
        for node in self.nodes:
            node.start()
        self._look()
        self._until(lambda: self._leader() is not None, 10.0, "elect a leader")
        self._begin()
        self._storm()
        self.quiet = True
        self._calm()
        self._until(self._rests, REST_S, "come to rest")
        self._judge()

    def _storm(self) -> None:
        """Have misfortune for a while, and end it."""
        trouble = self._make_trouble()
        self.events.run_until(self.events.now + self.chance.choice((1.5, 2.5, 4.0)))
        trouble.is_over = True
        self._heal()
        self.events.run_until(self.events.now + self.chance.uniform(0, 0.5))

    def _calm(self) -> None:
        """Wait for calls under way, and what they leave to log."""
        until = self.events.now + PATIENCE_S
        while self.events.now < until and any(client.waits for client in self.callers):
            self.events.run_until(self.events.now + 0.05)
        self.events.run_until(self.events.now + SETTLE_S)

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        return [LedgerNode(self, number, settings) for number in range(SIZE)]

    def _make_trouble(self) -> Trouble:
        return Trouble(self)

    def _begin(self) -> None:
        """Have clients, once there is a leader."""
        leader = self._leader()
        assert leader is not None
        leader.turn(
            lambda: leader.broker.groups.update(
                SubscriptionGroupConfig(GROUP), leader.broker.context.now_ms()
            )
        )
        for number in range(4):
            Client(self, number)
        if self.seed % 5 == 2:
            Recreator(self, 4)

    def _heal(self) -> None:
        self.log("world", "heals")
        self.net.heal()
        for node in self.nodes:
            node.slow_disk = False
            node.disk.crash_after = 1 << 60
            if not node.alive:
                node.start()

    def _until(self, condition: object, seconds: float, what: str) -> None:
        assert callable(condition)
        until = self.events.now + seconds
        while not condition():
            if self.events.now >= until:
                states = "; ".join(self._state(node) for node in self.nodes)
                raise Broken(f"the group did not {what}: {states}")
            self.events.run_until(self.events.now + 0.05)

    def _state(self, node: LedgerNode) -> str:
        if not node.alive:
            return f"{node} is down"
        ledger = node.member.ledger
        return f"{node} {ledger.standing}, end {ledger.core.log.end}, shown {ledger.shown.end}"

    def _look(self) -> None:
        """See who says that it was elected."""
        for node in self.nodes:
            if node.elected and self.elected.setdefault(node.term, node.id) != node.id:
                raise Broken(f"{node.id} and {self.elected[node.term]} lead term {node.term}")
        self.events.later(LOOK_S, self._look)

    def _leader(self) -> LedgerNode | None:
        """Return the one member that leads, if all follow it."""
        leaders = [node for node in self.nodes if node.leads]
        if len(leaders) != 1 or not all(
            node.alive and node.member.ledger.standing.leader == leaders[0].id for node in self.nodes
        ):
            return None
        return leaders[0]

    def _rests(self) -> bool:
        leader = self._leader()
        if leader is None or len(leader.broker.acks):
            return False
        if not {*self.delayed} <= {*leader.bodies(DELAYED).values()}:
            return False
        ends = {node.member.ledger.core.log.end for node in self.nodes}
        return len(ends) == 1 and all(node.member.ledger.shown.end in ends for node in self.nodes)

    # -- the verdict -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        for node in self.nodes:
            self._judge_messages(node)
            self._judge_tables(node, self.nodes[0])
        self._judge_reads()

    def _judge_messages(self, node: LedgerNode) -> None:
        found = node.bodies(TOPIC)
        for place, body in self.messages.items():
            if found.get(place) != body:
                what = "is gone" if place not in found else f"is another one: {found[place][:30]!r}"
                raise Broken(
                    f"message {body[:20]!r}, answered 0 at offset {place & 0xFFFFFFFFFF} of queue {place >> 40}, {what}"
                    f" on {node}"
                )
        present = [*node.bodies(self.recreated_topic).values()]
        if [body for body in present if body in self.recreated] != self.recreated:
            raise Broken(
                f"messages of a topic that was created again, answered 0, are not there in order on {node}: "
                f"{[body[:20] for body in self.recreated]}, found {[body[:20] for body in present]}"
            )
        delivered = {*node.bodies(DELAYED).values()}
        for body in (
            self.delayed
        ):  # perhaps twice: a leader may die when it has told the copy and not yet the progress
            if body not in delivered:
                raise Broken(f"delayed message {body[:20]!r} was never delivered on {node}")

    def _judge_tables(self, node: LedgerNode, first: LedgerNode) -> None:
        for what, one, other in zip(
            ("log", "messages", "topics", "groups", "offsets"),
            self._tables(node),
            self._tables(first),
            strict=True,
        ):
            if one != other:
                raise Broken(f"{what} of {node} and {first} differ: {str(one)[:300]} and {str(other)[:300]}")
        for topic in self.topics:
            if topic not in node.broker.topics:
                raise Broken(f"{topic} has a message that was answered 0, and is no topic of {node}")

    def _tables(self, node: LedgerNode) -> tuple[object, ...]:
        broker = node.broker
        offsets = broker.offsets
        return (
            node.log_bytes(),
            node.bodies(TOPIC),
            {each.name: each.to_json() for each in broker.topics if each.name not in names.HIDDEN_TOPICS},
            {each.name: each.to_json() for each in broker.groups},
            sorted((topic, group, sorted(q.items())) for topic, group, q in offsets.pairs(len(offsets))),
        )

    def _judge_reads(self) -> None:
        calls = self.recorder.calls
        for call in [*calls]:
            if call.operation == ("read",) and call.end == float("inf"):
                calls.remove(call)  # under way when clients stopped
        for key in {call.key for call in calls}:
            for node in self.nodes:
                calls.append(self._last_read(node, key))
        ends = [call for call in calls if call.key[0] == "end"]  # type: ignore[index]
        offsets = [call for call in calls if call.key[0] == "offset"]  # type: ignore[index]
        try:
            check(ends, LOG)
            check(offsets, REGISTER)
        except NotLinearizable as found:
            raise Broken(str(found)) from found

    def _last_read(self, node: LedgerNode, key: object) -> Call:
        assert isinstance(key, tuple)
        broker, now = node.broker, self.events.now - START_S
        found: int | None
        if key[0] == "offset":
            found = broker.offsets.query(GROUP, TOPIC, key[1])
        else:
            queue = broker.store.find_queue(TOPIC, key[1])
            found = queue.readable if queue is not None else 0
        return Call(f"{node} at rest", key, ("read",), now, now, found)


@contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    try:
        yield
    finally:
        structlog.configure(**before)


W = TypeVar("W", bound=World)


def run(seed: int) -> World:
    """Live one life, and return it. Raises `Broken`, with what happened last."""
    return live(seed, World)


def live(seed: int, make: Callable[[int], W]) -> W:
    """Live the life of a world of some kind, and return it. Raises `Broken`."""
    with _quiet(), machinery():
        world = make(seed)
        try:
            world.live()
        except AssertionError as failed:
            failed.args = (f"{failed}\n" + "\n".join(world.told[-40:]),)
            raise
    return world
