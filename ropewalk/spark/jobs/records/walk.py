"""Find the records of one log: pieces that begin exactly at a record, and the end of the log.

A job that has to miss no record and take none twice first has the log walked over, cheaply: sizes only, no checksums.
Every piece is walked from where a search finds a record; where that is not where the piece before ended, again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ropewalk.spark.jobs.common.tasks import Tasks
from ropewalk.spark.jobs.records.compare import Walked
from ropewalk.spark.jobs.records.findings import Piece, PieceResult, cut_pieces, join
from ropewalk.spark.jobs.records.log_files import StoreFiles
from ropewalk.spark.jobs.records.scan import OVERREAD, Scan, Window, scan

PIECE_SIZE: Final = 64 << 20
_ROUNDS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records that begin in [start, stop) of a log; one begins at `start`."""

    store: StoreFiles
    start: int
    stop: int
    records: int


@dataclass(frozen=True, slots=True)
class Walk:
    """A log, cut into pieces."""

    store: StoreFiles
    stretches: tuple[Stretch, ...]
    end: int
    lost: tuple[tuple[int, int], ...]
    """Stretches of bytes that are no records, before the end."""
    filled: tuple[tuple[int, int], ...] = ()
    """(where it begins, where its last record ends) of each segment that holds any."""

    @property
    def records(self) -> int:
        return sum(stretch.records for stretch in self.stretches)


@dataclass(frozen=True, slots=True)
class _Work:
    store: StoreFiles
    piece: Piece


def walk(
    tasks: Tasks, store: StoreFiles, *, piece_size: int = PIECE_SIZE, pieces_max: int | None = None
) -> Walk:
    """Find every record of a log, from its `min_offset` on, or of its next few pieces. Raises `TaskFailed`."""
    pieces = [
        _from(store.min_offset, each) for each in cut_pieces([store], min(piece_size, store.segment_size))
    ]
    pieces = [piece for piece in pieces if piece.start < piece.stop][:pieces_max]
    results = tasks.run(
        _walk_piece, [_Work(store.narrowed(piece.start), piece) for piece in pieces], "walking"
    )
    for _round in range(_ROUNDS_MAX):
        joined = join(store, 0, results)
        if not joined.again:
            break
        index, offset = joined.again[0]
        again = Piece(results[index].piece.start, results[index].piece.stop, (offset,))
        (results[index],) = tasks.run(
            _walk_piece, [_Work(store.narrowed(again.start), again)], "walking again"
        )
    stretches, lost = _cut(store, results, joined.end)
    filled: dict[int, int] = {}
    for walked in (result.walked[0] for result in results):
        if walked is not None and walked.records and walked.first < joined.end:
            base = walked.first - walked.first % store.segment_size
            filled[base] = max(filled.get(base, base), min(walked.end, joined.end))
    return Walk(
        store,
        tuple(stretches),
        joined.end,
        tuple(sorted({*lost, *joined.holes})),
        tuple(sorted(filled.items())),
    )


def _from(offset: int, piece: Piece) -> Piece:
    """Return the part of a piece that does not lie before an offset, where a record begins."""
    return piece if piece.start >= offset else Piece(min(offset, piece.stop), piece.stop, (offset,))


def _walk_piece(work: _Work) -> PieceResult:
    found = scan_piece(work.store, work.piece.start, work.piece.stop, work.piece.starts[0], keep=False)
    if found is None:
        return PieceResult(work.piece, [None], [], [[]], [[]], [0])
    done, _window = found
    lost = tuple((each.offset, each.end) for each in done.lost)
    walked = Walked(done.first, done.end, done.stop, done.count, lost)
    return PieceResult(work.piece, [walked], [], [[]], [[]], [0])


def scan_piece(
    store: StoreFiles, start: int, stop: int, first: int | None, *, check_crc: bool = False, keep: bool = True
) -> tuple[Scan, Window] | None:
    """Return the records that begin in [start, stop), which lies in one segment; None if that is missing. Blocks."""
    segment = store.segment(start)
    if segment is None:
        return None
    end = segment.base + store.segment_size
    if first is not None:
        start = store.page_start(segment, start)
    window = Window(start, end, min(stop + OVERREAD, end) - start, store.reader(segment))
    return scan(window, stop, start=first, check_crc=check_crc, keep=keep), window


def scan_stretch(stretch: Stretch, *, check_crc: bool = False) -> tuple[Scan, Window]:
    """Return the records of a stretch. Blocks."""
    found = scan_piece(stretch.store, stretch.start, stretch.stop, stretch.start, check_crc=check_crc)
    assert found is not None
    return found


def _cut(
    store: StoreFiles, results: Sequence[PieceResult], end: int
) -> tuple[list[Stretch], list[tuple[int, int]]]:
    """Return the pieces that own records, as they are to be read; what is lost between them."""
    stretches: list[Stretch] = []
    lost: list[tuple[int, int]] = []
    following = store.min_offset
    for result in results:
        walked = result.walked[0]
        if walked is None or walked.first < following or walked.first >= min(end, result.piece.stop):
            continue
        if walked.records:
            stretches.append(
                Stretch(
                    store.narrowed(walked.first), walked.first, min(result.piece.stop, end), walked.records
                )
            )
        lost += [each for each in walked.lost if each[0] < end]
        following = walked.end
    return stretches, lost
