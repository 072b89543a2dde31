"""The facade of the store: what a broker appends, reads and flushes, and the order in which promises are kept.

One owner, the loop, calls everything here. A turn of the loop appends any number of records and ends with
`publish()`, which moves the readable bound and hands work to the helper threads; `run_completions()` brings back
what they finished. Nothing in between waits.

    min_offset <= flushed_offset, readable_offset <= end_offset

*Append* makes bytes readable to the process, *flush* makes them survive power loss, *publish* lets consumers see
them. Under ASYNC_FLUSH a record is readable when its turn ends; under SYNC_FLUSH when its flush is done, so that no
consumer sees a message whose producer has not been answered.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ropewalk.errors import LocalProtocolError
from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from ropewalk.format.index import Geometry
from ropewalk.format.record import encode_record
from store import recovery
from store.bound import Bound, boot_id, decode_bound
from store.checksums import Checksums
from store.cleaner import Cleaner
from store.commitlog import CommitLog, StoreDamaged
from store.consume_queue import ConsumeQueue
from store.delay_levels import DEFAULT_LEVELS, DelayLevels
from store.deleted import DeletedTopics
from store.disk import Disk, DiskFull
from store.index import IndexPlace
from store.janitor import KeyIndex, ProcessIndex, WorkerIndex
from store.recheck import recheck
from store.recovery import QueueGap, Recovered, Sighted, Verdict
from store.retention import RetentionRules
from store.scrub import Scrubber
from store.segment import FILLER_HEADER_SIZE, Segment
from store.workers import Completions, Flusher, Helpers

_BOUND_INTERVAL_MS = 100
_CHECKPOINT_INTERVAL_MS = 10_000
_SPARE_WAIT_S = 5.0
_SPARE_INTERVAL_MS = 1000
_SYNC_SINGLY_MAX = 256  # files; beyond, one call for the whole file system is cheaper
_FIXED_SIZE = 91  # a V1 record with two IPv4 hosts and nothing else

Message: TypeAlias = tuple[ConsumeQueue, bytes, bytes, int, int, int, int, int, int]
"""One message to put: queue, body, properties, flag, sys flag, born time in ms, reconsume times, offset of the half
message it commits (or 0), tag code. A plain tuple, because a run of messages makes one for each."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes in bytes, times in ms. `store_host` is the encoded address that clients can reach."""

    root: Path
    log_directory: Path
    store_host: bytes
    segment_size: int = 1 << 30
    queue_file_size: int = 6_000_000
    sync_flush: bool = False
    flush_interval_ms: int = 500
    queue_flush_interval_ms: int = 1000
    warm_window: int = 256 << 20
    prefault_window: int = 64 << 20
    prefault_idle: int = 8 << 20
    delay_levels: DelayLevels = DEFAULT_LEVELS
    index: Geometry | None = None
    """The shape of the key index; None builds none."""
    index_in_process: bool = True
    """Whether a process of its own builds it, or a helper thread."""
    retention: RetentionRules | None = None
    """None keeps everything, however full the disk is."""
    checksum_block: int = 0
    """Bytes under one checksum of the log; 0 makes none and looks at none."""
    check_at_start: int = 0
    """How much of the log's end is checked before a start believes it, records and queue entries alike."""
    scrub_bytes_per_second: int = 0
    """What the scrubber may read; 0 is no scrubber."""


