"""Offsets between replicas: the later commit wins, over restarts too."""

import json

from broker.state.offsets import OffsetTable
from tests.support.clocks import Clock


def table(clock: Clock) -> OffsetTable:
    return OffsetTable(clock)


def test_a_later_commit_of_another_replica_wins_and_an_older_one_does_not() -> None:
    clock = Clock(1000)
    offsets = table(clock)
    offsets.commit("g", "T", 0, 50)
    assert not offsets.merge("g", "T", 0, 40, 999) and offsets.query("g", "T", 0) == 50
    assert offsets.merge("g", "T", 0, 40, 1001) and offsets.query("g", "T", 0) == 40
    assert offsets.merge("g", "T", 1, 7, 1) and offsets.query("g", "T", 1) == 7
    assert offsets.journal.time_of(("T", "g", 0)) == 1001


def test_a_master_that_returns_does_not_undo_what_was_committed_meanwhile() -> None:
    clock = Clock(1000)
    master = table(clock)
    master.commit("g", "T", 0, 50)
    saved, times = master.dump(clock()), master.dump_times()
    slave = table(clock)
    slave.merge("g", "T", 0, 50, clock())
    clock.ms = 2000
    slave.commit("g", "T", 0, 90)  # the master is down
    clock.ms = 3000
    returned = table(clock)
    returned.load(_json(saved))
    returned.load_times(json.loads(times))
    assert not slave.merge("g", "T", 0, 50, returned.journal.time_of(("T", "g", 0)))
    assert returned.merge("g", "T", 0, 90, slave.journal.time_of(("T", "g", 0)))
    assert returned.query("g", "T", 0) == slave.query("g", "T", 0) == 90


def test_without_its_times_a_table_is_as_old_as_its_file() -> None:
    clock = Clock(1000)
    before = table(clock)
    before.commit("g", "T", 0, 50)
    clock.ms = 1500
    after = table(clock)
    after.load(_json(before.dump(clock())))
    assert after.journal.time_of(("T", "g", 0)) == 1500


def test_what_is_removed_is_not_told_any_more() -> None:
    offsets = table(Clock(1000))
    offsets.commit("g", "T", 0, 50)
    offsets.remove_topic("T")
    assert offsets.journal.since(0) == ([], 0)


def _json(text: bytes) -> dict[str, object]:
    from ropewalk.format import fastjson

    value = fastjson.loads(text)
    assert isinstance(value, dict)
    return value
