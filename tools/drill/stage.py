"""Define a drill, and the stage of its script: the group, the load, the timeline, and hands to act with."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import trio

from ha.group.handover import HandoverKind
from ropewalk.codes import ResponseCode
from tools.drill import operate
from tools.drill.audit import OPEN_CODES, Finding, Sent
from tools.drill.load import Load, Router
from tools.drill.testbed.cluster import Cluster, Ended, Node
from tools.drill.testbed.group import CannotRun, Group, Member
from tools.drill.testbed.proxy import Rule
from tools.drill.timeline import Timeline

SETTLE_S = 30.0
"""How long a member may take to catch up, or the members to agree."""
ACKNOWLEDGE_S = 30.0
"""How long a group may take to acknowledge again."""
ORDERS_MAX = 3
ORDER_PAUSE_S = 0.5
ACKNOWLEDGING = frozenset({int(ResponseCode.SUCCESS)})
STORING = OPEN_CODES | ACKNOWLEDGING
_NEWEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a drill."""

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
    """The summary of the drill, in a line."""
    expects: str
    """The claim that a clean verdict proves, in a sentence or two."""
    members: int
    script: Script
    spares: int = 0
    """Members that the script starts, and no one before."""
    mode: str = "master-slave"
    """How the group finds its master: "master-slave" by an administrator's order, "dledger" by elections."""
    settings: Mapping[str, str] = field(default_factory=dict)
    small_disk: tuple[int, int] | None = None
    """The index of the member whose store gets a small disk, and its bytes; None leaves all stores where temporary
    files are."""
    body_size: int = 0
    """Bytes of a body at the least: some faults need a log that grows."""
    live: bool = False
    """Whether it may be run against a live cluster: it does nothing but an administrator's commands."""


class Progress:
    """The observer of a run. The methods do nothing here."""

    def stage(self, text: str) -> None:
        """A part of the run begins."""

    def tick(self, second: float, total: float, acknowledged: int) -> None:
        """Report the time that has passed under load."""


class Stage:
    """The group under load, as a script sees and changes it."""

    def __init__(
        self, group: Group, load: Load, router: Router, timeline: Timeline, options: Options
    ) -> None:
        self.group = group
        self.load = load
        self.router = router
        self.timeline = timeline
        self.options = options
        self.rng = random.Random(options.seed)
        self.masters = [(0.0, group.members[0].name)]
        """Members that were made the master, and when: the first one by its configuration."""
        self.hits: list[str] = []
        self.notes: list[str] = []
        self.findings: list[Finding] = []
        self.ends: dict[str, int | None] = {}
        """How far each member's log reached when it was last asked."""
        self.fault_at: float | None = None
        self.failed_to_start: set[str] = set()
        self.gone: set[str] = set()
        """Members that are to be part of the group no more: their files may be older than the others'."""
        self.begins: dict[str, int] = {}
        """Where the logs begin of members that had to remove segments; what was acknowledged before is not lost."""
        self.background: trio.Nursery
        """For what a script leaves running until the load ends."""
        self.after_stop: Callable[[], Awaitable[None]] | None = None
        """Steps left when the members have stopped, before their files are compared."""

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

    @property
    def cluster(self) -> Cluster:
        """The group, where it is ours to break."""
        assert isinstance(self.group, Cluster), "a drill that breaks things was let loose on a live group"
        return self.group

    def master(self) -> Member:
        """Return the master according to the name server; the last one, while there is none."""
        member = self.group.member_at(self.router.last_master)
        if member is None:
            raise CannotRun("the name server knows no master of the group")
        return member

    def pair(self) -> tuple[Node, Node]:
        """Master and slave, as they are now."""
        name = self.master().name
        (master,) = (node for node in self.cluster.nodes if node.name == name)
        return master, next(node for node in self.cluster.nodes if node is not master)

    def way(self, source: Node, target: Node) -> Rule:
        """Return the rule for bytes between two members, in this direction."""
        return self.cluster.proxy.rule(source.name, target.name)

    def lag(self, node: Node) -> int:
        """Return how many bytes a member is behind the furthest log, as far as is known."""
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
        """Return whether the condition came true in time."""
        with trio.move_on_after(limit_s):
            while not condition():  # noqa: ASYNC110 - of things that have no event, such as answers of brokers
                await trio.sleep(0.01)
        return condition()

    async def until_acknowledged(self, limit_s: float = ACKNOWLEDGE_S) -> bool:
        """Wait for an acknowledgement of a message that was sent after this call."""
        now = self.timeline.now()
        return await self.wait_for(lambda: _answered_since(self.load.sent, now, ACKNOWLEDGING), limit_s)

    async def until_stored(self, limit_s: float = ACKNOWLEDGE_S) -> bool:
        """Wait for the answer that a message was stored, as safely as was asked for or not."""
        now = self.timeline.now()
        return await self.wait_for(lambda: _answered_since(self.load.sent, now, STORING), limit_s)

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

    async def stop(self, node: Node, role: str) -> None:
        """Stop a member as a fault. One that does not end in good order is a broken promise."""
        self.fault(f"SIGTERM {node.name}, {role}")
        status = await node.stop()
        if status == 0:
            self.hit(f"{node.name} ended in good order")
        else:
            self.broken("did not stop", f"{node.name} ended with status {status}:\n{node.last_words()}")

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
        """Hand the group over to a slave, as planned. Whether messages are acknowledged afterwards."""
        return await self._command(HandoverKind.SWITCH, as_fault=as_fault)

    async def failover(self, *, as_fault: bool = False) -> bool:
        """Make a slave the master. As a fault it happens while the old one is well, and has to be forced."""
        return await self._command(HandoverKind.FAILOVER, as_fault=as_fault)

    async def _command(self, kind: HandoverKind, *, as_fault: bool) -> bool:
        name = kind.value
        (self.fault if as_fault else self.repair)(
            f"admin ha {name}" + (" --force" * (as_fault and name == "failover"))
        )
        old, began = self.master(), self.timeline.now()
        done = await self._hand_over(kind, force=as_fault)
        if done is None:
            return False
        self.masters.append((began, self.group.name_of(done.new_master)))
        self.saw(f"the command took {(self.timeline.now() - began) * 1000:,.0f} ms: {done.told}")
        if not await self.wait_for(lambda: self.router.master == done.new_master, ACKNOWLEDGE_S):
            self.broken("no new master", f"after {name} the name server does not tell {done.new_master}")
            return False
        if as_fault:
            self.hit(f"{self.master().name} took over from {old.name}")
        # After a failover there may be too few members for an acknowledgement; messages are taken all the same.
        stored = await self.until_stored()
        if not stored:
            self.broken("no way back", f"after {name} no message is stored")
        return stored

    async def _hand_over(self, kind: HandoverKind, *, force: bool) -> operate.Handover | None:
        """Give the order, again if it is refused: a refusal leaves the group as it was."""
        for attempt in range(1, ORDERS_MAX + 1):
            try:
                return await operate.hand_over(self.group, kind, force=force)
            except operate.Failed as exc:
                if attempt == ORDERS_MAX:
                    self.broken(f"{kind.value} failed", str(exc))
                else:
                    self.saw(f"the command is refused, and given again: {exc}")
                    await trio.sleep(ORDER_PAUSE_S)
        return None


def _answered_since(sent: Sequence[Sent], since: float, codes: Container[int]) -> bool:
    """Whether a message that was sent after `since` has one of these answers; only the newest are looked at."""
    return any(
        attempt.sent_at > since and attempt.code is not None and attempt.code in codes
        for entry in reversed(sent[-_NEWEST:])
        for attempt in entry.attempts
    )
