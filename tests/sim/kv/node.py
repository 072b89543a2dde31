"""A member of the simulated group that serves regions, and its wall clock, which may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.kv.region import KvRegion
from ha.dledger.ledger import LedgerShell
from tests.sim.events import START_S
from tests.sim.ledger.node import LedgerNode

if TYPE_CHECKING:
    from tests.sim.kv.world import KvWorld

START_MS = 1_700_000_000_000


class KvNode(LedgerNode):
    """See the module docstring."""

    def __init__(self, world: KvWorld, number: int, settings: dict[str, str]) -> None:
        super().__init__(world, number, settings)
        self.world: KvWorld = world
        self._reopens = False
        self.wall_rate, self.wall_offset_ms = 1.0, 0
        self.is_away = False
        """Whether it does not start, for the time being."""

    def wall_ms(self) -> int:
        elapsed_ms = (self.world.events.now - START_S) * 1000 * self.wall_rate
        return START_MS + self.wall_offset_ms + int(elapsed_ms)

    def set_wall_rate(self, rate: float) -> None:
        """Have the wall clock go faster or slower from now on."""
        elapsed_ms = (self.world.events.now - START_S) * 1000
        self.wall_offset_ms += int(elapsed_ms * (self.wall_rate - rate))
        self.wall_rate = rate

    @property
    def regions(self) -> list[KvRegion]:
        """Return the regions that it serves, by id; none of one that is down."""
        return [] if not self.alive or self.member.kv is None else [*self.member.kv]

    @property
    def region(self) -> KvRegion:
        """Return the first region."""
        assert self.member.kv is not None
        region = self.member.kv.get(0)
        assert region is not None
        return region

    @property
    def leads_region(self) -> bool:
        """Return whether it takes writes of the region."""
        return self.alive and self.region.leads

    def turn(self, act: Callable[[], object]) -> None:
        super().turn(act)
        if self.alive and self.member.replaced.is_set() and not self._reopens:
            self._reopens = True
            self._later(0, self._reopen)

    def _reopen(self) -> None:
        """Open the store again, as the process does, with a snapshot in place of a log."""
        if self._when_awake(self._reopen):
            self.world.installed += 1
            self.stop()
            self.world.start_later(self, 0.01)

    def start(self) -> None:
        if not self.is_away:
            self._reopens = False
            super().start()

    def come_back(self) -> None:
        """Start again after a long absence."""
        if self.is_away:
            self.is_away = False
            self.start()

    def _ledgers(self) -> list[LedgerShell]:
        return [self.member.ledger, *(self.member.kv.ledgers if self.member.kv is not None else ())]
