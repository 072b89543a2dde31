"""The property `RW_SINK`, by which a row that a pipeline writes exactly once is told from every other.

    RW_SINK = <sink id>/<query>/<batch>/<writer>/<key>

    sink id    the name of the pipeline, of letters, digits and `_ - .`
    query      the first eight characters of the query's id, which lives in its checkpoint; `-` for a batch write
    writer     <run>.<partition>.<attempt>: the attempt of a task that stored the row. The run is the epoch of the sink
               at a broker of Ropewalk's, and a number that the driver drew at one of RocketMQ's
    key        16 characters of a digest of everything in the row, the *content*, and 4 for the *ordinal*: how many
               equal rows the attempt had before

A repeated batch is known by its contents alone: which task has a row is Spark's choice, and another one in each run.

It is the last property of its text, and a key has a fixed size, so the broker cuts keys without reading properties.

Version 0.1 had the partition in place of the writer, and a key of 16 characters that the partition was part of. Such a
row cannot be compared with others; `RowIdentity.writer` is None.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ropewalk.format.properties import P

__all__ = [
    "CONTENT_SIZE",
    "KEY_SIZE",
    "KEY_VERSION",
    "ROWS_MAX",
    "RowIdentity",
    "Writer",
    "check_sink_id",
    "earlier_rows_reason",
    "foreign_query_reason",
    "key_of",
    "parse_identity",
    "row_prefix",
]

KEY_VERSION: Final = 2
"""The kind of keys of this version, which both ends of a sink have to agree on; that of 0.1 is 1."""
CONTENT_SIZE: Final = 16
KEY_SIZE: Final = CONTENT_SIZE + 4
ROWS_MAX: Final = 500
"""Rows of one request of a sink: as many as a broker judges and stores within a few milliseconds."""
SINK_ID_SIZE_MAX: Final = 64
BATCH_WRITE: Final = "-"
"""The query of batch writes."""
_SINK_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Writer(NamedTuple):
    """The attempt of a task, in a run of its batch."""

    run: int
    partition: int
    attempt: int


class RowIdentity(NamedTuple):
    """The identity of one row of one sink."""

    sink_id: str
    query: str
    batch: int
    writer: Writer | None
    """The attempt that stored the row; None for a row of version 0.1."""
    key: bytes

    @property
    def content(self) -> bytes:
        return self.key[:CONTENT_SIZE]


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


def earlier_rows_reason(sink_id: str, batch: int) -> str:
    """Return the reason, in words for its user, why a batch that version 0.1 began cannot be finished by this one."""
    return (
        f"batch {batch} of sink {sink_id} was begun by version 0.1 of Ropewalk, whose rows cannot be compared with "
        f"those of this version. Nothing was stored now. Either finish the batch with version 0.1, or have the sink "
        f"forgotten with `ropewalk admin sink forget {sink_id}` and start the query again: then the rows of this batch "
        f"that are stored already come a second time"
    )


def row_prefix(sink_id: str, query: str, batch: int, writer: Writer) -> bytes:
    """Return the property text of all rows of one attempt of a task, up to the key."""
    run, partition, attempt = writer
    return f"{P.SINK_ROW}\x01{sink_id}/{query}/{batch}/{run}.{partition}.{attempt}/".encode()


def key_of(properties: bytes, prefix: bytes) -> bytes | None:
    """Return the key at the end of a property text; None without this attempt's prefix in front of a key. HOT."""
    end = len(properties) - 1 if properties[-1:] == b"\x02" else len(properties)
    start = end - KEY_SIZE
    if start < len(prefix) or properties[start - len(prefix) : start] != prefix:
        return None
    return properties[start:end]


def parse_identity(value: str) -> RowIdentity | None:
    """Return the identity that a value of the property names; None if it is no such value."""
    parts = value.split("/")
    if len(parts) != 5 or not value.isascii():
        return None
    sink_id, query, batch, writer, key = parts
    run, _, task = writer.partition(".")
    if not task:  # of version 0.1
        if len(key) != CONTENT_SIZE or not (batch.isdecimal() and writer.isdecimal()):
            return None
        return RowIdentity(sink_id, query, int(batch), None, key.encode())
    partition, _, attempt = task.partition(".")
    numbers = (batch, run, partition, attempt)
    if len(key) != KEY_SIZE or not all(map(str.isdecimal, numbers)):
        return None
    return RowIdentity(
        sink_id, query, int(batch), Writer(int(run), int(partition), int(attempt)), key.encode()
    )
