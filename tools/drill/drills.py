"""The table of drills, and their scripts: what is broken, when, and how it is made whole again.

A script makes its fault while the load goes on, shows that it took effect, and undoes it; what follows is the same for
all of them (`run.py`). Shares are of the load's seconds; where a script has to wait for the cluster it takes as long
as that takes.
"""

from __future__ import annotations

from pathlib import Path

import trio

from tools.drill import operate
from tools.drill.dledger import LEDGER_DRILLS, MODE
from tools.drill.full_disk import FULL_DISK_LEADER, FULL_DISK_MASTER
from tools.drill.ledger_faults import LEDGER_FAULT_DRILLS
from tools.drill.stage import Drill, Stage
from tools.drill.testbed import damage
from tools.drill.testbed.cluster import SLAVE_TIMEOUT_MS, Node

DISTANCE_S = 0.03
"""How long bytes travel from master to slave before a master is lost. Without a distance, everything that a master has
acknowledged is with the slave a fraction of a millisecond later, and a broken promise would hardly ever show."""
SLOW_DELAY_S = 0.1
SLOW_BYTES_PER_S = 256 * 1024
RESETS = 6
SECONDS_A_KILL = 3.0
WATCH_S = 15.0
SMALL_SEGMENT = 256 * 1024
LARGE_BODY = 2048
MEND_S = 10.0
"""How long the scrubber may take to find a byte in a few megabytes."""


# -- one broker --------------------------------------------------------------------------------------


async def kill_and_restart(stage: Stage) -> None:
    """Nothing that was in the page cache may be missing, and the log goes on where it was."""
    node = stage.cluster.nodes[0]
    await stage.calm(0.25)
    for share in (0.3, 0.1):
        await _kill(stage, node)
        if await stage.restart(node) and not await stage.until_acknowledged():
            stage.broken("no way back", f"{node.name} is ready, and acknowledges nothing")
        await stage.calm(share)


# -- the master is lost ------------------------------------------------------------------------------


async def kill_master(stage: Stage) -> None:
    """The machine of the master is gone, and with it all bytes on the wire."""
    master, slave = stage.pair()
    await stage.calm(0.15)
    await _keep_distance(stage, master, slave)
    await stage.calm(0.1)
    await _lose_machine(stage, master)
    await stage.failover()
    await stage.calm(0.25)
    if await stage.restart(master):
        await stage.until_caught_up(master)


async def stop_master(stage: Stage) -> None:
    """The master is not dead, only asleep; when it wakes, its time is over."""
    master, _slave = stage.pair()
    await stage.calm(0.25)
    stage.fault(f"SIGSTOP {master.name}, the master")
    master.pause()
    stage.hit(f"the kernel says that {master.name} is stopped")
    await stage.failover()
    await stage.calm(0.25)
    stage.repair(f"SIGCONT {master.name}: it wakes up and believes to be the master")
    master.resume()
    await stage.until_caught_up(master)


async def old_master_returns(stage: Stage) -> None:
    """A master that has stored messages alone is lost, replaced, and comes back with its extra tail."""
    master, slave = stage.pair()
    await stage.calm(0.2)
    stage.fault(
        f"cut {master.name} from {slave.name}, both ways: what the master stores now is not acknowledged"
    )
    _cut(stage, master, slave, True)
    before = stage.ends.get(slave.name) or 0
    await stage.wait_for(lambda: (stage.ends.get(master.name) or 0) > before, 5.0)
    # Longer than a master waits for its slave: what it says then must not be an acknowledgement.
    await trio.sleep(1.3 * SLAVE_TIMEOUT_MS / 1000)
    extra = (stage.ends.get(master.name) or 0) - (stage.ends.get(slave.name) or 0)
    await _lose_machine(stage, master)
    _cut(stage, master, slave, False)
    if extra > 0:
        stage.hit(f"{master.name} had {extra:,} bytes that {slave.name} has not")
    replaced = await stage.failover()
    await stage.calm(0.15)
    if await stage.restart(master) and await stage.until_caught_up(master) and replaced:
        kept = _bytes_below(master.store / "ropewalk" / "diverged")
        if kept:
            stage.saw(f"{master.name} has put {kept:,} bytes aside under diverged/")
        elif extra > 0:
            stage.broken(
                "tail not kept", f"{master.name} has dropped {extra:,} bytes and kept no copy of them"
            )


