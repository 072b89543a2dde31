"""Byte layouts of pending timers: wheel slots, timer-log units, and the timer checkpoint.

    slot, 32 bytes              unit, 52 bytes                        checkpoint, 7 x i64 in a page
     0 i64 time / precision      0 i32 52                              0 read time, ms
     8 i64 first unit            4 i64 previous unit of its slot       8 flushed end of the timer log
    16 i64 last unit            12 i32 magic: 1, +2 roll, +4 delete   16 queue offset
    24 i32 adds minus deletes   16 i64 write time, ms                 24 queue offset of the master
    28 i32 unused               24 i32 slot time - write time, ms     32 data version: state, time, counter
                                28 i64 log offset of the record
                                36 i32 size of the record
                                40 i32 Java hash of the real topic
                                44 i64 0

The checkpoint's page holds more at byte 64: "RWTH", a count, claims of 3 x i64 (read time, queue offset, end of the
commit log), CRC32C.

A position of -1 is none. A timer-log file ends in a *blank*: i32 bytes left, i64 0, u32 magic, zeros. The timer log is
a row of files of one size, each named by the position of its first byte; a unit stands in one file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import crc32c

DAY_SLOTS: Final = 86_400
SLOTS_TOTAL: Final = 7 * DAY_SLOTS
"""Slots that a timer may lie ahead; the wheel has twice as many."""
WHEEL_SLOTS: Final = 2 * SLOTS_TOTAL
BLANK_SLOTS: Final = 60
"""Slots that are kept free between the oldest and the youngest time."""

SLOT: Final = Struct(">qqqii")
SLOT_SIZE: Final = 32
WHEEL_SIZE: Final = WHEEL_SLOTS * SLOT_SIZE

UNIT: Final = Struct(">iqiqiqiiq")
UNIT_SIZE: Final = 52
MAGIC_DEFAULT: Final = 1
MAGIC_ROLL: Final = 2
MAGIC_DELETE: Final = 4
NONE: Final = -1

_BLANK: Final = Struct(">iqI")
_MAGIC_BLANK: Final = 0xCBD43194
BLANK_SIZE: Final = _BLANK.size

CHECKPOINT: Final = Struct(">7q")
CHECKPOINT_SIZE: Final = CHECKPOINT.size
_OLD_CHECKPOINT_SIZE: Final = 32  # before the data version was added

HISTORY_AT: Final = 64
HISTORY_MAX: Final = 100
"""Claims that are kept: one a flush, so some two minutes."""
_HISTORY: Final = Struct(">4sI")
_HISTORY_MAGIC: Final = b"RWTH"
_CLAIM: Final = Struct(">3q")
_CRC: Final = Struct(">I")

ENQUEUED_LATE: Final = (1 << 63) - 1
"""The enqueue time of a message whose time had come before it reached the wheel."""

assert (SLOT.size, UNIT.size) == (SLOT_SIZE, UNIT_SIZE)


class Slot(NamedTuple):
    """The slot of a second, or of another unit of the precision."""

    time: int
    """In units of the precision; 0: never used."""
    first: int
    last: int
    num: int
    magic: int = 0


class Unit(NamedTuple):
    """The entry of a timer in the timer log."""

    size: int
    prev: int
    magic: int
    write_ms: int
    delay_ms: int
    offset: int
    record_size: int
    topic_hash: int
    reserved: int = 0

    @property
    def slot_ms(self) -> int:
        """Return the time of the unit's slot, ms."""
        return self.write_ms + self.delay_ms

    @property
    def is_sound(self) -> bool:
        """Tell whether the fields can be those of a unit; one that a full disk cut off has no size of a record."""
        return self.size == UNIT_SIZE and 0 < self.magic <= 15 and self.offset >= 0 < self.record_size


def blank_of(remaining: int) -> bytes:
    """Return the blank that ends a timer-log file with so many bytes left."""
    return _BLANK.pack(remaining, 0, _MAGIC_BLANK)


def is_blank(magic: int) -> bool:
    """Tell whether the magic field of a unit is a blank's."""
    return magic & 0xFFFFFFFF == _MAGIC_BLANK


class Claim(NamedTuple):
    """A progress, and the end of the commit log in which all copies lie that it counts as delivered."""

    read_ms: int
    queue_offset: int
    log_end: int


def encode_history(claims: Sequence[Claim]) -> bytes:
    """Return the newest claims, the oldest first, as they stand behind the checkpoint in its page."""
    kept = claims[-HISTORY_MAX:]
    body = _HISTORY.pack(_HISTORY_MAGIC, len(kept)) + b"".join(_CLAIM.pack(*claim) for claim in kept)
    return body + _CRC.pack(crc32c.crc32c(body))


def decode_history(page: bytes | None) -> list[Claim]:
    """Read the claims of a checkpoint's page; none where another broker wrote it, which leaves them as they were."""
    if page is None or len(page) < HISTORY_AT + _HISTORY.size:
        return []
    magic, count = _HISTORY.unpack_from(page, HISTORY_AT)
    size = _HISTORY.size + count * _CLAIM.size
    body, crc = page[HISTORY_AT : HISTORY_AT + size], page[HISTORY_AT + size : HISTORY_AT + size + _CRC.size]
    if magic != _HISTORY_MAGIC or not 0 < count <= HISTORY_MAX or crc != _CRC.pack(crc32c.crc32c(body)):
        return []
    claims = [Claim(*fields) for fields in _CLAIM.iter_unpack(body[_HISTORY.size :])]
    known = Checkpoint.decode(page)
    return claims if claims[-1][:2] == (known.read_ms, known.queue_offset) else []


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of enqueueing and delivery, as the file and code 60 hold it. Times in ms."""

    read_ms: int = 0
    """Slots before this time are delivered."""
    log_end: int = 0
    """The timer log is flushed up to here, and the wheel holds its units."""
    queue_offset: int = 0
    """The next message of the timer topic to enqueue."""
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return the 56 bytes of file and answer."""
        return CHECKPOINT.pack(
            self.read_ms,
            self.log_end,
            self.queue_offset,
            self.master_queue_offset,
            self.state_version,
            self.version_ms,
            self.counter,
        )

    @classmethod
    def decode(cls, data: bytes | None) -> Checkpoint:
        """Read a file or answer; older brokers answer without the data version. Raises ValueError."""
        if data is None:
            return cls()
        if len(data) >= CHECKPOINT_SIZE:
            return cls(*CHECKPOINT.unpack_from(data))
        if len(data) == _OLD_CHECKPOINT_SIZE:
            return cls(*Struct(">4q").unpack(data))
        raise ValueError(f"a timer checkpoint has 56 or 32 bytes, this one {len(data)}")
