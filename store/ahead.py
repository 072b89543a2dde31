"""Ahead of the writer: pages that are present before bytes come, and the next segment before the last one is full.

An append is a copy into mapped memory, and has to stay one: neither a page fault that reads the disk nor the
creation of a file belongs into a turn of the loop. So one worker thread touches the pages of the last segment a
window ahead of the write position, and creates a spare segment while there is still room.

    |=== written ===|--- present: at least half a window ---|        |   spare: its first pages present   |
                    ^ write position                        ^ prefaulted position

A disk without room for a spare is asked again once a second; `full` tells meanwhile why appends are refused, if they
are. At most one of each kind of job is under way. Rolling into the spare is the business of `commitlog`, and waiting
for it that of `message_store`.
"""

from __future__ import annotations

from store.commitlog import CommitLog
from store.disk import DiskFull
from store.segment import Segment
from store.workers import Completions, Helpers, Worker

_SPARE_INTERVAL_MS = 1000


class Ahead:
    """Sizes in bytes. The loop owns it and calls `tick`; `begin` starts the thread."""

    worker: Worker

    def __init__(
        self,
        log: CommitLog,
        segment_size: int,
        window: int,
        idle_window: int,
        helpers: Helpers,
        completions: Completions,
    ) -> None:
        self.full: str | None = None
        """Why appends are refused at the moment, or None."""
        self.spare_wanted = False
        """Whether the worker is creating a spare segment."""
        self._log = log
        self._segment_size = segment_size
        self._window = window
        self._idle_window = idle_window
        self._helpers = helpers
        self._completions = completions
        self._begun_at = 0
        self._prefaulting = False
        self._next_spare_ms = 0

    def begin(self, end_offset: int) -> None:
        """Start, with a log that ends here before anything is appended."""
        self._begun_at = end_offset
        self.worker = self._helpers.worker("ropewalk-janitor", self._completions)

    def clock_set_back(self) -> None:
        """What was due in an hour is due now."""
        self._next_spare_ms = 0

    def tick(self, now: int) -> None:
        """Keep pages present before the writer, and a spare segment before the last one is full; `now` in ms."""
        if not self._log.segments:
            last_end, room, last = 0, 0, None
        else:
            last = self._log.segments[-1]
            last_end, room = last.end_offset, last.size - last.write_position
        window = self._window
        if last is not None and not self._prefaulting:
            ahead = last.prefaulted_position - last.write_position
            # The window is small until something has been written, so that an idle broker stays small.
            window = (
                window
                if self._log.end_offset > self._begun_at + self._idle_window // 2
                else self._idle_window
            )
            if ahead < window // 2 and last.prefaulted_position < last.size:
                self._prefault(last, max(last.write_position, last.prefaulted_position), window)
        if (
            self._log.spare is None
            and not self.spare_wanted
            and now >= self._next_spare_ms
            and room < max(2 * window, self._segment_size // 4)
        ):
            self.spare_wanted = True
            self._next_spare_ms = now + _SPARE_INTERVAL_MS  # a full disk is not asked at every turn
            self.worker.submit(lambda: self._make_spare(last_end), self._take_spare)

    def segment_at(self, base_offset: int) -> Segment | None:
        """The spare, if it is ready and stands there; else None, and one is being made. Never waits."""
        spare = self._log.spare
        if spare is not None and spare.base_offset == base_offset:
            self._log.spare = None
            self.full = None
            return spare
        if self.spare_wanted or self.full is not None:
            return None  # a full disk is asked again by `tick`, once a second
        self.spare_wanted = True
        self._log.spare = None

        def make() -> Segment | DiskFull:
            if spare is not None:  # of an empty log, which turns out to begin later
                self._log.discard(spare)
            return self._make_spare(base_offset)

        def take(made: Segment | DiskFull) -> None:
            self.spare_wanted = False
            self.full = str(made) if isinstance(made, DiskFull) else None
            if isinstance(made, Segment):
                self._log.spare = made

        self.worker.submit(make, take)
        return None

    def _prefault(self, segment: Segment, position: int, window: int) -> None:
        self._prefaulting = True
        end = min(position + window, segment.size)

        def done(_result: object) -> None:
            self._prefaulting = False
            segment.prefaulted_position = end

        self.worker.submit(lambda: segment.file.prefault(position, end - position), done)

    def _make_spare(self, base_offset: int) -> Segment | DiskFull:
        """On the worker thread."""
        try:
            spare = self._log.allocate(base_offset)
        except DiskFull as exc:
            return exc
        window = min(self._idle_window, spare.size)
        spare.file.prefault(0, window)
        spare.prefaulted_position = window
        return spare

    def _take_spare(self, spare: Segment | DiskFull) -> None:
        self.spare_wanted = False
        if isinstance(spare, DiskFull):
            return  # tried again in a moment; appends go on while the last segment has room
        segments = self._log.segments
        assert spare.base_offset == (segments[-1].end_offset if segments else 0)
        self.full = None
        self._next_spare_ms = 0
        self._log.spare = spare
