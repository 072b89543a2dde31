"""`Dispatcher`: the queue entries of records that another broker has made: a slave's master, or a group's leader.

    bytes in the log   --`follow` and `replica` find the records-->   `dispatch`, one by one
                                                                      `dispatched`, for all of a piece of the log

An entry has the number that the other broker gave it, and waits as one of this broker's own records does: consumers see
it when the store shows the log so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from store.append import Appender
from store.queues.consume_queue import ConsumeQueue
from store.queues.queue_table import QueueTable
from store.recovery.record_scan import ScannedRecord
from store.write_back import WriteBack

__all__ = ["Dispatcher"]


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
        self._table = table
        self._write_back = write_back
        self._appender = appender

    def dispatch(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Make the queue entry of a whole record; return its queue if the record is the newest in it."""
        self.stored_until(record.store_timestamp)
        if not record.indexed:
            return None
        queue = self._table.queue(record.topic, record.queue_id)
        number = record.queue_offset
        if number != queue.next_offset:
            if number < queue.next_offset:
                return None  # the number was taken before: a deleted topic's, as in recovery
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
