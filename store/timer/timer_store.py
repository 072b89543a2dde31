"""Pending timers: what is due when, kept in wheel and log so that a crash, and RocketMQ, can go on with it.

    enqueue      message of the timer topic -> unit in the log -> newest of its slot in the wheel
    next_due     the oldest slot before a time that has units
    walk         a slot's chain, newest to oldest, in bounded steps; blocks of it may have to come from the disk
    finish       the slot is delivered: `read_ms` moves behind it
    forget       slots whose copies are on the disk are cleared
    set_back     the clock was set back, and `read_ms` follows it

`read_ms` is the time of the next slot to deliver, and `queue_offset` the next message of the timer topic to enqueue.
Both go into the checkpoint (`config/timercheck`) when what they claim is on the disk: the units and slots of every
message before `queue_offset`, and the delivered copies, which the owner of the commit log knows of.

A start believes the wheel up to the checkpoint's end of the log, and raises slots by the units behind it: that is at
most what a flush interval enqueued. Units of records that the commit log has lost are cut. A wheel that contradicts
the log is built again from all of its units: seconds for a million.

A `queue_offset` counts only with the units behind it: each claim names the end that the log then had. Where the log
ends before it, because the disk was full or the file is damaged or gone, the messages behind its last unit are enqueued
again (`redo_to`), but for those whose slot is delivered.

A unit is known to be delivered by its slot alone, which lies before `read_ms` or is cleared. Before `read_ms` goes back
below slots that are delivered, a flush has therefore to have cleared them in the wheel's file, and to have placed the
checkpoint's end of the log behind their units: from then on no start raises them again. (A wheel that is built again
from the log, after a loss of power or of the file, knows of no cleared slots. What was delivered ahead of a clock that
was set back, and has not caught up since, is then delivered again.)

Clock and disk are parameters, and nothing here waits: `flush` returns a job for a helper thread.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from store.io.disk import PAGE_SIZE, Disk
from store.timer.layout import (
    BLANK_SLOTS,
    HISTORY_AT,
    HISTORY_MAX,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NONE,
    SLOTS_TOTAL,
    UNIT,
    UNIT_SIZE,
    Checkpoint,
    Claim,
    Unit,
    decode_history,
    encode_history,
)
from store.timer.progress import Progress
from store.timer.timer_log import BlockPlace, TimerLog
from store.timer.wheel import TimerWheel

_WALK_UNITS = 1_000
"""Units of one step of a walk: some 5 ms."""
_DELAY_MAX_MS = 0x7FFFFFFF
_IDLE_MS = 60_000
"""An empty slot is passed without a flush for so long."""


@dataclass(frozen=True, slots=True)
class TimerRules:
    """The configuration of wheel and log."""

    precision_ms: int = 1000
    roll_window_slots: int = 172_800
    log_file_size: int = 104_857_600

    @property
    def roll_ms(self) -> int:
        """Return the delay from which on a timer is enqueued again half-way, ms."""
        slots = self.roll_window_slots
        if not 2 <= slots <= SLOTS_TOTAL - BLANK_SLOTS:
            slots = SLOTS_TOTAL - BLANK_SLOTS
        return slots * self.precision_ms


@dataclass(slots=True)
class Walk:
    """The units of a slot, as a walk along its chain collects them: by columns, the newest first."""

    slot_ms: int
    position: int
    """The next unit to look at, NONE behind the oldest."""
    stop: int
    """The newest unit that an earlier walk of this slot had; NONE for the first walk."""
    last: int
    """The newest unit of the slot when the walk began."""
    offsets: array[int]
    """Log offsets of the records."""
    sizes: array[int]
    magics: bytearray
    written: array[int]
    """Write times, ms."""
    markers: list[int]
    """Rows of units that cancel others and are no messages, the newest first."""
    damage: str = ""
    """Why the chain ends before its oldest unit; empty if it does not."""
    sound_from: int = NONE
    """The oldest unit that was read; NONE for none."""

    @property
    def is_done(self) -> bool:
        """Tell whether every unit is collected."""
        return self.position == NONE


@dataclass(frozen=True, slots=True)
class Flushed:
    """The outcome of a flush."""

    checkpoint: Checkpoint
    paths: list[Path]
    runs: list[tuple[int, bytes]]
    cleared_ms: int
    """Slots before this time were cleared when it began."""
    failure: str = ""


def is_delete(magic: int) -> bool:
    """Tell whether a unit cancels a message of its slot; one that is rolled travels on as a message first."""
    return magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE


def is_rolled(magic: int) -> bool:
    """Tell whether a unit's message is enqueued again when its slot is due."""
    return bool(magic & MAGIC_ROLL)