async def watched_master(stage: Stage) -> None:
    """The keyboard is unattended: `admin ha watch` has to notice, and to act."""
    master, slave = stage.pair()
    group = stage.cluster
    watch = group.launch(
        "watch", "admin", "ha", "watch", group.broker_name, "-n", group.name_server, "--json"
    )
    if not await stage.wait_for(lambda: watch.has_said("the master is"), WATCH_S):
        stage.cannot(f"`admin ha watch` does not watch: {watch.last_words()}")
    stage.saw("`admin ha watch` watches")
    await stage.calm(0.15)
    await _keep_distance(stage, master, slave)
    await stage.calm(0.1)
    await _lose_machine(stage, master)
    stage.masters.append((stage.timeline.now(), slave.name))
    if not await stage.wait_for(lambda: stage.router.master == slave.address, WATCH_S):
        stage.broken(
            "not failed over", f"`admin ha watch` has not made {slave.name} the master: {watch.last_words()}"
        )
    elif await stage.until_stored():
        stage.saw(
            f"`admin ha watch` has made {slave.name} the master, {stage.since_fault():.1f} s after the loss"
        )
    await stage.calm(0.2)
    if await stage.restart(master):
        await stage.until_caught_up(master)


async def kill_any(stage: Stage) -> None:
    """Either side is killed after the other, at random, as soon as all is well again."""
    kills = max(3, int(stage.options.seconds / SECONDS_A_KILL))
    await stage.calm(0.5 / kills)
    for _ in range(kills):
        master, slave = stage.pair()
        victim = stage.rng.choice((master, slave))
        await trio.sleep(stage.rng.uniform(0.05, 0.5))
        await _kill(stage, victim)
        if victim is master and not await stage.failover():
            return
        if not await stage.restart(victim):
            return
        if not await stage.until_caught_up(victim) or not await stage.until_acknowledged():
            stage.broken("no way back", f"{victim.name} is back, and nothing is acknowledged")
            return


# -- the slave is lost -------------------------------------------------------------------------------


async def kill_slave(stage: Stage) -> None:
    """Without it nothing is acknowledged; with it back, everything is again, from where it was."""
    _master, slave = stage.pair()
    await stage.calm(0.25)
    await _kill(stage, slave)
    await stage.calm(0.25)
    if await stage.restart(slave):
        await stage.until_caught_up(slave)
        await stage.until_acknowledged()


async def full_disk(stage: Stage) -> None:
    """The slave's disk is full. It stops, says so by silence, and goes on when there is room."""
    _master, slave = stage.pair()
    await stage.calm(0.15)
    stage.fault(f"fill the disk of {slave.name}")
    ballast = damage.fill(slave.store)
    stage.saw(f"{ballast.size:,} bytes of ballast leave no room on {slave.name}")
    if await stage.wait_for(lambda: stage.lag(slave) > 8 * LARGE_BODY and damage.is_full(slave.store), 20.0):
        stage.hit(
            f"{slave.name} stands still, {stage.lag(slave):,} bytes behind: there is no room for a segment"
        )
    await stage.calm(0.25)
    if not slave.running:
        stage.broken("ended", f"{slave.name} ended with status {slave.status}:\n{slave.last_words()}")
        return
    stage.repair(f"make room on {slave.name}")
    ballast.remove()
    await stage.until_caught_up(slave)
    await stage.until_acknowledged()


async def corrupt_slave(stage: Stage) -> None:
    """A byte of an old message changes on the slave's disk. Somebody has to notice, and put it right."""
    master, slave = stage.pair()
    await stage.calm(0.3)
    chosen = damage.choose_byte(slave.store, stage.rng)
    if chosen is None:
        stage.cannot("the slave has no sealed segment yet: raise --seconds or --rate")
    if not await stage.wait_for(lambda: damage.is_summed(slave.store, chosen), MEND_S):
        stage.cannot(f"{slave.name} has made no checksum of its sealed segment")
    stage.fault(f"change one byte of {slave.name}: {chosen}")
    chosen.flip()
    stage.hit(f"byte {chosen} reads differently now")
    if await stage.wait_for(chosen.is_whole, MEND_S):
        stage.saw(f"{slave.name} has found and mended it, {stage.since_fault():.1f} s later")
        return
    found = "found it, and not mended it" if slave.has_said("damaged bytes in") else "not found it"
    stage.broken("not mended", f"{slave.name} has {found} while it ran")

    async def mend() -> None:
        try:
            stage.saw(await operate.find_damage(slave.store))
            stage.repair(f"store repair {slave.name} --from {master.name}")
            stage.saw(await operate.repair_store(slave.store, master.store))
        except operate.Failed as exc:
            stage.broken("not mended", str(exc))

    stage.after_stop = mend


# -- the wire ----------------------------------------------------------------------------------------


async def cut_link(stage: Stage) -> None:
    """Neither hears the other; clients and name server hear both."""
    master, slave = stage.pair()
    await stage.calm(0.25)
    stage.fault(f"cut {master.name} from {slave.name}, both ways")
    await _cut_and_heal(stage, [(master, slave), (slave, master)], slave)


async def cut_to_slave(stage: Stage) -> None:
    """The slave reports and hears nothing."""
    master, slave = stage.pair()
    await stage.calm(0.25)
    stage.fault(f"cut the way from {master.name} to {slave.name}; the way back stays open")
    await _cut_and_heal(stage, [(master, slave)], slave)


