"""The storm of one life: members die, lose power, stall, fill up, are cut off; which faults there are, a seed draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import Link
from tests.sim.raft.life import lease_faults
from tests.sim.raft.model_member import ModelMember

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World

FAULTS = (
    "kill", "power", "stall", "cut off", "one way", "reset", "lose", "repeat", "reorder", "delay", "slow disk", "full",
    "clock", "damage", "all power", "leaders die", "leaders cut off",
)  # fmt: skip


class Storm:
    """The faults of one life, until it is healed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_on = True
        share = world.chance.choice((0.15, 0.3, 0.6))
        self.kinds = [kind for kind in FAULTS if world.chance.random() < share]
        if world.hands_over:
            self.kinds.append("transfer")
        if world.settings.lease_reads:
            self.kinds.append("lease")
        if world.loses_logs:
            self.kinds += ["lost log"] * (1 + len(self.kinds) // 3)
        if world.retires:
            self.kinds += ["retire"] * (2 + len(self.kinds) // 2)

    def run(self, ms: float) -> None:
        """Break things for a while."""
        world = self._world
        end = world.time + ms
        while True:
            world.run_until(min(end, world.time + world.chance.expovariate(1 / 150)))
            if world.time >= end:
                return
            if self.kinds:
                self._strike(world.chance.choice(self.kinds))

    def _strike(self, kind: str) -> None:
        world, chance = self._world, self._world.chance
        member = world.members[chance.choice(world.ids)]
        other = world.members[chance.choice(world.ids)]
        is_up = member.core is not None
        match kind:
            case "damage" if world.loses_logs and world.lost_logs.learners():
                pass  # nobody could say whether the lost log had what the doubt of another is about
            case "kill" | "power" if is_up:
                if kind == "power" and member.log.lose_power_soon():
                    return
                member.die(kind == "power")
                world.at(world.time + chance.random() * 1200, world.restart, member)
            case "leaders die":
                for each in world.members.values():
                    if each.is_leader:
                        self._kill(each, each.life)
            case "all power" if chance.random() < 0.3:
                for each in world.members.values():
                    if each.core is not None:
                        each.die(True)
                        world.at(world.time + chance.random() * 400, world.restart, each)
            case "retire" if isinstance(member, ModelMember) and member.log.first < member.log.written.index:
                member.log.retire(chance.randrange(member.log.first, member.log.written.index) + 1)
            case "lost log":
                world.lost_logs.lose_log(member)
            case "damage" if not is_up:
                self._damage(member)
            case "stall" if is_up:
                member.sleep(chance.choice((80, 300, 1500)) * chance.random())
            case "cut off":
                world.network.block(world.network.pairs(member))
            case "one way":
                world.network.block(
                    {(member.id, each) for each in world.ids}
                    if chance.random() < 0.3
                    else {(member.id, other.id)}
                )
            case "leaders cut off":
                for each in world.members.values():
                    if each.is_leader:
                        each.log.flush_ms = chance.choice((2.0, 20.0, 200.0))
                        world.network.block(world.network.pairs(each), chance.uniform(500, 1300))
            case "transfer":
                for each in world.members.values():
                    if each.is_leader or chance.random() < 0.1:
                        world.clients.transfer(each, chance.choice(("", other.id)))
            case "lease":
                lease_faults.try_a_lease(world)
            case "reset" if is_up and member is not other and other.core is not None:
                world.network.reset(member, other, chance.choice(list(Link)))
            case "slow disk":
                member.log.flush_ms = chance.choice((2.0, 2.0, 30.0, 200.0))
            case "full" if is_up:
                world.fill(member, not member.log.full)

    def leads(self, member: Member) -> None:
        """A member began to lead: the moment at which its death is most interesting."""
        world = self._world
        if self.is_on and "leaders die" in self.kinds and world.chance.random() < 0.7:
            world.at(
                world.time + world.chance.expovariate(1 / (3 * world.network.rtt + 5)),
                self._kill,
                member,
                member.life,
            )

    def power_lost(self) -> None:
        """End the lives of members whose power went in the middle of a step."""
        world = self._world
        for member in world.members.values():
            if member.core is not None and member.log.has_lost_power:
                member.die(True)
                world.at(world.time + world.chance.random() * 1200, world.restart, member)

    def _kill(self, member: Member, life: int) -> None:
        world = self._world
        if member.life == life:
            member.die(world.chance.random() < 0.5)
            world.at(world.time + world.chance.random() * 600, world.restart, member)

    def _damage(self, member: Member) -> None:
        """Flip a bit of an entry above the bound, with whole ones behind, while another member has all of it."""
        world = self._world
        low, high = member.log.written.index + 1, len(member.log.view) - 1
        if low < high and any(world.has_all(other) for other in world.voters() if other is not member):
            index = world.chance.randrange(low, high)
            rows = world.checks.config_rows(member.log.view[:index])
            if not rows or len(rows[-1][1].voters) > 1:  # a group of one is its own witness
                member.log.damage(index)
