"""Verification of a store: every byte that somebody relies on is looked at, and nothing is touched.

The log is read from its first byte to its last (`verify_log`); beside it run the queue files, whose entries have to
name the records that pass by (`verify_queues`), and the index (`verify_index`). Then come the small files, pending
timers (`store.timer.damage`), and the key-value store's regions (`verify_regions`). What is wrong becomes a `Finding`:
damage, which names file, place and remedy; or a note, for what is odd and harmless. A store that was killed has queue
entries missing at its end and may have a torn record there: the next start sees to that, so they are notes.
One cause is one finding: what a lost stretch of the log, or a file of another size, brings with it is not said again.

Nothing is judged by what the store does not hold and nobody gave: a table of delays, a clock, the shape of an index.

Works on RocketMQ's directories as on ours. A directory in use cannot be judged, as its end moves: `StoreLocked`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from ropewalk.format.sidecar import Sidecar, block_sum
from store.log.commitlog import CommitLog
from store.log.durable_bound import Bound, boot_id, decode_bound
from store.log.limits import NO_LIMIT
from store.log.placing import ENTRY
from store.log.remedy import MEND
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Counts, Finding, Findings, Lost
from store.offline.layout import Layout
from store.offline.verify_entries import EntryCheck
from store.offline.verify_index import IndexCheck
from store.offline.verify_log import LogCheck
from store.offline.verify_queues import Queue, QueueCheck
from store.offline.verify_regions import check_regions
from store.queues.deleted_topics import DeletedTopics
from store.recovery.delay_levels import DEFAULT_LEVELS
from store.recovery.record_scan import ScannedRecord, scan_record
from store.timer.damage import find_damage

_DAY_MS = 86_400_000


def _some_delay(text: str) -> int:
    """Return a delay, ms, for what asks for one of a table that is not known, and 0 for what does not."""
    return 1 if DEFAULT_LEVELS.delay_of(text) else 0


class Verification:
    """A verification of one store. `run` finds; then everything stands in `findings`, `lost` and `counts`."""

    def __init__(
        self,
        layout: Layout,
        disk: DryRunDisk,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self.layout = layout
        self.entries = (
            EntryCheck(layout.log_directory.parent, layout.root / "ropewalk" / "dledger")
            if layout.placing is ENTRY
            else None
        )
        """The check of entries and of the small files beside them; None for a plain log."""
        self.report = Findings(layout.root, members_have=MEND if self.entries is not None else None)
        """Damage, notes, lost stretches and counts, as far as `run` has come."""
        self.log = CommitLog(layout.log_directory, layout.segment_size, disk, layout.placing)
        self.queues: dict[tuple[str, int], Queue] = {}
        """Every queue that has files or records."""
        self.orphans: list[Path] = []
        """Checksums of segments that were taken away."""
        self.bound: Bound | None = None
        self.checkpoint = Checkpoint()
        self._disk = disk
        levels = layout.delay_levels
        delay_of = levels.delay_of if levels is not None else _some_delay
        self._check = LogCheck(self.report, self.log, disk, layout.root, self.entries, progress, delay_of)
        self._deleted = DeletedTopics(layout.root / "ropewalk" / "deleted", disk)
        self._abnormal = False
        self._entries_due = 0
        """Records below this log offset must have their queue entry by now."""

    @property
    def findings(self) -> list[Finding]:
        """The damage and the notes."""
        return self.report.findings

    @property
    def lost(self) -> list[Lost]:
        """The lost stretches of the log."""
        return self.report.lost

    @property
    def counts(self) -> Counts:
        """The extent of the verification."""
        return self.report.counts

    @property
    def end(self) -> int:
        """The offset at which the log ends."""
        return self._check.end

    # -- the whole of it -----------------------------------------------------------------------------

    def run(self, *, locked: bool = False) -> None:
        """Look at everything. Blocks; raises OSError, and `StoreLocked` while somebody else has the store.

        `locked` says that the caller holds the lock.
        """
        root = self.layout.root
        if not locked:
            self._disk.unlock(self._disk.lock(root / "lock"))
        try:
            self._deleted.load()
            self._read_small_files()
            if self.entries is not None:
                self.entries.read_small_files(self.report, self._disk)
            self._check.open()
            self._set_entries_due()
            queues = QueueCheck(self.report, self.layout, self.log, self._deleted, self._disk)
            self.queues = queues.queues
            queues.open()
            index = IndexCheck(
                self.report,
                self.layout,
                self.log,
                self._disk,
                self.checkpoint.index_msg_timestamp,
                abnormal=self._abnormal,
            )
            for seen in self._check.records(self._promised()):
                queues.check(seen, self._due())
                index.check(seen)
            index.finish(self.end)
            queues.finish(self.end)
            self._note_lost_messages()
            self._check_bound()
            if self.entries is not None:
                self.entries.finish(self.report)
            self._check_sidecars()
            self._check_timers()
            check_regions(self.report, self.layout.root, self._disk)
        finally:
            self.log.close(keep_spare=True)
            self._disk.close()

    def _read_small_files(self) -> None:
        root = self.layout.root
        self._abnormal = self._disk.exists(root / "abort")
        data = self._disk.read_file(root / "checkpoint")
        if data is not None and len(data) < CHECKPOINT_SIZE:
            self.report.damage(
                root / "checkpoint",
                f"byte {len(data)}",
                f"{len(data)} bytes, not {CHECKPOINT_SIZE}",
                "remove it: the next start reads more of the log instead",
            )
        elif data is not None:
            self.checkpoint = Checkpoint.decode(data)
        raw = self._disk.read_file(root / "ropewalk" / "bound")
        self.bound = decode_bound(raw)
        if raw is not None and self.bound is None:
            self.report.note(
                root / "ropewalk" / "bound",
                "",
                "torn, or of another version; it counts as none",
                "the next start reads more of the log instead",
            )
        if self._disk.exists(root / "abort.bak"):
            self.report.note(root / "abort.bak", "", "a leftover of RocketMQ's, which nobody reads")

    # -- entries of queues --------------------------------------------------------------------------

    def _promised(self) -> int:
        """Return the log offset below which all was promised to be durable, as far as our bound tells."""
        if (
            self.entries is not None or self.bound is None
        ):  # what is not committed may be replaced by a leader
            return 0
        return self.bound.flushed

    def _due(self) -> int:
        """Return the log offset before which the last record read must have its queue entry, if it is committed."""
        if self.entries is not None and not self.entries.is_committed:
            return 0
        return self._entries_due

    def _set_entries_due(self) -> None:
        """Find the log offset before which every record must have its queue entry."""
        bound, min_offset = self.bound, self.log.min_offset
        if bound is not None and (bound.clean or bound.boot == boot_id(self._disk)):
            self._entries_due = bound.queues
        elif bound is None and not self._abnormal:
            self._entries_due = NO_LIMIT  # RocketMQ's clean exit
        else:
            self._entries_due = min_offset
            for segment in self.log.segments:
                first = scan_record(segment, 0)
                if (
                    isinstance(first, ScannedRecord)
                    and first.store_timestamp <= self.checkpoint.min_timestamp
                ):
                    self._entries_due = segment.base_offset

    def _note_lost_messages(self) -> None:
        if self.report.messages_lost:
            self.report.note(
                self.log.directory,
                "",
                f"{self.report.messages_lost} messages or more stood in the damaged places",
            )

    # -- what the small files claim ------------------------------------------------------------------

    def _check_bound(self) -> None:
        root, bound, point = self.layout.root, self.bound, self.checkpoint
        times = (point.physic_msg_timestamp, point.logics_msg_timestamp, point.index_msg_timestamp)
        advice = "remove it: the next start reads more of the log instead"
        text = f"times {times} are not of this log, whose last is {self._check.last_store_ms}"
        if min(times) < 0:
            self.report.damage(root / "checkpoint", "byte 0", text, advice)
        elif self.report.counts.records and max(times) > self._check.last_store_ms + _DAY_MS:
            self.report.note(
                root / "checkpoint", "byte 0", f"{text}: a clock that was set back, it seems", advice
            )
        if bound is not None and bound.clean and bound.end != self.end and bound.end < self.end:
            self.report.note(
                root / "ropewalk" / "bound",
                "",
                f"the log went on behind {bound.end}: another program wrote to it",
            )

    def _check_timers(self) -> None:
        found, self.report.counts.timers = find_damage(self.layout.root, self._disk)
        for damage in found:
            self.report.damage(*damage)

    def _check_orphan(self, path: Path) -> None:
        """Judge checksums of a segment that is not there."""
        name, sidecar = path.name, Sidecar.decode(self._disk.read_file(path))
        if sidecar is None or not name.isdigit():
            self.report.note(path, "", "torn, and of no segment: it counts as none")
            return
        base = int(name)
        if self.report.is_lost(base):
            return  # said already: the log lacks this segment
        bound = self.bound
        if base < self.log.min_offset and not (bound is not None and bound.clean and bound.end == self.end):
            self.report.note(
                path, f"log offset {base}", "of a segment that another program's retention removed, it seems"
            )
            return
        text = f"checksums of a segment that is gone: somebody took {self.log.directory / name} away"
        self.orphans.append(path)
        self.report.damage(path, f"log offset {base}", text, "put it back, or remove these checksums")

    def _check_sidecars(self) -> None:
        directory = self.layout.root / "ropewalk" / "checksums"
        by_name = {segment.file.path.name: segment for segment in self.log.segments}
        for name in self._disk.names(directory):
            path = directory / name
            segment = by_name.get(name)
            if segment is None:
                self._check_orphan(path)
                continue
            sidecar = Sidecar.decode(self._disk.read_file(path))
            if sidecar is None:
                self.report.note(path, "", "torn: it counts as none", "the scrubber makes it anew")
                continue
            for number, wanted in enumerate(sidecar.sums):
                start, stop = sidecar.block(number)
                self.report.counts.blocks += 1
                begin = segment.base_offset + start
                if any(lost.offset < begin + stop - start and begin < lost.end for lost in self.lost):
                    continue  # said already: no record can be read there
                if stop > segment.size or block_sum(segment.file.read_at(start, stop - start)) != wanted:
                    self.report.damage(
                        segment.file.path, f"byte {start} to {stop} (log offset {segment.base_offset + start})",
                        f"the bytes do not match their checksum in {path}", self.report.repair,
                    )  # fmt: skip
