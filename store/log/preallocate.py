"""Preallocation ahead of the writer: zeros on the disk where records will stand, and a spare segment for the next roll.

    |=== written ===|--- zeros on the disk: at least half a window ---|        |   spare   |
                    ^ write position                                  ^ filled position

Three kinds of help, of which the growth of the log chooses one at a time:

*zeros*    under SYNC_FLUSH, where the log does not grow too fast: the pages there are written as they are, so nothing
           of a writer who comes meanwhile is lost. A flush then finds blocks that hold data already, and the file
           system has nothing to note;
*pages*    where nobody waits for a flush, or zeros would take too much of the disk or were overtaken: empty pages are
           brought into the page cache, which costs no write;
*shares*   large bodies bring their own pages as they are written, and are helped only in memory that a virtual machine
           was not given yet: a process brings every other part.

One worker thread does this, or a process where the log grows fast (`store.log.page_prefault`). The same thread creates
the spare segment while there is still room, because to create a file does not belong into a turn of the loop. A disk
without room for it is asked again once a second; `full` tells meanwhile why appends are refused. At most one of each
kind of job is under way. Rolling into the spare is the business of `commitlog`, and waiting for it that of
`message_store`.

Measured:
    fdatasync of 16 KiB on ext4                        0.37 ms in reserved blocks, 0.13 ms in written ones
    pages, 4 connections x 32 of 1 KiB, new memory     90k/s -> 140k/s
    pages for zeros, 4 x 256 of 1 KiB, SYNC_FLUSH      195k/s -> 215k/s (half of what the disk got were zeros)
"""

from __future__ import annotations

from collections.abc import Callable

from store.io.disk import Disk, DiskFull
from store.io.workers import Completions, Helpers, Worker
from store.log.commitlog import CommitLog
from store.log.page_prefault import prefaulter
from store.log.segment import Segment

_SPARE_INTERVAL_MS = 1000
_PACE_MS = 500
_ZEROS_BYTES_PER_MS = 150_000
"""A log that grows faster gets no zeros."""
_FAST_BYTES_PER_MS = 16_000
"""And one that grows as fast as this its pages and its zeros from a process, once there is one."""
_COLD_S_PER_MIB = 0.0006
"""Large records that take longer to be written get memory that the machine was not given yet: 0.15-0.35 ms otherwise,
2 ms in such memory, 1.2 ms if another processor brings half of it."""
_SHARED_WINDOWS = 4
"""The windows of pages that are shared: there is a tick each 50 ms, and a gigabyte can be written in a second."""
_OVERTAKEN_MS = 10_000
_STEP = 1 << 20
"""So many bytes of zeros are written before it is looked whether the writer was faster."""


class GrowthPace:
    """The pace at which the log grows, and whether zeros ahead of it pay. Times in ms, positions are log offsets."""

    def __init__(self) -> None:
        self.bytes_per_ms = 0.0
        """Over the last half second or more."""
        self._looked_at = (0, 0)
        self._fastest = 0.0
        self._overtaken_until = 0

    def update(self, now: int, position: int) -> None:
        """Take in where the writer is; call often."""
        then, stood = self._looked_at
        if not 0 <= now - then < _PACE_MS:
            self.bytes_per_ms = max(0, position - stood) / (now - then) if now > then else 0.0
            self._looked_at = now, position
            self._fastest = max(self._fastest, self.bytes_per_ms)

    def overtook(self, now: int) -> None:
        """Note that the writer overtook the zeros."""
        self._overtaken_until = now + _OVERTAKEN_MS
        self._fastest = self.bytes_per_ms

    def forgive(self) -> None:
        """Let zeros be tried again."""
        self._overtaken_until = 0

    def zeros_pay(self, now: int) -> bool:
        """Tell whether zeros are worth their writes: not where they are too large a part of what the disk gets.

        Nor where the writer overtook them, for ten seconds or until the log grows half as fast."""
        too_fast = self._fastest / 2 if now < self._overtaken_until else _ZEROS_BYTES_PER_MS
        return self.bytes_per_ms < too_fast


