"""The third writer of a store, beside `Appender` and `Follower`: a member of a group, which leads or follows.

    | ... shown | indexed | placed            |
               ^ queue entries that consumers may see
                         ^ queue entries are made
                                              ^ end of the log, where `EntryLog` places what the leader sends

A follower indexes what is committed, in order, and shows it at once. Whoever is about to lead indexes all that is there
and shows none of it: the next number of every queue is then that of the log, and nothing has to be rebuilt. A leader
indexes as it appends. One that leads no more takes back the queue entries of all that is not shown, committed or not,
and indexes it again when the next leader says that it is.

Indexing goes by turns, a few MiB in each: heartbeats are answered in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head, filler_size
from ropewalk.format.names import TERM_TOPIC
from store.append import Appender, Message
from store.dispatcher import Dispatcher
from store.entries.entry_log import EntryLog
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.entry_writer import WrittenRun
from store.log.remedy import MEND
from store.queues.consume_queue import ConsumeQueue
from store.recovery.record_runs import KnownQueues, dispatch_runs, learn_queue
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record

if TYPE_CHECKING:
    from store.log.segment import Segment

__all__ = ["Replica", "ReplicaTarget"]

TURN_BYTES: Final = 4 << 20
"""How much of the log is indexed in one turn."""


class ReplicaTarget(Protocol):
    """The store of a member, as its `Replica` sees it."""

    @property
    def log(self) -> CommitLog:
        """The log of the store."""

    @property
    def readable_offset(self) -> int:
        """The log offset through which consumers may see everything."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, made if it is new."""

    def limit_readable(self, offset: int) -> None:
        """Let consumers see nothing behind this offset, and everything before it."""


class Replica:
    """The right to append to the log of a member, and the extent to which it is indexed and shown."""

    def __init__(
        self,
        store: ReplicaTarget,
        dispatcher: Dispatcher,
        appender: Appender,
        entries: EntryLog,
    ) -> None:
        """Begin as a follower, with an opened store that is indexed through the commit point of `entries`."""
        self._store = store
        self._log = store.log
        self._dispatcher = dispatcher
        self._appender = appender
        self._writer = entries.writer
        self._term_at = entries.term_at
        self._arrived = entries.arrived
        self._known = KnownQueues()
        self._indexed = entries.commit[2]
        """The log offset through which queues have their entries; while this member leads, as of when it began."""
        self._is_leading = False
        appender.closed = True
        store.limit_readable(entries.commit[2])

    @property
    def leads(self) -> bool:
        """Return whether messages can be appended."""
        return self._is_leading

    # -- leading -------------------------------------------------------------------------------------

    def lead(self, term: int, next_index: int) -> bool:
        """Prepare to append as the leader of `term`: index, unseen, what lies behind the shown end, a part at a time.

        Returns True once all of it is indexed and the appender is open, its next entry being `next_index` of `term`;
        False: call again in the next turn.
        """
        if self._is_leading:
            assert self._writer.term == term, "a leader was told to lead without having been told to follow"
            return True
        end = self._log.end_offset
        self._index(end)
        if self._indexed < end:
            return False
        self._writer.begin(term, next_index)
        self._appender.closed = False
        self._is_leading = True
        return True

    def append_term_record(self, body: bytes) -> bool:
        """Append the entry that opens a term; `take_appended` returns it as any other. False: there is no room yet."""
        message: Message = self._store.queue(TERM_TOPIC, 0), body, b"", 0, 0, self._appender.now, 0, 0, 0
        return bool(self._appender.put([message], bytes(8)))

    def take_appended(self, bytes_max: int) -> Sequence[WrittenRun]:
        """Return the runs appended since the last call, in order, as (first, count, term, pos, size, bytes).

        Contiguous entries of one segment are joined up to `bytes_max`; the bytes are the very ones that were written.
        """
        return self._writer.take(bytes_max, self._log.segment_size) if self._is_leading else ()

    def follow(self) -> None:
        """Close the appender, or give up preparing it; take back queue entries behind the shown end."""
        self._appender.closed = True
        self._is_leading = False
        self._writer.forget()
        queues: dict[ConsumeQueue, None] = {}
        for _begin, _end, grown in self._appender.unreadable:
            queues.update(dict.fromkeys(queue for queue, _number in grown))
        self._appender.unreadable.clear()
        self._dispatcher.take_back()
        for queue in queues:
            queue.take_back()
        self._known.clear()
        self._indexed = self._store.readable_offset

    def forget_queues(self) -> None:
        """Look up every queue again, as one was deleted."""
        self._known.clear()

    # -- showing -------------------------------------------------------------------------------------

    def show_through(self, index: int, term: int, pos: int) -> tuple[int, int, int]:
        """Index and show the committed entries through this point, at most a turn's share of them.

        Returns the point through which they are shown now; the shell calls again in the next turn while that is less.
        """
        if not self._is_leading:
            self._index(pos)
            if self._indexed < pos:
                self._store.limit_readable(self._indexed)
                return self._point_at(self._indexed)
        self._store.limit_readable(pos)
        return index, term, pos

    def _point_at(self, pos: int) -> tuple[int, int, int]:
        """Return the log through the entry in front of `pos`, where another one begins."""
        segment = self._log.find(pos)
        assert segment is not None, pos
        head = segment.map[pos - segment.base_offset : pos - segment.base_offset + HEAD_SIZE]
        if filler_size(head) is not None:
            segment = self._log.find(segment.end_offset)
            assert segment is not None, pos
            head = segment.map[:HEAD_SIZE]
        before = decode_head(head).index - 1
        return before, self._term_at(before), pos

    def _index(self, end: int) -> None:
        """Make the queue entries of the records in front of `end`, of a turn's share of them."""
        begin = at = self._indexed
        grown: dict[ConsumeQueue, None] = {}
        while at < min(end, begin + TURN_BYTES):
            at = self._index_some(at, end, grown)
        if at > begin:
            self._indexed = at
            self._arrived.drop(at)
            self._dispatcher.dispatched(grown, begin, at)

    def _index_some(self, at: int, end: int, grown: dict[ConsumeQueue, None]) -> int:
        dispatcher = self._dispatcher
        segment = self._log.find(at)
        if segment is None:
            raise _damaged(self._log.directory, at)
        position = at - segment.base_offset
        limit = min(segment.end_offset, end, at + TURN_BYTES)
        arrived = self._arrived.find(at, limit)
        # `dispatch_runs` asks a segment for nothing but its bytes and where they stand.
        view = segment if arrived is None else cast("Segment", arrived)
        base = view.base_offset
        limit = min(limit - base, len(view.map))
        after, records, stored_ms = dispatch_runs(view, at - base, limit, self._known, grown)
        if records:
            dispatcher.stored_until(stored_ms)
            return base + after
        seen = scan_record(segment, position, dispatcher.delay_of)
        if seen is NoRecord.FILLER:
            return segment.end_offset
        if not isinstance(seen, ScannedRecord):
            raise _damaged(self._log.directory, at)
        queue = dispatcher.dispatch(seen)
        if queue is not None:
            grown[queue] = None
            learn_queue(seen, queue, self._known)
        return seen.end


def _damaged(directory: object, at: int) -> StoreDamaged:
    return StoreDamaged(
        f"there is no whole entry at offset {at} of the log in {directory}, which is committed: {MEND}"
    )
