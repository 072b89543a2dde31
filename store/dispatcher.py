"""`Dispatcher`: the queue entries of records that another broker has made: a slave's master, or a group's leader.

    bytes in the log   --`follow` and `replica` find the records-->   `dispatch`, one by one
                                                                      `dispatched`, for all of a piece of the log

An entry has the number that the other broker gave it, and waits as one of this broker's own records does: consumers see
it when the store shows the log so far.

    topic T, queue 0    0  1  2  3  4 | 0  1      numbers of its records, in the order of the log
                                       ^ the topic was deleted and created again at the other broker

A number goes back for no other reason: then the queue begins anew here too. Its entries of before are kept aside until
the store shows the record, for that may still be cut from the log, and they count again if it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from store.append import Appender
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable
from store.recovery.record_scan import ScannedRecord
from store.write_back import WriteBack

__all__ = ["Dispatcher"]


class Replaced(NamedTuple):
    """The entries of before of a queue that began anew with the record at a log offset, stored at a time in ms."""

    offset: int
    stored_ms: int
    queue: ConsumeQueue
    before: ConsumeQueue


class Dispatcher:
    """The way of other brokers' records into the queues of a store."""

    def __init__(
        self,
        table: QueueTable,
        write_back: WriteBack,
        appender: Appender,
        delay_of: Callable[[str], int],
        stored_until: Callable[[int], None],
    ) -> None:
        """Entries wait among the `unreadable` ones of `appender`."""
        self.delay_of = delay_of
        """Return the delay that a stored `DELAY` means, ms; 0 for none."""
        self.stored_until = stored_until
        """Hear when the newest record of the other broker was stored, ms."""
        self.began_anew: Callable[[str, int, int], None] = lambda _topic, _queue_id, _stored_ms: None
        """Hear that consumers see the first record of a queue that began anew, and when that was stored, ms."""
        self._table = table
        self._write_back = write_back
        self._appender = appender
        self._replaced: deque[Replaced] = deque()
        """Of queues that began anew with records that are not shown, in the order of the log."""

    def dispatch(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Make the queue entry of a whole record; return its queue if the record is the newest in it."""
        self.stored_until(record.store_timestamp)
        if not record.indexed:
            return None
        queue = self._table.queue(record.topic, record.queue_id)
        number = record.queue_offset
        if number != queue.next_offset:
            if number < queue.next_offset:
                if record.offset < queue.max_physical:
                    return None  # it has its entry
                self._begin_anew(queue, record.offset, record.store_timestamp)
        if number != queue.next_offset:
            if queue.written > queue.first:
                self._write_back.give_up(queue.written - queue.first)
            queue.restart_at(number)
        queue.add(record.offset, record.size, record.tags_code)
        return queue

    def dispatched(self, queues: Iterable[ConsumeQueue], begin: int, end: int) -> None:
        """Hear which queues have got the entries of their records from log offset `begin` to `end`."""
        grown = [(queue, queue.next_offset) for queue in queues]
        self._appender.unreadable.append((begin, end, grown))
        for queue, _number in grown:
            self._write_back.mark_dirty(queue)

    # -- topics that were deleted and created again --------------------------------------------------

    def _begin_anew(self, queue: ConsumeQueue, offset: int, stored_ms: int) -> None:
        before = queue.detach()
        self._appender.replace(queue, before)
        self._replaced.append(Replaced(offset, stored_ms, queue, before))
        if before.written < before.tail_next:
            self._write_back.mark_dirty(before)

    def shown(self, offset: int) -> None:
        """Give up entries that records before this log offset replaced, which consumers may see now. HOT."""
        while self._replaced and self._replaced[0].offset < offset:
            _offset, stored_ms, queue, before = self._replaced.popleft()
            self.began_anew(queue.topic, queue.queue_id, stored_ms)
            entries = before.written - before.first
            before.forget()
            self._write_back.remove_queue(entries, before.directory)

    def take_back(self) -> None:
        """Restore entries that records replaced which are not shown; the caller takes back other entries of theirs."""
        while self._replaced:
            _offset, _stored_ms, queue, before = self._replaced.pop()
            queue.attach(before)
            self._write_back.mark_dirty(queue)

    def forget(self, gone: Collection[ConsumeQueue]) -> int:
        """Forget replaced entries of queues that were deleted; return how many of them are in files."""
        entries = 0
        for each in [each for each in self._replaced if each.queue in gone]:
            self._replaced.remove(each)
            entries += each.before.written - each.before.first
            each.before.forget()
        return entries
