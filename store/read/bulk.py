"""Read many messages of one queue at once, as slices of the log: for data pipelines, not for consumers.

A read is planned on the loop from queue entries, up to a count and a size that are far above those of a pull. What
stands inside the warm window leaves as views of the segments' maps. Records that lie side by side are one piece,
small pieces are joined (below `VIEW_MIN` a copy is cheaper than an entry in the kernel's vector), and nothing else
is copied. Everything older is read by a thread of this reader's own, so that neither the loop nor an ordinary pull
waits for it: adjacent and nearly adjacent records with one `pread`, at most `in_flight_max` reads in the queue.

Whatever an entry names is compared with the record that is found there (size, queue, number, place), as ordinary
reads do. What does not fit is left out, and shows as a gap between the numbers of the records.

A view keeps a segment's map alive but not its file, so retention never waits for it. Whoever sends views has to see
to it that they do not grow cold (`broker.remoting.connection.Connection.detach_from_map`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.io.workers import Completions, Helpers, Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.read.columns import IDENTITY, RECORD_SIZE_MIN, VIEW_MIN
from store.read.one_by_one import is_of_topic
from store.read.pinned import read_pinned
from store.read.results import GetStatus, out_of_range

COUNT_MAX = 8192
"""Entries of one read, for which the loop needs two or three milliseconds."""

_GAP_MAX = 4096
_SPAN_MAX = 1 << 20

Piece = bytes | memoryview


@dataclass(slots=True)
class BulkResult:
    """The messages that a read found. `pieces` are whole records in the order of the queue."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0
    count: int = 0


@dataclass(slots=True)
class _Run:
    """Adjacent or nearly adjacent records of one segment, read together with the gaps between them."""

    segment: Segment
    start: int
    end: int
    records: list[tuple[int, int, int]]
    """The position, size and queue offset of each."""


