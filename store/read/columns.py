"""Cut the records of one answer out of the log, and prove them, by columns instead of one by one.

    entries   offset | size | tags      three columns, of one `unpack`
    span      bytes of the log that may be read now: a segment's map, or a block of `store.read.log_blocks`
    body      the records of the answer side by side: one slice of neighbours, or one join of slices
    proof     size, magic, queue, queue offset, log offset and topic of all records in `body`, a comparison a column

Where a record begins is what its queue entry says, and nothing else: records of other queues, or heads that belong
to no record, may stand in between. A record that is not what its entry says makes the whole answer `None`, and the
slow way (`store.read.one_by_one`) finds out which one; a test has both ways read the same stores.

Neighbours in bytes that this process wrote, or looked at when it started, are proved by their first and last record:
records stand in the log in the order of their queue, so what lies between number n and number n + 31 of a queue, and
is just as long as the entries of 32 messages say, are these messages.

Measured (us for 32 records of one size that lie apart, of many sizes, and side by side in the window): 13, 18, 3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate, repeat
from mmap import mmap
from struct import Struct
from typing import Any, Final

from ropewalk.format.record import MAGIC_V1

RECORD_SIZE_MIN: Final = 91
IDENTITY: Final = Struct(">i8xi4xqq")
"""Of a record: size at 0, queue id at 12, queue offset at 20, log offset at 28."""
VIEW_MIN: Final = 16 << 10
"""A smaller run is copied: that is cheaper than an entry of its own in the kernel's vector."""
_UNIFORM_MIN: Final = 8
"""With fewer records of one size, a layout for all of them costs more to make than it saves."""
_HOST_BITS: Final = 0x30
"""Bits of the sys flag that say which hosts are IPv6 and twelve bytes longer."""
_BODY_SIZE_AT: Final = {0: 84, 0x10: 96, 0x20: 96, 0x30: 108}
_V1_LAST: Final = MAGIC_V1 & 0xFF


def _head_format(body_size_at: int) -> str:
    """Size, magic, queue id, queue offset, log offset, sys flag and body size of a record."""
    return f"ii4xi4xqqi{body_size_at - 40}xi"


_HEADS: Final = {bits: Struct(">" + _head_format(at)).unpack_from for bits, at in _BODY_SIZE_AT.items()}
_first_head = _HEADS[0]
_identity = IDENTITY.unpack_from


@lru_cache(maxsize=256)
def _columns_of(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return Struct(">" + count * "qi8x").unpack


def entry_columns(entries: bytes, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the log offsets and the record sizes of packed queue entries. HOT."""
    fields = _columns_of(count)(entries)
    return fields[::2], fields[1::2]


def cut_records(
    data: mmap | bytes,
    base: int,
    queue_id: int,
    topic: bytes,
    numbers: range | list[int],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    *,
    in_window: bool,
) -> bytes | memoryview | None:
    """Return these records side by side; None if one of them is not what its entry says. HOT.

    `data` holds the log from offset `base` on, at least up to the end of the last record, which is the one furthest
    on. A long run `in_window` is a view of the map, everything else a copy.
    """
    first = offsets[0]
    size = offsets[-1] + sizes[-1] - first
    if size == sum(sizes):
        start = first - base
        if in_window:
            last = offsets[-1] - base
            if not (
                _identity(data, start) == (sizes[0], queue_id, numbers[0], first)
                and _identity(data, last) == (sizes[-1], queue_id, numbers[-1], offsets[-1])
                and numbers[-1] - numbers[0] == len(sizes) - 1
            ):
                return None
            return (memoryview(data) if size >= VIEW_MIN else data)[start : start + size]
        body = data[start : start + size]
    else:
        body = b"".join([data[at - base : at - base + size] for at, size in zip(offsets, sizes, strict=True)])
    return body if _is_proved(body, queue_id, topic, numbers, offsets, sizes) else None


def _is_proved(
    body: bytes,
    queue_id: int,
    topic: bytes,
    numbers: range | list[int],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
) -> bool:
    """Check that each record of `body` is the one that its entry names, and of this topic. HOT."""
    count, size = len(sizes), sizes[0]
    try:
        _, magic, _, _, _, flags, body_size = _first_head(body)
        hosts = flags & _HOST_BITS
        body_size_at = _BODY_SIZE_AT[hosts]
        if hosts:
            body_size = _HEADS[hosts](body)[-1]
        name = len(topic).to_bytes(1 if magic & 0xFF == _V1_LAST else 2, "big") + topic
        name_at = body_size_at + 4 + body_size
        fields: tuple[Any, ...] = ()
        if count >= _UNIFORM_MIN and sizes.count(size) == count and body_size >= 0:
            if name_at + len(name) > size:
                return False
            fields = _uniform(size, body_size_at, name_at, len(name), count)(body)
        if fields and fields[6::8].count(body_size) == count:
            columns = [fields[column::8] for column in range(6)]
            names = fields[7::8]
        else:
            starts = [0, *accumulate(sizes[:-1])]
            *columns, body_sizes = zip(*map(_HEADS[hosts], repeat(body), starts), strict=True)
            shift, width = body_size_at + 4, len(name)
            shifts = [start + length + shift for start, length in zip(starts, body_sizes, strict=True)]
            names = tuple([body[at : at + width] for at in shifts])
    except (struct.error, OverflowError):
        return False
    return (
        columns[0] == sizes
        and columns[4] == offsets
        and columns[3] == tuple(numbers)
        and columns[2].count(queue_id) == count
        and names.count(name) == count
        and columns[1].count(magic) == count
        and {flags & _HOST_BITS for flags in set(columns[5])} == {hosts}
    )


@lru_cache(maxsize=64)
def _uniform(
    size: int, body_size_at: int, name_at: int, name_size: int, count: int
) -> Callable[[bytes], tuple[Any, ...]]:
    """Return what unpacks the heads and topics of records that have all these sizes and places in common."""
    before, behind = name_at - body_size_at - 4, size - name_at - name_size
    return Struct(">" + f"{_head_format(body_size_at)}{before}x{name_size}s{behind}x" * count).unpack
