"""The bytes around a record in the log of DLedger mode: entry head, filler, index entry. Integers are big-endian.

    entry    i32 magic 1 | i32 size, head and body | i64 index | i64 term | i64 pos, its own log offset
             i32 channel 0 | i32 chain CRC 0 | i32 CRC-32 of the body | i32 body size | body             head: 48 bytes
    filler   i32 -1 | i32 bytes left in the file, these eight among them | zeros
    index    i32 magic | i64 pos | i32 size | i64 index | i64 term                                       32 bytes

The layout is DLedger's, and its broker opens files of such entries. It leaves the CRC at 0, which here means "not
checked". Magic 2, an entry without a record, is read and never written: DLedger 0.3 takes it for the end of the log.

One head at a time for those who read, `encode_entries` and `encode_index` by columns for those who write hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from msgspec import Struct as Fields
from zlib_ng.zlib_ng import crc32

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import Configuration, decode_configuration
from ropewalk.format.record import decode_record

MAGIC: Final = 1
MAGIC_NOOP: Final = 2
MAGIC_FILLER: Final = -1
HEAD_SIZE: Final = 48
INDEX_SIZE: Final = 32
UNREAD_AT: Final = 32
UNREAD_SIZE: Final = 8
"""Place and size of channel and chain CRC in a head: DLedger writes zeros, and neither reads them."""
FILLER_HEAD_SIZE: Final = 8
ENTRY_SIZE_MAX: Final = 4 << 20
"""The size of the buffer in which DLedger encodes an entry."""

_HEAD: Final = Struct(">iiqqqiiIi")
_INDEX: Final = Struct(">iqiqq")
_FILLER: Final = Struct(">ii")
_SIZE: Final = Struct(">i")

pack_head = _HEAD.pack
"""(MAGIC, size, index, term, pos, 0, 0, CRC of the body, body size) as bytes."""


class EntryHead(Fields, frozen=True, gc=False):
    """The head of one entry."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    crc: int
    """CRC-32 of the body; 0: not checked."""

    @property
    def body_size(self) -> int:
        """Bytes behind the head."""
        return self.size - HEAD_SIZE


def encode_head(index: int, term: int, pos: int, body: bytes | memoryview) -> bytes:
    """Return the head of an entry with this body."""
    size = len(body)
    return _HEAD.pack(MAGIC, HEAD_SIZE + size, index, term, pos, 0, 0, crc32(body), size)


def encode_entries(first: int, term: int, pos: int, bodies: Sequence[bytes | memoryview]) -> bytes:
    """Return whole entries side by side, the first of which has index `first` and stands at `pos`."""
    pack = _HEAD.pack
    pieces: list[bytes | memoryview] = []
    add = pieces.append
    index = first
    for body in bodies:
        size = len(body)
        add(pack(MAGIC, HEAD_SIZE + size, index, term, pos, 0, 0, crc32(body), size))
        add(body)
        index += 1
        pos += HEAD_SIZE + size
    return b"".join(pieces)


def decode_head(data: bytes | memoryview, position: int = 0) -> EntryHead:
    """Return the head at `position`. Raises `CorruptRecord` for what is no head of an entry, a filler's too."""
    if len(data) - position < HEAD_SIZE:
        raise CorruptRecord(f"an entry head has {HEAD_SIZE} bytes, here are {len(data) - position}")
    magic, size, index, term, pos, _channel, _chain, crc, body_size = _HEAD.unpack_from(data, position)
    if magic not in (MAGIC, MAGIC_NOOP):
        raise CorruptRecord(f"no entry begins with {magic}")
    if size != HEAD_SIZE + body_size or not HEAD_SIZE <= size <= ENTRY_SIZE_MAX:
        raise CorruptRecord(f"an entry of {size} bytes cannot have a body of {body_size}")
    if magic == MAGIC_NOOP and body_size:
        raise CorruptRecord(f"an entry without a record cannot have a body of {body_size} bytes")
    if index < 0 or term < 0 or pos < 0:
        raise CorruptRecord(f"an entry cannot have index {index}, term {term} and position {pos}")
    return EntryHead(magic, size, index, term, pos, crc)


