"""Lives of a group whose master loses its power and comes back with a shorter log, in the same epoch.

The machines of `group` in class A1: nothing is flushed before it is acknowledged, so that what the master lost is on
its slaves alone. They live, and are not cut off: a message that was answered 0 survives the loss of either machine.
What else can happen to a group is left to `group`. The person in it does what the members ask for: a switch.
"""

from __future__ import annotations

import trio

from ha.group.handover import HandoverKind
from tests.sim.events import Events
from tests.sim.group import Broken, History, World, run

__all__ = ["Broken", "ShorterWorld", "live"]


class ShorterWorld(World):
    """A world in which masters lose their power, and nothing else happens."""

    def __init__(self, seed: int, safe_class: str, events: Events) -> None:
        super().__init__(seed, safe_class, events)
        self.net.half_open = 0.0
        self.shorter = 0
        """Masters that came back with less than a slave had."""

    async def suffer(self, nursery: trio.Nursery, seconds: float | None) -> None:
        for _time in range(self.chance.randrange(1, 4)):
            master = next((node for node in self.nodes if node.is_master), None)
            if master is None:
                return
            master.slow_disk = self.chance.random() < 0.8
            await trio.sleep(self.chance.uniform(0.1, 0.8))
            if not master.is_master:
                return
            self.history.deaths += 1
            master.die(power=True)
            master.slow_disk = False
            nursery.start_soon(self.start, master, self.chance.uniform(0.05, 1))
            await trio.sleep(self.chance.uniform(1, 4))
            if "came back without its end" in (master.broker.replication.fence or ""):
                self.shorter += 1
            if self.chance.random() < 0.5:
                await self.act_as_a_person()

    async def act_as_a_person(self) -> None:
        masters = [node for node in self.nodes if node.is_master]
        if len(masters) == 1 and masters[0].broker.replication.fence is not None:
            await self.operator.hand_over(HandoverKind.SWITCH, closest=True)
        else:
            await super().act_as_a_person()


def live(seed: int) -> tuple[History, int]:
    """Live one life; return its history, and how often a master came back shorter. Raises `Broken`."""
    worlds: list[ShorterWorld] = []

    def make(seed: int, safe_class: str, events: Events) -> World:
        worlds.append(ShorterWorld(seed, safe_class, events))
        return worlds[0]

    history = run(seed, "A1", make=make)
    return history, worlds[0].shorter
