"""A small store on disk for tools that look at it, verify it and mend it; and damage to its files."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from ropewalk.format.index import Geometry
from ropewalk.format.properties import tags_code
from ropewalk.format.record import Record
from store.config import StoreConfig
from store.io.disk import Disk, DiskFull
from store.message_store import MessageStore
from store.offline.diverged import About, cut_store
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Finding
from store.offline.layout import Layout, guess_layout
from store.offline.reader import find_log_files, read_log
from store.offline.verify import Verification
from tests.store.worlds import HOST, QUEUE_FILE_SIZE, put, settle
from tests.support.clocks import Clock

SEGMENT_SIZE = 4096


GEOMETRY = Geometry(50, 200)


RECORDS = 60


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        root=root, log_directory=root / "commitlog", store_host=HOST, segment_size=SEGMENT_SIZE,
        queue_file_size=QUEUE_FILE_SIZE, checksum_block=512, index=GEOMETRY, index_in_process=False,
    )  # fmt: skip


def fill(root: Path, records: int = RECORDS) -> None:
    """A store of three queues with tags, stopped in good order."""
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    for number in range(records):
        body = f"message {number} ".encode() * 10
        put(store, [body], topic="T" if number % 3 else "U", queue_id=number % 2, tags=f"t{number % 4}")
    settle(store)
    store.close()


def fill_ledger(root: Path, records: int = RECORDS, *, committed: int | None = None) -> None:
    """The same as entries of a DLedger member, `n0`, which leads alone; all committed, or so many entries."""
    wanted = replace(
        config(root), log_directory=root / "dledger-n0" / "data", ledger=root / "dledger-n0", sync_flush=True
    )
    store = MessageStore(wanted, Disk(), Clock(), lambda: None)
    store.open()
    log, replica = store.entry_log, store.replica
    assert log is not None and replica is not None
    log.save(1, "n0", lambda: None)
    points: list[tuple[int, int, int]] = []
    while not replica.lead(1, 0):
        pass
    for number in range(records):
        body = f"message {number} ".encode() * 10
        stored = 0
        while not stored:  # the next segment may still be being made
            store.begin_turn()
            queue = store.queue("T" if number % 3 else "U", number % 2)
            tags = f"t{number % 4}"
            message = queue, body, f"TAGS\x01{tags}\x02".encode(), 0, 0, store.now, 0, 0, tags_code(tags)
            with contextlib.suppress(DiskFull):
                stored = len(store.put([message], HOST))
            replica.take_appended(1 << 20)
            store.tick()
            store.run_completions()
        points.append(log.end)
    store.flush_now()
    through = points[-1 if committed is None else committed - 1]
    log.committed(*through)
    replica.show_through(*through)
    store.close()


def look(root: Path, geometry: Geometry | None = None) -> Verification:
    disk = DryRunDisk()
    # Without the geometry a damaged first item would leave nobody to tell how many slots there are.
    log = next(root.glob("dledger-*/data"), root / "commitlog")
    layout = guess_layout(disk, Layout(root, log, index=geometry))
    verification = Verification(layout, disk)
    verification.run()
    assert not disk.changes
    return verification


def damages(root: Path) -> list[Finding]:
    return [finding for finding in look(root, GEOMETRY).findings if finding.damage]


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def whole_log(directory: Path) -> list[Record]:
    found = list(read_log(find_log_files(directory)))
    assert all(isinstance(each, Record) for each in found), found
    return [each for each in found if isinstance(each, Record)]


def about(begin: int, end: int) -> About:
    return About("test", begin, end, 1_700_000_000_123, "m:10911", 4)


def cut(root: Path, begin: int, end: int, disk: Disk | None = None) -> Path:
    return cut_store(root, root / "commitlog", SEGMENT_SIZE, about(begin, end), disk or Disk())


def end_of(log: list[Record]) -> int:
    return log[-1].offset + log[-1].size


def reopened(root: Path) -> MessageStore:
    store = MessageStore(config(root), Disk(), Clock(), lambda: None)
    store.open()
    return store
