"""The snapshots that a leader makes for others: seldom, and in its own term only."""

from __future__ import annotations

from typing import cast

from ha.dledger.links.peers import Peers
from ha.dledger.snapshots import AGAIN_MS, SnapshotExchange
from ha.dledger.storage import LogStorage


class Linked:
    """A link that is always up, and what stands for the links of a member."""

    number = 7

    def link(self, peer: str, kind: object) -> Linked:
        return self


class Leader:
    """A leader in term 3 that counts the snapshots it is to make."""

    def __init__(self) -> None:
        self.now, self.term, self.made = 0, 3, 0
        self.snapshots = SnapshotExchange(
            0,
            cast(Peers, Linked()),
            cast(LogStorage, None),
            lambda: self.now,
            lambda: self.term,
            lambda event: None,
        )
        self.snapshots.make = lambda done: self._make()

    def _make(self) -> None:
        self.made += 1


def test_a_second_snapshot_for_a_peer_waits_for_its_time() -> None:
    leader = Leader()
    leader.snapshots.begin("n2")
    leader.snapshots.begin("n2")
    assert leader.made == 1
    leader.now = AGAIN_MS
    leader.snapshots.tick()
    leader.snapshots.tick()
    assert leader.made == 2


def test_a_snapshot_that_waits_for_its_time_is_not_sent_in_a_later_term() -> None:
    """Another member leads that one: its followers would hear of a second leader, and stop."""
    leader = Leader()
    leader.snapshots.begin("n2")
    leader.snapshots.begin("n2")
    leader.now, leader.term = AGAIN_MS, 4
    leader.snapshots.tick()
    assert leader.made == 1
