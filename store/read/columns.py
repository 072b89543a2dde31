"""Cut the records of one answer out of the log, and prove them, by columns instead of one by one.

    entries   offset | size | tags      three columns, of one `unpack`
    span      bytes of the log that may be read now: a segment's map, or a block of `store.read.log_blocks`
    body      the records of the answer side by side: one slice of neighbours, or one join of slices
    proof     size, queue, queue offset and log offset of all records in `body`, a comparison a column; their topic
              too, if their entries were found in a file: one that is stale can name another topic's record

Where a record begins is what its queue entry says, and nothing else: records of other queues, or heads that belong
to no record, may stand in between. A record that is not what its entry says makes the whole answer `None`, and the
slow way (`store.read.one_by_one`) finds out which one; a test has both ways read the same stores.

Neighbours in the window whose entries this process made are proved by their first and last record: records stand in
the log in the order of their queue, so what lies between number n and number n + 31 of a queue, and is just as long
as the entries of 32 messages say, are these messages.

Measured (us for 32 records of one size that lie apart, of many sizes, and side by side in the window): 13, 18, 3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from ropewalk.format.record import MAGIC_V1
from store.io.disk import Map

if TYPE_CHECKING:
    pass

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
    """Return the layout of magic, sys flag and body size of a record, up to its body."""
    return f"4xi28xi{body_size_at - 40}xi"


_HEADS: Final = {bits: Struct(">" + _head_format(at)).unpack_from for bits, at in _BODY_SIZE_AT.items()}
_identity = IDENTITY.unpack_from


@lru_cache(maxsize=256)
def _columns_of(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return Struct(">" + count * "qi8x").unpack


def entry_columns(entries: bytes, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the log offsets and the record sizes of packed queue entries. HOT."""
    fields = _columns_of(count)(entries)
    return fields[::2], fields[1::2]


def cut_records(
    data: Map | bytes,
    base: int,
    queue_id: int,
    topic: bytes | None,
    numbers: range | Sequence[int],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    total: int,
    *,
    in_window: bool,
) -> bytes | memoryview | None:
    """Return these records, of `total` bytes, side by side; None if a record does not match its entry. HOT.

    `data` holds the log from offset `base` on and ends behind the last of them, or later in the window. A long run
    `in_window` is a view of the map, everything else a copy. Without a `topic` the entries are this process's own.
    """
    first, last, size = offsets[0], offsets[-1], sizes[0]
    is_uniform = sizes.count(size) == len(sizes)
    if last + sizes[-1] - first == total:
        start = first - base
        if in_window and topic is None:
            if _identity(data, start) != (size, queue_id, numbers[0], first):
                return None
            if _identity(data, last - base) != (sizes[-1], queue_id, numbers[0] + len(sizes) - 1, last):
                return None
            return (memoryview(data) if total >= VIEW_MIN else data)[start : start + total]
        body = data[start : start + total]
    elif is_uniform:
        end = size - base
        body = b"".join([data[at - base : at + end] for at in offsets])
    else:
        body = b"".join([data[at - base : at - base + size] for at, size in zip(offsets, sizes, strict=True)])
    try:
        if not _are_identified(body, queue_id, numbers, offsets, sizes, is_uniform=is_uniform):
            return None
        return body if topic is None or _are_of_topic(body, topic, sizes, is_uniform=is_uniform) else None
    except (struct.error, OverflowError):
        return None  # a size that no record has, or more bytes than there are


def _are_identified(
    body: bytes,
    queue_id: int,
    numbers: range | Sequence[int],
    offsets: tuple[int, ...],
    sizes: tuple[int, ...],
    *,
    is_uniform: bool,
) -> bool:
    """Whether the records of `body` have the sizes, queue offsets and log offsets that their entries say. HOT."""
    count, size = len(sizes), sizes[0]
    if is_uniform and count >= _UNIFORM_MIN:
        fields = _identities(size, count)(body)
        return (
            fields[3::4] == offsets
            and fields[::4] == sizes
            and fields[2::4] == tuple(numbers)
            and fields[1::4].count(queue_id) == count
        )
    starts = [0, *accumulate(sizes[:-1])]
    found = list(map(_identity, repeat(body), starts))
    return (
        found == list(zip(sizes, repeat(queue_id), numbers, offsets)) and len(body) == starts[-1] + sizes[-1]
    )


@lru_cache(maxsize=64)
def _identities(size: int, count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return what unpacks the identities of records of one size."""
    return Struct(">" + f"i8xi4xqq{size - IDENTITY.size}x" * count).unpack


def _are_of_topic(body: bytes, topic: bytes, sizes: tuple[int, ...], *, is_uniform: bool) -> bool:
    """Whether the records of `body`, which are of these sizes, have this topic."""
    count, size = len(sizes), sizes[0]
    hosts = int.from_bytes(body[36:40], "big") & _HOST_BITS
    magic, _, body_size = _HEADS[hosts](body)
    name = len(topic).to_bytes(1 if magic & 0xFF == _V1_LAST else 2, "big") + topic
    body_at, width = _BODY_SIZE_AT[hosts] + 4, len(name)
    name_at = body_at + body_size
    if body_size < 0 or name_at + width > size:
        return False
    heads: tuple[Any, ...] = ()
    if is_uniform and count >= _UNIFORM_MIN:
        heads = _topics(size, body_at, name_at, width, count)(body)
    if heads and heads[2::4].count(body_size) == count:
        magics, flags, names = heads[::4], heads[1::4], heads[3::4]
    else:
        starts = [0, *accumulate(sizes[:-1])]
        magics, flags, body_sizes = zip(*map(_HEADS[hosts], repeat(body), starts), strict=True)
        places = [start + length + body_at for start, length in zip(starts, body_sizes, strict=True)]
        names = tuple([body[at : at + width] for at in places])
    return (
        names.count(name) == count
        and magics.count(magic) == count
        and {flag & _HOST_BITS for flag in set(flags)} == {hosts}
    )


@lru_cache(maxsize=64)
def _topics(
    size: int, body_at: int, name_at: int, width: int, count: int
) -> Callable[[bytes], tuple[Any, ...]]:
    """Return what unpacks magic, sys flag, body size and topic of records of one size and one body size."""
    layout = f"{_head_format(body_at - 4)}{name_at - body_at}x{width}s{size - name_at - width}x"
    return Struct(">" + layout * count).unpack
