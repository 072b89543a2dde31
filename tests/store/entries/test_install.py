"""A snapshot takes the place of a log at a start: whole, or not at all, wherever the power goes meanwhile."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from ropewalk.format.dledger.snapshot import MemberSnapshot, encode_member_snapshot
from ropewalk.format.queue_entry import ENTRY
from store.config import StoreConfig
from store.entries.files import CommitNote
from store.log.commitlog import StoreDamaged, segment_name
from store.message_store import MessageStore
from tests.sim.disk import PowerLoss, SimDisk
from tests.sim.raft.store_log import LedgerDisk
from tests.store.entries.records import encoded
from tests.store.worlds import HOST

ROOT = Path("/store")
DATA = ROOT / "dledger-n0" / "data"
NOTES = ROOT / "ropewalk" / "dledger"
SEGMENT = 4096
QUEUE_FILE = 400
FIRST, BASE = 70, 5 * SEGMENT
"""Where the log of the snapshot begins."""
STATE = b"the tables"


def store_on(disk: SimDisk) -> MessageStore:
    config = StoreConfig(
        root=ROOT, log_directory=DATA, store_host=HOST, segment_size=SEGMENT, queue_file_size=QUEUE_FILE,
        sync_flush=True, ledger=DATA.parent,
    )  # fmt: skip
    return MessageStore(config, disk, lambda: 1, lambda: None)


def old_log(disk: SimDisk, entries: int, committed: int) -> bytes:
    """Write the log of a member that is left behind; return what it has behind its commit point."""
    data, points = bytearray(), []
    for number in range(entries):
        data += encoded(number, len(data), term=2)
        points.append((number, 2, len(data)))
    file = disk.allocate(DATA / segment_name(0), SEGMENT)
    file.write_at(0, bytes(data))
    file.sync()
    note = CommitNote(points[committed], [(2, 0, 0)])
    disk.replace_file(NOTES / "commit", msgspec.json.encode(note))
    disk.replace_file(DATA.parent / "currterm", b"currTerm=3\nvoteLeader=n1\n")
    queue = disk.create_paged(ROOT / "consumequeue" / "T" / "0" / segment_name(0), QUEUE_FILE)
    queue.write_at(0, ENTRY.pack(48, 100, 0) * 3)
    queue.sync()
    for name in ("checkpoint", "ropewalk/bound", "ropewalk/checksums/x", "index/1", "timerwheel"):
        disk.replace_file(ROOT / name, bytes(64))
    return bytes(data[points[committed][2] :])


def staged(disk: SimDisk, first: int = FIRST) -> bytes:
    """Put a snapshot on disk that was decided on; return its first entry."""
    entry = encoded(first, BASE, term=5)
    commit = CommitNote((first, 5, BASE + len(entry)), [(2, 0, 0), (5, 60, 18_000)])
    queues = [("Idle", 0, 7), ("Idle", 1, 3 * QUEUE_FILE // ENTRY.size), ("Long", 0, 45)]
    snapshot = MemberSnapshot(msgspec.json.encode(commit), queues, 90, STATE, entry)
    disk.replace_file(NOTES / "incoming", encode_member_snapshot(snapshot))
    disk.replace_file(NOTES / "install", b'{"kept": false}')
    return entry


def assert_installed(disk: SimDisk, entry: bytes, tail: bytes) -> None:
    store = store_on(disk)
    store.recover()
    entries, log = store.entry_log, store.log
    assert entries is not None
    point = FIRST, 5, BASE + len(entry)
    assert (entries.end, entries.commit, entries.ballot) == (point, point, (3, "n1"))
    assert entries.rows == ((2, 0, 0), (5, 60, 18_000))
    assert [segment.base_offset for segment in log.segments] == [BASE]
    assert bytes(log.segments[0].map[: len(entry)]) == entry and log.end_offset == point[2]
    numbers = {
        (topic, id): (queue.min_offset, queue.next_offset)
        for topic, queues in store.queues.items()
        for id, queue in queues.items()
    }
    assert numbers == {
        ("Idle", 0): (7, 7),
        ("Idle", 1): (60, 60),
        ("Long", 0): (45, 45),
        ("T", 0): (FIRST, FIRST + 1),
    }
    assert disk.read_file(NOTES / f"state-{90:020d}") == STATE
    assert not disk.exists(NOTES / "install") and not disk.exists(NOTES / "incoming")
    kept = [disk.read_file(path) for path in sorted(disk.files) if "diverged" in path.parts]
    assert kept == ([tail] if tail else [])
    store.release()


@pytest.mark.parametrize("committed", [19, 12])
def test_a_loss_of_power_at_any_step_leaves_the_snapshot_or_the_next_start_to_install_it(
    committed: int,
) -> None:
    """With a log that ends with its commit point, and with one that has more, which is kept aside."""
    for life in range(4):
        for step in range(1, 200):
            chance = random.Random(1000 * life + step)
            disk = LedgerDisk(chance)
            tail = old_log(disk, 20, committed)
            entry = staged(disk)
            disk.crash_after = disk.steps + step
            try:
                store = store_on(disk)
                store.recover()
            except PowerLoss:
                pass
            else:
                break
            again = disk.power_loss(chance)
            assert isinstance(again, LedgerDisk)
            if chance.random() < 0.5:  # and once more, in the middle of the next start
                again.crash_after = chance.randrange(1, 60)
                with suppress(PowerLoss):
                    store_on(again).recover()
                again = again.power_loss(chance)
            again.locked = False
            assert_installed(again, entry, tail)
        assert step > 20, "the power went in the middle"


def test_a_snapshot_that_was_not_decided_on_is_dropped() -> None:
    disk = LedgerDisk(random.Random(1))
    old_log(disk, 20, 12)
    staged(disk)
    disk.remove(NOTES / "install")
    for name in ("checkpoint", "ropewalk/bound", "ropewalk/checksums/x", "index/1", "timerwheel"):
        disk.remove(ROOT / name)
    store = store_on(disk)
    store.recover()
    assert store.entry_log is not None and store.entry_log.end[0] == 19
    assert not disk.exists(NOTES / "incoming")


def test_a_snapshot_older_than_what_is_committed_is_dropped() -> None:
    disk = LedgerDisk(random.Random(1))
    old_log(disk, 20, 12)
    staged(disk, first=5)
    for name in ("checkpoint", "ropewalk/bound", "ropewalk/checksums/x", "index/1", "timerwheel"):
        disk.remove(ROOT / name)
    store = store_on(disk)
    found = store.recover()
    assert store.entry_log is not None and store.entry_log.end[0] == 19
    assert "older than the log here" in found.findings[0]


def test_a_damaged_snapshot_that_was_decided_on_stops_the_start() -> None:
    disk = LedgerDisk(random.Random(1))
    old_log(disk, 20, 12)
    staged(disk)
    data = bytearray(disk.read_file(NOTES / "incoming") or b"")
    data[len(data) // 2] ^= 1
    disk.replace_file(NOTES / "incoming", bytes(data))
    with pytest.raises(StoreDamaged, match="was to replace the log"):
        store_on(disk).recover()
