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

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ropewalk.errors import LocalProtocolError
from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.record import encode_record
from store import recovery
from store.bound import Bound, boot_id, decode_bound
from store.commitlog import CommitLog, StoreDamaged
from store.consume_queue import ConsumeQueue
from store.disk import Disk, DiskFull
from store.recovery import QueueGap, Recovered, Sighted, Verdict
from store.segment import FILLER_HEADER_SIZE, Segment
from store.workers import Completions, Flusher, Worker

_BOUND_INTERVAL_MS = 100
_CHECKPOINT_SLACK_MS = 3000
_CHECKPOINT_INTERVAL_MS = 10_000
_SPARE_WAIT_S = 5.0
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


class MessageStore:
    def __init__(
        self, config: StoreConfig, disk: Disk, now_ms: Callable[[], int], wake: Callable[[], None]
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
        self._lock_fd = -1
        self._boot = boot_id(disk)
        self._unreadable: deque[tuple[int, ConsumeQueue]] = deque()
        self._dirty: list[ConsumeQueue] = []
        self._last_store_ms = 0
        self._next_flush_ms = self._next_queues_ms = self._next_bound_ms = self._next_checkpoint_ms = 0
        self._queues_written = 0
        self._queues_writing = False
        self._bound_written = Bound()
        self._spare_wanted = False
        self._prefaulting = False
        self._flusher: Flusher | None = None

    # -- open ----------------------------------------------------------------------------------------

    def open(self) -> Recovered:
        """Lock, recover, be ready. Blocks for as long as recovery takes.

        Raises `StoreLocked`, `StoreDamaged` or `DiskFull`; nothing has been changed then.
        """
        self._lock_fd = self._disk.lock(self.config.root / "lock")
        try:
            self._refuse_what_is_not_built()
            self.log.load()
            self._load_queues()
            self.recovered = self._recover()
        except BaseException:
            self.log.close(keep_spare=True)
            self._disk.unlock(self._lock_fd)
            raise
        self.readable_offset = self.flushed_offset = self.log.flushed_offset = self._queues_written = (
            self.log.end_offset
        )
        self._last_store_ms = self.recovered.last_store_timestamp
        self._disk.write_file(self.config.root / "abort", str(os.getpid()).encode())
        self._flusher = Flusher(self.completions, self._note_flushed)
        self._writer = Worker("ropewalk-writer", self.completions)
        self._janitor = Worker("ropewalk-janitor", self.completions)
        self.tick()
        return self.recovered

    def _refuse_what_is_not_built(self) -> None:
        for name in ("consumequeue_ext", "batchconsumequeue", "consumequeue/%LMQ%"):
            directory = self.config.root / name
            if self._disk.directories(directory):
                raise StoreDamaged(
                    f"{directory} holds queues of a kind that Ropewalk does not read: nothing was changed"
                )

    def _load_queues(self) -> None:
        base = self.config.root / "consumequeue"
        for topic in self._disk.directories(base):
            for name in self._disk.directories(base / topic):
                if name.isdigit():
                    self.queue(topic, int(name)).load()

    def _recover(self) -> Recovered:
        root = self.config.root
        bound = decode_bound(self._disk.read_file(root / "ropewalk" / "bound"))
        data = self._disk.read_file(root / "checkpoint")
        checkpoint = Checkpoint.decode(data) if data else Checkpoint()
        checkpoint_ms = max(
            0, min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - _CHECKPOINT_SLACK_MS
        )
        if not self.log.segments:
            for queue in self._each_queue():
                queue.cut(0)
            return Recovered(0, 0)
        start = recovery.start_of_walk(self.log, bound, self._boot, checkpoint_ms)
        durable = max(self._last_used_base(), bound.flushed if bound is not None else 0)
        try:
            return self._walk(start, durable)
        except QueueGap:
            for queue in self._each_queue():
                queue.cut(0)
            return self._walk(self.log.min_offset, durable)

    def _last_used_base(self) -> int:
        """Where the last segment with a record begins: what lies before it was sealed, and flushed at the roll."""
        for segment in reversed(self.log.segments):
            if isinstance(recovery.look(segment, 0), Sighted):
                return segment.base_offset
        return self.log.min_offset

    def _walk(self, start: int, durable: int) -> Recovered:
        found = Recovered(end=start, scanned_from=start)
        arrived: list[Sighted] = []
        for seen in recovery.walk(self.log, start, durable, self.config.sync_flush):
            if isinstance(seen, Sighted):
                arrived.append(seen)
                continue
            verdict, found.end = seen
            if verdict is Verdict.REFUSE:
                raise recovery.refuse(self.log, found.end, durable)
        found.records = len(arrived)
        for queue in self._each_queue():
            count = recovery.confirm_queue(queue, self.log, found.end)
            if count != queue.next_offset or queue.next_offset == queue.min_offset:
                queue.cut(count)
            queue.raise_min(self.log.min_offset)
        for record in arrived:
            found.last_store_timestamp = record.store_timestamp
            if record.indexed:
                self._index_again(record, start)
        found.findings = tuple(
            recovery.cut(self.log, found.end, self.config.root / "ropewalk" / "tails", self._disk)
        )
        return found

    def _index_again(self, record: Sighted, start: int) -> None:
        queue = self.queue(record.topic, record.queue_id)
        if record.queue_offset < queue.next_offset:
            return  # its entry was written before the crash
        if record.queue_offset > queue.next_offset:
            if queue.next_offset or start > self.log.min_offset:
                raise QueueGap
            queue.start_at(record.queue_offset)
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
        until = time.monotonic() + _SPARE_WAIT_S
        while self.log.spare is None and self._spare_wanted and time.monotonic() < until:
            # The helper thread is creating this very file: waiting for it is shorter than refusing.
            time.sleep(0.001)
            self.run_completions()
        try:
            segment = self.log.segment_for(size)
        except DiskFull as exc:
            self.full = str(exc)
            raise
        self.full = None
        if self._flusher is not None:
            self.request_flush()  # a sealed segment counts as durable at the next start: make it so now
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
        segment = segments[-1] if segments else self.reserve(fixed)
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
        if now >= self._next_checkpoint_ms and not self._queues_writing:
            self._next_checkpoint_ms = now + _CHECKPOINT_INTERVAL_MS
            self._sync_queues()
        self._look_ahead()

    def _look_ahead(self) -> None:
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
            and room < max(2 * window, self.config.segment_size // 4)
        ):
            self._spare_wanted = True
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
            return  # tried again at the next tick; appends go on while the last segment has room
        self.full = None
        if spare.base_offset == (self.log.segments[-1].end_offset if self.log.segments else 0):
            self.log.spare = spare
        else:  # the loop could not wait and allocated this one itself
            spare.file.close()

    def _write_queues(self) -> None:
        """Write queue entries back. They name only readable records, and go down in one pass."""
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
                file = (
                    self._disk.create_paged(path, size)
                    if position == 0 or not self._disk.exists(path)
                    else self._disk.open_paged(path)
                )
                file.write_at(position, data)

        def done(_result: object) -> None:
            self._queues_writing = False
            for queue, at in marks:
                queue.note_written(at)
            self._queues_written = max(self._queues_written, through)

        self._writer.submit(write, done)

    def _sync_queues(self) -> None:
        """Write RocketMQ's checkpoint: times up to which log and queues are on disk."""
        stamp = self._last_store_ms if self.flushed_offset == self.log.end_offset else 0
        if not stamp:
            return
        written = self._queues_written == self.readable_offset

        def write() -> None:
            path = self.config.root / "checkpoint"
            old = self._disk.read_file(path)
            point = Checkpoint.decode(old) if old else Checkpoint()
            point.physic_msg_timestamp = stamp
            if written:
                point.logics_msg_timestamp = stamp
            self._disk.create_paged(path, len(point.encode())).write_at(0, point.encode())

        self._writer.submit(write, lambda _result: None)

    def _write_bound(self, *, clean: bool) -> None:
        bound = Bound(
            self.flushed_offset, self._queues_written, self.log.end_offset if clean else 0, clean, self._boot
        )
        if bound == self._bound_written:
            return
        self._bound_written = bound
        path = self.config.root / "ropewalk" / "bound"
        data = bound.encode()

        def write() -> None:
            self._disk.create_paged(path, len(data)).write_at(0, data)

        self._writer.submit(write, lambda _result: None)

    # -- close ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush everything, write queues, checkpoint and bound, release the lock. Blocks."""
        assert self._flusher is not None
        self.request_flush()
        self._flusher.stop()
        self.run_completions()
        self._writer.stop()
        self.run_completions()
        self._writer = Worker("ropewalk-writer", self.completions)
        self._write_queues()
        self._writer.stop()
        self.run_completions()
        self._writer = Worker("ropewalk-writer", self.completions)
        self._sync_queues()
        self._write_bound(clean=True)
        self._writer.stop()
        self._janitor.stop()
        self.run_completions()
        self._disk.sync_tree(self.config.root)
        self.log.close()
        self._disk.remove(self.config.root / "abort")
        self._disk.close()
        self._disk.unlock(self._lock_fd)