def _room_for_spare(segment_size: int, window: int) -> int:
    """Return the room in the last segment below which the next one is made."""
    return max(2 * window, segment_size // 4)


class Preallocator:
    """The worker ahead of the log's writer. Sizes in bytes. The loop owns it and calls `tick`; `begin` starts it."""

    worker: Worker

    def __init__(
        self,
        log: CommitLog,
        disk: Disk,
        segment_size: int,
        window: int,
        idle_window: int,
        fills: bool,
        helpers: Helpers,
        completions: Completions,
    ) -> None:
        self.full: str | None = None
        """Why appends are refused at the moment, or None."""
        self.spare_wanted = False
        """Whether the worker is creating a spare segment."""
        self.is_held = False
        """Whether nothing is begun, because the end of the log is being moved back."""
        self._log = log
        self._segment_size = segment_size
        self._window = window
        self._idle_window = idle_window
        self._fills = fills
        self._helpers = helpers
        self._completions = completions
        self._begun_at = 0
        self._brought = self._shared = 0
        """Up to where in the log pages were asked for, and shared."""
        self._bringing = False
        """Whether zeros or pages are under way."""
        self._looked_at: tuple[Segment | None, int, int, float] = (None, 0, 0, 0.0)
        """A segment, up to where it had been written, how much of that were large records, and how long they took."""
        self._large = self._cold = False
        """The measured result, which stays valid for the next segment."""
        self._pace = GrowthPace()
        self._prefaulter = prefaulter(disk)
        self._ticked_ms = self._next_spare_ms = 0

    def begin(self, end_offset: int) -> None:
        """Start, with a log that ends here before anything is appended."""
        self._begun_at = end_offset
        self.worker = self._helpers.worker("ropewalk-preallocate", self._completions)

    def stop(self) -> None:
        """End the thread and its process. Blocks until what was submitted is done."""
        self.worker.stop()
        self._prefaulter.stop()

    def clock_set_back(self) -> None:
        """Make all timers due now, as they were set by the old clock."""
        self._next_spare_ms = 0
        self._pace.forgive()

    def tick(self, now: int) -> None:
        """Keep zeros or pages ahead of the writer, and a spare segment before the last one is full; `now` in ms."""
        self._ticked_ms = now
        self._pace.update(now, self._log.end_offset)
        if self.is_held:
            return
        last = self._log.segments[-1] if self._log.segments else None
        last_end, room = (last.end_offset, last.size - last.write_position) if last is not None else (0, 0)
        if (
            self._log.spare is None
            and not self.spare_wanted
            and now >= self._next_spare_ms
            and (room < _room_for_spare(self._segment_size, self._window) or self.full is not None)
        ):
            self.spare_wanted = True
            self._next_spare_ms = now + _SPARE_INTERVAL_MS  # a full disk is not asked at every turn
            self.worker.submit(lambda: self._make_spare(last_end), self._take_spare)
        if last is None:
            return
        if self._fills and self._pace.zeros_pay(now):
            self._fill(last)
        else:
            self._bring_pages(last)

    def segment_at(self, base_offset: int) -> Segment | None:
        """Return the spare, if it is ready and stands there; else None, and one is being made. Never waits."""
        spare = self._log.spare
        if spare is not None and spare.base_offset == base_offset:
            self._log.spare = None
            self.full = None
            return spare
        if self.spare_wanted or self.full is not None or self.is_held:
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

    def _window_now(self) -> int:
        """Return the window, which is small until something has been written, so that an idle broker takes little."""
        has_grown = self._log.end_offset > self._begun_at + self._idle_window // 2
        return self._window if has_grown else self._idle_window

    def _bring_pages(self, last: Segment) -> None:
        """Have the page cache hold what is written next; the bytes stay what they are."""
        self._look_at_records(last)
        fast = self._pace.bytes_per_ms >= _FAST_BYTES_PER_MS
        if self._large:
            if self._cold and fast:
                self._share_pages(last)
            return
        window = self._window_now()
        start = max(last.write_position, self._brought - last.base_offset)
        if self._bringing or start - last.write_position >= window // 2 or start >= last.size:
            return
        end = min(start + window, last.size)

        def bring() -> bool:
            self._prefaulter.bring(last.file, start, end, fast=fast)
            return True

        def brought(_: bool) -> None:
            self._brought = last.base_offset + end

        self._have_brought(last, bring, brought)

    def _share_pages(self, last: Segment) -> None:
        """Have others bring every other part of what is written soon. Of what is next they would be in the way."""
        window = _SHARED_WINDOWS * self._window_now()
        start = max(last.write_position + window // 8, self._shared - last.base_offset)
        if self._bringing or start - last.write_position >= window // 2 or start >= last.size:
            return
        end = min(start + window, last.size)

        def shared(by_somebody: bool) -> None:
            if by_somebody:  # else they are asked again
                self._shared = last.base_offset + end

        self._have_brought(last, lambda: self._prefaulter.share(last.file, start, end), shared)

    def _have_brought(self, last: Segment, bring: Callable[[], bool], then: Callable[[bool], None]) -> None:
        self._bringing = True
        last.pins += 1  # a descriptor that is closed meanwhile may be another file's next

        def done(did: bool) -> None:
            self._bringing = False
            last.pins -= 1
            then(did)

        self.worker.submit(bring, done)

    def _look_at_records(self, last: Segment) -> None:
        """Note whether most of what was written since the last look were large records, and how long these took.

        A large write gets its pages by itself, many in one piece and not zeroed first: per 64 KiB 15 us of the writer,
        21 us where they had been brought one by one, and that took another 20. In memory that the machine was not
        given yet these are 130 us, and half of them are worth another processor's time. A run of small records, which
        costs the loop more, keeps its pages brought.
        """
        segment, position, gathered, took_s = self._looked_at
        if last.write_position == position and segment is last:
            return
        if segment is last:
            size = last.gathered - gathered
            self._large = 2 * size > last.write_position - position
            self._cold = (last.file.pieces_s - took_s) * (1 << 20) > _COLD_S_PER_MIB * size
        self._looked_at = last, last.write_position, last.gathered, last.file.pieces_s

    def _fill(self, last: Segment) -> None:
        """Have zeros written ahead of the writer: the pages there as they are, so that nothing of his is lost."""
        window = self._window_now()
        start = max(last.write_position, last.filled_position)
        if self._bringing or start - last.write_position >= window // 2 or start >= last.size:
            return
        end = min(start + window, last.size)
        had_lead = start > last.write_position
        fast = self._pace.bytes_per_ms >= _FAST_BYTES_PER_MS

        def fill() -> bool:
            for at in range(start, end, _STEP):
                if last.write_position > at:
                    return False
                self._prefaulter.write(last.file, at, min(at + _STEP, end), fast=fast)
            return True

        def done(whole: bool) -> None:
            if whole or not had_lead:
                last.mark_filled(end)
            else:
                self._pace.overtook(self._ticked_ms)

        self._have_brought(last, fill, done)

    def _make_spare(self, base_offset: int) -> Segment | DiskFull:
        """On the worker thread."""
        try:
            spare = self._log.allocate(base_offset)
        except DiskFull as exc:
            return exc
        if self._fills:
            spare.mark_filled(min(self._idle_window, spare.size))
            self._prefaulter.write(spare.file, 0, spare.filled_position, fast=False)
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
