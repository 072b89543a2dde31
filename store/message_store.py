"""The facade of the store: what a broker appends, reads and flushes, and the order in which promises are kept.

One owner, the loop, calls everything here. A turn of the loop appends any number of records and ends with
`publish()`, which moves the readable bound and hands work to the helper threads; `run_completions()` brings back
what they finished. Nothing in between waits.

    log.min_offset <= log.flushed_offset, readable_offset <= log.end_offset

*Append* makes bytes readable to the process, *flush* makes them survive power loss, *publish* lets consumers see
them. Under ASYNC_FLUSH a record is readable when its turn ends; under SYNC_FLUSH when its flush is done, so that no
consumer sees a message whose producer has not been answered. `limit_readable` holds them back in addition, for
whoever decides about answers elsewhere; a store that follows another one (`follow`) shows whole records only.

Left to others: how messages become records (`append`), the segment they go to (`room`), the queues (`queue_table`),
the entries of another broker's records (`dispatcher`), a log that a group may cut (`group_log`), what a start has to
set right (`opening`), the files that follow the log (`write_back`), room and pages ahead of it (`preallocate`), and
what goes on beside it (`upkeep`): key index, retention, checksums.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from store.append import Appender
from store.config import StoreConfig
from store.dispatcher import Dispatcher
from store.entries.entry_log import EntryLog
from store.follow import Follower
from store.group_log import GroupLog
from store.io.disk import Disk, DiskFull
from store.io.durations import Durations
from store.io.workers import Completions, Flusher, Helpers
from store.log.commitlog import CommitLog
from store.log.durable_bound import boot_id
from store.log.limits import NO_LIMIT
from store.log.placing import ENTRY, PLAIN
from store.log.preallocate import Preallocator
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.queues.deleted_topics import DeletedTopics
from store.queues.entry_pool import EntryPool
from store.queues.queue_table import QueueTable
from store.queues.queue_writer import await_writer, queue_file_writer
from store.recovery.opening import Opening
from store.recovery.scan import Recovered
from store.replica import Replica
from store.room import SegmentRoom
from store.upkeep import Upkeep
from store.write_back import SYNC_SINGLY_MAX, WriteBack, unless_full


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
        self.table = QueueTable(config.root / "consumequeue", config.queue_file_size, disk)
        self.queues = self.table.by_topic
        self.queue = self.table.queue
        self.find_queue = self.table.find
        self.completions = Completions(wake)
        self.readable_offset = 0
        self.now = now_ms()
        """Store time of this turn, ms; never goes back, so that records stay ordered by it."""
        self.follower: Follower | None = None
        """The one writer of this log while it is a slave's."""
        self.readable_limit = NO_LIMIT
        """The limit that `limit_readable` set last."""
        self.removable_offset = NO_LIMIT if config.ledger is None else 0
        """The log offset behind which retention removes nothing, however old: in DLedger mode the group's tables are
        records of the log, and whoever has them in a snapshot says so."""
        self.deletions: dict[str, int] = {}
        """In DLedger mode: topics that were deleted here, and the end of the log then, until the group hears of it."""
        self.recovered = Recovered(0, 0)
        self._now_ms = now_ms
        self._disk = disk
        self._helpers = helpers or Helpers()
        self._lock_fd = -1
        self._queues_lock = config.root / "ropewalk" / "queues.lock"
        self._deleted = DeletedTopics(config.root / "ropewalk" / "deleted", disk)
        self.last_store_ms = 0
        """The store time of the newest record, ms; for a slave by its master's clock."""
        self._next_flush_ms = self._ticked_ms = 0
        boot = boot_id(disk)
        self._flusher: Flusher | None = None
        self.upkeep = Upkeep(config, self.log, self.table, disk, now_ms, self._helpers, self.completions)
        self.damage = self.upkeep.damage
        """The known damage; None where nothing is under checksums."""
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
        self._room = SegmentRoom(
            self.log, self._preallocator, self._helpers, self.request_flush, self.run_completions
        )
        self.reserve = self._room.reserve
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
            self.table.__len__,
            lambda: self.upkeep.index.full_timestamp if self.upkeep.index is not None else 0,
            self._helpers,
            self.completions,
        )
        self.group_log: GroupLog | None = None
        """The log of this store as one of entries, in DLedger mode."""
        self.entry_log: EntryLog | None = None
        """The log of entries in DLedger mode: what a group's core saves, cuts, places and flushes."""
        self.replica: Replica | None = None
        """The part that has this store lead or follow in DLedger mode, while it is open."""
        if config.ledger is not None:
            self.group_log = GroupLog(config.root, config.ledger, self.log, self.table, disk)
            self.entry_log = self.group_log.entries
        self._appender = Appender(
            self.log,
            config.store_host,
            self.reserve,
            self._write_back.dirty,
            self.pool,
            self.entry_log.writer if self.entry_log is not None else Segment.write,
        )
        self._appender.deferred = config.sync_flush
        self._appender.now = self.now
        self.put = self._appender.put
        self.put_alike = self._appender.put_alike
        self.put_columns = self._appender.put_columns
        self.put_written = self._appender.put_written
        self.put_wide = self._appender.put_wide
        self.sizes = self._appender.sizes
        self.woken = self._appender.woken
        """Queues with somebody in `held` that became longer; whoever answers them clears this."""
        self.dispatcher = Dispatcher(
            self.table, self._write_back, self._appender, config.delay_levels.delay_of, self._stored_until
        )
        self._opening = Opening(
            config.root,
            self.log,
            self.table,
            self._write_back.mark_dirty,
            self._deleted,
            self.upkeep.checksums,
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
            if self.group_log is not None:
                self.recovered = self.group_log.recover(self._opening, self.config.queue_file_size)
            else:
                self.recovered = self._opening.run()
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
        self.log.flushed_offset = min(self.recovered.durable, end)
        if self.config.sync_flush and self.log.flushed_offset < end:
            # What a kill left in the page cache is served from now on, so it has to be durable first.
            for file in self.log.unflushed(end):
                file.sync()
            self.log.flushed_offset = end
        self.readable_offset = end
        if self.entry_log is not None:
            # What is not known to be committed may be replaced: it is neither shown nor claimed.
            end = self.entry_log.commit[2]
            self.readable_offset = self.log.flushed_offset = end
        self.last_store_ms = self.recovered.last_store_timestamp
        abnormal = self._disk.exists(self.config.root / "abort")
        try:
            self._disk.write_file(self.config.root / "abort", str(os.getpid()).encode())
        except OSError:
            self.release()
            raise
        self._flusher = self._helpers.flusher(self.completions, self._note_flushed)
        self._write_back.begin(
            self.recovered.scanned_from,
            sum(queue.written - queue.first for queue in self.table),
            inherited=self._opening.inherited,
        )
        self._preallocator.begin(self.log.end_offset)
        if (group := self.group_log) is not None:
            group.begin(self._flusher, self._preallocator, self._helpers, self.completions)
            group.entries.look_for_damage = self.upkeep.look_for_damage
            self._room.entry_host = group.host
            self.replica = Replica(self, self.dispatcher, self._appender, group.entries)
        self.upkeep.open(
            self.readable_offset,
            end,
            self._write_back.remove_files,
            self._opening.index_checkpoint_ms,
            abnormal=abnormal,
        )
        self.tick()
        return self.recovered

    # -- queues --------------------------------------------------------------------------------------

    def delete_topic(self, topic: str, done: Callable[[bool], None], before: int = NO_LIMIT) -> None:
        """Forget a topic's queues at once, then remove their files; its records stay where they are.

        Those queues stay whose last record is behind log offset `before`: of the topic that was created again since.
        `done(False)` says that the disk had no room to note the deletion: the next start may bring the queues back.
        Whoever holds one of the queues finds it empty.
        """
        queues = self.queues.get(topic, {})
        gone = [queue for queue in queues.values() if queue.max_physical <= before]
        if self.follower is not None:
            self.follower.forget_queues()
        if self.replica is not None:
            self.replica.forget_queues()
        entries = sum(queue.written - queue.first for queue in gone) + self.dispatcher.forget(gone)
        for queue in gone:
            del queues[queue.queue_id]
            queue.forget()
            self.pool.forget(queue)
        if not queues:
            self.queues.pop(topic, None)
        if gone:
            self._appender.forget(gone)
        if self.may_be_cut and before == NO_LIMIT:
            self.deletions[topic] = self.log.end_offset
        # Behind the shown end the log may be cut, and get other records, which nobody deleted.
        end = self.readable_offset if self.may_be_cut else self.log.end_offset
        text = self._deleted.note(topic, min(before, end), self.log.min_offset)
        self._write_back.give_up(entries)
        directory = self.table.directory / topic
        directories = [queue.directory for queue in gone] if queues else [directory]

        def remove() -> None:
            self._deleted.save(text)
            for each in directories:
                self._disk.remove_tree(each)

        self._write_back.worker.submit(lambda: unless_full(remove), done)

    # -- append --------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Fix the store time of the appends that follow."""
        self.now = self._appender.now = max(self._now_ms(), self.last_store_ms)
        if not self.follows:  # the records of a slave were stored when its master says
            self.last_store_ms = self.now

    def refresh_time(self) -> None:
        """Move the store time on within a turn, which may have begun before the next message was sent.

        A message that has to wait counts from its store time, and may not come early by a long turn.
        """
        now = self._now_ms()
        if now > self.now and not self.follows:
            self.now = self._appender.now = self.last_store_ms = now

    def publish(self) -> None:
        """End a turn: let consumers see what may be seen, and ask for the flush that is owed."""
        if self.entry_log is not None:
            return  # both are the group's decision
        if self.config.sync_flush and self.whole_end > self.log.flushed_offset:
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
    def shortage(self) -> str:
        """The words for an append that stored less than it was given."""
        if self.full is None:
            return "busy: the next file of the log is being prepared; nothing was stored, try again"
        return f"the disk is full, nothing was stored: {self.full}"

    @property
    def refusal(self) -> str | None:
        """The reason why the disk lets no message be taken, or None; reads go on."""
        cleaner = self.upkeep.cleaner
        return cleaner.refusal if cleaner is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Return warnings about the disk, a sentence each, which refuse no message."""
        cleaner = self.upkeep.cleaner
        note = cleaner.forced.note if cleaner is not None else None
        return (note,) if note is not None else ()

    @property
    def flush_times(self) -> Durations | None:
        """The durations of the log's flushes; None before the store is open."""
        return self._flusher.times if self._flusher is not None else None

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
        if self.group_log is not None:
            self.group_log.host.request_flush()
            return
        assert self._flusher is not None
        end = self.whole_end
        self._flusher.request(end, self.log.unflushed(end))

    def flush_now(self) -> None:
        """Flush the log up to its last whole record. Blocks: for a broker that closes."""
        flushed = self.log if self.group_log is None else self.group_log.host
        while flushed.flushed_offset < self.whole_end:
            self.request_flush()
            self._helpers.pause()
            self.run_completions()

    def _note_flushed(self, offset: int) -> None:
        if self.group_log is not None:
            self.group_log.flushed(offset, self.readable_limit)
            return
        log, end = self.log, self.whole_end
        assert log.flushed_offset <= offset <= end, (log.flushed_offset, offset, end)
        log.flushed_offset = offset
        if self.config.sync_flush:
            self._move_readable()

    def limit_readable(self, offset: int) -> None:
        """Let consumers see nothing behind this offset, which no record spans; NO_LIMIT lifts it for good.

        What was put together into one segment is shown together, when the limit is behind all of it.
        """
        self.readable_limit = offset
        if self.group_log is not None:
            self.group_log.claim_flushed(offset)
        self._move_readable()
        self._appender.deferred = self.config.sync_flush or offset != NO_LIMIT

    def _move_readable(self) -> None:
        if self.readable_limit <= self.readable_offset:  # HOT: as it mostly is where slaves are waited for
            return
        offset = self.log.flushed_offset if self.config.sync_flush else self.whole_end
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
        self.dispatcher.shown(self.readable_offset)

    # -- following another log -----------------------------------------------------------------------

    def follow(self) -> Follower:
        """Become a slave: from now on the log grows by a master's bytes alone, behind all that was put before."""
        assert self.follower is None and self._flusher is not None
        self.follower = Follower(self.log, self.dispatcher, self._room.next_segment, self._flusher.sync_cut)
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

    def _stored_until(self, time_ms: int) -> None:
        if time_ms > self.last_store_ms:
            self.last_store_ms = time_ms

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
            if self.whole_end > self.log.flushed_offset:
                self.request_flush()
        self._write_back.tick(now, self.readable_offset, self.last_store_ms)
        self._preallocator.tick(now)
        self.upkeep.tick(now, self.readable_offset, self.log.flushed_offset, self.removable_offset)

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
            assert self.log.flushed_offset == self.log.end_offset, (
                "the flusher failed before; its error was raised then"
            )
        self.upkeep.close(self.readable_offset, self.log.flushed_offset)
        clean = self._write_back.finish(self.readable_offset, self.last_store_ms)
        self._preallocator.stop()
        self.run_completions()
        if len(self.table) > SYNC_SINGLY_MAX:
            root = self.config.root
            self._disk.sync_file_systems(root, root / "consumequeue", self.config.log_directory)
        else:
            self._disk.sync_tree(self.config.root)
        self.log.close()
        if clean:
            self._disk.remove(self.config.root / "abort")
        self._disk.close()
        self._disk.unlock(self._lock_fd)
