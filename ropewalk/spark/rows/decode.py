"""Decode a stretch of a commit log, or the body of a pull's answer, into Arrow record batches. No Spark in here.

Finding where records begin is a loop over sizes, the only step in plain Python; everything else happens for
thousands of records at once (`headers`, `columns`). Work goes in pieces of at most `Plan.batch_rows` rows and
`batch_bytes` bytes, because larger ones fall out of the processor's cache and are slower.

    plain    record | record | ... | blank                             blank: i32 bytes left | magic
    dledger  entry head of 48 bytes, record | entry head, record | ... blank: i32 -1 | i32 bytes left

A record that does not fit is *damage*: a place and a reason. Reading goes on at the next place that looks like a
record from all sides: its magic, its size, the log offset it names, and parts that fill it. Zeros up to the limit are
no damage; they are where the writer stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa

from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord
from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, decode_record
from ropewalk.spark.rows.columns import Plan, build_batches
from ropewalk.spark.rows.headers import Buffer, Headers, Ints, as_array, read_headers, same_sizes
from ropewalk.spark.rows.inner_batch import has_inner_batches, unwrap
from ropewalk.spark.rows.schema import Selection

__all__ = [
    "DLEDGER_HEAD_SIZE",
    "DamagedPlace",
    "Decoded",
    "Ended",
    "Piece",
    "SegmentDecoder",
    "decode_pull",
    "decode_segment",
    "find_record",
    "looks_like_record",
]

DLEDGER_HEAD_SIZE: Final = 48

_SIZE: Final = Struct(">i")
_FRAME: Final = Struct(">iI")
_ENTRY_FRAME: Final = Struct(">ii")
_ENTRY: Final = Struct(">iiqqq")
_I64: Final = Struct(">q")
_NORMAL: Final = 1
_NOOP: Final = 2
_ENTRY_BLANK: Final = -1
_STEPS: Final = 64
"""Records that are walked over one by one before it is asked whether all have one size."""
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


class Ended(Enum):
    """The reason why a decoder stopped."""

    LIMIT = "limit"  # the next record begins at or behind the end that was asked for
    BLANK = "blank"  # the log goes on in the next file
    ZEROS = "zeros"  # nothing was written from here to the limit
    SHORT = "short"  # the next record is in the file, and not all of it in the buffer
    DAMAGE = "damage"  # nothing readable was found behind the last damage


@dataclass(frozen=True, slots=True)
class DamagedPlace:
    """Damaged bytes: a stretch without a whole record, or a record whose body alone is damaged."""

    offset: int
    """In the log; in the buffer where there is no log."""
    size: int
    """Bytes passed over; 1 for a record whose body alone is damaged, 0 where its row was kept."""
    reason: str

    def __str__(self) -> str:
        return f"offset {self.offset}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of a decoder: rows, damage, or both. `end` is the log offset that was reached."""

    batch: pa.RecordBatch | None
    damage: tuple[DamagedPlace, ...]
    end: int


