"""Compare the copies of one piece of a log: where they are not equal and whole, and which side is right.

    side 0  r1 r2 r3 r4 | r5          r3 was damaged in the header, so two *regions* come out:
    side 1  r1 r2 ?? r4 | r5'         [r3]: side 0 WHOLE, side 1 JUNK      [r5]: both WHOLE, and different

Bytes that are equal on all sides are walked once, and nearly all of them are. A region is the extent of the records
in which copies differ, or in which one does not hold what it should by its own checksums. Who has the right bytes is
decided by the first of these that has something to say:

    the checksums kept beside sealed segments: bytes of one side or another that make a whole block match
    each record's own consistency: a side that has no whole record there is wrong if another has
    the majority, of three or more
    the queue's entry and the order of store times, where only a record's unprotected fields differ

`conclude` (in `audit_findings`) makes findings of regions when all pieces have been seen.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ropewalk.format.sidecar import Sidecar, block_sum
from ropewalk.spark.jobs.records.log_files import Bytes
from ropewalk.spark.jobs.records.scan import HEADER_SIZE, Bools, Ints, Records, Scan, Stop, Window, scan

RUN_MAX: Final = 16
"""More differing records in a row than this are one region: nobody wants a list of them."""
SMALL: Final = 16
"""So many differing bytes at most are rot; more of them were written by somebody."""
BODY_CHECKSUM: Final = "the header (body checksum)"
_EXTENTS_TRIED: Final = 5
_CHUNK: Final = 1 << 20


class State(enum.Enum):
    """The state of one side in a region."""

    WHOLE = "whole records"
    ROT = "a record that does not match its checksum"
    JUNK = "bytes that are no record"
    ZEROS = "zeros"
    ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of the log in which not all sides hold the same, whole."""

    start: int
    end: int
    states: tuple[State, ...]
    same_as: tuple[int, ...]
    """For each side the first side with the same bytes here."""
    truth: int
    """The side that has the right bytes; -1 where nobody can tell."""
    evidence: str
    differing: int
    """How many bytes differ at most between two sides."""
    first: int
    """Log offset of the first of them; `start` if all sides are the same."""
    place: str
    """Which part of a record that is."""
    cut: tuple[bool, ...] = ()
    """For each side whether it holds the right bytes up to some point and nothing but zeros behind: a torn write."""
    sealed: bool = False
    """Two sides differ, and each has kept a checksum that its own bytes match: both were written so."""


@dataclass(slots=True)
class Copy:
    """A side in the view of a piece."""

    window: Window | None
    """None where its log has no such segment."""
    sidecar: Sidecar | None = None
    segment_base: int = 0
    start: int | None = None
    """Where the first record begins, if that is known."""


@dataclass(slots=True)
class Walked:
    """The reach of one side's records in a piece; `Scan` without the columns."""

    first: int
    end: int
    stop: Stop
    records: int
    lost: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Compared:
    """The result of comparing one piece."""

    walked: list[Walked | None]
    regions: list[Region] = field(default_factory=list)
    scans: list[Scan | None] = field(default_factory=list)
    """Kept in the task, for the look at the queues."""
    shared: list[int] = field(default_factory=list)
    """For each side the first side whose scan is also its own."""
    blocks: int = 0


Witness = Callable[[Sequence[Scan | None], int, int], bool | None]
"""(scans, side, position in the window) -> whether what is known besides the log speaks for that side's record."""


def compare(
    copies: Sequence[Copy], stop: int, *, check_crc: bool = True, witness: Witness | None = None
) -> Compared:
    """Compare the copies of one piece; `stop` is the log offset at which the next piece begins."""
    done = Compared([None] * len(copies))
    done.scans = [None] * len(copies)
    done.shared = list(range(len(copies)))
    for number, copy in enumerate(copies):
        if copy.window is None:
            continue
        twin = next((n for n in range(number) if _is_same(copies, done, n, number, stop)), number)
        done.shared[number] = twin
        done.scans[number] = (
            done.scans[twin]
            if twin != number
            else scan(copy.window, stop, start=copy.start, check_crc=check_crc)
        )
    for number, found in enumerate(done.scans):
        if found is not None:
            lost = tuple((each.offset, each.end) for each in found.lost)
            done.walked[number] = Walked(found.first, found.end, found.stop, len(found.records), lost)
    judge = _Judge(copies, done, stop, witness)
    done.regions = judge.regions()
    done.blocks = judge.blocks
    return done


