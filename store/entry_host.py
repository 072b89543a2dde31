"""The store's flusher and the helper ahead of its writer, as a log of entries uses them (`EntryLog`).

Here is the true extent of what is on disk, which a cut lowers. What the store itself claims, and what its other helpers
go by, is what is on disk and committed: that is never cut.
"""

from __future__ import annotations

from store.io.workers import Flusher
from store.log.commitlog import CommitLog
from store.log.preallocate import Preallocator
from store.log.segment import Segment

__all__ = ["EntryHost"]


class EntryHost:
    """A `LogHost`. The loop owns it."""

    def __init__(self, log: CommitLog, flusher: Flusher, preallocator: Preallocator) -> None:
        """`log` is on disk as a whole."""
        self.flushed_offset = self._requested = log.end_offset
        self._log = log
        self._flusher = flusher
        self._preallocator = preallocator

    @property
    def spare_wanted(self) -> bool:
        """Tell whether a segment is being made at this moment."""
        return self._preallocator.spare_wanted

    @property
    def is_full(self) -> bool:
        """Tell whether the disk had no room for the next segment when it was asked last."""
        return self._preallocator.full is not None

    @property
    def is_flushing(self) -> bool:
        """Tell whether a flush was asked for that is not reported yet."""
        return self._requested > self.flushed_offset

    def next_segment(self, base_offset: int) -> Segment | None:
        """Begin the segment at this offset; None while there is none ready. Never waits."""
        segments = self._log.segments
        if segments and self.flushed_offset < segments[-1].base_offset:
            self.request_flush()  # no more than two segments wait for the disk
            return None
        segment = self._preallocator.segment_at(base_offset)
        if segment is not None:
            self._log.begin(segment)
            self.request_flush()
        return segment

    def request_flush(self) -> None:
        """Have the log put on disk through its end."""
        end = self._requested = self._log.end_offset
        self._flusher.request(end, self._log.unflushed(end))

    def lower_flushed(self, offset: int) -> None:
        """Count the log as flushed no further than `offset`. Nothing is being flushed."""
        self._flusher.lower(offset)
        self.flushed_offset = self._requested = min(self.flushed_offset, offset)

    def hold_preallocation(self, held: bool) -> None:
        """Have the helper ahead of the writer begin nothing, or go on."""
        self._preallocator.is_held = held
