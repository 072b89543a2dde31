"""One run of one drill: cluster, load, script, audit, verdict.

The script of a drill is given a `Stage`: it makes the fault and undoes it, while the load goes on and everything is
written down. What comes after is the same for all: let the members agree, read everything back as a consumer, stop
them, compare their files, and hold it all against what was promised.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import trio

import ropewalk
from ropewalk.client.anyio_shell import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from tools.drill import operate, reading
from tools.drill.audit import Audit, Finding, Found, Sent, audit, overlapping_acknowledgements
from tools.drill.cluster import CannotRun, Cluster, Ended, Node
from tools.drill.damage import small_disk
from tools.drill.load import Load, LoadSpec, Router, create_topic, probe
from tools.drill.outcome import BUCKET_S, Latency, Link, Replicas, Result, Series
from tools.drill.proxy import Rule
from tools.drill.timeline import Timeline, gaps, lag_bytes, longest_gap, per_bucket

TOPIC = "drill-load"
SAMPLE_S = 0.1
SETTLE_S = 20.0
"""How long the members may take to agree after the load has ended."""
SHOWN_GAP_S = 0.1
LAST_ANSWERS_S = 5.0
_ASK_S = 0.5
_PULL_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a user may choose."""

    seconds: float = 12.0
    rate: float = 300.0
    body_size: int = 256
    queues: int = 4
    lanes: int = 16
    settings: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] | None = None
    keep: bool = False
    seed: int | None = None