async def cut_to_master(stage: Stage) -> None:
    """The slave has everything, and its master does not hear so."""
    master, slave = stage.pair()
    await stage.calm(0.25)
    stage.fault(f"cut the way from {slave.name} to {master.name}; the way there stays open")
    await _cut_and_heal(stage, [(slave, master)], slave)


async def slow_link(stage: Stage) -> None:
    """Far away and thin: slower, and nothing else."""
    master, slave = stage.pair()
    rules = [stage.way(master, slave), stage.way(slave, master)]
    before = sum(rule.hits for rule in rules)
    await stage.calm(0.25)
    stage.fault(
        f"{SLOW_DELAY_S * 1000:g} ms each way between {master.name} and {slave.name}, "
        f"and {SLOW_BYTES_PER_S // 1024} KiB a second"
    )
    for rule in rules:
        rule.change(delay_s=SLOW_DELAY_S, bytes_per_s=SLOW_BYTES_PER_S)
    await stage.calm(0.4)
    hits = sum(rule.hits for rule in rules) - before
    if hits:
        stage.hit(f"bytes were held up {hits:,} times")
    stage.repair("the link is fast again")
    for rule in rules:
        rule.heal()
    await stage.until_caught_up(slave)


async def reset_link(stage: Stage) -> None:
    """The connection breaks in the middle of a frame, again and again."""
    master, slave = stage.pair()
    rule = stage.way(master, slave)
    await stage.calm(0.2)
    for _ in range(RESETS):
        before = rule.hits
        byte = stage.rng.randrange(1, 20_000)
        stage.fault(f"reset the link from {master.name} to {slave.name} after {byte:,} more bytes")
        rule.change(reset_after=byte)
        if await stage.wait_for(lambda before=before: rule.hits > before, 10.0):  # type: ignore[misc]
            stage.hit(f"reset at byte {byte:,}")
        if not await stage.until_acknowledged():
            stage.broken("no way back", "nothing is acknowledged after a reset")
        await stage.calm(0.05)


# -- on purpose --------------------------------------------------------------------------------------


async def planned_switch(stage: Stage) -> None:
    """There and back; no message lost, and as good as no gap."""
    await stage.calm(0.25)
    await stage.switch(as_fault=True)
    await stage.calm(0.25)
    await stage.switch(as_fault=True)


async def failover(stage: Stage) -> None:
    """The group is healthy, and an operator orders a failover: it costs little more than a switch."""
    await stage.calm(0.3)
    await stage.failover(as_fault=True)


async def rolling_restart(stage: Stage) -> None:
    """Each member is stopped and started once, the master after it has handed over."""
    master, slave = stage.pair()
    await stage.calm(0.15)
    for node in (slave, master):
        if node.name == stage.master().name:
            await stage.switch()
            await stage.calm(0.1)
        await stage.stop(node, "the slave")
        if await stage.restart(node):
            await stage.until_caught_up(node)
            await stage.until_acknowledged()


# -- the parts ---------------------------------------------------------------------------------------


async def _kill(stage: Stage, node: Node) -> None:
    stage.fault(f"kill -9 {node.name}")
    node.kill()
    if node.status == -9:
        stage.hit(f"{node.name} ended by signal 9")


async def _lose_machine(stage: Stage, node: Node) -> None:
    """kill -9, and what the process had on the wire is lost with it."""
    proxy = stage.cluster.proxy
    peers = [each.name for each in stage.cluster.nodes if each is not node]
    stage.fault(
        f"{node.name} is lost: kill -9, and what it had on the wire to {', '.join(peers)} never arrives"
    )
    rules = [proxy.rule(node.name, peer) for peer in peers]
    for rule in rules:
        rule.change(cut=True)
    node.kill()
    for peer in peers:
        proxy.sever(node.name, peer)
    for rule in rules:
        rule.heal()
    if node.status == -9:
        stage.hit(f"{node.name} ended by signal 9")


async def _keep_distance(stage: Stage, master: Node, slave: Node) -> None:
    stage.timeline.add(
        "phase", f"{DISTANCE_S * 1000:g} ms from {master.name} to {slave.name}, as between two machines"
    )
    stage.way(master, slave).change(delay_s=DISTANCE_S)
    await trio.sleep(2 * DISTANCE_S)


def _cut(stage: Stage, one: Node, other: Node, cut: bool) -> None:
    for rule in (stage.way(one, other), stage.way(other, one)):
        rule.change(cut=cut)


