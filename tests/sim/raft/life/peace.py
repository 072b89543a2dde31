"""Peace after the storm: all is healed, the group comes to rest, and then keeps what it promises without faults.

Each trial is a function over the world, and raises `Broken` where the group fails it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ha.raft.types import TransferResult
from tests.sim.raft.checks import Broken
from tests.sim.raft.network import DELAY_MS

if TYPE_CHECKING:
    from tests.sim.raft.member import Member
    from tests.sim.raft.world import World

CALM_MS = 10_000


def heal(world: World) -> None:
    """End every fault, and start who is down."""
    world.storm.is_on = False
    world.network.blocked = set()
    for member in world.members.values():
        member.log.heal()
        if member.core is not None:
            world.fill(member, False)
        else:
            member.log.full = False
        if member.asleep_until > world.time:
            member.asleep_until = world.time
            member.wake(member.life)
    for member in world.members.values():
        world.restart(member)
    for one in world.members.values():
        for other in world.members.values():
            world.lost_logs.tell_of(one, other)


def calm(world: World) -> None:
    """Let the group come to rest. Raises `Broken` if it does not."""
    end = world.time + CALM_MS
    while not _rests(world):
        if world.time >= end:
            raise Broken(f"I18: the group does not come to rest in {CALM_MS} ms: {world.describe()}")
        world.run_until(world.time + 50)
    members = world.members_of(world.leader())
    world.checks.at_rest(members)
    for member in members.values():
        member.at_rest()


def _rests(world: World) -> bool:
    leader = world.leader()
    if leader is None or leader.core is None:
        return False
    end, config = leader.core.log.end, leader.core.config
    return not config.old and all(
        member.rests(end)
        and member.core is not None
        and member.core.leader == leader.id
        and member.core.config == config
        for member in world.members_of(leader).values()
    )


def quiet(world: World) -> None:
    """Stall a follower, then cut one off: over neither anybody may lose the lead."""
    world.run_until(world.time + DELAY_MS)  # what the storm has delayed may still depose somebody
    calm(world)
    leader = world.leader()
    assert leader is not None and leader.core is not None
    voters, group = leader.core.config.voters, world.members_of(leader).values()
    followers = [
        member
        for member in group
        if member is not leader and (len(voters) > 2 or member.id not in voters)  # of two both are needed
    ]
    if not followers:
        return
    before = {member.id: member.standing for member in group}
    member = world.chance.choice(followers)
    member.sleep(world.chance.uniform(300, 1200))
    world.run_until(world.time + 1400)
    for other in group:
        if other.standing is not before[other.id]:
            raise Broken(f"I18: {member.id} was stalled, and {other.id} went to {other.standing}")
    member = world.chance.choice(followers)
    pairs = world.network.pairs(member)
    world.network.blocked |= pairs
    world.run_until(world.time + 1500)
    world.network.blocked -= pairs
    world.run_until(world.time + 300)
    for other in group:
        if other is not member and other.standing is not before[other.id]:
            raise Broken(f"I18: {member.id} was cut off, and {other.id} went to {other.standing}")
    calm(world)


def hand_over(world: World) -> None:
    """Hand the lead to every follower in turn: each takes over at once, and no client is left without an answer."""
    leader = world.leader()
    assert leader is not None and leader.core is not None
    for target in leader.core.config.voters:
        leader = world.leader()
        assert leader is not None and leader.core is not None
        term = leader.core.term
        leader.append([world.clients.payload_number() for _ in range(3)])
        payloads = set(leader.waiting)
        token = world.clients.transfer(leader, target)
        end = world.time + 1200
        now: Member | None = leader
        while world.time < end and (token not in world.clients.outcomes or now is None or now.id != target):
            world.run_until(world.time + world.pace_ms)  # clients go on sending to whoever takes messages
            now = world.leader()
            if now is not None and now.log.accepts:
                now.append([world.clients.payload_number()])
                payloads |= now.waiting
        world.run_until(world.time + 300)
        now = world.leader()
        if now is None or now.id != target or world.clients.outcomes.get(token) is not TransferResult.SUCCESS:
            raise Broken(
                f"I18: {leader.id} handed over to {target}: {world.clients.outcomes.get(token)}, {world.describe()}"
            )
        assert now.core is not None
        if now.core.term != term + (target != leader.id):
            raise Broken(f"I18: the lead went from term {term} to {now.core.term} for one transfer")
        if any(payload not in world.checks.acknowledged for payload in payloads):
            raise Broken(f"I18: {leader.id} handed over, and left a client without an answer")
    calm(world)


def fill_the_leader(world: World) -> None:
    """Fill the leader's disk for good: it hands over to a member with room, and takes no message until then.

    Unless the others are no majority without it.
    """
    full = world.leader()
    assert full is not None and full.core is not None
    voters = full.core.config.voters
    world.fill(full, True)
    end = world.time + 4_000
    while world.time < end:  # a store has room until its segment ends, and notices then
        if full.standing is not None and full.standing.may_append and full.log.accepts:
            full.append([world.clients.payload_number()])
        world.run_until(world.time + 25)
    now = world.leader()
    if len(voters) > 2 and (now is None or now is full):
        raise Broken(f"I18: the disk of {full.id} stays full, and it goes on leading: {world.describe()}")
    if len(voters) <= 2 and now is not full:
        raise Broken(
            f"I18: the disk of {full.id} is full, and it left the lead to nobody: {world.describe()}"
        )
    world.fill(full, False)
    calm(world)


def until_preferred_leads(world: World) -> None:
    """Wait until the preferred leader has the lead, and keeps it."""
    leader = world.leader()
    assert leader is not None and leader.core is not None
    if not set(world.settings.preferred) & set(leader.core.config.voters):
        return
    end = world.time + 20_000
    while world.time < end and (
        (leader := world.leader()) is None or leader.id not in world.settings.preferred
    ):
        world.run_until(world.time + 50)
    world.run_until(world.time + 2_500)
    leader = world.leader()
    if leader is None or leader.id not in world.settings.preferred:
        raise Broken(f"I18: {world.settings.preferred} is preferred: {world.describe()}")
    calm(world)


def read_everywhere(world: World) -> None:
    """Read at every member, in peace: each is served."""
    members = world.members_of(world.leader()).values()
    tokens = [world.clients.ask_read(member) for member in members for _ in range(3)]
    world.run_until(world.time + 1500)
    lost = [token for token in tokens if token not in world.clients.reads_served]
    if lost:
        raise Broken(f"I18: reads {lost} of {tokens} were not served in peace: {world.describe()}")
