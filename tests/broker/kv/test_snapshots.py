"""Snapshots of a region: the log is shortened behind them, a start begins with them, and damage of one is told."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from broker.kv import snapshots
from broker.kv.snapshots import Limits
from ropewalk.codes import RequestCode
from ropewalk.format.kv.commands import Status
from ropewalk.format.kv.items import AcquireLock, Count, NextSequence, Put, encode_values
from store import region_store
from store.io.disk import PagedFile
from tests.broker.harness import without_fsync
from tests.broker.kv.members import (
    KvGroup,
    Session,
    cut_of,
    get,
    outcome_of,
    region,
    regions,
    write_patiently,
)
from tests.support.ledger_brokers import Member


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots each few entries, of a log in small files."""
    without_fsync(monkeypatch)
    monkeypatch.setattr(snapshots, "LIMITS", Limits(entries=20, keys_a_turn=10, again_ms=1000))
    monkeypatch.setattr(region_store, "SEGMENT_SIZE", 8 << 10)


def write(group: KvGroup, session: Session, count: int) -> None:
    """Write values of a few hundred keys, and let all members apply and tidy."""
    leader = group.region_leader()
    keys = int(region(leader).machine.region.end or b"300")
    for number in range(count):
        seq = session.seq
        outcome = write_patiently(group, session, leader, Put(b"%03d" % (seq * 7 % keys), b"%d" % seq * 60))
        assert outcome.status is Status.OK, number
    write_patiently(group, session, leader, NextSequence(b"0s", 1))
    session.write(leader, AcquireLock(b"0lock", b"me", 60_000))
    group.all_applied()


def shorten(group: KvGroup, session: Session) -> None:
    """Write until every member has two snapshots, and no log from before them."""
    for _ in range(20):
        write(group, session, 30)
        if all(has_two(member) for member in group.members.values()):
            return
    raise AssertionError("no log was shortened")


def has_two(member: Member) -> bool:
    status = region(member).status()
    return len(region(member).snapshots.points) == 2 and int(str(status["logBegin"])) > 0


def directory(group: KvGroup, index: int) -> Path:
    return group.root / f"n{index}" / "kv" / "0" / "snapshots"


def whole(group: KvGroup, index: int) -> list[Path]:
    return sorted(each for each in directory(group, index).iterdir() if not each.suffix)


def keeps_two(group: KvGroup, index: int) -> bool:
    return len(whole(group, index)) == 2


