"""`StoreMember`: the shipped `LedgerShell` over the shipped store, on a disk that forgets. No part of it is a model.

Only its surroundings are: connections are the world's messages, helper threads its events. The core is watched: the
checks judge the effects of each step as soon as the shell has carried them out.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ha.dledger.ledger import LedgerShell
from ha.dledger.links.frames import from_frame
from ha.dledger.links.hello import Identity
from ha.dledger.links.peers import Peers
from ha.raft.node import RaftNode
from ha.raft.types import (
    Append,
    Appended,
    ChangeAsked,
    CutDone,
    Effects,
    Event,
    Link,
    Linked,
    MemberId,
    Message,
    Point,
    ReadAsked,
    Received,
    TransferAsked,
)
from ropewalk.errors import RopewalkError
from ropewalk.format.dledger.frame import Frames
from store.append import Message as StoredMessage
from store.io.disk import DiskFull
from store.log.commitlog import StoreDamaged
from store.message_store import MessageStore
from tests.sim.disk import PowerLoss
from tests.sim.raft.checks import Broken
from tests.sim.raft.member import Member
from tests.sim.raft.store_log import HOST, NEVER, QUEUES, SEGMENT, TOPIC, StoreLog

if TYPE_CHECKING:
    from tests.sim.raft.world import World


class StoreMember(Member):
    """See the module docstring."""

    log: StoreLog

    def __init__(self, world: World, id: MemberId) -> None:
        super().__init__(world, id)
        self.log = StoreLog(world.chance, self._later, world.contents)
        self.shell: LedgerShell
        self.store: MessageStore
        self._heard = b""
        """The entries of the Append that is being heard."""
        self._sending = b""
        self._unjudged: tuple[Effects, Event] | None = None
        self._has_turn = False

    # -- a life ------------------------------------------------------------------------------------------

    def recover(self) -> bool:
        log, chance = self.log, self.world.chance
        self._unjudged, self._has_turn = None, False
        if self.world.storm.is_on and "power" in self.world.storm.kinds and chance.random() < 0.3:
            log.disk.crash_after = log.disk.steps + chance.randint(1, 30)
        begun = log.cut_begun
        try:
            if chance.random() < 0.1:
                self._try_damage_below_commit()
            self.store = store = log.open(self._wall_ms, self._wake)
        except PowerLoss:
            log.power_lost()
            self.world.at(self.world.time + 1, self.world.restart, self)
            return False
        except DiskFull:
            log.killed()
            self.world.at(self.world.time + 50, self.world.restart, self)
            return False
        except RopewalkError as refused:
            raise Broken(f"I16: {self.id} does not start: {refused}") from refused
        if log.disk.crash_after < NEVER and chance.random() < 0.8:
            log.disk.crash_after = NEVER
        entry_log, replica = store.entry_log, store.replica
        assert entry_log is not None and replica is not None
        if begun is not None and entry_log.end[0] > begun.index:
            raise Broken(
                f"I16: {self.id} was cutting its log at {begun}, and found it through {entry_log.end}"
            )
        self.committed = entry_log.commit[0]
        self.shell = LedgerShell(
            Identity("sim", "group", self.id, entry_log.incarnation, SEGMENT),
            dict.fromkeys(self.first_config.voters, ("sim", 1)),
            entry_log,
            replica,
            self.world.settings,
            self.now,
            random.Random(chance.random()),
            draw=bytes,
            wake=self._wake,
        )
        self.core = self.shell.core
        self.shell.core = cast(RaftNode, WatchedCore(self, self.shell.core))
        SimLinks(self).put_into(self.shell.peers)
        self._see()
        self._see_queues()
        return True

    def _try_damage_below_commit(self) -> None:
        """Have a copy of this member's disk damaged in what is committed: a start of it may cut none of that."""
        written = self.log.written
        copy = self.log.damaged_below(written)
        if copy is None:
            return
        before = copy.entry_bytes(written)
        with contextlib.suppress(
            StoreDamaged
        ):  # which is as it should be, where the start reads what is damaged
            copy.open(self._wall_ms, lambda: None)
        if copy.entry_bytes(written) != before:
            raise Broken(
                f"I1: a start of {self.id} cut entries, of which all are committed through {written}"
            )

    def _wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.world.time)

    def _wake(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self.world.at(self.world.time, self._turn, self.life)

    def _turn(self, life: int) -> None:
        if life != self.life:
            return
        if self.world.time < self.asleep_until:
            self.asleep.append((self._turn, (life,)))
            return
        self._has_turn = False
        if self.core is not None:
            self._in_turn(None)

    def _in_turn(self, event: Event | None) -> None:
        """One turn of the loop: what helpers have done, an event, and the end of the turn."""
        shell, store = self.shell, self.store
        try:
            store.begin_turn()
            store.run_completions()
            match event:
                case Received(peer, link, message):
                    shell.received(peer, link, message, self._heard)
                case Linked(peer, link, kind, up):
                    shell.linked(peer, link, kind, up)
                case ReadAsked(token):
                    shell.read(lambda ok: self.world.clients.read(self, token, ok))
                case TransferAsked(token, target):
                    shell.transfer(target, partial(self.world.clients.outcomes.__setitem__, token))
                case ChangeAsked(token):
                    shell.members.changes.put(token, partial(self.world.changes.was_changed, self, token))
                    shell._tell(event)
            shell.end_turn()
            self.judge()
        except RopewalkError as failed:
            raise Broken(f"I18: {self.id} has to stop: {failed}") from failed
        self._see()

    def ticked(self, late: int) -> None:
        self.shell.tick(late)
        self.judge()
        self.store.tick()
        self._in_turn(None)

    def step(self, event: Event) -> None:
        if self.core is not None:
            self._in_turn(event)

    # -- messages ----------------------------------------------------------------------------------------

    def append(self, payloads: list[int]) -> None:
        batch: list[StoredMessage] = [
            (
                self.store.queue(TOPIC, payload % QUEUES),
                payload.to_bytes(8, "big") + bytes(payload * 37 % 900),
                b"", 0, 0, self._wall_ms(), 0, 0, 0,
            )
            for payload in payloads
        ]  # fmt: skip
        self.store.begin_turn()
        try:
            stored = self.store.put(batch, HOST)
        except DiskFull:
            return
        self.waiting.update(payloads[: len(stored)])
        self._in_turn(None)

    def payload_of(self, message: Message) -> object:
        return self._sending

    def arrived(self, peer: MemberId, number: int, message: Message, payload: object) -> None:
        self._heard = cast(bytes, payload)
        self.step(Received(peer, number, message, self.now()))

    def sent(self, peer: MemberId, head: bytes, body: bytes | memoryview) -> None:
        """Send a frame of the shell: as a message, decoded as its receiver would."""
        self._sending = bytes(body)
        (frame,) = Frames().feed(head + self._sending)
        self.world.network.send(self, peer, from_frame(frame, SEGMENT))

    # -- judging -----------------------------------------------------------------------------------------

    def will_carry_out(self, effects: Effects, event: Event) -> None:
        """Hear what a step of the core is about to have done."""
        world, log = self.world, self.log
        world.events += 1
        if world.told is not None:
            world.told.append((world.time, self.id, event, effects))
        if effects.cut is not None:
            world.cuts += 1
            log.was_ordered(effects.cut)
            if world.storm.is_on and "power" in world.storm.kinds and world.chance.random() < 0.3:
                log.disk.crash_after = log.disk.steps + world.chance.randint(1, 8)
        for run, skip in effects.place:
            assert isinstance(event, Received) and isinstance(event.message, Append)
            entries = log.entries_of(self._heard, run.pos)
            world.checks.placed(self, entries, event.message.prev.term)
            log.was_ordered([entry for entry in entries if entry[3] >= run.pos + skip])
        match event:
            case Appended(run):
                view = log.view
                if run.config is not None:
                    world.checks.configs[run.first, run.term] = run.config
                world.checks.placed(
                    self, view[run.first : run.last + 1], view[run.first - 1][1] if run.first else -1
                )
            case CutDone():
                log.cut_done()
        self._unjudged = effects, event

    def judge(self) -> None:
        """Judge the effects of the last step, which are carried out."""
        if self._unjudged is None:
            return
        effects, _event = self._unjudged
        self._unjudged = None
        role = effects.role
        if role is not None:
            self.stand(role)
        self.world.checks.after(self, effects, self.world.members)
        if role is not None:
            self._see_queues()

    def _see(self) -> None:
        """Judge what consumers of this member may see."""
        truth = self.world.checks.truth
        committed = truth[-1][3] + truth[-1][4] if truth else 0
        if self.store.readable_offset > committed:
            raise Broken(
                f"I3: {self.id} shows the log through {self.store.readable_offset}, committed is it through {committed}"
            )

    def _see_queues(self) -> None:
        truth = self.world.checks.truth
        committed = truth[-1][3] + truth[-1][4] if truth else 0
        for number in range(QUEUES):
            queue = self.store.find_queue(TOPIC, number)
            if queue is not None and queue.readable and queue.read(queue.readable - 1)[0] >= committed:
                raise Broken(f"I3: queue {number} of {self.id} shows a message that is not committed")

    def rests(self, end: Point) -> bool:
        return super().rests(end) and self.core is not None and self.core.applied == end

    def at_rest(self) -> None:
        """Each queue has exactly the committed messages, in their order."""
        places: list[list[tuple[int, int]]] = [[] for _ in range(QUEUES)]
        for _index, _term, payload, pos, size in self.world.checks.truth:
            if payload > 0:
                places[payload % QUEUES].append((pos + 48, size - 48))
        for number, wanted in enumerate(places):
            queue = self.store.find_queue(TOPIC, number)
            found = [queue.read(at)[:2] for at in range(queue.readable)] if queue is not None else []
            if found != wanted:
                raise Broken(
                    f"I15: queue {number} of {self.id} has {len(found)} messages, committed are {len(wanted)}"
                )


class WatchedCore:
    """The core of a shell, each of whose steps is judged once it is carried out."""

    def __init__(self, member: StoreMember, core: RaftNode) -> None:
        self._member = member
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, event: Event) -> Effects:
        self._member.judge()
        effects = self._core.step(event)
        self._member.will_carry_out(effects, event)
        return effects


class SimLinks:
    """The links of a member, as its shell sees them. Which members it should have, its peers decide as ever."""

    def __init__(self, member: StoreMember) -> None:
        self._member = member

    def put_into(self, peers: Peers) -> None:
        """Have these be the links of a member's peers."""
        for name in ("link", "hang_up", "push", "tick"):
            setattr(peers, name, getattr(self, name))

    def link(self, peer: MemberId, kind: Link) -> SimLink | None:
        return SimLink(self._member, peer) if (peer, kind) in self._member.links else None

    def hang_up(self, peer: MemberId, number: int, why: str) -> None:
        raise Broken(f"I18: {self._member.id} refuses what another correct member sent: {why}")

    def push(self) -> None:
        pass

    def tick(self, now: int, late: int) -> None:
        pass


class SimLink:
    """Link of a member to a peer."""

    def __init__(self, member: StoreMember, peer: MemberId) -> None:
        self._member = member
        self._peer = peer

    def send(self, head: bytes, body: bytes | memoryview = b"") -> None:
        self._member.sent(self._peer, head, body)
