"""Opening: bring log and queue files to what is true, whatever ended the process before.

The order is the safety. First everything is looked at, and nothing changed: the queues' lengths are read from their
files, bound and checkpoint say from where the log has to be read again, checksums are held against its end. Then one
walk over the log from there adds the entries that the files lack and finds where the log ends. Only when the verdict
about that end is known are files changed, and claims before what they claim: the checkpoint is lowered, then the
bound, then queue files are cut, and dead bytes behind the end last. A start that refuses has touched nothing; one
that a crash cuts short is repeated by the next.

    bound clean, or of this boot    walk from where it says that queue entries end
    else, with a checkpoint         walk from RocketMQ's place for it
    queue files lacking or short    walk from the first message on

Whatever gaps show in a queue (`QueueGap`) send the walk back to the beginning once; a gap in the log itself stops
the start. Left to others: what single sightings in the log mean and what is cut (`recovery`), the second look at the
end (`recheck`), and what happens to the files while the store is open (`write_back`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropewalk.format.checkpoint import CHECKPOINT_SIZE
from store.integrity.checksums import Checksums
from store.io.disk import Disk
from store.log.checkpoint import decode_checkpoint
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.durable_bound import Bound, decode_bound
from store.log.remedy import bytes_from_a_copy
from store.queues.consume_queue import ConsumeQueue
from store.queues.deleted_topics import DeletedTopics
from store.queues.queue_table import QueueTable
from store.recovery import scan as recovery
from store.recovery.delay_levels import DelayLevels
from store.recovery.recheck import recheck
from store.recovery.record_runs import KnownQueues, dispatch_runs, learn_queue
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import QueueGap, Recovered, Verdict


@dataclass(slots=True)
class Opening:
    """A start of a store. The fields up to `check_at_start` are what it works on, with the lock held."""

    root: Path
    log: CommitLog
    table: QueueTable
    mark_dirty: Callable[[ConsumeQueue], None]
    deleted: DeletedTopics
    checksums: Checksums | None
    disk: Disk
    boot: bytes
    delay_levels: DelayLevels
    sync_flush: bool
    check_at_start: int
    """Bytes of the log's end to be checked, records and queue entries alike."""
    inherited: bool = field(default=True, init=False)
    """Afterwards: whether queue files of an earlier process may be in the page cache only."""
    index_checkpoint_ms: int = field(default=0, init=False)
    """Afterwards: what the checkpoint says about the key index."""
    _too_much_claimed: Bound | None = field(default=None, init=False)
    """The bound to write instead, if the end of the log was not as the bound file says."""

    def run(self) -> Recovered:
        """Do it all. Blocks. Raises `StoreDamaged`, or OSError of a disk without room."""
        self._refuse_what_is_not_built()
        self.deleted.load()
        self.log.load()
        root = self.root
        bound = decode_bound(self.disk.read_file(root / "ropewalk" / "bound"))
        data = self.disk.read_file(root / "checkpoint")
        checkpoint = decode_checkpoint(data)
        self.index_checkpoint_ms = checkpoint.index_msg_timestamp
        whole = self._load_whole_queues(bound)
        flushed_ms = checkpoint.physic_msg_timestamp
        if not self.log.segments:
            if bound is not None and bound.flushed > 0:
                raise recovery.refuse(self.log, 0, bound.flushed)
            self._refuse_queues_of_no_log()
            for queue in self.table:
                queue.truncate(0)
                queue.clear_files(0)
            return Recovered(0, 0)
        start = self.log.min_offset
        if whole:
            start = recovery.start_of_walk(self.log, bound, self.boot, checkpoint.min_timestamp)
        durable = max(self._sealed_before_last(), bound.flushed if bound is not None else 0)
        if self.checksums is not None:
            durable = max(durable, self._check_end(bound))
            claimed = start
            start, self.log.trusted_offset = recheck(
                self.log,
                start,
                self.check_at_start,
                self.table.find,
                self.delay_levels.delay_of,
                self.deleted.is_dead,
            )
            if start < claimed and bound is not None:
                self._too_much_claimed = replace(bound, queues=start, entries=0, clean=False)
        known = bound is not None and (bound.clean or bound.boot == self.boot) and start == bound.queues
        try:
            return self._walk(start, durable, flushed_ms, bound.entries if bound is not None and known else 0)
        except QueueGap:
            self._load_queues()  # forgets what the first walk put in
            return self._walk(self.log.min_offset, durable, flushed_ms)

    def _load_whole_queues(self, bound: Bound | None) -> bool:
        """Load the queues; return whether their files have as many entries as the process before had made."""
        whole = self._load_queues()
        clean = bound is not None and bound.clean
        self.inherited = not clean and any(queue.next_offset for queue in self.table)
        if bound is not None and (bound.clean or bound.boot == self.boot):
            whole &= sum(queue.next_offset - queue.first for queue in self.table) >= bound.entries
        else:
            whole &= any(queue.next_offset for queue in self.table)
        return whole

    def run_shown(self, recover: Callable[[], int], damaged: Callable[[Checksums], int | None]) -> Recovered:
        """Do it for a log of entries, which is indexed through `shown` alone. Blocks; raises as `run`.

        `recover` loads the log and brings it to what is true; it returns `shown`, the log offset through which entries
        are known to be committed. What lies behind may still be replaced. `damaged` tells the log offset of an entry
        before that which is not whole, where there are no checksums.
        """
        self._refuse_what_is_not_built()
        self.deleted.load()
        root = self.root
        bound = decode_bound(self.disk.read_file(root / "ropewalk" / "bound"))
        checkpoint = decode_checkpoint(self.disk.read_file(root / "checkpoint"))
        self.index_checkpoint_ms = checkpoint.index_msg_timestamp
        shown = recover()
        whole = self._load_whole_queues(bound)
        if not self.log.segments:
            self._refuse_queues_of_no_log()
            return Recovered(0, 0)
        if self.checksums is not None:
            covered = self._check_end(bound)
            if covered > self.log.end_offset:
                raise recovery.refuse(self.log, self.log.end_offset, covered)
            if (offset := damaged(self.checksums)) is not None:
                raise recovery.refuse(self.log, offset, shown)
        start = self.log.min_offset
        if whole:
            start = min(recovery.start_of_walk(self.log, bound, self.boot, checkpoint.min_timestamp), shown)
        try:
            return self._walk_shown(start, shown)
        except QueueGap:
            self._load_queues()
            return self._walk_shown(self.log.min_offset, shown)

    def _walk_shown(self, start: int, shown: int) -> Recovered:
        """Read the log from `start` to `shown`, and have queues name what stands there and nothing behind it."""
        found = Recovered(end=self.log.end_offset, scanned_from=start, durable=shown)
        kept, newest_ms = self._keep_before(start, 0)
        found.last_store_timestamp = newest_ms
        known, first_ms, offset = KnownQueues(), 0, start
        while offset < shown:
            segment = self.log.find(offset)
            assert segment is not None, (offset, shown)
            base = segment.base_offset
            limit = min(segment.size, shown - base)
            after, records, latest_ms = dispatch_runs(segment, offset - base, limit, known)
            if records:
                found.records += records
                found.last_store_timestamp = max(found.last_store_timestamp, latest_ms)
                offset = base + after
                continue
            seen = scan_record(segment, offset - base, self.delay_levels.delay_of)
            if seen is NoRecord.FILLER:
                offset = segment.end_offset
                continue
            if not isinstance(seen, ScannedRecord):
                raise recovery.refuse(self.log, offset, shown)
            first_ms = first_ms or seen.store_timestamp
            found.records += 1
            found.last_store_timestamp = max(found.last_store_timestamp, seen.store_timestamp)
            if seen.indexed:
                self._index_again(seen, start, kept)
                queue = self.table.find(seen.topic, seen.queue_id)
                if queue is not None and not self.deleted.knows(seen.topic):
                    self.mark_dirty(queue)
                    learn_queue(seen, queue, known)
            offset = seen.end
        if found.records:
            self._lower_checkpoint(first_ms)
        for queue in self.table:
            queue.clear_files(kept.get(queue, 0))
        return found

    def _keep_before(self, start: int, entries_min: int) -> tuple[dict[ConsumeQueue, int], int]:
        """Keep the entries of records before `start`; return how many of each queue, and when the last was stored."""
        kept: dict[ConsumeQueue, int] = {}
        for queue in self.table:
            if start == 0:
                # The log tells everything from the first message on; what a queue file adds to that is not true.
                kept[queue] = 0
                queue.forget()
                continue
            kept[queue] = recovery.confirm_queue(queue, self.log, start)
            queue.truncate(kept[queue])
            queue.raise_min(self.log.min_offset)
        if start and sum(kept[queue] - queue.first for queue in self.table) < entries_min:
            raise QueueGap  # a damaged entry can look like the end of its file
        newest = max(self.table, key=_end_of_newest, default=None)
        return kept, recovery.last_store_time(newest, self.log) if newest is not None else 0

    def _refuse_what_is_not_built(self) -> None:
        root = self.root
        found = [
            root / n for n in ("consumequeue_ext", "batchconsumequeue") if self.disk.directories(root / n)
        ]
        topics = self.disk.directories(root / "consumequeue")
        found += [root / "consumequeue" / topic for topic in topics if topic.startswith("%LMQ%")]
        if found:
            raise StoreDamaged(
                f"{found[0]} holds queues of a kind that Ropewalk does not read: nothing was changed"
            )

    def _refuse_queues_of_no_log(self) -> None:
        """Queue files alone know that there were messages, if whatever else would tell is gone too."""
        entries = sum(queue.next_offset - queue.min_offset for queue in self.table)
        # A slave that was killed while it set its whole log aside has queue files left, and its log is kept there.
        if entries and not self.disk.directories(self.root / "ropewalk" / "diverged"):
            raise StoreDamaged(
                f"there is no file in {self.log.directory}, but the queue files in {self.root / 'consumequeue'} name "
                f"{entries} messages (from log offset 0 on). Nothing was changed. Is a disk not mounted? Put the "
                f"files back, or remove those queue files to start without these messages. "
                f"{bytes_from_a_copy(self.log.placing, self.root)}"
            )

    def _load_queues(self) -> bool:
        """Read every queue's length from its files. False if one of them has to be built again from the log."""
        base = self.root / "consumequeue"
        whole = True
        for topic in self.disk.directories(base):
            for name in self.disk.directories(base / topic):
                if name.isdigit():
                    queue = self.table.queue(topic, int(name))
                    whole &= queue.load()
                    if (
                        self.deleted.knows(topic)
                        and queue.min_offset < queue.next_offset
                        and self.deleted.is_dead(topic, queue.read(queue.min_offset)[0])
                    ):
                        queue.forget()  # the crash came between the deletion and the removal of this file
        return whole

    def _check_end(self, bound: Bound | None) -> int:
        """Look for damage where there are checksums; return up to where they vouch for a flush."""
        assert self.checksums is not None
        self.checksums.load()
        self.checksums.check_recent(self.check_at_start)
        if self.checksums.orphans:
            text = (
                f"the commit log begins at offset {self.log.min_offset} in {self.log.directory}, but there are "
                f"checksums of files before that, from {self.checksums.orphans[0]} on"
            )
            if bound is not None and bound.clean and self._ends_at(bound.end):
                raise StoreDamaged(
                    f"{text}: somebody took those files away (log offset {int(self.checksums.orphans[0].name)}). "
                    f"Nothing was changed. Put them back; or remove the checksum files to start without these "
                    f"messages. `ropewalk store info {self.root}` tells what is there"
                )
            self.checksums.findings.append(f"{text}: another program's retention, it seems")
        return self.checksums.covered_end

    def _ends_at(self, offset: int) -> bool:
        """Whether nobody has written to the log since it ended at this offset."""
        segment = self.log.find(offset)
        if segment is None:
            return bool(self.log.segments) and self.log.segments[-1].end_offset == offset
        return scan_record(segment, offset - segment.base_offset) is NoRecord.BLANK

    def _sealed_before_last(self) -> int:
        """Up to where sealed segments are durable: all but the one sealed last, whose flush may not have been done.

        `reserve` sees to it that no segment is begun before the one before the last is flushed.
        """
        used = [
            segment for segment in self.log.segments if isinstance(scan_record(segment, 0), ScannedRecord)
        ]
        return used[-2].base_offset if len(used) > 1 else self.log.min_offset

    def _walk(self, start: int, durable: int, flushed_ms: int, entries_min: int = 0) -> Recovered:
        """Read the log from `start` on, add to the queues what stands there, and end log and queues at its end.

        `entries_min` is how many entries of records before `start` there are at least; fewer are a `QueueGap`. No
        file is changed before the verdict is known.
        """
        found = Recovered(end=start, scanned_from=start, durable=durable)
        kept, found.last_store_timestamp = self._keep_before(start, entries_min)
        first_ms = 0
        known_queues = KnownQueues()

        def dispatch_run(offset: int) -> int:
            segment = self.log.find(offset)
            if segment is None or not known_queues:
                return offset
            end, records, latest_ms = dispatch_runs(
                segment, offset - segment.base_offset, segment.size, known_queues
            )
            found.records += records
            found.last_store_timestamp = max(found.last_store_timestamp, latest_ms)
            return segment.base_offset + end

        delay_of = self.delay_levels.delay_of
        for seen in recovery.walk(
            self.log, start, durable, self.sync_flush, flushed_ms, delay_of, dispatch_run
        ):
            if isinstance(seen, ScannedRecord):
                if not found.records:
                    first_ms = seen.store_timestamp
                found.records += 1
                found.last_store_timestamp = max(found.last_store_timestamp, seen.store_timestamp)
                if seen.indexed:
                    self._index_again(seen, start, kept)
                    known = self.table.find(seen.topic, seen.queue_id)
                    if known is not None and not self.deleted.knows(seen.topic):
                        self.mark_dirty(known)  # once, and not with each
                        learn_queue(seen, known, known_queues)
                continue
            verdict, found.end = seen
            if verdict is Verdict.REFUSE:
                raise recovery.refuse(self.log, found.end, durable)
        if found.records:
            self._lower_checkpoint(first_ms)
        if self._too_much_claimed is not None:
            self.disk.replace_file(self.root / "ropewalk" / "bound", self._too_much_claimed.encode())
        for queue in self.table:
            queue.clear_files(kept.get(queue, 0))
        found.findings = tuple(recovery.cut(self.log, found.end, self.root / "ropewalk" / "tails", self.disk))
        assert self.log.end_offset == found.end, (self.log.end_offset, found.end)
        return found

    def _index_again(self, record: ScannedRecord, start: int, kept: dict[ConsumeQueue, int]) -> None:
        if self.deleted.is_dead(record.topic, record.offset):
            return
        queue = self.table.queue(record.topic, record.queue_id)
        if record.queue_offset < queue.min_offset == queue.next_offset:
            # A power loss took the queue's first files and left later ones: the log knows where it begins.
            if start > self.log.min_offset:
                raise QueueGap
            kept[queue] = 0
            queue.restart_at(record.queue_offset)
        if record.queue_offset < queue.next_offset:
            # The topic was deleted and created again, here or at the broker whose records these are.
            if record.queue_offset and start > self.log.min_offset:
                raise QueueGap
            kept[queue] = 0
            queue.restart_at(record.queue_offset)
        if record.queue_offset > queue.next_offset:
            if start > self.log.min_offset:
                raise QueueGap
            if queue.next_offset > kept.get(queue, 0):
                raise StoreDamaged(
                    f"message {queue.next_offset} of queue {queue.queue_id} of topic {queue.topic} is not in the log "
                    f"before message {record.queue_offset}, which stands at log offset {record.offset} of "
                    f"{self.log.directory}. Nothing was changed. `ropewalk store verify {self.root}` lists what "
                    f"is missing; restore the files from a replica or a backup"
                )
            kept[queue] = 0  # what its files tell is older than the log
            queue.restart_at(record.queue_offset)
        queue.add(record.offset, record.size, record.tags_code)
        queue.make_readable()
        self.mark_dirty(queue)

    def _lower_checkpoint(self, stored_before_ms: int) -> None:
        """Take back what an older checkpoint claims about entries that are about to be written anew, durably.

        A second crash would else trust queue files that the first one had made to be rebuilt. Blocks.
        """
        path = self.root / "checkpoint"
        point = decode_checkpoint(self.disk.read_file(path))
        if min(point.physic_msg_timestamp, point.logics_msg_timestamp) > stored_before_ms:
            point.physic_msg_timestamp = point.logics_msg_timestamp = stored_before_ms
            file = self.disk.create_paged(path, CHECKPOINT_SIZE)
            file.write_at(0, point.encode())
            file.sync()


def _end_of_newest(queue: ConsumeQueue) -> int:
    return queue.max_physical
