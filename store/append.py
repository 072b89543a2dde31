"""Appending: messages become records at the end of the log, and entries at the ends of their queues.

There are three ways in. `put` takes any message and encodes it from its parts. `put_alike` takes messages that
differ from others of their kind only where a pattern says so, and `put_columns` a run of those whose bodies are of
one size, by columns: each half of the time of the one before. What they leave behind is the same to the byte.

Records are gathered and placed with one write for each segment they go into. A queue entry is made with its record;
it can be read at once, or waits in `unreadable` for what the store decides about flush and copies. Nothing here
waits for the disk, unless there is no segment to begin: that is `reserve`'s, and the store's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate, repeat
from operator import and_, attrgetter
from typing import Protocol, TypeAlias

from zlib_ng.zlib_ng import crc32

from ropewalk.errors import LocalProtocolError
from ropewalk.format.queue_entry import ENTRY
from ropewalk.format.record import WrittenRecords, encode_record
from ropewalk.format.record_pattern import SPLIT_MIN, RecordPattern
from store.io.disk import DiskFull
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue, append_each
from store.queues.entry_pool import EntryPool

_pack_entry = ENTRY.pack
_queue_id = attrgetter("queue_id")
_FIXED_SIZE = 91  # a V1 record with two IPv4 hosts and nothing else

Message: TypeAlias = tuple[ConsumeQueue, bytes, bytes, int, int, int, int, int, int]
"""One message to put: queue, body, properties, flag, sys flag, born time in ms, reconsume times, offset of the half
message it commits (or 0), tag code. A plain tuple, because a run of messages makes one for each."""

Alike: TypeAlias = tuple[ConsumeQueue, bytes | memoryview, int, bytes, RecordPattern, int]
"""One message of a kind: queue, body (`bytes`, or a view if it has `SPLIT_MIN` bytes or more), born time in ms, the
property value that is its own, its kind, its tag code."""

Columns: TypeAlias = tuple[Sequence[bytes], Iterable[int], Iterable[bytes], RecordPattern, int]
"""A run of messages of one kind, by columns: bodies, all of one size; born times in ms; the property values that are
their own; and of all of them the kind and the tag code."""


class RecordWriter(Protocol):
    """Write a run of encoded records behind the last ones of a segment, which has room for them.

    With `sizes` the records come in pieces that are not to be joined: large bodies. The sizes are of whole records.
    """

    def __call__(
        self,
        segment: Segment,
        records: Sequence[bytes | memoryview],
        sizes: Sequence[int] | None = None,
        /,
    ) -> None: ...


class Appender:
    """The one writer of a log that grows by messages; the store hands its methods out as its own."""

    __slots__ = (
        "_dirty",
        "_head_size",
        "_log",
        "_pool",
        "_reserve",
        "_store_host",
        "_write_records",
        "closed",
        "deferred",
        "now",
        "sizes",
        "unreadable",
        "woken",
    )

    def __init__(
        self,
        log: CommitLog,
        store_host: bytes,
        reserve: Callable[[int], Segment],
        dirty: list[ConsumeQueue],
        pool: EntryPool[ConsumeQueue],
        write_records: RecordWriter = Segment.write,
    ) -> None:
        """`reserve` finds the segment with so much room, or raises `DiskFull`; `dirty` is the write-back's own list."""
        self.now = 0
        """Store time of what is appended, ms."""
        self.closed = False
        """Whether the log grows by a master's bytes at present, and by nothing else."""
        self.deferred = False
        """Whether consumers see a message only when the store says so."""
        self.unreadable: deque[tuple[int, int, list[tuple[ConsumeQueue, int]]]] = deque()
        """Queues that became longer and wait for that, and how long: with where in the log their records begin and end.

        One entry for what a segment got of a run. Every record behind `readable_offset` that has a queue entry is in
        one: who asks what may be seen can do so in the middle of a run, when a segment is to be begun.
        """
        self.woken: list[ConsumeQueue] = []
        """Queues with somebody in `held` that became longer; always this one list."""
        self.sizes: list[int] = []
        """Of the records that `put` or `put_alike` appended last; always this one list."""
        self._log = log
        self._store_host = store_host
        self._reserve = reserve
        self._dirty = dirty
        self._pool = pool
        self._head_size = log.placing.head_size
        self._write_records = write_records

    def put(self, batch: Sequence[Message], born_host: bytes) -> list[tuple[int, int]]:
        """Append messages in order; return (log offset, queue offset) of each. HOT.

        The result is shorter than the batch if the disk is full: the rest was not stored, and the store's `full` says
        why. What can never be stored raises LocalProtocolError; what comes before it in the batch is stored.
        """
        segments, store_host, now = self._log.segments, self._store_host, self.now
        head_size, write_records = self._head_size, self._write_records
        assert not self.closed, "a slave's log grows by its master's bytes alone"
        fixed = _FIXED_SIZE - 16 + len(born_host) + len(store_host)
        sizes = self.sizes
        sizes.clear()
        results: list[tuple[int, int]] = []
        if self._pool.queues:
            self._drain_pool([message[0] for message in batch])
        if head_size:
            self._refuse_too_large(batch, fixed)
        try:
            segment = segments[-1] if segments else self._reserve(fixed + head_size)
        except DiskFull:
            return results
        # `position` is the next record's, behind its head.
        position, base, room = segment.write_position + head_size, segment.base_offset, segment.room
        records: list[bytes] = []
        begin, noted = base + segment.write_position, 0
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
                    write_records(segment, records)
                    records = []
                    self._grew(batch[noted : len(results)], begin, base + position - head_size)
                    noted = len(results)
                    size = fixed + len(topic) + len(body) + len(properties) + 1
                    if not self._log.fits(size):
                        raise LocalProtocolError(
                            f"a record of {size} bytes is larger than a commit-log segment"
                        )
                    try:
                        segment = self._reserve(size + head_size)
                    except DiskFull:
                        return results
                    begin = segment.base_offset + segment.write_position
                    position, base, room = (
                        segment.write_position + head_size,
                        segment.base_offset,
                        segment.room,
                    )
                offset, queue_offset = base + position, queue.tail_next
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
                sizes.append(size)
                position += size + head_size
                queue.append_entry(_pack_entry(offset, size, tags_code))
                results.append((offset, queue_offset))
        finally:
            write_records(segment, records)
            self._grew(batch[noted : len(results)], begin, base + position - head_size)
        return results

    def put_alike(self, batch: Sequence[Alike]) -> list[tuple[int, int]]:
        """`put` for messages that differ from others only as their patterns allow, in half the time. HOT."""
        segments, now, sizes = self._log.segments, self.now, self.sizes
        head_size, write_records = self._head_size, self._write_records
        size_max = self._log.placing.record_size_max
        sizes.clear()
        results: list[tuple[int, int]] = []
        if self._pool.queues:
            self._drain_pool([message[0] for message in batch])
        records: list[bytes | memoryview] = []
        kind: RecordPattern | None = None
        body_size, room, in_pieces = -1, -1, False
        position = base = size = begin = noted = 0
        segment: Segment | None = None
        try:
            for queue, body, born_timestamp, key, pattern, tag_code in batch:
                if pattern is not kind:
                    kind, body_size = pattern, -1
                    flag, sys_flag, born_host = pattern.flag, pattern.sys_flag, pattern.born_host
                    middle, after = pattern.middle, pattern.after
                if len(body) != body_size:
                    body_size = len(body)
                    size, pack, head, rest, opening = pattern.form(body_size)
                    in_pieces = in_pieces or body_size >= SPLIT_MIN
                    if size > size_max:
                        raise _too_large(size, size_max)
                if position + size > room:
                    if segment is not None:
                        write_records(segment, records, sizes[noted:] if in_pieces else None)
                        records = []
                        self._grew(batch[noted : len(results)], begin, base + position - head_size)
                        noted = len(results)
                    elif segments and segments[-1].has_room_for(size + head_size):
                        segment = segments[-1]
                    if segment is None or not segment.has_room_for(size + head_size):
                        try:
                            segment = self._reserve(size + head_size)
                        except DiskFull:
                            return results
                    begin = segment.base_offset + segment.write_position
                    position, base, room = (
                        segment.write_position + head_size,
                        segment.base_offset,
                        segment.room,
                    )
                offset, queue_offset = base + position, queue.tail_next
                crc = crc32(body) & 0x7FFFFFFF
                if body_size >= SPLIT_MIN:
                    records += (
                        opening(
                            head,
                            crc,
                            queue.queue_id,
                            flag,
                            queue_offset,
                            offset,
                            sys_flag,
                            born_timestamp,
                            born_host,
                            now,
                            rest,
                        ),
                        body,
                        b"".join((middle, key, after)),
                    )
                else:
                    records.append(
                        pack(
                            head,
                            crc,
                            queue.queue_id,
                            flag,
                            queue_offset,
                            offset,
                            sys_flag,
                            born_timestamp,
                            born_host,
                            now,
                            rest,
                            body,
                            middle,
                            key,
                            after,
                        )
                    )
                position += size + head_size
                sizes.append(size)
                queue.append_entry(_pack_entry(offset, size, tag_code))
                results.append((offset, queue_offset))
        finally:
            if segment is not None:
                write_records(segment, records, sizes[noted:] if in_pieces else None)
            self._grew(batch[noted : len(results)], begin, base + position - head_size)
        return results

    def _refuse_too_large(self, batch: Sequence[Message], fixed: int) -> None:
        """Raise LocalProtocolError if one of the messages makes a record that the log can never hold."""
        size_max = self._log.placing.record_size_max
        for message in batch:
            size = fixed + len(message[0].topic_bytes) + len(message[1]) + len(message[2]) + 1
            if size > size_max:
                raise _too_large(size, size_max)

    def _drain_pool(self, queues: Sequence[ConsumeQueue]) -> None:
        """Have these queues take over their entries from the pool. HOT."""
        if self._pool.queues:
            for queue in dict.fromkeys(queues):
                queue.drain_pool()

    def _grew(self, batch: Sequence[Message] | Sequence[Alike], begin: int, end: int) -> None:
        """These have their records from log offset `begin` to `end`, and their entries. HOT."""
        if batch:
            self._note(dict.fromkeys([message[0] for message in batch]), begin, end)

    def _note(self, queues: Collection[ConsumeQueue], begin: int, end: int) -> None:
        """These queues have got entries of records from log offset `begin` to `end`: say who may see them. HOT."""
        if self.deferred:
            self.unreadable.append((begin, end, [(queue, queue.tail_next) for queue in queues]))
        else:
            for queue in queues:
                queue.make_readable()
                if queue.held is not None:
                    self.woken.append(queue)
        for queue in queues:
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
            if queue.slot >= 0:
                self._pool.sync_next(queue)

    def put_columns(
        self, queues: Sequence[ConsumeQueue], columns: Columns, afters: Iterable[bytes] | None = None
    ) -> tuple[Sequence[int], Sequence[int]] | None:
        """`put_alike` for messages of one kind whose bodies are of one size, in half its time. HOT.

        `afters` are the pieces behind the key that they have in place of the pattern's, of the same width.
        Log offsets and queue offsets; or None, with nothing done, if they do not all fit into the last segment.
        """
        laid_out = self._lay_out(columns)
        if laid_out is None:
            return None
        offsets, entries = laid_out
        self._drain_pool(queues)
        numbers = self._index_run(queues, entries, offsets)
        middle = columns[3].middle
        self._write(columns, map(_queue_id, queues), numbers, offsets, repeat(middle), afters=afters)
        return offsets, numbers

    def put_written(
        self, queue: ConsumeQueue, records: WrittenRecords, tag_codes: Sequence[int]
    ) -> tuple[list[int], int] | None:
        """Append records of one queue that were written before: side by side, and at once for the least time.

        Log offsets and the first queue offset; or None, with nothing done, if not all fit into the last segment.
        """
        segments, head_size = self._log.segments, self._head_size
        stored_size = records.size + head_size * len(records)
        if not segments or not segments[-1].has_room_for(stored_size):
            return None
        if max(records.sizes) > self._log.placing.record_size_max:
            raise _too_large(max(records.sizes), self._log.placing.record_size_max)
        segment = segments[-1]
        begin = segment.base_offset + segment.write_position
        offsets = list(
            accumulate((size + head_size for size in records.sizes[:-1]), initial=begin + head_size)
        )
        self._drain_pool((queue,))
        entries = b"".join(map(_pack_entry, offsets, records.sizes, tag_codes))
        first = queue.append_entries(entries, len(records))
        records.place(first, offsets, self.now)
        self._write_records(segment, records.each() if head_size else [records.joined()])
        self._note((queue,), begin, begin + stored_size)
        return offsets, first

    def put_wide(
        self, slots: Sequence[int], queue_ids: Iterable[int], columns: Columns, *middles: Iterable[bytes]
    ) -> tuple[Sequence[int], Sequence[int]] | None:
        """`put_columns` for messages nearly each of which goes to another queue, by its slot in the pool. HOT.

        `middles` are the pieces of the middles that they have in place of the pattern's: topics can differ so. None
        also if one of the queues is out of the pool.
        """
        laid_out = self._lay_out(columns)
        if laid_out is None:
            return None
        offsets, entries = laid_out
        pool = self._pool
        if self.deferred:  # then each of them has to be told what its consumers may see
            queues = pool.queues_in(slots)
            if queues is None:
                return None
            self._drain_pool(queues)
            numbers = self._index_run(queues, entries, offsets)
        elif self._head_size:
            return None  # entries in the pool are of records side by side
        else:
            added = pool.add(slots, offsets, offsets.step, columns[4])
            if added is None:
                return None
            numbers, first = added
            for queue in filter(None, map(pool.queues.__getitem__, first)):
                if not queue.dirty:
                    queue.dirty = True
                    self._dirty.append(queue)
            if pool.held and not pool.held.isdisjoint(slots):
                self.woken += filter(None, map(pool.queues.__getitem__, pool.held.intersection(slots)))
        self._write(columns, queue_ids, numbers, offsets, *middles)
        return offsets, numbers

    def _lay_out(self, columns: Columns) -> tuple[range, Iterable[bytes]] | None:
        """Where the records of a run begin, and their entries; None if they do not fit into the last segment. HOT."""
        bodies, _born, _keys, pattern, tag_code = columns
        size, segments, head_size = pattern.form(len(bodies[0])).size, self._log.segments, self._head_size
        stride = size + head_size
        if not segments or not segments[-1].has_room_for(stride * len(bodies)):
            return None
        if size > self._log.placing.record_size_max:
            return None
        begin = segments[-1].base_offset + segments[-1].write_position + head_size
        offsets = range(begin, begin + stride * len(bodies), stride)
        return offsets, map(_pack_entry, offsets, repeat(size), repeat(tag_code))

    def _write(
        self,
        columns: Columns,
        queue_ids: Iterable[int],
        numbers: Iterable[int],
        offsets: Iterable[int],
        *middles: Iterable[bytes],
        afters: Iterable[bytes] | None = None,
    ) -> None:
        """Write the records of a run where they were laid out. HOT."""
        bodies, born_timestamps, keys, pattern, _tag_code = columns
        _size, pack, head, rest, _opening = pattern.form(len(bodies[0]))
        self._write_records(
            self._log.segments[-1],
            list(
                map(
                    pack,
                    repeat(head),
                    map(and_, map(crc32, bodies), repeat(0x7FFFFFFF)),
                    queue_ids,
                    repeat(pattern.flag),
                    numbers,
                    offsets,
                    repeat(pattern.sys_flag),
                    born_timestamps,
                    repeat(pattern.born_host),
                    repeat(self.now),
                    repeat(rest),
                    bodies,
                    *middles,
                    keys,
                    repeat(pattern.after) if afters is None else afters,
                )
            ),
        )

    def _index_run(
        self, queues: Sequence[ConsumeQueue], entries: Iterable[bytes], offsets: range
    ) -> list[int]:
        """Index a run of records that begin at these log offsets; the queue offsets of all. HOT."""
        queue, count = queues[0], len(queues)
        begin, end = offsets.start - self._head_size, offsets.stop - self._head_size
        if queue is queues[-1] and queues.count(queue) == count:
            number = queue.append_entries(b"".join(entries), count)
            self._note((queue,), begin, end)
            return list(range(number, number + count))
        numbers = append_each(queues, entries)
        self._note(dict.fromkeys(queues), begin, end)
        return numbers

    def forget(self, gone: Collection[ConsumeQueue]) -> None:
        """Drop the waiting entries of queues that were deleted."""
        self.unreadable = deque(
            (begin, end, [entry for entry in grown if entry[0] not in gone])
            for begin, end, grown in self.unreadable
        )

    def replace(self, queue: ConsumeQueue, other: ConsumeQueue) -> None:
        """Have the waiting entries of one queue count as those of another."""
        for _begin, _end, grown in self.unreadable:
            grown[:] = [(other if each is queue else each, number) for each, number in grown]


def _too_large(size: int, size_max: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a record of {size} bytes is larger than an entry of the log holds ({size_max})"
    )
