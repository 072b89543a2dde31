"""The body of a batch send: items one after the other, without a count.

    i32 size of this item, itself included | i32 0 | i32 0 | i32 flag | i32 n, body | i16 n, properties

Two of the fields are a record's magic and CRC and nobody reads them. A broker stores each item as a record of
its own with the property bytes as they came. An item whose size disagrees with its parts raises
`MalformedBatch`: storing what can be read of it would acknowledge something else than what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from ropewalk.errors import LocalProtocolError, MalformedBatch
from ropewalk.format.properties import PROPERTIES_SIZE_MAX

__all__ = ["BatchItem", "MalformedBatch", "encode_batch", "split_batch", "split_some"]

_HEAD: Final = Struct(">iiiii")
_OVERHEAD: Final = 22


class BatchItem(NamedTuple):
    """A message of a batch; topic, queue, born time and the rest come from the request."""

    flag: int
    body: bytes
    properties: bytes = b""


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode the body of a batch send. Raises LocalProtocolError for properties that no item can hold."""
    parts: list[bytes] = []
    pack = _HEAD.pack
    for flag, body, properties in items:
        body_size, properties_size = len(body), len(properties)
        if properties_size > PROPERTIES_SIZE_MAX:
            raise LocalProtocolError(f"properties of {properties_size} bytes exceed {PROPERTIES_SIZE_MAX}")
        head = pack(_OVERHEAD + body_size + properties_size, 0, 0, flag, body_size)
        parts += (head, body, properties_size.to_bytes(2, "big"), properties)
    return b"".join(parts)


def split_batch(body: bytes) -> list[BatchItem]:
    """Split a batch send's body into its items, at least one. Raises MalformedBatch."""
    return split_some(body, 0, len(body))[0]


def split_some(body: bytes, position: int, count_max: int, before: int = 0) -> tuple[list[BatchItem], int]:
    """Split off so many items of a batch, at least one, from a position on; return them and the position behind them.

    There are `before` items before them. Raises MalformedBatch, which counts all.
    """
    items: list[BatchItem] = []
    end = len(body)
    unpack = _HEAD.unpack_from
    while position < end and len(items) < count_max:
        if end - position < _OVERHEAD:
            raise MalformedBatch(f"item {before + len(items)}: {end - position} bytes are no item")
        size, _, _, flag, body_size = unpack(body, position)
        item_end = position + size
        body_start = position + 20
        properties_start = body_start + body_size + 2
        if size < _OVERHEAD or item_end > end or body_size < 0 or properties_start > item_end:
            raise MalformedBatch(f"item {before + len(items)}: a length is out of bounds")
        # A negative length, being 32768 or more here, cannot fill the item exactly unless the item really
        # holds that many bytes, which is over the limit all the same.
        properties_size = body[properties_start - 2] << 8 | body[properties_start - 1]
        if properties_start + properties_size != item_end or properties_size > PROPERTIES_SIZE_MAX:
            raise MalformedBatch(f"item {before + len(items)}: its size and its parts disagree")
        items.append(
            BatchItem(flag, body[body_start : properties_start - 2], body[properties_start:item_end])
        )
        position = item_end
    if not items:
        raise MalformedBatch("a batch without items")
    return items, position
