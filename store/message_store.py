"""The facade of the store: what a broker appends, reads and flushes, and the order in which promises are kept.

One owner, the loop, calls everything here. A turn of the loop appends any number of records and ends with
`publish()`, which moves the readable bound and hands work to the helper threads; `run_completions()` brings back
what they finished. Nothing in between waits.

    min_offset <= flushed_offset, readable_offset <= end_offset

*Append* makes bytes readable to the process, *flush* makes them survive power loss, *publish* lets consumers see
them. Under ASYNC_FLUSH a record is readable when its turn ends; under SYNC_FLUSH when its flush is done, so that no
consumer sees a message whose producer has not been answered. `limit_readable` holds them back in addition, for
whoever decides about answers elsewhere; a store that follows another one (`follow`) shows whole records only.

Left to others: how messages become records (`appending`), what a start has to set right (`opening`), the files that
follow the log (`write_back`), room and pages ahead of it (`ahead`), and what goes on beside it: key index, retention,
checksums.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ropewalk.format.dledger.snapshot import MemberSnapshot, encode_member_snapshot
from ropewalk.format.index import Geometry
from ropewalk.format.queue_entry import ENTRY_SIZE
from store.append import Appender
from store.entries.entry_log import EntryLog
from store.entry_host import EntryHost
from store.follow import Follower
from store.index.file import IndexPlace
from store.index.helper import KeyIndex, ProcessIndex, WorkerIndex
from store.integrity.block_repair import Damage
from store.integrity.checksums import Checksums
from store.integrity.scrubber import Scrubber
from store.io.disk import Disk, DiskFull
from store.io.durations import Durations
from store.io.workers import Completions, Flusher, Helpers
from store.log.commitlog import CommitLog
from store.log.durable_bound import boot_id
from store.log.limits import NO_LIMIT
from store.log.placing import ENTRY, PLAIN, write_plain
from store.log.preallocate import Preallocator
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.queues.deleted_topics import DeletedTopics
from store.queues.entry_pool import EntryPool
from store.queues.queue_writer import await_writer, queue_file_writer
from store.recovery.delay_levels import DEFAULT_LEVELS, DelayLevels
from store.recovery.opening import Opening
from store.recovery.record_scan import ScannedRecord
from store.recovery.scan import Recovered
from store.replica import Replica
from store.retention.cleaner import Cleaner
from store.retention.rules import RetentionRules
from store.write_back import SYNC_SINGLY_MAX, WriteBack, unless_full

_SPARE_WAIT_S = 5.0


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
    fill_window: int = 32 << 20
    fill_idle: int = 4 << 20
    """How far zeros are written ahead of the log's end under SYNC_FLUSH: at most, and while nothing is sent."""
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
    """The read rate of the scrubber, in bytes a second; 0 starts none."""
    ledger: Path | None = None
    """The directory of a log of entries, of DLedger mode; None is a plain store."""


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
        placing = ENTRY if config.ledger is not None else PLAIN
        self.log = CommitLog(config.log_directory, config.segment_size, disk, placing)
        self.queues: dict[str, dict[int, ConsumeQueue]] = {}
        self.queues_made = 0
        """Queues that came into being since the start."""
        self.completions = Completions(wake)
        self.readable_offset = 0
        self.flushed_offset = 0
        self.now = now_ms()
        """Store time of this turn, ms; never goes back, so that records stay ordered by it."""
        self.follower: Follower | None = None
        """The one writer of this log while it is a slave's."""
        self.readable_limit = NO_LIMIT
        """The limit that `limit_readable` set last."""
        self.removable_offset = NO_LIMIT if config.ledger is None else 0
        """The log offset behind which retention removes nothing, however old: in DLedger mode the group's tables are
        records of the log, and whoever has them in a snapshot says so."""
        self.recovered = Recovered(0, 0)
        self._now_ms = now_ms
        self._disk = disk
        self._helpers = helpers or Helpers()
        self._lock_fd = -1
        self._missing_said: set[Path] = set()
        self._queues_lock = config.root / "ropewalk" / "queues.lock"
        self._deleted = DeletedTopics(config.root / "ropewalk" / "deleted", disk)
        self._last_store_ms = 0
        self._next_flush_ms = self._ticked_ms = 0
        boot = boot_id(disk)
        self._flusher: Flusher | None = None
        self.index: KeyIndex | None = None
        """The key index, while the store is open and has one."""
        self._cleaner: Cleaner | None = None
        self._checksums: Checksums | None = None
        if config.checksum_block:
            directory = config.root / "ropewalk" / "checksums"
            self._checksums = Checksums(directory, config.checksum_block, self.log, disk)
        self.damage: Damage | None = None
        """The known damage; None where nothing is under checksums."""
        if self._checksums is not None:
            self.damage = Damage(self.log, self._checksums)
        self._scrubber: Scrubber | None = None
        self._preallocator = Preallocator(
            self.log,
            disk,
            config.segment_size,
            config.fill_window,
            config.fill_idle,
            config.sync_flush,
            self._helpers,
            self.completions,
        )
        self.pool: EntryPool[ConsumeQueue] = EntryPool()
        """Where the entries of queues wait that get them by turns, if they are very many."""
        self._write_back = WriteBack(
            config.root,
            self.log,
            disk,
            boot,
            self.pool,
            queue_file_writer(disk, self._queues_lock),
            config.queue_flush_interval_ms,
            self._count_queues,
            lambda: self.index.full_timestamp if self.index is not None else 0,
            self._helpers,
            self.completions,
        )
        self.entry_log: EntryLog | None = None
        """The log of entries in DLedger mode: what a group's core saves, cuts, places and flushes."""
        self.replica: Replica | None = None
        """The part that has this store lead or follow in DLedger mode, while it is open."""
        self._entry_host: EntryHost | None = None
        """How far a log of entries is on the disk; `flushed_offset` counts of it what is shown, and never falls."""
        if config.ledger is not None:
            own = config.root / "ropewalk"
            self.entry_log = EntryLog(config.ledger, own / "dledger", own / "tails", self.log, disk)
        self._appender = Appender(
            self.log,
            config.store_host,
            self.reserve,
            self._write_back.dirty,
            self.pool,
            self.entry_log.writer if self.entry_log is not None else write_plain,
        )
        self._appender.deferred = config.sync_flush
        self._appender.now = self.now
        self.put = self._appender.put
        self.put_alike = self._appender.put_alike
        self.put_columns = self._appender.put_columns
        self.put_wide = self._appender.put_wide
        self.sizes = self._appender.sizes
        self.woken = self._appender.woken
        """Queues with somebody in `held` that became longer; whoever answers them clears this."""
        self._opening = Opening(
            config.root,
            self.log,
            self.queues,
            self.queue,
            self._write_back.mark_dirty,
            self._deleted,
            self._checksums,
            disk,
            boot,
            config.delay_levels,
            config.sync_flush,
            config.check_at_start,
        )

    # -- open ----------------------------------------------------------------------------------------

    def recover(self) -> Recovered:
        """The first half of `open`: take the lock, and bring log and queue files to what is true. Blocks.

        `release` undoes it, if the second half does not follow.
        """
        self._lock_fd = self._disk.lock(self.config.root / "lock")
        try:
            await_writer(self._disk, self._queues_lock)
            if self.entry_log is not None:
                config = self.config
                done = self.entry_log.installation(config.root, config.queue_file_size).redo()
                self.recovered = self._opening.run_shown(
                    partial(self._recover_entries, self.entry_log), self.entry_log.find_damage
                )
                self.recovered.findings = *done, *self.entry_log.found.findings
            else:
                self.recovered = self._opening.run()
        except BaseException as exc:
            self.release()
            if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"no room to recover the store {self.config.root}: {exc}") from exc
            raise
        return self.recovered

    def _recover_entries(self, entry_log: EntryLog) -> int:
        self.log.load()
        return entry_log.recover().commit_pos

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
        if self.entry_log is not None:
            # What is not known to be committed may be replaced: it is neither shown nor claimed.
            end = self.entry_log.commit[2]
            self.readable_offset = self.flushed_offset = self.log.flushed_offset = end
        self._last_store_ms = self.recovered.last_store_timestamp
        abnormal = self._disk.exists(self.config.root / "abort")
        try:
            self._disk.write_file(self.config.root / "abort", str(os.getpid()).encode())
        except OSError:
            self.release()
            raise
        self._flusher = self._helpers.flusher(self.completions, self._note_flushed)
        self._write_back.begin(
            self.recovered.scanned_from,
            sum(queue.written - queue.first for queue in self._each_queue()),
            inherited=self._opening.inherited,
        )
        self._preallocator.begin(self.log.end_offset)
        if (entry_log := self.entry_log) is not None:
            self._entry_host = EntryHost(self.log, self._flusher, self._preallocator)
            entry_log.begin(
                self._entry_host,
                self.completions,
                self._helpers.worker("ropewalk-entries", self.completions),
                self._helpers.worker("ropewalk-laggards", self.completions),
            )
            entry_log.look_for_damage = self._look_for_damage
            self.replica = Replica(
                self, self._appender, entry_log.writer, entry_log.term_at, entry_log.commit, entry_log.arrived
            )
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
                self._write_back.remove_files,
                self._checksums.directory if self._checksums is not None else None,
            )
        self.tick()
        return self.recovered

    def _open_checksums(self, end: int) -> None:
        if self._checksums is None or self.damage is None:
            return
        self._checksums.begin(end)
        worker = self._helpers.worker("ropewalk-checksums", self.completions)
        self._checksums.start(worker)
        config = self.config
        if config.scrub_bytes_per_second > 0:
            self._scrubber = Scrubber(
                self.log,
                self._checksums,
                config.scrub_bytes_per_second,
                config.checksum_block,
                worker,
                self.damage.collect_reported,
            )

    def _look_for_damage(self, done: Callable[[bool], None]) -> None:
        """Tell, soon, whether places of the log are known to be damaged; where none is, look for them."""
        checksums, damage = self._checksums, self.damage
        if checksums is None or damage is None or len(damage):
            done(damage is not None and len(damage) > 0)
            return

        def compared() -> None:
            damage.collect_reported()
            done(len(damage) > 0)

        checksums.compare(compared)

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
            self.log.placing.head_size,
        )
        if self.config.index_in_process:
            self.index = ProcessIndex(place, self._disk, self._now_ms, self.completions)
        else:
            worker = self._helpers.worker("ropewalk-index", self.completions)
            self.index = WorkerIndex(place, self._disk, self._now_ms, worker)
        self.index.start(
            self.readable_offset, self.log.min_offset, self._opening.index_checkpoint_ms, abnormal=abnormal
        )

    # -- queues --------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created in memory if it is new; its directory appears with its first entries."""
        queues = self.queues.get(topic)
        if queues is None:
            queues = self.queues[topic] = {}
        queue = queues.get(queue_id)
        if queue is None:
            self.queues_made += 1
            directory = f"{self.config.root}/consumequeue/{topic}/{queue_id}"
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
        if self.follower is not None:
            self.follower.forget_queues()
        entries = sum(queue.written - queue.first for queue in gone)
        for queue in gone:
            queue.forget()
            self.pool.forget(queue)
        if gone:
            self._appender.forget(gone)
        text = self._deleted.note(topic, self.log.end_offset, self.log.min_offset)
        self._write_back.give_up(entries)

        def remove() -> None:
            self._deleted.save(text)
            self._disk.remove_tree(self.config.root / "consumequeue" / topic)

        self._write_back.worker.submit(lambda: unless_full(remove), done)

    def _count_queues(self) -> int:
        return sum(map(len, self.queues.values()))

    def _each_queue(self) -> Iterator[ConsumeQueue]:
        for queues in self.queues.values():
            yield from queues.values()

    # -- append --------------------------------------------------------------------------------------

    def reserve(self, size: int) -> Segment:
        """The segment that has room for `size` more bytes in one piece; rolls if it must. Raises `DiskFull`."""
        segments = self.log.segments
        if segments and segments[-1].has_room_for(size):
            return segments[-1]
        if self._preallocator.full is not None and self.log.spare is None:
            raise DiskFull(self._preallocator.full)  # the helper thread keeps asking: no turn has to
        if self.entry_log is not None:
            return self._next_or_busy(size)
        until = time.monotonic() + _SPARE_WAIT_S
        while self.log.spare is None and self._preallocator.spare_wanted and time.monotonic() < until:
            # The helper thread is creating this very file: waiting for it is shorter than refusing.
            self._helpers.pause()
            self.run_completions()
        # Recovery counts what lies two segments back as durable. It has been for long, unless the disk crawls.
        while segments and self.flushed_offset < segments[-1].base_offset and time.monotonic() < until:
            self.request_flush()
            self._helpers.pause()
            self.run_completions()
        try:
            if self.log.spare is None and self._preallocator.spare_wanted:
                raise DiskFull(f"the next segment was not allocated within {_SPARE_WAIT_S:.0f} s")
            if segments and self.flushed_offset < segments[-1].base_offset:
                raise DiskFull(f"the disk did not take a whole segment's bytes within {_SPARE_WAIT_S:.0f} s")
            segment = self.log.segment_for(size)
        except DiskFull as exc:
            self._preallocator.full = str(exc)
            raise
        self._preallocator.full = None
        self.request_flush()  # the sealed segment counts as durable soon: see above
        return segment

    def _next_or_busy(self, size: int) -> Segment:
        """Begin the next segment of a log of entries. Raises `DiskFull` at once: heartbeats wait for no file."""
        segments = self.log.segments
        assert self._entry_host is not None
        is_behind = bool(segments) and self._entry_host.flushed_offset < segments[-1].base_offset
        if is_behind:
            self._entry_host.request_flush()
        if is_behind or (self.log.spare is None and self._preallocator.spare_wanted):
            raise DiskFull("busy: the next segment of the log is being prepared, try again")
        try:
            segment = self.log.segment_for(size)
        except DiskFull as exc:
            self._preallocator.full = str(exc)
            raise
        self._preallocator.full = None
        return segment

    def begin_turn(self) -> None:
        """Fix the store time of the appends that follow."""
        self.now = self._appender.now = max(self._now_ms(), self._last_store_ms)
        if not self.follows:  # the records of a slave were stored when its master says
            self._last_store_ms = self.now

    def refresh_time(self) -> None:
        """Move the store time on within a turn, which may have begun before the next message was sent.

        A message that has to wait counts from its store time, and may not come early by a long turn.
        """
        now = self._now_ms()
        if now > self.now and not self.follows:
            self.now = self._appender.now = self._last_store_ms = now

    def publish(self) -> None:
        """End a turn: let consumers see what may be seen, and ask for the flush that is owed."""
        if self.entry_log is not None:
            return  # both are the group's decision
        if self.config.sync_flush and self.whole_end > self.flushed_offset:
            self.request_flush()
        if self._appender.deferred or self.follower is not None:
            self._move_readable()
        else:
            self.readable_offset = self.log.end_offset

    @property
    def full(self) -> str | None:
        """The reason why appends are refused at the moment, or None."""
        return self._preallocator.full

    @property
    def refusal(self) -> str | None:
        """The reason why the disk lets no message be taken, or None; reads go on."""
        return self._cleaner.refusal if self._cleaner is not None else None

    @property
    def flush_times(self) -> Durations | None:
        """The durations of the log's flushes; None before the store is open."""
        return self._flusher.times if self._flusher is not None else None

    def remove_expired(self) -> None:
        """Have segments that are older than they are kept go soon, and not only in their hours."""
        if self._cleaner is not None:
            self._cleaner.remove_expired()

    @property
    def removed_files(self) -> int:
        """The number of this store's files that something else removed while they were in use."""
        segments = self._cleaner.removed_files if self._cleaner is not None else 0
        return segments + len(self._missing_said)

    def _missing_queue_files(self) -> Iterator[str]:
        """Say which queue files were missed since the last time, each once."""
        base = self.config.root / "consumequeue"
        missing = self._disk.missing
        while missing:
            path = missing.popleft()
            if path in self._missing_said or path.parent.parent.parent != base or not path.name.isdigit():
                continue
            queue = self.find_queue(path.parent.parent.name, int(path.parent.name))
            if queue is None or int(path.name) < queue.first * ENTRY_SIZE:
                continue  # a read that was slower than retention, or than the deletion of a topic
            self._missing_said.add(path)
            yield (
                f"{path} was removed by something else while it was in use: messages of queue {queue.queue_id} of "
                f"topic {queue.topic} are not found through it. They are in the commit log: the next start builds it "
                f"again"
            )

    def take_findings(self) -> list[str]:
        """Return the findings of index, retention and checksums since the last time."""
        findings = list(self._missing_queue_files())
        for source in (self.index, self._cleaner, self._checksums, self._scrubber):
            if source is not None and source.findings:
                findings += source.findings
                source.findings.clear()
        return findings

    @property
    def last_store_ms(self) -> int:
        """The store time of the newest record, ms; for a slave by its master's clock."""
        return self._last_store_ms

    @property
    def follows(self) -> bool:
        """Tell whether the log grows by another broker's records at present, and by none of this one."""
        return self.follower is not None or (self.replica is not None and not self.replica.leads)

    @property
    def may_be_cut(self) -> bool:
        """Tell whether appended records may be taken back as long as they are not shown: in DLedger mode."""
        return self.entry_log is not None

    @property
    def whole_end(self) -> int:
        """The end of the last whole record: the end of the log, but for a slave that has part of one."""
        return self.log.end_offset if self.follower is None else self.follower.boundary

    def request_flush(self) -> None:
        """Have all that is whole flushed soon."""
        if self._entry_host is not None:
            self._entry_host.request_flush()
            return
        assert self._flusher is not None
        end = self.whole_end
        self._flusher.request(end, self.log.unflushed(end))

    def flush_now(self) -> None:
        """Flush the log up to its last whole record. Blocks: for a broker that closes."""
        while (
            self.flushed_offset if self._entry_host is None else self._entry_host.flushed_offset
        ) < self.whole_end:
            self.request_flush()
            self._helpers.pause()
            self.run_completions()

    def _note_flushed(self, offset: int) -> None:
        if self._entry_host is not None and self.entry_log is not None:
            self._entry_host.flushed_offset = offset
            self._claim_flushed()
            self.entry_log.flushed(offset)
            return
        assert self.flushed_offset <= offset <= self.whole_end, (self.flushed_offset, offset, self.whole_end)
        self.flushed_offset = self.log.flushed_offset = offset
        if self.config.sync_flush:
            self._move_readable()

    def _claim_flushed(self) -> None:
        """Count of a log of entries what is on disk and shown: no cut takes that away."""
        assert self._entry_host is not None
        claimed = min(self._entry_host.flushed_offset, self.readable_limit)
        self.flushed_offset = self.log.flushed_offset = max(self.flushed_offset, claimed)

    def make_snapshot(self, state_index: int, state: bytes) -> tuple[tuple[int, int, int], bytes] | None:
        """Return a snapshot for a member that lacks the beginning of this log, and the log through its first entry.

        `state` are the tables through `state_index`, which reach to the first entry at least. None if there is no
        entry that is known to be committed.
        """
        assert self.entry_log is not None
        first = self.entry_log.first_entry()
        if first is None:
            return None
        point, entry, commit = first
        begin = self.log.min_offset
        queues = [
            (queue.topic, queue.queue_id, queue.next_offset)
            for queue in self._each_queue()
            if queue.next_offset and queue.max_physical <= begin
        ]
        return point, encode_member_snapshot(MemberSnapshot(commit, queues, state_index, state, entry))

    def limit_readable(self, offset: int) -> None:
        """Let consumers see nothing behind this offset, which no record spans; NO_LIMIT lifts it for good.

        What was put together into one segment is shown together, when the limit is behind all of it.
        """
        self.readable_limit = offset
        if self._entry_host is not None:
            self._claim_flushed()
        self._move_readable()
        self._appender.deferred = self.config.sync_flush or offset != NO_LIMIT

    def _move_readable(self) -> None:
        offset = self.flushed_offset if self.config.sync_flush else self.whole_end
        offset = min(offset, self.readable_limit)
        if offset <= self.readable_offset:
            return
        unreadable = self._appender.unreadable
        while unreadable and unreadable[0][1] <= offset:
            for queue, number in unreadable.popleft()[2]:
                queue.make_readable(number)
                if queue.held is not None:
                    self.woken.append(queue)
        # What is shown together counts as readable together: the write-back takes this for what has its entries.
        self.readable_offset = max(
            self.readable_offset, min(offset, unreadable[0][0]) if unreadable else offset
        )

    # -- following another log -----------------------------------------------------------------------

    def follow(self) -> Follower:
        """Become a slave: from now on the log grows by a master's bytes alone, behind all that was put before."""
        assert self.follower is None
        self.follower = Follower(self)
        self._appender.closed = True
        return self.follower

    def lead(self) -> None:
        """The log grows by puts again; the first bytes of a record that never became whole are dropped."""
        assert self.follower is not None
        follower = self.follower
        follower.drop_partial()
        while follower.cut_pending:
            # A change of role in the very moment in which a connection broke off: what is appended next must not stand
            # in front of bytes that a loss of power brings back.
            self._helpers.pause()
            self.run_completions()
        self.follower = None
        self._move_readable()  # from here on nothing may be left behind: a plain master's turn shows what it appends
        self._appender.closed = False

    def next_segment(self, base_offset: int) -> Segment | None:
        """Begin the segment at this offset for the follower; None while there is none ready. Never waits."""
        segments = self.log.segments
        if segments and self.flushed_offset < segments[-1].base_offset:
            self.request_flush()  # recovery counts what lies two segments back as durable
            return None
        segment = self._preallocator.segment_at(base_offset)
        if segment is not None:
            self.log.begin(segment)
            self.request_flush()
        return segment

    def dispatch(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Make the queue entry of a record that came from the master; the queue, if the record is the newest in it."""
        self.stored_until(record.store_timestamp)
        if not record.indexed:
            return None
        queue = self.queue(record.topic, record.queue_id)
        number = record.queue_offset
        if number != queue.next_offset:
            if number < queue.next_offset:
                return None  # the number was taken before: a deleted topic's, as in recovery
            if queue.written > queue.first:
                self._write_back.give_up(queue.written - queue.first)
            queue.restart_at(number)
        queue.add(record.offset, record.size, record.tags_code)
        return queue

    def dispatched(self, queues: Iterable[ConsumeQueue], begin: int, end: int) -> None:
        """Hear which queues have got the entries of their records from log offset `begin` to `end`."""
        grown = [(queue, queue.next_offset) for queue in queues]
        self._appender.unreadable.append((begin, end, grown))
        for queue, _number in grown:
            self._write_back.mark_dirty(queue)

    def sync_cut(self, segment: Segment, done: Callable[[], None]) -> None:
        """Have a segment synced from which bytes were cut, then call `done`. Never waits."""
        assert self._flusher is not None
        self._flusher.sync_cut(segment.file, done)

    def delay_of(self, text: str) -> int:
        """Return the delay that a stored `DELAY` means, ms; 0 for none."""
        return self.config.delay_levels.delay_of(text)

    def stored_until(self, time_ms: int) -> None:
        """Hear when the newest record of the master's was stored, ms."""
        if time_ms > self._last_store_ms:
            self._last_store_ms = time_ms

    # -- the work of time ----------------------------------------------------------------------------

    def run_completions(self) -> None:
        """Run the completions of the helper threads. Raises their failures."""
        self.completions.run()

    def tick(self) -> None:
        """Hand out work that is due by time; call often (each turn, and at least every 100 ms)."""
        now = self._now_ms()
        if now < self._ticked_ms:  # the clock was set back: what was due in an hour is due now
            self._next_flush_ms = 0
            self._write_back.clock_set_back()
            self._preallocator.clock_set_back()
        self._ticked_ms = now
        if self.entry_log is not None:
            self.entry_log.tick(now)
        if now >= self._next_flush_ms:
            self._next_flush_ms = now + self.config.flush_interval_ms
            if self.whole_end > self.flushed_offset:
                self.request_flush()
        self._write_back.tick(now, self.readable_offset, self._last_store_ms)
        self._preallocator.tick(now)
        if self.index is not None:
            self.index.follow(self.readable_offset, self.log.min_offset)
        if self._cleaner is not None:
            self._cleaner.tick(min(self.flushed_offset, self.removable_offset))
        if self._checksums is not None:
            self._checksums.tick(self.flushed_offset)
        if self.damage is not None:
            self.damage.collect_reported()
        if self._scrubber is not None:
            self._scrubber.tick(now, self.flushed_offset)

    # -- close ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, write queues, checkpoint and bound, release the lock. Blocks.

        After a failed flush this raises what the flusher found, and the store stays as a crash would leave it. A
        disk too full for the last queue entries leaves them to the next start, which reads them from the log.
        """
        assert self._flusher is not None
        if self.follower is not None:
            self.follower.drop_partial()
        if self.entry_log is not None:
            self.request_flush()
            self._flusher.stop()
            self.run_completions()
            self.entry_log.close()
        else:
            if self.readable_limit != NO_LIMIT:
                # Nobody is served any more, and the next start shows everything too.
                self.limit_readable(NO_LIMIT)
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
            self._checksums.finish(self.flushed_offset)
        clean = self._write_back.finish(self.readable_offset, self._last_store_ms)
        self._preallocator.stop()
        self.run_completions()
        if self._count_queues() > SYNC_SINGLY_MAX:
            root = self.config.root
            self._disk.sync_file_systems(root, root / "consumequeue", self.config.log_directory)
        else:
            self._disk.sync_tree(self.config.root)
        self.log.close()
        if clean:
            self._disk.remove(self.config.root / "abort")
        self._disk.close()
        self._disk.unlock(self._lock_fd)
