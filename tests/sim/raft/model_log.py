"""A member's log and ballot on a disk that forgets: the contract of dledger-plan 2.3, 3.4 and 3.5, as a model.

`MemberLog` is what the world needs of a log, so that the shipped one can stand in its place. `ModelLog` keeps entries
as tuples in two lists: `view` is what the process wrote, `platter` what is on disk. One storage thread takes orders
from a queue, in the order in which they came: save, cut, place, flush. Each takes its time; a crash may fall anywhere.

Power loss keeps of every entry that was not synced the new content, the old one, or a torn one. Recovery then takes
entries while they are whole, cuts at the first hole, and notes as *doubt* the furthest whole entry behind it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from ha.raft.quorum import ConfigHistory
from ha.raft.types import NOTHING, Ballot, Config, CutDone, Durable, Event, Point, Run, Saved

Entry = tuple[int, int, int, int, int]
"""(index, term, payload, pos, size)"""
SEGMENT = 4096


class Placing(NamedTuple):
    """An order to place what a message brought."""

    run: Run
    entries: list[Entry]
    skip: int

    @property
    def fresh(self) -> list[Entry]:
        """The entries that are not here already."""
        return [entry for entry in self.entries if entry[3] >= self.run.pos + self.skip]


class Flush(NamedTuple):
    """An order to put on disk all that was placed."""


Order = Ballot | Point | Placing | Flush
"""Of the storage thread: save, cut, place, flush."""


def end_of(entry: Entry) -> Point:
    """Return the log through this entry."""
    return Point(entry[0], entry[1], entry[3] + entry[4])


class Recovered:
    """What a start finds."""

    def __init__(self, log: ModelLog) -> None:
        self.ballot = log.ballot
        self.end = log.end
        self.commit = log.written
        self.doubt = log.doubt
        rows: list[tuple[int, int, int]] = []
        start = 0
        for index, term, _payload, pos, size in log.view:
            if not rows or rows[-1][0] != term:
                rows.append((term, index, start))
            start = pos + size
        self.rows = tuple(rows)


class MemberLog(Protocol):
    """The log of one member, through all of its lives."""

    full: bool
    flush_ms: float
    hiccups: bool

    @property
    def view(self) -> list[Entry]:
        """The entries that a reader of the process would see."""

    @property
    def ballot_on_disk(self) -> Ballot:
        """The ballot that outlives a loss of power."""

    @property
    def written(self) -> Point:
        """The commit point that was written down."""

    @property
    def accepts(self) -> bool:
        """Whether a leader may append now."""

    @property
    def has_lost_power(self) -> bool:
        """Whether the power went in the middle of a step."""

    def ordered(self) -> list[Entry]: ...
    def set_full(self, full: bool) -> None: ...
    def heal(self) -> None: ...
    def lose_power_soon(self) -> bool: ...
    def damage(self, index: int) -> None: ...
    def has_on_disk(self, entry: Entry) -> bool: ...
    def had_on_disk(self, entry: Entry) -> bool: ...
    def killed(self) -> None: ...
    def power_lost(self) -> None: ...


class ModelLog:
    """See the module docstring. `later` runs something after so many ms, unless the process is dead by then."""

    def __init__(
        self,
        chance: random.Random,
        post: Callable[[Event], None],
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._chance = chance
        self._post = post
        self._later = later
        self.view: list[Entry] = []
        self.platter: list[Entry | None] = []
        """As far as something was ever written there; None is an entry that is not whole."""
        self.ballot = Ballot(0)
        self.ballot_on_disk = Ballot(0)
        """`ballot` is what the name in the directory says; this, once the directory was synced."""
        self.written = NOTHING
        """The commit index that was written down, and the bound below which nothing was ever lost."""
        self.readmitted = False
        """Whether this log, begun after another one was lost, has caught up."""
        self.doubt: Point | None = None
        self.first = 0
        """The index of the first entry that retention has kept. Those before it stay in `view`, and nobody reads them:
        what a snapshot covers counts as had."""
        self.lost: set[Entry] = set()
        """Entries that were on disk until damage came before them. This member's doubt speaks for it."""
        self.full = False
        self.flush_ms = 2.0
        self.hiccups = False
        self._reset()

    def _reset(self) -> None:
        self._queue: deque[Order] = deque()
        self._running: Order | None = None
        self._cuts_done = 0
        self._journal: int | None = None
        self._waiting = 0
        """Cuts and placings in the queue: what is placed now has to wait behind them."""

    @property
    def end(self) -> Point:
        return end_of(self.view[-1]) if self.view else NOTHING

    @property
    def accepts(self) -> bool:
        """Whether a leader may append now."""
        return not self.full and not self._waiting

    def ordered(self) -> list[Entry]:
        """Return the log as it will be when all that was ordered is done."""
        log = self.view
        if not self._waiting:
            return log
        for order in ([self._running] if self._running is not None else []) + list(self._queue):
            if isinstance(order, Point):
                log = log[: order.index + 1]
            elif isinstance(order, Placing):
                log = log + order.fresh
        return log

    # -- orders ------------------------------------------------------------------------------------------

    def save(self, ballot: Ballot) -> None:
        self._order(ballot)

    def cut(self, point: Point) -> None:
        self._waiting += 1
        self._order(point)

    def place(self, run: Run, entries: list[Entry], skip: int) -> None:
        placing = Placing(run, entries, skip)
        if self.accepts:
            self._write(placing)
            self._flush()
        else:
            self._waiting += 1
            self._order(placing)

    def append(self, term: int, payloads: list[int], config: Config | None = None) -> Run:
        """Append what fits into one segment, and return the run; with a configuration, its one entry."""
        assert self.accepts
        end = self.end
        sizes = [60 + payload * 37 % 900 for payload in payloads]
        pos = end.pos
        if pos % SEGMENT + sizes[0] + 8 > SEGMENT or (pos and pos % SEGMENT == 0):
            pos = -(-pos // SEGMENT) * SEGMENT
        first = pos
        count = 0
        for payload, size in zip(payloads, sizes, strict=True):
            if pos - first // SEGMENT * SEGMENT + size + 8 > SEGMENT:
                break
            self.view.append((end.index + 1 + count, term, payload, pos, size))
            pos += size
            count += 1
        self._flush()
        return Run(end.index + 1, count, term, first, pos - first, config)

    def retire(self, index: int) -> None:
        """Have retention remove what stands before `index`, which is on disk and committed."""
        assert index <= self.written.index
        self.first = max(self.first, index)

    def install(self, entries: list[Entry]) -> None:
        """Begin with the last of these entries, all of which a snapshot covers."""
        assert entries[-1][0] > self.written.index
        self.view, self.platter = list(entries), list(entries)
        self.written = end_of(entries[-1])
        self.first = entries[-1][0]
        self._reset()

    def read(self, index: int, size: int, configs: ConfigHistory) -> tuple[Point, Run | None]:
        """Read a run from `index` on, as `Effects.fetch` asks; the entry of a configuration is a run of its own."""
        if self.first and index <= self.first:
            return Point(index - 1, -1, 0), None  # retention has removed it, or the one before it
        begin = self.view[index]
        stop, total = index, 0
        end = configs.end_of_run(index, len(self.view) - 1)
        while stop <= end:
            entry = self.view[stop]
            if entry[1] != begin[1] or entry[3] != begin[3] + total or (total and total + entry[4] > size):
                break
            if entry[3] // SEGMENT != begin[3] // SEGMENT:
                break
            total += entry[4]
            stop += 1
        prev = end_of(self.view[index - 1]) if index else NOTHING
        return prev, Run(index, stop - index, begin[1], begin[3], total, configs.carried_by(index))

    def _write(self, placing: Placing) -> None:
        end, fresh = self.end, placing.fresh
        assert fresh and fresh[0][0] == end.index + 1, f"{placing} does not stand behind {end}"
        rolled = -(-end.pos // SEGMENT) * SEGMENT
        assert fresh[0][3] in (end.pos, rolled), (
            f"{fresh[0]} is at no place where an entry can stand behind {end}"
        )
        self.view += fresh

    # -- the storage thread ------------------------------------------------------------------------------

    def _order(self, order: Order) -> None:
        self._queue.append(order)
        self._work()

    def _flush(self) -> None:
        if not self._queue or not isinstance(self._queue[-1], Flush):
            self._order(Flush())

    def _work(self) -> None:
        while self._queue and self._running is None:
            order = self._queue[0]
            if isinstance(order, Placing):
                if self.full:
                    return
                self._queue.popleft()
                self._waiting -= 1
                self._write(order)
                self._queue.append(Flush())
            else:
                self._running = self._queue.popleft()
                self._begin(order)

    def _begin(self, order: Ballot | Point | Flush) -> None:
        spent = self.flush_ms * self._chance.uniform(0.5, 1.5)
        match order:
            case Ballot():
                self._later(spent * 0.7, partial(self._renamed, order))
                self._later(spent, partial(self._saved, order))
            case Point():
                self._later(spent * 0.5, partial(self._journaled, order))
                self._later(spent, partial(self._was_cut, order))
            case Flush():
                if self.hiccups and self._chance.random() < 0.1:
                    spent += self._chance.uniform(20, 300)
                self._later(spent, partial(self._flushed, len(self.view), self._cuts_done))

    def set_full(self, full: bool) -> None:
        self.full = full
        self._work()

    def _done(self, event: Event) -> None:
        self._running = None
        self._post(event)
        self._work()

    def _renamed(self, ballot: Ballot) -> None:
        self.ballot = ballot

    def _saved(self, ballot: Ballot) -> None:
        self.ballot_on_disk = ballot
        self._done(Saved(ballot))

    def _journaled(self, point: Point) -> None:
        self._journal = point.index
        del self.view[point.index + 1 :]

    def _was_cut(self, point: Point) -> None:
        del self.platter[point.index + 1 :]
        self._journal = None
        self._cuts_done += 1
        self._waiting -= 1
        self._done(CutDone(point))

    def _flushed(self, size: int, cuts: int) -> None:
        self._sync(size)
        self._done(Durable(end_of(self.view[size - 1]) if size else NOTHING, cuts))

    def _sync(self, size: int) -> None:
        platter = self.platter
        at = min(size, len(platter))
        while at and platter[at - 1] is not self.view[at - 1]:
            at -= 1  # what stands in front of an entry that is synced is synced too
        platter[at:size] = self.view[at:size]

    def heal(self) -> None:
        """Let the disk be quick again."""
        self.flush_ms = 2.0
        self.hiccups = False

    # -- what survives -----------------------------------------------------------------------------------

    def had_on_disk(self, entry: Entry) -> bool:
        """Return whether an entry is on disk, or was until damage came."""
        return self.has_on_disk(entry) or entry in self.lost

    def has_on_disk(self, entry: Entry) -> bool:
        index = entry[0]
        return index < len(self.platter) and self.platter[index] == entry

    has_lost_power = False

    def lose_power_soon(self) -> bool:
        """Nothing lies between two steps here: the power goes at once."""
        return False

    def killed(self) -> None:
        """The process is gone; what it wrote is in the page cache."""
        if self._journal is not None:
            del self.platter[self._journal + 1 :]
        self._reset()

    def power_lost(self) -> None:
        """The machine is gone, and what was not synced is there or not."""
        chance = self._chance
        if self._journal is not None:
            del self.platter[self._journal + 1 :]
        if chance.random() < 0.5:
            self.ballot = self.ballot_on_disk
        kept: list[Entry | None] = []
        for index in range(max(len(self.view), len(self.platter))):
            old = self.platter[index] if index < len(self.platter) else None
            new = self.view[index] if index < len(self.view) else old
            if old is not new:
                fate = chance.random()
                kept.append(new if fate < 0.5 else None if fate < 0.65 else old)
            else:
                kept.append(old)
        self.platter = kept
        self.view = []
        for entry in kept:
            if entry is None or not self._follows(entry):
                break
            self.view.append(entry)
        self._reset()

    def _follows(self, entry: Entry) -> bool:
        end = self.end
        rolled = -(-end.pos // SEGMENT) * SEGMENT
        return entry[0] == end.index + 1 and entry[1] >= end.term and entry[3] in (end.pos, rolled)

    def damage(self, index: int) -> None:
        """Flip a bit of an entry of a member that is down."""
        self.platter[: len(self.view)] = self.view
        self.lost.update(self.view[index:])
        self.platter[index] = None
        del self.view[index:]

    def recover(self) -> Recovered:
        """Take what is whole, cut the rest, sync."""
        end = len(self.view)
        assert end > self.written.index, f"damage below the bound {self.written}: whole are {end} entries"
        behind = [entry for entry in self.platter[end:] if entry is not None]
        if behind:
            last = end_of(max(behind, key=lambda entry: (entry[1], entry[0])))
            if self.doubt is None or (last.term, last.index) > (self.doubt.term, self.doubt.index):
                self.doubt = last
        self.platter = list(self.view)
        self.ballot_on_disk = self.ballot
        return Recovered(self)
