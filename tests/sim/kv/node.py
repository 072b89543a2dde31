"""A member of the simulated group that serves a region, and its wall clock, which may be wrong."""

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

    def wall_ms(self) -> int:
        elapsed_ms = (self.world.events.now - START_S) * 1000 * self.wall_rate
        return START_MS + self.wall_offset_ms + int(elapsed_ms)

    @property
    def region(self) -> KvRegion:
        """Return the region that it serves."""
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
        self._reopens = False
        super().start()

    def _ledgers(self) -> list[LedgerShell]:
        return [self.member.ledger, self.region.ledger]