def _is_same(copies: Sequence[Copy], done: Compared, one: int, other: int, stop: int) -> bool:
    """Whether two sides hold the same bytes as far as the first of them was walked."""
    a, b, walked = copies[one].window, copies[other].window, done.scans[one]
    if a is None or b is None or walked is None or done.shared[one] != one:
        return False
    if a.start != b.start or copies[one].start != copies[other].start or a.segment_end != b.segment_end:
        return False
    end = max(walked.end, stop) - a.start if walked.stop is not Stop.FILLER else walked.end + 8 - a.start
    end = min(end, a.segment_end - a.start)
    a.need(end)
    b.need(end)
    if len(a.data) < end or len(b.data) < end:
        # Both files end inside: then they must end alike.
        return len(a.data) == len(b.data) and _equal(a.data, b.data, 0, len(a.data))
    return _equal(a.data, b.data, 0, end)


def _equal(one: Bytes, other: Bytes, start: int, end: int) -> bool:
    """Whether two buffers hold the same bytes here. Comparing memoryviews goes item by item."""
    whole = start + (end - start) // 8 * 8
    for at in range(start, whole, _CHUNK):
        count = min(_CHUNK, whole - at) // 8
        if (np.frombuffer(one, np.uint64, count, at) != np.frombuffer(other, np.uint64, count, at)).any():
            return False
    return one[whole:end] == other[whole:end]


# -- regions -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Grid:
    """One side's records, lost stretches and filler as intervals; positions in the window."""

    starts: Ints
    ends: Ints
    whole: Bools
    end: int
    """Behind the last of them."""

    def over(self, start: int, end: int) -> slice:
        """Return the intervals that touch these positions."""
        low = int(np.searchsorted(self.ends, start, "right"))
        return slice(low, int(np.searchsorted(self.starts, end, "left")))


def _grid(found: Scan, window: Window) -> _Grid:
    records = found.records
    starts = [records.position]
    ends = [records.position + records.size]
    whole = [records.crc_ok]
    extra = [(each.offset - window.start, each.end - window.start, False) for each in found.lost]
    if found.stop is Stop.FILLER:
        at = found.end - window.start
        extra.append((at, min(at + 8, window.segment_end - window.start), True))
    if extra:
        starts.append(np.array([e[0] for e in extra], np.int64))
        ends.append(np.array([e[1] for e in extra], np.int64))
        whole.append(np.array([e[2] for e in extra], np.bool_))
    all_starts, all_ends, all_whole = np.concatenate(starts), np.concatenate(ends), np.concatenate(whole)
    order = np.argsort(all_starts, kind="stable")
    last = int(all_ends.max()) if len(all_ends) else max(found.first - window.start, 0)
    return _Grid(all_starts[order], all_ends[order], all_whole[order], last)