def test_the_log_is_shortened_behind_snapshots_and_a_start_begins_with_the_newest(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        session = Session(group.region_leader())
        shorten(group, session)
        for index in list(group.members):
            group.until(partial(keeps_two, group, index), "a third one is removed")
            newest = region(group.members[index]).snapshots.points[-1]
            group.stop(index)
            group.start(index)
            again = region(group.members[index])
            assert again.snapshots.points == [newest]
            assert again.replay_bytes < again.log_bytes < again.ledger.core.log.end.pos
            group.region_leader()
            group.all_applied()
        leader = group.region_leader()
        assert get(leader, b"000") == [b"0" * 60]
        shorten(group, session)


def test_a_retry_across_a_restart_from_a_snapshot_is_applied_once(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        session = Session(group.region_leader())
        leader = group.region_leader()
        first = session.write(leader, NextSequence(b"n", 1))
        session.seq += 1
        shorten(group, Session(leader))
        for index in list(group.members):
            group.stop(index)
        for index in range(3):
            group.start(index)
        assert session.write(group.region_leader(), NextSequence(b"n", 1), seq=1) == first


def test_a_damaged_snapshot_has_the_older_one_taken_and_says_so(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        shorten(group, Session(group.region_leader()))
        group.stop(0)
        older, newest = whole(group, 0)
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
        group.start(0)
        found = region(group.members[0]).snapshots
        assert [point[0] for point in found.points] == [int(older.name)]
        assert len(found.findings) == 1 and newest.name in found.findings[0]
        group.region_leader()
        group.all_applied()


def filled_again(group: KvGroup, id: int = 0) -> None:
    """Start a member whose part of a region is damaged, and wait until it has all and votes."""
    group.start(0)
    found = regions(group.members[0])
    assert (found.get(id) or found._awaiting[id]).ledger.core.readmission.is_learner
    group.until(
        lambda: (own := regions(group.members[0]).get(id)) is not None and not own.status()["learns"],
        "it votes again",
    )
    group.all_applied()


def test_a_member_is_filled_again_where_no_snapshot_is_whole_and_the_log_was_shortened(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        shorten(group, Session(group.region_leader()))
        group.stop(0)
        for path in whole(group, 0):
            path.write_bytes(path.read_bytes()[:-1])
        filled_again(group)


def test_a_member_whose_log_ends_in_front_of_its_snapshot_is_filled_again(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        shorten(group, Session(group.region_leader()))
        group.stop(0)
        data = group.root / "n0" / "kv" / "0" / "data"
        segments = sorted(data.iterdir())
        for path in segments[1:]:
            path.unlink()
        (data.parent / "notes" / "commit").unlink()
        filled_again(group)


def test_a_full_disk_costs_the_snapshot_and_not_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]
    plain = PagedFile.write_at

    def write_at(self: PagedFile, position: int, data: bytes) -> None:
        if full[0] and "snapshots" in self.path.parts and position > 300:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        plain(self, position, data)

    monkeypatch.setattr(PagedFile, "write_at", write_at)
    with KvGroup(tmp_path) as group:
        session = Session(group.region_leader())
        write(group, session, 60)
        assert all("No space left" in region(each).snapshots.failure for each in group.members.values())
        for index in group.members:
            assert (
                region(group.members[index]).log_bytes == region(group.members[index]).ledger.core.log.end.pos
            )
        group.until(lambda: not list(directory(group, 0).iterdir()), "nothing is left of it")
        full[0] = False
        shorten(group, session)
        assert all(not region(each).snapshots.failure for each in group.members.values())


def test_a_snapshot_that_a_kill_cut_short_is_removed_by_the_next_start(tmp_path: Path) -> None:
    with KvGroup(tmp_path) as group:
        write(group, Session(group.region_leader()), 10)
        group.stop(1)
        left = directory(group, 1) / f"{7:020d}.tmp"
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"x")
        group.start(1)
        assert not left.exists()


def test_a_region_that_was_cut_off_has_a_snapshot_before_the_log_that_cut_it_off_is_shortened(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path) as group:
        session = Session(group.region_leader())
        session.write(group.region_leader(), Put(b"150", b"first"), Put(b"299", b"last"))
        shorten(group, session)
        leader = group.region_leader()
        answer = leader.connect().call(
            RequestCode.ROPEWALK_KV_SPLIT, cut_of(leader, 0), encode_values([b"150"])
        )
        assert outcome_of(answer).results == (Count(1),)
        cut_at = region(leader).machine.applied
        upper = group.region_leader(1)
        taken = session.write(group.region_leader(), NextSequence(b"0", 1))
        session.cut = cut_of(group.region_leader(), 0)
        assert taken.status is Status.WRONG_EPOCH
        for number in range(100):
            session.write(group.region_leader(), Put(b"%03d" % (number % 150), b"x" * 200))
        group.all_applied()
        for member in group.members.values():
            assert region(member, 1).snapshots.points and not region(member).cut_off
            assert region(member).snapshots.points[0][0] > cut_at
        before = get(upper, b"150", b"299", region=1)
        assert None not in before
        for index in list(group.members):
            group.stop(index)
        for index in range(3):
            group.start(index)
        assert get(group.region_leader(1), b"150", b"299", region=1) == before
        assert session.write(group.region_leader(), Put(b"000", b"y")).status is Status.OK
        group.all_applied()


def test_a_region_none_of_whose_snapshots_is_whole_is_filled_again_without_the_entry_that_cut_it_off(
    tmp_path: Path,
) -> None:
    with KvGroup(tmp_path, "150;") as group:
        group.until(lambda: all(len(list(regions(each))) == 2 for each in group.members.values()), "two")
        session = Session(group.region_leader())
        shorten(group, session)
        group.stop(0)
        for path in (tmp_path / "n0" / "kv" / "1" / "snapshots").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        filled_again(group, id=1)
