"""The key index: hash files that find records by `topic#key`, laid out as RocketMQ lays them out.

    header 40 bytes | slots of i32 | items of 20 bytes

    0  i64 begin time, ms         24 i64 offset of the last record indexed
    8  i64 end time, ms           32 i32 slots in use
   16  i64 offset of the first    36 i32 number of the next item, 1 in an empty file

    item: i32 hash of the key | i64 offset of its record | i32 seconds since the begin time | i32 previous item

A slot holds the number of the newest item of its chain, an item the number of the one before it; 0 ends a chain, so
item 0 is never used. Keys themselves are not stored: whoever searches must look whether a record really has the key.
How many slots and items a file has stands nowhere in it, see `Geometry`.

A record is indexed under its UNIQ_KEY, then under each word of its KEYS, then under its TAGS (marked `T#`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Final

from ropewalk.format.properties import java_hash

__all__ = [
    "HEADER_SIZE",
    "ITEM",
    "ITEM_SIZE",
    "SLOT",
    "SLOT_SIZE",
    "TAG_MARK",
    "Geometry",
    "IndexHeader",
    "key_hash",
    "record_hashes",
    "time_difference",
]

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_SIZE: Final = 20
SLOT: Final = Struct(">i")
ITEM: Final = Struct(">iqii")
TAG_MARK: Final = "T#"
"""Stands between topic and tag, so that a tag is not found as a key."""

_HEADER: Final = Struct(">qqqqii")
_SECONDS_MAX: Final = 0x7FFFFFFF
_MASK: Final = 0xFFFFFFFF
_KEYED: Final = re.compile(rb"(?:^|\x02)(UNIQ_KEY|KEYS|TAGS)\x01([^\x02]+)")
_CHUNK: Final = 20  # of a client's unique key, these first characters hardly change from message to message


@dataclass(frozen=True, slots=True)
class Geometry:
    """Slots and items of every file of an index; a wrong geometry misreads the files without a sign."""

    slots: int = 5_000_000
    items: int = 20_000_000
    """Room for one less than this, as item 0 is never used."""

    @property
    def file_size(self) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * self.items

    def slot_position(self, slot: int) -> int:
        return HEADER_SIZE + SLOT_SIZE * slot

    def item_position(self, item: int) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slots + ITEM_SIZE * item

    def holds(self, header: IndexHeader) -> bool:
        """Return True for a header that can belong to a file of this geometry."""
        return (
            1 <= header.next_item <= self.items
            and 0 <= header.slots_used <= min(self.slots, header.next_item - 1)
            and 0 <= header.begin_offset <= header.end_offset
            and header.begin_timestamp >= 0
            and header.end_timestamp >= 0
        )


@dataclass(slots=True)
class IndexHeader:
    """The header of an index file, its first 40 bytes. Times in ms."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    """Where the last record indexed begins, not where it ends."""
    slots_used: int = 0
    next_item: int = 1

    def encode(self) -> bytes:
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_item,
        )

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        """Decode the first 40 bytes of a file; the caller knows that they are there."""
        header = cls(*_HEADER.unpack_from(data))
        header.next_item = max(
            header.next_item, 1
        )  # a file that was created and not written to yet is all zeros
        return header

    def following(self) -> IndexHeader:
        """Return the header of the file behind this full one, before an item is in it."""
        end_ms, end = self.end_timestamp, self.end_offset
        return IndexHeader(end_ms, end_ms, end, end)


def time_difference(store_timestamp: int, begin_timestamp: int) -> int:
    """Return an item's third field: whole seconds since the file's begin time, never negative."""
    if begin_timestamp <= 0 or store_timestamp <= begin_timestamp:
        return 0
    return min((store_timestamp - begin_timestamp) // 1000, _SECONDS_MAX)


def key_hash(topic: str, key: str) -> int:
    """Return the hash under which a key of a topic is indexed: 31 bits."""
    return _absolute(java_hash(f"{topic}#{key}") & _MASK)


def record_hashes(topic: bytes, properties: bytes) -> list[int]:
    """Return the hashes under which a stored record is indexed, in order. HOT: 3 us for the usual two.

    Text that is no UTF-8 is indexed under what the original's decoder makes of it.
    """
    found = dict(_KEYED.findall(properties))  # of several of one name the last one counts
    hashes: list[int] = []
    start = _state_behind(topic)
    if (unique := found.get(b"UNIQ_KEY")) is not None:
        hashes.append(_absolute(_extend(start, unique)))
    if (keys := found.get(b"KEYS")) is not None:
        hashes += [_absolute(_extend(start, key)) for key in keys.split(b" ") if key]
    if (tags := found.get(b"TAGS")) is not None:
        hashes.append(_tag_hash(topic, tags))
    return hashes


def _absolute(state: int) -> int:
    """Java's absolute value of a hash, 0 for the one that has none."""
    return state if state < 0x80000000 else (0x100000000 - state) & 0x7FFFFFFF


@lru_cache(maxsize=4096)
def _state_behind(topic: bytes) -> int:
    """The hash as it stands behind `topic#`; what follows is added to it."""
    return _extend(0, topic + b"#")


@lru_cache(maxsize=4096)
def _tag_hash(topic: bytes, tags: bytes) -> int:
    return _absolute(_extend(_state_behind(topic), TAG_MARK.encode() + tags))


# 31**n for the characters of a text counted from its end; reduced, so that no sum outgrows a machine word.
_POWERS: Final[tuple[int, ...]] = tuple(pow(31, n, 1 << 32) for n in range(63, -1, -1))
_POWERS_OF: Final = tuple(_POWERS[64 - length :] for length in range(65))


def _extend(state: int, text: bytes) -> int:
    """Java's hash of what `state` stands for with `text` behind it, as an unsigned value."""
    if not text.isascii():
        for unit in _units(text):
            state = (31 * state + unit) & _MASK
        return state
    length = len(text)
    if length <= _CHUNK:
        tail: int = sum(map(mul, text, _POWERS_OF[length]))
        return (state * _POWER[length] + tail) & _MASK
    if length <= 64:
        rest = length - _CHUNK
        head = _head_hash(state, text[:_CHUNK])
        tail = sum(map(mul, text[_CHUNK:], _POWERS_OF[rest]))
        return (head * _POWER[rest] + tail) & _MASK
    for unit in text:
        state = (31 * state + unit) & _MASK
    return state


_POWER: Final[tuple[int, ...]] = tuple(pow(31, n, 1 << 32) for n in range(65))


@lru_cache(maxsize=4096)
def _head_hash(state: int, head: bytes) -> int:
    tail: int = sum(map(mul, head, _POWERS_OF[_CHUNK]))
    return (state * _POWER[_CHUNK] + tail) & _MASK


def _units(text: bytes) -> Iterator[int]:
    data = text.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    return (data[at] << 8 | data[at + 1] for at in range(0, len(data), 2))
