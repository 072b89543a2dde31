"""Read one split of a store in a task, without Spark.

`read_split` yields record batches and tells damage by the policy of `onCorrupt`: `fail` raises at the first, `skip`
and `keep` report each place and go on. Damage between two splits is told by the one in front: it makes sure that the
place its last record leads to is where a record begins, because the next split only looks for the first one it finds.

A file that vanished or became shorter since the plan was made is lost data, and not damage: `failOnDataLoss` decides.
With `io=pread` the bytes of a split are copied, and nothing that happens to the file can hurt; a file that shrinks
under a mapping kills the worker, and Spark tries the task again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ropewalk.errors import CorruptRecord
from ropewalk.format.record import RECORD_SIZE_MIN
from ropewalk.spark.rows.columns import Plan, build_batches
from ropewalk.spark.rows.decode import DamagedPlace, Ended, SegmentDecoder
from ropewalk.spark.rows.headers import Bools, Buffer, Headers, Ints, read_headers
from ropewalk.spark.rows.inner_batch import has_inner_batches, unwrap
from ropewalk.spark.store.files import Segment
from ropewalk.spark.store.plan import DataLoss, LogSplit, QueueSplit, Split

__all__ = ["Report", "read_split"]

WINDOW: Final = 16 << 20
"""Bytes of a split that are read at a time with `io=pread`."""
_LOOK_AHEAD: Final = 1 << 20
"""Bytes read behind the end of a split with `io=pread`: its last record may reach that far, or further."""


@dataclass(slots=True)
class Report:
    """The callbacks of a task for damage and losses."""

    damaged: Callable[[str, DamagedPlace], None]
    """Called with the file's path for each damage that is passed over."""
    lost: Callable[[str, int], None]
    """Called with a text and a number of bytes for what is no longer there."""


