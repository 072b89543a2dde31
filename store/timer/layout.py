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

A position of -1 is none. A timer-log file ends in a *blank*: i32 bytes left, i64 0, u32 magic, zeros. The timer log is
a row of files of one size, each named by the position of its first byte; a unit stands in one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

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
        """Tell whether size and magic are those of a unit."""
        return self.size == UNIT_SIZE and 0 < self.magic <= 15


def blank_of(remaining: int) -> bytes:
    """Return the blank that ends a timer-log file with so many bytes left."""
    return _BLANK.pack(remaining, 0, _MAGIC_BLANK)


def is_blank(magic: int) -> bool:
    """Tell whether the magic field of a unit is a blank's."""
    return magic & 0xFFFFFFFF == _MAGIC_BLANK


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