async def _cut_and_heal(stage: Stage, ways: list[tuple[Node, Node]], slave: Node) -> None:
    rules = [stage.way(*way) for way in ways]
    before = [rule.hits for rule in rules]
    for rule in rules:
        rule.change(cut=True)
    await stage.calm(0.35)
    hits = sum(rule.hits for rule in rules) - sum(before)
    if hits:
        stage.hit(f"bytes were held back {hits:,} times")
    stage.repair("the link is whole again")
    for rule in rules:
        rule.heal()
    await stage.until_caught_up(slave)
    await stage.until_acknowledged()


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


SAME_BYTES = "Nothing acknowledged is lost, and the members hold the same bytes at the end."

DRILLS = (
    Drill(
        name="kill-restart",
        title="kill -9 a single broker under load and start it again, twice",
        expects="Every acknowledged message is there after recovery; writes go on as soon as it is ready.",
        members=1,
        script=kill_and_restart,
    ),
    Drill(
        name="kill-master",
        title="lose the master and what it had on the wire; fail over; it comes back",
        expects=SAME_BYTES,
        members=2,
        script=kill_master,
    ),
    Drill(
        name="stop-master",
        title="SIGSTOP the master; fail over; it wakes up and must not acknowledge",
        expects=SAME_BYTES + " The old master steps down by itself.",
        members=2,
        script=stop_master,
    ),
    Drill(
        name="old-master-returns",
        title="lose a master that has an extra tail; fail over; it comes back and puts the tail aside",
        expects=SAME_BYTES + " The extra tail is kept under diverged/.",
        members=2,
        script=old_master_returns,
    ),
    Drill(
        name="watched-master",
        title="lose the master while `admin ha watch` is looking; it fails over by itself",
        expects=SAME_BYTES + " Nobody had to give an order.",
        members=2,
        script=watched_master,
    ),
    Drill(
        name="kill-any",
        title=f"kill -9 either side again and again, once in {SECONDS_A_KILL:g} of --seconds",
        expects=SAME_BYTES,
        members=2,
        script=kill_any,
    ),
    Drill(
        name="kill-slave",
        title="kill -9 the slave, and start it again a while later",
        expects=SAME_BYTES + " Nothing is acknowledged while it is away.",
        members=2,
        script=kill_slave,
    ),
    Drill(
        name="cut-link",
        title="cut master and slave from each other, both ways, for a while",
        expects=SAME_BYTES,
        members=2,
        script=cut_link,
    ),
    Drill(
        name="cut-to-slave",
        title="cut the way from master to slave only",
        expects=SAME_BYTES,
        members=2,
        script=cut_to_slave,
    ),
    Drill(
        name="cut-to-master",
        title="cut the way from slave to master only",
        expects=SAME_BYTES,
        members=2,
        script=cut_to_master,
    ),
    Drill(
        name="slow-link",
        title="a slow and thin link between master and slave",
        expects=SAME_BYTES + " Acknowledgements take longer.",
        members=2,
        script=slow_link,
    ),
    Drill(
        name="reset-link",
        title=f"reset the link in mid-frame, {RESETS} times",
        expects=SAME_BYTES,
        members=2,
        script=reset_link,
    ),
    Drill(
        name="switch",
        title="a planned switch, there and back",
        expects=SAME_BYTES + " The gap is short.",
        members=2,
        script=planned_switch,
        live=True,
    ),
    Drill(
        name="failover",
        title="a failover by command while all is well",
        expects=SAME_BYTES + " The gap is short.",
        members=2,
        script=failover,
        live=True,
    ),
    Drill(
        name="rolling-restart",
        title="restart the slave, switch, restart the other one",
        expects=SAME_BYTES,
        members=2,
        script=rolling_restart,
    ),
    Drill(
        name="full-disk",
        title="fill the slave's disk, and make room again",
        expects=SAME_BYTES + " The slave pauses and goes on by itself.",
        members=2,
        script=full_disk,
        settings={"mappedFileSizeCommitLog": str(SMALL_SEGMENT), "cleanFileForciblyEnable": "false"},
        body_size=LARGE_BODY,
        small_disk=(1, damage.DISK_BYTES),
    ),
    Drill(
        name="corrupt-slave",
        title="change one byte of the slave's log",
        expects=SAME_BYTES + " The byte is found and mended.",
        members=2,
        script=corrupt_slave,
        settings={"mappedFileSizeCommitLog": str(SMALL_SEGMENT)},
        body_size=LARGE_BODY,
    ),
    FULL_DISK_MASTER,
)


ALL_DRILLS = (*DRILLS, *LEDGER_DRILLS, *LEDGER_FAULT_DRILLS, FULL_DISK_LEADER)
MODES = (DRILLS[0].mode, MODE)


def drills_of(mode: str) -> tuple[Drill, ...]:
    """Return the drills for a group of this mode."""
    return tuple(drill for drill in ALL_DRILLS if drill.mode == mode)


__all__ = ["ALL_DRILLS", "DRILLS", "MODES", "Drill", "drills_of"]
