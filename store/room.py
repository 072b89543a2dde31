"""`SegmentRoom`: the segment that the next record goes to, and the wait for it when the last one is full.

A plain log may keep a turn waiting for as long as the helper thread takes to make the next file: that is shorter than
a refusal. A log of entries refuses at once, since a leader's heartbeats wait for no file.

Recovery counts what lies two segments back as durable, so no segment is begun before the last but one is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from store.entry_host import EntryHost
from store.io.disk import DiskFull
from store.io.workers import Helpers
from store.log.commitlog import CommitLog
from store.log.preallocate import Preallocator
from store.log.segment import Segment

__all__ = ["SegmentRoom"]

_WAIT_S = 5.0


class SegmentRoom:
    """Room at the end of the log for the next records."""

    def __init__(
        self,
        log: CommitLog,
        preallocator: Preallocator,
        helpers: Helpers,
        request_flush: Callable[[], None],
        run_completions: Callable[[], None],
    ) -> None:
        """`request_flush` and `run_completions` are the store's, for a turn that has to wait."""
        self.entry_host: EntryHost | None = None
        """The extent on disk of an opened log of entries; None for a plain log."""
        self._log = log
        self._preallocator = preallocator
        self._helpers = helpers
        self._request_flush = request_flush
        self._run_completions = run_completions

    def reserve(self, size: int) -> Segment:
        """Return the segment that has room for `size` more bytes in one piece; roll if it must. Raises `DiskFull`."""
        log, preallocator = self._log, self._preallocator
        segments = log.segments
        if segments and segments[-1].has_room_for(size):
            return segments[-1]
        if preallocator.full is not None and log.spare is None:
            raise DiskFull(preallocator.full)  # the helper thread keeps asking: no turn has to
        if self.entry_host is not None:
            return self._next_or_busy(size, self.entry_host)
        until = time.monotonic() + _WAIT_S
        while log.spare is None and preallocator.spare_wanted and time.monotonic() < until:
            # The helper thread is creating this very file: waiting for it is shorter than refusing.
            self._helpers.pause()
            self._run_completions()
        # What lies two segments back has been durable for long, unless the disk crawls.
        while segments and log.flushed_offset < segments[-1].base_offset and time.monotonic() < until:
            self._request_flush()
            self._helpers.pause()
            self._run_completions()
        if log.spare is None and preallocator.spare_wanted:
            raise self._full(f"the next segment was not allocated within {_WAIT_S:.0f} s")
        if segments and log.flushed_offset < segments[-1].base_offset:
            raise self._full(f"the disk did not take a whole segment's bytes within {_WAIT_S:.0f} s")
        segment = self._begin(size)
        self._request_flush()  # the sealed segment counts as durable soon: see above
        return segment

    def next_segment(self, base_offset: int) -> Segment | None:
        """Begin the segment at this offset of a slave's log; None while there is none ready. Never waits."""
        log = self._log
        if log.segments and log.flushed_offset < log.segments[-1].base_offset:
            self._request_flush()  # recovery counts what lies two segments back as durable
            return None
        segment = self._preallocator.segment_at(base_offset)
        if segment is not None:
            log.begin(segment)
            self._request_flush()
        return segment

    def _next_or_busy(self, size: int, host: EntryHost) -> Segment:
        """Begin the next segment of a log of entries. Raises `DiskFull` at once: heartbeats wait for no file."""
        segments = self._log.segments
        is_behind = bool(segments) and host.flushed_offset < segments[-1].base_offset
        if is_behind:
            host.request_flush()
        if is_behind or (self._log.spare is None and self._preallocator.spare_wanted):
            raise DiskFull("busy: the next segment of the log is being prepared, try again")
        return self._begin(size)

    def _begin(self, size: int) -> Segment:
        """Roll to the next segment, and note whether the disk had room for it. Raises `DiskFull`."""
        try:
            segment = self._log.segment_for(size)
        except DiskFull as exc:
            self._preallocator.full = str(exc)
            raise
        self._preallocator.full = None
        return segment

    def _full(self, why: str) -> DiskFull:
        self._preallocator.full = why
        return DiskFull(why)
