"""`EntryLog`: a log of entries and the ballot beside it, for a member of a DLedger group. One storage queue for all.

    save, cut      on the storage thread, in the order in which they were asked for
    place          written at once where nothing waits; behind a cut, or while there is no segment for it, it waits
    flush          by the store's flusher, which joins those that come while it is at work

What waits stands in `_orders`, in its order, and is looked at whenever something got done, and with each tick: so a
cut that a reader's hold delays, or a disk that was full, holds nothing up for ever. Every `done` is called on the loop,
and never inside the call that it answers.

A full disk ends nobody: ballots and cuts wait for room, the note of the commit point says less than it might.

The end of the log is behind its last *entry*. A filler may stand there: of a segment that this member sealed, and in
whose place a leader may have put another entry. Then the filler is cut like entries are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head
from store.entries.arrived import ArrivedBytes
from store.entries.cut import remove_behind
from store.entries.damage import find_damaged_entry
from store.entries.files import NOTHING, CommitNote, ConfigurationRow, LedgerFiles, LogPoint, LogRun, TermRow
from store.entries.install import INCOMING, INSTALL, Installation, begin_note
from store.entries.ordered_writes import OrderedWrites
from store.entries.reads import FoundRun, Marks, Place, first_index, read_run
from store.entries.recovery import FoundEntries, recover
from store.integrity.checksums import Checksums
from store.io.disk import Disk
from store.io.workers import Completions, Worker
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.entry_writer import EntryWriter, WrittenRun
from store.log.remedy import MEND
from store.log.segment import Segment
from store.write_back import unless_full

_NOTE_INTERVAL_MS: Final = 100

ReadDone = Callable[[LogPoint, LogRun | None, bytes | memoryview], None]


class LogHost(Protocol):
    """The store around the log, which owns its flusher and the helper ahead of its writer."""

    @property
    def flushed_offset(self) -> int:
        """Return the log offset through which the log is on disk."""

    @property
    def is_flushing(self) -> bool:
        """Tell whether a flush was asked for that is not reported yet."""

    @property
    def spare_wanted(self) -> bool:
        """Tell whether a segment is being made at this moment."""

    @property
    def is_full(self) -> bool:
        """Tell whether the disk had no room for the next segment when it was asked last."""

    def next_segment(self, base_offset: int) -> Segment | None:
        """Begin the segment at this offset; None while there is none ready. Never waits."""

    def request_flush(self) -> None:
        """Have the log put on disk through its end; `EntryLog.flushed` hears of it."""

    def lower_flushed(self, offset: int) -> None:
        """Count the log as flushed no further than `offset`. Nothing is being flushed."""

    def hold_preallocation(self, held: bool) -> None:
        """Have the helper ahead of the writer begin nothing, or go on."""


class _Place(NamedTuple):
    first: int
    entries: int
    term: int
    pos: int
    data: bytes | memoryview
    skip: int


class _Flush(NamedTuple):
    done: Callable[[LogPoint, int], None]


class _Cut(NamedTuple):
    point: LogPoint
    done: Callable[[], None] | None
    """None of a filler that stands in the way, of which nobody asked for a cut."""


class EntryLog:
    """A log of entries and its ballot. Open it with `recover`, then `begin`."""

    def __init__(
        self,
        directory: Path,
        notes: Path,
        tails: Path,
        log: CommitLog,
        disk: Disk,
        status: str = "ropewalk admin dledger status",
    ) -> None:
        """`directory` has DLedger's files beside the log's, `notes` our own; `tails` gets what recovery cuts.

        `status` is the command that shows the terms of this log's group.
        """
        self.on_stuck: Callable[[bool], None] = lambda stuck: None
        """Called when a run has to wait or the disk has no room, and when neither is so any more."""
        self.look_for_damage: Callable[[Callable[[bool], None]], None] = lambda done: done(False)
        """Look for damaged places of the log, and tell whether there are any that may be mended."""
        self.writer = EntryWriter(self._written)
        """The writer of this member's own entries, while it leads."""
        self.arrived = ArrivedBytes()
        """Received entries that nobody has looked at yet."""
        self.found: FoundEntries
        self.ballot = (0, "")
        self.commit = NOTHING
        self.doubt: LogPoint | None = None
        self.incarnation = b""
        self.cuts = 0
        """How many cuts that a core asked for are done."""
        self._files = LedgerFiles(directory, notes, disk, status)
        self._diverged = tails.parent / "diverged"
        self._tails = tails
        self._log = log
        self._disk = disk
        self._end = NOTHING
        self._rows: list[TermRow] = []
        self._configurations: list[ConfigurationRow] = []
        self._marks = Marks()
        self._orders: deque[_Place | _Flush | _Cut] = deque()
        self._held: list[tuple[int, int, ReadDone]] = []
        """Reads that wait until the damage that they met is mended."""
        self._is_stuck = False
        self._is_cutting = False
        self._flushes: deque[tuple[int, LogPoint, int, Callable[[LogPoint, int], None]]] = deque()
        self._noted = NOTHING
        self._is_noting = self._lacks_room_for_note = False
        self._next_note_ms = 0
        self._host: LogHost
        self._completions: Completions
        self._storage: Worker
        self._writes: OrderedWrites
        self._reader: Worker

    # -- open and close ----------------------------------------------------------------------------------

    def refuse_without_ballot(self) -> StoreDamaged:
        """Return the error of a log that is here, and whose ballot is not."""
        return self._files.refuse_without_ballot()

    @property
    def has_ballot(self) -> bool:
        """Tell whether there is a ballot that can be read. Blocks."""
        try:
            return self._files.load_ballot() is not None
        except StoreDamaged:
            return False

    def recover(self, snapshot: LogPoint = NOTHING) -> FoundEntries:
        """Find the end of the loaded log, and cut dead bytes behind it. Blocks. Raises `StoreDamaged`.

        `snapshot` is the point of a state that is kept beside the log.
        """
        self.found = found = recover(self._log, self._files, self._tails, self._disk, snapshot)
        self.ballot, self._end, self.doubt = found.ballot, found.end, found.doubt
        self.commit = self._noted = found.commit
        self._rows = list(found.rows)
        self._configurations = list(found.configurations)
        self.incarnation = self._files.load_incarnation()
        return found

    def find_damage(self, checksums: Checksums) -> int | None:
        """Return the log offset of a committed entry that is not whole, where no checksum tells. Blocks."""
        return find_damaged_entry(self._log, checksums.get, self.found.commit, self.found.rows)

    def begin(self, host: LogHost, completions: Completions, storage: Worker, reader: Worker) -> None:
        """Go to work, once all that was found is on disk."""
        self._host = host
        self._completions = completions
        self._storage = storage
        self._writes = OrderedWrites(storage)
        self._reader = reader

    def close(self) -> None:
        """Finish all orders, and write the commit point down. Blocks."""
        self._reader.stop()
        self._storage.stop()
        self._completions.run()
        if self.commit != self._noted:
            unless_full(partial(self._files.save_commit, self._note(), self._end[0]))

    @property
    def rows(self) -> tuple[TermRow, ...]:
        """Return the term rows of the log."""
        return tuple(self._rows)

    @property
    def configurations(self) -> tuple[ConfigurationRow, ...]:
        """Return the configurations that entries of the log carry, from the one in force at its start."""
        return tuple(self._configurations)

    def configured(self, rows: Sequence[ConfigurationRow]) -> None:
        """Note which configurations the log carries now, to be written down with the commit point."""
        self._configurations = list(rows)

    @property
    def end(self) -> LogPoint:
        """Return the log through its last entry."""
        return self._end

    @property
    def noted(self) -> LogPoint:
        """Return the commit point that is written down: a start reads the log from there on."""
        return self._noted

    @property
    def is_waiting(self) -> bool:
        """Tell whether orders wait for room, for a cut or for the disk."""
        return bool(self._orders or self._flushes)

    def term_at(self, index: int) -> int:
        """Return the term of an entry; -1 in front of the log."""
        return next((term for term, first, _start in reversed(self._rows) if first <= index), -1)

    @property
    def segment_size(self) -> int:
        """Return the size of a file of the log."""
        return self._log.segment_size

    # -- orders ------------------------------------------------------------------------------------------

    def save(self, term: int, vote: str, done: Callable[[], None]) -> None:
        """Put the ballot on disk, its file's name included."""
        self.ballot = term, vote
        self._writes.submit(partial(self._files.save_ballot, term, vote), done)

    def place(self, first: int, count: int, term: int, pos: int, data: bytes | memoryview, skip: int) -> None:
        """Write a run but for its first `skip` bytes, which are here already. HOT.

        Raises `CorruptRecord` before anything is changed if its first entry is another one.
        """
        head = decode_head(data, skip)
        if head.pos != pos + skip or head.term != term or not first <= head.index < first + count:
            raise CorruptRecord(f"entry {head.index} of term {head.term} for {head.pos} is not of this run")
        order = _Place(first, count, term, pos, data, skip)
        if self._orders or not self._try_place(order):
            self._orders.append(order)
            self._work()

    def flush(self, done: Callable[[LogPoint, int], None]) -> None:
        """Put on disk all that was placed and appended; `done` gets the point, and how many cuts came before. HOT."""
        if self._orders:
            self._orders.append(_Flush(done))
        else:
            self._begin_flush(done)

    def cut(self, index: int, term: int, pos: int, done: Callable[[], None]) -> None:
        """End the log at this point; `done` when no start will find an entry behind it."""
        self._orders.append(_Cut((index, term, pos), done))
        self._work()

    def read(self, index: int, bytes_max: int, done: ReadDone) -> None:
        """Read whole entries of one term and one segment from `index` on; `done` gets no run if they are removed."""
        segments = list(self._log.segments)
        for segment in segments:
            segment.pins += 1
        mark = self._marks.before(max(index - 1, 0))
        job = partial(read_run, segments, self._end[2], mark, index, bytes_max)
        self._reader.submit(job, partial(self._have_read, segments, index, bytes_max, self.cuts, done))

    def _have_read(
        self,
        segments: list[Segment],
        index: int,
        bytes_max: int,
        cuts: int,
        done: ReadDone,
        result: tuple[FoundRun, Place | None],
    ) -> None:
        for segment in segments:
            segment.pins -= 1
        found, last = result
        # During a cut, or behind one, it may be what stood there before.
        if cuts == self.cuts and not self._is_cutting and self._is_damaged(index, found):
            self.look_for_damage(partial(self._have_looked, index, bytes_max, done))
            return
        if last is not None and last[0] <= self._end[0]:
            self._marks.read_through(*last)
        done(*found)

    def committed(self, index: int, term: int, pos: int) -> None:
        """Note the commit point, to be written down soon."""
        assert index <= self._end[0], (index, self._end)
        self.commit = index, term, pos

    def end_doubt(self) -> None:
        """Remove the note of a doubtful recovery."""
        self.doubt = None
        self._writes.submit(partial(self._files.remove, "doubt"), lambda: None)

    # -- snapshots ---------------------------------------------------------------------------------------

    def installation(self, root: Path, queue_file_size: int) -> Installation:
        """Return the installation of a snapshot in this closed store, which does nothing if none was begun."""
        log = self._log
        return Installation(root, log.directory, log.segment_size, queue_file_size, self._files, self._disk)

    def first_entry(self) -> tuple[LogPoint, bytes, bytes] | None:
        """Return the log through its first entry, that entry and a note of it; None if none is committed."""
        segment = self._log.segments[0] if self._log.segments else None
        if segment is None:
            return None
        head = decode_head(segment.map[:HEAD_SIZE])
        point = head.index, head.term, segment.base_offset + head.size
        if head.index > self.commit[0]:
            return None
        return point, bytes(segment.map[: head.size]), msgspec.json.encode(self._note_of(point))

    def stage_snapshot(self, data: bytes, done: Callable[[], None]) -> None:
        """Put a snapshot on disk, beside the log."""
        self._writes.submit(partial(self._disk.replace_file, self._files.notes / INCOMING, data), done)

    def install_staged(self, done: Callable[[], None]) -> None:
        """Have the next start begin with the snapshot that was staged last, in place of this log."""
        self._writes.submit(partial(self._disk.replace_file, self._files.notes / INSTALL, begin_note()), done)

    def _is_damaged(self, index: int, found: FoundRun) -> bool:
        """Tell whether one of these entries, or a head on the way to them, is not what was written."""
        prev, run, _data = found
        if run is None:
            first = self._log.segments[0] if self._log.segments else None
            is_whole = first is None or first_index(first) >= index or index > self._end[0]
        else:
            is_cut = run[0] + run[1] - 1 > self._end[0]
            is_whole = is_cut or (prev[1], run[2]) == (self.term_at(prev[0]), self.term_at(run[0]))
        return not is_whole

    def _have_looked(self, index: int, bytes_max: int, done: ReadDone, is_known: bool) -> None:
        """Read again once the damage is mended. Raises `StoreDamaged` where no checksum tells the place."""
        if not is_known:
            raise StoreDamaged(
                f"entry {index} of the log in {self._log.directory}, or one just before it, is not what was written: "
                f"{MEND}"
            )
        self._held.append((index, bytes_max, done))

    # -- what is done ------------------------------------------------------------------------------------

    def _written(self, run: WrittenRun) -> None:
        """Hear of a run that this member appended itself. HOT."""
        first, count, term, pos, size, _data = run
        self._grew(first, count, term, pos, pos + size)

    def _grew(self, first: int, count: int, term: int, pos: int, end: int) -> None:
        if not self._rows or self._rows[-1][0] != term:
            self._rows.append((term, first, self._end[2]))
        self._marks.add(first, pos)
        self._end = first + count - 1, term, end

    def _try_place(self, order: _Place) -> bool:
        """Write a run if there is room for it now. HOT."""
        log, target = self._log, order.pos + order.skip
        segment = log.segments[-1] if log.segments else None
        if segment is None or segment.end_offset == target:
            segment = self._begin_segment(target, segment)
            if segment is None:
                return False
        elif target != log.end_offset:
            assert target == self._end[2] < log.end_offset, (order[:4], order.skip, self._end, log.end_offset)
            self._orders.appendleft(_Cut(self._end, None))
            return False
        data = memoryview(order.data)[order.skip :] if order.skip else order.data
        assert segment.write_position + len(data) <= segment.room, (order[:4], segment.base_offset)
        segment.append(data)
        self.arrived.add(target, data)
        index = decode_head(data).index
        self._grew(index, order.first + order.entries - index, order.term, target, target + len(data))
        return True

    def _begin_segment(self, base: int, last: Segment | None) -> Segment | None:
        """Seal the last segment and begin the next, once that is ready: neither is done without the other."""
        host, spare = self._host, self._log.spare
        if last is not None and last.write_position < last.size:
            if spare is None or spare.base_offset != base or host.flushed_offset < last.base_offset:
                found = host.next_segment(base)  # begins none, and has it made, or the log flushed
                assert found is None, (base, last.base_offset)
                return None
            last.seal()
        return host.next_segment(base)

    def _begin_flush(self, done: Callable[[LogPoint, int], None]) -> None:
        end = self._log.end_offset
        self._flushes.append((end, self._end, self.cuts, done))
        if end > self._host.flushed_offset:
            self._host.request_flush()
        else:
            self._completions.post(partial(self.flushed, self._host.flushed_offset))

    def flushed(self, offset: int) -> None:
        """Hear that the log is on disk through an offset. HOT."""
        flushes = self._flushes
        while flushes and flushes[0][0] <= offset:
            _end, point, cuts, done = flushes.popleft()
            done(point, cuts)
        if self._orders:
            self._work()

    def _work(self) -> None:
        """Go on with what waits, as far as that is possible now."""
        orders = self._orders
        while orders and not self._is_cutting:
            order = orders[0]
            if isinstance(order, _Flush):
                orders.popleft()
                self._begin_flush(order.done)
            elif isinstance(order, _Cut):
                if not self._begin_cut(order):
                    break
            elif self._try_place(order):
                orders.popleft()
            elif orders[0] is order:
                break
        self._tell_stuck()

    def _tell_stuck(self) -> None:
        is_waiting = any(isinstance(order, _Place) for order in self._orders)
        is_full = self._writes.lack_room or self._lacks_room_for_note or self._host.is_full
        stuck = is_waiting or is_full
        if stuck is not self._is_stuck:
            self._is_stuck = stuck
            self.on_stuck(stuck)

    # -- the cut -----------------------------------------------------------------------------------------

    def _begin_cut(self, order: _Cut) -> bool:
        """Name the cut on disk, once nothing else is at work behind it; False: later."""
        host, segments = self._host, self._log.segments
        host.hold_preallocation(True)
        if host.is_flushing or host.spare_wanted:
            return False
        if any(segment.pins for segment in segments if segment.base_offset >= order.point[2]):
            return False  # their files go; in the one that stays nobody reads behind what is committed
        self._is_cutting = True
        job = partial(self._files.save_point, "cut", order.point)
        self._writes.submit(job, partial(self._cut_now, order))
        return True

    def _cut_now(self, order: _Cut) -> None:
        index, _term, pos = order.point
        log = self._log
        self.arrived.clear()
        removed = log.cut(pos)
        kept = log.segments[-1] if log.segments else None
        old_end = kept.write_position if kept is not None else 0
        if kept is not None:
            kept.write_position = pos - kept.base_offset
        if removed and log.spare is not None:
            removed.append(log.spare)
            log.spare = None
        self._host.lower_flushed(pos)
        self._end = order.point
        self._rows = [row for row in self._rows if row[1] <= index]
        self._marks.cut(index)
        job = partial(
            remove_behind, order.point, kept, old_end, removed, self._diverged, self._files, self._disk
        )
        self._writes.submit(job, partial(self._cut_done, order))

    def _cut_done(self, order: _Cut) -> None:
        self._orders.popleft()
        self._is_cutting = False
        self._host.hold_preallocation(False)
        if order.done is not None:
            self.cuts += 1
            order.done()
        self._work()

    # -- time --------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Try waiting orders and reads again, and write the commit point down when it is due."""
        self._writes.retry()
        held, self._held = self._held, []
        for index, bytes_max, done in held:
            self.read(index, bytes_max, done)
        self._work()
        if (
            self.commit != self._noted
            and not self._is_noting
            and not 0 < self._next_note_ms - now_ms <= _NOTE_INTERVAL_MS
        ):
            self._next_note_ms = now_ms + _NOTE_INTERVAL_MS
            self._write_note()

    def note_now(self) -> None:
        """Write the commit point down before it is due, unless that is under way or has found no room."""
        if not self._is_noting and not self._lacks_room_for_note:
            self._write_note()

    def _write_note(self) -> None:
        self._is_noting = True
        note = self._note()
        write = partial(self._files.save_commit, note, self._end[0])
        self._storage.submit(partial(unless_full, write), partial(self._have_noted, note))

    def _note(self) -> CommitNote:
        return self._note_of(self.commit)

    def _note_of(self, point: LogPoint) -> CommitNote:
        through = point[0]
        configurations: list[ConfigurationRow] = []
        for index, found in self._configurations:
            if index <= through and not (configurations and found.says_the_same(configurations[-1][1])):
                configurations.append((index, found))
        return CommitNote(point, [row for row in self._rows if row[1] <= through], configurations)

    def _have_noted(self, note: CommitNote, is_written: bool) -> None:
        self._is_noting = False
        self._lacks_room_for_note = not is_written  # nor would there be any for a ballot
        if is_written:
            self._noted = note.commit
