"""The property `RW_SINK`, by which a row that a pipeline writes exactly once is told from every other.

    RW_SINK = <sink id>/<query>/<batch>/<partition>/<key>

    sink id    the name of the pipeline, of letters, digits and `_ - .`
    query      the first eight characters of the query's id, which lives in its checkpoint; `-` for a batch write
    key        16 characters: a digest of everything in the row, and of how many equal rows precede it

It is the last property of its text, and a key has a fixed size, so the broker cuts keys without reading properties.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ropewalk.format.properties import P

__all__ = [
    "KEY_SIZE",
    "RowIdentity",
    "check_sink_id",
    "foreign_query_reason",
    "key_of",
    "parse_identity",
    "row_prefix",
]

KEY_SIZE: Final = 16
SINK_ID_SIZE_MAX: Final = 64
BATCH_WRITE: Final = "-"
"""The query of batch writes."""
_SINK_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")


class RowIdentity(NamedTuple):
    """The identity of one row of one sink."""

    sink_id: str
    query: str
    batch: int
    partition: int
    key: bytes


def check_sink_id(sink_id: str) -> str | None:
    """Return the reason, in words for its user, why a text cannot name a sink; None if it can."""
    if len(sink_id) > SINK_ID_SIZE_MAX:
        return f"it has {len(sink_id)} characters, {SINK_ID_SIZE_MAX} is the limit"
    if _SINK_ID.fullmatch(sink_id) is None:
        return "letters, digits and _ - . are allowed"
    return None


def foreign_query_reason(sink_id: str, owner: str, query: str) -> str | None:
    """Return the reason, in words for its user, why a query may not write to a sink; None if it may.

    `owner` is the query that the sink belongs to, empty for none.
    """
    if not owner or owner == query:
        return None
    whose, who = (
        "a batch write" if one == BATCH_WRITE else f"the streaming query {one}" for one in (owner, query)
    )
    again = (
        ", whose checkpoint is not the one of before, and every row of it would be written again"
        if BATCH_WRITE not in (owner, query)
        else ""
    )
    old = f"start with the checkpoint of query {owner}, " if BATCH_WRITE not in (owner, query) else ""
    return (
        f"sink {sink_id} belongs to {whose}, and this is {who}{again}. Nothing of it was stored. Either {old}give "
        f"option sinkId a new name, or have the sink forgotten with `ropewalk admin sink forget {sink_id}`"
    )


def row_prefix(sink_id: str, query: str, batch: int, partition: int) -> bytes:
    """Return the property text of all rows of one task, up to the key."""
    return f"{P.SINK_ROW}\x01{sink_id}/{query}/{batch}/{partition}/".encode()


def key_of(properties: bytes, prefix: bytes) -> bytes | None:
    """Return the key at the end of a property text; None without this task's prefix in front of a key. HOT."""
    end = len(properties) - 1 if properties[-1:] == b"\x02" else len(properties)
    start = end - KEY_SIZE
    if start < len(prefix) or properties[start - len(prefix) : start] != prefix:
        return None
    return properties[start:end]


def parse_identity(value: str) -> RowIdentity | None:
    """Return the identity that a value of the property names; None if it is no such value."""
    parts = value.split("/")
    if len(parts) != 5 or len(parts[4]) != KEY_SIZE:
        return None
    sink_id, query, batch, partition, key = parts
    if not (batch.isdecimal() and partition.isdecimal() and key.isascii()):
        return None
    return RowIdentity(sink_id, query, int(batch), int(partition), key.encode())
