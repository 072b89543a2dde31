"""What happens to the simulated DLedger group: strokes of bad luck, some kinds of them in each life."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.ledger.node import LedgerNode
    from tests.sim.ledger.world import World

KINDS = ("kill", "power", "stall", "stop", "cut off", "one way", "slow", "slow disk", "fragile", "transfer")


class Trouble:
    """The bad luck of one world, until it is over."""

    known: tuple[str, ...] = KINDS

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_over = False
        chance = world.chance
        self.kinds = chance.sample(self.known, chance.randrange(2, 6))
        self.likes_leaders = chance.choice((0.3, 0.6, 0.9))
        world.log("trouble", ", ".join(self.kinds))
        self._soon()

    def _soon(self) -> None:
        self._world.events.later(self._world.chance.uniform(0.05, 0.6), self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        world, chance = self._world, self._world.chance
        node = world.supposed_leader() if chance.random() < self.likes_leaders else chance.choice(world.nodes)
        kind = chance.choice(self.kinds)
        world.log("trouble", f"{kind}, {node}")
        self._do(kind, node)
        if chance.random() < 0.4:
            world.events.later(chance.uniform(0.1, 0.8), world.net.heal)
        self._soon()

    def _do(self, kind: str, node: LedgerNode) -> None:
        world, chance = self._world, self._world.chance
        others = [other for other in world.nodes if other is not node]
        match kind:
            case "kill" | "power" | "stop":
                world.deaths += node.alive
                if kind == "stop":
                    node.stop()
                else:
                    node.die(power=kind == "power")
                world.start_later(node, chance.uniform(0.02, 1.2))
            case "stall":
                node.stall(chance.choice((0.05, 0.3, 0.6, 1.5)))
            case "cut off":
                for other in others:
                    world.net.cuts |= {(node.ip, other.ip), (other.ip, node.ip)}
            case "one way":
                other = chance.choice(others)
                world.net.cuts.add(chance.choice(((node.ip, other.ip), (other.ip, node.ip))))
            case "slow":
                world.net.slow.add(node.ip)
            case "slow disk":
                node.slow_disk = not node.slow_disk
            case "fragile":
                if node.alive:
                    node.disk.crash_after = node.disk.steps + chance.randrange(1, 40)
                    world.start_later(node, chance.uniform(0.3, 1.5))
            case "transfer":
                if node.leads and not node.is_asleep:
                    world.transfers += 1
                    target = chance.choice(("", *(other.id for other in others)))
                    node.turn(lambda: node.member.transfer(target, lambda result: None))
