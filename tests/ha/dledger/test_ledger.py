"""One shell by itself: failures end the member, appends are told first, bytes go with their runs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ha.dledger.events import MemberFailed
from ha.dledger.ledger import LedgerShell
from ha.dledger.links.hello import Identity
from ha.raft.types import Role, Settings
from tests.support.ledgers import MemoryDisk, MemoryStorage


class Alone:
    """The only member of a group, on a clock of its own."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.now = 0
        self.due: list[Callable[[], None]] = []
        self.wakes = 0
        self.storage = MemoryStorage(self.disk, self.due.append)
        me = Identity("c", "g", "n0", self.disk.incarnation, self.disk.segment_size)
        rng = random.Random(1)
        self.ledger = LedgerShell(
            me, {"n0": ("h", 1)}, self.storage, self.storage, Settings(), lambda: self.now, rng,
            draw=rng.randbytes, wake=self._woken,
        )  # fmt: skip

    def _woken(self) -> None:
        self.wakes += 1

    def turn(self) -> None:
        due, self.due[:] = list(self.due), []
        for each in due:
            each()
        self.ledger.end_turn()

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 20):
            self.now += 20
            self.ledger.tick(0)
            self.turn()


def test_a_group_of_one_elects_itself_and_shows_what_it_has_flushed() -> None:
    alone = Alone()
    alone.run(1500)
    assert alone.ledger.standing.role is Role.LEADER and alone.ledger.standing.may_append
    index = alone.storage.append(b"x")
    alone.ledger.end_turn()
    assert alone.ledger.shown.end.index < index
    alone.run(100)
    assert alone.ledger.shown.end.index == index == alone.disk.commit[0]


def test_a_restart_begins_with_what_was_written_down() -> None:
    disk = MemoryDisk()
    first = Alone(disk)
    first.run(1500)
    first.storage.append(b"x")
    first.run(100)
    second = Alone(disk)
    assert (
        second.ledger.shown.end == first.ledger.shown.end
        and second.ledger.core.term == first.ledger.core.term
    )
    second.run(1500)
    assert second.ledger.standing.term == first.ledger.standing.term + 1


def test_a_write_that_fails_ends_the_member_for_good() -> None:
    alone = Alone()
    alone.run(1500)

    def fail(_done: object) -> None:
        raise OSError("no disk")

    alone.storage.flush = fail  # type: ignore[method-assign, assignment]
    alone.storage.append(b"x")
    with pytest.raises(OSError, match="no disk"):
        alone.ledger.end_turn()


def test_a_core_that_contradicts_itself_is_told_and_asked_nothing_more() -> None:
    alone = Alone()
    alone.run(1500)
    alone.ledger.core.step = lambda event: (_ for _ in ()).throw(AssertionError("rule 12"))  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="rule 12"):
        alone.ledger.tick(0)
    with pytest.raises(MemberFailed, match="n0 of group g must stop: rule 12"):
        alone.ledger.end_turn()
    with pytest.raises(MemberFailed):
        alone.ledger.tick(0)


def test_runs_of_one_turn_leave_in_one_flush() -> None:
    alone = Alone()
    alone.run(1500)
    flushes = alone.storage.flushes
    for _ in range(100):
        alone.storage.append(b"x" * 100)
    alone.ledger.end_turn()
    alone.run(100)
    assert alone.storage.flushes == flushes + 1
