"""A slave's log: it grows by what its master's log says next, byte for byte, and by nothing else.

    |  record | record | record | the first bytes of a rec            |
                                ^ boundary        ^ end of the log

Bytes come in pieces that are cut anywhere. They are placed at the log's own end, and nowhere else. Every record is
looked at as soon as all of it is here; only then does `boundary` move behind it, and its queue entry is made. What
counts to the outside (flush, consumers, checkpoints, what is reported to the master) is the boundary: the bytes
behind it are of a record that may never become whole. When the stream ends they are dropped and asked for again.

A segment is begun only when the helper thread has one ready and the one before the last is flushed, as in a master's
log. Until then `append` takes fewer bytes than it is given: the caller stops reading, and tries again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from ropewalk.errors import RemoteProtocolError
from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from store.dispatcher import Dispatcher
from store.io.disk import MappedFile
from store.log.commitlog import CommitLog
from store.log.placing import PLAIN, Placing
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.recovery.record_runs import KnownQueues, dispatch_runs, learn_queue
from store.recovery.record_scan import ScannedRecord, scan_record

_FRAME = struct.Struct(">iI")


_REST_MAX = 64 << 10
"""More than this of a record that is not whole yet is looked at in the log, and not joined to every piece anew."""


class Arrived(NamedTuple):
    """Bytes of the log as they came, and where the first of them stands."""

    base_offset: int
    map: bytes
    placing: Placing = PLAIN


class StreamRejected(RemoteProtocolError):
    """The master's bytes do not continue this log. Nothing of them was kept; asking again will not help."""


