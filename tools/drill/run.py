"""Run a single drill: cluster, load, script, audit, verdict.

The script of a drill is given a `Stage`: it makes the fault and undoes it, while the load goes on and everything is
written down. What comes after is the same for all: let the members agree, read everything back as a consumer, stop
them, compare their files, and hold it all against what was promised.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import trio

import ropewalk
from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.results import read_number, read_table
from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError, error_for
from ropewalk.format.remoting import Command
from tools.common.output import counted
from tools.drill import reading
from tools.drill.audit import Audit, Found, audit, overlapping_acknowledgements
from tools.drill.dledger import MODE
from tools.drill.load import Load, LoadSpec, Router, create_topic, remove_topic
from tools.drill.outcome import BUCKET_S, Latency, Link, Replicas, Result, Series
from tools.drill.stage import SETTLE_S, STORING, Drill, Options, Progress, Stage
from tools.drill.testbed.cluster import Cluster, Ended
from tools.drill.testbed.damage import small_disk
from tools.drill.testbed.group import CannotRun, Group, Member, find_live_group
from tools.drill.testbed.ledger_cluster import LedgerCluster
from tools.drill.timeline import Timeline, gaps, lag_bytes, longest_gap, per_bucket

TOPIC = "drill-load"
SAMPLE_S = 0.1
SHOWN_GAP_S = 0.1
LAST_ANSWERS_S = 5.0
REMOVE_TOPIC_S = 5.0
_ASK_S = 0.5
_PULL_TRIES = 10


async def run_drill(drill: Drill, options: Options, progress: Progress) -> Result:
    """Carry out a drill on a throw-away cluster. Raises `CannotRun` when there can be no verdict."""
    rng = random.Random(options.seed) if options.seed is not None else random.Random()
    folder = Path(tempfile.mkdtemp(prefix=f"ropewalk-drill-{drill.name}-"))
    try:
        cluster = (LedgerCluster if drill.mode == MODE else Cluster)(
            folder,
            drill.members,
            settings={**drill.settings, **options.settings},
            command=options.command,
            rng=rng,
            spares=drill.spares,
        )
        with ExitStack() as disks:
            if drill.small_disk is not None:
                member, size = drill.small_disk
                disks.enter_context(small_disk(cluster.nodes[member].store, size))
            async with cluster:
                progress.stage(f"starting {counted(drill.members, 'broker')} and a name server")
                try:
                    await cluster.start()
                except Ended as exc:
                    raise CannotRun(f"the cluster does not start: {exc}") from exc
                result = await _Run(drill, options, cluster, progress, TOPIC).run()
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return msgspec.structs.replace(result, folder=str(folder)) if options.keep else result


async def run_live_drill(
    drill: Drill, options: Options, progress: Progress, name_server: str, broker_name: str | None
) -> Result:
    """Carry out a drill on a group that is at work. Raises `CannotRun` when there can be no verdict."""
    assert drill.live
    try:
        group = await find_live_group(name_server, broker_name)
    except (RopewalkError, OSError) as exc:
        raise exc if isinstance(exc, CannotRun) else CannotRun(str(exc)) from exc
    topic = f"ropewalk-drill-{time.time_ns() // 1_000_000:x}"
    run = _Run(drill, options, group, progress, topic)
    try:
        return await run.run()
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVE_TOPIC_S):
            await remove_topic(name_server, [member.address for member in group.members], topic)


class _Run:
    """The parts of one run, in the order in which they are called."""

    def __init__(self, drill: Drill, options: Options, group: Group, progress: Progress, topic: str) -> None:
        self.drill = drill
        self.options = options
        self.group = group
        self.progress = progress
        self.spec = LoadSpec(
            run=f"{time.time_ns() // 1_000_000:x}",
            topic=topic,
            broker_name=group.broker_name,
            queues=options.queues,
            lanes=options.lanes,
            rate=options.rate,
            body_size=max(options.body_size, drill.body_size),
        )
        self.timeline = Timeline(time.monotonic)
        self.router = Router(group.name_server, topic, group.broker_name)
        self.load = Load(self.spec, self.router, self.timeline, group.name_of)
        self.stage = Stage(group, self.load, self.router, self.timeline, options)
        self.began = datetime.now(UTC)
        self.alive = False
        self.load_end = 0.0
        self.stored: dict[str, list[Found]] = {}

    @property
    def cluster(self) -> Cluster | None:
        """The group, if it is ours to stop and to look into."""
        return self.group if isinstance(self.group, Cluster) else None

    async def run(self) -> Result:
        try:
            members = self.group.members[: self.drill.members]
            for member in members if self.drill.mode == MODE else members[:1]:
                await create_topic(member.address, self.spec.topic, self.spec.queues)
        except RopewalkError as exc:
            raise CannotRun(f"the group takes no topic: {exc}") from exc
        self.router.on_change = self._master_changed
        async with trio.open_nursery() as background:
            background.start_soon(self.router.run)
            for member in self.group.members:
                background.start_soon(self._sample, member)
            await self._under_load()
            await self._settle()
            pulled = await self._pull()
            background.cancel_scope.cancel()
        replicas = Replicas(None, "the members' files are not at hand; their logs reach equally far")
        if self.cluster is not None:
            self.progress.stage("stopping the brokers and comparing their files")
            # A leader that stops hands over, and the next one begins a term: an entry that the first one lacks.
            await self.cluster.stop(self.stage.master().name if self.drill.mode == MODE else "")
            if self.stage.after_stop is not None:
                await self.stage.after_stop()
            replicas = self._compare(self.cluster)
        return self._judge(pulled, replicas)

    # -- the load ------------------------------------------------------------------------------------

    async def _under_load(self) -> None:
        self.progress.stage("under load")
        if len(self.group.members) > 1:
            # A slave that is still on its way would make every first answer "not available".
            await self._warm_up()
        if not await self.stage.wait_for(lambda: self.router.master is not None, SETTLE_S):
            raise CannotRun(f"the name server tells no master of the group{self._last_words()}")
        self.timeline.begin()
        if self.drill.mode == MODE:
            self.stage.masters[:] = [(0.0, self.stage.master().name)]
        self.timeline.add(
            "phase", f"the load begins: {self.spec.rate:g} messages a second to {self.stage.master().name}"
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.load.run)
            nursery.start_soon(self._tick)
            self.stage.background = nursery
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
        deadline = trio.current_time() + SETTLE_S
        code: int | None = None
        first, elects = self.group.members[0].address, self.drill.mode == MODE
        if elects and not await self.stage.wait_for(lambda: self.router.master is not None, SETTLE_S):
            raise CannotRun(f"the members elect no leader{self._last_words()}")
        while code != ResponseCode.SUCCESS:
            if trio.current_time() > deadline:
                raise CannotRun(
                    f"the slave does not follow: after {SETTLE_S:g} s a message is still answered with code {code}"
                    + self._last_words()
                )
            await trio.sleep(0.05)
            try:
                code = await self.load.probe(self.stage.master().address if elects else first)
            except RopewalkError:
                continue

    def _last_words(self) -> str:
        return f":\n{self.cluster.last_words()}" if self.cluster is not None else ""

    async def _tick(self) -> None:
        while True:
            self.progress.tick(self.timeline.now(), self.options.seconds, self.load.acknowledged_count)
            await trio.sleep(0.1)

    def _master_changed(self, address: str | None) -> None:
        self.load.leave_others(address)
        if address is None:
            self.timeline.add("seen", "the name server knows no master")
        else:
            name = self.group.name_of(address)
            self.timeline.add("seen", f"the name server sends clients to {name}")
            if self.drill.mode == MODE and name != self.stage.masters[-1][1]:
                self.stage.masters.append((self.timeline.now(), name))

    async def _sample(self, member: Member) -> None:
        """Ask a member, behind the proxy's back, how far its log reaches."""
        while True:
            try:
                async with open_connection(member.own_address, timeout=_ASK_S) as connection:
                    while True:
                        self._note(member, await _log_end(connection))
                        await trio.sleep(SAMPLE_S)
            except (RopewalkError, OSError):
                self._note(member, None)
                await trio.sleep(SAMPLE_S)

    def _note(self, member: Member, end: int | None) -> None:
        self.stage.ends[member.name] = end
        self.timeline.sample(member.name, end)

    # -- afterwards ----------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """All faults are over: the members agree, or the drill is broken."""
        if self.cluster is not None:
            self.cluster.proxy.heal()
        running = [member.name for member in self.group.members if member.running]
        if len(running) < 2:
            return
        self.progress.stage("waiting until the members agree")
        ends = self.stage.ends
        reached = max((end for end in ends.values() if end is not None), default=0)

        def agree() -> bool:
            known = [end for end in map(ends.get, running) if end is not None]
            if len(known) < len(running) or min(known) < reached:
                return False
            # A live group goes on working for others.
            return self.cluster is None or len(set(known)) == 1

        if not await self.stage.wait_for(agree, SETTLE_S):
            where = ", ".join(f"{name} {ends.get(name)}" for name in running)
            self.stage.broken(
                "members do not agree", f"{SETTLE_S:g} s after the load their logs end at {where}"
            )

    async def _pull(self) -> list[Found]:
        self.progress.stage("reading everything back")
        for _ in range(_PULL_TRIES):
            try:
                return await reading.pull_all(
                    self.stage.master().address, self.spec.topic, self.spec.run, self.spec.queues
                )
            except (RopewalkError, OSError) as exc:
                trouble = exc
                await trio.sleep(0.5)
        self.stage.broken("cannot be read", f"a consumer cannot read the topic: {trouble}")
        return []

    def _compare(self, cluster: Cluster) -> Replicas:
        """The files of the members, which have stopped."""
        nodes = [node for node in cluster.nodes if node.starts and node.name not in self.stage.gone]
        for node in nodes:
            if node.status not in (0, None) and node.name not in self.stage.failed_to_start:
                self.stage.broken(
                    "did not stop", f"{node.name} ended with status {node.status}:\n{node.last_words()}"
                )
        replicas = {}
        for node in nodes:
            try:
                replicas[node.name] = reading.read_replica(node.store, self.spec.topic, self.spec.run)
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
            if not compared.equal:
                return Replicas(False, f"{first.name} and {node.name}: {compared.text}")
        names = " and ".join(node.name for node in nodes)
        return Replicas(True, f"{names} have the same log, which ends at {replicas[first.name].end:,}")

    def _judge(self, pulled: list[Found], replicas: Replicas) -> Result:
        stage, load = self.stage, self.load
        everything = [*load.probes, *load.sent]
        account = audit(everything, pulled, stage.begins.get(stage.master().name, 0))
        overlapping = overlapping_acknowledgements(load.sent, stage.masters)
        reasons = [f"{found.kind}: {found.count} ({found.examples[0]})" for found in account.findings]
        reasons += [f"{found.kind}: {found.examples[0]}" for found in stage.findings]
        for name, found in self.stored.items():
            in_files = audit(everything, found, stage.begins.get(name, 0))
            if in_files.lost:
                reasons.append(f"{in_files.lost} acknowledged messages are not in the files of {name}")
        if replicas.equal is False:
            reasons.append(f"replicas differ: {replicas.text}")
        if overlapping:
            reasons.append(f"{overlapping} acknowledgements by a broker that was the master no more")
        if not self.alive:
            reasons.append("nothing was acknowledged after the repair")
        if not stage.hits:
            why = f": {stage.findings[0].examples[0]}" if stage.findings else ""
            raise CannotRun(f"the fault never took effect, so this run says nothing{why}")
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
        stored = sorted(
            attempt.answered_at
            for attempt in attempts
            if attempt.answered_at is not None and attempt.code is not None and attempt.code in STORING
        )
        waits_ms.sort()
        return Result(
            drill=self.drill.name,
            title=self.drill.title,
            verdict="broken" if reasons else "clean",
            reasons=reasons,
            mode=self.group.mode,
            promise=self.group.promise,
            version=ropewalk.__version__,
            began=self.began.isoformat(timespec="seconds"),
            seconds=round(end, 3),
            rate=self.spec.rate,
            acknowledged_rate=round(len(times) / end, 1) if end > 0 else 0.0,
            write_gap=longest_gap(times, before, end),
            stored_gap=longest_gap(stored, max((at for at in stored if at <= fault_at), default=0.0), end),
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
                lag=lag_bytes(self.timeline.samples) if len(self.group.members) > 1 else {},
            ),
            links=[
                Link(source, target, rule.passed, rule.hits)
                for (source, target), rule in (self.cluster.proxy.rules() if self.cluster is not None else ())
                if rule.passed or rule.hits
            ],
            settings={**self.drill.settings, **self.options.settings},
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
    if answer.code != ResponseCode.SUCCESS:
        raise error_for(answer.code, answer.remark)  # it starts, or it stops
    return read_number(read_table(document_in(answer), "table"), "commitLogMaxOffset")
