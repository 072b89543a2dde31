"""The drills of DLedger mode in which a part is ill and not gone: a slow or broken link, a changed byte.

What a script shows and undoes is as in `drills.py`. Two of three members can talk all the time, so none of it may stop
the group or cost the leader its lead.
"""

from __future__ import annotations

from tools.drill.dledger import MODE, SAME_BYTES, leader_and_followers
from tools.drill.stage import Drill, Stage
from tools.drill.testbed import damage
from tools.drill.testbed.cluster import Node

SLOW_DELAY_S = 0.2
SLOW_BYTES_PER_S = 64 * 1024
FLAPS = 12
FLAP_MIN_S, FLAP_MAX_S = 0.05, 0.9
"""How long a flapping link is down: shorter and longer than an election timeout."""
GOES_ON_S = 2.0
SMALL_SEGMENT = 256 * 1024
LARGE_BODY = 2048
MEND_S = 15.0


async def _goes_on(stage: Stage, leader: Node, what: str) -> None:
    """Expect acknowledgements at once, and the same leader."""
    if not await stage.until_acknowledged(GOES_ON_S):
        stage.broken("stood still", f"{what}, and nothing was acknowledged for {GOES_ON_S:g} s")
    if stage.router.master != leader.address:
        stage.broken("lost the lead", f"{leader.name} leads no more, because {what}")


async def slow_follower(stage: Stage) -> None:
    """A follower is far away behind a thin line: the other one and the leader are a quorum without it."""
    await stage.calm(0.2)
    leader, followers = leader_and_followers(stage)
    slow = stage.rng.choice(followers)
    ways = [stage.way(leader, slow), stage.way(slow, leader)]
    before = sum(way.hits for way in ways)
    stage.fault(
        f"{SLOW_DELAY_S * 1000:g} ms each way between {leader.name}, the leader, and {slow.name}, and "
        f"{SLOW_BYTES_PER_S // 1024} KiB a second"
    )
    for way in ways:
        way.change(delay_s=SLOW_DELAY_S, bytes_per_s=SLOW_BYTES_PER_S)
    for _ in range(4):
        await stage.calm(0.1)
        await _goes_on(stage, leader, f"{slow.name} is slow")
    if sum(way.hits for way in ways) > before:
        stage.hit(f"bytes were held up, and {slow.name} was {stage.lag(slow):,} bytes behind")
    stage.repair("the link is fast again")
    for way in ways:
        way.heal()
    await stage.until_caught_up(slow)


async def bridge(stage: Stage) -> None:
    """The leader and one follower see each other only through the third member, which hears both."""
    await stage.calm(0.2)
    leader, followers = leader_and_followers(stage)
    far, between = stage.rng.sample(followers, 2)
    ways = [stage.way(leader, far), stage.way(far, leader)]
    before = sum(way.hits for way in ways)
    stage.fault(f"cut {leader.name}, the leader, from {far.name}, both ways; {between.name} sees both")
    for way in ways:
        way.change(cut=True)
    for _ in range(4):
        await stage.calm(0.1)
        await _goes_on(stage, leader, f"{far.name} does not hear it")
    if sum(way.hits for way in ways) > before:
        stage.hit("bytes were held back by the cut")
    stage.repair("the cut heals")
    for way in ways:
        way.heal()
    await stage.until_caught_up(far)
    await _goes_on(stage, leader, f"{far.name} is back")


async def flapping_link(stage: Stage) -> None:
    """The link between the leader and a follower comes and goes, for moments and for longer."""
    await stage.calm(0.2)
    leader, followers = leader_and_followers(stage)
    far = stage.rng.choice(followers)
    ways = [stage.way(leader, far), stage.way(far, leader)]
    before = sum(way.hits for way in ways)
    stage.fault(f"the link between {leader.name}, the leader, and {far.name} goes down {FLAPS} times")
    for number in range(FLAPS):
        for way in ways:
            way.change(cut=True)
        await stage.calm(stage.rng.uniform(FLAP_MIN_S, FLAP_MAX_S) / stage.options.seconds)
        if (
            number % 3 == 2
        ):  # as behind a router that forgets: what was held is gone, and so is the connection
            stage.cluster.proxy.sever(leader.name, far.name)
        for way in ways:
            way.heal()
        await _goes_on(stage, leader, f"the link to {far.name} flaps")
    if sum(way.hits for way in ways) > before:
        stage.hit(f"the link was down {FLAPS} times")
    stage.repair("the link is up")
    await stage.until_caught_up(far)


async def corrupt_member(stage: Stage) -> None:
    """A byte changes under a follower that runs, and one under the leader while it is down: others have them."""
    await stage.calm(0.3)
    leader, followers = leader_and_followers(stage)
    follower = stage.rng.choice(followers)
    chosen = await _choose(stage, follower)
    stage.fault(f"change one byte of {follower.name}, a follower: {chosen}")
    chosen.flip()
    stage.hit(f"byte {chosen} reads differently now")
    if await stage.wait_for(chosen.is_whole, MEND_S):
        stage.saw(f"{follower.name} has found and mended it, {stage.since_fault():.1f} s later")
    else:
        stage.broken("not mended", f"{follower.name} has not mended it while it ran")
    await stage.calm(0.1)
    leader, _followers = leader_and_followers(stage)
    stage.fault(f"kill -9 {leader.name}, the leader")
    leader.kill()
    chosen = await _choose(stage, leader)
    stage.fault(f"change one byte of {leader.name} while it is down: {chosen}")
    chosen.flip()
    stage.hit(f"{leader.name} is gone, and byte {chosen} reads differently")
    if not await stage.until_acknowledged():
        stage.broken("no way back", "two of three members are up, and nothing is acknowledged")
    if not await stage.restart(leader):
        return
    if not await stage.wait_for(chosen.is_whole, MEND_S):
        stage.broken("not mended", f"{leader.name} runs, and has not mended its byte")
    else:
        stage.saw(f"{leader.name} has its byte again")
    await stage.until_caught_up(leader)


async def _choose(stage: Stage, node: Node) -> damage.Byte:
    chosen = damage.choose_byte(node.store, stage.rng)
    if chosen is None:
        stage.cannot(f"{node.name} has no sealed segment yet: raise --seconds or --rate")
    if not await stage.wait_for(lambda: damage.is_summed(node.store, chosen), MEND_S):
        stage.cannot(f"{node.name} has made no checksum of its sealed segment")
    return chosen


LEDGER_FAULT_DRILLS = (
    Drill(
        name="slow-follower",
        title="slow the link to one follower down: far away, and thin",
        expects=SAME_BYTES + " Acknowledgements go on at the pace of the other follower.",
        members=3,
        mode=MODE,
        script=slow_follower,
    ),
    Drill(
        name="bridge",
        title="cut the leader from one follower; the third member sees both",
        expects=SAME_BYTES + " The leader goes on leading.",
        members=3,
        mode=MODE,
        script=bridge,
    ),
    Drill(
        name="flapping-link",
        title=f"take the link to one follower down and up, {FLAPS} times",
        expects=SAME_BYTES + " The leader goes on leading.",
        members=3,
        mode=MODE,
        script=flapping_link,
    ),
    Drill(
        name="corrupt-member",
        title="change a byte of a follower that runs, and one of the leader while it is down",
        expects=SAME_BYTES + " Both bytes are found and mended.",
        members=3,
        mode=MODE,
        script=corrupt_member,
        settings={"mappedFileSizeCommitLog": str(SMALL_SEGMENT)},
        body_size=LARGE_BODY,
    ),
)
