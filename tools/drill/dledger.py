"""The drills of DLedger mode: a group that elects its leader itself, and has to help itself.

What a script shows and undoes is as in `drills.py`. Followers and leader are told by what the name server says.
"""

from __future__ import annotations

import os

import trio

from ropewalk.client.admin.results import LedgerMembers
from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tools.drill.stage import Drill, Stage
from tools.drill.testbed.cluster import Node
from tools.drill.testbed.group import SECRET_VARIABLE
from tools.drill.testbed.ledger_cluster import LedgerCluster

MODE = "dledger"
ELECT_S = 10.0
"""How long a group may take until the name server tells another leader."""
SAME_BYTES = "Nothing acknowledged is lost, and the members hold the same bytes at the end."


def leader_and_followers(stage: Stage) -> tuple[Node, list[Node]]:
    """Return the leader and the others that run, as they are now."""
    name = stage.master().name
    (leader,) = (node for node in stage.cluster.nodes if node.name == name)
    return leader, [node for node in stage.cluster.nodes if node is not leader and node.running]


async def _until_replaced(stage: Stage, leader: Node) -> bool:
    """Wait until another member leads and acknowledges."""
    others = [node.address for node in stage.cluster.nodes if node is not leader]
    if not await stage.wait_for(lambda: stage.router.master in others, ELECT_S):
        stage.broken("no new leader", f"{ELECT_S:g} s after {leader.name} was lost no other member leads")
        return False
    stage.saw(f"{stage.master().name} leads, {stage.since_fault() * 1000:,.0f} ms after the first fault")
    if not await stage.until_acknowledged():
        stage.broken("no way back", f"{stage.master().name} leads, and acknowledges nothing")
        return False
    return True


async def kill_leader(stage: Stage) -> None:
    """The leader is killed twice; each time another one has to go on by itself."""
    for share in (0.2, 0.15):
        await stage.calm(share)
        leader, _followers = leader_and_followers(stage)
        stage.fault(f"kill -9 {leader.name}, the leader")
        leader.kill()
        stage.hit(f"{leader.name} is gone")
        if not await _until_replaced(stage, leader):
            return
        await stage.calm(0.1)
        if not await stage.restart(leader) or not await stage.until_caught_up(leader):
            return


async def stop_leader(stage: Stage) -> None:
    """The leader is asleep; when it wakes, its term is over, and it must not acknowledge."""
    await stage.calm(0.25)
    leader, _followers = leader_and_followers(stage)
    stage.fault(f"SIGSTOP {leader.name}, the leader")
    leader.pause()
    stage.hit(f"the kernel says that {leader.name} is stopped")
    await _until_replaced(stage, leader)
    await stage.calm(0.2)
    stage.repair(f"SIGCONT {leader.name}: it wakes up and believes to lead")
    leader.resume()
    await stage.until_caught_up(leader)


async def kill_follower(stage: Stage) -> None:
    """Two of three are a quorum: nothing stops."""
    await stage.calm(0.25)
    leader, followers = leader_and_followers(stage)
    follower = stage.rng.choice(followers)
    stage.fault(f"kill -9 {follower.name}, a follower")
    follower.kill()
    stage.hit(f"{follower.name} is gone")
    if not await stage.until_acknowledged(1.0):
        stage.broken("stood still", "two of three members are up, and nothing is acknowledged")
    await stage.calm(0.25)
    if stage.router.master != leader.address:
        stage.broken("lost the lead", f"{leader.name} leads no more, over the loss of a follower")
    if await stage.restart(follower):
        await stage.until_caught_up(follower)


async def kill_all(stage: Stage) -> None:
    """All members are killed at once, and start again."""
    await stage.calm(0.3)
    stage.fault("kill -9 all members")
    for node in stage.cluster.nodes:
        node.kill()
    stage.hit("all members are gone")
    for node in stage.cluster.nodes:
        if not await stage.restart(node):
            return
    if not await stage.until_acknowledged():
        stage.broken("no way back", "all members are ready, and nothing is acknowledged")
    await stage.calm(0.2)


async def cut_leader(stage: Stage) -> None:
    """The leader is cut from both others, and clients still reach it: it must not acknowledge."""
    await stage.calm(0.25)
    leader, followers = leader_and_followers(stage)
    await _cut(stage, leader, followers, "both ways", True, True)