@dataclass(slots=True)
class Decoded:
    """The result of `decode_segment`."""

    batches: list[pa.RecordBatch]
    damage: list[DamagedPlace]
    ended: Ended
    next_position: int
    """Of the buffer: where decoding stopped."""
    has_compressed: bool = False
    """Whether the body of any record is compressed."""

    @property
    def row_count(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def decode_segment(
    buffer: Buffer,
    base_offset: int | None,
    start: int = 0,
    end: int | None = None,
    *,
    selection: Selection | None = None,
    plan: Plan | None = None,
    log_format: str = "plain",
    file_size: int | None = None,
) -> Decoded:
    """Decode all records that begin in `[start, end)` of a buffer; `start` must be where a record begins.

    `base_offset` is the log offset of the buffer's first byte, and `file_size` how far the file reaches from there,
    if the buffer holds only a part of it. Give a `plan`, or just a `selection` of columns.
    """
    if plan is None:
        plan = Plan(selection or Selection(()))
    decoder = SegmentDecoder(buffer, base_offset, start, end, plan, log_format, file_size)
    batches: list[pa.RecordBatch] = []
    damage: list[DamagedPlace] = []
    for piece in decoder.pieces():
        if piece.batch is not None:
            batches.append(piece.batch)
        damage += piece.damage
    return Decoded(batches, damage, decoder.ended, decoder.position, decoder.has_compressed)


def decode_pull(body: Buffer, plan: Plan) -> Decoded:
    """Decode the records of a pull's answer, back to back; their offsets are of a log that is not here.

    A record cut short at the end, which no broker sends, is damage.
    """
    decoded = decode_segment(body, None, plan=plan)
    if decoded.ended is not Ended.LIMIT and not decoded.damage:
        at = decoded.next_position
        decoded.damage.append(DamagedPlace(at, len(body) - at, "what follows is no record"))
    return decoded


class SegmentDecoder:
    """A decoder of a buffer piece by piece; `position` and `ended` say how far it came, and why no further."""

    def __init__(
        self,
        buffer: Buffer,
        base_offset: int | None,
        start: int,
        end: int | None,
        plan: Plan,
        log_format: str = "plain",
        file_size: int | None = None,
    ) -> None:
        assert log_format in ("plain", "dledger"), log_format
        self.buffer = buffer
        self.base_offset = base_offset
        self.position = start
        self.end = len(buffer) if end is None else end
        self.plan = plan
        self.file_size = len(buffer) if file_size is None else file_size
        self.is_dledger = log_format == "dledger"
        self.ended = Ended.LIMIT
        self.has_compressed = False
        """Whether the body of any record so far was compressed."""

    def seek(self) -> bool:
        """Move to the first record at or behind `position`, for a start in the middle of anything."""
        found = find_record(
            self.buffer,
            self.position,
            self.end,
            self.base_offset,
            is_dledger=self.is_dledger,
            file_size=self.file_size,
        )
        if found is not None:
            self.position = found
        return found is not None

    def needed(self) -> int:
        """Return, after `SHORT`, how many bytes the next record or entry claims; 8 where not even its size is in the
        buffer.
        """
        at = self.position + (4 if self.is_dledger else 0)
        if len(self.buffer) < at + 4:
            return 8
        return max(8, int.from_bytes(memoryview(self.buffer)[at : at + 4], "big", signed=True))

    def pieces(self) -> Iterator[Piece]:
        """Decode up to the end. After a piece with damage the caller may simply stop."""
        for headers, damage in self.steps():
            if headers is not None:
                yield from self._build(headers)
            if damage is not None:
                yield Piece(None, (damage,), (self.base_offset or 0) + self.position)

    def steps(self) -> Iterator[tuple[Headers | None, DamagedPlace | None]]:
        """Yield the headers of the records piece by piece, and the damage between them; no columns are made."""
        walk = self._walk_entries if self.is_dledger else self._walk_records
        while True:
            positions, position, why = walk()
            headers = None
            if len(positions):
                headers = read_headers(self.buffer, positions, self.base_offset)
                if not headers.valid.all():
                    first = int(np.flatnonzero(~headers.valid)[0])
                    position = int(positions[first]) - (DLEDGER_HEAD_SIZE if self.is_dledger else 0)
                    why = Ended.DAMAGE
                    headers = headers.where(np.arange(len(positions)) < first)
            self.position = position
            if headers is not None and len(headers):
                yield headers, None
            if why is None:
                continue
            if why is Ended.DAMAGE and not self._only_zeros(position):
                yield None, self._pass_over(position)
                if self.ended is Ended.DAMAGE:
                    return
                continue
            self.ended = Ended.ZEROS if why is Ended.DAMAGE else why
            return

    def _build(self, headers: Headers) -> Iterator[Piece]:
        buffer, end = self.buffer, (self.base_offset or 0) + self.position
        self.has_compressed |= bool((headers.of("sys_flag") & MessageSysFlag.COMPRESSED).any())
        if self.plan.unwrap_batch and has_inner_batches(headers):
            buffer, headers = unwrap(
                buffer, headers, check_crc=self.plan.checks_crc, body_bytes_max=self.plan.body_bytes_max
            )
        for batch, bad in build_batches(buffer, headers, self.plan):
            damage: tuple[DamagedPlace, ...] = ()
            if bad:
                size = 0 if self.plan.on_corrupt == "keep" else 1
                offsets = dict(zip(headers.positions.tolist(), headers.of("offset").tolist(), strict=True))
                damage = tuple(DamagedPlace(offsets[row.position], size, row.reason) for row in bad)
            yield Piece(batch, damage, end)

    # -- where records begin -------------------------------------------------------------------------

    def _walk_records(self) -> tuple[Ints, int, Ended | None]:
        """Positions of the next records by their sizes alone; where that leads; None if it can go on from there."""
        found: list[int] = []
        before: list[Ints] = []
        append = found.append
        unpack = _SIZE.unpack_from
        buffer, position = self.buffer, self.position
        length = len(buffer)
        end = min(self.end, length - 7)
        # HOT, 0.1 us a record: so the magics are looked at when the walk is over, and whether its last record reaches
        # beyond the buffer too. What is no record leads somewhere, and no further than this piece.
        bound = min(end, position + self.plan.batch_bytes)
        left, size = self.plan.batch_rows, 0
        while left > 0:
            steps = min(left, _STEPS)
            for _ in repeat(None, steps):
                if position >= bound:
                    break
                append(position)
                (size,) = unpack(buffer, position)
                if size < RECORD_SIZE_MIN:
                    break
                position += size
            else:
                left -= steps
                equal = same_sizes(buffer, found, position, min(left, -((position - bound) // size)))
                before += (as_array(found), np.arange(position, position + equal * size, size))
                found.clear()
                position += equal * size
                left -= equal
                continue
            break
        starts = np.concatenate((*before, as_array(found)))
        if not len(starts):
            return starts, position, self._at_the_end(position)
        magics = np.ndarray((length - 7,), ">u4", buffer, 4, (1,))[starts]
        others = np.flatnonzero((magics != MAGIC_V1) & (magics != MAGIC_V2))
        if len(others):
            first = int(others[0])
            reason = Ended.BLANK if magics[first] == MAGIC_BLANK else Ended.DAMAGE
            return starts[:first], int(starts[first]), reason
        if size < RECORD_SIZE_MIN:
            return starts[:-1], int(starts[-1]), Ended.DAMAGE
        if position > length:
            short = position <= self.file_size
            return starts[:-1], int(starts[-1]), Ended.SHORT if short else Ended.DAMAGE
        return starts, position, self._at_the_end(position) if position >= end else None

    def _walk_entries(self) -> tuple[Ints, int, Ended | None]:
        """Return the same over DLedger entries: positions of the records in them, and the end of the last entry."""
        found: list[int] = []
        position, why = self._step_over_entries(found)
        return as_array(found), position, why

    def _step_over_entries(self, found: list[int]) -> tuple[int, Ended | None]:
        buffer, position = self.buffer, self.position
        length = len(buffer)
        end = min(self.end, length - 7)
        stop = position + self.plan.batch_bytes
        for _ in range(self.plan.batch_rows):
            if position >= end:
                return position, self._at_the_end(position)
            magic, size = _ENTRY_FRAME.unpack_from(buffer, position)
            if magic == _ENTRY_BLANK:
                return position, Ended.BLANK
            smallest = DLEDGER_HEAD_SIZE + (RECORD_SIZE_MIN if magic == _NORMAL else 0)
            if magic not in (_NORMAL, _NOOP) or size < smallest:
                return position, Ended.DAMAGE
            after = position + size
            if after > length:
                return position, Ended.SHORT if after <= self.file_size else Ended.DAMAGE
            if magic == _NORMAL:
                record = position + DLEDGER_HEAD_SIZE
                record_size, _ = _FRAME.unpack_from(buffer, record)
                if record_size != size - DLEDGER_HEAD_SIZE:
                    return position, Ended.DAMAGE
                found.append(record)
            position = after
            if position >= stop:
                break
        return position, None

    def _at_the_end(self, position: int) -> Ended:
        if position >= self.end or position == self.file_size:
            return Ended.LIMIT
        # Fewer than eight bytes are left, of the buffer or of the file; a file ends in a blank of at least eight.
        return Ended.SHORT if len(self.buffer) < self.file_size else Ended.DAMAGE

    # -- damage --------------------------------------------------------------------------------------

    def _only_zeros(self, position: int) -> bool:
        """Whether nothing but zeros stands from here to the end that was asked for."""
        view = memoryview(self.buffer)[position : min(self.end, len(self.buffer))]
        step = 1 << 20
        return all(
            not np.frombuffer(view[at : at + step], np.uint8).any() for at in range(0, len(view), step)
        )

    def _pass_over(self, position: int) -> DamagedPlace:
        """Tell the damage at a position, and go on behind it if anything readable follows."""
        reason = self._why_unreadable(position)
        limit = min(self.end, len(self.buffer))
        found = find_record(
            self.buffer,
            position + 1,
            limit,
            self.base_offset,
            is_dledger=self.is_dledger,
            file_size=self.file_size,
        )
        if found is None:
            self.ended = Ended.DAMAGE
            self.position = limit
        else:
            self.position = found
        return DamagedPlace((self.base_offset or 0) + position, self.position - position, reason)

    def _why_unreadable(self, position: int) -> str:
        at = position + DLEDGER_HEAD_SIZE if self.is_dledger else position
        if self.is_dledger:
            magic, size = _ENTRY_FRAME.unpack_from(self.buffer, position)
            if magic not in (_NORMAL, _NOOP):
                return f"no log entry begins here (magic {magic})"
            if size < DLEDGER_HEAD_SIZE + RECORD_SIZE_MIN or position + size > self.file_size:
                return f"a log entry that claims {size} bytes"
        if len(self.buffer) - at < 8:
            return f"{len(self.buffer) - at} bytes at the end of the file are no record"
        try:
            record = decode_record(memoryview(self.buffer), at, check_crc=False)
        except CorruptRecord as exc:
            return str(exc).partition(": ")[2]
        if self.base_offset is not None and record.offset != self.base_offset + at:
            return f"a record that says it belongs at offset {record.offset}"
        return "a record whose parts do not fit"


def looks_like_record(
    buffer: Buffer,
    position: int,
    base_offset: int | None,
    *,
    is_dledger: bool = False,
    file_size: int | None = None,
) -> bool:
    """Return whether a record (or entry) begins here: magic, size, the offset it names, and parts that fill it exactly.

    Not asked is whether another follows: a whole record in front of a damaged one is a record. Of one that reaches
    beyond the buffer, and not beyond the file, the parts are taken on trust.
    """
    length = len(buffer)
    record = position + DLEDGER_HEAD_SIZE if is_dledger else position
    if position < 0 or record + RECORD_SIZE_MIN > length:
        return False
    size, magic = _FRAME.unpack_from(buffer, record)
    end = record + size
    if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_SIZE_MIN:
        return False
    if end > (length if file_size is None else file_size):
        return False
    if base_offset is not None and _I64.unpack_from(buffer, record + 28)[0] != base_offset + record:
        return False
    if is_dledger:
        entry_magic, entry_size, _, _, entry_position = _ENTRY.unpack_from(buffer, position)
        if entry_magic != _NORMAL or entry_size != size + DLEDGER_HEAD_SIZE:
            return False
        if base_offset is not None and entry_position != base_offset + position:
            return False
    return end > length or bool(read_headers(buffer, np.array([record], np.int64), None).valid[0])


def find_record(
    buffer: Buffer,
    start: int,
    end: int,
    base_offset: int | None,
    *,
    is_dledger: bool = False,
    file_size: int | None = None,
) -> int | None:
    """Return the first position in `[start, end)` where a record, or a DLedger entry, begins; None if there is none."""
    distance = 4 + (DLEDGER_HEAD_SIZE if is_dledger else 0)
    view = memoryview(buffer)
    at = start + distance
    while True:
        found = _MAGIC.search(view, at, min(end + distance + 3, len(view)))
        if found is None:
            return None
        candidate = found.start() - distance
        if candidate >= end:
            return None
        if looks_like_record(buffer, candidate, base_offset, is_dledger=is_dledger, file_size=file_size):
            return candidate
        at = found.start() + 1
