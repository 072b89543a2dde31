"""`ModelMember`: a core over a model of its log. It is fast, and cannot find what is wrong with the shipped log."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ha.raft.node import RaftNode
from ha.raft.types import (
    Append,
    Appended,
    Applied,
    Config,
    Effects,
    Event,
    Fetched,
    Link,
    MemberId,
    Message,
    Point,
    Received,
    SnapshotBegin,
    SnapshotTaken,
    Tick,
)
from ropewalk.errors import RemoteProtocolError
from tests.sim.raft.checks import Broken
from tests.sim.raft.member import Member
from tests.sim.raft.model_log import Entry, ModelLog, end_of

if TYPE_CHECKING:
    from tests.sim.raft.world import World


class ModelMember(Member):
    """A member with a `ModelLog`. The shell is the smallest that keeps the contract of `Effects`."""

    log: ModelLog

    def __init__(self, world: World, id: MemberId) -> None:
        super().__init__(world, id)
        self.log = ModelLog(world.chance, self._post, self._later)
        self.payload: list[Entry] = []
        """The entries of the Append that is being heard."""
        self.prev_term = -1
        self.staged: list[Entry] = []
        """The entries through the first of the snapshot that is on disk."""

    def recover(self) -> bool:
        found = self.log.recover()
        self.committed = found.commit.index
        self.core = RaftNode(
            self.id,
            self.first_config,
            self.world.settings,
            ballot=found.ballot,
            rows=found.rows,
            end=found.end,
            commit=found.commit,
            doubt=found.doubt,
            readmitted=self.log.readmitted,
            configs=self.world.checks.config_rows(self.log.view),
        )
        return True

    def lose_log(self) -> None:
        """Lose all that is on disk. What was there was there: an entry may be committed for its sake."""
        before, self.log = self.log, ModelLog(self.world.chance, self._post, self._later)
        self.log.lost = before.lost | {entry for entry in before.platter if entry is not None}
        self.log.hiccups, self.log.flush_ms = before.hiccups, before.flush_ms

    def rests(self, end: Point) -> bool:
        return super().rests(end) and self.core is not None and not self.core.readmission.is_learner

    def ticked(self, late: int) -> None:
        self.step(Tick(self.now(), late, self.world.chance.random()))
        core = self.core
        if core is not None and core.log.commit.index > core.applied.index:
            self.step(Applied(core.log.commit))
            if core.log.commit.index <= core.log.durable:
                self.log.written = core.log.commit

    def step(self, event: Event) -> None:
        core = self.core
        if core is None:
            return
        self.world.events += 1
        try:
            effects = core.step(event)
        except RemoteProtocolError as refused:
            raise Broken(f"I18: {self.id} refuses what another correct member sent: {refused}") from refused
        if self.world.told is not None:
            self.world.told.append((self.world.time, self.id, event, effects))
        self.carry_out(effects, event)

    def carry_out(self, effects: Effects, event: Event) -> None:
        world, log, core = self.world, self.log, self.core
        assert core is not None
        if effects.save is not None:
            log.save(effects.save)
        if effects.cut is not None:
            world.cuts += 1
            log.cut(effects.cut)
        for run, skip in effects.place:
            entries = self.payload
            world.checks.placed(self, entries, self.prev_term)
            log.place(run, entries, skip)
        if effects.role is not None:
            self.stand(effects.role)
        for peer, message in effects.send:
            world.network.send(self, peer, message)
        for peer in effects.snapshot_to:
            link = self.links.get((peer, Link.DATA))
            world.at(world.time + world.chance.uniform(1, 60), self.offer, self.life, peer, link, core.term)
        if effects.snapshot is not None:
            peer, begin = effects.snapshot
            assert isinstance(begin, SnapshotBegin), begin
            spent = log.flush_ms * world.chance.uniform(1, 6)
            taken = SnapshotTaken(peer, begin.term, begin.point)
            world.at(world.time + spent, self.take, self.life, self.payload, taken)
        for fetch in effects.fetch:
            world.at(world.time + world.chance.uniform(0.2, 3), self.fetch, self.life, *fetch)
        if effects.doubt_over:
            log.doubt = None
        if effects.readmitted:
            log.readmitted = True
            world.readmissions += 1
        world.checks.after(self, effects, world.members)
        if effects.install is not None:
            self.install()
            return
        world.clients.outcomes.update(effects.done)
        for token, result in effects.changed:
            world.changes.was_changed(self, token, result)
        for token, ok in effects.reads:
            world.clients.read(self, token, ok)
        if (config := effects.open_term or effects.append_config) is not None:
            self.append_config(self.life, core.term, config)
        elif effects.commit is not None and core.term_first > core.applied.index:
            world.at(world.time + 1, self.deliver, self.life, Applied(effects.commit))

    def offer(self, life: int, peer: MemberId, link: int | None, term: int) -> None:
        """Send a snapshot, unless another link or term came meanwhile."""
        core, log = self.core, self.log
        if (
            core is None
            or life != self.life
            or core.term != term
            or self.links.get((peer, Link.DATA)) != link
        ):
            return
        point = end_of(log.view[log.first])
        self.world.network.send(self, peer, SnapshotBegin(term, point, 1))

    def take(self, life: int, entries: list[Entry], taken: SnapshotTaken) -> None:
        """Have a snapshot on disk."""
        if life == self.life:
            self.staged = entries
            self.deliver(life, taken)

    def install(self) -> None:
        """Begin anew with the snapshot that was taken last."""
        world, entries = self.world, self.staged
        world.installed += 1
        self.die(False)
        self.log.install(entries)
        world.at(world.time + world.chance.uniform(1, 100), world.restart, self)

    def append_config(self, life: int, term: int, config: Config) -> None:
        """Append a record with a configuration, as soon as there is room: the disk may be full, unheard of yet."""
        core = self.core
        if core is None or life != self.life or not self.is_leader or core.term != term:
            return
        if self.log.accepts:
            self.append([self.world.clients.payload_number()], config)
        else:
            self.world.at(self.world.time + 5, self.append_config, life, term, config)

    def append(self, payloads: list[int], config: Config | None = None) -> None:
        assert self.core is not None
        before = self.log.end
        run = self.log.append(self.core.term, payloads, config)
        if config is not None:
            self.world.checks.configs[run.first, run.term] = config
        self.waiting.update(payloads[: run.count])
        self.world.checks.placed(self, self.log.view[run.first :], before.term)
        self.step(Appended(run, self.now()))

    def payload_of(self, message: Message) -> object:
        """Return what travels with a message: the entries of an Append."""
        if isinstance(message, Append) and message.run is not None:
            return self.log.view[message.run.first : message.run.last + 1]
        if isinstance(message, SnapshotBegin):
            return self.log.view[: message.index + 1]
        return []

    def arrived(self, peer: MemberId, number: int, message: Message, payload: object) -> None:
        """Hear a message, and what travelled with it."""
        self.payload = cast(list[Entry], payload)
        if isinstance(message, Append):
            self.prev_term = message.prev.term
        self.step(Received(peer, number, message, self.now()))

    def fetch(self, life: int, peer: MemberId, index: int, size: int) -> None:
        core = self.core
        if core is None or life != self.life or index > core.log.end.index:
            return
        if index >= len(self.log.view) or not self.log.accepts:
            self.world.at(self.world.time + 5, self.fetch, life, peer, index, size)
            return
        prev, run = self.log.read(index, size, core.log.configs)
        self.deliver(life, Fetched(peer, prev, run, self.now()))
