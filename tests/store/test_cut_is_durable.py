"""What was cut from a log is gone for good: on the disk before the log goes on, whoever was killed in between."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from ropewalk.format.record import decode_record, encode_host
from store.config import StoreConfig
from store.follow import StreamRejected
from store.message_store import MessageStore
from store.offline.diverged import About, cut_store
from tests.sim.disk import PAGE, PowerLoss, SimDisk, SimFile
from tests.sim.world import SteppedHelpers

ROOT = Path("/sim")
HOST = encode_host("127.0.0.1", 10911)
SEGMENT_SIZE = 4 * PAGE


class Keeps(random.Random):
    """Fate that keeps what was written to the first page of a file, and of all others what a sync left there."""

    def __init__(self) -> None:
        super().__init__(1)
        self.first = True

    def random(self) -> float:
        fate, self.first = (0.0 if self.first else 0.9), False
        return fate


def lose_power(disk: SimDisk) -> SimDisk:
    """Have the log's first page reach the platter, and of its others what a sync left; all else is durable."""
    for path, file in disk.files.items():
        if path.parent != ROOT / "commitlog":
            file.sync()
            disk.named[path] = file
    return disk.power_loss(Keeps())


def config(*, sync_flush: bool = False) -> StoreConfig:
    return StoreConfig(
        ROOT, ROOT / "commitlog", HOST, SEGMENT_SIZE, 2000, sync_flush, fill_window=0, fill_idle=0
    )


def opened(disk: SimDisk, *, sync_flush: bool = False) -> MessageStore:
    store = MessageStore(
        config(sync_flush=sync_flush), disk, lambda: 1_700_000_000_000, lambda: None, SteppedHelpers()
    )
    store.open()
    return store


def put(store: MessageStore, body: bytes) -> int:
    """Append one message of topic T, queue 0; return its log offset."""
    store.begin_turn()
    ((offset, _number),) = store.put([(store.queue("T", 0), body, b"", 0, 0, 0, 0, 0, 0)], HOST)
    store.publish()
    return offset


def fill_page(store: MessageStore, mark: bytes) -> None:
    """Append one record that ends where a page does."""
    at = store.log.end_offset
    size = PAGE - at % PAGE - 91 - len("T")
    put(store, mark.ljust(size, b"."))
    assert store.log.end_offset == at - at % PAGE + PAGE


def flush(store: MessageStore) -> None:
    store.request_flush()
    while store.log.flushed_offset < store.whole_end:
        store._helpers.pause()
        store.run_completions()


def bodies(store: MessageStore) -> list[bytes]:
    """The messages of queue 0 of topic T, as the log has them."""
    queue, found = store.queue("T", 0), []
    for number in range(queue.min_offset, queue.next_offset):
        offset, size, _tags = queue.read(number)
        segment = store.log.find(offset)
        assert segment is not None
        position = offset - segment.base_offset
        found.append(decode_record(segment.map[position : position + size]).body.rstrip(b"."))
    return found


def log_file(disk: SimDisk, base: int = 0) -> Path:
    return ROOT / "commitlog" / f"{base:020d}"


@pytest.fixture
def torn() -> SimDisk:
    """A disk with a log whose first page is torn, and a whole record on the second."""
    disk = SimDisk(random.Random(1))
    store = opened(disk)
    fill_page(store, b"torn")
    fill_page(store, b"cut")
    flush(store)
    file = disk.files[log_file(disk)]
    file.data[200] ^= 1
    file.sync()
    return disk.killed()


@pytest.mark.parametrize("step", range(1, 12))
def test_what_a_killed_start_cut_does_not_come_back_after_the_next_loss_of_power(
    torn: SimDisk, step: int
) -> None:
    """The next start sees zeros where the one before had put them, and nobody had synced them."""
    torn.crash_after = step
    with contextlib.suppress(PowerLoss):
        opened(torn)
    store = opened(disk := torn.killed())
    assert bodies(store) == []
    fill_page(store, b"new")
    after = opened(lose_power(disk))
    assert bodies(after) in ([], [b"new"])


