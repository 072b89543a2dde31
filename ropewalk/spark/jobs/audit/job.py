"""`ropewalk pipeline audit`: have the pieces of several copies of a log compared, and put the answers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ropewalk.errors import RopewalkError
from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.records.columns import DEFAULT_DELAYS, is_queued, parse_delays, tag_codes, topics_of
from ropewalk.spark.jobs.records.compare import Compared, Copy, compare
from ropewalk.spark.jobs.records.findings import (
    Finding,
    Joined,
    Piece,
    PieceResult,
    conclude,
    cut_pieces,
    join,
    merge_ranges,
    of_queue,
)
from ropewalk.spark.jobs.records.index_check import IndexCheck, check_index_file, index_finding, index_paths
from ropewalk.spark.jobs.records.log_files import StoreFiles, open_store
from ropewalk.spark.jobs.records.queue_check import (
    Checked,
    ExpectedEntries,
    QueueFault,
    check,
    entries_at,
    orphans,
    queue_directories,
)
from ropewalk.spark.jobs.records.scan import OVERREAD, Records, Scan, Window

PIECE_SIZE: Final = 32 << 20
_QUEUES_AT_ONCE: Final = 200
_ROUNDS_MAX: Final = 100


class CannotCompare(RopewalkError):
    """The directories are not copies of one log; the text says why."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The scope of an audit."""

    stores: tuple[str, ...]
    """The store and its replicas, as paths that every worker has."""
    crc: bool = True
    start: int = 0
    stop: int = 1 << 62
    piece_size: int = PIECE_SIZE
    delays: str = DEFAULT_DELAYS
    index_samples: int = 2000
    """How many items of each index file are looked up in the log; 0: none."""


@dataclass(slots=True)
class Audit:
    """The result of an audit."""

    stores: tuple[StoreFiles, ...]
    ends: tuple[int, ...]
    findings: list[Finding]
    records: tuple[int, ...]
    record_bytes: int
    blocks: int
    entries: tuple[int, ...]
    index_items: int


@dataclass(frozen=True, slots=True)
class _Work:
    stores: tuple[StoreFiles, ...]
    piece: Piece
    options: AuditOptions


def _work(stores: Sequence[StoreFiles], piece: Piece, options: AuditOptions) -> _Work:
    return _Work(tuple(store.narrowed(piece.start) for store in stores), piece, options)


def audit(tasks: Tasks, options: AuditOptions) -> Audit:
    """Compare the copies. Raises `CannotCompare`, and `TaskFailed` with what a worker met."""
    parse_delays(options.delays)
    stores = tuple(tasks.run(open_store, options.stores, "listing"))
    _comparable(stores)
    pieces = [
        piece
        for piece in cut_pieces(stores, _piece_size(stores[0], options.piece_size))
        if piece.stop > options.start and piece.start < options.stop
    ]
    results = tasks.run(audit_piece, [_work(stores, piece, options) for piece in pieces], "comparing")
    joined = _in_a_row(tasks, stores, options, results)
    findings = conclude(stores, results, joined)
    whole = options.start == 0 and options.stop >= max(each.end for each in joined)
    if whole:
        findings += _orphans(tasks, stores, results, joined)
    items, wrong = _index(tasks, stores, options, joined, findings)
    return Audit(
        stores,
        tuple(each.end for each in joined),
        [*findings, *wrong],
        tuple(sum(w.records for r in results if (w := r.walked[n])) for n in range(len(stores))),
        sum(result.record_bytes for result in results),
        sum(result.blocks for result in results),
        tuple(sum(e.count for r in results for e in r.ranges[n]) for n in range(len(stores))),
        items,
    )