Script = Callable[["Stage"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A row of the table of drills."""

    name: str
    title: str
    """What is done, in a line."""
    expects: str
    """What a clean verdict shows, in a sentence or two."""
    members: int
    script: Script
    settings: Mapping[str, str] = field(default_factory=dict)
    slave_disk: int | None = None
    """Bytes of the small disk that the slave's store gets; None leaves it where all temporary files are."""
    body_size: int = 0
    """Bytes of a body at the least: some faults need a log that grows."""
    live: bool = False
    """Whether it may be run against a live cluster: it does nothing but an administrator's commands."""


class Progress:
    """Who watches a run. The methods do nothing here."""

    def stage(self, text: str) -> None:
        """A part of the run begins."""

    def tick(self, second: float, total: float, acknowledged: int) -> None:
        """Some time has passed under load."""


class Stage:
    """What a script sees and may do."""

    def __init__(
        self, cluster: Cluster, load: Load, router: Router, timeline: Timeline, options: Options
    ) -> None:
        self.cluster = cluster
        self.load = load
        self.router = router
        self.timeline = timeline
        self.options = options
        self.chance = random.Random(options.seed)
        self.masters = [(0.0, cluster.nodes[0].name)]
        """Who was made the master, and when: the first one by its configuration."""
        self.hits: list[str] = []
        self.notes: list[str] = []
        self.findings: list[Finding] = []
        self.ends: dict[str, int | None] = {}
        """How far each member's log reached when it was last asked."""
        self.fault_at: float | None = None
        self.failed_to_start: set[str] = set()

    async def calm(self, share: float) -> None:
        """Let the load run for a share of its seconds."""
        await trio.sleep(share * self.options.seconds)

    def fault(self, text: str) -> None:
        """Write down that a fault is made now."""
        event = self.timeline.add("fault", text)
        if self.fault_at is None:
            self.fault_at = event.at

    def repair(self, text: str) -> None:
        self.timeline.add("repair", text)

    def hit(self, text: str) -> None:
        """Evidence that the fault took effect. A run without any gives no verdict."""
        self.hits.append(text)

    def broken(self, kind: str, text: str) -> None:
        """A promise was broken that the audit of messages cannot see."""
        self.timeline.add("trouble", text)
        self.findings.append(Finding(kind, 1, (text,)))

    def master(self) -> Node:
        """Who is the master according to the name server. Raises `CannotRun` when nobody is."""
        node = self.cluster.node_at(self.router.master)
        if node is None:
            raise CannotRun("the name server knows no master of the group")
        return node

    def pair(self) -> tuple[Node, Node]:
        """Master and slave, as they are now."""
        master = self.master()
        return master, next(each for each in self.cluster.nodes if each is not master)

    def way(self, source: Node, target: Node) -> Rule:
        """What happens to bytes between two members, in this direction."""
        return self.cluster.proxy.rule(source.name, target.name)

    def lag(self, node: Node) -> int:
        """How many bytes a member is behind the furthest log, as far as is known."""
        known = [end for end in self.ends.values() if end is not None]
        return max(known, default=0) - (self.ends.get(node.name) or 0)

    def saw(self, text: str) -> None:
        self.timeline.add("seen", text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def since_fault(self) -> float:
        """Seconds since the first fault."""
        return self.timeline.now() - (self.fault_at or 0.0)

    def cannot(self, why: str) -> NoReturn:
        raise CannotRun(why)

    async def wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Whether it came true in time."""
        with trio.move_on_after(limit_s):
            while not condition():  # noqa: ASYNC110 - of things that have no event, such as answers of brokers
                await trio.sleep(0.01)
        return condition()

    async def until_acknowledged(self, limit_s: float = 30.0) -> bool:
        """Wait for an acknowledgement of a message that was sent after this call."""
        now = self.timeline.now()
        return await self.wait_for(lambda: _acknowledged_since(self.load.sent, now), limit_s)

    async def until_caught_up(self, node: Node, limit_s: float = SETTLE_S) -> bool:
        """Wait until a member's log reaches as far as the furthest one did when this was called."""
        target = self.ends.get(self.master().name) or 0
        began = self.timeline.now()
        done = await self.wait_for(lambda: (self.ends.get(node.name) or -1) >= target, limit_s)
        if done:
            took_s = self.timeline.now() - began
            self.timeline.add("seen", f"{node.name} has caught up, {took_s:.1f} s after its return")
        else:
            self.broken("never caught up", f"{node.name} has not caught up within {limit_s:g} s")
        return done

    async def restart(self, node: Node) -> bool:
        """Start a member that has ended. One that does not come back is a broken promise, and False."""
        self.timeline.add("repair", f"start {node.name} again")
        try:
            await node.start()
        except Ended as exc:
            self.broken("does not start", str(exc))
            self.failed_to_start.add(node.name)
            return False
        self.saw(f"{node.name} is ready")
        return True

    # -- an operator's commands ----------------------------------------------------------------------

    async def switch(self, *, as_fault: bool = False) -> bool:
        """Hand the group over to the slave, as planned."""
        _master, slave = self.pair()
        (self.fault if as_fault else self.repair)(f"admin ha switch: hand over to {slave.name}")
        return await self._command("switch", slave, as_fault=as_fault)

    async def failover(self) -> bool:
        """Make the slave the master."""
        _master, slave = self.pair()
        self.repair(f"admin ha failover: {slave.name} becomes the master")
        return await self._command("failover", slave, as_fault=False)

    async def _command(self, name: str, winner: Node, *, as_fault: bool) -> bool:
        began = self.timeline.now()
        self.masters.append((began, winner.name))
        try:
            told = await operate.run(self.cluster, name)
        except operate.Failed as exc:
            self.broken(f"{name} failed", str(exc))
            return False
        took_ms = (self.timeline.now() - began) * 1000
        self.saw(f"the command took {took_ms:.0f} ms: {told}")
        if as_fault:
            self.hit(f"{name} took place")
        done = await self.until_acknowledged()
        if not done:
            self.broken("no way back", f"after {name} nothing is acknowledged")
        return done


def _acknowledged_since(sent: Sequence[Sent], since: float) -> bool:
    for entry in reversed(sent[-4000:]):
        attempt = entry.acknowledgement
        if attempt is not None and attempt.sent_at > since:
            return True
    return False


async def run_drill(drill: Drill, options: Options, progress: Progress) -> Result:
    """Carry out a drill on a throw-away cluster. Raises `CannotRun` when there can be no verdict."""
    chance = random.Random(options.seed) if options.seed is not None else random.Random()
    folder = Path(tempfile.mkdtemp(prefix=f"ropewalk-drill-{drill.name}-"))
    try:
        cluster = Cluster(
            folder,
            drill.members,
            settings={**drill.settings, **options.settings},
            command=options.command,
            chance=chance,
        )
        with ExitStack() as disks:
            if drill.slave_disk is not None:
                disks.enter_context(small_disk(cluster.nodes[-1].store, drill.slave_disk))
            async with cluster:
                return await _Run(drill, options, cluster, progress, folder).run()
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """The parts of one run, in the order in which they are called."""

    def __init__(
        self, drill: Drill, options: Options, cluster: Cluster, progress: Progress, folder: Path
    ) -> None:
        self.drill = drill
        self.options = options
        self.cluster = cluster
        self.progress = progress
        self.folder = folder
        run = f"{time.time_ns() // 1_000_000:x}"
        self.spec = LoadSpec(
            run=run,
            topic=TOPIC,
            broker_name=cluster.nodes[0].settings["brokerName"],
            queues=options.queues,
            lanes=options.lanes,
            rate=options.rate,
            body_size=max(options.body_size, drill.body_size),
        )
        self.timeline = Timeline(time.monotonic)
        self.router = Router(cluster.name_server, TOPIC, self.spec.broker_name)
        self.load = Load(self.spec, self.router, self.timeline, cluster.name_of)
        self.stage = Stage(cluster, self.load, self.router, self.timeline, options)
        self.began = datetime.now(UTC)
        self.alive = False
        self.load_end = 0.0
        self.stored: dict[str, list[Found]] = {}

    async def run(self) -> Result:
        cluster = self.cluster
        self.progress.stage(f"starting {len(cluster.nodes)} broker(s) and a name server")
        try:
            await cluster.start()
        except Ended as exc:
            raise CannotRun(f"the cluster does not start: {exc}") from exc
        try:
            await create_topic(cluster.nodes[0].address, TOPIC, self.spec.queues)
        except RopewalkError as exc:
            raise CannotRun(f"the group takes no topic: {exc}") from exc
        self.router.on_change = self._master_changed
        async with trio.open_nursery() as background:
            background.start_soon(self.router.run)
            for node in cluster.nodes:
                background.start_soon(self._sample, node)
            await self._under_load()
            await self._settle()
            pulled = await self._pull()
            background.cancel_scope.cancel()
        self.progress.stage("stopping the brokers and comparing their files")
        await cluster.stop()
        replicas = self._compare()
        return self._judge(pulled, replicas)

    # -- the load ------------------------------------------------------------------------------------

    async def _under_load(self) -> None:
        self.progress.stage("under load")
        if len(self.cluster.nodes) > 1:
            # A slave that is still on its way would make every first answer "not available".
            await self._warm_up()
        if not await self.stage.wait_for(lambda: self.router.master is not None, SETTLE_S):
            raise CannotRun(f"the name server tells no master of the group:\n{self.cluster.last_words()}")
        self.timeline.begin()
        self.timeline.add(
            "phase", f"the load begins: {self.spec.rate:g} messages a second to {self.cluster.nodes[0].name}"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.load.run)
            nursery.start_soon(self._tick)
            deadline = trio.current_time() + self.options.seconds
            await self.drill.script(self.stage)
            await trio.sleep_until(deadline)
            # The script may have taken longer than planned: what it repaired must be seen to work.
            self.alive = await self.stage.until_acknowledged(10.0)
            self.load.stopping = True
            self.load_end = self.timeline.now()
            self.timeline.add("phase", "the load ends")
            await self.stage.wait_for(lambda: self.load.finished, LAST_ANSWERS_S)
            nursery.cancel_scope.cancel()

    async def _warm_up(self) -> None:
        """Wait until the slave counts: before, every answer would be "no slave is available"."""
        self.progress.stage("waiting for the slave")
        master = self.cluster.nodes[0].address
        deadline = trio.current_time() + SETTLE_S
        code: int | None = None
        while code != ResponseCode.SUCCESS:
            if trio.current_time() > deadline:
                raise CannotRun(
                    f"the slave does not follow: after {SETTLE_S:g} s a message is still answered with code {code}:\n"
                    + self.cluster.last_words()
                )
            await trio.sleep(0.05)
            try:
                code = await probe(master, f"{TOPIC}-probe", self.spec.broker_name)
            except RopewalkError:
                continue

    async def _tick(self) -> None:
        while True:
            self.progress.tick(self.timeline.now(), self.options.seconds, self.load.acknowledged_count)
            await trio.sleep(0.1)

    def _master_changed(self, address: str | None) -> None:
        self.load.leave_others(address)
        if address is None:
            self.timeline.add("seen", "the name server knows no master")
        else:
            self.timeline.add("seen", f"the name server sends clients to {self.cluster.name_of(address)}")

    async def _sample(self, node: Node) -> None:
        """Ask a member, behind the proxy's back, how far its log reaches."""
        while True:
            try:
                async with open_connection(node.own_address, timeout=_ASK_S) as connection:
                    while True:
                        self._note(node, await _log_end(connection))
                        await trio.sleep(SAMPLE_S)
            except (RopewalkError, OSError):
                self._note(node, None)
                await trio.sleep(SAMPLE_S)

    def _note(self, node: Node, end: int | None) -> None:
        self.stage.ends[node.name] = end
        self.timeline.sample(node.name, end)

    # -- afterwards ----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """All faults are over: the members agree, or the drill is broken."""
        self.cluster.proxy.heal()
        running = [node for node in self.cluster.nodes if node.running]
        if len(running) < 2:
            return
        self.progress.stage("waiting until the members agree")

        def agree() -> bool:
            ends = [self.stage.ends.get(node.name) for node in running]
            return None not in ends and len(set(ends)) == 1

        if not await self.stage.wait_for(agree, SETTLE_S):
            self.stage.broken(
                "members do not agree",
                f"{SETTLE_S:g} s after the load their logs end at "
                + ", ".join(f"{node.name} {self.stage.ends.get(node.name)}" for node in running),
            )

    async def _pull(self) -> list[Found]:
        self.progress.stage("reading everything back")
        for _ in range(_PULL_TRIES):
            try:
                return await reading.pull_all(
                    self.stage.master().address, TOPIC, self.spec.run, self.spec.queues
                )
            except (RopewalkError, OSError) as exc:
                trouble = exc
                await trio.sleep(0.5)
        self.stage.broken("cannot be read", f"a consumer cannot read the topic: {trouble}")
        return []

    def _compare(self) -> Replicas:
        """The files of the members, which have stopped."""
        nodes = self.cluster.nodes
        for node in nodes:
            if node.status not in (0, None) and node.name not in self.stage.failed_to_start:
                self.stage.broken(
                    "did not stop", f"{node.name} ended with status {node.status}:\n{node.last_words()}"
                )
        replicas = {}
        for node in nodes:
            try:
                replicas[node.name] = reading.read_replica(node.store, TOPIC, self.spec.run)
            except RopewalkError as exc:
                self.stage.broken("cannot be read", f"{node.name}: {exc}")
                return Replicas(None, str(exc))
            for damage in replicas[node.name].damages:
                self.stage.broken("damaged log", f"{node.name}: {damage}")
        self.stored = {name: replica.found for name, replica in replicas.items()}
        if len(nodes) == 1:
            return Replicas(None, "there is one member")
        first, *others = nodes
        for node in others:
            compared = reading.compare_logs(first.store, node.store)
            text = f"{first.name} and {node.name}: {compared.text}"
            if not compared.equal:
                return Replicas(False, text)
        return Replicas(True, text)

    def _judge(self, pulled: list[Found], replicas: Replicas) -> Result:
        stage, load = self.stage, self.load
        account = audit(load.sent, pulled)
        overlapping = overlapping_acknowledgements(load.sent, stage.masters)
        reasons = [f"{found.kind}: {found.count} ({found.examples[0]})" for found in account.findings]
        reasons += [f"{found.kind}: {found.examples[0]}" for found in stage.findings]
        for name, found in self.stored.items():
            in_files = audit(load.sent, found)
            if in_files.lost:
                reasons.append(f"{in_files.lost} acknowledged messages are not in the files of {name}")
        if replicas.equal is False:
            reasons.append(f"replicas differ: {replicas.text}")
        if overlapping:
            reasons.append(f"{overlapping} acknowledgements by a broker that was the master no more")
        if not self.alive:
            reasons.append("nothing was acknowledged after the repair")
        if not stage.hits:
            raise CannotRun("the fault never took effect, so this run says nothing")
        return self._result(account, overlapping, replicas, list(dict.fromkeys(reasons)))

    def _result(self, account: Audit, overlapping: int, replicas: Replicas, reasons: list[str]) -> Result:
        stage, load, end = self.stage, self.load, self.load_end
        attempts = [attempt for entry in load.sent for attempt in entry.attempts]
        by_outcome: dict[str, list[float]] = {"acknowledged": [], "unknown": [], "refused": []}
        waits_ms: list[float] = []
        for attempt in attempts:
            at = end if attempt.answered_at is None else attempt.answered_at
            by_outcome[attempt.outcome].append(at)
            if attempt.outcome == "acknowledged":
                waits_ms.append((at - attempt.sent_at) * 1000)
        times = sorted(by_outcome["acknowledged"])
        fault_at = stage.fault_at if stage.fault_at is not None else end
        before = max((time for time in times if time <= fault_at), default=0.0)
        waits_ms.sort()
        ready = self.cluster.nodes[0].ready
        return Result(
            drill=self.drill.name,
            title=self.drill.title,
            verdict="broken" if reasons else "clean",
            reasons=reasons,
            mode=str(ready.get("mode", "")),
            promise=str(ready.get("sendOk", "")),
            version=ropewalk.__version__,
            began=self.began.isoformat(timespec="seconds"),
            seconds=round(end, 3),
            rate=self.spec.rate,
            acknowledged_rate=round(len(times) / end, 1) if end > 0 else 0.0,
            write_gap=longest_gap(times, before, end),
            calm_gap=longest_gap(times, times[0] if times else 0.0, before),
            gaps=gaps(times, 0.0, end, SHOWN_GAP_S),
            latency=_latency(waits_ms),
            answers={"none" if code < 0 else str(code): n for code, n in sorted(load.answer_counts.items())},
            remarks={str(code): text for code, text in sorted(load.first_remarks.items())},
            audit=account,
            overlapping=overlapping,
            replicas=replicas,
            faults_hit=stage.hits,
            notes=stage.notes,
            events=self.timeline.events,
            series=Series(
                width=BUCKET_S,
                acknowledged=per_bucket(by_outcome["acknowledged"], BUCKET_S, end),
                unknown=per_bucket(by_outcome["unknown"], BUCKET_S, end),
                refused=per_bucket(by_outcome["refused"], BUCKET_S, end),
                lag=lag_bytes(self.timeline.samples) if len(self.cluster.nodes) > 1 else {},
            ),
            links=[
                Link(source, target, rule.passed, rule.hits)
                for (source, target), rule in self.cluster.proxy.rules()
                if rule.passed or rule.hits
            ],
            settings={**self.drill.settings, **self.options.settings},
            folder=str(self.folder) if self.options.keep else None,
        )


def _latency(waits_ms: list[float]) -> Latency | None:
    if not waits_ms:
        return None
    last = len(waits_ms) - 1
    return Latency(
        round(waits_ms[last // 2], 2), round(waits_ms[last * 99 // 100], 2), round(waits_ms[last], 2)
    )


async def _log_end(connection: AsyncConnection) -> int:
    answer = await connection.call(Command(RequestCode.GET_BROKER_RUNTIME_INFO), _ASK_S)
    return int(fastjson.loads(answer.body)["table"]["commitLogMaxOffset"])