class MessageStore:
    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        helpers: Helpers | None = None,
    ) -> None:
        self.config = config
        self.log = CommitLog(config.log_directory, config.segment_size, disk)
        self.queues: dict[str, dict[int, ConsumeQueue]] = {}
        self.completions = Completions(wake)
        self.readable_offset = 0
        self.flushed_offset = 0
        self.now = now_ms()
        """Store time of this turn, ms; never goes back, so that records stay ordered by it."""
        self.woken: list[ConsumeQueue] = []
        """Queues with somebody in `held` that became longer; whoever answers them clears this."""
        self.full: str | None = None
        """Why appends are refused at the moment, or None."""
        self.recovered = Recovered(0, 0)
        self._now_ms = now_ms
        self._disk = disk
        self._helpers = helpers or Helpers()
        self._lock_fd = -1
        self._boot = boot_id(disk)
        self._deleted = DeletedTopics(config.root / "ropewalk" / "deleted", disk)
        self._unreadable: deque[tuple[int, ConsumeQueue]] = deque()
        self._dirty: list[ConsumeQueue] = []
        self._last_store_ms = 0
        self._next_flush_ms = self._next_queues_ms = self._next_bound_ms = self._next_checkpoint_ms = 0
        self._queues_written = 0
        self._queues_writing = False
        self._entries_written = 0
        self._unsynced: set[Path] = set()
        """Queue files and directories written since the last checkpoint; the writer thread's own."""
        self._inherited = True
        """Queue files of an earlier process may be in the page cache only; the writer thread's own."""
        self._noted = (0, 0)
        """A log end and the time of that moment, ms: what is stored from then on lies behind it."""
        self._ticked_ms = 0
        self._next_spare_ms = 0
        self._bound_written = Bound()
        self._spare_wanted = False
        self._prefaulting = False
        self._flusher: Flusher | None = None
        self.index: KeyIndex | None = None
        """The key index, while the store is open and has one."""
        self._cleaner: Cleaner | None = None
        self._checksums: Checksums | None = None
        if config.checksum_block:
            directory = config.root / "ropewalk" / "checksums"
            self._checksums = Checksums(directory, config.checksum_block, self.log, disk)
        self._scrubber: Scrubber | None = None
        self._too_much_claimed: Bound | None = None
        """What the bound file has to say instead, if the end of the log was not as it says."""
        self._index_checkpoint_ms = 0

    # -- open ----------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """The first half of `open`: take the lock, and bring log and queue files to what is true. Blocks.

        `release` undoes it, if the second half does not follow.
        """
        self._lock_fd = self._disk.lock(self.config.root / "lock")
        try:
            self._refuse_what_is_not_built()
            self._deleted.load()
            self.log.load()
            self.recovered = self._recover()
        except BaseException as exc:
            self.release()
            if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room to recover the store {self.config.root}: {exc}") from exc
            raise
        return self.recovered

    def release(self) -> None:
        """Let go of a store that was recovered and not opened: it stays as a crash at this moment would leave it."""
        self.log.close(keep_spare=True)
        self._disk.unlock(self._lock_fd)

    def open(self) -> Recovered:
        """Lock, recover, be ready. Blocks for as long as recovery takes.

        Raises `StoreLocked`, `StoreDamaged` or `DiskFull`; nothing has been changed then.
        """
        self.recover()
        end = self.log.end_offset
        self.flushed_offset = self.log.flushed_offset = min(self.recovered.durable, end)
        if self.config.sync_flush and self.flushed_offset < end:
            # What a kill left in the page cache is served from now on, so it has to be durable first.
            for file in self.log.unflushed(end):
                file.sync()
            self.flushed_offset = self.log.flushed_offset = end
        self.readable_offset = end
        self._queues_written = self.recovered.scanned_from
        self._entries_written = sum(queue.written - queue.first for queue in self._each_queue())
        self._last_store_ms = self.recovered.last_store_timestamp
        abnormal = self._disk.exists(self.config.root / "abort")
        self._disk.write_file(self.config.root / "abort", str(os.getpid()).encode())
        self._flusher = self._helpers.flusher(self.completions, self._note_flushed)
        self._writer = self._helpers.worker("ropewalk-writer", self.completions)
        self._janitor = self._helpers.worker("ropewalk-janitor", self.completions)
        self._open_index(abnormal)
        self._open_checksums(end)
        if self.config.retention is not None:
            self._cleaner = Cleaner(
                self.config.retention,
                self.log,
                self.queues,
                self.config.root / "consumequeue",
                self._disk,
                self._helpers.worker("ropewalk-cleaner", self.completions),
                self._now_ms,
                self._shorten_queue,
                self._checksums.directory if self._checksums is not None else None,
            )
        self.tick()
        return self.recovered

    def _open_checksums(self, end: int) -> None:
        if self._checksums is None:
            return
        self._checksums.begin(end)
        worker = self._helpers.worker("ropewalk-checksums", self.completions)
        self._checksums.start(worker)
        config = self.config
        if config.scrub_bytes_per_second > 0:
            self._scrubber = Scrubber(
                self.log, self._checksums, config.scrub_bytes_per_second, config.checksum_block, worker
            )

    def _open_index(self, abnormal: bool) -> None:
        if self.config.index is None:
            return
        root = self.config.root
        place = IndexPlace(
            root / "index",
            self.config.log_directory,
            self.config.segment_size,
            self.config.index,
            root / "ropewalk" / "index.lock",
        )
        if self.config.index_in_process:
            self.index = ProcessIndex(place, self._disk, self._now_ms, self.completions)
        else:
            worker = self._helpers.worker("ropewalk-index", self.completions)
            self.index = WorkerIndex(place, self._disk, self._now_ms, worker)
        self.index.start(
            self.log.end_offset, self.log.min_offset, self._index_checkpoint_ms, abnormal=abnormal
        )

    def _refuse_what_is_not_built(self) -> None:
        root = self.config.root
        found = [
            root / n for n in ("consumequeue_ext", "batchconsumequeue") if self._disk.directories(root / n)
        ]
        topics = self._disk.directories(root / "consumequeue")
        found += [root / "consumequeue" / topic for topic in topics if topic.startswith("%LMQ%")]
        if found:
            raise StoreDamaged(
                f"{found[0]} holds queues of a kind that Ropewalk does not read: nothing was changed"
            )

    def _load_queues(self) -> bool:
        """Read every queue's length from its files. False if one of them has to be built again from the log."""
        base = self.config.root / "consumequeue"
        whole = True
        for topic in self._disk.directories(base):
            for name in self._disk.directories(base / topic):
                if name.isdigit():
                    queue = self.queue(topic, int(name))
                    whole &= queue.load()
                    if queue.min_offset < queue.next_offset and self._deleted.is_dead(
                        topic, queue.read(queue.min_offset)[0]
                    ):
                        queue.forget()  # the crash came between the deletion and the removal of this file
        return whole

    def _recover(self) -> Recovered:
        root = self.config.root
        bound = decode_bound(self._disk.read_file(root / "ropewalk" / "bound"))
        data = self._disk.read_file(root / "checkpoint")
        checkpoint = _checkpoint_of(data)
        self._index_checkpoint_ms = checkpoint.index_msg_timestamp
        whole = self._load_queues()
        clean = bound is not None and bound.clean
        self._inherited = not clean and any(queue.next_offset for queue in self._each_queue())
        if bound is not None and (bound.clean or bound.boot == self._boot):
            whole &= sum(queue.next_offset - queue.first for queue in self._each_queue()) >= bound.entries
        else:
            whole &= any(queue.next_offset for queue in self._each_queue())
        flushed_ms = checkpoint.physic_msg_timestamp
        if not self.log.segments:
            if bound is not None and bound.flushed > 0:
                raise recovery.refuse(self.log, 0, bound.flushed)
            for queue in self._each_queue():
                queue.keep(0)
                queue.clear_files(0)
            return Recovered(0, 0)
        start = self.log.min_offset
        if whole:
            start = recovery.start_of_walk(self.log, bound, self._boot, checkpoint.min_timestamp)
        durable = max(self._sealed_before_last(), bound.flushed if bound is not None else 0)
        if self._checksums is not None:
            durable = max(durable, self._check_end(bound))
            claimed = start
            start, self.log.trusted_offset = recheck(
                self.log,
                start,
                self.config.check_at_start,
                self.find_queue,
                self.config.delay_levels.delay_of,
                self._deleted.is_dead,
            )
            if start < claimed and bound is not None:
                self._too_much_claimed = replace(bound, queues=start, entries=0, clean=False)
        known = bound is not None and (bound.clean or bound.boot == self._boot) and start == bound.queues
        try:
            return self._walk(start, durable, flushed_ms, bound.entries if bound is not None and known else 0)
        except QueueGap:
            self._load_queues()  # forgets what the first walk put in
            return self._walk(self.log.min_offset, durable, flushed_ms)

    def _check_end(self, bound: Bound | None) -> int:
        """Look for damage where there are checksums; return up to where they vouch for a flush."""
        assert self._checksums is not None
        self._checksums.load()
        self._checksums.check_recent(self.config.check_at_start)
        if self._checksums.orphans:
            text = (
                f"the commit log begins at offset {self.log.min_offset} in {self.log.directory}, but there are "
                f"checksums of files before that, from {self._checksums.orphans[0]} on"
            )
            if bound is not None and bound.clean and self._ends_at(bound.end):
                raise StoreDamaged(
                    f"{text}: somebody took those files away (log offset {int(self._checksums.orphans[0].name)}). "
                    f"Nothing was changed. Put them back; or remove the checksum files to start without these "
                    f"messages. `ropewalk store info {self.config.root}` tells what is there"
                )
            self._checksums.findings.append(f"{text}: another program's retention, it seems")
        return self._checksums.covered_end

    def _ends_at(self, offset: int) -> bool:
        """Whether nobody has written to the log since it ended at this offset."""
        segment = self.log.find(offset)
        if segment is None:
            return bool(self.log.segments) and self.log.segments[-1].end_offset == offset
        return recovery.look(segment, offset - segment.base_offset) is recovery.Sight.BLANK

    def _sealed_before_last(self) -> int:
        """Up to where sealed segments are durable: all but the one sealed last, whose flush may not have been done.

        `reserve` sees to it that no segment is begun before the one before the last is flushed.
        """
        used = [segment for segment in self.log.segments if isinstance(recovery.look(segment, 0), Sighted)]
        return used[-2].base_offset if len(used) > 1 else self.log.min_offset

    def _walk(self, start: int, durable: int, flushed_ms: int, entries_min: int = 0) -> Recovered:
        """Read the log from `start` on, add to the queues what stands there, and end log and queues at its end.

        `entries_min` is how many entries of records before `start` there are at least; fewer are a `QueueGap`. No
        file is changed before the verdict is known.
        """
        found = Recovered(end=start, scanned_from=start, durable=durable)
        kept: dict[ConsumeQueue, int] = {}
        for queue in self._each_queue():
            if start == 0:
                # The log tells everything from the first message on; what a queue file adds to that is not true.
                kept[queue] = 0
                queue.forget()
                continue
            kept[queue] = recovery.confirm_queue(queue, self.log, start)
            queue.keep(kept[queue])
            queue.raise_min(self.log.min_offset)
            found.last_store_timestamp = max(
                found.last_store_timestamp, recovery.last_store_time(queue, self.log)
            )
        if start and sum(kept[queue] - queue.first for queue in self._each_queue()) < entries_min:
            raise QueueGap  # a damaged entry can look like the end of its file
        first_ms = 0
        delay_of = self.config.delay_levels.delay_of
        for seen in recovery.walk(self.log, start, durable, self.config.sync_flush, flushed_ms, delay_of):
            if isinstance(seen, Sighted):
                if not found.records:
                    first_ms = seen.store_timestamp
                found.records += 1
                found.last_store_timestamp = max(found.last_store_timestamp, seen.store_timestamp)
                if seen.indexed:
                    self._index_again(seen, start, kept)
                continue
            verdict, found.end = seen
            if verdict is Verdict.REFUSE:
                raise recovery.refuse(self.log, found.end, durable)
        if found.records:
            self._lower_checkpoint(first_ms)
        if self._too_much_claimed is not None:
            self._disk.replace_file(self.config.root / "ropewalk" / "bound", self._too_much_claimed.encode())
        for queue in self._each_queue():
            queue.clear_files(kept.get(queue, 0))
        found.findings = tuple(
            recovery.cut(self.log, found.end, self.config.root / "ropewalk" / "tails", self._disk)
        )
        return found

    def _lower_checkpoint(self, stored_before_ms: int) -> None:
        """Take back what an older checkpoint claims about entries that are about to be written anew, durably.

        A second crash would else trust queue files that the first one had made to be rebuilt. Blocks.
        """
        path = self.config.root / "checkpoint"
        point = _checkpoint_of(self._disk.read_file(path))
        if min(point.physic_msg_timestamp, point.logics_msg_timestamp) > stored_before_ms:
            point.physic_msg_timestamp = point.logics_msg_timestamp = stored_before_ms
            file = self._disk.create_paged(path, CHECKPOINT_SIZE)
            file.write_at(0, point.encode())
            file.sync()

    def _index_again(self, record: Sighted, start: int, kept: dict[ConsumeQueue, int]) -> None:
        if self._deleted.is_dead(record.topic, record.offset):
            return
        queue = self.queue(record.topic, record.queue_id)
        if record.queue_offset < queue.min_offset == queue.next_offset:
            # A power loss took the queue's first files and left later ones: the log knows where it begins.
            if start > self.log.min_offset:
                raise QueueGap
            kept[queue] = 0
            queue.restart_at(record.queue_offset)
        if record.queue_offset < queue.next_offset:
            return  # the number was taken before: a deleted topic's of a RocketMQ store, and as there
        if record.queue_offset > queue.next_offset:
            if start > self.log.min_offset:
                raise QueueGap
            if queue.next_offset > kept.get(queue, 0):
                raise StoreDamaged(
                    f"message {queue.next_offset} of queue {queue.queue_id} of topic {queue.topic} is not in the log "
                    f"before message {record.queue_offset}, which stands at log offset {record.offset} of "
                    f"{self.log.directory}. Nothing was changed. `ropewalk store verify {self.config.root}` lists what "
                    f"is missing; restore the files from a replica or a backup"
                )
            kept[queue] = 0  # what its files tell is older than the log
            queue.restart_at(record.queue_offset)
        queue.add(record.offset, record.size, record.tags_code)
        queue.readable = queue.next_offset
        self._mark_dirty(queue)

    # -- queues --------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created in memory if it is new; its directory appears with its first entries."""
        queues = self.queues.get(topic)
        if queues is None:
            queues = self.queues[topic] = {}
        queue = queues.get(queue_id)
        if queue is None:
            directory = self.config.root / "consumequeue" / topic / str(queue_id)
            queue = queues[queue_id] = ConsumeQueue(
                topic, queue_id, directory, self.config.queue_file_size, self._disk
            )
        return queue

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        queues = self.queues.get(topic)
        return queues.get(queue_id) if queues is not None else None

    def delete_topic(self, topic: str, done: Callable[[bool], None]) -> None:
        """Forget a topic's queues at once, then remove their files; its records stay where they are.

        `done(False)` says that the disk had no room to note the deletion: the next start may bring the queues back.
        Whoever holds one of the queues finds it empty.
        """
        gone = self.queues.pop(topic, {}).values()
        for queue in gone:
            self._entries_written -= queue.written - queue.first
            queue.forget()
        if gone:
            self._unreadable = deque(entry for entry in self._unreadable if entry[1] not in gone)
        text = self._deleted.note(topic, self.log.end_offset, self.log.min_offset)
        self._write_bound(clean=False)  # it claims fewer entries before there are fewer

        def remove() -> None:
            self._deleted.save(text)
            self._disk.remove_tree(self.config.root / "consumequeue" / topic)

        self._writer.submit(lambda: _unless_full(remove), done)

    def _each_queue(self) -> Iterator[ConsumeQueue]:
        for queues in self.queues.values():
            yield from queues.values()

    def _mark_dirty(self, queue: ConsumeQueue) -> None:
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)

    # -- append --------------------------------------------------------------------------------------

    def reserve(self, size: int) -> Segment:
        """The segment that has room for `size` more bytes in one piece; rolls if it must. Raises `DiskFull`."""
        segments = self.log.segments
        if segments and segments[-1].has_room_for(size):
            return segments[-1]
        if self.full is not None and self.log.spare is None:
            raise DiskFull(self.full)  # the helper thread keeps asking: no turn has to
        until = time.monotonic() + _SPARE_WAIT_S
        while self.log.spare is None and self._spare_wanted and time.monotonic() < until:
            # The helper thread is creating this very file: waiting for it is shorter than refusing.
            self._helpers.pause()
            self.run_completions()
        # Recovery counts what lies two segments back as durable. It has been for long, unless the disk crawls.
        while segments and self.flushed_offset < segments[-1].base_offset and time.monotonic() < until:
            self.request_flush()
            self._helpers.pause()
            self.run_completions()
        try:
            if self.log.spare is None and self._spare_wanted:
                raise DiskFull(f"the next segment was not allocated within {_SPARE_WAIT_S:.0f} s")
            if segments and self.flushed_offset < segments[-1].base_offset:
                raise DiskFull(f"the disk did not take a whole segment's bytes within {_SPARE_WAIT_S:.0f} s")
            segment = self.log.segment_for(size)
        except DiskFull as exc:
            self.full = str(exc)
            raise
        self.full = None
        self.request_flush()  # the sealed segment counts as durable soon: see above
        return segment

    def put(self, batch: Sequence[Message], born_host: bytes) -> list[tuple[int, int]]:
        """Append messages in order; return (log offset, queue offset) of each. HOT.

        The result is shorter than the batch if the disk is full: the rest was not stored, and `full` says why. What
        can never be stored raises LocalProtocolError before anything is written.
        """
        segments = self.log.segments
        store_host = self.config.store_host
        now = self.now
        deferred = self.config.sync_flush
        fixed = _FIXED_SIZE - 16 + len(born_host) + len(store_host)
        results: list[tuple[int, int]] = []
        try:
            segment = segments[-1] if segments else self.reserve(fixed)
        except DiskFull:
            return results
        position, base, room = segment.write_position, segment.base_offset, segment.size - FILLER_HEADER_SIZE
        records: list[bytes] = []
        try:
            for (
                queue,
                body,
                properties,
                flag,
                sys_flag,
                born_timestamp,
                reconsume_times,
                prepared,
                tags_code,
            ) in batch:
                topic = queue.topic_bytes
                if position + fixed + len(topic) + len(body) + len(properties) + 1 > room:
                    segment.write(records)
                    records = []
                    size = fixed + len(topic) + len(body) + len(properties) + 1
                    if not self.log.fits(size):
                        raise LocalProtocolError(
                            f"a record of {size} bytes is larger than a commit-log segment"
                        )
                    try:
                        segment = self.reserve(size)
                    except DiskFull:
                        return results
                    position, base, room = (
                        segment.write_position,
                        segment.base_offset,
                        segment.size - FILLER_HEADER_SIZE,
                    )
                offset, queue_offset = base + position, queue.next_offset
                record = encode_record(
                    topic,
                    queue.queue_id,
                    flag,
                    queue_offset,
                    offset,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    now,
                    store_host,
                    reconsume_times,
                    prepared,
                    body,
                    properties,
                )
                size = len(record)
                records.append(record)
                position += size
                queue.add(offset, size, tags_code)
                if deferred:
                    self._unreadable.append((base + position, queue))
                else:
                    queue.readable = queue_offset + 1
                    if queue.held is not None:
                        self.woken.append(queue)
                if not queue.dirty:
                    queue.dirty = True
                    self._dirty.append(queue)
                results.append((offset, queue_offset))
        finally:
            segment.write(records)
        return results

    def begin_turn(self) -> None:
        """Fix the store time of the appends that follow."""
        self.now = self._last_store_ms = max(self._now_ms(), self._last_store_ms)

    def publish(self) -> None:
        """End a turn: let consumers see what may be seen, and ask for the flush that is owed."""
        end = self.log.end_offset
        if self.config.sync_flush:
            if end > self.flushed_offset:
                self.request_flush()
        else:
            self.readable_offset = end

    @property
    def refusal(self) -> str | None:
        """Why no message should be taken because of the disk, or None; reads go on."""
        return self._cleaner.refusal if self._cleaner is not None else None

    def take_findings(self) -> list[str]:
        """What index and retention have to tell people since the last time."""
        findings: list[str] = []
        for source in (self.index, self._cleaner, self._checksums, self._scrubber):
            if source is not None and source.findings:
                findings += source.findings
                source.findings.clear()
        return findings

    def request_flush(self) -> None:
        assert self._flusher is not None
        end = self.log.end_offset
        self._flusher.request(end, self.log.unflushed(end))

    def _note_flushed(self, offset: int) -> None:
        self.flushed_offset = self.log.flushed_offset = offset
        if not self.config.sync_flush:
            return
        self.readable_offset = offset
        unreadable = self._unreadable
        while unreadable and unreadable[0][0] <= offset:
            queue = unreadable.popleft()[1]
            queue.readable += 1
            if queue.held is not None:
                self.woken.append(queue)

    # -- the work of time ----------------------------------------------------------------------------

    def run_completions(self) -> None:
        """Take in what the helper threads finished. Raises their failures."""
        self.completions.run()

    def tick(self) -> None:
        """Hand out work that is due by time; call often (each turn, and at least every 100 ms)."""
        now = self._now_ms()
        if now < self._ticked_ms:  # the clock was set back: what was due in an hour is due now
            self._next_flush_ms = self._next_queues_ms = self._next_bound_ms = self._next_checkpoint_ms = 0
            self._next_spare_ms = 0
        self._ticked_ms = now
        if now >= self._next_flush_ms:
            self._next_flush_ms = now + self.config.flush_interval_ms
            if self.log.end_offset > self.flushed_offset:
                self.request_flush()
        if now >= self._next_queues_ms and not self._queues_writing:
            self._next_queues_ms = now + self.config.queue_flush_interval_ms
            self._write_queues()
        if now >= self._next_bound_ms:
            self._next_bound_ms = now + _BOUND_INTERVAL_MS
            self._write_bound(clean=False)
        if now >= self._next_checkpoint_ms:
            self._next_checkpoint_ms = now + _CHECKPOINT_INTERVAL_MS
            self._write_checkpoint()
        self._look_ahead(now)
        if self.index is not None:
            self.index.follow(self.readable_offset, self.log.min_offset)
        if self._cleaner is not None:
            self._cleaner.tick(self.flushed_offset)
        if self._checksums is not None:
            self._checksums.tick(self.flushed_offset)
        if self._scrubber is not None:
            self._scrubber.tick(now, self.flushed_offset)

    def _look_ahead(self, now: int) -> None:
        """Keep pages present before the writer, and a spare segment before the last one is full."""
        if not self.log.segments:
            last_end, room, last = 0, 0, None
        else:
            last = self.log.segments[-1]
            last_end, room = last.end_offset, last.size - last.write_position
        window = self.config.prefault_window
        if last is not None and not self._prefaulting:
            ahead = last.prefaulted_position - last.write_position
            # The window is small until something has been written, so that an idle broker stays small.
            window = (
                window
                if self.log.end_offset > self.recovered.end + self.config.prefault_idle // 2
                else self.config.prefault_idle
            )
            if ahead < window // 2 and last.prefaulted_position < last.size:
                self._prefault(last, max(last.write_position, last.prefaulted_position), window)
        if (
            self.log.spare is None
            and not self._spare_wanted
            and now >= self._next_spare_ms
            and room < max(2 * window, self.config.segment_size // 4)
        ):
            self._spare_wanted = True
            self._next_spare_ms = now + _SPARE_INTERVAL_MS  # a full disk is not asked at every turn
            self._janitor.submit(lambda: self._make_spare(last_end), self._take_spare)

    def _prefault(self, segment: Segment, position: int, window: int) -> None:
        self._prefaulting = True
        end = min(position + window, segment.size)

        def done(_result: object) -> None:
            self._prefaulting = False
            segment.prefaulted_position = end

        self._janitor.submit(lambda: segment.file.prefault(position, end - position), done)

    def _make_spare(self, base_offset: int) -> Segment | DiskFull:
        try:
            spare = self.log.allocate(base_offset)
        except DiskFull as exc:
            return exc
        window = min(self.config.prefault_idle, spare.size)
        spare.file.prefault(0, window)
        spare.prefaulted_position = window
        return spare

    def _take_spare(self, spare: Segment | DiskFull) -> None:
        self._spare_wanted = False
        if isinstance(spare, DiskFull):
            return  # tried again in a moment; appends go on while the last segment has room
        assert spare.base_offset == (self.log.segments[-1].end_offset if self.log.segments else 0)
        self.full = None
        self._next_spare_ms = 0
        self.log.spare = spare

    def _write_queues(self) -> None:
        """Write queue entries back. They name only readable records, and go down in one pass.

        A disk without room keeps them in memory, to be tried again; whatever else goes wrong ends the process.
        """
        dirty, self._dirty = self._dirty, []
        writes = []
        marks: list[tuple[ConsumeQueue, int]] = []
        for queue in dirty:
            queue.dirty = False
            writes += queue.take_writes()
            marks.append((queue, queue.readable))
            if queue.readable < queue.next_offset:
                self._mark_dirty(queue)
        through = self.readable_offset
        if not writes:
            self._queues_written = max(self._queues_written, through)
            return
        self._queues_writing = True

        def write() -> None:
            for path, size, position, data in writes:
                if position == 0 or not self._disk.exists(path):
                    file = self._disk.create_paged(path, size)
                    self._unsynced.update((path.parent, path.parent.parent, path.parent.parent.parent))
                else:
                    file = self._disk.open_paged(path)
                self._unsynced.add(path)
                file.write_at(position, data)

        def done(written: bool) -> None:
            self._queues_writing = False
            for queue, at in marks:
                if at > queue.readable:
                    continue  # its topic was deleted meanwhile
                if written:
                    self._entries_written += max(0, at - queue.written)
                    queue.note_written(at)
                else:
                    self._mark_dirty(queue)
            if written:
                self._queues_written = max(self._queues_written, through)

        self._writer.submit(lambda: _unless_full(write), done)

    def _write_checkpoint(self) -> None:
        """Write RocketMQ's checkpoint: a time before which all records and their queue entries are on disk.

        Each call states what the call before it took note of, as soon as that has become true.
        """
        noted_end, noted_ms = self._noted
        end = self.log.end_offset
        if noted_ms and self.flushed_offset >= noted_end and self._queues_written >= noted_end:
            self._noted = (end, self._last_store_ms)
            index_ms = self.index.full_timestamp if self.index is not None else 0
            self._writer.submit(lambda: self._sync_queues(noted_ms, index_ms), lambda _written: None)
        elif not noted_ms:
            self._noted = (end, self._last_store_ms)

    def _shorten_queue(self, entries: int, paths: Sequence[Path]) -> None:
        """Remove queue files whose messages are gone; the bound claims fewer entries before there are fewer."""
        self._entries_written -= entries
        self._write_bound(clean=False)

        def remove() -> None:
            for path in paths:
                self._disk.remove(path)

        self._writer.submit(remove, lambda _result: None)

    def _sync_queues(self, stored_before_ms: int, index_ms: int) -> bool:
        """On the writer thread: what the checkpoint is about to claim is made true first."""
        if self._inherited or len(self._unsynced) > _SYNC_SINGLY_MAX:
            self._disk.sync_file_system(self.config.root)
            self._inherited = False
        else:
            for path in sorted(self._unsynced):
                self._disk.sync_file(path)
        self._unsynced.clear()
        path = self.config.root / "checkpoint"
        old = self._disk.read_file(path)
        point = _checkpoint_of(old)
        point.physic_msg_timestamp = point.logics_msg_timestamp = stored_before_ms
        point.index_msg_timestamp = max(index_ms, point.index_msg_timestamp)
        data = point.encode()
        return _unless_full(lambda: self._disk.create_paged(path, len(data)).write_at(0, data))

    def _write_bound(self, *, clean: bool) -> None:
        bound = Bound(
            self.flushed_offset,
            self._queues_written,
            self._entries_written,
            self.log.end_offset if clean else 0,
            clean,
            self._boot,
        )
        if bound == self._bound_written:
            return
        self._bound_written = bound
        path = self.config.root / "ropewalk" / "bound"
        data = bound.encode()

        def done(written: bool) -> None:
            if not written:
                self._bound_written = Bound()  # the older file claims less, and that is allowed

        self._writer.submit(
            lambda: _unless_full(lambda: self._disk.create_paged(path, len(data)).write_at(0, data)), done
        )

    # -- close ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, write queues, checkpoint and bound, release the lock. Blocks.

        After a failed flush this raises what the flusher found, and the store stays as a crash would leave it. A
        disk too full for the last queue entries leaves them to the next start, which reads them from the log.
        """
        assert self._flusher is not None
        self.request_flush()
        self._flusher.stop()
        self.run_completions()
        assert self.flushed_offset == self.log.end_offset, (
            "the flusher failed before; its error was raised then"
        )
        if self.index is not None:
            self.index.stop(self.readable_offset, self.log.min_offset)
        if self._checksums is not None:
            self._checksums.stop()
            self.run_completions()
        if self._cleaner is not None:
            self._cleaner.close()
        if self._checksums is not None:
            self._checksums.finish(self.log.end_offset)
        self._drain_writer()
        self._write_queues()
        self._drain_writer()
        clean = self._queues_written == self.log.end_offset
        if clean:
            self._noted = (self.log.end_offset, self._last_store_ms)
            self._write_checkpoint()
        self._write_bound(clean=clean)
        self._drain_writer()
        self._writer.stop()
        self._janitor.stop()
        self.run_completions()
        self._disk.sync_tree(self.config.root)
        self.log.close()
        if clean:
            self._disk.remove(self.config.root / "abort")
        self._disk.close()
        self._disk.unlock(self._lock_fd)

    def _drain_writer(self) -> None:
        """Have the writer thread finish what it was given, and take in the results. Blocks."""
        self._writer.stop()
        self._writer = self._helpers.worker("ropewalk-writer", self.completions)
        self.run_completions()


def _checkpoint_of(data: bytes | None) -> Checkpoint:
    """What the file says; nothing, if it is missing or cut short: that costs time at a start, and no message."""
    return Checkpoint.decode(data) if data is not None and len(data) >= CHECKPOINT_SIZE else Checkpoint()


def _unless_full(write: Callable[[], None]) -> bool:
    """Do it; False if the disk has no room, which passes. Everything else is raised."""
    try:
        write()
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True
