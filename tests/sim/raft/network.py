"""The network of one world: links that break and are made anew, and messages that are late, lost, repeated, blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import Link, Linked, MemberId, Message, Met, TakeLead, link_of
from tests.sim.raft.life import lease_faults

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World

DELAY_MS = 1500
"""The longest delay of one message beyond the others."""


class Network:
    """The links between members, and what is on its way over them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.blocked: set[tuple[MemberId, MemberId]] = set()
        """Pairs (from, to) of members between which no message passes."""
        self.slowed: dict[MemberId, float] = {}
        """By member: the delay of all messages to it."""
        self.rtt = world.chance.choice((0.3, 2.0, 20.0))
        self._last_link = 0
        self._arrivals: dict[tuple[MemberId, MemberId, Link], float] = {}

    def link(self, one: Member, other: Member, kind: Link) -> None:
        """Connect two members anew. What is on its way on the old connection arrives, with its old number."""
        world = self._world
        if not (world.lost_logs.lets_in(one, other) and world.lost_logs.lets_in(other, one)):
            return
        self._last_link += 1
        for here, there in ((one, other), (other, one)):
            here.links[there.id, kind] = self._last_link
            if world.loses_logs and there.core is not None:
                met = Met(there.id, there.core.term, world.lost_logs.was_told(there, here))
                world.at(world.time + 1, here.deliver, here.life, met)
            event = Linked(there.id, self._last_link, kind, True, here.now())
            world.at(world.time + 1, here.deliver, here.life, event)

    def unlinked(self, member: Member, peer: MemberId, kind: Link, number: int | None) -> None:
        if member.core is not None and number is not None and member.links.get((peer, kind)) == number:
            del member.links[peer, kind]
            member.deliver(member.life, Linked(peer, number, kind, False, member.now()))

    def reset(self, one: Member, other: Member, kind: Link) -> None:
        """Break a connection, and make another one soon."""
        world = self._world
        for here, there in ((one, other), (other, one)):
            world.at(
                world.time + world.chance.random() * 5,
                self.unlinked,
                here,
                there.id,
                kind,
                here.links.get((there.id, kind)),
            )
        world.at(world.time + 6 + world.chance.random() * 30, self.link_again, one, other, kind)

    def link_again(self, one: Member, other: Member, kind: Link) -> None:
        if one.core is not None and other.core is not None:
            self.link(one, other, kind)

    def send(self, member: Member, peer: MemberId, message: Message) -> None:
        world, chance = self._world, self._world.chance
        kind = link_of(message)
        number = member.links.get((peer, kind))
        if number is None or (member.id, peer) in self.blocked:
            return
        payload = member.payload_of(message)
        arrival = world.time + self.rtt * (0.5 + chance.random())
        if world.storm.is_on:
            arrival += self.slowed.get(peer, 0.0)
            if world.settings.lease_reads and isinstance(message, TakeLead):
                lease_faults.try_a_handover(world, member)
            kinds = world.storm.kinds
            if "lose" in kinds and chance.random() < 0.03:
                return
            if "delay" in kinds and chance.random() < 0.02:
                arrival += chance.random() * DELAY_MS
            if "repeat" in kinds and chance.random() < 0.05:
                again = arrival + chance.random() * 300
                world.at(again, self._arrive, world.members[peer], member.id, number, message, payload)
        key = (member.id, peer, kind)
        if not (world.storm.is_on and "reorder" in world.storm.kinds and chance.random() < 0.1):
            arrival = self._arrivals[key] = max(arrival, self._arrivals.get(key, 0.0))
        world.at(arrival, self._arrive, world.members[peer], member.id, number, message, payload)

    def _arrive(self, member: Member, peer: MemberId, number: int, message: Message, payload: object) -> None:
        if self._world.time < member.asleep_until:
            member.asleep.append((self._arrive, (member, peer, number, message, payload)))
            return
        member.arrived(peer, number, message, payload)

    def pairs(self, member: Member) -> set[tuple[MemberId, MemberId]]:
        world = self._world
        return {(member.id, each) for each in world.ids} | {(each, member.id) for each in world.ids}

    def block(self, pairs: set[tuple[MemberId, MemberId]], ms: float = 0) -> None:
        world = self._world
        if not world.storm.is_on:
            return
        self.blocked |= pairs
        world.at(world.time + (ms or world.chance.random() * 1500), self.blocked.difference_update, pairs)
