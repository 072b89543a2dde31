"""`Member`: one machine of a simulated group, its sleep, its clocks and its links, whatever its log is made of."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING

from ha.raft.node import TRANSFERRING, RaftNode
from ha.raft.types import Event, Link, MemberId, Message, Point, Role, Standing
from tests.sim.raft.checks import Broken
from tests.sim.raft.model_log import MemberLog

if TYPE_CHECKING:
    from tests.sim.raft.world import World

TICK_MS = 50


class Member(abc.ABC):
    """One machine: a log that outlives the process, and the core of its present life."""

    log: MemberLog

    def __init__(self, world: World, id: MemberId) -> None:
        self.id = id
        self.world = world
        self.life = 0
        self.first_config = world.changes.first_config_of(id)
        """The configuration in its settings, for a log that carries none."""
        self.core: RaftNode | None = None
        self.standing: Standing | None = None
        self.committed = -1
        self.waiting: set[int] = set()
        """Payloads of clients that wait for an answer of this member."""
        self.links: dict[tuple[MemberId, Link], int] = {}
        self.asleep_until = 0.0
        self.asleep: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self.rate = 1.0
        self.offset = 0
        self.fenced_at: int | None = None
        """Since when it takes no messages because it hands over."""

    def now(self) -> int:
        """This machine's own monotonic clock."""
        return self.offset + int(self.world.time * self.rate)

    @property
    def is_leader(self) -> bool:
        """Whether this member said that it leads, and nothing else since."""
        return self.standing is not None and self.standing.role is Role.LEADER

    @property
    def standing_term(self) -> int:
        """The term in which it said so."""
        return self.standing.term if self.standing is not None else -1

    # -- a life ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life with what the last one left on disk."""
        self.life += 1
        self.asleep.clear()
        self.asleep_until = 0.0
        self.waiting = set()
        self.standing = None
        self.fenced_at = None
        if not self.recover():
            return
        due = self.world.time + self.world.chance.random() * TICK_MS
        self.world.at(due, self.tick, self.life, due)
        for peer in self.world.members.values():
            if peer is not self and peer.core is not None:
                for kind in Link:
                    self.world.network.link(self, peer, kind)

    @abc.abstractmethod
    def recover(self) -> bool:
        """Make the core of a new life; False if the power went meanwhile."""

    def die(self, power: bool) -> None:
        self.core = None
        self.life += 1
        if power:
            self.log.power_lost()
        else:
            self.log.killed()
        for peer in self.world.members.values():
            # A killed process resets its connections; a machine without power says nothing.
            if peer.core is not None and not power:
                for kind in Link:
                    self.world.at(
                        self.world.time + 1,
                        self.world.network.unlinked,
                        peer,
                        self.id,
                        kind,
                        peer.links.get((self.id, kind)),
                    )
        self.links.clear()

    def _later(self, ms: float, what: Callable[[], None]) -> None:
        self.world.at(self.world.time + ms, self._if_alive, self.life, what)

    def _if_alive(self, life: int, what: Callable[[], None]) -> None:
        if self.life == life:
            what()

    def _post(self, event: Event) -> None:
        """The storage thread has something to say; the loop hears it when it is awake."""
        self.world.at(self.world.time, self.deliver, self.life, event)

    def deliver(self, life: int, event: Event) -> None:
        if life != self.life:
            return
        if self.world.time < self.asleep_until:
            self.asleep.append((self.deliver, (life, event)))
            return
        self.step(event)

    def tick(self, life: int, due: float) -> None:
        if life != self.life:
            return
        if self.world.time < self.asleep_until:
            self.asleep.append((self.tick, (life, due)))
            return
        world = self.world
        world.at(world.time + TICK_MS, self.tick, life, world.time + TICK_MS)
        self.ticked(int((world.time - due) * self.rate))
        fenced_max = world.settings.election_max_ms + 3 * TICK_MS
        if self.core is not None and self.id not in self.core.quorum.config.voters:
            fenced_max += world.settings.election_max_ms  # one that leaves may hand over twice in succession
        if self.fenced_at is not None and self.now() - self.fenced_at > fenced_max:
            raise Broken(f"I18: {self.id} takes no messages for the sake of a transfer, beyond its time")

    @abc.abstractmethod
    def ticked(self, late: int) -> None:
        """Go on with time, which came so many ms late."""

    def sleep(self, ms: float) -> None:
        """Stop the loop, not the disk: SIGSTOP, or a turn that takes long."""
        self.asleep_until = self.world.time + ms
        self.world.at(self.asleep_until, self.wake, self.life)

    def wake(self, life: int) -> None:
        if life != self.life or self.world.time < self.asleep_until:
            return
        missed, self.asleep = self.asleep, []
        if self.world.chance.random() < 0.7:  # a loop looks at its timers first
            missed.sort(key=lambda each: each[0] != self.tick)
        for what, parameters in missed:
            what(*parameters)

    def stand(self, standing: Standing) -> None:
        """Note the role that the core shows."""
        was_leader, self.standing = self.is_leader, standing
        if standing.role is not Role.LEADER:
            self.waiting = set()
        elif not was_leader:
            self.world.storm.leads(self)
        is_fenced = standing.role is Role.LEADER and standing.why == TRANSFERRING
        self.fenced_at = self.now() if is_fenced else None

    # -- the shell ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def step(self, event: Event) -> None:
        """Tell the core of an event, and carry out what comes of it."""

    @abc.abstractmethod
    def append(self, payloads: list[int]) -> None:
        """Take messages of a client."""

    @abc.abstractmethod
    def payload_of(self, message: Message) -> object:
        """Return what travels with a message: the entries of an Append."""

    @abc.abstractmethod
    def arrived(self, peer: MemberId, number: int, message: Message, payload: object) -> None:
        """Hear a message, and what travelled with it."""

    def rests(self, end: Point) -> bool:
        """Tell whether this member has come to rest behind `end`."""
        return self.core is not None and self.core.log.commit == end

    def at_rest(self) -> None:
        """Judge what this member shows, in a group at rest."""
        return