class BulkReader:
    """Reader of long ranges of the queues of one log."""

    def __init__(
        self,
        log: CommitLog,
        completions: Completions,
        *,
        warm_window: int,
        helpers: Helpers | None = None,
        in_flight_max: int = 8,
    ) -> None:
        self.warm_window = warm_window
        self.failed = 0
        """The reads that the disk refused, since the start."""
        self._log = log
        self._completions = completions
        self._helpers = helpers or Helpers()
        self._in_flight_max = in_flight_max
        self._worker: Worker | None = None

    def get(
        self,
        queue: ConsumeQueue | None,
        offset: int,
        end: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        done: Callable[[BulkResult | None], None],
    ) -> None:
        """Read `[offset, end)` of a queue as far as `max_bytes` go; the first message always comes.

        `done(result)` is called now if no disk is needed, else later. `matches(tags_code)` filters by the queue entry
        alone. `done(None)` says that too many reads are waiting, or that the disk could not read: answer "busy".
        """
        if (status := out_of_range(queue, offset)) is not None:
            done(BulkResult(*status))
            return
        assert queue is not None
        count = max(1, min(end - offset, queue.readable - offset, COUNT_MAX))
        entries = queue.entries_nowait(offset, count)
        if entries is not None:
            self._read(queue, offset, entries, max_bytes, matches, done)
            return
        file, position, size = queue.place(offset, count)
        self._submit(
            lambda: file.read_at(position, size),
            lambda data: self._read(queue, offset, data, max_bytes, matches, done),
            done,
            [],
        )

    def stop(self) -> None:
        """Finish the reads that are under way. Blocks."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def _submit(
        self,
        job: Callable[[], object],
        then: Callable[..., None],
        done: Callable[[None], None],
        segments: list[Segment],
    ) -> None:
        worker = self._worker
        if worker is None:
            worker = self._worker = self._helpers.worker("ropewalk-bulk-reader", self._completions)
        if worker.pending >= self._in_flight_max:
            done(None)
            return

        def failed() -> None:
            self.failed += 1
            done(None)

        read_pinned(worker, job, then, failed, segments)

    def _read(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: bytes,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        done: Callable[[BulkResult | None], None],
    ) -> None:
        result = BulkResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.readable)
        entries = entries[
            : len(entries) - len(entries) % ENTRY_SIZE
        ]  # of a file that was cut while it was open
        if not entries:
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset += (queue.file_size - offset * ENTRY_SIZE % queue.file_size) // ENTRY_SIZE
            done(result)
            return
        warm_from = max(self._log.end_offset - self.warm_window, self._log.trusted_offset)
        if int.from_bytes(entries[:8], "big") >= max(warm_from, self._log.min_offset):
            # Later entries of a queue stand further on in the log: if the first one is warm, all are.
            self._read_warm(queue.queue_id, result, entries, max_bytes, matches, warm_from)
            done(result)
            return
        runs = self._plan(result, entries, max_bytes, matches)
        queue_id, topic = queue.queue_id, queue.topic_bytes

        def then(found: tuple[list[Piece], int, int]) -> None:
            result.pieces, result.size, result.count = found
            result.status = GetStatus.FOUND if result.count else GetStatus.NO_MATCHED_MESSAGE
            done(result)

        self._submit(lambda: _carry_out(runs, queue_id, topic), then, done, [run.segment for run in runs])

    def _read_warm(
        self,
        queue_id: int,
        result: BulkResult,
        entries: bytes,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
        warm_from: int,
    ) -> None:
        """Read records that stand in the warm window of the map. HOT: 0.4 us a message."""
        find, identity = self._log.find, IDENTITY.unpack_from
        pieces: list[Piece] = []
        small: list[memoryview] = []
        number = result.next_offset
        total = count = base = end = 0
        start = expected = -1  # the run that is being collected, as log offsets
        data = view = memoryview(b"")

        def close_run() -> None:
            if expected - start >= VIEW_MIN:
                if small:
                    pieces.append(b"".join(small))
                    small.clear()
                pieces.append(view[start - base : expected - base])
            elif expected > start:
                small.append(view[start - base : expected - base])

        for physical, size, tags_code in ENTRY.iter_unpack(entries):
            if count and total + size > max_bytes:
                break
            if matches is not None and not matches(tags_code):
                number += 1
                continue
            if not base <= physical < end:
                segment = find(physical) if physical >= warm_from else None
                if segment is None:
                    number += 1
                    continue
                close_run()
                start = expected = -1
                base, end = segment.base_offset, segment.end_offset
                data = view = memoryview(segment.map)
            at = physical - base
            if not RECORD_SIZE_MIN <= size <= end - physical or identity(data, at) != (
                size,
                queue_id,
                number,
                physical,
            ):
                number += 1  # a stale entry: never serve what it points at, and do not stay on it either
                continue
            if physical != expected:
                close_run()
                start = physical
            expected = physical + size
            total += size
            count += 1
            number += 1
        close_run()
        if small:
            pieces.append(b"".join(small))
        result.next_offset, result.size, result.count = number, total, count
        if count:
            result.pieces, result.status = pieces, GetStatus.FOUND

    def _plan(
        self,
        result: BulkResult,
        entries: bytes,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
    ) -> list[_Run]:
        log, low = self._log, self._log.min_offset
        runs: list[_Run] = []
        run: _Run | None = None
        total = count = 0
        for physical, size, tags_code in ENTRY.iter_unpack(entries):
            if count and total + size > max_bytes:
                break
            number = result.next_offset
            result.next_offset += 1
            if physical < low or (matches is not None and not matches(tags_code)):
                continue
            if run is None or not run.segment.base_offset <= physical < run.segment.end_offset:
                segment = log.find(physical)
                if segment is None:
                    continue
                run = None
            else:
                segment = run.segment
            at = physical - segment.base_offset
            if not RECORD_SIZE_MIN <= size <= segment.size - at:
                continue
            if (
                run is None
                or at < run.end
                or at - run.end > _GAP_MAX
                or (at + size - run.start > _SPAN_MAX and at > run.start)
            ):
                run = _Run(segment, at, at, [])
                runs.append(run)
            run.records.append((at, size, number))
            run.end = at + size
            total += size
            count += 1
        return runs


def _carry_out(runs: list[_Run], queue_id: int, topic: bytes) -> tuple[list[Piece], int, int]:
    """Read the runs on the reader's thread; return records that are what their entries say, bytes and count."""
    pieces: list[Piece] = []
    total = count = 0
    for run in runs:
        segment = run.segment
        data = segment.file.read_at(run.start, run.end - run.start)
        view = memoryview(data)
        start = expected = 0
        for position, size, number in run.records:
            at = position - run.start
            if segment.checks is not None:
                segment.checks.check(position, size)
            if (
                at + size > len(data)
                or IDENTITY.unpack_from(data, at) != (size, queue_id, number, segment.base_offset + position)
                or not is_of_topic(data, at, topic)
            ):
                continue
            if at != expected:
                if expected > start:
                    pieces.append(view[start:expected])
                start = at
            expected = at + size
            total += size
            count += 1
        if expected > start:
            pieces.append(view[start:expected])
    # One piece: the thread has the time that the loop has not, and nothing of a gap is kept alive.
    return ([b"".join(pieces)] if pieces else []), total, count