def test_a_segment_that_a_killed_start_removed_is_gone_for_good() -> None:
    disk = SimDisk(random.Random(1))
    store = opened(disk)
    for mark in (b"0", b"1", b"torn"):
        fill_page(store, mark)
    put(store, b"in the next segment".ljust(PAGE, b"."))
    flush(store)
    assert len(store.log.segments) == 2
    file = disk.files[log_file(disk)]
    file.data[2 * PAGE + 200] ^= 1
    file.sync()
    disk.remove(ROOT / "ropewalk" / "bound")
    came_before_the_sync = 0
    for step in range(1, 12):
        life = disk.killed()
        life.crash_after = step
        with contextlib.suppress(PowerLoss):
            opened(life)
        came_before_the_sync += log_file(disk, SEGMENT_SIZE) in life.named.keys() - life.files.keys()
        last = life.killed()
        assert bodies(opened(last)) == [b"0", b"1"]
        kept = last.named.get(log_file(disk, SEGMENT_SIZE), SimFile())
        assert not any(kept.platter), f"killed at step {step}, a loss of power brings the segment back"
    assert came_before_the_sync


def test_a_slave_goes_on_only_when_what_it_dropped_is_on_the_disk() -> None:
    """Behind bytes that are no record there can be whole ones: they must not be believed behind the next record."""
    source = opened(SimDisk(random.Random(2)))
    fill_page(source, b"torn")
    fill_page(source, b"dropped")
    wrong = bytearray(source.log.segments[0].map[: 2 * PAGE])
    wrong[200] ^= 1
    disk = SimDisk(random.Random(3))
    store = opened(disk)
    follower = store.follow()
    while not follower.end:
        store.tick()
        with contextlib.suppress(StreamRejected):
            follower.append(0, bytes(wrong))
        store._helpers.pause()
        store.run_completions()
    assert follower.boundary == 0
    disk.files[log_file(disk)].sync()  # a flush takes what there is
    follower.drop_partial()
    right = opened(SimDisk(random.Random(4)))
    fill_page(right, b"new")
    data = right.log.segments[0].map[:PAGE]
    taken = follower.append(0, data)
    while not taken:
        store._helpers.pause()
        store.run_completions()
        taken = follower.append(0, data)
    assert taken == PAGE
    assert bodies(opened(lose_power(disk))) in ([], [b"new"])


def test_a_slave_that_leads_appends_only_when_what_it_dropped_is_on_the_disk() -> None:
    source = opened(SimDisk(random.Random(2)))
    fill_page(source, b"whole")
    fill_page(source, b"half")
    disk = SimDisk(random.Random(3))
    store = opened(disk)
    follower = store.follow()
    data = bytes(source.log.segments[0].map[: 2 * PAGE - 10])
    taken = 0
    while not taken:
        store.tick()
        taken = follower.append(0, data)
        store._helpers.pause()
        store.run_completions()
    disk.files[log_file(disk)].sync()
    store.lead()
    assert not any(disk.files[log_file(disk)].platter[PAGE:])


def test_what_a_killed_cut_of_a_diverged_log_dropped_does_not_come_back() -> None:
    disk = SimDisk(random.Random(1))
    store = opened(disk)
    fill_page(store, b"same")
    fill_page(store, b"theirs")
    fill_page(store, b"theirs too")
    flush(store)
    for step in range(1, 30):
        life = disk.killed()
        life.locked = False
        life.crash_after = step
        about = About("", PAGE, 3 * PAGE, 0)
        with contextlib.suppress(PowerLoss):
            cut_store(ROOT, ROOT / "commitlog", SEGMENT_SIZE, about, life)
        again = opened(now := life.killed())
        if again.log.end_offset == PAGE:
            assert not any(now.files[log_file(now)].platter[PAGE:]), step


def test_a_record_whose_properties_lost_their_end_is_not_believed_because_of_records_further_on() -> None:
    """It was served, its properties zeros, until a kill left nothing behind it: then it went, acknowledged or not."""
    disk = SimDisk(random.Random(1))
    store = opened(disk)
    store.begin_turn()
    size = PAGE - 91 - len("T") - 3  # the last bytes of the properties are the next page's
    queue = store.queue("T", 0)
    store.put([(queue, bytes(size), b"KEYS\x01k\x02", 0, 0, 0, 0, 0, 0)], HOST)
    store.publish()
    fill_page(store, b"between")
    fill_page(store, b"further on")
    flush(store)
    file = disk.files[log_file(disk)]
    file.data[PAGE : 2 * PAGE] = bytes(PAGE)  # the page that a loss of power took
    file.sync()
    disk = disk.killed()
    disk.remove(ROOT / "ropewalk" / "bound")
    assert bodies(opened(disk)) == []
