"""Clients of one world: they send messages, read, and have the lead handed over; reads are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import MemberId, ReadAsked, TransferAsked, TransferResult
from tests.sim.raft.checks import Broken

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World


class Clients:
    """The requests of all clients: messages, reads and transfers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.outcomes: dict[int, TransferResult] = {}
        """By the token of a transfer: its outcome."""
        self.reads_served: set[int] = set()
        self._payload = 0
        self._transfers = 0
        self._reads = 0
        self._floors: dict[int, int] = {}
        """By the token of a read: what was committed when it was asked."""

    def payload_number(self) -> int:
        """Return the content of the next message: no two are equal."""
        self._payload += 1
        return self._payload

    def ask_reads(self) -> None:
        """Read at a member, whichever it is; a moment later again."""
        world, chance = self._world, self._world.chance
        world.at(world.time + chance.random() * 60, self.ask_reads)
        member = world.members[chance.choice(world.ids)]
        if member.core is not None and world.time >= member.asleep_until:
            for _ in range(chance.choice((1, 1, 3))):
                self.ask_read(member)

    def ask_read(self, member: Member) -> int:
        """Read at a member that is awake. Return the token, with which `reads_served` will tell of it."""
        self._reads += 1
        self._floors[self._reads] = len(self._world.checks.truth) - 1
        member.step(ReadAsked(self._reads, member.now()))
        return self._reads

    def read(self, member: Member, token: int, ok: bool) -> None:
        """Judge a read: it sees all that any leader had committed when it was asked."""
        floor = self._floors.pop(token)
        assert member.core is not None
        if ok and member.core.applied.index < floor:
            raise Broken(
                f"I10: {member.id} serves read {token} at {member.core.applied.index}, which was asked when {floor} "
                "was committed"
            )
        if ok:
            self.reads_served.add(token)

    def produce(self) -> None:
        """Send messages to a member that says it leads, if there is one."""
        world, chance = self._world, self._world.chance
        world.at(world.time + chance.random() * 60, self.produce)
        leaders = [
            member
            for member in world.members.values()
            if member.core is not None
            and member.standing is not None
            and member.standing.may_append
            and member.log.accepts
            and world.time >= member.asleep_until
        ]
        if leaders:
            member = chance.choice(leaders)
            member.append([self.payload_number() for _ in range(chance.choice((1, 1, 2, 5)))])

    def transfer(self, member: Member, target: MemberId) -> int:
        """Tell a member to hand the lead over. Return the token under which it says what became of it."""
        self._transfers += 1
        member.deliver(member.life, TransferAsked(self._transfers, target, member.now()))
        return self._transfers
