"""Lives of a region of the key-value store: three whole brokers, clients with retries, and misfortune, from one seed.

As in `tests.sim.ledger`, whose network, disks and troubles these are; and the members' wall clocks go at rates of
their own, and jump. Snapshots are taken each few entries, of a log in small files, and members begin with them.

What is checked:

    calls are linearizable      values and sequences; tokens of locks rise, and guard what they are held for
    members are equal           the whole state, when all have applied the same; and what a read would find there
    snapshots are true          each is the state behind its entry
    one leader in a term        of the region, too
    it comes to rest            in time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast
from unittest import mock

from broker.kv import snapshots
from broker.kv.region import KvRegion
from broker.kv.snapshots import Limits
from ha.kv.machine import KvMachine
from ha.kv.snapshot import StateWalk, restored
from ropewalk.errors import CorruptRecord
from store import region_store
from tests.linear.checker import NotLinearizable, check
from tests.linear.history import UNKNOWN, Call
from tests.linear.models import COUNTER, LOCK, REGISTER
from tests.sim.events import START_S
from tests.sim.kv.clients import KvClient
from tests.sim.kv.node import KvNode
from tests.sim.ledger.node import SIZE, Broken, LedgerNode
from tests.sim.ledger.trouble import KINDS, Trouble
from tests.sim.ledger.world import World, live

__all__ = ["Broken", "KvWorld", "live_kv", "run"]

LIMITS = Limits(entries=30, keys_a_turn=4, again_ms=300)
SEGMENT_SIZE = 8 << 10
CLIENTS = 5


class KvTrouble(Trouble):
    """Misfortune of a group whose wall clocks may jump."""

    known: tuple[str, ...] = (*KINDS, "clock jumps", "clock jumps", "away")

    def _do(self, kind: str, node: LedgerNode) -> None:
        if kind == "clock jumps":
            assert isinstance(node, KvNode)
            node.wall_offset_ms += self._world.chance.choice((-60_000, -400, 400, 5_000, 3_600_000))
        elif kind == "away":  # until all is healed: the others' logs begin behind its end by then
            self._world.deaths += node.alive
            node.die(power=self._world.chance.random() < 0.5)
        elif kind == "transfer":
            assert isinstance(node, KvNode)
            if node.leads_region and not node.is_asleep:
                self._world.transfers += 1
                node.turn(lambda: node.region.ledger.transfer("", lambda result: None))
        else:
            super()._do(kind, node)


class KvWorld(World):
    """One life of a group with a region."""

    nodes: Sequence[KvNode]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen: dict[tuple[str, int], int | None] = {}
        self.writes = 0
        self.snapshots = self.restored = self.installed = 0
        self.states: dict[tuple[int, int], str] = {}
        """By region and index of the entry behind which a snapshot was begun: a hash of the state there."""
        self._region_leaders: dict[tuple[int, int], str] = {}

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        nodes = [
            KvNode(self, number, settings | {"ropewalkKvRegions": "1", "raftLeaseReads": "false"})
            for number in range(SIZE)
        ]
        if self.chance.random() < 0.5:
            for node in nodes:
                node.wall_rate = self.chance.uniform(0.5, 2.0)
                node.wall_offset_ms = self.chance.randrange(-2_000, 2_000)
        return nodes

    def _make_trouble(self) -> Trouble:
        return KvTrouble(self)

    def _begin(self) -> None:
        for number in range(CLIENTS):
            KvClient(self, number)

    # -- what clients ask of it --------------------------------------------------------------------------

    def key(self) -> int:
        """Return the number of a key that is used at the moment, or was a moment ago."""
        return int((self.events.now - START_S) * 2) + self.chance.randrange(2)

    def supposed_leader(self) -> LedgerNode:
        leaders = [node for node in self.nodes if node.leads_region]
        if not leaders:
            return self.chance.choice(self.nodes)
        return max(leaders, key=lambda node: node.region.ledger.standing.term)

    # -- the verdict -------------------------------------------------------------------------------------

    def _look(self) -> None:
        super()._look()
        for node in self.nodes:
            for region in node.regions:
                if region.leads:
                    place = region.machine.region.id, region.ledger.standing.term
                    if self._region_leaders.setdefault(place, node.id) != node.id:
                        raise Broken(f"{node.id} and {self._region_leaders[place]} lead region, term {place}")

    def _rests(self) -> bool:
        regions = [node.regions for node in self.nodes]
        if self._leader() is None or len({len(each) for each in regions}) > 1:
            return False
        return all(map(_is_at_rest, zip(*regions, strict=True)))

    def _state(self, node: LedgerNode) -> str:
        if not node.alive:
            return f"{node} is down"
        assert isinstance(node, KvNode)
        return f"{node}: " + ", ".join(
            f"region {each.machine.region.id} {each.ledger.standing}, end {each.ledger.core.log.end}, applied "
            f"{each.machine.applied}"
            for each in node.regions
        )

    def _judge(self) -> None:
        for same in zip(*(node.regions for node in self.nodes), strict=True):
            digests = [region.machine.digest() for region in same]
            if len({*digests}) > 1:
                raise Broken(f"members differ that have applied the same entries: {digests}")
        for node in self.nodes:
            for region in node.regions:
                self._judge_snapshots(node, region)
                self.restored += region.restored >= 0
        self._judge_calls()

    def _judge_snapshots(self, node: KvNode, region: KvRegion) -> None:
        """A snapshot on disk is the state behind its entry, though the region went on while it was taken."""
        id = region.machine.region.id
        root = node.config.store_path_root_dir / "kv" / str(id) / "snapshots"
        for index, _term, _pos in region.snapshots.points:
            try:
                machine, _head = restored(node.disk.read_file(root / f"{index:020d}") or b"", 1 << 30)
            except CorruptRecord as damaged:
                raise Broken(f"the snapshot of {node} behind entry {index}: {damaged}") from damaged
            self.snapshots += 1
            if machine.digest() != self.states.get((id, index), machine.digest()):
                raise Broken(
                    f"the snapshot of {node} behind entry {index} is another state than it was there"
                )

    def _judge_calls(self) -> None:
        calls = [each for each in self.recorder.calls if not _is_open_read(each)]
        machine, now = self.nodes[0].region.machine, self.events.now - START_S
        keys = {cast(tuple[str, int], each.key) for each in calls}
        for kind, number in sorted(keys):
            found: Any
            if kind == "value":
                text = machine.get(b"value-%d" % number)
                found = None if text is None else int(text)
            elif kind == "number":
                found = machine.sequences.get(b"number-%d" % number, 0)
            else:
                continue
            calls.append(Call("at rest", (kind, number), ("read",), now, now, found))
        try:
            for kind, model in (("value", REGISTER), ("number", COUNTER), ("lock", LOCK)):
                check([each for each in calls if cast(tuple[str, int], each.key)[0] == kind], model)
        except NotLinearizable as found_out:
            raise Broken(str(found_out)) from found_out


def _is_open_read(call: Call) -> bool:
    return call.operation == ("read",) and call.result is UNKNOWN


def _is_at_rest(same: tuple[KvRegion, ...]) -> bool:
    """Return whether one region, as each member has it, is led by one of them, and all have applied its log."""
    leaders = [region for region in same if region.leads]
    ends = {region.ledger.core.log.end for region in same}
    return (
        len(leaders) == len(ends) == 1
        and not leaders[0].waiting
        and {region.machine.applied for region in same} == {end.index for end in ends}
    )


def run(seed: int) -> KvWorld:
    """Live one life, and return it. Raises `Broken`, with what happened last."""
    return live_kv(seed, KvWorld, LIMITS, SEGMENT_SIZE)


W = TypeVar("W", bound=KvWorld)


def live_kv(seed: int, make: Callable[[int], W], limits: Limits, segment_size: int) -> W:
    """Live the life of a world with regions, and return it. Raises `Broken`."""
    states: dict[tuple[int, int], str] = {}

    def walk(machine: KvMachine, term: int, pos: int) -> StateWalk:
        states[machine.region.id, machine.applied] = machine.digest()
        return StateWalk(machine, term, pos)

    def begin(seed: int) -> W:
        world = make(seed)
        world.states = states
        return world

    with (
        mock.patch.object(snapshots, "StateWalk", walk),
        mock.patch.object(snapshots, "LIMITS", limits),
        mock.patch.object(region_store, "SEGMENT_SIZE", segment_size),
    ):
        return live(seed, begin)
