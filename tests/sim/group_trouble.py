"""What happens to the simulated group: single strokes of bad luck, and stories in which several go together.

A story leads to a state in which a mistake would cost something, and a seed draws its times. None of them looks at
what the group promises; that is done by `group` and for every story alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from ha.group.handover import HandoverKind, Phase
from tests.sim.group_callers import OPERATOR
from tests.sim.group_node import HA_PORT

if TYPE_CHECKING:
    from tests.sim.group import World
    from tests.sim.group_node import Node

NAME_SERVER_IP = "10.0.0.9"


class Trouble:
    """The bad luck of one world."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._world = world
        self._chance = world.chance
        self._net = world.net
        self._nursery = nursery
        stories = [
            self._stroke,
            self._lagging_slave,
            self._unseen_master,
            self._isolated_master,
            self._blackout,
            self._late_return,
            self._deaf_slave,
            self._forgetful_promise,
            self._power_after_answer,
            self._half_open,
            self._two_operators,
            self._dying_operator,
            self._forgotten_master,
        ]
        # Not every kind of bad luck in every life: they would hide each other.
        some = self._chance.sample(stories, self._chance.randrange(2, 5))
        if world.copies == 3:
            some.append(self._half_open)  # where two slaves are needed, one must not be taken for both
        self._stories: list[Callable[[], Awaitable[None]]] = [self._stroke, *some, *some]

    async def go_on(self, seconds: float) -> None:
        """One thing after the other, until time is up."""
        chance, end = self._chance, trio.current_time() + seconds
        while trio.current_time() < end:
            await trio.sleep(chance.uniform(0.02, 0.3))
            story = chance.choice(self._stories)
            self._world.log("trouble", story.__name__.strip("_").replace("_", " "))
            await story()
            if chance.random() < 0.5:
                self._net.heal()

    # -- strokes ---------------------------------------------------------------------------------------

    async def _stroke(self) -> None:
        chance, node = self._chance, self._chance.choice(self._world.nodes)
        kind = chance.choice(("die", "cut", "slow", "disk", "fragile", "heal", "switch", "failover"))
        if kind == "die":
            self._kill(node)
        elif kind == "cut":
            others = [each.ip for each in self._world.nodes if each is not node]
            self._cut(node, chance.choice([*others, NAME_SERVER_IP, OPERATOR]))
        elif kind == "slow":
            self._net.slow.add(node.ip)
        elif kind == "disk":
            node.slow_disk = not node.slow_disk
        elif kind == "fragile":
            self._crash_at_disk(node, 60)
        elif kind == "heal":
            self._net.heal()
        else:
            await self._world.operator.hand_over(
                HandoverKind.SWITCH if kind == "switch" else HandoverKind.FAILOVER
            )

    def _kill(self, node: Node, down_s: float | None = None, *, power: bool | None = None) -> None:
        world = self._world
        if node.alive:
            world.history.deaths += 1
            fails = world.power_fails and (self._chance.random() < 0.7 if power is None else power)
            node.die(power=fails)
            self._start_later(node, self._chance.uniform(0.05, 2.5) if down_s is None else down_s)

    def _crash_at_disk(self, node: Node, steps: int) -> None:
        """It dies at one of the next steps of its disk."""
        if node.alive:
            node.disk.crash_after = node.disk.steps + self._chance.randrange(1, steps)

    def _start_later(self, node: Node, delay_s: float) -> None:
        self._nursery.start_soon(self._world.start, node, delay_s)

    def _cut(self, node: Node, other: str, *, both: bool = False) -> None:
        way = 0.5 if both else self._chance.random()
        if way < 0.75:
            self._net.cuts.add((node.ip, other))
        if way > 0.25:
            self._net.cuts.add((other, node.ip))
        self._world.log(node, f"is cut from {other}")

    def _roles(self) -> tuple[Node, list[Node]]:
        masters = [node for node in self._world.nodes if node.is_master]
        master = max(masters, key=lambda each: each.led, default=self._world.nodes[0])
        slaves = [node for node in self._world.nodes if node is not master]
        self._chance.shuffle(slaves)
        return master, slaves

    async def _pause(self, least: float, most: float) -> None:
        await trio.sleep(self._chance.uniform(least, most))

    # -- stories ---------------------------------------------------------------------------------------

    async def _lagging_slave(self) -> None:
        """One slave misses a part; then the master goes, perhaps with the other slave, and somebody has to lead."""
        master, (late, other) = self._roles()
        self._cut(master, late.ip)
        await self._pause(0.2, 1)
        self._kill(master, self._chance.uniform(0.3, 2))
        if self._chance.random() < 0.4:
            self._kill(other, self._chance.uniform(0.3, 2))
        self._net.heal()
        await self._world.operator.hand_over(HandoverKind.FAILOVER)
        await self._pause(0, 0.5)

    async def _unseen_master(self) -> None:
        """The master is well, and the operator does not see it."""
        master, _slaves = self._roles()
        if self._chance.random() < 0.5:
            self._cut(master, OPERATOR)
        await self._world.operator.hand_over(HandoverKind.FAILOVER, unseen=[master])
        await self._pause(0.1, 1)

    async def _isolated_master(self) -> None:
        """Producers reach the master, its slaves do not, or hear it without being heard."""
        master, slaves = self._roles()
        for slave in slaves:
            self._cut(master, slave.ip)
        unseen = [master] if self._chance.random() < 0.7 else []
        await self._pause(0.1, 1)
        if self._chance.random() < 0.3:
            self._kill(master, self._chance.uniform(0.3, 2))
        kind = HandoverKind.FAILOVER if unseen else HandoverKind.SWITCH
        await self._world.operator.hand_over(kind, unseen=unseen)
        await self._pause(0, 0.7)

    async def _blackout(self) -> None:
        """Everybody goes at once, after one slave has missed a part; the old master comes back last."""
        master, (late, other) = self._roles()
        self._cut(master, late.ip)
        late.slow_disk, other.slow_disk = self._chance.random() < 0.3, self._chance.random() < 0.5
        await self._pause(0.1, 0.7)
        for slave in (late, other):
            self._kill(slave, self._chance.uniform(0.05, 0.3), power=True)
        self._kill(master, self._chance.uniform(1, 2))
        self._net.heal()
        await self._pause(0.4, 0.6)
        await self._world.operator.hand_over(HandoverKind.FAILOVER)

    async def _late_return(self) -> None:
        """A master goes on alone for a while, is told that it is none any more, and has no chance to cut its log
        before the new one is gone: its tail must not win."""
        master, slaves = self._roles()
        for slave in slaves:
            self._cut(master, slave.ip, both=True)
        await self._pause(0.05, 0.5)
        await self._world.operator.hand_over(HandoverKind.FAILOVER, unseen=[master])
        await self._pause(0.1, 0.6)
        newer, _others = self._roles()
        if newer is not master:
            self._kill(newer, self._chance.uniform(1, 2))
            for slave in slaves:
                if slave is not newer:
                    self._net.uncut(master.ip, slave.ip)
            await self._world.operator.hand_over(HandoverKind.FAILOVER)
            await self._pause(0, 0.3)

    async def _deaf_slave(self) -> None:
        """A switch of which one slave never hears, and in whose middle the operator loses the old master."""
        master, (target, deaf) = self._roles()
        self._cut(deaf, OPERATOR, both=True)
        lost_in = self._chance.choice((Phase.ACCEPT, Phase.PROMOTE))
        alone = self._chance.random() < 0.5

        def on_phase(phase: Phase) -> None:
            if phase is lost_in:
                self._cut(master, OPERATOR, both=True)
                if alone:
                    self._cut(master, target.ip, both=True)
                    self._cut(deaf, target.ip, both=True)

        await self._world.operator.hand_over(HandoverKind.SWITCH, target=target, on_phase=on_phase)
        await self._pause(0.2, 0.8)

    async def _forgetful_promise(self) -> None:
        """A slave dies just when it promises a new epoch, and comes back where it may think that it did not: beside the
        master that it remembers, and where it cannot hear of a newer one."""
        operator, chance = self._world.operator, self._chance
        master, _slaves = self._roles()
        if (
            master.led == 0
        ):  # in its first epoch a group asks the name server for its master, and remembers none
            await operator.hand_over(HandoverKind.SWITCH)
        master, (one, other) = self._roles()
        self._cut(one, other.ip, both=True)
        self._cut(master, other.ip, both=True)
        self._cut(master, OPERATOR, both=True)
        at_disk = chance.random() < 0.3
        one.slow_disk = not at_disk

        def on_phase(phase: Phase) -> None:
            if phase is Phase.ACCEPT and at_disk:
                self._crash_at_disk(one, 3)
            elif phase is Phase.PROMOTE:
                self._kill(one, chance.uniform(0.02, 0.2))

        await operator.hand_over(HandoverKind.FAILOVER, unseen=[master], on_phase=on_phase)
        one.slow_disk = False
        self._start_later(one, chance.uniform(0.02, 0.2))
        await self._pause(0.4, 1)

    async def _forgotten_master(self) -> None:
        """Slaves that were started anew do not know who led them; then the one that has everything goes too."""
        master, (late, other) = self._roles()
        self._cut(master, late.ip, both=True)
        await self._pause(0.05, 0.4)
        for node, down_s in ((master, 2.5), (other, 0.02), (late, 0.02)):
            self._kill(node, down_s, power=False)
        await self._pause(0.1, 0.3)

        def on_phase(phase: Phase) -> None:
            if phase is Phase.PROMOTE:
                self._cut(late, other.ip, both=True)

        await self._world.operator.hand_over(HandoverKind.FAILOVER, on_phase=on_phase)
        await self._pause(0, 0.2)
        self._kill(other, self._chance.uniform(1, 2), power=False)
        await self._world.operator.hand_over(HandoverKind.FAILOVER)

    async def _power_after_answer(self) -> None:
        """Machines lose their power moments after something was answered, with disks that are slow to flush."""
        master, (one, other) = self._roles()
        slow, down = self._chance.choice(((master, [master]), (one, [master, one]), (one, [one])))
        if slow is not master:
            self._cut(master, other.ip)
        slow.slow_disk = True
        await self._pause(0.1, 0.8)
        for node in down:
            quick = node is slow
            self._kill(
                node, self._chance.uniform(0.02, 0.2) if quick else self._chance.uniform(1, 2), power=True
            )
        self._net.heal()
        await self._pause(0.2, 0.5)
        slow.slow_disk = False
        await self._world.operator.hand_over(HandoverKind.FAILOVER)

    async def _half_open(self) -> None:
        """A slave connects anew while its master still has the old connection; the other slave hears nothing."""
        master, (one, other) = self._roles()
        self._net.cuts.add((master.ip, other.ip))
        for _time in range(self._chance.randrange(1, 3)):
            await self._pause(0.02, 0.2)
            self._net.leave_half_open(one.ip, (master.ip, HA_PORT))
        await self._pause(0.3, 0.7)
        if self._chance.random() < 0.8:
            self._kill(master, self._chance.uniform(1, 2))
            self._kill(one, self._chance.uniform(1, 2))
            self._net.heal()
            await self._world.operator.hand_over(HandoverKind.FAILOVER)
            await self._pause(0, 0.3)

    async def _two_operators(self) -> None:
        """Two of them at once, who see different parts of the group; perhaps the second when the first is half done."""
        master, (one, other) = self._roles()
        kinds = (HandoverKind.FAILOVER, self._chance.choice((HandoverKind.FAILOVER, HandoverKind.SWITCH)))
        if self._chance.random() < 0.5:
            self._cut(master, self._chance.choice((one, other)).ip)
        if self._chance.random() < 0.3:
            self._net.slow.add(self._chance.choice((one, other)).ip)
        if self._chance.random() < 0.4:
            self._cut(master, OPERATOR, both=True)
        one.slow_disk, other.slow_disk = self._chance.choice(((False, False), (True, False), (True, True)))
        second_waits_for = self._chance.choice((Phase.ACCEPT, Phase.PROMOTE))
        begun = trio.Event()

        def on_phase(phase: Phase) -> None:
            if phase is second_waits_for:
                begun.set()

        async def first() -> None:
            unseen = [master] if kinds[0] is HandoverKind.FAILOVER else []
            await self._world.operator.hand_over(kinds[0], unseen=unseen, on_phase=on_phase)
            begun.set()

        async def second() -> None:
            await begun.wait()
            await self._pause(0, 0.02)
            unseen = [master] if kinds[1] is HandoverKind.FAILOVER else []
            await self._world.operator.hand_over(kinds[1], unseen=unseen)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            nursery.start_soon(second)
        await self._pause(0.1, 0.8)

    async def _dying_operator(self) -> None:
        """An operator begins and never ends; later somebody else does."""
        master, _slaves = self._roles()
        kind = self._chance.choice((HandoverKind.FAILOVER, HandoverKind.SWITCH))
        unseen = [master] if kind is HandoverKind.FAILOVER else []
        operator = self._world.operator
        await operator.hand_over(kind, unseen=unseen, dies_after_s=self._chance.uniform(0.002, 0.06))
        await self._pause(0, 0.5)
        if self._chance.random() < 0.5:
            again = self._chance.choice((HandoverKind.FAILOVER, HandoverKind.SWITCH))
            await operator.hand_over(again, unseen=[master] if again is HandoverKind.FAILOVER else [])
