"""The 20-byte entry of a consume queue: where a queue's next record lies in the commit log.

    i64 offset | i32 size | i64 tags code

The entry of queue offset q stands at byte 20 q of the queue's files, so entries carry no number of their own.
`size` is the whole record's. The tags code is a sign-extended tag hash, except in the delay topic, where it
is the delivery time in ms.

Zeros mean "nothing written here", and a file that starts in the middle of a queue is filled up with
`PRE_BLANK`: neither is a message, see `is_message`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

ENTRY_SIZE: Final = 20

ENTRY: Final = Struct(">qiq")

pack = ENTRY.pack
"""(offset, size, tags_code) -> 20 bytes. HOT, so it is the struct's own method."""

PRE_BLANK: Final = pack(0, 0x7FFFFFFF, 0)


class QueueEntry(NamedTuple):
    """A decoded queue entry."""

    offset: int
    size: int
    tags_code: int


def unpack(buffer: bytes | bytearray | memoryview, position: int = 0) -> QueueEntry:
    """Decode the entry at a position; the caller knows that 20 bytes are there."""
    return QueueEntry._make(ENTRY.unpack_from(buffer, position))


def unpack_all(buffer: bytes | bytearray | memoryview) -> list[QueueEntry]:
    """Decode a run of whole entries."""
    return list(map(QueueEntry._make, ENTRY.iter_unpack(buffer)))


def is_message(offset: int, size: int) -> bool:
    """Return True for an entry that names a record, and is neither unwritten nor filling."""
    return offset >= 0 and 0 < size < 0x7FFFFFFF
