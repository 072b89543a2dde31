"""Lives of a group with a region whose members are replaced, one after the other, while they die and are cut off.

As `tests.sim.kv.world`, whose clients, misfortunes and checks these are. An operator has a new member learn, promotes
it in the place of another one, and destroys the machine of that one for good when the leader says that all have
followed. What was acknowledged is then on the machines that are left, and these go on without the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from ha.dledger.members.changes import Change, ChangeKind, ChangeRefused
from ha.raft.types import ChangeResult
from tests.sim.kv.node import KvNode
from tests.sim.kv.world import LIMITS, SEGMENT_SIZE, Broken, KvWorld, live_kv
from tests.sim.ledger.node import RAFT_PORT, SIZE, LedgerNode

__all__ = ["Broken", "MembersWorld", "run"]

REPLACEMENTS = 3
_AGAIN_S = 0.15
_CHANGED_S = 60.0
"""How long all replacements may take when nothing disturbs them any more."""


class MembersWorld(KvWorld):
    """One life of such a group."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.replaced = 0
        self._lost: KvNode | None = None
        self._new: KvNode | None = None

    def _make_nodes(self, settings: dict[str, str]) -> Sequence[LedgerNode]:
        found = [*super()._make_nodes(settings)]
        self._settings = settings | {"ropewalkKvRegions": "1", "raftLeaseReads": "false"}
        return found

    def _begin(self) -> None:
        super()._begin()
        self.events.later(self.chance.uniform(0, 1.0), self._replace)

    # -- the operator ------------------------------------------------------------------------------------

    def _replace(self) -> None:
        """Start a new member, and have it learn."""
        if self.replaced == REPLACEMENTS:
            return
        self._lost = self.chance.choice(self.nodes)
        new = KvNode(self, SIZE + self.replaced, self._settings)
        self._new = new
        self.net.hosts |= {new.ip: new}
        new.start()
        self.log("operator", f"{new} for {self._lost}")
        self._ask(Change(ChangeKind.LEARN, new.id, f"{new.ip}:{RAFT_PORT}"))

    def _ask(self, change: Change) -> None:
        """Ask the leader for a change, again and again until it is made."""

        def again() -> None:
            self.events.later(self.chance.uniform(_AGAIN_S / 2, _AGAIN_S), lambda: self._ask(change))

        heard: list[ChangeResult | str] = []

        def hear(result: ChangeResult | str) -> None:
            if heard:
                return
            heard.append(result)
            if result in (ChangeResult.SUCCESS, ChangeResult.NOTHING_TO_CHANGE):
                self.log("operator", f"{change.kind.value} {change.member}")
                self._made(change)
            else:
                again()

        def ask() -> None:
            try:
                leader.member.change(change, hear)
            except ChangeRefused:
                hear(ChangeResult.CHANGE_IN_PROGRESS)

        there = [*self.nodes, *([self._new] if self._new is not None else [])]
        leaders = [node for node in there if node.leads and not node.is_asleep]
        if not leaders:
            again()
            return
        leader = max(leaders, key=lambda node: node.term)
        leader.turn(ask)
        self.events.later(2.0, lambda: hear(ChangeResult.UNKNOWN))

    def _made(self, change: Change) -> None:
        assert self._new is not None and self._lost is not None
        if change.kind is ChangeKind.LEARN:
            self.events.later(
                _AGAIN_S,
                lambda: self._ask(Change(ChangeKind.PROMOTE, change.member, replacing=self._lost_id)),
            )
            return
        if self._new not in self.nodes:
            self.nodes = [*self.nodes, self._new]
        self._await_regions()

    @property
    def _lost_id(self) -> str:
        assert self._lost is not None
        return self._lost.id

    def _await_regions(self) -> None:
        """Destroy the machine that was replaced, once the leader says that the region has followed."""
        lost = self._lost
        assert lost is not None
        leaders = [node for node in self.nodes if node.leads and node is not lost]
        if len(leaders) != 1 or leaders[0].is_asleep or leaders[0].member.regions_behind:
            self.events.later(_AGAIN_S, self._await_regions)
            return
        self.log("operator", f"{lost} is destroyed")
        self.nodes = [node for node in self.nodes if node is not lost]
        lost.is_away = True
        lost.die(power=True)
        self.replaced += 1
        self._lost = self._new = None
        self.events.later(self.chance.uniform(0, 0.5), self._replace)

    def _calm(self) -> None:
        self._until(lambda: self.replaced == REPLACEMENTS, _CHANGED_S, "replace its members")
        super()._calm()

    def _heal(self) -> None:
        super()._heal()
        if self._new is not None:
            self._new.start()

    # -- the verdict -------------------------------------------------------------------------------------

    def _judge(self) -> None:
        super()._judge()
        expected = {node.id for node in self.nodes}
        for node in self.nodes:
            for config in (node.member.ledger.members.config, node.region.ledger.members.config):
                if {*config.voters} != expected or config.old or config.learners:
                    raise Broken(f"{node} has {config}, and not {sorted(expected)}")


def run(seed: int) -> MembersWorld:
    """Live one life, and return it. Raises `Broken`, with what happened last."""
    return live_kv(seed, MembersWorld, LIMITS, SEGMENT_SIZE)