def _comparable(stores: Sequence[StoreFiles]) -> None:
    first = stores[0]
    for other in stores[1:]:
        if other.segment_size != first.segment_size and len(other.segments) > 1:
            raise CannotCompare(
                f"{first.root} has segments of {first.segment_size} bytes and {other.root} of {other.segment_size}: "
                f"replicas of one log have the same (mappedFileSizeCommitLog)"
            )
        low, high = max(first.min_offset, other.min_offset), min(first.end_offset, other.end_offset)
        if low >= high:
            raise CannotCompare(
                f"{first.root} holds the log from {first.min_offset} to {first.end_offset} and {other.root} from "
                f"{other.min_offset} to {other.end_offset}: they have nothing in common to compare"
            )


def _piece_size(store: StoreFiles, wanted: int) -> int:
    """Return a multiple of a checksum's block, so that no block is cut."""
    block = 1 << 20
    return min(max(wanted // block, 1) * block, store.segment_size)


def _in_a_row(
    tasks: Tasks, stores: tuple[StoreFiles, ...], options: AuditOptions, results: list[PieceResult]
) -> list[Joined]:
    """Follow each side; pieces that began at the wrong place are done again, until none is left."""
    for _round in range(_ROUNDS_MAX):
        joined = [join(store, number, results) for number, store in enumerate(stores)]
        wanted: dict[int, Piece] = {}
        for side, each in enumerate(joined):
            # Only the first for each side is certain: what comes after it may change with it.
            for index, offset in each.again[:1]:
                piece = wanted.get(index, results[index].piece)
                starts = (*piece.starts[:side], offset, *piece.starts[side + 1 :])
                if results[index].piece.starts[side] != offset:
                    wanted[index] = replace(piece, starts=starts)
        if not wanted:
            return joined
        work = [_work(stores, piece, options) for piece in wanted.values()]
        for index, result in zip(wanted, tasks.run(audit_piece, work, "looking again"), strict=True):
            results[index] = result
    return joined


# -- in a task ---------------------------------------------------------------------------------------


def audit_piece(work: _Work) -> PieceResult:
    """Compare one piece of all copies, and look at the queues of its records."""
    stores, piece = work.stores, work.piece
    copies = [_copy(store, piece, number) for number, store in enumerate(stores)]
    delays_ms = parse_delays(work.options.delays)
    witness = _Witness(stores, copies, delays_ms)
    done = compare(copies, piece.stop, check_crc=work.options.crc, witness=witness.speaks_for)
    checked = _check_queues(stores, copies, done, delays_ms)
    return PieceResult(
        piece,
        done.walked,
        done.regions,
        [each.faults for each in checked],
        [each.ranges for each in checked],
        [each.vouched for each in checked],
        sum(int(s.records.size.sum()) for s in done.scans[:1] if s is not None),
        done.blocks,
    )


def _copy(store: StoreFiles, piece: Piece, number: int) -> Copy:
    segment = store.segment(piece.start)
    if segment is None:
        return Copy(None)
    end = segment.base + store.segment_size
    size = min(piece.stop + OVERREAD, end) - piece.start
    window = Window(piece.start, end, size, store.reader(segment))
    return Copy(window, store.sidecar(segment), segment.base, piece.starts[number])


class _Witness:
    """The entries of the stores' queues for a single record."""

    def __init__(
        self, stores: Sequence[StoreFiles], copies: Sequence[Copy], delays_ms: tuple[int, ...]
    ) -> None:
        self._stores = stores
        self._copies = copies
        self._delays_ms = delays_ms

    def speaks_for(self, scans: Sequence[Scan | None], side: int, position: int) -> bool | None:
        """Whether the entries at the number that a record claims name this record; None if there are none."""
        found, window = scans[side], self._copies[side].window
        assert found is not None and window is not None
        index = int(np.searchsorted(found.records.position, position))
        asked = _asked(window, found.records.select(slice(index, index + 1)), self._delays_ms)
        if not len(asked.number):
            return None
        topic, wanted = asked.topics.values[0], (int(asked.offset[0]), int(asked.size[0]), int(asked.code[0]))
        said = [
            (int(entry["offset"]), int(entry["size"]), int(entry["code"])) == wanted
            for store in self._stores
            for entry in entries_at(store, topic, int(asked.queue_id[0]), asked.number)
        ]
        return any(said)


def _asked(window: Window, records: Records, delays_ms: tuple[int, ...]) -> ExpectedEntries:
    records = records.select(is_queued(records))
    topics = topics_of(window.data, records)
    codes = tag_codes(window.data, records, topics, delays_ms)
    return ExpectedEntries(
        topics, records.queue_id, records.queue_offset, records.offset, records.size, codes
    )


def _check_queues(
    stores: Sequence[StoreFiles], copies: Sequence[Copy], done: Compared, delays_ms: tuple[int, ...]
) -> list[Checked]:
    """Return each side's queue files beside the records that are not themselves in doubt."""
    asked: dict[int, ExpectedEntries] = {}
    checked: list[Checked] = []
    for number, store in enumerate(stores):
        found, window = done.scans[number], copies[number].window
        if found is None or window is None or not len(found.records):
            checked.append(Checked([], []))
            continue
        twin = done.shared[number]
        if twin not in asked:
            records = found.records
            doubtful = ~records.crc_ok
            for region in done.regions:
                low, high = np.searchsorted(records.offset, (region.start, region.end))
                doubtful[low:high] = True
            asked[twin] = _asked(window, records.select(~doubtful), delays_ms)
        checked.append(check(store, asked[twin]))
    return checked


# -- queues and index as a whole ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _QueueWork:
    store: StoreFiles
    end: int
    queues: tuple[tuple[str, int, int, int], ...]
    """Topic, queue id, and the numbers that the log asked for: first and the one behind the last."""


def _find_orphans(work: _QueueWork) -> list[QueueFault]:
    return [
        fault
        for topic, queue_id, first, following in work.queues
        for fault in orphans(work.store, topic, queue_id, first, following, work.end)
    ]


def _orphans(
    tasks: Tasks, stores: Sequence[StoreFiles], results: list[PieceResult], joined: Sequence[Joined]
) -> list[Finding]:
    listed = tasks.run(queue_directories, stores, "listing queues")
    work: list[tuple[int, _QueueWork]] = []
    for number, store in enumerate(stores):
        ranges = merge_ranges(results, number)
        queues = [(topic, queue, *ranges.get((topic, queue), (0, 0))) for topic, queue in listed[number]]
        for at in range(0, len(queues), _QUEUES_AT_ONCE):
            some = tuple(queues[at : at + _QUEUES_AT_ONCE])
            work.append((number, _QueueWork(store, joined[number].end, some)))
    answers = tasks.run(_find_orphans, [each for _number, each in work], "looking at queues")
    touched = [(r.start, r.end) for result in results for r in result.regions]
    return [
        of_queue(stores[number], number, fault)
        for (number, _work), faults in zip(work, answers, strict=True)
        for fault in faults
        # An entry of a record that is damaged itself is no orphan.
        if not any(start <= fault.offset < end for start, end in touched)
    ]


def _index(
    tasks: Tasks,
    stores: Sequence[StoreFiles],
    options: AuditOptions,
    joined: Sequence[Joined],
    findings: Sequence[Finding],
) -> tuple[int, list[Finding]]:
    """Look up a sample of the items of every index file; how many that were, and what was wrong."""
    if not options.index_samples:
        return 0, []
    damaged = tuple((f.start, f.end) for f in findings if f.queue is None)
    looks = [
        (number, IndexCheck(store, path, joined[number].end, options.index_samples, damaged))
        for number, (store, paths) in enumerate(
            zip(stores, tasks.run(index_paths, stores, "listing the index"), strict=True)
        )
        for path in paths
    ]
    answers = tasks.run(check_index_file, [look for _number, look in looks], "looking at the index")
    wrong = [
        index_finding(number, look, fault)
        for (number, look), (_count, faults) in zip(looks, answers, strict=True)
        for fault in faults
    ]
    return sum(count for count, _faults in answers), wrong
