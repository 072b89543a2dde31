"""A member of the simulated group that serves a region, and its wall clock, which may be wrong."""

from __future__ import annotations

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
        self.wall_rate, self.wall_offset_ms = 1.0, 0

    def wall_ms(self) -> int:
        elapsed_ms = (self.world.events.now - START_S) * 1000 * self.wall_rate
        return START_MS + self.wall_offset_ms + int(elapsed_ms)

    @property
    def region(self) -> KvRegion:
        """Return the region that it serves."""
        region = self.member.region
        assert region is not None
        return region

    @property
    def leads_region(self) -> bool:
        """Return whether it takes writes of the region."""
        return self.alive and self.region.leads

    def _ledgers(self) -> list[LedgerShell]:
        return [self.member.ledger, self.region.ledger]
