"""A store as the follower of a master's log sees it.

`store.follow` places a master's bytes and finds the records in them; what becomes of these records, and when there is
a segment to begin, is the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.recovery.record_scan import ScannedRecord


class FollowTarget(Protocol):
    """The store whose log follows a master's."""

    @property
    def log(self) -> CommitLog:
        """The log that the follower writes to."""

    def next_segment(self, base_offset: int) -> Segment | None:
        """Begin the segment at this offset; None while there is none ready. Never waits."""

    def dispatch(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Make the queue entry of a whole record; return its queue if the record is the newest in it."""

    def dispatched(self, queues: Iterable[ConsumeQueue], begin: int, end: int) -> None:
        """Hear which queues have got the entries of their records from log offset `begin` to `end`."""

    def sync_cut(self, segment: Segment, done: Callable[[], None]) -> None:
        """Have a segment synced from which bytes were cut, then call `done`. Never waits."""

    def stored_until(self, time_ms: int) -> None:
        """Hear when the newest record of the master's was stored, ms."""

    def delay_of(self, text: str) -> int:
        """Return the delay that a stored `DELAY` means, ms; 0 for none."""