def check_body(head: EntryHead, body: bytes | memoryview) -> None:
    """Raise `CorruptRecord` if the body is not the one that the head was written for. CRC 0 says nothing."""
    if len(body) != head.body_size:
        raise CorruptRecord(f"entry {head.index} has a body of {head.body_size} bytes, here are {len(body)}")
    if head.crc and crc32(body) != head.crc:
        raise CorruptRecord(f"the body of entry {head.index} at {head.pos} is not what was written")


def check_run(first: int, count: int, term: int, pos: int, data: bytes | memoryview) -> None:
    """Raise `CorruptRecord` unless the bytes are `count` whole entries, of which the first is as told. HOT.

    The sizes of all are followed; only the heads of the first and the last are read in full.
    """
    at = last = 0
    unpack, end = _SIZE.unpack_from, len(data)
    for _ in range(count):
        if end - at < HEAD_SIZE:
            raise CorruptRecord(f"{count} entries from {first} on do not end with their {end} bytes")
        last = at
        size = unpack(data, at + 4)[0]
        if size < HEAD_SIZE:
            raise CorruptRecord(f"an entry behind {first} has {size} bytes")
        at += size
    if at != end:
        raise CorruptRecord(f"{count} entries from {first} on have {at} bytes, here are {end}")
    for place, index in ((0, first), (last, first + count - 1)):
        head = decode_head(data, place)
        if (head.index, head.term, head.pos) != (index, term, pos + place):
            raise CorruptRecord(
                f"expected was entry {index} of term {term} for {pos + place}, here is {head.index} of term "
                f"{head.term} for {head.pos}"
            )


def encode_filler(size: int) -> bytes:
    """Return the filler of the last `size` bytes of a file."""
    return encode_filler_head(size).ljust(size, b"\0")


def encode_filler_head(size: int) -> bytes:
    """Return the head of the filler of the last `size` bytes of a file; the rest of it is zeros."""
    assert size >= FILLER_HEAD_SIZE, f"a filler has at least {FILLER_HEAD_SIZE} bytes, not {size}"
    return _FILLER.pack(MAGIC_FILLER, size)


def filler_size(data: bytes | memoryview, position: int = 0) -> int | None:
    """Return the size of the filler at `position`; None if there is none."""
    if len(data) - position < FILLER_HEAD_SIZE:
        return None
    magic, size = _FILLER.unpack_from(data, position)
    return size if magic == MAGIC_FILLER and size >= FILLER_HEAD_SIZE else None


class IndexEntry(Fields, frozen=True, gc=False):
    """The place of one entry in the log."""

    magic: int
    pos: int
    size: int
    index: int
    term: int


def encode_index(first: int, term: int, pos: int, sizes: Sequence[int]) -> bytes:
    """Return the index entries of entries of these sizes, side by side from `pos` on."""
    pack = _INDEX.pack
    pieces: list[bytes] = []
    for index, size in enumerate(sizes, first):
        pieces.append(pack(MAGIC, pos, size, index, term))
        pos += size
    return b"".join(pieces)


def decode_index(data: bytes | memoryview, position: int = 0) -> IndexEntry | None:
    """Return the index entry at `position`; None where nothing was written. Raises `CorruptRecord` otherwise."""
    if len(data) - position < INDEX_SIZE:
        raise CorruptRecord(f"an index entry has {INDEX_SIZE} bytes, here are {len(data) - position}")
    magic, pos, size, index, term = _INDEX.unpack_from(data, position)
    if not (magic or pos or size or index or term):
        return None
    if magic not in (MAGIC, MAGIC_NOOP) or size < HEAD_SIZE or min(pos, index, term) < 0:
        raise CorruptRecord(
            f"no index entry has magic {magic}, position {pos}, size {size}, index {index}, term {term}"
        )
    return IndexEntry(magic, pos, size, index, term)


def configuration_in(entry: bytes | memoryview) -> Configuration:
    """Return the configuration in an entry. Raises `CorruptRecord` for an entry that holds none."""
    return decode_configuration(decode_record(bytes(entry[HEAD_SIZE:])).body)