class _Judge:
    """Finds the regions of one piece, and who is right in each."""

    def __init__(self, copies: Sequence[Copy], done: Compared, stop: int, witness: Witness | None) -> None:
        self.blocks = 0
        self._copies = copies
        self._done = done
        self._witness = witness
        self._start = next((c.window.start for c in copies if c.window is not None), 0)
        self._stop = stop - self._start
        self._grids: list[_Grid | None] = []
        for number, copy in enumerate(copies):
            found = done.scans[number]
            twin = done.shared[number]
            if twin != number:
                self._grids.append(self._grids[twin])
            else:
                self._grids.append(_grid(found, copy.window) if found and copy.window else None)

    def regions(self) -> list[Region]:
        extents = self._extents()
        sealed = self._sealed(extents)
        regions = [self._region(start, end, sealed.get(n)) for n, (start, end) in enumerate(extents)]
        return sorted(regions + self._bad_blocks(extents, regions), key=lambda region: region.start)

    # -- where ---------------------------------------------------------------------------------------

    def _extents(self) -> list[tuple[int, int]]:
        """Positions from record to record that need a judgement, in order, not touching each other's records."""
        found: list[tuple[int, int]] = []
        sides = [n for n, twin in enumerate(self._done.shared) if twin == n and self._grids[n] is not None]
        for number in sides:
            grid = self._grids[number]
            assert grid is not None
            found += _runs(grid, ~grid.whole)
        absent = [n for n, copy in enumerate(self._copies) if copy.window is None]
        if sides and absent:
            grid = max((g for g in self._grids if g is not None), key=lambda g: g.end)
            if len(grid.starts):
                found.append((int(grid.starts[0]), grid.end))
        for other in sides[1:]:
            found += self._differences(sides[0], other)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        return merged

    def _differences(self, one: int, other: int) -> list[tuple[int, int]]:
        a, b = self._copies[one].window, self._copies[other].window
        grids = self._grids[one], self._grids[other]
        assert a is not None and b is not None and grids[0] is not None and grids[1] is not None
        marks = [np.zeros(len(grid.starts), np.bool_) for grid in grids if grid is not None]
        covered = [(int(g.starts[0]), g.end) if len(g.starts) else (0, 0) for g in grids if g is not None]
        low = min((c[0] for c in covered if c[1] > c[0]), default=0)
        high = max(c[1] for c in covered)
        a.need(high)
        b.need(high)
        left, right = np.frombuffer(a.data, np.uint8), np.frombuffer(b.data, np.uint8)
        both = min(len(left), len(right), high)
        for start in range(low, both, _CHUNK):
            end = min(start + _CHUNK, both)
            if _equal(a.data, b.data, start, end):
                continue
            differing = np.flatnonzero(left[start:end] != right[start:end]) + start
            for grid, mark in zip(grids, marks, strict=True):
                assert grid is not None
                if len(grid.starts):
                    index = np.searchsorted(grid.starts, differing, "right") - 1
                    inside = (index >= 0) & (differing < grid.ends[index])
                    mark[index[inside]] = True
        for grid, mark in zip(grids, marks, strict=True):
            assert grid is not None
            mark |= grid.ends > both
        return [run for grid, mark in zip(grids, marks, strict=True) if grid for run in _runs(grid, mark)]

    # -- who -----------------------------------------------------------------------------------------

    def _bytes(self, number: int, start: int, end: int) -> bytes:
        window = self._copies[number].window
        if window is None:
            return b""
        window.need(end)
        return window.data[start:end]

    def _state(self, number: int, start: int, end: int) -> State:
        grid = self._grids[number]
        data = self._bytes(number, start, end)
        if grid is None or not data:
            return State.ABSENT
        touched = grid.over(start, end)
        starts, ends, whole = grid.starts[touched], grid.ends[touched], grid.whole[touched]
        if len(starts) and bool(whole.all()):
            # A record that reaches out of the region, or a filler in it, is as whole as one that fits.
            covers = starts[0] <= start and (ends[-1] >= end or self._filled(number))
            if covers and bool((ends[:-1] == starts[1:]).all()):
                return State.WHOLE
        if not data.strip(b"\0"):
            return State.ZEROS
        records = self._done.scans[number]
        assert records is not None
        at = records.records.position
        is_record = np.isin(starts, at)
        if len(starts) and bool(is_record.all()) and starts[0] <= start and ends[-1] >= end:
            return State.ROT
        return State.ABSENT if len(data) < end - start else State.JUNK

    def _filled(self, number: int) -> bool:
        found = self._done.scans[number]
        return found is not None and found.stop is Stop.FILLER

    def _region(self, start: int, end: int, sealed: int | None) -> Region:
        count = len(self._copies)
        data = [self._bytes(number, start, end) for number in range(count)]
        same_as = tuple(next(n for n in range(count) if data[n] == data[number]) for number in range(count))
        states = tuple(self._state(number, start, end) for number in range(count))
        truth, evidence, contradicting = -1, "", False
        if sealed is not None and sealed >= 0:
            truth, evidence = sealed, "its checksums"
        elif sealed is not None:
            contradicting, evidence = True, "both match checksums of their own"
        else:
            truth, evidence = self._vote(states, same_as, start, end)
        reference = truth if truth >= 0 else next((n for n, s in enumerate(states) if s is State.WHOLE), 0)
        differing, first = _spread(data, reference)
        place = self._place(reference, start + first) if differing else "the record"
        return Region(
            self._start + start, self._start + end, states, same_as, truth, evidence, differing,
            self._start + start + first, place, tuple(_is_cut(each, data[reference]) for each in data),
            contradicting,
        )  # fmt: skip

    def _vote(
        self, states: tuple[State, ...], same_as: tuple[int, ...], start: int, end: int
    ) -> tuple[int, str]:
        """Return the side that is right, and what says so; -1 if nothing does."""
        whole = sorted({same_as[n] for n, state in enumerate(states) if state is State.WHOLE})
        if len(whole) == 1:
            return whole[0], "the only whole record there"
        votes = {n: sum(each == n for each in same_as) for n in whole}
        best = max(votes.values(), default=0)
        if best > 1 and list(votes.values()).count(best) == 1:
            return max(votes, key=lambda n: votes[n]), "the majority"
        if len(whole) == 2 and self._witness is not None:
            grids = [self._grids[n] for n in whole]
            exact = all(g is not None and _fits(g, start, end) for g in grids)
            if exact:
                said = [self._witness(self._done.scans, n, start) for n in whole]
                if said[0] is not None and said[1] is not None and said[0] != said[1]:
                    return whole[0 if said[0] else 1], "its queue entry"
                ordered = [self._in_order(n, start) for n in whole]
                if ordered[0] != ordered[1]:
                    return whole[0 if ordered[0] else 1], "the order of store times"
        return -1, ""

    def _in_order(self, number: int, start: int) -> bool:
        """Whether a record was stored between its neighbours."""
        found = self._done.scans[number]
        assert found is not None
        index = int(np.searchsorted(found.records.position, start))
        near = found.records.stored[max(index - 1, 0) : index + 2]
        return bool((near[:-1] <= near[1:]).all())

    def _place(self, number: int, position: int) -> str:
        """Which part of its record a byte belongs to."""
        found = self._done.scans[number]
        if found is None or not len(found.records):
            return "the record"
        records: Records = found.records
        index = int(np.searchsorted(records.position, position, "right")) - 1
        if index < 0 or position >= records.position[index] + records.size[index]:
            return "the record"
        if position < records.body_at[index]:
            wide = records.body_at[index] - records.position[index] != HEADER_SIZE
            return "the header" if wide else f"the header ({_field(position - int(records.position[index]))})"
        if position < records.body_at[index] + records.body_size[index]:
            return "the body"
        if position < records.topic_at[index] + records.topic_size[index]:
            return "the topic"
        return "the properties"

    # -- checksums beside the log --------------------------------------------------------------------

    def _blocks_in(self, start: int, end: int) -> list[tuple[int, int, dict[int, int]]]:
        """Blocks under checksums that touch these positions: begin, end, and what each side's sidecar says."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for number, copy in enumerate(self._copies):
            if copy.sidecar is None or copy.window is None:
                continue
            shift = self._start - copy.segment_base
            for block in copy.sidecar.blocks_of(start + shift, end - start):
                low, high = copy.sidecar.block(block)
                if low - shift >= 0:
                    found.setdefault((low - shift, high - shift), {})[number] = copy.sidecar.sums[block]
        return [(low, high, sums) for (low, high), sums in sorted(found.items())]

    def _sealed(self, extents: list[tuple[int, int]]) -> dict[int, int]:
        """For extents that checksums decide: the side whose bytes are right, or -1 if each side matches its own."""
        said: dict[int, set[int]] = {}
        for number, (start, end) in enumerate(extents):
            for low, high, sums in self._blocks_in(start, end)[:64]:
                near = [n for n, (s, e) in enumerate(extents) if s < high and e > low]
                own = [n for n, wanted in sums.items() if block_sum(self._bytes(n, low, high)) == wanted]
                if len(set(sums.values())) > 1 and len({sums[n] for n in own}) > 1:
                    said.setdefault(number, set()).add(-1)
                    continue
                for wanted in set(sums.values()):
                    chosen = self._choose(extents, near, low, high, wanted)
                    if chosen is not None and number in chosen:
                        said.setdefault(number, set()).add(chosen[number])
        result: dict[int, int] = {}
        for number, sides in said.items():
            start, end = extents[number]
            if (
                len(
                    {self._bytes(side, start, end) for side in sides if side >= 0}
                    | ({b""} if -1 in sides else set())
                )
                == 1
            ):
                result[number] = min(sides)
        return result

    def _choose(
        self, extents: list[tuple[int, int]], near: list[int], low: int, high: int, wanted: int
    ) -> dict[int, int] | None:
        """For each extent in a block the side whose bytes make the block match; None if none do."""
        sides = [n for n in range(len(self._copies)) if len(self._bytes(n, low, high)) == high - low]
        if not sides or len(near) > _EXTENTS_TRIED:
            return None
        for base in sides:
            for choice in itertools.product(sides, repeat=len(near)):
                block = bytearray(self._bytes(base, low, high))
                for number, side in zip(near, choice, strict=True):
                    start, end = max(extents[number][0], low), min(extents[number][1], high)
                    block[start - low : end - low] = self._bytes(side, start, end)
                if block_sum(block) == wanted:
                    return dict(zip(near, choice, strict=True))
        return None

    def _bad_blocks(self, extents: list[tuple[int, int]], regions: list[Region]) -> list[Region]:
        """Blocks that do not match their checksum although no record in them gives itself away."""
        found: list[Region] = []
        count = len(self._copies)
        for low, high, sums in self._blocks_in(0, self._stop):
            if low >= self._stop:
                continue
            self.blocks += len(sums)
            data = [self._bytes(n, low, high) for n in range(count)]
            known: dict[bytes, int] = {}
            good = {n: known.setdefault(data[n], block_sum(data[n])) == wanted for n, wanted in sums.items()}
            bad = [n for n, is_good in good.items() if not is_good]
            if not bad or any(start < high and end > low for start, end in extents):
                continue
            same_as = tuple(next(n for n in range(count) if data[n] == data[m]) for m in range(count))
            truth = next((n for n in range(count) if data[n] and block_sum(data[n]) == sums[bad[0]]), -1)
            states = tuple(
                State.ROT if same_as[n] in {same_as[b] for b in bad} else State.WHOLE for n in range(count)
            )
            states = tuple(State.ABSENT if not data[n] else state for n, state in enumerate(states))
            differing, first = _spread(data, truth if truth >= 0 else bad[0])
            found.append(
                Region(
                    self._start + low, self._start + high, states, same_as, truth, "its checksums", differing,
                    self._start + low + first, self._place(bad[0], low + first) if differing else "some record",
                )
            )  # fmt: skip
        return found


def _fits(grid: _Grid, start: int, end: int) -> bool:
    index = int(np.searchsorted(grid.starts, start))
    return bool(index < len(grid.starts) and grid.starts[index] == start and grid.ends[index] == end)


def _runs(grid: _Grid, marks: Bools) -> list[tuple[int, int]]:
    """Return the marked intervals; many in a row as one."""
    chosen = np.flatnonzero(marks)
    if not len(chosen):
        return []
    breaks = np.flatnonzero(np.diff(chosen) != 1) + 1
    found: list[tuple[int, int]] = []
    for run in np.split(chosen, breaks):
        if len(run) > RUN_MAX:
            found.append((int(grid.starts[run[0]]), int(grid.ends[run[-1]])))
        else:
            found += zip(grid.starts[run].tolist(), grid.ends[run].tolist(), strict=True)
    return found


def _is_cut(data: bytes, whole: bytes) -> bool:
    written = data.rstrip(b"\0")
    return len(written) < len(whole.rstrip(b"\0")) and whole.startswith(written)


def _spread(data: list[bytes], reference: int) -> tuple[int, int]:
    """How many bytes differ at most from those of one side, and where the first of them stands."""
    most, first = 0, -1
    whole = np.frombuffer(data[reference], np.uint8)
    for other in data:
        raw = np.frombuffer(other, np.uint8)
        both = min(len(raw), len(whole))
        at = np.flatnonzero(raw[:both] != whole[:both])
        count = len(at) + abs(len(raw) - len(whole))
        if count:
            here = int(at[0]) if len(at) else both
            most, first = max(most, count), here if first < 0 else min(first, here)
    return most, max(first, 0)


_FIELDS: Final = (
    (0, "size"), (4, "magic"), (8, "body checksum"), (12, "queue id"), (16, "flag"), (20, "queue offset"),
    (28, "log offset"), (36, "sys flag"), (40, "born time"), (48, "born host"), (56, "store time"),
    (64, "store host"), (72, "reconsume times"), (76, "prepared transaction offset"), (84, "body size"),
)  # fmt: skip


def _field(at: int) -> str:
    assert at < HEADER_SIZE
    return next(name for begin, name in reversed(_FIELDS) if begin <= at)
