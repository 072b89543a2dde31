"""Faults that try a leader's lease: another member comes to lead while the leader hears nothing of it, and is read.

    slow answers    answers to the leader are late, then nothing leaves it: its lease may not count from their arrival
    broken links    the leader is cut off, and the links to it break at once: protection may not end with them
    a handover      the leader hears nothing any more from when it told another member to take the lead

Each is drawn once in a while in lives whose leaders read by lease; each member has a clock of its own rate there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ha.raft.types import Link

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World

READ_MS = 1200
"""How long clients go on reading at a leader whose lease is tried."""
SLOW_MS = (250, 430)
"""How late answers are: less than a lease lasts, which the answers to earlier rounds have renewed."""


def try_a_lease(world: World) -> None:
    """Try the lease of each member that leads."""
    for leader in [each for each in world.members.values() if each.is_leader and each.core is not None]:
        if len(world.ids) > 1:
            world.chance.choice((_slow_answers, _broken_links))(world, leader)
            _read_at(world, leader, world.time + READ_MS)


def try_a_handover(world: World, leader: Member) -> None:
    """Have the leader hear nothing from now on: it tells another member in this step to take the lead."""
    if world.chance.random() < 0.5:
        world.network.block(_to(world, leader), world.chance.uniform(400, 900))
        _read_at(world, leader, world.time + READ_MS)


def _slow_answers(world: World, leader: Member) -> None:
    chance = world.chance
    world.network.slowed[leader.id] = chance.uniform(*SLOW_MS)
    cut = world.time + chance.uniform(450, 700)
    world.at(cut, world.network.block, _from(world, leader), 1000)
    world.at(cut + 1000, _end_slowness, world, leader)


def _end_slowness(world: World, leader: Member) -> None:
    world.network.slowed.pop(leader.id, None)


def _broken_links(world: World, leader: Member) -> None:
    ms = world.chance.uniform(400, 900)
    world.network.block(_to(world, leader) | _from(world, leader), ms)
    for each in _others(world, leader):
        for kind in Link:
            number = each.links.get((leader.id, kind))
            world.at(
                world.time + world.chance.random() * 20, world.network.unlinked, each, leader.id, kind, number
            )
            world.at(world.time + ms, world.network.link_again, each, leader, kind)


def _read_at(world: World, leader: Member, end: float) -> None:
    life = leader.life

    def read() -> None:
        if leader.life == life and leader.core is not None and world.time < end:
            if world.time >= leader.asleep_until:
                world.clients.ask_read(leader)
            again(world.chance.uniform(5, 25))

    def again(ms: float, what: Callable[[], None] = read) -> None:
        world.at(world.time + ms, what)

    again(world.chance.random() * 20)


def _others(world: World, leader: Member) -> list[Member]:
    return [each for each in world.members.values() if each is not leader]


def _to(world: World, member: Member) -> set[tuple[str, str]]:
    return {(each, member.id) for each in world.ids}


def _from(world: World, member: Member) -> set[tuple[str, str]]:
    return {(member.id, each) for each in world.ids}
