"""The bytes of a region's whole state: chunks in order, each with a checksum. Integers are big-endian.

    snapshot  HEAD, then chunks of tables, then END, and nothing behind it
    chunk     u32 number, from 0 on | u8 kind | u32 size | u32 CRC-32 of the rest of the chunk | columns
    columns   u32 rows | a column after the other: i64 of each row, or u32 size of each row and then the bytes of all

    HEAD      index, term, pos, clock, region id, epoch, origin | start, end, leader, as columns of one row
    REGIONS   region, epoch, id of the region that was cut from it (of region 0 alone)
    VALUES    key, value                      SEQUENCES  key, next number
    LOCKS     key, owner, token, end          SESSIONS   id, lowest unanswered seq, outcomes as columns of seq, outcome,
                                                         origin of the client
    END       how many chunks there are before it

Rows stand in the order of keys; sessions in the order in which they were used last. Columns are read and written
without a step of the interpreter for each field: a state has millions.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from struct import Struct as Layout
from typing import Any, Final

from msgspec import Struct

from ropewalk.errors import CorruptRecord

_HEADER: Final = Layout(">IBII")
_COUNT: Final = Layout(">I")
_HEAD_SIZE_MAX: Final = 64 << 10


class Kind(IntEnum):
    """The table that a chunk belongs to."""

    HEAD = 1
    VALUES = 2
    SEQUENCES = 3
    LOCKS = 4
    SESSIONS = 5
    REGIONS = 6
    END = 255


COLUMNS: Final = {
    Kind.HEAD: "qqqqqqqbbb",
    Kind.VALUES: "bb",
    Kind.SEQUENCES: "bq",
    Kind.LOCKS: "bbqq",
    Kind.SESSIONS: "qqbb",
    Kind.REGIONS: "qqq",
    Kind.END: "q",
}
OUTCOME_COLUMNS: Final = "qb"

Column = Sequence[Any]


class Head(Struct, frozen=True):
    """The point of the log at which a state was taken, and the region that has it."""

    index: int
    term: int
    pos: int
    """The log offset behind that entry."""
    clock_ms: int
    region: int
    epoch: int
    origin: int
    """The number of the entry with index 0."""
    start: bytes
    end: bytes
    leader: bytes


class Part(Struct, frozen=True):
    """Rows of a table, column by column."""

    kind: Kind
    columns: Sequence[Column]


# -- columns -----------------------------------------------------------------------------------------------


def encode_columns(form: str, columns: Sequence[Column]) -> bytes:
    """Return columns of equal length as bytes; in `form` a q is a column of i64, a b one of bytes."""
    rows = len(columns[0])
    assert len(form) == len(columns) and all(len(column) == rows for column in columns), form
    pieces: list[bytes] = [_COUNT.pack(rows)]
    for letter, column in zip(form, columns, strict=True):
        if letter == "q":
            pieces.append(_integers("q", column))
        else:
            pieces.append(_integers("I", map(len, column)))
            pieces += column
    return b"".join(pieces)


def decode_columns(form: str, data: bytes) -> list[list[Any]]:
    """Return columns. Raises `CorruptRecord`."""
    at = _COUNT.size
    if len(data) < at:
        raise _cut_off()
    (rows,) = _COUNT.unpack_from(data)
    columns: list[list[Any]] = []
    for letter in form:
        width = 8 if letter == "q" else 4
        if at + rows * width > len(data):
            raise _cut_off()
        numbers = array(letter if letter == "q" else "I", data[at : at + rows * width])
        if sys.byteorder == "little":
            numbers.byteswap()
        at += rows * width
        if letter == "q":
            columns.append(numbers.tolist())
            continue
        ends = list(accumulate(numbers, initial=at))
        if ends[-1] > len(data):
            raise _cut_off()
        columns.append([data[begin:end] for begin, end in pairwise(ends)])
        at = ends[-1]
    if at != len(data):
        raise CorruptRecord(f"{len(data) - at} bytes too many behind the columns of a snapshot")
    return columns


def _integers(code: str, column: Any) -> bytes:
    numbers = array(code, column)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _cut_off() -> CorruptRecord:
    return CorruptRecord("columns of a snapshot are cut off")


# -- chunks ------------------------------------------------------------------------------------------------


def encode_part(number: int, part: Part) -> bytes:
    """Return a chunk."""
    body = encode_columns(COLUMNS[part.kind], part.columns)
    header = _HEADER.pack(number, part.kind, len(body), 0)
    return _HEADER.pack(number, part.kind, len(body), _checksum(header, body)) + body


def head_part(head: Head) -> Part:
    """Return the first part of a snapshot."""
    return Part(Kind.HEAD, [[getattr(head, name)] for name in Head.__struct_fields__])


def end_part(count: int) -> Part:
    """Return the last part of a snapshot, behind `count` chunks."""
    return Part(Kind.END, [[count]])


class SnapshotReader:
    """A reader of untrusted bytes that come piece by piece, and hold the parts of a snapshot."""

    def __init__(self) -> None:
        self.head: Head | None = None
        """The head, as soon as it has come."""
        self._buffer = bytearray()
        self._number = 0
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Part]:
        """Return the parts of tables that are whole now; take all of them. Raises `CorruptRecord`."""
        self._buffer += data
        while (chunk := self._next_chunk()) is not None:
            kind, body = chunk
            columns = decode_columns(COLUMNS[kind], body)
            if self._number == 0:
                if kind is not Kind.HEAD or len(columns[0]) != 1:
                    raise CorruptRecord("a snapshot begins with its head")
                self.head = Head(*(column[0] for column in columns))
            elif kind is Kind.END:
                if columns != [[self._number]]:
                    raise CorruptRecord(
                        f"a snapshot ends behind {self._number} chunks, and not where its end says"
                    )
                self._ended = True
            elif kind is Kind.HEAD:
                raise CorruptRecord("a snapshot has one head")
            else:
                yield Part(kind, columns)
            self._number += 1

    def finish(self) -> Head:
        """Return the head of the snapshot, which has come as a whole. Raises `CorruptRecord`."""
        if not self._ended or self.head is None:
            raise CorruptRecord(f"a snapshot is cut off behind its chunk {self._number - 1}")
        return self.head

    def _next_chunk(self) -> tuple[Kind, bytes] | None:
        buffer = self._buffer
        if not buffer:
            return None
        if self._ended:
            raise CorruptRecord("there are bytes behind the end of a snapshot")
        if len(buffer) < _HEADER.size:
            return None
        number, code, size, checksum = _HEADER.unpack_from(buffer)
        if number != self._number or code not in COLUMNS:
            raise CorruptRecord(f"chunk {self._number} of a snapshot is damaged, or of no kind that is known")
        end = _HEADER.size + size
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[_HEADER.size : end])
        if checksum != _checksum(_HEADER.pack(number, code, size, 0), body):
            raise CorruptRecord(f"chunk {number} of a snapshot is damaged: its checksum is another one")
        del buffer[:end]
        return Kind(code), body


def head_of(data: bytes) -> Head:
    """Return the head of a snapshot, of which the beginning is enough. Raises `CorruptRecord`."""
    reader = SnapshotReader()
    next(reader.feed(data[:_HEAD_SIZE_MAX]), None)
    if reader.head is None:
        raise CorruptRecord("a snapshot begins with its head")
    return reader.head


def _checksum(header: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(header))