class TimerStore:
    """Wheel, log and checkpoint of one store directory. The loop owns it."""

    def __init__(self, root: Path, rules: TimerRules, disk: Disk) -> None:
        self.rules = rules
        self.log = TimerLog(root / "timerlog", rules.log_file_size, disk)
        self.wheel = TimerWheel(root / "timerwheel", disk)
        self.checkpoint = Checkpoint()
        """As the file has it."""
        self.claimed_ms = 0
        """The latest read time that the file may have: a flush that failed, or is under way, has perhaps written it."""
        self.read_ms = 0
        self.queue_offset = 0
        self.redo_to = 0
        """Messages before this queue offset were enqueued once: those with a slot before `read_ms` are delivered."""
        self.findings: list[str] = []
        self._disk = disk
        self._cleared_ms = 0
        """Slots before this time are cleared; those from it to `read_ms` wait for their copies to be on the disk."""
        self._file_cleared_ms = 0
        """Slots before this time are cleared in the wheel's file too, and their units are before the checkpoint's end.
        0 while a flush is under way."""
        self._failure = ""
        """Why the last flush failed; empty if it did not."""
        self._wants_back = False
        """Whether `read_ms` cannot go back for want of a flush."""
        self._done_to = NONE
        """The newest unit of the slot at `read_ms` that is delivered."""
        self._path = root / "config" / "timercheck"
        self._history: deque[Claim] = deque(maxlen=HISTORY_MAX)
        """The checkpoint's last claims, the oldest first."""
        self._names: set[Path] = set()
        """Files whose names are known to be on the disk."""

    # -- open ----------------------------------------------------------------------------------------

    def open(
        self,
        now_ms: int,
        log_end: int,
        queue_offset_of: Callable[[Unit], int],
        progress: Progress | None = None,
    ) -> None:
        """Read wheel, log and checkpoint, and bring them together. Blocks. Raises `StoreDamaged`.

        `log_end` is the end of the commit log; `queue_offset_of` returns the place in the timer topic of the message
        of a unit, or -1. `progress` counts where it is newer than the checkpoint: an older one is from before another
        broker had the directory.
        """
        precision = self.rules.precision_ms
        page = self._disk.read_file(self._path)
        try:
            known = Checkpoint.decode(page)
        except ValueError as exc:
            self.findings.append(f"{self._path}: {exc}; timers are enqueued again from the commit log")
            known = Checkpoint()
        self.checkpoint, self.claimed_ms = known, known.read_ms
        self._history.extend(decode_history(page))
        if not self._history:  # nothing is delivered so far, or by another broker, whose copies the log has
            self._history.append(Claim(known.read_ms, known.queue_offset, log_end if known.read_ms else 0))
        known, lowered = self._covered(known, log_end)
        claims = [(known.queue_offset, known.log_end)]
        if progress is not None and progress.read_ms >= known.read_ms:
            claims.append((progress.queue_offset, progress.units_end))
            known = replace(known, read_ms=progress.read_ms)
        oldest = self._floor(now_ms) - (SLOTS_TOTAL - BLANK_SLOTS) * precision
        self.read_ms = self._cleared_ms = max(self._floor(known.read_ms), oldest)
        if 0 < known.read_ms < oldest:
            self.findings.append(
                "this store was closed for more than a week: timers that were due before are lost, as in RocketMQ"
            )
        self.log.load()
        has_wheel = self.wheel.load(self.read_ms // precision)
        last = self._find_end(known, log_end, trusted=has_wheel and not lowered)
        if not known.read_ms and last is None:
            self.read_ms = self._cleared_ms = self._floor(now_ms)
        found = 0 if last is None else queue_offset_of(last) + 1
        self.queue_offset = max([found, *(offset for offset, end in claims if end <= self.log.end)])
        self.redo_to = max(offset for offset, _end in claims)

    def _covered(self, known: Checkpoint, log_end: int) -> tuple[Checkpoint, bool]:
        """Return the newest progress whose copies the commit log has, and whether that is an earlier one.

        A log that was cut, because its end was no part of its master's, has lost copies that the checkpoint counts.
        """
        history = self._history
        if not history or history[-1].log_end <= log_end:
            return known, False
        read_ms = known.read_ms
        while len(history) > 1 and history[-1].log_end > log_end:
            read_ms = min(history.pop().read_ms, read_ms)  # lower than before where the clock was set back
        claim = history[-1]
        read_ms = min(claim.read_ms, read_ms)
        self.findings.append(
            f"the commit log ends before copies of timers that were delivered: those due from {read_ms} on are "
            "delivered again"
        )
        return (
            replace(
                known,
                read_ms=read_ms,
                queue_offset=min(claim.queue_offset, known.queue_offset),
                master_queue_offset=min(claim.queue_offset, known.master_queue_offset),
            ),
            True,
        )

    def _find_end(self, known: Checkpoint, log_end: int, *, trusted: bool) -> Unit | None:
        """Find where the log ends, cut what nothing can be read of, and set the wheel right; the last unit."""
        log, wheel = self.log, self.wheel
        if not log.bases:
            wheel.clear_all()
            return None
        start = known.log_end if log.bases[0] <= known.log_end <= log.end and trusted else log.bases[0]
        end, last, lost = start, None, False
        for position, unit in log.units(start):
            if unit.offset + unit.record_size > log_end:
                lost = True
                break
            self._raise(position, unit)
            end, last = position + UNIT_SIZE, unit
        if last is None or lost:
            end, last, earlier = self._last_before(end, log_end)
            lost = lost or earlier
        log.cut(end)
        if lost or self._contradicts(end):
            self.findings.append("the timer wheel is built again from the timer log")
            last = self._rebuild()
        return last

    def _rebuild(self) -> Unit | None:
        """Build the wheel from all units, and cut the log behind the last that can be read; return it. Blocks."""
        self.wheel.clear_all()
        end, last = self.log.bases[0] if self.log.bases else 0, None
        for position, unit in self.log.units(end):
            self._raise(position, unit)
            end, last = position + UNIT_SIZE, unit
        if end < self.log.end:
            self.log.cut(end)
        return last

    def _last_before(self, end: int, log_end: int) -> tuple[int, Unit | None, bool]:
        """Go back to the last unit with a record in the commit log: where the log then ends, and whether that cuts.

        The end is right behind that unit, also where a checkpoint claims more: a reader stops at the first bytes that
        are no unit, and would never see those behind a gap.
        """
        cut = False
        for base in reversed(self.log.bases):
            if base >= end:
                continue
            units = [
                (at, unit)
                for at, unit in self.log.units(base)
                if base <= at < min(end, base + self.log.file_size)
            ]
            while units:
                at, unit = units.pop()
                if unit.offset + unit.record_size <= log_end:
                    return at + UNIT_SIZE, unit, cut
                cut = True
        return self.log.bases[0], None, cut

    def _raise(self, position: int, unit: Unit) -> None:
        """Make a unit the newest of its slot, unless the slot is delivered or has a newer one."""
        time = unit.slot_ms // self.rules.precision_ms
        if unit.slot_ms < self._cleared_ms:
            return
        slot = self.wheel.get(time)
        if slot.last < position:
            self.wheel.add(time, position, weight=-1 if is_delete(unit.magic) else 1)

    def _contradicts(self, end: int) -> bool:
        """Tell whether a slot points behind the end of the log: pages reached the disk out of order."""
        time = self.read_ms // self.rules.precision_ms
        until = time + 2 * SLOTS_TOTAL
        while (time := self.wheel.next_used(time, until)) < until:
            if self.wheel.get(time).last >= end:
                return True
            time += 1
        return False

    # -- enqueue -------------------------------------------------------------------------------------

    def enqueue(
        self,
        due_ms: int,
        write_ms: int,
        offset: int,
        size: int,
        topic_hash: int,
        *,
        delete: bool,
        follows: bool = False,
    ) -> bool:
        """Append the unit of a timer message, and note it in its slot; whether there is one. HOT. Raises OSError.

        `write_ms` is when the message was stored: two stores with the same commit log make the same units. A slot that
        is delivered already takes no more: such a timer stands in the next one. A store that `follows` a master, which
        has delivered it, has its unit as long as the copy is not on the own disk, and none then.
        """
        precision, window = self.rules.precision_ms, self.rules.roll_ms
        write_ms -= write_ms % precision
        slot_ms = due_ms
        base = max(write_ms, self.read_ms) if due_ms - self.read_ms >= SLOTS_TOTAL * precision else write_ms
        rolled = due_ms - base >= window
        if rolled:
            over = due_ms - base - window
            whole = window // precision
            slot_ms = base + (whole // 2 * precision if over < whole // 3 * precision else window)
        slot_ms -= slot_ms % precision
        if slot_ms < self.read_ms and not follows:
            slot_ms = self.read_ms
        if slot_ms < self._cleared_ms:
            return False
        if not -_DELAY_MAX_MS <= slot_ms - write_ms <= _DELAY_MAX_MS:
            write_ms = slot_ms
        magic = MAGIC_DEFAULT | (MAGIC_ROLL if rolled else 0) | (MAGIC_DELETE if delete else 0)
        time = slot_ms // precision
        position = self.log.reserve()
        prev = self.wheel.add(time, position, weight=-1 if delete else 1)
        self.log.append(
            UNIT.pack(UNIT_SIZE, prev, magic, write_ms, slot_ms - write_ms, offset, size, topic_hash, 0)
        )
        return True

    # -- deliver -------------------------------------------------------------------------------------

    def next_due(self, until_ms: int) -> Walk | None:
        """Begin the walk of the oldest slot before a time; move `read_ms` past slots without units. HOT."""
        precision = self.rules.precision_ms
        until, time = until_ms // precision, self.read_ms // precision
        while time < until:
            time = self.wheel.next_used(time, until)
            if time * precision != self.read_ms:
                self.read_ms, self._done_to = time * precision, NONE
            if time >= until:
                break
            slot = self.wheel.get(time)
            if slot.last != NONE:
                stop, last = self._done_to, slot.last
                return Walk(
                    self.read_ms, last, stop, last, array("q"), array("i"), bytearray(), array("q"), []
                )
            time += 1
        return None

    def step(self, walk: Walk) -> BlockPlace | None:
        """Collect units of a slot, a bounded number; the block that has to come from the disk before the next step."""
        unit_nowait = self.log.unit_nowait
        for _ in range(_WALK_UNITS):
            position = walk.position
            if position == NONE:
                return None
            try:
                unit = unit_nowait(position)
                if unit is None:
                    return self.log.block_of(position)
            except ValueError as exc:
                walk.damage, walk.position = str(exc), NONE
                return None
            _size, prev, magic, write_ms, _delay, offset, size, _hash, _reserved = unit
            if not unit.is_sound or prev >= position:
                walk.damage = f"the unit at position {position} of the timer log is damaged"
                walk.position = NONE
                return None
            if magic != MAGIC_DEFAULT and is_delete(magic):
                walk.markers.append(len(walk.magics))
            walk.sound_from = position
            walk.offsets.append(offset)
            walk.sizes.append(size)
            walk.magics.append(magic)
            walk.written.append(write_ms)
            walk.position = prev if prev > walk.stop else NONE
        return None

    def cut_damage(self, walk: Walk, queue_offset_of: Callable[[Unit], int]) -> None:
        """Cut the log before the unit at which a chain broke, and have messages enqueued again from there. Blocks.

        Raises OSError. The wheel is built again; slots that are delivered and not cleared get their units too.
        """
        # The unit that names its predecessor may be the damaged one, where that cannot be read: both go.
        end = self.log.end if walk.sound_from == NONE else walk.sound_from
        self.log.write()
        self.log.cut(end)
        last = self._rebuild()
        self.redo_to = max(self.redo_to, self.queue_offset)
        self.queue_offset = min(self.queue_offset, 0 if last is None else queue_offset_of(last) + 1)
        self._done_to = NONE

    def finish(self, walk: Walk) -> None:
        """Count a slot as delivered, but for units that came while it was walked: the next walk has those alone."""
        assert self.read_ms == walk.slot_ms, (self.read_ms, walk.slot_ms)
        if self.wheel.get(walk.slot_ms // self.rules.precision_ms).last == walk.last:
            self.read_ms, self._done_to = self.read_ms + self.rules.precision_ms, NONE
        else:
            self._done_to = walk.last

    def forget(self, through_ms: int) -> None:
        """Clear the slots before a time, whose copies are on the disk. HOT."""
        precision = self.rules.precision_ms
        through = min(through_ms, self.read_ms) // precision
        time = self._cleared_ms // precision
        if time >= through:
            return
        while (time := self.wheel.next_used(time, through)) < through:
            self.wheel.clear(time)
            time += 1
        self._cleared_ms = through * precision

    def is_ahead_of(self, now_ms: int) -> bool:
        """Tell whether slots are delivered that are not due by the clock: it was set back."""
        return self.read_ms > self._floor(now_ms)

    def set_back(self, now_ms: int) -> bool:
        """Move `read_ms` back to a clock that was set back, as soon as all delivered slots are cleared; whether so.

        A slot that is delivered in part begins anew: the owner knows how many of its messages are to be left out.
        """
        if not self.is_ahead_of(now_ms) or self._cleared_ms < self.read_ms:
            return False
        return self._go_back(self._floor(now_ms))

    def follow(self, read_ms: int) -> bool:
        """Take over a master's read time: slots before it are delivered. Whether so: not yet where it went back."""
        read_ms = self._floor(read_ms)
        if read_ms < self._cleared_ms:
            return self._go_back(read_ms)
        self.read_ms, self._done_to = read_ms, NONE
        return True

    def _go_back(self, read_ms: int) -> bool:
        """Move `read_ms` below cleared slots, if a flush has cleared them in the file; whether so."""
        self._wants_back = self._file_cleared_ms < self._cleared_ms and not self.is_unused
        if self._wants_back:
            return False
        self.read_ms = self._cleared_ms = self._file_cleared_ms = read_ms
        self._done_to = NONE
        return True

    @property
    def is_unused(self) -> bool:
        """Tell whether there never was a timer: then there is no file either."""
        return not self.log.bases and not self.queue_offset

    def waiting_at(self, due_ms: int) -> int:
        """Count the timers of a slot."""
        return self.wheel.get(due_ms // self.rules.precision_ms).num

    def count_within(self, now_ms: int, bounds_s: Sequence[int]) -> list[int]:
        """Count the timers that are due within each bound from now on, and not within the one before.

        Takes up to a fifth of a second for a day whose every second has timers; for any thread.
        """
        precision = self.rules.precision_ms
        time = now_ms // precision
        stops = [time + bound * 1000 // precision for bound in bounds_s]
        return [self.wheel.count(start, stop) for start, stop in pairwise([time, *stops])]

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self.rules.precision_ms

    # -- write back ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Put the units of this turn into their file. Raises OSError."""
        self.log.write()

    def needs_flush(self, wanted: Checkpoint) -> bool:
        """Tell whether a flush would make anything durable that matters: the mere time does so once in a minute."""
        known = self.checkpoint
        if self.log.is_unsynced or self.wheel.is_dirty or wanted.queue_offset != known.queue_offset:
            return True
        if self._wants_back or wanted.read_ms < self.claimed_ms:
            return True
        return not self.is_unused and wanted.read_ms >= known.read_ms + _IDLE_MS

    def flush(self, wanted: Checkpoint, commit_end: int = 0) -> Callable[[], Flushed]:
        """Return the job that makes everything so far durable, in the order log, wheel, checkpoint; for one thread.

        Its result goes to `flushed`. `wanted` claims no more than what is durable elsewhere: in the commit log up to
        `commit_end`.
        """
        self.log.write()
        cleared_ms, self._file_cleared_ms = self._cleared_ms, 0
        paths, runs = self.log.take_unsynced(), self.wheel.take_dirty()
        checkpoint = replace(wanted, log_end=self.log.end)
        self.claimed_ms = max(self.claimed_ms, checkpoint.read_ms)
        self._history.append(Claim(checkpoint.read_ms, checkpoint.queue_offset, commit_end))
        page = checkpoint.encode().ljust(HISTORY_AT, b"\0") + encode_history([*self._history])
        page = page.ljust(PAGE_SIZE, b"\0")

        def job() -> Flushed:
            try:
                for path in paths:
                    self._disk.open_paged(path).sync()
                    self._sync_name(path)
                self.wheel.write(runs)
                if runs:
                    self._sync_name(self.wheel.path)
                file = self._disk.create_paged(self._path, PAGE_SIZE)
                file.write_at(0, page)
                file.sync()
                self._sync_name(self._path)
            except OSError as exc:
                return Flushed(checkpoint, paths, runs, cleared_ms, str(exc))
            return Flushed(checkpoint, paths, runs, cleared_ms)

        return job

    def _sync_name(self, path: Path) -> None:
        """Make the name of a file durable, and that of its folder. Once for each; in the job's thread."""
        if path not in self._names:
            self._disk.sync_directory(path.parent)
            self._disk.sync_directory(path.parent.parent)
            self._names.add(path)

    def flushed(self, result: Flushed) -> None:
        """Record the outcome of a job of `flush`; the next one repeats a write that failed."""
        if not result.failure:
            self.checkpoint, self.claimed_ms = result.checkpoint, result.checkpoint.read_ms
            self._file_cleared_ms, self._wants_back = result.cleared_ms, False
        else:
            self.wheel.restore_dirty(result.runs)
            self.log.restore_unsynced(result.paths)
            if result.failure != self._failure:
                self.findings.append(
                    f"pending timers cannot be written, and are kept in memory: {result.failure}"
                )
        self._failure = result.failure
