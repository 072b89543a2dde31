"""Write-back: how queue entries, the bound file and RocketMQ's checkpoint follow the log to the disk.

The loop collects here the queues that became longer. One worker thread writes their entries, the bound and the
checkpoint in the order in which they were asked for, so that no claim is written before what it claims:

    queue entries    name only records that consumers may read
    ropewalk/bound   written after the entries it counts, in the page cache like they are
    checkpoint       written after the queue files it vouches for were synced

Every file here claims less than the truth or the truth, at any moment and after any crash. What a pass over queues
writes is claimed at its end, and of records that were there when it began: of later ones, some queue files hold
entries and others not yet. A disk without room passes: entries stay in memory and are tried again, a bound or
checkpoint that was not written leaves an older one, which claims less. Whatever else goes wrong is raised on the
loop, and ends the process.

Left to others: the log itself and its flushes (`commitlog`, `workers`), what the files mean to a start (`opening`),
and why a queue shrinks (`cleaner`, a deleted topic).
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from store.io.disk import Disk
from store.io.workers import Completions, Helpers, Worker
from store.log.checkpoint import decode_checkpoint
from store.log.commitlog import CommitLog
from store.log.durable_bound import Bound
from store.queues.consume_queue import TAIL_KEEP, ConsumeQueue
from store.queues.entry_pool import EntryPool, Frozen
from store.queues.file_layout import Waiting, Write
from store.queues.queue_writer import QueueFileWriter

_BOUND_INTERVAL_MS = 100
_CHECKPOINT_INTERVAL_MS = 10_000
_CHECKPOINT_LATER_MS = 20_000
"""So much longer where long passes are made, all of whose files are synced for it; RocketMQ does so each minute."""
SYNC_SINGLY_MAX = 256
"""Files; beyond, one call for the whole file system is cheaper."""
_MANY = 512
"""Queues; more are a long pass."""
_QUEUES_AT_ONCE = 128  # in one job: what the loop puts together in a few milliseconds
_KEEP_ALL, _KEEP_MIN = 1 << 19, 16  # written entries, of all queues and of each, that stay in memory
_PAUSE, _PAUSE_MAX_MS = 9, 10_000  # times as long as a pass over more queues than that took


class WriteBack:
    """The write-back of queue entries, bound and checkpoint; the loop owns it, `begin` starts its thread."""

    worker: Worker

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        disk: Disk,
        boot: bytes,
        pool: EntryPool[ConsumeQueue],
        files: QueueFileWriter,
        queues_interval_ms: int,
        queue_count: Callable[[], int],
        index_ms: Callable[[], int],
        helpers: Helpers,
        completions: Completions,
    ) -> None:
        """`queue_count` tells how many queues there are; `index_ms`, up to which store time the index is complete."""
        self.dirty: list[ConsumeQueue] = []
        """Queues with entries to write; always this one list, and each has its `dirty` set."""
        self.writing = False
        """Whether a pass over queues is under way."""
        self.queues_written = 0
        """Every record below this log offset has its entry in a queue file."""
        self._root = root
        self._log = log
        self._disk = disk
        self._boot = boot
        self._queues_interval_ms = queues_interval_ms
        self._queue_count = queue_count
        self._keep = TAIL_KEEP
        """How many written entries a queue may keep, as long as the pass takes."""
        self._index_ms = index_ms
        self._helpers = helpers
        self._completions = completions
        self._files = files
        self._pool = pool
        self._pool_through = 0
        """The entries before this place in the pool are in files when the pass ends, or their queues' own."""
        self._frozen: Frozen | None = None
        """The pool as it was when the pass began, if that is one over many queues."""
        self._left: deque[ConsumeQueue] = deque()
        """Queues that the pass has still to come to."""
        self._through = 0
        """The value of `queues_written` at the end of the pass, unless the disk is full."""
        self._pass_began_ms: int | None = None
        """When the last pass over many queues began, until it is known how long it took."""
        self._long_pass = False
        """Whether there was one since the last checkpoint."""
        self._entries_written = 0
        """How many entries of those records are in queue files; there can be more of later ones."""
        self._entries_in_files = self._late_in_files = 0
        """How many entries are in files; of those that the pass under way wrote, how many are of later records."""
        self._unsynced: set[str] = set()
        """Queue files and directories written since the last checkpoint, or a few too many for `SYNC_SINGLY_MAX`.

        The worker thread's own."""
        self._inherited = True
        """Queue files of an earlier process may be in the page cache only; the worker thread's own."""
        self._noted = (0, 0)
        """A log end and the time of that moment, ms: what is stored from then on lies behind it."""
        self._bound_written = Bound()
        self._next_queues_ms = self._next_bound_ms = self._next_checkpoint_ms = 0

    def begin(self, written_to: int, entries: int, *, inherited: bool) -> None:
        """Start, with all `entries` of records below `written_to` in files.

        `inherited`: another process wrote those, and may not have synced them.
        """
        self.queues_written = written_to
        self._entries_written = self._entries_in_files = entries
        self._inherited = inherited
        self.worker = self._helpers.worker("ropewalk-writer", self._completions)

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Have the queue's new entries written at the next opportunity."""
        if not queue.dirty:
            queue.dirty = True
            self.dirty.append(queue)

    # -- the work of time ----------------------------------------------------------------------------

    def clock_set_back(self) -> None:
        """Make all timers due now, as they were set by the old clock."""
        self._next_queues_ms = self._next_bound_ms = self._next_checkpoint_ms = 0

    def tick(self, now: int, readable_offset: int, stored_ms: int) -> None:
        """Submit the work due at `now`, ms, to the worker; `stored_ms` is when the newest record was stored."""
        if not self.writing:
            if self._pass_began_ms is not None:
                # With thousands of queues the entries of several seconds go down at the price of one's.
                pause = min(_PAUSE * (now - self._pass_began_ms), _PAUSE_MAX_MS)
                self._next_queues_ms = max(self._next_queues_ms, now + pause)
                self._pass_began_ms = None
            if now >= self._next_queues_ms:
                self._next_queues_ms = now + self._queues_interval_ms
                self._pass_began_ms = now if len(self.dirty) > _MANY else None
                self._long_pass |= self._pass_began_ms is not None
                self.write_queues(readable_offset)
        if now >= self._next_bound_ms:
            self._next_bound_ms = now + _BOUND_INTERVAL_MS
            self.write_bound(clean=False)
        if now >= self._next_checkpoint_ms + (_CHECKPOINT_LATER_MS if self._long_pass else 0):
            self._next_checkpoint_ms = now + _CHECKPOINT_INTERVAL_MS
            self._long_pass = False
            self._write_checkpoint(stored_ms)

    def write_queues(self, readable_offset: int) -> None:
        """Write queue entries back, in a pass over all that are dirty, some at a time. They name only readable records.

        Does nothing while one is under way.
        A disk without room keeps them in memory, to be tried again; whatever else goes wrong ends the process.
        """
        if self.writing:
            return  # what came since that pass began is for the next one
        self._left.extend(self.dirty)
        self.dirty.clear()
        self._through = max(self._through, readable_offset)
        self._late_in_files = 0
        self._pool_through = self._pool.end
        self._keep = max(_KEEP_MIN, min(TAIL_KEEP, _KEEP_ALL // (self._queue_count() + 1)))
        if self._pass_began_ms is not None and self._pool.queues and self._pool.log_end <= self._through:
            self._freeze()  # no entry there is of a record behind what the pass will claim
        self._write_some()

    def _freeze(self) -> None:
        """Have the pass write what waits in the pool as it is now, without any queue taking it first."""
        frozen = self._frozen = self._pool.frozen()
        self.worker.submit(lambda: self._files.hold(frozen.pieces), lambda _result: None)

    def _thaw(self) -> None:
        if self._frozen is not None:
            self._frozen = None
            self.worker.submit(lambda: self._files.hold({}), lambda _result: None)

    def _write_some(self) -> None:
        """Give the worker the next queues of the pass, or end it."""
        writes: list[Write] = []
        marks: list[tuple[ConsumeQueue, int, int, int]] = []
        waiting: list[Waiting] = []
        waiting_marks: list[tuple[ConsumeQueue, int]] = []
        while self._left and len(writes) + len(waiting) < _QUEUES_AT_ONCE:
            queue = self._left.popleft()
            found = self._frozen.waiting(queue) if self._frozen is not None else None
            if found is not None:
                # It stays dirty: what it gets meanwhile is behind this, and `done` sees it.
                waiting.append(queue.pooled_writes(*found))
                waiting_marks.append((queue, queue.epoch))
                continue
            queue.dirty = False
            writes += queue.pending_writes()
            marks.append((queue, queue.epoch, queue.readable, queue.unwritten_from(self._through)))
            if queue.readable < queue.next_offset:
                self.mark_dirty(queue)
        self.writing = bool(writes or waiting)
        if not self.writing:
            self.queues_written = max(self.queues_written, self._through)
            self._entries_written = self._entries_in_files - self._late_in_files
            self._pool.drop_before(self._pool_through)
            self._thaw()
            return

        many = self._pass_began_ms is not None

        def done(written: bool) -> None:
            for queue, epoch, at, late in marks:
                # Its topic was deleted meanwhile, or it began again at another number.
                if epoch != queue.epoch:
                    self.mark_dirty(queue)
                elif written:
                    self._entries_in_files += max(0, at - queue.written)
                    self._late_in_files += late
                    queue.mark_written(at, self._keep)
                else:
                    self.mark_dirty(queue)
            for (queue, epoch), (_directory, _size, first, through, newest) in zip(
                waiting_marks, waiting, strict=True
            ):
                queue.dirty = False
                if written and epoch == queue.epoch:
                    self._entries_in_files += through - first
                    if self._pool.mark_filed(queue, through, newest, self._keep):
                        continue
                self.mark_dirty(queue)
            if written:
                self._write_some()
                return
            self.writing = False
            self._through = self.queues_written
            self.dirty += self._left
            self._left.clear()
            self._thaw()

        self.worker.submit(
            lambda: unless_full(
                lambda: self._files.write(writes, self._note_unsynced, many=many, waiting=waiting)
            ),
            done,
        )

    def _note_unsynced(self, path: str, new: bool) -> None:
        """On the worker thread: this queue file, and if it is `new` the directories that name it, need a sync."""
        if len(self._unsynced) > SYNC_SINGLY_MAX:
            return
        self._unsynced.add(path)
        for _ in range(3 if new else 0):
            path = os.path.dirname(path)
            self._unsynced.add(path)

    def _write_checkpoint(self, stored_ms: int) -> None:
        """Write RocketMQ's checkpoint: a time before which all records and their queue entries are on disk.

        Each call states what the call before it took note of, as soon as that has become true.
        """
        noted_end, noted_ms = self._noted
        end = self._log.end_offset
        if noted_ms and self._log.flushed_offset >= noted_end and self.queues_written >= noted_end:
            self._noted = (end, stored_ms)
            index_ms = self._index_ms()
            self.worker.submit(lambda: self._sync_queues(noted_ms, index_ms), lambda _written: None)
        elif not noted_ms:
            self._noted = (end, stored_ms)

    def _sync_queues(self, stored_before_ms: int, index_ms: int) -> bool:
        """On the worker thread: what the checkpoint is about to claim is made true first."""
        if self._inherited or len(self._unsynced) > SYNC_SINGLY_MAX:
            self._disk.sync_file_systems(self._root, self._root / "consumequeue")
            self._inherited = False
        else:
            for name in sorted(self._unsynced):
                self._disk.sync_file(Path(name))
        self._unsynced.clear()
        path = self._root / "checkpoint"
        point = decode_checkpoint(self._disk.read_file(path))
        point.physic_msg_timestamp = point.logics_msg_timestamp = stored_before_ms
        point.index_msg_timestamp = max(index_ms, point.index_msg_timestamp)
        data = point.encode()
        return unless_full(lambda: self._disk.create_paged(path, len(data)).write_at(0, data))

    def write_bound(self, *, clean: bool) -> None:
        """Write the bound as it is now; `clean` says in addition that the log ends here, in good order."""
        assert self._log.flushed_offset <= self._log.end_offset, (
            self._log.flushed_offset,
            self._log.end_offset,
        )
        assert self.queues_written <= self._log.end_offset, (self.queues_written, self._log.end_offset)
        bound = Bound(
            self._log.flushed_offset,
            self.queues_written,
            self._entries_written,
            self._log.end_offset if clean else 0,
            clean,
            self._boot,
        )
        if bound == self._bound_written:
            return
        self._bound_written = bound
        path = self._root / "ropewalk" / "bound"
        data = bound.encode()

        def done(written: bool) -> None:
            if not written:
                self._bound_written = Bound()  # the older file claims less, and that is allowed

        self.worker.submit(
            lambda: unless_full(lambda: self._disk.create_paged(path, len(data)).write_at(0, data)), done
        )

    # -- queues that shrink --------------------------------------------------------------------------

    def give_up(self, entries: int) -> None:
        """Lower the bound's claim by so many entries, which are about to go."""
        self._entries_written -= entries
        self._entries_in_files -= entries
        self.write_bound(clean=False)

    def remove_files(self, entries: int, paths: Sequence[Path]) -> None:
        """Remove queue files, with so many entries in them, whose messages are gone."""
        self.give_up(entries)

        def remove() -> None:
            for path in paths:
                self._disk.remove(path)

        self.worker.submit(remove, lambda _result: None)

    def remove_queue(self, entries: int, directory: Path) -> None:
        """Remove the files of a queue that began anew, with so many entries in them, before any newer ones come."""
        self.give_up(entries)
        self.worker.submit(lambda: self._disk.remove_tree(directory), lambda _result: None)

    # -- close ---------------------------------------------------------------------------------------

    def finish(self, readable_offset: int, stored_ms: int) -> bool:
        """Write everything that is left; False if the disk had no room for all of it. Blocks.

        The log has to be flushed to its end. What has found no room is taken from the log at the next start.
        """
        self._pass_began_ms = None  # what is left is written by the thread: there is no loop to give way to
        self.worker.submit(self._files.stop, lambda _result: None)
        self._end_pass()
        self.write_queues(readable_offset)  # in a pass of its own, which is claimed for all that is there
        self._end_pass()
        end = self._log.end_offset
        clean = self.queues_written == end
        if clean:
            self._noted = (end, stored_ms)
            self._write_checkpoint(stored_ms)
        self.write_bound(clean=clean)
        self._drain()
        self.worker.stop()
        return clean

    def _end_pass(self) -> None:
        self._drain()
        while self.writing:
            self._drain()

    def _drain(self) -> None:
        """Have the worker finish what it was given, and take in the results. Blocks."""
        self.worker.stop()
        self.worker = self._helpers.worker("ropewalk-writer", self._completions)
        self._completions.run()


def unless_full(write: Callable[[], None]) -> bool:
    """Do it; False if the disk has no room, which passes. Everything else is raised."""
    try:
        write()
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    return True
