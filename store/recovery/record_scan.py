"""A scan of one record where one should begin: every field is checked before it is believed.

The places of a start, a follower and the offline tools that ask "does a whole record begin here?" all ask here. What
is no record is told apart: a filler leads to the next segment, zeros are where nothing was written yet, and everything
else is bad. Which of these is damage is the verdict of `scan`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, EntryHead, check_body, decode_head, filler_size
from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.properties import find_property, tags_code_of
from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from store.log.segment import FILLER_HEADER_SIZE, Segment

# size, magic, crc, queue id, flag, queue offset, offset, sys flag, born time
HEAD = struct.Struct(">iIIiiqqiq")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_I16 = struct.Struct(">h")
_I8 = struct.Struct(">b")
BORN_V6, STORE_V6 = 0x10, 0x20
_TRANSACTION_MASK, _PREPARED, _ROLLBACK = 0xC, 0x4, 0xC
SIZE_MIN = 91


class ScannedRecord(NamedTuple):
    """A whole, valid record as recovery and dispatch see it; times in ms."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    indexed: bool
    ends_in_zero: bool
    """The last byte of its properties is zero. No checksum covers them, and the tail of a torn page is zeros."""

    @property
    def end(self) -> int:
        """The log offset behind the record, where the next place is."""
        return self.offset + self.size


class NoRecord(enum.Enum):
    """A place where no whole record begins."""

    FILLER = "the filler at the end of a segment"
    BLANK = "zeros"
    BAD = "bytes that are no valid record"


def scan_record(
    segment: Segment, position: int, delay_ms: Callable[[str], int] | None = None
) -> ScannedRecord | NoRecord:
    """Return the record whose place is at `position`, or the kind of bytes that stands there instead.

    Trusts no length before it is checked; touches the map, so may block.
    `delay_ms` says how long a level's messages wait: with it, what waits in the delay topic has its time as tag code.
    """
    if segment.placing.head_size:
        head = scan_entry(segment, position)
        if isinstance(head, NoRecord):
            return head
        position += HEAD_SIZE
        seen = _scan_bytes(segment, position, position + head.body_size, delay_ms)
        whole = isinstance(seen, ScannedRecord) and seen.size == head.body_size
        return seen if whole else NoRecord.BAD
    return _scan_bytes(segment, position, segment.size, delay_ms)


def scan_entry(segment: Segment, position: int) -> EntryHead | NoRecord:
    """Return the head of the entry at `position` of a log of entries, once its body has passed its CRC, if it has one.

    Trusts no length before it is checked; touches the map, so may block.
    """
    data, size_left = segment.map, segment.size - position
    if size_left < FILLER_HEADER_SIZE:
        return NoRecord.BAD
    first = data[position : position + HEAD_SIZE]
    if first.count(0) == len(first):
        return NoRecord.BLANK
    if filler_size(first) is not None:
        return NoRecord.FILLER if filler_size(first) == size_left else NoRecord.BAD
    try:
        head = decode_head(first)
        if head.pos != segment.base_offset + position or head.size > size_left - FILLER_HEADER_SIZE:
            return NoRecord.BAD
        check_body(head, data[position + HEAD_SIZE : position + head.size])
    except CorruptRecord:
        return NoRecord.BAD
    return head


def _scan_bytes(
    segment: Segment, position: int, limit: int, delay_ms: Callable[[str], int] | None
) -> ScannedRecord | NoRecord:
    """Return the record at `position`, which ends at `limit` or before."""
    data, size_left = segment.map, limit - position
    if size_left < 8:
        return NoRecord.BAD
    size, magic = _I32.unpack_from(data, position)[0], struct.unpack_from(">I", data, position + 4)[0]
    if magic == MAGIC_BLANK:
        return NoRecord.FILLER
    if size == 0 and magic == 0:
        return NoRecord.BLANK
    if magic not in (MAGIC_V1, MAGIC_V2) or not SIZE_MIN <= size <= size_left:
        return NoRecord.BAD
    _size, _magic, crc, queue_id, _flag, queue_offset, offset, sys_flag, _born = HEAD.unpack_from(
        data, position
    )
    if offset != segment.base_offset + position or queue_id < 0 or queue_offset < 0:
        return NoRecord.BAD
    at = position + 48 + (20 if sys_flag & BORN_V6 else 8)
    end = position + size
    body_at = at + 8 + (20 if sys_flag & STORE_V6 else 8) + 12
    if body_at + 4 > end:
        return NoRecord.BAD
    (store_timestamp,) = _I64.unpack_from(data, at)
    (body_size,) = _I32.unpack_from(data, body_at)
    topic_at = body_at + 4 + body_size
    if body_size < 0 or topic_at + 2 > end:
        return NoRecord.BAD
    if magic == MAGIC_V1:
        (topic_size,), topic_at = _I8.unpack_from(data, topic_at), topic_at + 1
    else:
        (topic_size,), topic_at = _I16.unpack_from(data, topic_at), topic_at + 2
    properties_at = topic_at + topic_size + 2
    if topic_size <= 0 or properties_at > end:
        return NoRecord.BAD
    (properties_size,) = _I16.unpack_from(data, properties_at - 2)
    if properties_size < 0 or properties_at + properties_size != end:
        return NoRecord.BAD
    body = data[body_at + 4 : body_at + 4 + body_size]
    if body_size and crc32(body) & 0x7FFFFFFF != crc:
        return NoRecord.BAD
    try:
        topic = data[topic_at : topic_at + topic_size].decode()
    except UnicodeDecodeError:
        return NoRecord.BAD
    if "/" in topic or "\0" in topic or topic in (".", ".."):
        return NoRecord.BAD  # no broker took such a name, and the topic is about to become a directory
    text = data[properties_at:end]
    code = 0
    if b"TAGS\x01" in text:
        code = tags_code_of(text)
    if delay_ms is not None and topic == SCHEDULE_TOPIC:
        delay = delay_ms((find_property(text, b"DELAY") or b"").decode(errors="replace"))
        code = store_timestamp + delay if delay else code
    return ScannedRecord(
        offset, size, topic, queue_id, queue_offset, code, store_timestamp,
        sys_flag & _TRANSACTION_MASK not in (_PREPARED, _ROLLBACK),
        properties_size > 0 and data[end - 1] == 0,
    )  # fmt: skip