def read_split(
    split: Split, plan: Plan, report: Report, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a split. Raises CorruptRecord where the plan says fail, and DataLoss."""
    plan = replace(
        plan, broker_name=split.broker_name, filter=split.filter, partition_bases=split.partition_bases
    )
    reader: Iterator[pa.RecordBatch]
    reader = (
        _read_log(split, plan, report) if isinstance(split, LogSplit) else _read_queue(split, plan, report)
    )
    try:
        yield from reader
    except DataLoss as exc:
        if fail_on_data_loss:
            raise
        report.lost(str(exc), 0)


def _log_losses(plan: Plan, report: Report, path: str, place: DamagedPlace) -> None:
    if plan.on_corrupt == "fail":
        raise CorruptRecord(
            f"{path}: {place}; onCorrupt=skip leaves it out, onCorrupt=keep shows what can be shown"
        )
    report.damaged(path, place)


# A stretch of the log


def _read_log(split: LogSplit, plan: Plan, report: Report) -> Iterator[pa.RecordBatch]:
    segment = split.segment
    limit = min(split.end, split.log_end) - segment.base_offset
    position = split.start - segment.base_offset
    exact = split.exact
    with _OpenSegment(segment, split.io) as opened:
        # A mapping takes no memory. A copy does, and gets new pages from the kernel for each byte of it.
        size = min(limit - position, WINDOW) if split.io == "pread" else limit - position
        while True:
            end = min(position + size, limit)
            decoder = opened.decoder(position, size + _LOOK_AHEAD, end, plan)
            if not exact and not decoder.seek():
                if end == limit:
                    return
                size = limit - position
                continue
            exact = True
            spoilt = False
            for piece in decoder.pieces():
                if end < limit and piece.damage and piece.batch is None:
                    spoilt = True  # how far it reaches shows where all of the split is seen
                    position = piece.damage[0].offset - segment.base_offset
                    break
                for place in piece.damage:
                    _log_losses(plan, report, segment.path, place)
                if piece.batch is not None:
                    yield piece.batch
            if spoilt:
                size = limit - position
                continue
            position = opened.position + decoder.position
            if decoder.ended is Ended.SHORT:
                size = max(size, decoder.needed())
            elif decoder.ended is Ended.ZEROS and end < limit:
                size = limit - position
            elif decoder.ended is not Ended.LIMIT or end == limit:
                break
        here = segment.base_offset + position
        match decoder.ended:
            case Ended.ZEROS:
                place = DamagedPlace(here, limit - position, "zeros where records were")
                _log_losses(plan, report, segment.path, place)
            case Ended.LIMIT if here < split.log_end and position < segment.size:
                _check_next(opened, position, plan, report)
            case _:
                pass


def _check_next(opened: _OpenSegment, position: int, plan: Plan, report: Report) -> None:
    """Report damage right behind a split: its record belongs to the next split, which would not miss it."""
    segment = opened.segment
    size = _LOOK_AHEAD
    while True:
        decoder = opened.decoder(position, size, position + 1, plan)
        damage = [place for _, place in decoder.steps() if place is not None]
        if decoder.ended is not Ended.SHORT:
            break
        size = decoder.needed() + _LOOK_AHEAD
    if decoder.ended is Ended.ZEROS:
        damage.append(DamagedPlace(segment.base_offset + position, 0, "zeros where a record was"))
    for place in damage:
        _log_losses(plan, report, segment.path, place)


class _OpenSegment:
    """A segment's file, mapped as a whole or read a window at a time."""

    def __init__(self, segment: Segment, io: str) -> None:
        self.segment = segment
        self.position = 0
        """Of the window, in the file."""
        self._io = io
        self._file: Any = None
        self._mapped: mmap.mmap | None = None

    def __enter__(self) -> _OpenSegment:
        try:
            self._file = open(self.segment.path, "rb")
        except FileNotFoundError:
            raise DataLoss(
                f"{self.segment.path} has vanished since the read was planned: retention, perhaps, or a worker on a "
                f"machine where the store is not"
            ) from None
        return self

    def __exit__(self, *exc: object) -> None:
        # A mapping is freed with the last array that looks into it, and not before.
        self._mapped = None
        self._file.close()

    def mapped(self) -> mmap.mmap:
        """All of the file that was there when the read was planned."""
        if self._mapped is None:
            found = os.fstat(self._file.fileno()).st_size
            if found < self.segment.size:
                raise self._shrunk(found)
            self._mapped = mmap.mmap(self._file.fileno(), self.segment.size, prot=mmap.PROT_READ)
            self._mapped.madvise(mmap.MADV_SEQUENTIAL)
        return self._mapped

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the file, fewer only at the end it had when the read was planned."""
        size = min(size, self.segment.size - position)
        parts: list[bytes] = []
        while size > 0:
            part = os.pread(self._file.fileno(), size, position)
            if not part:
                raise self._shrunk(position)
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _shrunk(self, size: int) -> DataLoss:
        return DataLoss(
            f"{self.segment.path} is {size} bytes long, and was {self.segment.size} when the read was planned: "
            f"somebody cut the log"
        )

    def decoder(self, position: int, size: int, end: int, plan: Plan) -> SegmentDecoder:
        """Return a decoder of the records that begin in `[position, end)` of the file, with `size` bytes at hand."""
        data: Buffer
        if self._io == "mmap":
            data, self.position = self.mapped(), 0
        else:
            data, self.position = self.read(position, size), position
        return SegmentDecoder(
            data,
            self.segment.base_offset + self.position,
            position - self.position,
            end - self.position,
            plan,
            self.segment.log_format,
            self.segment.size - self.position,
        )


# A run of one queue's entries


def _read_queue(split: QueueSplit, plan: Plan, report: Report) -> Iterator[pa.RecordBatch]:
    entries = split.queue.entries(split.low, split.high)
    offsets, sizes = entries["offset"].astype(np.int64), entries["size"].astype(np.int64)
    numbers = np.arange(split.low, split.high, dtype=np.int64)
    # Filling, a hole, and entries behind the end that is safe.
    unwritten = np.flatnonzero(sizes == 0)
    real = (sizes > 0) & (sizes < 0x7FFFFFFF) & (offsets >= 0) & (offsets + sizes <= split.log_end)
    offsets, sizes, numbers = offsets[real], sizes[real], numbers[real]
    where = f"queue {split.queue.queue_id} of {split.queue.topic}"
    for segment in split.segments:
        inside = (offsets >= segment.base_offset) & (offsets < segment.end_offset)
        if inside.any():
            run = _Run(offsets[inside] - segment.base_offset, sizes[inside], numbers[inside])
            yield from _read_run(segment, run, split, plan, report, where)
    gone = int((offsets < (split.segments[0].base_offset if split.segments else split.log_end)).sum())
    if gone:
        raise DataLoss(f"{where}: {gone} messages are no longer in the log, retention has taken them")
    if len(unwritten):
        raise DataLoss(
            f"{where} has no entry for {len(unwritten)} messages from {split.low + int(unwritten[0])} on, and has for "
            f"later ones: splitMode=resync reads them from the log, and `ropewalk pipeline rebuild` makes entries anew"
        )


@dataclass(slots=True)
class _Run:
    """Entries whose records lie in one segment: positions in its file, sizes, and queue offsets."""

    positions: Ints
    sizes: Ints
    numbers: Ints

    def part(self, chosen: Any) -> _Run:
        return _Run(self.positions[chosen], self.sizes[chosen], self.numbers[chosen])


def _read_run(
    segment: Segment, run: _Run, split: QueueSplit, plan: Plan, report: Report, where: str
) -> Iterator[pa.RecordBatch]:
    # Records follow each other as their entries do. An entry that claims bytes of its neighbour, or of no record, is
    # as stale as one that names another message.
    reach = np.concatenate(([0], np.maximum.accumulate(run.positions + run.sizes)[:-1]))
    fits = (run.positions >= reach) & (run.sizes >= RECORD_SIZE_MIN)
    fits &= run.positions + run.sizes <= segment.size
    _log_stale(run.part(~fits), segment, plan, report, where)
    run = run.part(fits)
    with _OpenSegment(segment, split.io) as opened:
        start = 0
        buffer: Buffer
        base: int | None
        while start < len(run.positions):
            count = int(np.searchsorted(np.cumsum(run.sizes[start:]), plan.batch_bytes)) + 1
            part = run.part(slice(start, start + min(count, plan.batch_rows)))
            start += len(part.positions)
            if split.io == "mmap":
                positions, base = part.positions, segment.base_offset
                buffer = opened.mapped()
            else:
                buffer, positions = _copied(opened, part)
                base = None
            for batch, damage in _decode_run(buffer, positions, base, part, segment, split, plan):
                for place in damage:
                    _log_losses(plan, report, segment.path, place)
                if batch is not None:
                    yield batch


def _copied(opened: _OpenSegment, part: _Run) -> tuple[bytes, Ints]:
    """Return the records of a run, back to back, and where each begins in there."""
    pieces = [
        opened.read(position, size)
        for position, size in zip(part.positions.tolist(), part.sizes.tolist(), strict=True)
    ]
    return b"".join(pieces), np.concatenate(([0], np.cumsum(part.sizes)[:-1]))


def _decode_run(
    buffer: Buffer,
    positions: Ints,
    base: int | None,
    part: _Run,
    segment: Segment,
    split: QueueSplit,
    plan: Plan,
) -> Iterator[tuple[pa.RecordBatch | None, list[DamagedPlace]]]:
    claimed = np.ndarray((len(buffer) - 3,), ">i4", buffer, strides=(1,))[positions]
    same_size = claimed == part.sizes
    stale = [segment.base_offset + int(position) for position in part.positions[~same_size]]
    positions, part = positions[same_size], part.part(same_size)
    if not len(positions):
        yield None, [_stale(offset, split) for offset in stale]
        return
    headers = read_headers(buffer, positions, base)
    same = headers.valid & (headers.of("queue_id") == split.queue.queue_id)
    same &= headers.of("queue_offset") == part.numbers
    same &= headers.of("offset") == part.positions + segment.base_offset
    same &= _topic_is(buffer, headers, os.fsencode(split.queue.topic))
    stale += [segment.base_offset + int(position) for position in part.positions[~same]]
    damage = [_stale(offset, split) for offset in sorted(stale)]
    headers = headers.where(same)
    yield None, damage
    if not len(headers):
        return
    if plan.unwrap_batch and has_inner_batches(headers):
        buffer, headers = unwrap(
            buffer, headers, check_crc=plan.checks_crc, body_bytes_max=plan.body_bytes_max
        )
    offsets = dict(zip(headers.positions.tolist(), headers.of("offset").tolist(), strict=True))
    kept = plan.on_corrupt == "keep"
    for batch, bad in build_batches(buffer, headers, plan):
        yield batch, [DamagedPlace(offsets[row.position], 0 if kept else 1, row.reason) for row in bad]


def _topic_is(buffer: Buffer, headers: Headers, topic: bytes) -> Bools:
    """Which of the records name this topic."""
    result: Bools = (headers.topic_end - headers.topic_start) == len(topic)
    octets = np.frombuffer(buffer, np.uint8)
    for index, octet in enumerate(topic):
        result &= octets[np.minimum(headers.topic_start + index, len(octets) - 1)] == octet
    return result


def _log_stale(run: _Run, segment: Segment, plan: Plan, report: Report, where: str) -> None:
    for position, number in zip(run.positions.tolist(), run.numbers.tolist(), strict=True):
        reason = f"{where} says that message {number} begins here, where no record of its own can be"
        _log_losses(plan, report, segment.path, DamagedPlace(segment.base_offset + position, 0, reason))


def _stale(offset: int, split: QueueSplit) -> DamagedPlace:
    queue = split.queue
    return DamagedPlace(
        offset,
        0,
        f"an entry of queue {queue.queue_id} of {queue.topic} leads here, to another record or to none",
    )
