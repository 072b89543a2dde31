"""The results of reads: their statuses by RocketMQ's names, and the limits that they keep."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from store.queues.consume_queue import ConsumeQueue


class GetStatus(enum.Enum):
    """The outcome of a read, by RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"
    """No read ends so: the broker's own answer to a pull after an administrator moved the group's offset."""


def out_of_range(queue: ConsumeQueue | None, offset: int) -> tuple[GetStatus, int, int, int] | None:
    """Return status, next offset and bounds of a read at an offset without a message; None if there is one."""
    if queue is None:
        return GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0
    low, high = queue.min_offset, queue.readable
    if high == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0
    if offset < low:
        return GetStatus.OFFSET_TOO_SMALL, low, low, high
    if offset == high:
        return GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high
    if offset > high:
        return GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high
    return None


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of one pull, near the end of the log ("memory") and far behind it ("disk")."""

    memory_count: int = 32
    memory_bytes: int = 262_144
    disk_count: int = 8
    disk_bytes: int = 65_536
    memory_window: int = 8 << 30
    """The distance from the end of the log that counts as memory: an estimate, 40 % of RAM by default."""
    warm_window: int = 256 << 20
    """The distance from the end of the log within which the loop may touch the map."""
    catch_up_distance: int = 256 << 20
    """The distance from the end of the log within which a consumer keeps up with it."""


@dataclass(slots=True)
class GetResult:
    """The outcome of a read, and the messages that it found."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes | memoryview] = field(default_factory=list)
    """Records, whole, several to a piece; a view of the log is in the warm window and should leave soon."""
    count: int = 0
    """Messages found."""
    last_physical: int = 0
    """The log offset of the last entry that was read: how far behind the end this consumer is."""
    size: int = 0
    """Bytes of all records."""


class ResidentRead(NamedTuple):
    """The messages of a read that needed no disk."""

    pieces: list[bytes | memoryview]
    """Records, whole, several to a piece, in the order of the queue."""
    messages: int
    size: int
    last_physical: int
    """The log offset of the last one."""
