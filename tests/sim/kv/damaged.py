"""Lives of a group with regions that have damage now and then: a flipped byte in a log, or in all snapshots of one.

As `tests.sim.kv.world` and `tests.sim.kv.regions`, whose clients, misfortunes and checks these are. A byte is flipped
while its member is down, where the next start is sure to read it; that start may lose the power, too. Only one member
at a time has damage that is not made up for: two of three could be all that have a write. Where nobody leads meanwhile,
as the end of another member's log is in doubt, an operator trusts it: what a loss of power tears here was on no disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.kv.marker import RegionMarker
from tests.sim.kv import regions
from tests.sim.kv.node import KvNode
from tests.sim.kv.regions import RegionsTrouble, RegionsWorld
from tests.sim.kv.world import LIMITS, SEGMENT_SIZE, Broken, KvTrouble, KvWorld, live_kv
from tests.sim.ledger.node import LedgerNode
from tests.sim.ledger.trouble import Trouble

__all__ = ["Broken", "DamagedRegionsWorld", "DamagedWorld", "run", "run_regions"]

_TRUST_S = 1.0


class Damages:
    """The damage in one life, and the operator who trusts logs in doubt."""

    def __init__(self, world: KvWorld) -> None:
        self._world = world
        self.flips = 0
        self._unread: KvNode | None = None
        """The member whose next start will find what was flipped."""
        self._lost: set[tuple[str, int]] = set()

    @property
    def losses(self) -> int:
        """Return how many logs began anew."""
        return len(self._lost)

    def strike(self, node: KvNode) -> None:
        """Flip a byte of a region on a member that dies now, if no member has damage."""
        world, chance = self._world, self._world.chance
        if not node.alive or not self.are_over:
            return
        region = chance.choice(node.regions)
        points, noted = region.snapshots.points, region._store.entries.noted[2]
        begin = points[-1][2] if points else 0
        world.deaths += 1
        node.die(power=chance.random() < 0.3, reason=f"with damage in region {region.machine.region.id}")
        self.flips += 1
        self._unread = node
        root = node.config.store_path_root_dir / "kv" / str(region.machine.region.id)
        snapshots = [root / "snapshots" / name for name in node.disk.names(root / "snapshots")]
        if (
            begin >= noted or chance.random() < 0.3
        ):  # behind `noted`, an entry that is not whole is a torn one
            for path in snapshots:
                self._flip(node, path, chance.random())
        else:
            place = chance.randrange(begin, noted)
            for name in node.disk.names(root / "data"):
                path = root / "data" / name
                size = node.disk.size_of(path)
                if int(name) <= place < int(name) + size:
                    self._flip(node, path, (place - int(name)) / size)
        if chance.random() < 0.3:
            node.disk.crash_after = node.disk.steps + chance.randrange(1, 60)
        world.start_later(node, chance.uniform(0.02, 1.2))

    def _flip(self, node: KvNode, path: Path, share: float) -> None:
        """Flip a bit of the byte that is at this share of a file."""
        file = node.disk.files[path]
        if file.data:
            file.data[int(share * len(file.data))] ^= 1 << self._world.chance.randrange(8)
            file.sync()

    @staticmethod
    def _notes_of(node: KvNode) -> list[str]:
        """Return the regions of a member whose damage is noted."""
        notes = node.config.store_path_root_dir / "ropewalk" / "dledger"
        names = [name for name in node.disk.names(notes) if name.startswith("kv-")]
        return [name for name in names if RegionMarker(notes / name, notes, node.disk).is_lost]

    @property
    def are_over(self) -> bool:
        """Return whether all damage is made up for."""
        if self._unread is not None and self._unread.alive:
            self._unread = None
        return self._unread is None and not any(map(self._notes_of, self._world.nodes))

    def look(self) -> None:
        """Count the logs that begin anew."""
        for node in self._world.nodes:
            for name in self._notes_of(node):
                self._lost.add((f"{node} {name}", self.flips))

    def trust(self) -> None:
        """Have the operator look after logs in doubt, again and again."""
        self._world.events.later(_TRUST_S, self.trust)
        for node in () if self.are_over else self._world.nodes:
            if node.alive and not node.is_asleep:
                node.turn(node.member.trust)


class DamagedTrouble(KvTrouble):
    """Misfortune, and damage."""

    def __init__(self, world: DamagedWorld) -> None:
        self._damages = world.damages
        super().__init__(world)
        self.kinds += ["damage"] * 2

    def _do(self, kind: str, node: LedgerNode) -> None:
        if kind == "damage":
            assert isinstance(node, KvNode)
            self._damages.strike(node)
        else:
            super()._do(kind, node)


class DamagedRegionsTrouble(DamagedTrouble, RegionsTrouble):
    """Troubles of a group with several regions, damage to their logs among them."""


class DamagedWorld(KvWorld):
    """One life of a group with one region."""

    damages: Damages

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        self.damages = Damages(self)
        return super()._make_nodes(settings)

    def _make_trouble(self) -> Trouble:
        return DamagedTrouble(self)

    def _begin(self) -> None:
        super()._begin()
        self.damages.trust()

    def _look(self) -> None:
        super()._look()
        self.damages.look()

    def _rests(self) -> bool:
        return super()._rests() and self.damages.are_over


class DamagedRegionsWorld(DamagedWorld, RegionsWorld):
    """One life of a whole store."""

    def _make_trouble(self) -> Trouble:
        return DamagedRegionsTrouble(self)


def run(seed: int) -> DamagedWorld:
    """Live one life with one region, and return it. Raises `Broken`, with what happened last."""
    return live_kv(seed, DamagedWorld, LIMITS, SEGMENT_SIZE)


def run_regions(seed: int, operations: int = regions.OPERATIONS) -> DamagedRegionsWorld:
    """Live one life of a whole store, and return it. Raises `Broken`, with what happened last."""
    return live_kv(
        seed, lambda seed: DamagedRegionsWorld(seed, operations), regions.LIMITS, regions.SEGMENT_SIZE
    )
