"""A read of a queue that gives the messages a property filter lets through, and a bounded amount of work.

The store knows no expressions. This reads as a consumer without a filter would, a chunk at a time, tests each record
by its property text, and goes on until the answer is full, the queue ends, or one pull has cost enough:

    SCAN_MAX          messages looked at, as in RocketMQ (16000 bytes of queue entries)
    SCAN_BYTES_MAX    bytes of records read
    WORK_MAX          bytes of property text searched, times the searches that the filter makes

Where it stops early, `next_offset` is behind what was looked at: the client asks again from there, and the loop has
served others in between. A chunk that needs the disk comes later, as any read does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final

from ropewalk.filter import PropertyFilter
from ropewalk.format.record import MAGIC_V1
from store.log.commitlog import CommitLog
from store.queues.consume_queue import ConsumeQueue
from store.read.one_by_one import topic_at
from store.read.reader import Reader
from store.read.results import GetResult, GetStatus

SCAN_MAX: Final = 800
SCAN_BYTES_MAX: Final = 4 << 20
WORK_MAX: Final = 4 << 20
_WORK_EACH = 64
"""The fixed cost of one search, in bytes of property text."""
_IDENTITY = Struct(">20xqq")
_V1_LAST = MAGIC_V1 & 0xFF

Done = Callable[[GetResult | None], None]


class FilteredReader:
    """Filtered reads over a store's reader."""

    def __init__(self, reader: Reader, log: CommitLog) -> None:
        self._reader = reader
        self._log = log

    def get(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: PropertyFilter,
        done: Done,
    ) -> None:
        """Read from `queue` at `offset`; `done` is called as `Reader.get` calls it."""
        memory_from = self._log.end_offset - self._reader.limits.memory_window
        _Scan(self._reader, memory_from, queue, offset, max_count, max_bytes, wanted, done).run()


class _Scan:
    """One filtered read. Each chunk arrives inside `run` or, from the disk, later; then it is run again."""

    __slots__ = (
        "_arrived_now",
        "_bytes_left",
        "_chunk",
        "_done",
        "_is_running",
        "_limits",
        "_max_bytes",
        "_max_count",
        "_memory_from",
        "_queue",
        "_reader",
        "_result",
        "_scan_left",
        "_started",
        "_wanted",
        "_work_left",
    )

    def __init__(
        self,
        reader: Reader,
        memory_from: int,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        max_bytes: int,
        wanted: PropertyFilter,
        done: Done,
    ) -> None:
        self._memory_from = memory_from
        self._reader = reader
        self._limits = reader.limits
        self._queue = queue
        self._max_count = max(1, max_count)
        self._max_bytes = max_bytes
        self._wanted = wanted
        self._done = done
        self._scan_left = SCAN_MAX
        self._bytes_left = SCAN_BYTES_MAX
        self._work_left = WORK_MAX
        self._started = False
        self._is_running = self._arrived_now = False
        self._chunk: GetResult | None = None
        self._result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, queue.min_offset, queue.readable)

    def run(self) -> None:
        """Read chunks until one is not at hand, or the answer is ready."""
        goes_on = True
        while goes_on:
            self._is_running, self._arrived_now = True, False
            chunk = max(self._limits.memory_bytes, self._limits.disk_bytes)
            self._reader.get(
                self._queue, self._result.next_offset, self._scan_left, chunk, None, self._arrived
            )
            self._is_running = False
            if not self._arrived_now:
                return
            goes_on = self._take(self._chunk)

    def _arrived(self, chunk: GetResult | None) -> None:
        if self._is_running:
            self._chunk, self._arrived_now = chunk, True
        elif self._take(chunk):
            self.run()

    def _take(self, chunk: GetResult | None) -> bool:
        """Test a chunk, and return whether another one is to be read; otherwise the answer has been given."""
        result = self._result
        if chunk is None or (not self._started and chunk.status not in _SCANNED):
            # Too many reads wait for the disk, or there is nothing at the offset that was asked for.
            self._done(chunk if not result.records else self._finished())
            return False
        self._started = True
        before = result.next_offset
        if chunk.status in _SCANNED:
            is_full = self._test(chunk)
            if not is_full:
                result.next_offset = max(before, chunk.next_offset)
            self._scan_left -= max(1, result.next_offset - before)
            self._bytes_left -= chunk.size
            is_over = (
                is_full
                or result.next_offset == before
                or result.next_offset >= self._queue.readable
                or min(self._scan_left, self._bytes_left) <= 0
            )
        else:
            is_over = True  # the queue ends here, or changed meanwhile: the next pull finds out
        if is_over:
            self._done(self._finished())
        return not is_over

    def _finished(self) -> GetResult:
        result = self._result
        result.min_offset, result.max_offset = self._queue.min_offset, self._queue.readable
        if result.records:
            result.status = GetStatus.FOUND
        return result

    def _test(self, chunk: GetResult) -> bool:
        """Keep the records that are wanted; whether the answer ends within the chunk, full or too costly. HOT."""
        result, limits, matches, cost = self._result, self._limits, self._wanted.matches, self._wanted.cost
        for piece in chunk.records:
            at = 0
            while at < len(piece):
                size = int.from_bytes(piece[at : at + 4], "big")
                properties = properties_at(piece, at)
                self._work_left -= cost * (len(properties) + _WORK_EACH)
                if matches(properties):
                    number, physical = _IDENTITY.unpack_from(piece, at)
                    if physical >= self._memory_from:
                        count_max, bytes_max = limits.memory_count, limits.memory_bytes
                    else:
                        count_max, bytes_max = limits.disk_count, limits.disk_bytes
                    if result.count and (
                        result.count >= min(count_max, self._max_count)
                        or result.size + size > min(bytes_max, self._max_bytes)
                    ):
                        result.next_offset = number
                        return True
                    # A copy: the next chunk may be a while, and a view of the log should not be held so long.
                    result.records.append(bytes(piece[at : at + size]))
                    result.count += 1
                    result.size += size
                    result.last_physical = physical
                if self._work_left <= 0:
                    result.next_offset = _IDENTITY.unpack_from(piece, at)[0] + 1
                    return True
                at += size
        result.last_physical = max(result.last_physical, chunk.last_physical)
        return False


_SCANNED: Final = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)


def all_properties(piece: bytes | memoryview) -> Iterator[bytes]:
    """Yield the property text of each of these records."""
    at = 0
    while at < len(piece):
        yield properties_at(piece, at)
        at += int.from_bytes(piece[at : at + 4], "big")


def properties_at(data: bytes | memoryview, at: int) -> bytes:
    """Return the property text of the whole record that begins at `at`. HOT."""
    topic = topic_at(data, at)
    if data[at + 7] == _V1_LAST:
        begin = topic + 1 + data[topic]
    else:
        begin = topic + 2 + (data[topic] << 8 | data[topic + 1])
    return bytes(data[begin + 2 : begin + 2 + (data[begin] << 8 | data[begin + 1])])
