"""Read messages of a queue for consumers, from wherever their bytes are, without stopping the loop.

A read is planned on the loop from queue entries. Then its bytes are looked for in this order:

    the window        the map of the log near its end, whose pages the kernel has (`ReadLimits.warm_window`)
    the page cache    bytes of the map that the kernel says it has (`store.read.log_blocks`)
    the disk          blocks that a reader thread brings; the read then goes on as if they had been there

and the records are cut out and proved by columns (`store.read.columns`). What is odd about an answer, large, or far
apart goes through `store.read.one_by_one`, which reads record by record from the same three places.

Limits of one read follow the original: 32 messages or 256 KiB near the end of the log, 8 or 64 KiB far behind it,
one queue file, 16000 bytes of entries scanned when a filter lets little through; the first message always comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.index.helper import KeyIndex
from store.index.search import Found, Query, find_messages, read_record
from store.io.disk import Map
from store.io.workers import Completions, Helpers, Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.read.block_fetcher import BlockFetcher
from store.read.cold_read_budget import WAIT_MAX_S, ColdReadBudget
from store.read.columns import RECORD_SIZE_MIN, VIEW_MIN, cut_records, entry_columns
from store.read.one_by_one import Run, identity_of, plan_runs, prove_runs, read_run, read_runs_nowait
from store.read.pinned import hold_until, read_pinned
from store.read.results import GetResult, GetStatus, ReadLimits, ResidentRead, out_of_range

_SCAN_BYTES_MAX = 16_000
_FINDINGS_MAX = 100
_CHUNK = 256
"""Entries that are read at once for consumers behind the tail: a pull takes 32, and a read costs as much as those."""
_CHUNKS_MAX = 256
_MISSED_BYTES = 8 << 20
"""So much that is read behind a gap of the page cache counts as cold too: the kernel reads ahead of consumers."""
_SPREAD_MAX = 16
"""How much longer than its records the part of the log may be that they stand in, to be brought in whole blocks."""
_FETCHES_MAX = 12
"""Blocks that are brought for one answer, one after the other; more if others push them out again."""
_iter_entries = ENTRY.iter_unpack


class Reader:
    """Reader of the messages of one log, with `threads` reader threads, at most `in_flight_max` cold reads queued."""

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
        self.cold_budget = ColdReadBudget()
        """The limit of the deferrable cold reads."""
        self._fetcher = BlockFetcher(log, self.cold_budget, self._free_worker)
        self.blocks = self._fetcher.blocks
        self._deferred: deque[tuple[float, Callable[[], None], Callable[[None], None]]] = deque()
        """Deferred reads, the oldest first: until when they wait at most, how they are made, and refused."""
        self._missed: dict[ConsumeQueue, int] = {}
        """Queues of which something was in no cache, and how much is still to be read until that is forgotten."""
        self.failed = 0
        """Reads that the disk refused, since the start."""
        self.findings: list[str] = []
        """Damage that reads came across, in words for people; the broker logs and clears it."""

    def is_far_behind(self, queue: ConsumeQueue, offset: int) -> bool:
        """Tell whether a message stands at `offset`, and further than `catch_up_distance` from the log's end. HOT."""
        if not queue.min_offset <= offset < queue.readable:
            return False
        entries = self._entries(queue, offset, 1)
        if entries is None:
            return True  # what is new is in memory
        if len(entries) < ENTRY_SIZE:
            return False
        physical: int = ENTRY.unpack_from(entries)[0]
        return physical < self._log.end_offset - self.limits.catch_up_distance

    def get_resident(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int
    ) -> GetResult | None:
        """Return the result of `get` without a filter, if all of it is in memory; None leaves it to `get`."""
        found = self.find_resident(queue, offset, max_count, max_bytes)
        if found is None:
            return None
        records, count, size, last = found
        low, high = queue.min_offset, queue.readable
        return GetResult(GetStatus.FOUND, offset + count, low, high, records, count, last, size)

    def find_resident(
        self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int
    ) -> ResidentRead | None:
        """Return the messages of `get_resident` without the words around them. HOT."""
        log, limits = self._log, self.limits
        left = queue.readable - offset
        if left <= 0 or offset < queue.min_offset:
            return None
        count = max_count if max_count < limits.memory_count else limits.memory_count
        if count > left:
            count = left
        entries = self._entries(queue, offset, count if count > 0 else 1)
        if entries is None or len(entries) < ENTRY_SIZE:
            return None
        count = len(entries) // ENTRY_SIZE
        offsets, sizes = entry_columns(entries[: count * ENTRY_SIZE], count)
        end = log.end_offset
        byte_limit = limits.memory_bytes
        if offsets[0] < end - limits.memory_window:
            if offsets[-1] >= end - limits.memory_window:
                return None
            byte_limit = limits.disk_bytes
            count = min(count, limits.disk_count)
            offsets, sizes = offsets[:count], sizes[:count]
        if byte_limit > max_bytes:
            byte_limit = max_bytes
        total = sum(sizes)
        if total > byte_limit and count > 1:
            count = max(1, bisect_right(list(accumulate(sizes)), byte_limit))
            offsets, sizes = offsets[:count], sizes[:count]
            total = sum(sizes)
        first, last = offsets[0], offsets[-1]
        if first < log.min_offset or min(sizes) < RECORD_SIZE_MIN:
            return None
        window_from = end - self._warm_window
        if window_from < log.trusted_offset:
            window_from = log.trusted_offset
        is_cold = False
        if first < window_from:
            is_cold = queue in self._missed
            if is_cold and (self._deferred or not self.cold_budget.has_room):
                return None
            if total >= VIEW_MIN * count:
                return None
        numbers = range(offset, offset + count)
        pieces = self._cut(queue, numbers, offsets, sizes, total, window_from)
        if pieces is None:
            return None
        if is_cold:
            self._spend(queue, total)
        return ResidentRead(pieces, count, total, last)

    def _cut(
        self,
        queue: ConsumeQueue,
        numbers: range | Sequence[int],
        offsets: tuple[int, ...],
        sizes: tuple[int, ...],
        total: int,
        window_from: int,
    ) -> list[bytes | memoryview] | None:
        """Cut these records out of the window and the blocks; None if some are in neither, or not as they should be.

        HOT. The entries may lie: nothing is known of them but that each record seems to have a size.
        """
        log, queue_id, count = self._log, queue.queue_id, len(sizes)
        topic = None if numbers[0] >= queue.loaded_next else queue.topic_bytes
        pieces: list[bytes | memoryview] = []
        if offsets[0] < window_from and max(offsets) != offsets[-1]:
            return None  # behind the end of a block there is no end of its bytes
        data: Map | bytes
        begin = 0
        while begin < count:
            first = offsets[begin]
            in_window = first >= window_from
            if in_window:
                segment = log.find(first)
                if segment is None:
                    return None
                data, base, end = segment.map, segment.base_offset, segment.end_offset
            else:
                size = sizes[begin]
                block = self._fetcher.find(first, size, window_from)
                if block is not None:
                    data, base, end = block.data, block.base, block.end
                elif (segment := self.blocks.find_resident(first, offsets[-1] + sizes[-1])) is not None:
                    data, base, end = segment.map, segment.base_offset, segment.end_offset
                elif (record := self.blocks.read_across(first, size, self.cold_budget.now)) is not None:
                    data, base, end = record, first, first + size
                else:
                    return None
            stop = count
            if offsets[-1] + sizes[-1] > end:
                stop = bisect_left(offsets, end, begin)
                if stop > begin and offsets[stop - 1] + sizes[stop - 1] > end:
                    stop -= 1  # the one record that stands across the end of the block
                if stop == begin:
                    return None
            if stop - begin == count:
                piece = cut_records(
                    data, base, queue_id, topic, numbers, offsets, sizes, total, in_window=in_window
                )
                return [piece] if piece is not None else None
            part = slice(begin, stop)
            sizes_here = sizes[part]
            piece = cut_records(
                data,
                base,
                queue_id,
                topic,
                numbers[part],
                offsets[part],
                sizes_here,
                sum(sizes_here),
                in_window=in_window,
            )
            if piece is None:
                return None
            pieces.append(piece)
            begin = stop
        return pieces

    def _entries(self, queue: ConsumeQueue, offset: int, count: int) -> bytes | None:
        """Return entries as `ConsumeQueue.entries_nowait` does, and keep some more of those in a file."""
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
        deferrable: bool = True,
    ) -> None:
        """Read from `queue` at `offset`; `done(result)` is called now if no disk is needed, else later.

        `matches(tags_code)` filters by the queue entry alone; None takes all. `done(None)` says that too many cold
        reads are waiting already, or that the disk could not read: answer "busy". A `deferrable` read of what is in
        no cache may have to wait a moment while the loop has no time (`cold_read_budget`).
        """
        if (nothing := out_of_range(queue, offset)) is not None:
            done(GetResult(*nothing))
            return
        assert queue is not None
        if matches is None and (result := self.get_resident(queue, offset, max_count, max_bytes)) is not None:
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
        if deferrable and self._is_cold(queue, entries):
            if self._deferred or not self.cold_budget.has_room:
                self._defer(
                    lambda: self.get(queue, offset, max_count, max_bytes, matches, done, deferrable=False),
                    done,
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
        """Whether these entries, or the record of the first of them, seem to be in no cache."""
        if entries is None or len(entries) < ENTRY_SIZE:
            return True
        physical: int = ENTRY.unpack_from(entries)[0]
        return queue in self._missed and physical < self._log.end_offset - self._warm_window

    def _mark_missed(self, queue: ConsumeQueue) -> None:
        self._missed.pop(queue, None)
        if len(self._missed) >= _CHUNKS_MAX:
            del self._missed[next(iter(self._missed))]
        self._missed[queue] = _MISSED_BYTES

    def _spend(self, queue: ConsumeQueue, size: int) -> None:
        """Charge the budget for bytes of a queue that had gaps in the page cache a moment ago."""
        self.cold_budget.spend(size)
        left = self._missed[queue] - size
        if left > 0:
            self._missed[queue] = left
        else:
            del self._missed[queue]

    def _defer(self, read: Callable[[], None], done: Callable[[None], None]) -> None:
        if len(self._deferred) >= self._in_flight_max:
            done(None)
        else:
            self._deferred.append((self.cold_budget.now + WAIT_MAX_S, read, done))

    def resume_deferred(self) -> None:
        """Make the deferred reads, as far as they may be made by now, and free blocks without a reader; call often."""
        budget = self.cold_budget
        while self._deferred and (budget.has_room or self._deferred[0][0] <= budget.now):
            self._deferred.popleft()[1]()
        self.blocks.drop_idle(budget.now)

    def _submit(
        self,
        job: Callable[[], object],
        then: Callable[..., None],
        done: Callable[[None], None],
        segments: Sequence[Segment] = (),
    ) -> None:
        """Run `job` on a reader thread; the segments it reads keep their files until it is done."""
        worker = self._free_worker()
        if worker is None:
            done(None)
            return

        def failed() -> None:
            # A place on disk that cannot be read is this consumer's trouble, and not the end of the process.
            self.failed += 1
            done(None)

        read_pinned(worker, job, then, failed, segments)

    def _free_worker(self) -> Worker | None:
        worker = min(self._workers, key=lambda w: w.pending)
        return worker if worker.pending < self._in_flight_max // len(self._workers) else None

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
            self._report_stale(queue, offset)
            result.status = GetStatus.OFFSET_FOUND_NULL
            result.next_offset = (
                offset + (queue.file_size - offset * ENTRY_SIZE % queue.file_size) // ENTRY_SIZE
            )
            done(result)
            return
        records = self._select(queue, result, entries, max_count, max_bytes, matches)
        if records and self._is_cold(queue, entries):
            self._spend(queue, sum(size for _, size, _ in records))
        self._carry_out(queue, result, records, done)

    def _select(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        entries: bytes,
        max_count: int,
        max_bytes: int,
        matches: Callable[[int], bool] | None,
    ) -> list[tuple[int, int, int]]:
        """Return the records that these entries name and this read may have, as (log offset, size, queue offset)."""
        limits, log = self.limits, self._log
        end, low = log.end_offset, log.min_offset
        memory_from = end - limits.memory_window
        records: list[tuple[int, int, int]] = []
        total, count = 0, 0
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
            if segment is None or not RECORD_SIZE_MIN <= size <= segment.end_offset - physical:
                self._report_stale(queue, result.next_offset - 1)  # no record is there, or has this size
                continue
            records.append((physical, size, result.next_offset - 1))
            total += size
            count += 1
        return records

    def _carry_out(
        self,
        queue: ConsumeQueue,
        result: GetResult,
        records: list[tuple[int, int, int]],
        done: Callable[[GetResult | None], None],
        runs: list[Run] | None = None,
        fetches: int = 0,
    ) -> None:
        """Read the records, from memory by columns if that can be, and give the result to `done`.

        Once more for each block that was brought (`fetches`). The `runs` were planned before the first of them, and
        hold segments that retention may have taken out of the log since.
        """
        if not records:
            done(result)
            return
        window_from = max(self._log.end_offset - self._warm_window, self._log.trusted_offset)
        offsets, sizes, numbers = zip(*records, strict=True)
        first, total = offsets[0], sum(sizes)
        are_small = total < VIEW_MIN * len(records)
        if first >= window_from or are_small:
            pieces = self._cut(queue, numbers, offsets, sizes, total, window_from)
            if pieces is not None:
                result.records, result.count, result.size = pieces, len(records), total
                result.status = GetStatus.FOUND
                done(result)
                return
        if runs is None:
            runs = plan_runs(self._log, records)
        segments = [run.segment for run in runs]
        are_dense = offsets[-1] + sizes[-1] - first <= _SPREAD_MAX * total
        if first < window_from and are_small and are_dense and fetches < _FETCHES_MAX:
            place = self._fetcher.find_missing(records, window_from)
            if place is not None:
                self._mark_missed(queue)
                go_on = partial(self._carry_out, queue, result, records, done, runs, fetches + 1)
                self._fetcher.fetch(place, *hold_until(segments, go_on, partial(done, None)))
                return

        def then(data: list[bytes]) -> None:
            result.records, result.count = prove_runs(
                queue, runs, data, lambda number: self._report_stale(queue, number)
            )
            result.size = sum(map(len, result.records))
            if result.records:
                result.status = GetStatus.FOUND
            done(result)

        if (data := read_runs_nowait(runs, window_from)) is not None:
            then(data)
            return
        self._mark_missed(queue)
        self._submit(lambda: [read_run(run) for run in runs], then, done, segments)

    def _report_stale(self, queue: ConsumeQueue, number: int) -> None:
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
        """Give the readable record at log offset `offset`, or None, to `done`, now or later; or call `busy`.

        A body can hold bytes that are a valid record for their place. Only what the entry of its queue names counts.
        """
        segment = self._log.find(offset)
        if segment is None or offset + 36 > self._log.end_offset:
            done(None)
            return

        def found(record: bytes | None) -> None:
            identity = identity_of(record) if record is not None else None
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
        """Find messages by key, among those readable up to `through`; `done(None)` says "busy", as in `get`."""

        def find() -> Found:
            return find_messages(index.disk, index.place, self._log, query)

        index.when_built(through, lambda: self.run(find, done, done))

    def run(self, job: Callable[[], object], then: Callable[..., None], done: Callable[[None], None]) -> None:
        """Run any blocking look-up on a reader thread (offset by time, earliest store time)."""
        self._submit(job, then, done, tuple(self._log.segments))

    def stop(self) -> None:
        """Refuse the reads that were put off, and finish those that are under way. Blocks."""
        while self._deferred:
            self._deferred.popleft()[2](None)
        for worker in self._workers:
            worker.stop()
