"""A region is cut in two while a member loses its power at each step of its disk: nothing is lost or done twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from broker.kv.region import Busy, KvRegion, NotLeader
from broker.kv.regions import KvRegions
from ha.dledger.ledger import LedgerShell
from ropewalk.format.kv.commands import Command, OpenSession, Outcome, Status, Write
from ropewalk.format.kv.items import AcquireLock, Count, Lease, NextSequence, Operation, Put
from store import region_store
from tests.sim.ledger.node import SIZE, LedgerNode
from tests.sim.ledger.world import World
from tests.sim.machine import machinery

pytestmark = pytest.mark.slow
PATIENCE_S = 30.0
KEYS = [b"%c%d" % (letter, number) for letter in b"ax" for number in range(3)]


class CutNode(LedgerNode):
    """A member that serves regions."""

    @property
    def kv(self) -> KvRegions:
        """Return its regions."""
        assert self.member.kv is not None
        return self.member.kv

    def _ledgers(self) -> list[LedgerShell]:
        return [self.member.ledger, *self.kv.ledgers]


class CutWorld(World):
    """One life of a group whose region 0 is cut at `m`, and of one client that writes on both sides of it."""

    def __init__(self, seed: int, *, of_leader: bool, step: int) -> None:
        super().__init__(seed)
        settings = {"raftHeartbeatMs": "40", "raftElectionMs": "200-360", "ropewalkKvRegions": "1"}
        self.members = [
            CutNode(self, number, settings | {"mappedFileSizeCommitLog": "65536"}) for number in range(SIZE)
        ]
        self.nodes = [*self.members]
        self.net.hosts = {node.ip: node for node in self.nodes}
        self.crashed = False
        self._of_leader = of_leader
        self._step = step
        self._seq = 0
        self._session = -1

    def regions_of(self, key: bytes) -> list[tuple[CutNode, KvRegion]]:
        """Return the region of a key, as each living member knows it that leads it."""
        return [
            (node, region)
            for node in self.members
            if node.alive
            for region in node.kv
            if region.leads and region.machine.region.has(key)
        ]

    def done(self, key: bytes, command: Command) -> Outcome:
        """Have a command applied, and send it again until its outcome is known."""
        told: list[Outcome | None] = []

        def ask() -> None:
            for node, region in self.regions_of(key):
                made = command
                if isinstance(command, Write):
                    epoch = region.machine.region.epoch
                    made = Write(0, command.session, command.seq, command.seq, epoch, command.operations)
                node.turn(partial(propose, region, made))

        def propose(region: KvRegion, made: Command) -> None:
            try:
                region.propose(lambda stamp: made, told.append)
            except (NotLeader, Busy):
                told.append(None)

        return self._answer(told, ask)

    def cut(self, key: bytes) -> None:
        """Have the region of a key cut at it, as a client does that asks again until it is."""
        told: list[Outcome | None] = []

        def ask() -> None:
            for node, region in self.regions_of(key):
                if region.machine.region.start == key:
                    told.append(Outcome(Status.OK))
                    return
                node.turn(partial(split, node, region))

        def split(node: CutNode, region: KvRegion) -> None:
            try:
                node.kv.split(region, key, told.append)
            except (NotLeader, Busy):
                told.append(None)

        self._answer(told, ask)

    def _answer(self, told: list[Outcome | None], ask: Callable[[], None]) -> Outcome:
        until = self.events.now + PATIENCE_S
        while self.events.now < until:
            ask()
            for _ in range(10):
                self.events.run_until(self.events.now + 0.02)
                for outcome in told:
                    if outcome is not None and outcome.status is Status.OK:
                        return outcome
                if told:
                    told.clear()
                    break
        raise AssertionError("nobody has an answer")

    def write(self, *operations: Operation) -> Outcome:
        """Write in the session."""
        self._seq += 1
        key = operations[0].key  # type: ignore[union-attr]
        return self.done(key, Write(0, self._session, self._seq, self._seq, 0, operations))

    def live(self) -> None:
        for node in self.nodes:
            node.start()
        self._until(lambda: len(self.regions_of(b"m")) == 1, 10.0, "elect a leader")
        (opened,) = self.done(b"m", OpenSession(0)).results
        assert isinstance(opened, Count)
        self._session = opened.number
        for key in KEYS:
            self.write(Put(key, b"before"))
            self.write(NextSequence(key, 1))
        tokens = {key: self._token(key) for key in KEYS}
        ((leader, _region),) = self.regions_of(b"m")
        victim = leader if self._of_leader else next(node for node in self.members if node is not leader)
        life = victim._life
        victim.disk.crash_after = victim.disk.steps + self._step
        self.cut(b"m")
        for number, key in enumerate(KEYS):
            assert self.write(NextSequence(key, 1)).results == (Count(1),), key
            self.write(Put(key, b"%d" % number))
        self.crashed = not victim.alive or victim._life > life
        self._heal()
        self._until(self._is_equal, PATIENCE_S, "become equal")
        for number, key in enumerate(KEYS):
            region = self._leading(key)
            assert region.machine.get(key) == b"%d" % number
            assert region.machine.sequences[key] == 2
            assert self._token(key) > tokens[key]

    def _leading(self, key: bytes) -> KvRegion:
        """Return the region of a key at its leader; the lead may just be handed over."""
        self._until(lambda: len(self.regions_of(key)) == 1, PATIENCE_S, "elect a leader")
        ((_node, region),) = self.regions_of(key)
        return region

    def _token(self, key: bytes) -> int:
        (lease,) = self.write(AcquireLock(key, b"me", 0)).results
        assert isinstance(lease, Lease) and lease.granted
        return lease.token

    def _is_equal(self) -> bool:
        states = [[(each.number, each.machine.digest()) for each in node.kv] for node in self.members]
        return all(len(self.regions_of(key)) == 1 for key in KEYS) and all(
            state == states[0] and len(state) == 2 for state in states
        )


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small segments: a simulated disk has every byte in memory."""
    monkeypatch.setattr(region_store, "SEGMENT_SIZE", 64 << 10)


@pytest.mark.parametrize("of_leader", [True, False], ids=["leader", "follower"])
def test_a_member_that_loses_its_power_at_any_step_of_a_cut_comes_to_the_same_regions(
    of_leader: bool,
) -> None:
    step, quiet_steps = 1, 0
    while quiet_steps < 3:
        world = CutWorld(step, of_leader=of_leader, step=step)
        try:
            with machinery():  # one for each life, since it keeps what lives in it
                world.live()
        except AssertionError as failed:
            failed.args = (f"step {step}: {failed}\n" + "\n".join(world.told[-40:]),)
            raise
        quiet_steps = 0 if world.crashed else quiet_steps + 1
        step += 1
    print(step, "steps")
    assert step > 20
