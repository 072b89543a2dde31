"""One machine of the simulated DLedger group: a whole shipped broker, its links and its clocks.

The tasks of a member (dial peers, tell it the time) are callbacks here. A machine can stall: nothing of it runs, its
kernel keeps what arrives, and its clock goes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from broker.broker import Broker
from broker.replication.dledger.member import LedgerMember
from broker.settings.config import BrokerConfig, load_config
from ha.dledger.events import MemberFailed
from ha.dledger.ledger import LedgerShell
from ha.raft.types import Link, MemberId, Role
from ropewalk.errors import RopewalkError
from store.io.workers import FlushFailed
from store.log.commitlog import StoreDamaged
from tests.sim.disk import PowerLoss
from tests.sim.machine import BROKER_PORT, CURRENT, Machine
from tests.sim.net import End

if TYPE_CHECKING:
    from tests.sim.ledger.world import World

__all__ = ["Broken", "LedgerNode"]

RAFT_PORT = 40911
SIZE = 3


def peers_of(number: int) -> str:
    """Return `dLegerPeers` of a member: those that the group begins with, and a later one itself."""
    ids = sorted({*range(SIZE), number})
    return ";".join(f"n{each}-10.0.0.{each + 1}:{RAFT_PORT}" for each in ids)


TICK_S = 0.03


class Broken(AssertionError):
    """A promise of the group does not hold."""


@functools.cache
def _config(number: int, settings: tuple[tuple[str, str], ...]) -> BrokerConfig:
    ip = f"10.0.0.{number + 1}"
    return load_config(
        config_file=None,
        settings=[f"{key}={value}" for key, value in settings],
        named={
            "brokerIP1": ip,
            "brokerIP2": ip,
            "brokerName": "b",
            "listenPort": str(BROKER_PORT),
            "bindAddress": "0.0.0.0",
            "namesrvAddr": "10.0.0.9:9876",
            "enableDLegerCommitLog": "true",
            "dLegerPeers": peers_of(number),
            "dLegerSelfId": f"n{number}",
            "storePathRootDir": f"/sim/{number}",
        },
        environ={},
    )


class LedgerNode(Machine):
    """A member of the group: it dies, stalls, stops, and starts again on what its disk holds."""

    def __init__(self, world: World, number: int, settings: dict[str, str]) -> None:
        super().__init__(world, number)
        self.world = world
        self.id = f"n{number}"
        self.config = _config(number, tuple(settings.items()))
        self.rate, self.offset_ms = 1.0, 0
        """Of its monotonic clock."""
        self._asleep_until = 0.0
        self._has_turn = False
        self._dialed: set[MemberId] = set()

    # -- life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life, unless it lives."""
        if self.alive:
            return
        self._life += 1
        self._helpers.clear()
        self._saved = {}
        self._wakes = self._saves = False
        self._asleep_until = 0.0
        token = CURRENT.set(self)
        try:
            self.broker = Broker(
                self.config,
                address=self.address,
                disk=self.disk,
                now_ms=self.wall_ms,
                monotonic_ms=self.monotonic_ms,
                rng=self.world.chance,
                wake=self._wake,
                clock=self._clock,
            )
            self.broker.open()
        except (PowerLoss, FlushFailed):
            self._after_death(power=True)
            self.world.start_later(self, 0.1)
            return
        except RopewalkError as refused:
            raise Broken(f"{self} does not start: {refused}") from refused
        finally:
            CURRENT.reset(token)
        self.alive = True
        self.world.log(self, "starts")
        self._dialed = set()
        self._dial_members()
        self._later(self.world.chance.uniform(0, 0.1), self._tick)
        self._later(self.world.chance.uniform(0, TICK_S), partial(self._tell_time, self.world.events.now))
        self._later(2, self._save_now_and_then)

    def stop(self) -> None:
        """Stop the broker in good order, at once, and without a handover."""
        if not self.alive or self.is_asleep:
            return
        self.world.log(self, "stops in good order")

        def close() -> None:
            self.broker.begin_turn()
            self.member.leave()
            self.broker.end_turn()
            self._save_tables()
            self.broker.close()

        self._guarded(close)
        if self.alive:
            self.alive = False
            self.net.reset_host(self.ip)
            self._after_death(power=False)

    @property
    def member(self) -> LedgerMember:
        """Return the broker's part in the group."""
        assert isinstance(self.broker.group, LedgerMember)
        return self.broker.group

    @property
    def leads(self) -> bool:
        """Return whether this broker is the leader to its clients."""
        return self.alive and self.member.is_leader

    @property
    def term(self) -> int:
        """Return the term in which it leads or follows."""
        return self.member.ledger.standing.term if self.alive else -1

    @property
    def elected(self) -> bool:
        """Return whether it was elected in its term."""
        return self.alive and self.member.ledger.standing.role is Role.LEADER

    # -- clocks ------------------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        """Return the time of the machine's own clock."""
        return 86_400_000 + self.offset_ms + int(self.world.events.now * 1000 * self.rate)

    def wall_ms(self) -> int:
        """Return the time of the machine's wall clock."""
        return self.world.now_ms()

    def _clock(self) -> float:
        return self.world.events.now

    @property
    def is_asleep(self) -> bool:
        """Return whether nothing of it runs."""
        return self.world.events.now < self._asleep_until

    def stall(self, seconds: float) -> None:
        """Stop everything that runs on the machine for a while."""
        self._asleep_until = max(self._asleep_until, self.world.events.now + seconds)

    def _when_awake(self, act: Callable[[], object]) -> bool:
        """Return whether the machine is awake; otherwise have `act` done, in its turn, when it is."""
        if not self.is_asleep:
            return True
        life = self._life

        def due() -> None:
            if self.alive and self._life == life:
                act()

        self.world.events.at(self._asleep_until, due)
        return False

    def turn(self, act: Callable[[], object]) -> None:
        if self._has_turn:  # a link that is closed in a turn ends behind it
            self._later(0, lambda: self.turn(act))
        elif self._when_awake(lambda: self.turn(act)):
            self._has_turn = True
            try:
                super().turn(act)
            finally:
                self._has_turn = False

    def _step(self, helper: Any) -> None:
        if self._when_awake(lambda: self._step(helper)):
            super()._step(helper)

    # -- what a broker's process does --------------------------------------------------------------------

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            super()._guarded(act)
        except (MemberFailed, StoreDamaged) as failed:
            raise Broken(f"{self} has to stop: {failed}") from failed

    def _tick(self) -> None:
        if self._when_awake(self._tick):
            self._guarded(self.broker.tick)
            self._later(self.world.chance.uniform(0.08, 0.12), self._tick)

    def _tell_time(self, due: float) -> None:
        if self._when_awake(lambda: self._tell_time(due)):
            now = self.world.events.now
            late = int((now - due) * 1000 * self.rate)
            for ledger in self._ledgers():
                self._guarded(partial(ledger.tick, late))
            if self.alive:
                self._dial_members()
            self._later(TICK_S, partial(self._tell_time, now + TICK_S))

    def _ledgers(self) -> list[LedgerShell]:
        return [self.member.ledger]

    def _dial_members(self) -> None:
        """Dial members that are to be dialed, and have not been yet."""
        for peer in self.member.ledger.peers.dialed_members:
            if peer not in self._dialed:
                self._dialed.add(peer)
                for kind in Link:
                    self._dial(peer, kind)

    def _dial(self, peer: MemberId, kind: Link) -> None:
        if not self._when_awake(lambda: self._dial(peer, kind)):
            return
        peers = self.member.ledger.peers
        if peer not in peers.members:
            self._dialed.discard(peer)
            return

        def again() -> None:
            self._later(self.world.chance.uniform(0.02, 0.1), lambda: self._dial(peer, kind))

        try:
            host, _, port = peers.book.address(peer).rpartition(":")
            end = self.net.connect(self.ip, self, (host, int(port)))
        except (OSError, ValueError):  # it is not reached, or its address is not known
            again()
            return
        end.session = peers.dialed(cast(Any, end), peer, kind, again)

    def accept(self, end: End) -> None:
        """Make the session of a connection that came in."""
        token = CURRENT.set(self)
        if end.local[1] == RAFT_PORT:
            end.session = self.member.accept(cast(Any, end))
        else:
            end.session = self.broker.new_session(cast(Any, end))
        CURRENT.reset(token)