async def cut_one_way(stage: Stage) -> None:
    """The leader is not heard by the others, and hears them."""
    await stage.calm(0.25)
    leader, followers = leader_and_followers(stage)
    await _cut(stage, leader, followers, "in the direction from the leader only", True, False)


async def _cut(
    stage: Stage, leader: Node, followers: list[Node], words: str, there: bool, back: bool
) -> None:
    stage.fault(f"cut {leader.name}, the leader, from its followers, {words}")
    ways = [stage.way(leader, node) for node in followers] * there
    ways += [stage.way(node, leader) for node in followers] * back
    before = sum(way.hits for way in ways)
    for way in ways:
        way.change(cut=True)
    await _until_replaced(stage, leader)
    await stage.calm(0.2)
    if sum(way.hits for way in ways) > before:
        stage.hit("bytes were held back by the cut")
    stage.repair("the cut heals")
    for way in ways:
        way.heal()
    await stage.until_caught_up(leader)


async def kill_leaders(stage: Stage) -> None:
    """Leader after leader is killed, at random moments; each comes back as a follower."""
    for _ in range(max(3, int(stage.options.seconds / 4))):
        await trio.sleep(stage.rng.uniform(0.3, 1.0))
        leader, _followers = leader_and_followers(stage)
        stage.fault(f"kill -9 {leader.name}, the leader")
        leader.kill()
        stage.hit(f"{leader.name} is gone")
        if not await _until_replaced(stage, leader):
            return
        if not await stage.restart(leader) or not await stage.until_caught_up(leader):
            return


async def transfer(stage: Stage) -> None:
    """The lead is moved by an operator's command, twice: to the member that lacks least."""
    for _ in range(2):
        await stage.calm(0.25)
        leader, _followers = leader_and_followers(stage)
        stage.fault(f"ropewalk admin dledger transfer, from {leader.name}")
        if not await _hand_over(stage, leader):
            return
        await stage.calm(0.1)


async def _hand_over(stage: Stage, leader: Node) -> bool:
    """Carry the command out, and wait until the other member acknowledges."""
    name_server = stage.cluster.name_server
    try:
        to = await trio.to_thread.run_sync(_ask_for_transfer, name_server, stage.cluster.broker_name)
    except RopewalkError as exc:
        stage.broken("no transfer", str(exc))
        return False
    stage.hit(f"the command says that {to} leads")
    return await _until_replaced(stage, leader)


def _ask_for_transfer(name_server: str, broker_name: str) -> str:
    with Admin(name_server, secret=os.environ.get(SECRET_VARIABLE, "")) as admin:
        return admin.transfer_lead(broker_name)


async def rolling_restart(stage: Stage) -> None:
    """Each member is stopped in good order and started again, the leader last: it hands over by itself."""
    leader, followers = leader_and_followers(stage)
    await stage.calm(0.15)
    for node in (*followers, leader):
        leads = node.name == stage.master().name
        await stage.stop(node, "the leader" if leads else "a follower")
        if leads and not await _until_replaced(stage, node):
            return
        if not await stage.restart(node) or not await stage.until_caught_up(node):
            return
        await stage.until_acknowledged()


async def replace_member(stage: Stage) -> None:
    """A member is lost for good; a new one takes its place, and is needed when the leader is killed then."""
    await stage.calm(0.15)
    leader, followers = leader_and_followers(stage)
    lost, spare = stage.rng.choice(followers), stage.cluster.spares[0]
    stage.fault(f"kill -9 {lost.name}, for good")
    lost.kill()
    stage.gone.add(lost.name)
    stage.hit(f"{lost.name} is gone")
    await stage.calm(0.1)
    if not await _take_in(stage, spare, replacing=lost) or not await stage.until_caught_up(spare):
        return
    await stage.calm(0.1)
    leader, _followers = leader_and_followers(stage)
    stage.fault(f"kill -9 {leader.name}, the leader: the new member is needed")
    leader.kill()
    if await _until_replaced(stage, leader) and await stage.restart(leader):
        await stage.until_caught_up(leader)


