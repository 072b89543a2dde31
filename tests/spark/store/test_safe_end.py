"""Where a store may safely be read to: stale bytes, torn tails and stale queue entries are all behind it."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.record import encode_blank
from ropewalk.spark.store.files import Store, UnreadableStore, open_stores
from ropewalk.spark.store.safe_end import end_of_log, safe_end
from tests.spark.rows.records import entry, record
from tests.spark.stores import MadeStore


def store_at(path: Path) -> Store:
    (store,) = open_stores(str(path))
    return store


@pytest.fixture
def made(tmp_path: Path) -> MadeStore:
    store = MadeStore(tmp_path / "store", segment_size=8192, queue_file_size=20 * 8)
    store.fill(50)
    return store


def test_it_is_the_end_of_the_newest_dispatched_record(made: MadeStore) -> None:
    assert safe_end(store_at(made.root)) == made.offset


def test_records_that_were_never_dispatched_are_behind_it(made: MadeStore) -> None:
    end = made.offset
    for _ in range(3):
        made.append(dispatch=False)
    store = store_at(made.root)
    assert safe_end(store) == end
    assert end_of_log(store, "scan") == made.offset


def test_an_entry_that_leads_to_another_record_does_not_count(made: MadeStore) -> None:
    end, (offset, raw) = made.offset, made.written[-1]
    made.append("orders", 0, b"a new life", dispatch=False)
    # What is left of the time before a truncation: it names the right place and the wrong message.
    made.write_entry("bills", 0, 13, made.written[-1][0], len(made.written[-1][1]))
    made.write_entry("bills", 1, 12, offset, len(raw) - 1)
    made.write_entry("bills", 1, 13, end + 100_000, 300)
    assert safe_end(store_at(made.root)) == end


@pytest.mark.parametrize(("queue_id", "number"), [(0, 14), (1, 13)], ids=["another number", "another queue"])
def test_an_entry_counts_for_the_message_of_its_place_only(
    made: MadeStore, queue_id: int, number: int
) -> None:
    """Message 13 of queue 0 was never dispatched; what leads to it is another place of the same topic."""
    end = made.offset
    made.append("orders", 0, b"a new life", dispatch=False)
    offset, raw = made.written[-1]
    for before in range(12 + (queue_id == 0), number):
        made.write_entry("orders", queue_id, before, end + 100_000, 300)
    made.write_entry("orders", queue_id, number, offset, len(raw))
    assert safe_end(store_at(made.root)) == end
    made.write_entry("orders", 0, 13, offset, len(raw))
    assert safe_end(store_at(made.root)) == made.offset


def test_the_last_entries_of_a_queue_may_all_be_stale(made: MadeStore) -> None:
    end = made.offset
    for number in range(30):
        made.write_entry("late", 0, number, end + 200 * number, 200)
    assert safe_end(store_at(made.root)) == end


def test_a_hole_in_a_queue_hides_nothing_behind_it(made: MadeStore) -> None:
    for queue in ("orders/0", "orders/1", "bills/0", "bills/1"):
        first = made.root / "consumequeue" / queue / f"{0:020d}"
        first.write_bytes(bytes(first.stat().st_size))
        last = sorted(first.parent.iterdir())[-1]
        last.write_bytes(bytes(20) + last.read_bytes()[20:])
    assert safe_end(store_at(made.root)) == made.offset


def test_files_allocated_ahead_and_filled_up_do_not_confuse_it(made: MadeStore) -> None:
    queue = made.root / "consumequeue" / "orders" / "0"
    (queue / f"{20 * 8 * 40:020d}").write_bytes(bytes(20 * 8))
    (made.root / "commitlog" / f"{made.offset - made.offset % 8192 + 8192:020d}").write_bytes(bytes(8192))
    filling = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    first = made.root / "consumequeue" / "from-the-middle" / "0" / f"{20 * 8:020d}"
    first.parent.mkdir(parents=True)
    first.write_bytes(filling * 3 + bytes(20 * 5))
    assert safe_end(store_at(made.root)) == made.offset


def test_a_log_that_retention_has_shortened_ends_where_it_did(made: MadeStore) -> None:
    for segment in sorted((made.root / "commitlog").iterdir())[:2]:
        segment.unlink()
    assert safe_end(store_at(made.root)) == made.offset


def test_a_store_without_messages_ends_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    assert safe_end(store_at(tmp_path)) == 0


def test_the_confirm_offset_counts_beside_an_epoch_file_only(made: MadeStore) -> None:
    confirmed, _ = made.written[20]
    (made.root / "checkpoint").write_bytes(
        Checkpoint(confirm_offset=confirmed, master_flushed_offset=7).encode()
    )
    store = store_at(made.root)
    assert safe_end(store) == made.offset
    (made.root / "epochFileCheckpoint").write_text("1-0")
    assert safe_end(store) == confirmed


def test_a_new_store_has_no_queues_and_no_messages(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    assert safe_end(store_at(tmp_path)) == 0


def test_without_queues_nothing_vouches_for_a_log(tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.append(dispatch=False)
    store = store_at(tmp_path)
    with pytest.raises(UnreadableStore, match=r"has no consume queues.*endAt=scan"):
        safe_end(store)
    assert end_of_log(store, "scan") == made.offset
    assert end_of_log(store, 50) == 50
    assert end_of_log(store, 1 << 40) == made.segment_size


def test_a_scan_ends_at_the_first_bytes_that_are_no_record(made: MadeStore) -> None:
    end = made.offset
    made.append(body=b"torn" * 20, dispatch=False)
    made.write(end + 84, b"\x00\x00\xff")
    made.append(body=b"behind it", dispatch=False)
    assert end_of_log(store_at(made.root), "scan") == end


def test_a_scan_takes_a_full_segment_to_its_end(tmp_path: Path) -> None:
    made = MadeStore(tmp_path, segment_size=4096)
    made.fill(5)
    made.write(made.offset, encode_blank(4096 - made.offset))
    assert end_of_log(store_at(tmp_path), "scan") == 4096


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(made: MadeStore) -> Iterator[Path]:
    """The store while another process holds its lock, as a broker does."""
    path = made.root / "lock"
    path.touch()
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield made.root
        process.communicate()


def test_a_scan_of_a_store_that_a_broker_serves_is_refused(held: Path) -> None:
    store = store_at(held)
    assert store.is_locked()
    with pytest.raises(UnreadableStore, match="a broker serves"):
        end_of_log(store, "scan")
    assert safe_end(store) > 0


def test_a_dledger_is_bounded_by_what_it_committed(tmp_path: Path) -> None:
    member = tmp_path / "dledger-n0"
    (member / "data").mkdir(parents=True)
    (member / "index").mkdir()
    log, index, ends = b"", b"", []
    for number in range(6):
        made = entry(len(log), number, queue_offset=number)
        index += struct.pack(">iqiqq", 1, len(log), len(made), number, 3)
        log += made
        ends.append(len(log))
    (member / "data" / f"{0:020d}").write_bytes(log.ljust(8192, b"\0"))
    (member / "index" / f"{0:020d}").write_bytes(index)
    (member / "checkpoint").write_text("endIndex=5\ncommittedIndex=3\n")
    assert safe_end(store_at(tmp_path)) == ends[3]
    assert safe_end(store_at(member)) == ends[3]
    # An entry that was dispatched was committed, whatever a checkpoint of some seconds ago says.
    found = MadeStore(tmp_path, segment_size=8192)
    size = len(record(0, queue_offset=4))
    found.write_entry("orders", 3, 4, ends[3] + 48, size)
    assert safe_end(store_at(tmp_path)) == ends[4]


def test_several_members_under_one_root_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("dledger-n0", "dledger-n1"):
        (tmp_path / name / "data").mkdir(parents=True)
    with pytest.raises(UnreadableStore, match=r"several members \(dledger-n0, dledger-n1\)|members"):
        open_stores(str(tmp_path))


def test_paths_that_are_no_store_are_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableStore, match="is no directory"):
        open_stores(str(tmp_path / "nowhere"))
    with pytest.raises(UnreadableStore, match="holds no log"):
        open_stores(str(tmp_path))
    with pytest.raises(UnreadableStore, match="no local directory"):
        open_stores("s3://bucket/store")
    for name in "ab":
        MadeStore(tmp_path / name).append()
    with pytest.raises(UnreadableStore, match="hold the same part of the log"):
        open_stores(f"{tmp_path / 'a'},{tmp_path / 'b'}")
    with pytest.raises(UnreadableStore, match="names some brokers and not others"):
        open_stores(f"broker-a={tmp_path / 'a'},{tmp_path / 'b'}")
    stores = open_stores(f"broker-a={tmp_path / 'a'},broker-b=file://{tmp_path / 'b'}")
    assert [store.key for store in stores] == ["broker-a", "broker-b"]


def test_a_log_on_several_disks_is_one_log(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "one", segment_size=4096)
    made.fill(40)
    second = tmp_path / "two" / "commitlog"
    second.mkdir(parents=True)
    for segment in sorted((made.root / "commitlog").iterdir())[1::2]:
        segment.rename(second / segment.name)
    (store,) = open_stores(f"{tmp_path / 'one'},{tmp_path / 'two'}")
    bases = [segment.base_offset for segment in store.segments]
    assert bases == sorted(bases)
    assert safe_end(store) == made.offset