class Follower:
    """The one writer of a store that follows another one."""

    def __init__(
        self,
        log: CommitLog,
        dispatcher: Dispatcher,
        next_segment: Callable[[int], Segment | None],
        sync_cut: Callable[[MappedFile, Callable[[], None]], None],
    ) -> None:
        """Follow from where the log ends, which is behind a whole record.

        `next_segment` begins the segment at an offset, or returns None while there is none ready; `sync_cut` has a file
        synced from which bytes were cut, and calls back then. Neither waits.
        """
        self.boundary = log.end_offset
        """The end of the last record that is here as a whole and was looked at."""
        self.findings: list[str] = []
        self.found_whole: Callable[[int], None] | None = None
        """Hears, now and then, through which log offset all records are whole, before `boundary` is there."""
        self._log = log
        self._dispatcher = dispatcher
        self._next_segment = next_segment
        self._sync_cut = sync_cut
        self._known = KnownQueues()
        self._rest: bytes | None = b""
        """The log's bytes behind the boundary; None where they are many and read from the log itself."""
        self._come: bytes | None = None
        """The same with what was placed since the last look."""
        self.cut_pending = False
        """Whether dropped bytes may still be on the disk. Until they are not, nothing is placed where they stood."""

    @property
    def end(self) -> int:
        """The log offset of the next byte; 0 for an empty log, which begins wherever its master's bytes do."""
        return self._log.end_offset

    @property
    def segment_size(self) -> int:
        """The size of a segment: no piece of a master's log crosses a multiple of it."""
        return self._log.segment_size

    def append(self, offset: int, data: bytes | memoryview) -> int:
        """Append bytes that stand at `offset` in the master's log, and look at them; how many there was room for.

        Raises `StreamRejected` if they do not continue this log, or are no records.
        """
        try:
            return self.append_pieces(offset, (data,))
        finally:
            self.scan_arrived()

    def append_pieces(self, offset: int, pieces: Sequence[bytes | memoryview]) -> int:
        """Append pieces that follow each other, as `append` does; `scan_arrived` finds the records in them. HOT.

        One write for eight frames costs half of eight, and one look a fraction. It goes through the bytes that were
        just joined, which the processor has at hand, and not through pages of the map: those a look would bring into
        the process, and each flush would have to find them there again. All of the pieces are taken, or none.
        """
        log = self._log
        if log.segments and offset != log.end_offset:
            raise StreamRejected(
                f"the master sends log offset {offset}, but this log ends at {log.end_offset}: nothing was appended"
            )
        size = sum(map(len, pieces))
        if self.cut_pending:
            return 0
        segment = self._room(offset) if size else None
        if segment is None:
            return 0
        if size > segment.size - segment.write_position:
            raise StreamRejected(
                f"a frame at log offset {offset} crosses the end of the segment at {segment.base_offset}: "
                f"is mappedFileSizeCommitLog ({segment.size} here) the master's?"
            )
        if self._come is not None:
            self.scan_arrived()
        if self._rest is None:
            segment.append(b"".join(pieces))
        else:
            come = b"".join((self._rest, *pieces))
            segment.append(memoryview(come)[len(self._rest) :])
            self._come = come
        return size

    def _room(self, offset: int) -> Segment | None:
        """The segment that the byte at `offset` goes into, or None: not yet."""
        log = self._log
        if log.segments:
            last = log.segments[-1]
            if last.write_position < last.size:
                return last
            self.scan_arrived()  # what is looked at stands in one segment
        elif offset % log.segment_size:
            raise StreamRejected(
                f"the master's bytes begin at log offset {offset}, which is no multiple of mappedFileSizeCommitLog "
                f"({log.segment_size} here): give this slave the master's value"
            )
        segment = self._next_segment(offset)
        if segment is not None and offset and len(log.segments) == 1:
            self.findings.append(
                f"the master's log begins at offset {offset} for this slave: it has no messages from before that"
            )
            self.boundary = offset
        return segment

    def scan_arrived(self) -> None:
        """Scan the records that have become whole, and move the boundary behind them. Raises `StreamRejected`."""
        come, self._come = self._come, None
        if not self._log.segments or (come is None and self._rest is not None):
            return
        segment, begin = self._log.segments[-1], self.boundary
        self._rest = None
        grown: dict[ConsumeQueue, None] = {}
        try:
            self.boundary = segment.base_offset + self._take_in(segment, grown, come)
        finally:
            if grown:
                self._dispatcher.dispatched(grown, begin, self.boundary)
        end = segment.write_position
        left = segment.base_offset + end - self.boundary
        if left <= _REST_MAX:
            self._rest = come[len(come) - left :] if come is not None else segment.map[end - left : end]

    def _take_in(self, segment: Segment, grown: dict[ConsumeQueue, None], come: bytes | None) -> int:
        """Take in the whole records behind the boundary, which `come` begins at; the position behind them."""
        base, end, size_max = segment.base_offset, segment.write_position, segment.size
        position = self.boundary - base
        # `dispatch_runs` asks a segment for nothing but these.
        view = segment if come is None else cast("Segment", Arrived(self.boundary, come))
        begin = view.base_offset - base
        dispatcher = self._dispatcher
        delay_of = dispatcher.delay_of
        while end - position >= 8:
            at, records, stored_ms = dispatch_runs(
                view, position - begin, end - begin, self._known, grown, self.found_whole
            )
            position = begin + at
            if records:
                dispatcher.stored_until(stored_ms)
                continue
            size, magic = _FRAME.unpack_from(view.map, at)
            if magic == MAGIC_BLANK:
                if size != size_max - position:
                    raise self._rejected(
                        base + position, f"a filler of {size} bytes, {size_max - position} are left"
                    )
                if end < size_max:
                    break
                position = size_max
                break
            if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_SIZE_MIN <= size <= size_max - position:
                raise self._rejected(base + position, f"size {size}, magic {magic:08x}")
            if position + size > end:
                break
            seen = scan_record(segment, position, delay_of)
            if not isinstance(seen, ScannedRecord):
                raise self._rejected(base + position, "its fields or its checksum do not hold")
            queue = dispatcher.dispatch(seen)
            if queue is not None:
                grown[queue] = None
                learn_queue(seen, queue, self._known)
            position += size
        if position < end == size_max:
            raise self._rejected(base + position, f"no room is left for a filler, but {end - position} bytes")
        return position

    def _rejected(self, offset: int, why: str) -> StreamRejected:
        self.boundary = max(self.boundary, offset)  # what comes before it was whole, and has its entries
        return StreamRejected(f"what the master sends for log offset {offset} is no record: {why}")

    def forget_queues(self) -> None:
        """Look up every queue again, as one was deleted."""
        self._known.clear()

    def drop_partial(self) -> None:
        """Drop the bytes behind the boundary, which are of a record that did not become whole.

        The disk has them perhaps, and whole records behind what was rejected: until it has zeros there instead, the log
        does not go on. A loss of power would else bring them back behind whatever stands in front of them by then.
        """
        if not self._log.segments:
            return
        segment = self._log.segments[-1]
        position = self.boundary - segment.base_offset
        end = segment.write_position
        assert 0 <= position <= end, (self.boundary, segment.base_offset, end)
        if position < end:
            segment.drop_from(position)
            self.cut_pending = True
            self._sync_cut(segment.file, self._cut_is_durable)
        self._rest, self._come = b"", None

    def _cut_is_durable(self) -> None:
        self.cut_pending = False