async def grow_to_five(stage: Stage) -> None:
    """Two members are taken in, one after the other; then two of five are killed, and three go on."""
    for spare in stage.cluster.spares:
        await stage.calm(0.1)
        if not await _take_in(stage, spare) or not await stage.until_caught_up(spare):
            return
    await stage.calm(0.1)
    leader, followers = leader_and_followers(stage)
    other = next(node for node in followers if node not in stage.cluster.spares)
    for node in (leader, other):
        stage.fault(f"kill -9 {node.name}")
        node.kill()
    stage.hit("three of five are left, two of them new")
    if not await _until_replaced(stage, leader):
        return
    for node in (leader, other):
        if not await stage.restart(node) or not await stage.until_caught_up(node):
            return


async def _take_in(stage: Stage, spare: Node, replacing: Node | None = None) -> bool:
    """Start a new member, and have the group take it in; return whether it votes."""
    cluster = stage.cluster
    assert isinstance(cluster, LedgerCluster)
    id, _, address = cluster.peer(spare.number).partition("-")
    old = cluster.peer(replacing.number).partition("-")[0] if replacing is not None else ""
    words = f"replace {old}" if old else "add"
    stage.fault(f"start {spare.name}; ropewalk admin dledger {words} {id}-{address}")
    try:
        await spare.start()
        members = await trio.to_thread.run_sync(
            _ask_for_member, cluster.name_server, cluster.broker_name, id, address, old
        )
    except RopewalkError as exc:
        stage.broken("not taken in", f"{spare.name}: {exc}")
        return False
    stage.hit(f"{', '.join(members.voters)} vote, {stage.since_fault():.1f} s after the first fault")
    return True


def _ask_for_member(name_server: str, broker_name: str, id: str, address: str, old: str) -> LedgerMembers:
    with Admin(name_server, secret=os.environ.get(SECRET_VARIABLE, "")) as admin:
        return admin.add_member(broker_name, id, address, replacing=old)


LEDGER_DRILLS = (
    Drill(
        name="kill-leader",
        title="kill -9 the leader, twice; the others elect; it comes back",
        expects=SAME_BYTES + " Nobody had to give an order.",
        members=3,
        mode=MODE,
        script=kill_leader,
    ),
    Drill(
        name="stop-leader",
        title="SIGSTOP the leader; the others elect; it wakes up and must not acknowledge",
        expects=SAME_BYTES,
        members=3,
        mode=MODE,
        script=stop_leader,
    ),
    Drill(
        name="kill-follower",
        title="kill -9 a follower, and start it again a while later",
        expects=SAME_BYTES + " Acknowledgements go on without it.",
        members=3,
        mode=MODE,
        script=kill_follower,
    ),
    Drill(
        name="kill-all",
        title="kill -9 all members at once, and start them again",
        expects=SAME_BYTES,
        members=3,
        mode=MODE,
        script=kill_all,
    ),
    Drill(
        name="cut-leader",
        title="cut the leader from its followers, both ways, for a while",
        expects=SAME_BYTES + " The leader acknowledges nothing alone.",
        members=3,
        mode=MODE,
        script=cut_leader,
    ),
    Drill(
        name="cut-one-way",
        title="cut the way from the leader to its followers only",
        expects=SAME_BYTES,
        members=3,
        mode=MODE,
        script=cut_one_way,
    ),
    Drill(
        name="kill-leaders",
        title="kill -9 leader after leader, once in four of --seconds",
        expects=SAME_BYTES,
        members=3,
        mode=MODE,
        script=kill_leaders,
    ),
    Drill(
        name="transfer",
        title="move the lead by an operator's command, twice",
        expects=SAME_BYTES + " The gap of each transfer is short.",
        members=3,
        mode=MODE,
        script=transfer,
    ),
    Drill(
        name="rolling-restart",
        title="restart each member, the leader last, which hands over by itself",
        expects=SAME_BYTES + " The gap of each step is short.",
        members=3,
        mode=MODE,
        script=rolling_restart,
    ),
    Drill(
        name="replace-member",
        title="kill -9 a follower for good; a new member takes its place under load",
        expects=SAME_BYTES + " The group goes on with the new member when the leader is killed then.",
        members=3,
        spares=1,
        mode=MODE,
        script=replace_member,
    ),
    Drill(
        name="grow-to-five",
        title="take two new members in under load, then kill -9 two of the five",
        expects=SAME_BYTES + " Three of five go on.",
        members=3,
        spares=2,
        mode=MODE,
        script=grow_to_five,
    ),
)
