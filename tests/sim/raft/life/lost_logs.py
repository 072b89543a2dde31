"""Members that lose their disks, no more of them than a group can spare, and are let in again with empty logs.

A member that lost its log learns until it has what it may have promised; the others let it in one after the other.
Where nobody leads meanwhile, an operator trusts the logs that are in doubt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import Config, DoubtDropped, Link, MemberId
from tests.sim.raft.model_member import ModelMember

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World


class LostLogs:
    """The losses of logs in one life, and the members that know of each."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.trusted = 0
        """How many logs in doubt an operator has trusted."""
        self._incarnations: dict[MemberId, int] = {}
        """How often each member has lost its log."""
        self._told_of: dict[tuple[MemberId, MemberId], int] = {}
        """By (who, of whom): the loss after which a member was let in."""

    def lets_in(self, one: Member, other: Member) -> bool:
        """Tell whether `one` knows the log that `other` has now."""
        return self._told_of.get((one.id, other.id), 0) == self._incarnations.get(other.id, 0)

    def was_told(self, one: Member, other: Member) -> bool:
        """Tell whether `one` has let in a log that `other` began after a loss."""
        return self._told_of.get((one.id, other.id), 0) > 0

    def lose_log(self, member: Member) -> None:
        """Lose a member's disk, while the others can spare it; start it empty, and have them told one by one."""
        world = self._world
        others = [each for each in world.members.values() if each is not member]
        configs = self._configs_to_be()
        if not isinstance(member, ModelMember) or not all(self._can_spare(member, each) for each in configs):
            return
        if member.first_config.voters == (member.id,):
            return  # an empty member whose settings name nobody else begins a group of its own
        if any(each.core is None or each.core.election.doubt is not None for each in others):
            return  # a doubt ends by the answers of all voters, one of which would know nothing
        if member.core is not None:
            member.die(True)
        member.lose_log()
        world.checks.lost_ballot(member)
        self._incarnations[member.id] = self._incarnations.get(member.id, 0) + 1
        world.at(world.time + world.chance.random() * 600, world.restart, member)
        for other in others:
            world.at(world.time + world.chance.random() * 1500, self.tell_of, other, member)

    def _configs_to_be(self) -> list[Config]:
        """Return every configuration by which members may count: in a log, committed or not, or asked for."""
        world = self._world
        configs = [world.committed_config()]
        for member in world.members.values():
            rows = world.checks.config_rows(member.log.ordered())
            configs += [config for index, config in rows if index >= len(world.checks.truth)]
        return configs + world.changes.open_targets()

    def _can_spare(self, member: Member, config: Config) -> bool:
        """Return whether a configuration has a majority without a member's log, and all copies that it needs."""
        world = self._world
        learners = self.learners()
        for group in (config.voters, config.old):
            voters = [world.members[id] for id in group if id != member.id]
            able = [each for each in voters if each not in learners]
            quorum = len(group) // 2 + 1
            if group and (len(able) < quorum or sum(map(world.has_all, able)) < quorum - 1):
                return False
        return True

    def trust(self) -> None:
        """Have an operator trust logs in doubt where nobody leads: a member that lost its log cannot speak for them.

        What a loss of power tears here was on no disk, so no message is lost by it.
        """
        world = self._world
        world.at(world.time + 1000 + world.chance.random() * 500, self.trust)
        if not self.learners() or any(each.is_leader for each in world.members.values()):
            return
        for member in world.members.values():
            if member.core is not None and member.core.election.doubt is not None:
                self.trusted += 1
                member.deliver(member.life, DoubtDropped())

    def learners(self) -> list[Member]:
        """Return the members that lost their logs and do not vote yet."""
        return [
            each
            for each in self._world.members.values()
            if self._incarnations.get(each.id) and isinstance(each, ModelMember) and not each.log.readmitted
        ]

    def tell_of(self, one: Member, other: Member) -> None:
        """Have `one` let in the log that `other` has now."""
        if not self.lets_in(one, other):
            self._told_of[one.id, other.id] = self._incarnations[other.id]
            for kind in Link:
                self._world.network.link_again(one, other, kind)
