"""The shown end: a quorum has it and this disk has it, a turn's share at a time."""

from __future__ import annotations

from ha.dledger.shown import ShownLog
from ha.raft.types import Point
from tests.support.ledgers import MemoryDisk, MemoryStorage, end_of


def log_of(count: int) -> tuple[MemoryStorage, list[Point]]:
    storage = MemoryStorage(MemoryDisk(), lambda done: None)
    storage.lead(1, 0)
    for _ in range(count):
        storage.append(b"x")
    return storage, [Point(*end_of(entry)) for entry in storage.disk.entries]


def test_entries_that_are_committed_are_shown_once_this_disk_has_them() -> None:
    storage, points = log_of(4)
    shown = ShownLog(storage, storage)
    shown.commits.extend(points)
    assert shown.advance(-1) is None and shown.end.index == -1
    assert shown.advance(1) == points[1] == shown.end
    assert shown.advance(1) is None, "nothing new is on this disk"
    assert storage.disk.commit[0] == 1, "what is written down is no further"
    assert shown.advance(3) == points[3] and not shown.commits


def test_a_long_way_is_shown_in_shares_and_the_target_says_so() -> None:
    storage, points = log_of(5)
    storage.show_at_most = 2
    shown = ShownLog(storage, storage)
    shown.commits.append(points[4])
    assert shown.advance(4) == points[1] and shown.target == points[4]
    assert shown.advance(4) == points[3] and shown.target == points[4]
    assert shown.advance(4) == points[4] and shown.target is None
