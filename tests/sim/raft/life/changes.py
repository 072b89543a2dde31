"""Members that come and go: groups grow, shrink, change one member for another, or all, in the storm and in peace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import ChangeAsked, ChangeResult, Config, MemberId
from tests.sim.raft.checks import Broken
from tests.sim.raft.life.peace import calm
from tests.sim.raft.network import DELAY_MS

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World


class Changes:
    """The changes of its configuration that a group is asked for, and their outcomes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.outcomes: dict[int, ChangeResult] = {}
        """By the token of a change: its outcome."""
        self._targets: dict[int, Config] = {}
        self._asked: dict[int, tuple[Member, int]] = {}
        """By the token of a change: the member that was asked, and in which of its lives."""

    def first_config_of(self, id: MemberId) -> Config:
        """Return the configuration in the settings of a member: whoever is to come may be named in its own, or not."""
        world = self._world
        if id in world.first.voters or world.chance.random() < 0.5:
            return world.first
        return Config((*world.first.voters, id))

    def ask_changes(self) -> None:
        """Ask whoever leads, and now and then another member, for a change; a moment later again."""
        world, chance = self._world, self._world.chance
        world.at(world.time + chance.random() * 500, self.ask_changes)
        for member in world.members.values():
            if member.core is not None and (member.is_leader or chance.random() < 0.03):
                target = self._any_target(member.core.config)
                learners = {each.id for each in world.lost_logs.learners()}
                if 2 * len(learners.intersection(target.voters)) < max(1, len(target.voters)):
                    self.change(member, target)  # no operator asks for a group that has lost most of its logs

    def change(self, member: Member, target: Config) -> int:
        """Ask a member for a change. Return the token under which `outcomes` will have the outcome."""
        token = len(self._targets)
        self._targets[token], self._asked[token] = target, (member, member.life)
        member.deliver(member.life, ChangeAsked(token, target, member.now()))
        return token

    def open_targets(self) -> list[Config]:
        """Return the configurations that living members were asked for, and have not answered."""
        return [
            self._targets[token]
            for token, (member, life) in self._asked.items()
            if token not in self.outcomes and member.life == life
        ]

    def _any_target(self, before: Config) -> Config:
        world, chance = self._world, self._world.chance
        voters, learners = set(before.voters), set(before.learners)
        others = [id for id in world.ids if id not in before.members]
        for id in chance.sample(others, min(len(others), chance.choice((0, 1, 1, 2, 4)))):
            learners.add(id)
        for id in before.learners:
            if chance.random() < 0.6:
                learners.discard(id)
                if chance.random() < 0.9:
                    voters.add(id)
        leave = chance.choice((0, 0, 1, 1, 2, len(before.voters)))
        for id in chance.sample(before.voters, min(leave, len(before.voters))):
            voters.discard(id)
            if chance.random() < 0.3:
                learners.add(id)
        return Config(tuple(sorted(voters)), (), tuple(sorted(learners)))

    def was_changed(self, member: Member, token: int, result: ChangeResult) -> None:
        """Judge the outcome of a change: what is said to be is committed."""
        target = self._targets[token]
        self.outcomes[token] = result
        assert member.core is not None
        configs = member.core.log.configs
        if result is ChangeResult.SUCCESS and (
            set(configs.in_force.voters) != set(target.voters)
            or configs.in_force.old
            or configs.index > member.core.log.commit.index
        ):
            raise Broken(
                f"I18: {member.id} says that {target} is the configuration, it is {configs.rows[-1]}"
            )

    def grow_and_shrink(self) -> None:
        """Have the group get other members in peace: each change is done within seconds, whoever leads."""
        world = self._world
        # What the storm has delayed may still change the members, or the leader.
        world.run_until(world.time + DELAY_MS)
        calm(world)
        for _ in range(world.chance.choice((1, 1, 2))):
            size = world.chance.randint(1, len(world.ids))
            voters = tuple(sorted(world.chance.sample(world.ids, size)))
            leader = world.leader()
            assert leader is not None and leader.core is not None
            now = leader.core.config.voters
            fresh = tuple(id for id in voters if id not in now)
            self._become(Config(now, (), fresh))
            self._become(Config(voters))
            calm(world)

    def _become(self, target: Config) -> None:
        world = self._world
        end = world.time + 6_000
        while world.time < end:
            leader = world.leader()
            if leader is not None and leader.core is not None:
                if (
                    leader.core.config == target
                    and leader.core.log.configs.index <= leader.core.log.commit.index
                ):
                    return
                token, patience = self.change(leader, target), world.time + 500
                # Whom a late fault kills says nothing.
                while world.time < patience and token not in self.outcomes:
                    world.run_until(world.time + 10)
            world.run_until(world.time + 20)
        raise Broken(f"I18: the group does not become {target} in peace: {world.describe()}")
