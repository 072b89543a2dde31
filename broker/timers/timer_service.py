"""Timer messages: kept in the timer topic until their time, found by the wheel, and appended to their real topic.

    send, TIMER_DELAY_SEC=90  ->  rmq_sys_wheel_timer queue 0: TIMER_OUT_MS, REAL_TOPIC, REAL_QID
    enqueue                   ->  a unit in the timer log, the newest of the wheel's slot of TIMER_OUT_MS
    a second after the slot   ->  a copy in REAL_TOPIC queue REAL_QID

`run` is called several times a second, and does a bounded piece: it enqueues what the timer topic got, and delivers
slots that lie before the present second. Messages due beyond `timerRollWindowSlot` come back into the timer topic half
way. A slot's markers (TIMER_DEL_UNIQKEY) are read before its messages, and those that they name are not delivered.

**Times are of the wall clock**, because that is what a sender names: a message is delivered when this clock shows its
time, never before. Where the clock is set forward, what has become due is delivered; where it is set back, messages
whose time lies ahead again wait for it, and those that are delivered already are not delivered again.

A slave enqueues what its master has enqueued, delivers nothing, and takes the master's progress over (`follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import groupby

import structlog

from broker.state.statistics import Statistics
from broker.timers.record_reads import Place, Records, read_records
from broker.timers.timer_copies import Copy, copy_of, decode_timer, delete_key, is_cancelled, waiting_of
from broker.timers.timer_counts import TimerCounts
from broker.timers.timer_metrics import TimerMetrics
from ropewalk.format import names
from ropewalk.format.properties import P, java_hash
from ropewalk.format.queue_entry import ENTRY
from ropewalk.format.record import Record
from store.io.workers import Worker
from store.message_store import MessageStore
from store.queues.consume_queue import ConsumeQueue
from store.read.reader import Reader
from store.timer.layout import ENQUEUED_LATE, Checkpoint, Unit
from store.timer.progress import Progress, ProgressPage
from store.timer.timer_log import BlockPlace
from store.timer.timer_store import Flushed, TimerStore, Walk, is_delete, is_rolled

__all__ = ["TimerService"]

log = structlog.get_logger("broker.timer")

_ENQUEUE_MAX = 128
_DELIVER_MAX = 128
"""Messages of one turn: each some 2 ms; what is left has the next turn, with other requests in between."""
_SCAN_MAX = 4_000
"""Rows of a slot that one turn looks at for messages: they may stand behind a great many markers."""
_RETRY_MS = 500
_BYTES_MAX = 4 << 20
"""Bytes of records of one turn, beyond the first."""
_FLUSH_MS = 1_000
_EXPIRE_MS = 30_000
_hash_of = lru_cache(maxsize=4096)(java_hash)


class TimerService:
    """The one owner of a broker's pending timers."""

    def __init__(
        self,
        timers: TimerStore,
        page: ProgressPage,
        store: MessageStore,
        reader: Reader,
        statistics: Statistics,
        now_ms: Callable[[], int],
        make_worker: Callable[[str], Worker],
        *,
        enabled: bool = True,
        serves: Callable[[str], bool] = lambda _topic: True,
        read_queue: Callable[[str, int], int] = lambda _topic, queue_id: queue_id,
    ) -> None:
        """`serves` tells whether this broker has a topic, `read_queue` which of its queues stands for another."""
        self.timers = timers
        self.orphans: dict[str, int] = {}
        """Topics of new timers that are not among those served, and the number of their queues, as far as known."""
        self._serves = serves
        self._read_queue = read_queue
        self.enabled = enabled
        self.metrics = TimerMetrics()
        self.counts = TimerCounts()
        self.enqueued = self.delivered = self.cancelled = 0
        """Counts since the start."""
        self._page = page
        self._store = store
        self._reader = reader
        self._statistics = statistics
        self._clock = now_ms
        self._make_worker = make_worker
        self._worker: Worker | None = None
        """Syncs, which may take its time."""
        self._page_worker: Worker | None = None
        """Writes the page, which may not."""
        self._enqueuing = self._reading = False
        """Whether the disk is asked for entries or records, and a run has to wait for it."""
        self._wake_ms = 0
        self._trouble = self._page_failure = ""
        """Why timers, and the page, wait for the disk."""
        self._walk: Walk | None = None
        self._row = -1
        """The next row of the walk to deliver, if it is no marker; the newest message is row 0."""
        self._left = 0
        """Messages from that row on that are delivered already."""
        self._markers: list[int] = []
        """Rows of markers that are still to be read, the next one last."""
        self._keys: set[tuple[str, str]] = set()
        self._planned = False
        self._done = 0
        self._earlier = 0
        """Messages of the slot at the read time that earlier walks delivered, before others came into it."""
        self._skip = 0
        """Messages of the slot at `_skip_ms` that an earlier process or master delivered."""
        self._skip_ms = 0
        self._begun: dict[int, int] = {}
        """Messages that are delivered of slots ahead, by slot time: the clock was set back meanwhile."""
        self._catch_up_to = 0
        """Nothing is delivered before the timer topic is enqueued up to here: a marker may stand there."""
        self._master_offset = 0
        self._heard: Progress | None = None
        """Progress of a leader that is still to be taken over."""
        self._known: tuple[int, Progress] = (0, Progress(0, 0))
        self._durable = Progress(0, 0)
        self._durable_end = 0
        """The end of the log in which the copies lie that `_durable` counts."""
        self._written: Progress | None = None
        self._page_wanted = True
        self._backs = self._page_backs = 0
        """How often the read time went back, and as of which of these times the page in its file is."""
        self._flush_ms = self._expire_ms = 0

    # -- life ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the store of pending timers. Blocks. Raises `StoreDamaged`."""
        if not self.enabled:
            return
        self._worker, self._page_worker = self._make_worker("sync"), self._make_worker("page")
        end = self._store.log.end_offset
        page = self._page.read(end) if not self._store.may_be_cut else None
        self.timers.open(self._clock(), end, self._queue_offset_of, page)
        queue = self._find_queue()
        low, high = (queue.min_offset, queue.next_offset) if queue is not None else (0, 0)
        self.timers.queue_offset = min(max(self.timers.queue_offset, low), high)
        self.timers.redo_to = min(self.timers.redo_to, high)
        if self.timers.queue_offset < self.timers.redo_to:
            log.error(
                "the timer log lacks the end that it had, for the disk was full, or it is damaged: timer messages that "
                "are not delivered are enqueued again from the commit log",
                first=self.timers.queue_offset,
                end=self.timers.redo_to,
            )
        if page is not None and page.read_ms == self.timers.read_ms:
            self._skip, self._skip_ms = page.done, page.read_ms
        self._master_offset = self.timers.queue_offset
        self._catch_up_to = high
        self._durable, self._durable_end = self._progress(), end
        self._known = (end, self._durable)

    def _queue_offset_of(self, unit: Unit) -> int:
        segment = self._store.log.find(unit.offset)
        if segment is None:
            return -1
        try:
            data = segment.file.read_at(unit.offset - segment.base_offset, unit.record_size)
            return decode_timer(data, unit.offset).queue_offset
        except (ValueError, OSError):
            return -1

    def stop(self) -> None:
        """Flush for the last time, the commit log before. Blocks."""
        if self._worker is None or self._page_worker is None:
            return
        if not self._store.may_be_cut:
            self._durable, self._durable_end = self._progress(), self._store.log.end_offset
        self._page_worker.stop()
        self._worker.stop()
        self._store.run_completions()
        self._store.flush_now()
        self.timers.forget(self._durable.read_ms)
        if self.timers.needs_flush(wanted := self._checkpoint()):
            try:
                if not self._store.may_be_cut:
                    self._page.write(self._store.log.end_offset, self._durable)
            except OSError as exc:
                log.error("how far timer messages are delivered cannot be written", reason=str(exc))
            try:
                result = self.timers.flush(wanted, self._durable_end)()
                self.timers.flushed(result)
                failure = result.failure
            except OSError as exc:
                failure = str(exc)
            if failure:
                log.error("the last timers go to no file: the next start enqueues them again", reason=failure)

    # -- roles ---------------------------------------------------------------------------------------

    @property
    def _follows(self) -> bool:
        return self._store.follows

    def lead(self) -> None:
        """Go on where the master was: enqueue the rest of the timer topic, then deliver."""
        self._heard = None
        self._abandon_walk()
        queue = self._find_queue()
        self._catch_up_to = queue.next_offset if queue is not None else 0
        self.timers.queue_offset = min(self.timers.queue_offset, self._catch_up_to)

    def follow(self, progress: Progress) -> bool:
        """Take over the master's progress, whose copies are in the own log; whether so.

        One whose time went back is left out until a flush allows it: the master reports again.
        """
        self._abandon_walk()
        goes_back = progress.read_ms < self.timers.read_ms
        if not self.timers.follow(progress.read_ms):
            return False
        self._master_offset = progress.queue_offset
        self._skip, self._skip_ms, self._earlier = progress.done, progress.read_ms, 0
        self._begun.clear()
        if goes_back:
            self._went_back()
        return True

    def hear(self, progress: Progress) -> None:
        """Take a leader's progress over that the own log shows with all its copies, as soon as the files allow it."""
        self._heard = progress
        self._follow_heard()

    def _follow_heard(self) -> None:
        if self._heard is not None and self.follow(self._heard):
            self._heard = None

    def take_back(self) -> None:
        """Go back to the durable progress: copies behind it may be cut."""
        self.follow(self._durable)

    def _abandon_walk(self) -> None:
        self._skip += self._done
        self._walk, self._done = None, 0

    @property
    def is_behind(self) -> bool:
        """Tell whether a start or a promotion left messages to enqueue: those before the read time count for nothing.

        A slave that took the read time over would drop their units, which it may have.
        """
        return not self._follows and self.timers.queue_offset < self._catch_up_to

    def progress(self) -> Progress:
        """Return how far timers are delivered and enqueued, as slaves hear it."""
        return self._progress()

    def _progress(self) -> Progress:
        skip = self._skip if self._skip_ms == self.timers.read_ms else 0
        timers = self.timers
        done = self._earlier + skip + self._done
        return Progress(timers.read_ms, timers.queue_offset, done, timers.log.end)

    def read_behind_ms(self) -> int:
        """Return how far delivery is behind the clock, ms."""
        return max(self._clock() - self.timers.read_ms, 0) if self.enabled and self.timers.read_ms else 0

    def offset_behind(self) -> int:
        """Count messages of the timer topic that are not enqueued yet."""
        queue = self._find_queue()
        return max(queue.readable - self.timers.queue_offset, 0) if self.enabled and queue is not None else 0

    def next_place(self) -> tuple[ConsumeQueue | None, int]:
        """Return the place of the first message of the timer topic that is not enqueued yet."""
        return self._find_queue(), self.timers.queue_offset

    def pending(self) -> int:
        """Count the messages that wait for their time."""
        return sum(self.metrics.counts().values())

    def answer(self) -> Checkpoint:
        """Return the checkpoint as code 60 carries it."""
        timers, known = self.timers, self.timers.checkpoint
        return replace(
            known,
            read_ms=timers.read_ms,
            queue_offset=timers.queue_offset,
            master_queue_offset=self._master_offset if self._follows else timers.queue_offset,
        )

    # -- turns ---------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Enqueue and deliver, a bounded number of messages. Whether there is more to do at once."""
        if not self.enabled or self._clock() < self._wake_ms <= self._clock() + _RETRY_MS:
            return False
        before = self.delivered, self.timers.read_ms
        try:
            more = self._enqueue()
            if not self._follows:
                more = self._deliver() or more
            self.timers.write()
            # What is enqueued a start finds by the units themselves: that is no reason to wake a thread in each turn.
            self._note(page=before != (self.delivered, self.timers.read_ms))
        except OSError as exc:
            self._pause(f"timers cannot be written: {exc}")
            return False
        if self._trouble and not self._wake_ms - _RETRY_MS <= self._clock() <= self._wake_ms + _RETRY_MS:
            log.info("timer messages go on", reason=self._trouble)
            self._trouble = ""
        return more

    def _pause(self, reason: str) -> None:
        """Try again after a while. One that goes on is told once."""
        self._wake_ms = self._clock() + _RETRY_MS
        if not self._trouble:
            log.error("timer messages wait", reason=reason)
        self._trouble = reason

    def tick(self) -> None:
        """The work of time: flush, and drop files that nothing needs."""
        if not self.enabled or self._worker is None:
            return
        now = self._clock()
        if self._follows:
            self._follow_heard()
        self._note()
        try:
            self._flush(now)
            self._expire(now)
        except OSError as exc:
            self._pause(f"timers cannot be written: {exc}")
        while self.timers.findings:
            log.warning("timers", finding=self.timers.findings.pop(0))

    def _flush(self, now: int) -> None:
        """Have what is pending made durable, once a second. Raises OSError."""
        worker = self._worker
        if worker is None or worker.pending or self._flush_ms - _FLUSH_MS <= now < self._flush_ms:
            return
        self._flush_ms = now + _FLUSH_MS
        wanted = self._checkpoint()
        goes_back = wanted.read_ms < self.timers.claimed_ms
        if self.timers.needs_flush(wanted) and not (goes_back and self._page_is_old):
            worker.submit(self.timers.flush(wanted, self._durable_end), self._flushed)

    def _expire(self, now: int) -> None:
        """Have files removed that nothing needs. Raises OSError."""
        worker = self._worker
        if worker is None or self._expire_ms - _EXPIRE_MS <= now < self._expire_ms:
            return
        self._expire_ms = now + _EXPIRE_MS
        for path in self.timers.log.expired(self._store.log.min_offset):
            worker.submit(partial(self.timers.log.remove, path), self._removed)

    def _removed(self, failure: str) -> None:
        if failure:
            log.warning("a file of the timer log cannot be removed", reason=failure)

    @property
    def _page_is_old(self) -> bool:
        """Tell whether the page is from before the clock was set back last: a start believes the later of two times."""
        has_page = not (self._store.may_be_cut or self.timers.is_unused)
        return has_page and self._page_backs != self._backs

    def _note(self, *, page: bool = True) -> None:
        """Count as durable what was delivered below the flushed end of the log, and write the `page` of this moment."""
        now = self._progress()
        if self._known[0] <= self._store.log.flushed_offset:
            self._durable_end, self._durable = self._known
            self.timers.forget(self._durable.read_ms)
            self._known = self._store.log.end_offset, now
        self._page_wanted |= page
        self._write_page()

    def _write_page(self) -> None:
        worker, now = self._page_worker, self._progress()
        if not self._page_wanted or worker is None or worker.pending or self.timers.is_unused:
            return
        self._page_wanted = False
        if self._written == now:
            return
        if self._store.may_be_cut:
            return  # the page would claim copies that a new leader has cut
        end, backs = self._store.log.end_offset, self._backs

        def write() -> str:
            try:
                self._page.write(end, now)
            except OSError as exc:
                return str(exc)
            return ""

        def done(failure: str) -> None:
            self._written = now
            if failure and not self._page_failure:
                log.error("how far timer messages are delivered cannot be written", reason=failure)
            self._page_failure = failure
            if not failure:
                self._page_backs = backs
                self._write_page()

        worker.submit(write, done)

    def _checkpoint(self) -> Checkpoint:
        known, durable = self.timers.checkpoint, self._durable
        offset = durable.queue_offset
        master = self._master_offset if self._follows else offset
        moved = (durable.read_ms, offset) != (known.read_ms, known.queue_offset)
        return Checkpoint(
            durable.read_ms,
            known.log_end,
            min(offset, master),
            master,
            known.state_version,
            self._clock() if moved else known.version_ms,
            known.counter + moved,
        )

    def _flushed(self, result: Flushed) -> None:
        self.timers.flushed(result)

    # -- enqueue -------------------------------------------------------------------------------------

    def _find_queue(self) -> ConsumeQueue | None:
        return self._store.find_queue(names.TIMER_TOPIC, 0)

    def _enqueue(self) -> bool:
        queue, timers = self._find_queue(), self.timers
        if queue is None or self._enqueuing or (not self._follows and timers.is_ahead_of(self._clock())):
            return False
        if timers.claimed_ms > timers.read_ms or self._page_is_old:
            return (
                False  # set back: until the files say so too, a start would drop the slots before their time
            )
        timers.queue_offset = start = max(timers.queue_offset, queue.min_offset)
        end = min(queue.readable, self._master_offset) if self._follows else queue.readable
        count = min(end - start, _ENQUEUE_MAX)
        if count <= 0:
            return False
        self._enqueuing = True
        entries = queue.entries_nowait(start, count)
        if entries is not None:
            self._have_entries(start, entries)
        else:
            file, position, size = queue.place(start, count)
            have = partial(self._have_entries, start)
            self._reader.run(lambda: file.read_at(position, size), have, have)
        return not self._enqueuing and timers.queue_offset < end

    def _have_entries(self, start: int, entries: bytes | None) -> None:
        whole = len(entries) // ENTRY.size * ENTRY.size if entries else 0
        places: list[Place] = []
        size = 0
        for offset, record_bytes, _tags in ENTRY.iter_unpack(entries[:whole] if entries else b""):
            size += record_bytes
            if places and size > _BYTES_MAX:
                break
            places.append((offset, record_bytes))
        if not places:
            self._enqueuing = False
            self._pause(f"the entries of the timer topic from {start} on cannot be read")
            return
        read_records(self._store, self._reader, places, partial(self._have_new, start, places))

    def _have_new(self, start: int, places: list[Place], records: Records | None) -> None:
        """Put timers into the wheel, and deliver those whose slot has passed."""
        self._enqueuing = False
        timers, follows = self.timers, self._follows
        if records is None:
            self._pause("the records of new timer messages cannot be read")
            return
        if timers.queue_offset != start:
            return
        precision = timers.rules.precision_ms
        waiting: dict[str, int] = {}
        try:
            for data, (offset, size) in zip(records, places, strict=True):
                try:
                    new = waiting_of(data, offset)
                except ValueError as exc:
                    log.error("a timer message is given up", reason=str(exc))
                    timers.queue_offset += 1
                    continue
                due_ms, topic, queue_text, store_ms, born_ms, is_marker, comes_again = new
                again = timers.queue_offset < timers.redo_to
                if not follows and not again and due_ms - due_ms % precision < timers.read_ms:
                    if not is_marker and not self._put([(decode_timer(data, offset), ENQUEUED_LATE, False)]):
                        return
                elif (
                    timers.enqueue(
                        due_ms,
                        store_ms,
                        offset,
                        size,
                        _hash_of(topic),
                        delete=is_marker,
                        follows=follows or again,
                    )
                    and not again
                ):
                    waiting[topic] = waiting.get(topic, 0) + (-1 if is_marker else 1)
                    if not follows and not self._serves(topic):
                        self._note_orphan(topic, queue_text)
                    if not is_marker:
                        self.counts.add_enqueued(topic, None if comes_again else (due_ms - born_ms) / 1000)
                timers.queue_offset += 1
                self.enqueued += 1
        except OSError as exc:
            self._pause(f"the timer log cannot be written: {exc}")
        finally:
            if not follows:  # a slave takes its master's counts over
                for topic, change in waiting.items():
                    self.metrics.add(topic, change, self._store.now)

    def _note_orphan(self, topic: str, queue_text: str) -> None:
        """Remember a topic that its master made moments before it died: the slave never heard of it."""
        queues = int(queue_text) + 1 if queue_text.isascii() and queue_text.isdigit() else 1
        self.orphans[topic] = max(queues, self.orphans.get(topic, 0))

    # -- deliver -------------------------------------------------------------------------------------

    def _deliver(self) -> bool:
        timers, now = self.timers, self._clock()
        if self._reading:
            return False
        if self._walk is None and timers.is_ahead_of(now):
            return self._set_back(now)
        if timers.queue_offset < self._catch_up_to:
            return False
        if self._walk is None:
            self._walk = timers.next_due(now - now % timers.rules.precision_ms)
            self._planned = False
            if self._walk is None:
                return False
        walk = self._walk
        if not walk.is_done:
            place = timers.step(walk)
            if place is not None:
                self._reading = True
                have = partial(self._have_block, place)
                self._reader.run(partial(timers.log.read_block, place), have, have)
                return False
            if not walk.is_done:
                return True
        if walk.damage:
            self._mend(walk)
            return False
        if not self._planned:
            self._plan(walk)
        if self._markers:
            rows = self._next_rows(walk, reversed(self._markers))
        elif self._skip_rows(walk):
            return True
        else:
            rows = self._next_rows(walk, range(self._row, max(self._row - _SCAN_MAX, -1), -1))
        if not rows:
            timers.finish(walk)
            self._earlier = self._earlier + self._skip + self._done if timers.read_ms == walk.slot_ms else 0
            self._skip = self._done = 0
            self._walk = None
            return True
        self._reading = True
        places = [(walk.offsets[row], walk.sizes[row]) for row in rows]
        then = self._have_markers if self._markers else self._have_due
        read_records(self._store, self._reader, places, partial(then, walk, rows, places))
        return not self._reading and self._wake_ms <= now

    def _set_back(self, now: int) -> bool:
        """Follow a clock that was set back, once all that is delivered is on the disk; whether so."""
        before = self._progress()
        if not self.timers.set_back(now):
            return False
        if before.done:
            self._begun[before.read_ms] = before.done
        self._skip = self._skip_ms = self._earlier = 0
        self._went_back()
        return True

    def _went_back(self) -> None:
        """Have page and checkpoint follow."""
        self._backs += 1
        self._written, self._page_wanted = None, True
        # The checkpoint names the earlier time from now on: with a later one, a start would skip what is enqueued
        # between the two. What is enqueued meanwhile becomes durable as ever.
        now_at = self._progress()
        if self._durable.read_ms > now_at.read_ms:
            self._durable = replace(self._durable, read_ms=now_at.read_ms, done=0)
            self._durable_end = self._store.log.flushed_offset
        self._known = self._store.log.end_offset, now_at

    def _have_block(self, place: BlockPlace, data: bytes | None) -> None:
        self._reading = False
        if data:
            self.timers.log.keep_block(place, data)
        else:
            self._pause("the timer log cannot be read")

    def _mend(self, walk: Walk) -> None:
        """Have the messages behind a damaged unit enqueued again, and their slot walked anew. Raises OSError."""
        timers, before = self.timers, self._progress()
        timers.cut_damage(walk, self._queue_offset_of)
        self._walk = None
        if before.done:
            self._skip, self._skip_ms, self._earlier = before.done, before.read_ms, 0
        self._catch_up_to = max(self._catch_up_to, timers.redo_to)
        first, end = timers.queue_offset, timers.log.end
        known = self._known[1]
        self._known = (
            self._known[0],
            replace(known, queue_offset=min(known.queue_offset, first), units_end=end),
        )
        durable = self._durable
        self._durable = replace(durable, queue_offset=min(durable.queue_offset, first), units_end=end)
        self._pause(f"{walk.damage}; those from {first} on are enqueued again from the commit log")

    def _plan(self, walk: Walk) -> None:
        """Order the units of a slot: markers, then messages, each from the oldest on."""
        self._planned = True
        self._keys.clear()
        self._markers = walk.markers
        self._row = len(walk.magics) - 1
        if walk.slot_ms != self._skip_ms:
            self._skip, self._skip_ms = self._begun.pop(walk.slot_ms, 0), walk.slot_ms
        self._left = self._skip
        if not walk.markers:
            self._row, self._left = max(self._row - self._left, -1), 0

    def _skip_rows(self, walk: Walk) -> bool:
        """Pass the rows of markers, and of messages that are delivered, a bounded number; whether more may follow."""
        row, left, magics = self._row, self._left, walk.magics
        last = max(row - _SCAN_MAX, -1)
        while row > last and (left or is_delete(magics[row])):
            left -= left > 0 and not is_delete(magics[row])
            row -= 1
        self._row, self._left = row, left
        return row == last and row >= 0

    def _next_rows(self, walk: Walk, waiting: Iterable[int]) -> list[int]:
        """Return the next rows to read, markers or messages, the oldest first."""
        rows: list[int] = []
        markers, size = bool(self._markers), 0
        for row in waiting:
            if is_delete(walk.magics[row]) is not markers:
                continue
            size += walk.sizes[row]
            if len(rows) == _DELIVER_MAX or (rows and size > _BYTES_MAX):
                break
            rows.append(row)
        return rows

    def _have_markers(
        self, walk: Walk, rows: list[int], places: list[Place], records: Records | None
    ) -> None:
        self._reading = False
        if self._walk is not walk:
            return
        if records is None:
            self._pause("recalls of timer messages cannot be read")
            return
        del self._markers[-len(rows) :]
        for data, (offset, _size) in zip(records, places, strict=True):
            try:
                record = decode_timer(data, offset)
            except ValueError as exc:
                log.error("the recall of a timer message is given up", reason=str(exc))
                continue
            self._keys.add(delete_key(record))
            self.metrics.add(record.properties[P.REAL_TOPIC], 1, self._store.now)

    def _have_due(self, walk: Walk, rows: list[int], places: list[Place], records: Records | None) -> None:
        self._reading = False
        if self._walk is not walk or self._follows:
            return
        if records is None:
            self._pause("timer messages that are due cannot be read")
            return
        due: list[tuple[Record | None, int, bool]] = []
        for data, (offset, _size), row in zip(records, places, rows, strict=True):
            try:
                record = decode_timer(data, offset)
            except ValueError as exc:
                log.error("a timer message is given up", reason=str(exc))
                due.append((None, 0, False))
                continue
            rolled = is_rolled(walk.magics[row])
            if not rolled and is_cancelled(record, self._keys):
                self.cancelled += 1
                self.metrics.add(record.properties[P.REAL_TOPIC], -1, self._store.now)
                due.append((None, 0, False))
                continue
            due.append((record, walk.written[row], rolled))
        count = self._put(due)
        if count:
            self._row = rows[count] if count < len(rows) else rows[-1] - 1
            self._done += count

    def _put(self, due: Sequence[tuple[Record | None, int, bool]]) -> int:
        """Append the copies of records; how many of the rows that settles: fewer than all if the disk is full."""
        now, store = self._clock(), self._store
        copies: list[tuple[int, Copy]] = []
        for row, (record, enqueue_ms, rolled) in enumerate(due):
            if record is None:
                continue
            try:
                copies.append((row, copy_of(store, record, enqueue_ms, now, self._read_queue, rolled=rolled)))
            except ValueError as exc:
                log.error("a timer message is given up", reason=str(exc))
        for born_host, group in groupby(copies, lambda item: item[1].born_host):
            run = list(group)
            stored = store.put([copy.message for _row, copy in run], born_host)
            self._count([copy for _row, copy in run[: len(stored)]])
            if len(stored) < len(run):
                self._pause(store.shortage)
                return run[len(stored)][0]
        return len(due)

    def _count(self, copies: list[Copy]) -> None:
        """Delivered messages are put into their topics, and leave the counts of their real ones."""
        now = self._store.now
        self.delivered += len(copies)
        by_topic: dict[str, list[int]] = {}
        waited: dict[str, int] = {}
        for copy, size in zip(copies, self._store.sizes, strict=False):
            by_topic.setdefault(copy.message[0].topic, []).append(size)
            self.counts.add_dequeued(copy.topic, 1)
            if copy.counted:
                waited[copy.topic] = waited.get(copy.topic, 0) + 1
        for topic, sizes in by_topic.items():
            self._statistics.put(topic, now, len(sizes), sum(sizes), sizes=sizes)
        for topic, count in waited.items():
            self.metrics.add(topic, -count, now)
