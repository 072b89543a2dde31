"""Pack the key index of a log: one file at a time, from its items in the order of the log.

    item n of a file: hash, log offset, seconds since the file began, the item before it in its slot

Everything but the hashes follows from them: slots and chains by sorting stably by slot. A file begins when its first
item was stored, but that item itself counts from the end of the file before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ropewalk.format.index import HEADER_SIZE, Geometry, IndexHeader, record_hashes
from ropewalk.spark.jobs.records.columns import is_indexed, property_texts, slices
from ropewalk.spark.jobs.records.log_files import Bytes
from ropewalk.spark.jobs.records.scan import Ints, Records

ITEM: Final = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
NAME_DIGITS: Final = 17
_SECONDS_MAX: Final = 0x7FFFFFFF


@dataclass(slots=True)
class Items:
    """The index items of records, one array for each field, in the order of the log."""

    hashes: Ints
    offset: Ints
    stored: Ints
    records: int
    """How many records were looked at that belong into an index, keys or not."""
    last_offset: int
    """Of the last of them; -1 if there was none."""


def items_of(data: Bytes, records: Records) -> Items:
    """Return the items of scanned records. Measured: 3 us a record, because numpy does not hash UTF-16 units."""
    records = records.select(is_indexed(records))
    topics = slices(data, records.topic_at, records.topic_size).to_pylist()
    texts = property_texts(data, records).to_pylist()
    found = [record_hashes(topic, text) for topic, text in zip(topics, texts, strict=True)]
    counts = np.fromiter(map(len, found), np.int64, len(found))
    hashes = np.fromiter((value for values in found for value in values), np.int64, int(counts.sum()))
    return Items(
        hashes,
        np.repeat(records.offset, counts),
        np.repeat(records.stored, counts),
        len(records),
        int(records.offset[-1]) if len(records) else -1,
    )


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Bytes of an index file at a position; between the parts of a file are zeros."""

    position: int
    data: bytes


def pack_index(
    hashes: Ints, offsets: Ints, stored: Ints, geometry: Geometry, before: IndexHeader | None
) -> Iterator[IndexPart]:
    """Yield the parts of one file; `before` is the header of the file before, None for the first.

    The caller gives as many items as the file has room for, fewer only in the last.
    """
    count = len(hashes)
    assert count < geometry.items, (count, geometry)
    header = before.following() if before is not None else IndexHeader()
    if count:
        begins = np.full(count, int(stored[0]), np.int64)
        begins[0] = header.begin_timestamp
        seconds = np.minimum((stored - begins) // 1000, _SECONDS_MAX)
        seconds[(begins <= 0) | (stored <= begins)] = 0
        slot = hashes % geometry.slots
        order = np.argsort(slot, kind="stable")
        same = slot[order][1:] == slot[order][:-1]
        previous = np.zeros(count, np.int64)
        previous[order[1:][same]] = order[:-1][same] + 1
        items = np.empty(count, ITEM)
        items["hash"], items["offset"], items["seconds"], items["previous"] = (
            hashes,
            offsets,
            seconds,
            previous,
        )
        slots = np.zeros(geometry.slots, ">i4")
        slots[slot[order]] = order + 1  # the last of a slot stays
        header = IndexHeader(
            int(stored[0]), int(stored[-1]), int(offsets[0]), int(offsets[-1]),
            count - int(same.sum()), count + 1,
        )  # fmt: skip
        yield IndexPart(HEADER_SIZE, slots.tobytes())
        yield IndexPart(geometry.item_position(1), items.tobytes())
    yield IndexPart(0, header.encode())


def index_name(stored_ms: int, before: str) -> str:
    """Return a file's name: when its first record was stored, local time to the millisecond, and later than the one
    before.
    """
    name = time.strftime("%Y%m%d%H%M%S", time.localtime(stored_ms / 1000)) + f"{stored_ms % 1000:03d}"
    return name if name > before else f"{int(before) + 1:0{NAME_DIGITS}d}"
