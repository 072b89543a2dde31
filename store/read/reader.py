"""The read path: which records a consumer gets, and from where their bytes come without stopping the loop.

A read is planned on the loop from queue entries, then carried out in the cheapest way that cannot block it: slices
of the warm map, else `preadv` with RWF_NOWAIT (which answers only from the page cache), else a reader thread. The
same plan serves all three, so a test that makes every read cold exercises the same code.

Limits of one read follow the original: 32 messages or 256 KiB near the end of the log, 8 or 64 KiB far behind it,
one queue file, 16000 bytes of entries scanned when a filter lets little through; the first message always comes.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from ropewalk.format.record import MAGIC_V1
from store.index.helper import KeyIndex
from store.index.search import Found, Query, find_messages, read_record
from store.io.workers import Completions, Helpers, Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue, FrozenQueue
from store.read.cold_read_budget import WAIT_MAX_S, ColdShare
from store.read.warm import IDENTITY, RECORD_SIZE_MIN, WarmRead, read_warm

_SCAN_BYTES_MAX = 16_000
_FINDINGS_MAX = 100
_CHUNK = 256
"""Entries that are read at once for consumers behind the tail: a pull takes 32, and a read costs as much as those."""
_CHUNKS_MAX = 256
_MISSED_BYTES = 8 << 20
"""So much that is read behind a gap of the page cache counts as cold too: the kernel reads ahead of who reads."""
_V1_LAST = MAGIC_V1 & 0xFF
_iter_entries = ENTRY.iter_unpack


def read_pinned(
    worker: Worker,
    job: Callable[[], object],
    then: Callable[..., None],
    failed: Callable[[], None],
    segments: Sequence[Segment],
) -> None:
    """Run `job` on a reader's thread, then `then(result)`, or `failed()` after an OSError, on the loop.

    The segments that it reads keep their files until it is done.
    """
    for segment in segments:
        segment.pins += 1

    def read() -> object:
        try:
            return job()
        except OSError as exc:
            return exc

    def bring(result: object) -> None:
        for segment in segments:
            segment.pins -= 1
        if isinstance(result, OSError):
            failed()
        else:
            then(result)

    worker.submit(read, bring)


class GetStatus(enum.Enum):
    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """No read ends so: the broker's own answer to a pull after an administrator moved the group's offset."""


def nothing_at(queue: ConsumeQueue | None, offset: int) -> tuple[GetStatus, int, int, int] | None:
    """What whoever reads at an offset with no message is told: why, where to go on, and the queue's bounds."""
    if queue is None:
        return GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0
    low, high = queue.min_offset, queue.readable
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low, low, high
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high
    if offset > high:
        return GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high
    return None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Of one pull, near the end of the log ("memory") and far behind it ("disk")."""

    memory_count: int = 32
    memory_bytes: int = 262_144
    disk_count: int = 8
    disk_bytes: int = 65_536
    memory_window: int = 8 << 30
    """How far behind the end of the log still counts as memory: an estimate, 40 % of RAM by default."""
    warm_window: int = 256 << 20
    """How far behind the end of the log the map may be touched by the loop."""


@dataclass(slots=True)
class GetResult:
    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes | memoryview] = field(default_factory=list)
    """Whole records, several to a piece; a view of the log is in the warm window and should leave soon."""
    count: int = 0
    """Messages found."""
    last_physical: int = 0
    """Log offset of the last entry looked at: how far behind the end this consumer is."""
    size: int = 0
    """Bytes of all records."""


@dataclass(slots=True)
class _Piece:
    """One run of adjacent records in one segment."""

    segment: Segment
    position: int
    size: int
    sizes: list[int]
    numbers: list[int]
    """The queue offset of each."""


class Reader:
    """Carries out reads over one log. `threads` reader threads, at most `in_flight_max` cold reads queued."""

    def __init__(
        self,
        log: CommitLog,
        limits: ReadLimits,
        completions: Completions,
        *,
        threads: int = 2,
        helpers: Helpers | None = None,
        in_flight_max: int = 256,
    ) -> None:
        self.limits = limits
        self._log = log
        helpers = helpers or Helpers()
        self._workers = [helpers.worker(f"ropewalk-reader-{n}", completions) for n in range(threads)]
        self._in_flight_max = in_flight_max
        self._warm_window = min(limits.warm_window, limits.memory_window)
        self._chunks: dict[ConsumeQueue, tuple[int, int, bytes]] = {}
        self.share = ColdShare()
        """How many of the patient cold reads are made now."""
        self._put_off: deque[tuple[float, Callable[[], None], Callable[[None], None]]] = deque()
        """Those that are not: until when they wait at most, how they are made, and refused; the oldest first."""
        self._missed: dict[ConsumeQueue, int] = {}
        """Queues of which something was in no cache, and how much is still to be read until that is forgotten."""
        self.failed = 0
        """Reads that the disk refused, since the start."""
        self.findings: list[str] = []
        """Damage that reads came across, for people; whoever tells them clears it."""

    def get_warm(self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int) -> GetResult | None:
        """What `get` would find without a filter, if all of it is at hand; None says that `get` is to be asked."""
        found = self.find_warm(queue, offset, max_count, max_bytes)
        if found is None:
            return None
        records, count, size, last = found
        low, high = queue.min_offset, queue.readable
        return GetResult(GetStatus.FOUND, offset + count, low, high, records, count, last, size)

    def find_warm(self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int) -> WarmRead | None:
        """The same without the words around it. HOT."""
        log, limits = self._log, self.limits
        left = queue.readable - offset
        if left <= 0 or offset < queue.min_offset:
            return None
        count = max_count if max_count < limits.memory_count else limits.memory_count
        if count > left:
            count = left
        entries = self._entries(queue, offset, count if count > 0 else 1)
        if not entries:
            return None
        warm_from = log.end_offset - self._warm_window
        if warm_from < log.trusted_offset:
            warm_from = log.trusted_offset
        if max_bytes > limits.memory_bytes:
            max_bytes = limits.memory_bytes
        return read_warm(log, queue.queue_id, offset, entries, max_bytes, warm_from)

    def _entries(self, queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        """`ConsumeQueue.entries_nowait`, with some more kept of what is read from a file."""
        if offset >= queue.tail_base:
            return queue.entries_nowait(offset, count)
        chunk = self._chunks.get(queue)
        if chunk is not None and chunk[0] == queue.epoch:
            at = (offset - chunk[1]) * ENTRY_SIZE
            stop = at + count * ENTRY_SIZE
            if at >= 0 and stop <= len(chunk[2]):
                return chunk[2][at:stop]
        entries = queue.entries_nowait(offset, max(count, _CHUNK))
        if entries is None:  # what lies further on may be all that is not in memory
            return queue.entries_nowait(offset, count)
        self._chunks.pop(queue, None)
        if len(self._chunks) >= _CHUNKS_MAX:
            del self._chunks[next(iter(self._chunks))]
        self._chunks[queue] = queue.epoch, offset, entries
        return entries[: count * ENTRY_SIZE]

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        done: Callable[[GetResult | None], None],
        *,
        patient: bool = True,
    ) -> None:
        """Read from `queue` at `offset`; `done(result)` is called now if no disk is needed, else later.

        `matches(tags_code)` filters by the queue entry alone; None takes all. `done(None)` says that too many cold
        reads are waiting already, or that the disk could not read: answer "busy". A `patient` read of what is in no
        cache may have to wait a moment while the loop has no time (`cold_share`).
        """
        if (nothing := nothing_at(queue, offset)) is not None:
            done(GetResult(*nothing))
            return
        assert queue is not None
        if matches is None and (result := self.get_warm(queue, offset, max_count, max_bytes)) is not None:
            done(result)
            return
        # The first message always comes; and who asks for a million gets no more than others, so no more is looked
        # at for it either: the loop has other work.
        most = max(self.limits.memory_count, self.limits.disk_count)
        max_count = max(min(max_count, most), 1)
        scan = min(queue.readable - offset, max(_SCAN_BYTES_MAX // ENTRY_SIZE, max_count))
        # A batch rarely needs more entries than messages; a filter may have to look at all of them.
        first = scan if matches is not None else min(scan, max_count)
        entries = self._entries(queue, offset, first)
        if patient and self._is_cold(queue, entries):
            if self._put_off or not self.share.has_room:
                self._wait(
                    lambda: self.get(queue, offset, max_count, max_bytes, matches, done, patient=False), done
                )
                return
        if entries is not None:
            self._read(queue, offset, entries, max_count, max_bytes, matches, done)
            return
        file, position, size = queue.place(offset, first)
        self._submit(
            lambda: file.read_at(position, size),
            lambda data: self._read(queue, offset, data, max_count, max_bytes, matches, done),
            done,
        )

    def _is_cold(self, queue: ConsumeQueue, entries: bytes | None) -> bool:
        """Whether these entries, or what the first of them names, seem to be in no cache."""
        if entries is None or len(entries) < ENTRY_SIZE:
            return True
        physical: int = ENTRY.unpack_from(entries)[0]
        return queue in self._missed and physical < self._log.end_offset - self._warm_window

    def _note_missed(self, queue: ConsumeQueue) -> None:
        self._missed.pop(queue, None)
        if len(self._missed) >= _CHUNKS_MAX:
            del self._missed[next(iter(self._missed))]
        self._missed[queue] = _MISSED_BYTES

    def _spend(self, queue: ConsumeQueue, size: int) -> None:
        """So much of the queue was read from where the page cache had gaps a moment ago."""
        self.share.spend(size)
        left = self._missed[queue] - size
        if left > 0:
            self._missed[queue] = left
        else:
            del self._missed[queue]

    def _wait(self, read: Callable[[], None], done: Callable[[None], None]) -> None:
        if len(self._put_off) >= self._in_flight_max:
            done(None)
        else:
            self._put_off.append((self.share.now + WAIT_MAX_S, read, done))

    def go_on(self) -> None:
        """Make the reads that were put off, as far as they may be made by now; call often."""
        while self._put_off and (self.share.has_room or self._put_off[0][0] <= self.share.now):
            self._put_off.popleft()[1]()

    def _submit(
        self,
        job: Callable[[], object],
        then: Callable[..., None],
        done: Callable[[None], None],
        segments: Sequence[Segment] = (),
    ) -> None:
        """Run `job` on a reader thread; the segments it reads keep their files until it is done."""
        worker = min(self._workers, key=lambda w: w.pending)
        if worker.pending >= self._in_flight_max // len(self._workers):
            done(None)
            return

        def failed() -> None:
            # A place on disk that cannot be read is this consumer's trouble, and not the end of the process.
            self.failed += 1
            done(None)

        read_pinned(worker, job, then, failed, segments)

    def _read(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        done: Callable[[GetResult | None], None],
    ) -> None:
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.readable)
        entries = entries[
            : len(entries) - len(entries) % ENTRY_SIZE
        ]  # of a file that was cut while it was open
        if not entries:
            self._note_stale(queue, offset)
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = (
                offset + (queue.file_size - offset * ENTRY_SIZE % queue.file_size) // ENTRY_SIZE
            )
            done(result)
            return
        pieces = self._plan(queue, result, entries, max_count, max_bytes, matches)
        if pieces and self._is_cold(queue, entries):
            self._spend(queue, sum(piece.size for piece in pieces))
        records = self._carry_out_nowait(pieces)
        if records is not None:
            self._finish(queue, result, pieces, records)
            done(result)
            return

        self._note_missed(queue)

        def then(data: list[bytes]) -> None:
            self._finish(queue, result, pieces, data)
            done(result)

        self._submit(
            lambda: [_read_checked(piece) for piece in pieces],
            then,
            done,
            [piece.segment for piece in pieces],
        )

    def _plan(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
    ) -> list[_Piece]:
        limits, log = self.limits, self._log
        end, low = log.end_offset, log.min_offset
        memory_from = end - limits.memory_window
        pieces: list[_Piece] = []
        expected, total, count = -1, 0, 0
        segment: Segment | None = None
        for physical, size, tags_code in _iter_entries(entries):
            if physical >= memory_from:
                full = count >= limits.memory_count or total + size > limits.memory_bytes
            else:
                full = count >= limits.disk_count or total + size > limits.disk_bytes
            if count and (full or count >= max_count or total + size > max_bytes):
                break
            result.next_offset += 1
            result.last_physical = physical
            if matches is not None and not matches(tags_code):
                continue
            if 0 <= physical < low and size > 0:
                if not count:
                    result.status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if segment is None or not segment.base_offset <= physical < segment.end_offset:
                segment = log.find(physical)
                expected = -1
            if segment is None or not RECORD_SIZE_MIN <= size <= segment.end_offset - physical:
                self._note_stale(queue, result.next_offset - 1)  # no record is there, or has this size
                continue
            if physical == expected:
                piece = pieces[-1]
                piece.size += size
                piece.sizes.append(size)
                piece.numbers.append(result.next_offset - 1)
            else:
                number = result.next_offset - 1
                pieces.append(_Piece(segment, physical - segment.base_offset, size, [size], [number]))
            expected = physical + size
            total += size
            count += 1
        return pieces

    def _carry_out_nowait(self, pieces: list[_Piece]) -> list[bytes] | None:
        warm_from = max(self._log.end_offset - self.limits.warm_window, self._log.trusted_offset)
        data: list[bytes] = []
        for piece in pieces:
            if piece.segment.base_offset + piece.position >= warm_from:
                data.append(piece.segment.map[piece.position : piece.position + piece.size])
                continue
            checks = piece.segment.checks
            if checks is not None and not checks.is_checked(piece.position, piece.size):
                return None
            read = piece.segment.file.read_at_nowait(piece.position, piece.size)
            if read is None:
                return None
            data.append(read)
        return data

    def _finish(
        self, queue: ConsumeQueue, result: GetResult, pieces: list[_Piece], data: list[bytes]
    ) -> None:
        """Check that each record is the one its entry spoke of: a stale entry must not serve a foreign message."""
        queue_id, topic = queue.queue_id, queue.topic_bytes
        for piece, read in zip(pieces, data, strict=True):
            start = at = 0
            offset = piece.segment.base_offset + piece.position
            for size, number in zip(piece.sizes, piece.numbers, strict=True):
                if (
                    len(read) < at + size
                    or IDENTITY.unpack_from(read, at) != (size, queue_id, number, offset + at)
                    or not is_of_topic(read, at, topic)
                ):
                    self._note_stale(queue, number)
                    if at > start:
                        result.records.append(read[start:at])
                    start = at + size  # what comes behind it can be as good as ever
                else:
                    result.count += 1
                at += size
            if at > start:
                result.records.append(read[start:at])
        result.size = sum(map(len, result.records))
        if result.records:
            result.status = GetStatus.FOUND

    def _note_stale(self, queue: ConsumeQueue, number: int) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(
                f"entry {number} of queue {queue.queue_id} of topic {queue.topic} in {queue.directory} names no record "
                f"of that queue and is skipped: `ropewalk store verify` finds what is wrong, and `ropewalk store "
                f"repair` builds the queue files again"
            )

    def look_up(
        self,
        offset: int,
        find_queue: Callable[[str, int], ConsumeQueue | None],
        done: Callable[[bytes | None], None],
        busy: Callable[[None], None],
    ) -> None:
        """The readable record at log offset `offset`, or None if there is none; may call `done` later, or `busy`.

        A body can hold bytes that are a valid record for their place. Only what the entry of its queue names counts.
        """
        segment = self._log.find(offset)
        if segment is None or offset + 36 > self._log.end_offset:
            done(None)
            return

        def found(record: bytes | None) -> None:
            identity = _identity_of(record) if record is not None else None
            queue = find_queue(*identity[:2]) if identity is not None else None
            if record is None or identity is None or queue is None:
                done(None)
                return
            number = identity[2]
            if not queue.min_offset <= number < queue.readable:
                done(None)
                return

            def compare(entry: bytes) -> None:
                named = len(entry) == ENTRY_SIZE and ENTRY.unpack(entry)[:2] == (offset, len(record))
                done(record if named else None)

            if (entry := queue.entries_nowait(number, 1)) is not None:
                compare(entry)
                return
            file, position, size = queue.place(number, 1)
            self._submit(lambda: file.read_at(position, size), compare, busy)

        self._submit(lambda: read_record(segment, offset), found, busy, [segment])

    def query(
        self, index: KeyIndex, through: int, query: Query, done: Callable[[Found | None], None]
    ) -> None:
        """Messages that have a key, among those readable up to `through`; `done(None)` says "busy", as in `get`."""

        def find() -> Found:
            return find_messages(index.disk, index.place, self._log, query)

        index.when_built(through, lambda: self.run(find, done, done))

    def run(self, job: Callable[[], object], then: Callable[..., None], done: Callable[[None], None]) -> None:
        """Run any blocking look-up on a reader thread (offset by time, earliest store time)."""
        self._submit(job, then, done, tuple(self._log.segments))

    def stop(self) -> None:
        """Refuse what was put off, and finish what is under way. Blocks."""
        while self._put_off:
            self._put_off.popleft()[2](None)
        for worker in self._workers:
            worker.stop()


def _read_checked(piece: _Piece) -> bytes:
    """On a reader thread: the bytes of a piece, looked at first if an earlier process wrote them."""
    if piece.segment.checks is not None:
        piece.segment.checks.check(piece.position, piece.size)
    return piece.segment.file.read_at(piece.position, piece.size)


def _topic_at(data: bytes, at: int) -> int:
    """Where the record that begins at `at` has its topic, the length first."""
    flags = data[at + 39]  # the low byte of the sys flag: two bits say how long the hosts are
    body_at = at + 84 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    return body_at + 4 + int.from_bytes(data[body_at : body_at + 4], "big")


def _identity_of(record: bytes) -> tuple[str, int, int] | None:
    """Topic, queue and queue offset of a whole record; None if its topic is no text."""
    _size, queue_id, number, _offset = IDENTITY.unpack_from(record)
    at = _topic_at(record, 0)
    width = 1 if record[7] == _V1_LAST else 2
    size = int.from_bytes(record[at : at + width], "big")
    try:
        return record[at + width : at + width + size].decode(), queue_id, number
    except UnicodeDecodeError:
        return None


def is_of_topic(data: bytes, at: int, topic: bytes) -> bool:
    """Whether the record that begins at `at` has this topic."""
    topic_at = _topic_at(data, at)
    if data[at + 7] == _V1_LAST:
        return data[topic_at : topic_at + 1 + len(topic)] == (len(topic) & 0xFF).to_bytes(1, "big") + topic
    return data[topic_at : topic_at + 2 + len(topic)] == len(topic).to_bytes(2, "big") + topic


def offset_by_time(queue: FrozenQueue, log: CommitLog, timestamp: int, *, upper: bool = False) -> int:
    """The queue offset to start from for a time in ms. Blocks; for a reader thread.

    LOWER: the first message stored at or after `timestamp`, or the end. `upper`: the last one stored at or before it.
    """
    low, high = queue.min_offset, queue.readable
    first, last = low, high
    while low < high:
        middle = (low + high) // 2
        stored = store_time(queue, log, middle)
        if stored < timestamp or (upper and stored == timestamp):
            low = middle + 1
        else:
            high = middle
    if upper:
        return max(first, low - 1) if first < last else first
    return low


def store_time(queue: FrozenQueue, log: CommitLog, queue_offset: int) -> int:
    """When message `queue_offset` was stored, ms; -1 if its record is gone. Blocks."""
    return record_time(log, queue.read(queue_offset)[0])


def record_time(log: CommitLog, physical: int) -> int:
    """When the record at log offset `physical` was stored, ms; -1 if it is gone. Blocks."""
    segment = log.find(physical)
    if segment is None:
        return -1
    head = segment.file.read_at(physical - segment.base_offset, 80)
    if len(head) < 80:
        return -1
    at = 48 + (20 if struct.unpack_from(">i", head, 36)[0] & 0x10 else 8)
    return int(struct.unpack_from(">q", head, at)[0])
