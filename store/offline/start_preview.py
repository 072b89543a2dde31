"""A preview of a store's start, which changes nothing; and the decision that a refused start leaves to a person.

The preview is the shipped recovery itself, on a disk that changes nothing (`trial`). There is one decision that
recovery leaves to a person: under SYNC_FLUSH a place that cannot be read, behind everything that is known to be
durable, with whole records behind it. Either these records were acknowledged and the place in front of them was
damaged later, or the pages of an unacknowledged tail reached the disk in another order. To cut is right in the second
case, and in the first it costs messages; whoever has a replica or a backup compares first. What is cut is always
copied aside.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from store.io.disk import Disk
from store.log.commitlog import CommitLog, StoreDamaged
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
from store.offline.due_times import observed_levels
from store.offline.layout import Layout
from store.recovery.record_scan import ScannedRecord, scan_record
from store.recovery.scan import next_valid

CHECK_AT_START = 16 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a start, or of its preview."""

    refusal: str | None
    """Why it is refused; nothing is changed then."""
    end: int = 0
    """Where the log ends after it."""
    scanned_from: int = 0
    durable: int = 0
    records: int = 0
    findings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    records_cut: int = 0
    """Whole records behind the new end, which the cut takes out of the log."""


def try_start(layout: Layout, *, sync_flush: bool) -> Outcome:
    """Preview a start under this flush rule. Blocks; raises `StoreLocked`."""
    disk = DryRunDisk()
    try:
        outcome = _recover(layout, disk, sync_flush=sync_flush)
        behind = _records_behind(layout, outcome.end) if outcome.refusal is None else 0
    finally:
        disk.close()
    return Outcome(
        outcome.refusal, outcome.end, outcome.scanned_from, outcome.durable, outcome.records,
        outcome.findings, tuple(disk.changes), behind,
    )  # fmt: skip


def recover_store(layout: Layout, *, cut: bool) -> Outcome:
    """Recover the store as a start would, under its lock. `cut` is the person's decision. Blocks."""
    disk = Disk()
    try:
        return _recover(layout, disk, sync_flush=not cut)
    finally:
        disk.close()


def _recover(layout: Layout, disk: Disk, *, sync_flush: bool) -> Outcome:
    if layout.delay_levels is None:
        layout = replace(layout, observed_levels=observed_levels(DryRunDisk(), layout))
    config = replace(layout.config(sync_flush=sync_flush), check_at_start=CHECK_AT_START)
    store = MessageStore(config, disk, lambda: int(time.time() * 1000), lambda: None)
    try:
        found = store.recover()
    except StoreDamaged as exc:
        return Outcome(str(exc))
    end = store.log.end_offset
    store.release()
    return Outcome(None, end, found.scanned_from, found.durable, found.records, found.findings)


def _records_behind(layout: Layout, end: int) -> int:
    """How many whole records stand behind a log offset."""
    disk = DryRunDisk()
    log = CommitLog(layout.log_directory, layout.segment_size, disk)
    count = 0
    try:
        log.load()
        offset = end
        while (found := next_valid(log, offset)) is not None:
            seen: object = found
            offset = found.offset
            while isinstance(seen, ScannedRecord):
                count += 1
                offset += seen.size
                segment = log.find(offset)
                seen = scan_record(segment, offset - segment.base_offset) if segment is not None else None
    finally:
        log.close(keep_spare=True)
        disk.close()
    return count
