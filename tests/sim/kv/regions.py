"""Lives of a whole store: three whole brokers, four regions and more that are cut from them, and the shipped client.

As `tests.sim.kv.world`, whose checks these are for each region; and clients are the shipped client's core, which finds
regions and leaders, sends again, and goes on where keys have moved. Wall clocks jump, and change their rates. A life
lasts until so many calls have ended; the misfortunes change every few seconds.

    regions are whole     members have the same ones, which have every key once
    locks are exclusive   no lease ends before its time, however wrong a wall clock is
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.kv.snapshots import Limits
from ropewalk.format.remoting import Command
from tests.linear.checker import NotLinearizable
from tests.linear.history import UNKNOWN, Call
from tests.linear.kv_calls import CUTS, Book, Torn
from tests.sim.events import START_S
from tests.sim.kv.conversations import Operator, RegionsClient, name_server_answer
from tests.sim.kv.node import KvNode
from tests.sim.kv.world import Broken, KvTrouble, KvWorld, live_kv
from tests.sim.ledger.node import SIZE, LedgerNode
from tests.sim.ledger.trouble import Trouble

__all__ = ["LONG", "OPERATIONS", "Broken", "RegionsWorld", "run"]

OPERATIONS = 400
"""The calls of a short life."""
LONG = 10_000
CLIENTS = 6
WINDOW_S = 0.5
LEASE_S = 0.15
AWAY_S = 2.0, 10.0
"""How long a member is away, so that the others' logs begin behind its end by then."""
SEGMENT_SIZE = 4 << 10
LIMITS = Limits(entries=40, keys_a_turn=20, again_ms=300)


class RegionsTrouble(KvTrouble):
    """Misfortune of a group with regions."""

    known = (*KvTrouble.known, "clock rate")

    def __init__(self, world: RegionsWorld) -> None:
        self._regions = world
        super().__init__(world)

    def _do(self, kind: str, node: LedgerNode) -> None:
        assert isinstance(node, KvNode)
        chance = self._world.chance
        if kind == "away":
            if not any(other.is_away for other in self._regions.nodes):
                self._world.deaths += node.alive
                node.die(power=chance.random() < 0.5)
                node.is_away = True
                self._world.events.later(chance.uniform(*AWAY_S), node.come_back)
        elif kind == "clock rate":
            node.set_wall_rate(chance.choice((0.0, 0.5, 1.0, 3.0)))
        elif kind == "transfer" and node.alive and not node.is_asleep:
            led = [region for region in node.regions if region.leads]
            if led:
                self._world.transfers += 1
                ledger = chance.choice(led).ledger
                node.turn(lambda: ledger.transfer("", lambda result: None))
        else:
            super()._do(kind, node)


class RegionsWorld(KvWorld):
    """One life of a store."""

    def __init__(self, seed: int, operations: int) -> None:
        super().__init__(seed)
        self.book = Book(lambda: self.events.now - START_S, WINDOW_S, LEASE_S)
        self.operations = operations
        is_short = operations <= OPERATIONS
        self._cuts_max = self.chance.choice((6, 12) if is_short else (0, 2, 6, 12))
        self._cut_pace_s = 1.0 if is_short else self.chance.choice((1.0, 4.0, 10.0))
        self.clients: list[RegionsClient] = []
        self.operator = Operator(self)

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        cut = "".join(f"{key};" for key in CUTS)
        nodes = [KvNode(self, number, settings | {"ropewalkKvRegions": cut}) for number in range(SIZE)]
        for node in nodes:
            node.wall_rate = self.chance.uniform(0.5, 2.0)
            node.wall_offset_ms = self.chance.randrange(-2_000, 2_000)
        return nodes

    def _make_trouble(self) -> Trouble:
        return RegionsTrouble(self)

    def name_server(self, request: Command) -> Command:
        """Answer as a name server that knows all members."""
        return name_server_answer(
            request, {node.number + 1: ":".join(map(str, node.address)) for node in self.nodes}
        )

    # -- a life ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._until(lambda: all(len(node.regions) > len(CUTS) for node in self.nodes), 10.0, "cut the store")
        self.clients = [RegionsClient(self, number) for number in range(CLIENTS)]
        self._cut_later()

    def _cut_later(self) -> None:
        self.events.later(self.chance.uniform(0.05, self._cut_pace_s), self._cut)

    def _cut(self) -> None:
        if self.quiet or self.operator.cuts >= self._cuts_max:
            return
        key = self.book.cut_key(self.chance)
        self.book.hot = key[:-1]
        self.operator.cut(key, self._cut_done)
        for _ in range(self.chance.randrange(5)):
            self.events.later(self.chance.uniform(0, 0.04), self._hang_up)

    def _hang_up(self) -> None:
        """Break half of the clients' connections: what was answered on them is sent again."""
        for end in [end for end in self.net.ends if end.host is None]:
            if self.chance.random() < 0.5:
                end.close()

    def _cut_done(self) -> None:
        self.events.later(self.chance.uniform(0, 0.2), self._cool_down)
        self._cut_later()

    def _cool_down(self) -> None:
        self.book.hot = ""

    def _storm(self) -> None:
        """Have one spell of misfortune after the other, until enough calls have ended."""
        while self.book.operations < self.operations:
            trouble = self._make_trouble()
            until = self.events.now + self.chance.uniform(1.5, 4.0)
            while self.events.now < until and self.book.operations < self.operations:
                self.events.run_until(self.events.now + 0.1)
            trouble.is_over = True
            self._heal()
            self.events.run_until(self.events.now + self.chance.uniform(0, 0.5))
        for node in self.nodes:
            node.come_back()

    def _calm(self) -> None:
        self._until(lambda: not any(client.under_way for client in self.clients), 10.0, "answer all calls")

    # -- the verdict -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._judge_cuts()
        super()._judge()

    def _judge_cuts(self) -> None:
        for node in self.nodes:
            cuts = sorted((each.machine.region.start, each.machine.region.end) for each in node.regions)
            ends = [b"", *(end for _start, end in cuts)]
            if ends[:-1] != [start for start, _end in cuts] or ends[-1]:
                raise Broken(f"the regions of {node} are not every key once: {cuts}")

    def _judge_calls(self) -> None:
        book, machines = self.book, [each.machine for each in self.nodes[0].regions]
        now = self.events.now - START_S
        for key in sorted({str(call.key) for call in book.recorder.calls}):
            name = key.encode()
            machine = next(each for each in machines if each.region.has(name))
            if key.endswith("l"):
                continue
            found = (
                machine.sequences.get(name, 0) if key.endswith("s") else book.number(key, machine.get(name))
            )
            book.recorder.calls.append(Call("at rest", key, ("read",), now, now, found))
        try:
            book.judge()
            book.judge_leases()
        except (NotLinearizable, Torn) as found_out:
            raise Broken(str(found_out)) from found_out

    @property
    def answered(self) -> int:
        """Return how many calls on keys have a result."""
        return sum(call.result is not UNKNOWN for call in self.book.recorder.calls)


def run(seed: int, operations: int = OPERATIONS) -> RegionsWorld:
    """Live one life of so many calls, and return it. Raises `Broken`, with what happened last."""
    return live_kv(seed, lambda seed: RegionsWorld(seed, operations), LIMITS, SEGMENT_SIZE)
