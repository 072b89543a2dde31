"""Conclude from the pieces of an audit where each copy ends, and state each fault as a finding with its remedy.

A piece cannot know whether bytes that are no record are the end of a log or a hole in it, and a record that lies across
a border is seen by the next piece only as far as a search shows. `join` puts the pieces of one side in a row; where
the next piece did not begin where the one before ended, it is to be done again from there.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ropewalk.spark.jobs.records.compare import BODY_CHECKSUM, SMALL, Region, State, Walked
from ropewalk.spark.jobs.records.log_files import NAME_DIGITS, StoreFiles
from ropewalk.spark.jobs.records.queue_check import Fault, QueueFault, QueueRange
from ropewalk.spark.jobs.records.scan import Stop

_FOREIGN = 64
"""So many differing bytes in one record are somebody else's, not rot."""


class Kind(enum.Enum):
    """The kind of a fault. The values are words of the report."""

    BIT_ROT = "bit-rot"
    FOREIGN_BYTES = "foreign-bytes"
    MISSING_BYTES = "missing-bytes"
    DIVERGED = "diverged"
    BEHIND = "behind"
    TORN_TAIL = "torn-tail"
    MISSING_CQ = "missing-cq"
    WRONG_CQ = "wrong-cq"
    ORPHAN_CQ = "orphan-cq"
    WRONG_INDEX = "wrong-index"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. Offsets are of the log; sides are numbered as they were given."""

    kind: Kind
    side: int
    """The store at fault; -1 where that cannot be told."""
    start: int
    end: int
    place: str
    """File and byte, or entry."""
    text: str
    repair_from: int = -1
    """The side with the right bytes; the same side if its own log has them; -1 if nobody does."""
    queue: QueueFault | None = None
    """For findings about a queue's entries."""

    @property
    def is_damage(self) -> bool:
        """Return whether a finding is damage: a torn tail, which a kill leaves and a start cuts, is not."""
        return self.kind is not Kind.TORN_TAIL


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit of work: records that begin in [start, stop). `starts` says for each side where the first must be."""

    start: int
    stop: int
    starts: tuple[int | None, ...]


@dataclass(slots=True)
class PieceResult:
    """The result of a task about a piece."""

    piece: Piece
    walked: list[Walked | None]
    regions: list[Region]
    faults: list[list[QueueFault]]
    ranges: list[list[QueueRange]]
    vouched: list[int]
    record_bytes: int = 0
    blocks: int = 0


def cut_pieces(sides: Sequence[StoreFiles], piece_size: int) -> list[Piece]:
    """Cut every stretch of log that some side has a file for, at segment borders and every `piece_size` bytes."""
    segment_size = sides[0].segment_size
    bases = sorted({segment.base for side in sides for segment in side.segments})
    pieces: list[Piece] = []
    for base in bases:
        for start in range(base, base + segment_size, piece_size):
            known = (base if start == base else None,) * len(sides)
            pieces.append(Piece(start, min(start + piece_size, base + segment_size), known))
    return pieces


# -- one side ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Joined:
    """The pieces of one side in a row."""

    end: int
    """Where its log ends."""
    torn: bool = False
    """Something other than zeros stands there."""
    holes: tuple[tuple[int, int], ...] = ()
    """Stretches without records, with records behind them, that no piece has seen whole."""
    again: tuple[tuple[int, int], ...] = ()
    """(number of the piece, log offset): do that piece again, the first record is to begin there."""


def join(side: StoreFiles, number: int, pieces: Sequence[PieceResult]) -> Joined:
    """Join the pieces of one side in their order."""
    expected: int | None = side.min_offset
    open_at, torn, filled_through = -1, False, -1
    holes: list[tuple[int, int]] = []
    again: list[tuple[int, int]] = []
    for index, result in enumerate(pieces):
        piece, walked = result.piece, result.walked[number]
        if piece.stop <= side.min_offset or piece.start < filled_through:
            continue
        if filled_through >= 0:
            expected, filled_through = filled_through, -1
        if expected is not None and expected >= piece.stop:
            continue  # one record reaches over all of this piece
        # A file that begins with no record does not end an open stretch: most logs have one allocated ahead.
        has_some = walked is not None and (walked.records > 0 or walked.stop in (Stop.FILLER, Stop.PIECE))
        if walked is None or (expected is None and (walked.first < 0 or not has_some)):
            if expected is not None:
                open_at, torn, expected = expected, False, None
            if walked is not None:
                torn = torn or walked.stop is Stop.NO_RECORD
            continue
        if expected is not None and walked.first != expected:
            again.append((index, expected))
        elif expected is None and walked.first >= 0:
            holes.append((open_at, walked.first))
        if walked.stop is Stop.PIECE:
            expected = walked.end
        elif walked.stop is Stop.FILLER:
            expected = None
            filled_through = piece.start - piece.start % side.segment_size + side.segment_size
        else:
            expected, open_at, torn = None, walked.end, walked.stop is Stop.NO_RECORD
    if filled_through >= 0:
        return Joined(filled_through, False, tuple(holes), tuple(again))
    if expected is not None:
        return Joined(expected, False, tuple(holes), tuple(again))
    return Joined(open_at, torn, tuple(holes), tuple(again))


# -- all sides ---------------------------------------------------------------------------------------


def conclude(
    sides: Sequence[StoreFiles], results: Sequence[PieceResult], joined: Sequence[Joined]
) -> list[Finding]:
    """Return the findings of an audit in the order of the log, without orphans in queues and the index."""
    vouched = [max((result.vouched[n] for result in results), default=0) for n in range(len(sides))]
    ends = [
        each.end if side.is_clean or not seen else min(each.end, seen)
        for side, each, seen in zip(sides, joined, vouched, strict=True)
    ]
    regions = sorted((r for result in results for r in result.regions), key=lambda region: region.start)
    found: list[Finding] = []
    blamed: list[tuple[int, int, int]] = []
    for region in regions:
        for finding in _of_region(sides, region, ends):
            found.append(finding)
            blamed.append((finding.side, finding.start, finding.end))
    for number, each in enumerate(joined):
        found += [
            _finding(
                sides, Kind.FOREIGN_BYTES, number, start, end, "no record begins here, and records follow"
            )
            for start, end in each.holes
            if start < ends[number]
            and not any(s in (number, -1) and a < end and b > start for s, a, b in blamed)
        ]
    found = _in_one_piece(_one_divergence(found))
    found += _tails(sides, found, ends, joined)
    touched = [(region.start, region.end) for region in regions]
    for number, side in enumerate(sides):
        faults = [fault for result in results for fault in result.faults[number]]
        faults = [
            f for f in faults if f.offset < ends[number] and not any(a <= f.offset < b for a, b in touched)
        ]
        found += [of_queue(side, number, fault) for fault in _merged(faults)]
    return sorted(found, key=lambda finding: (finding.start, finding.side, finding.kind.value))


def _of_region(sides: Sequence[StoreFiles], region: Region, ends: list[int]) -> Iterator[Finding]:
    present = [n for n, side in enumerate(sides) if side.min_offset <= region.start]
    for number in present:
        # The end of a log is where records stop. But damage to the last of them is no end.
        if ends[number] == region.start and region.truth >= 0 and not region.cut[number]:
            if region.states[number] in (State.JUNK, State.ROT):
                ends[number] = region.end
    alive = [number for number in present if region.start < ends[number]]
    if not alive:
        return
    if region.truth >= 0:
        for number in alive:
            if region.same_as[number] != region.same_as[region.truth]:
                yield _damage(sides, region, number)
        if region.states[region.truth] is not State.WHOLE and region.truth in alive:
            # A block that matches its checksum holds a record that does not match its own: it was written so.
            yield _damage(sides, region, region.truth)
        return
    whole = [number for number in alive if region.states[number] is State.WHOLE]
    for number in alive:
        if number not in whole:
            yield _damage(sides, region, number)
    if len({region.same_as[number] for number in whole}) > 1:
        names = " and ".join(sides[number].root for number in whole)
        if not _was_written(region) and not region.sealed:
            yield replace(
                _finding(
                    sides, Kind.BIT_ROT, whole[-1], region.first, region.end,
                    f"{region.differing} differing bytes in {region.place}; both sides look whole, so which of "
                    f"{names} is right cannot be told: a third copy would decide",
                ),
                side=-1, start=region.start,
            )  # fmt: skip
        else:
            why = f" ({region.evidence})" if region.evidence else ""
            yield replace(
                _finding(
                    sides, Kind.DIVERGED, whole[-1], region.start, region.end,
                    f"{names} hold different whole records{why}",
                ),
                side=-1,
            )  # fmt: skip


def _was_written(region: Region) -> bool:
    """Whether whole records differ in a way that no rot brings about: in much, or in a body and its checksum."""
    return region.differing > SMALL or region.place == BODY_CHECKSUM


def _damage(sides: Sequence[StoreFiles], region: Region, number: int) -> Finding:
    state = region.states[number]
    known = region.truth >= 0 and region.truth != number
    if state is State.ABSENT:
        kind, text = Kind.MISSING_BYTES, "the file ends before these records, or is gone"
    elif state is State.ZEROS:
        kind, text = Kind.FOREIGN_BYTES, "zeros where records should be"
    elif state is State.WHOLE and _was_written(region):
        kind, text = Kind.DIVERGED, "whole records that are not those of the other side"
    elif known and region.differing > (SMALL if state is State.JUNK else _FOREIGN):
        kind, text = Kind.FOREIGN_BYTES, f"{region.differing} bytes that were not written here"
    elif known:
        plural = "" if region.differing == 1 else "s"
        kind, text = Kind.BIT_ROT, f"{region.differing} damaged byte{plural} in {region.place}"
    elif state is State.JUNK:
        kind, text = Kind.FOREIGN_BYTES, "bytes that are no record"
    else:
        kind, text = Kind.BIT_ROT, f"damage in {region.place}"
    if known:
        text += f"; {sides[region.truth].root} is right by {region.evidence}"
    at = region.first if kind is Kind.BIT_ROT else region.start
    found = _finding(sides, kind, number, at, region.end, text)
    return replace(found, start=region.start, repair_from=region.truth if known else -1)


def _finding(sides: Sequence[StoreFiles], kind: Kind, number: int, at: int, end: int, text: str) -> Finding:
    return Finding(kind, number, at, end, file_position(sides[number], at), text)


def file_position(side: StoreFiles, offset: int) -> str:
    """Return the file and the byte of a log offset."""
    base = offset - offset % side.segment_size
    return f"{side.root}/commitlog/{base:0{NAME_DIGITS}d} byte {offset - base}"


def _in_one_piece(found: list[Finding]) -> list[Finding]:
    """Adjoining stretches that one hand took away, or wrote over, as one."""
    kept: list[Finding] = []
    for finding in found:
        before = kept[-1] if kept else None
        if (
            before is not None
            and finding.kind in (Kind.MISSING_BYTES, Kind.FOREIGN_BYTES)
            and (finding.kind, finding.side, finding.repair_from, finding.start)
            == (before.kind, before.side, before.repair_from, before.end)
        ):
            kept[-1] = replace(before, end=finding.end)
        else:
            kept.append(finding)
    return kept


def _one_divergence(found: list[Finding]) -> list[Finding]:
    """Logs that have parted do not meet again: all that differs behind the first place is one finding."""
    kept: list[Finding] = []
    first: dict[tuple[int, int], int] = {}
    for finding in found:
        key = (finding.side, finding.repair_from)
        if finding.kind is not Kind.DIVERGED or key not in first:
            if finding.kind is Kind.DIVERGED:
                first[key] = len(kept)
            kept.append(finding)
        else:
            at = first[key]
            kept[at] = replace(kept[at], end=finding.end)
    return kept


def _tails(
    sides: Sequence[StoreFiles], found: list[Finding], ends: list[int], joined: Sequence[Joined]
) -> Iterator[Finding]:
    last = max(ends)
    for number, side in enumerate(sides):
        if joined[number].torn and ends[number] == joined[number].end and ends[number] >= side.min_offset:
            yield _finding(
                sides, Kind.TORN_TAIL, number, ends[number], ends[number],
                "behind the last whole record stand bytes that are none, as a kill leaves them",
            )  # fmt: skip
        parted = any(
            f.kind is Kind.DIVERGED and f.side in (number, -1) and f.end >= ends[number] for f in found
        )
        if ends[number] < last and not parted:
            ahead = ends.index(last)
            yield replace(
                _finding(
                    sides, Kind.BEHIND, number, ends[number], last,
                    f"its log ends here, {last - ends[number]} bytes before that of {sides[ahead].root}",
                ),
                repair_from=ahead,
            )  # fmt: skip


# -- queues ------------------------------------------------------------------------------------------


def _merged(faults: list[QueueFault]) -> list[QueueFault]:
    """Runs that go on from one piece to the next as one."""
    kept: dict[tuple[Fault, str, int, int], QueueFault] = {}
    for fault in sorted(faults, key=lambda f: (f.topic, f.queue_id, f.fault.value, f.first)):
        before = kept.pop((fault.fault, fault.topic, fault.queue_id, fault.first), None)
        if before is not None:
            fault = replace(before, last=fault.last, entries=before.entries + fault.entries)
        kept[fault.fault, fault.topic, fault.queue_id, fault.last + 1] = fault
    return list(kept.values())


_KINDS = {
    Fault.MISSING: Kind.MISSING_CQ,
    Fault.WRONG: Kind.WRONG_CQ,
    Fault.CODE: Kind.WRONG_CQ,
    Fault.ORPHAN: Kind.ORPHAN_CQ,
}


def of_queue(side: StoreFiles, number: int, fault: QueueFault) -> Finding:
    """Return a queue's fault as a finding; its own log has the bytes to repair it."""
    many = fault.last > fault.first
    entries = f"entries {fault.first} to {fault.last}" if many else f"entry {fault.first}"
    what = {
        Fault.MISSING: "missing",
        Fault.WRONG: "naming other places than their records'"
        if many
        else "naming another place than its record's",
        Fault.CODE: "with another tag code or delivery time than the log gives",
        Fault.ORPHAN: "naming places where no record of this queue stands",
    }[fault.fault]
    text = f"{entries} of queue {fault.queue_id} of topic {fault.topic} {'are' if many else 'is'} {what}"
    place = f"{side.queue_directory(fault.topic, fault.queue_id)} {entries}"
    return Finding(
        _KINDS[fault.fault], number, fault.offset, fault.offset, place, text, number, fault
    )  # fmt: skip


def merge_ranges(results: Sequence[PieceResult], number: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Merge, for each queue of a side, the ranges [first, following) of numbers that records of the log asked for."""
    merged: dict[tuple[str, int], tuple[int, int]] = {}
    for result in results:
        for each in result.ranges[number]:
            first, following = merged.get((each.topic, each.queue_id), (each.first, 0))
            merged[each.topic, each.queue_id] = (min(first, each.first), max(following, each.last + 1))
    return merged
