"""Keys of rows: equal for equal rows, whichever task has them, and numbered within a task.

A key is a digest of all parts of the message, its *content*, and an *ordinal*: how many equal rows the task has had
before. Nothing in a content follows from the way in which Spark cut the batch: another run may have another number of
tasks, and the rows in other places and in another order.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from typing import Final
from zlib import crc32

from ropewalk.client.core.produce.row_identity import CONTENT_SIZE, Writer, row_prefix
from ropewalk.spark.sink.rows import Outgoing, RowRefused

__all__ = ["RowDigest", "RowKeys"]

_DIGEST_SIZE: Final = 16
_CONTENT_BYTES: Final = CONTENT_SIZE * 3 // 4
"""So much of a digest is the content: two rows of a batch of a million have the same with a chance of 1 in 10^17."""
_ORDINAL_BYTES: Final = 3
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_SUM_BITS: Final = 62


class RowDigest:
    """The number of rows and the sum of their checksums: equal for equal rows in any order, over any tasks."""

    def __init__(self, rows: int = 0, total: int = 0) -> None:
        self.rows = rows
        self.total = total

    def add(self, rows: int, total: int) -> None:
        self.rows += rows
        self.total = (self.total + total) & ((1 << _SUM_BITS) - 1)

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:x}"


class RowKeys:
    """The contents and ordinals of the rows of one attempt of a task."""

    def __init__(self, sink_id: str, query: str, batch: int, writer: Writer) -> None:
        """`writer` is what unique keys follow from: two writers that store equal rows give them different ones."""
        self.digest = RowDigest()
        task = row_prefix(sink_id, query, batch, writer)
        self._task = int.from_bytes(blake2b(task, digest_size=_DIGEST_SIZE).digest())
        self._seen: set[bytes] = set()
        self._repeats: dict[bytes, int] = {}

    def number(self, row: Outgoing) -> None:
        """Give the next row its digest and its ordinal. HOT: once for each row."""
        message = row.message
        properties = message.properties
        more = ""
        if properties:
            names = sorted(properties)
            more = "\x01".join((*names, *(properties[name] for name in names)))
        text = (
            f"{' '.join(message.keys or ())}\x01{message.tags}\x01{message.group}\x01"
            f"{message.flag}/{row.queue_id}/{row.broker}/{row.born_ms}\x01{more}"
        ).encode()
        digest = row.digest = blake2b(
            b"%d:%b%b" % (len(text), text, message.body), digest_size=_DIGEST_SIZE
        ).digest()
        self.digest.add(1, crc32(message.body, crc32(text)))
        if digest in self._seen:
            row.ordinal = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            if row.ordinal >> (8 * _ORDINAL_BYTES):
                raise RowRefused(
                    f"a task has more than {row.ordinal} equal rows, which delivery=exactly-once does not number: "
                    f"make batches smaller (maxOffsetsPerTrigger), or spread the rows over more tasks (repartition)"
                )
        else:
            self._seen.add(digest)

    @staticmethod
    def key_of(row: Outgoing) -> bytes:
        """Return the key of a row, as its property holds it."""
        number = row.digest[:_CONTENT_BYTES] + row.ordinal.to_bytes(_ORDINAL_BYTES)
        return b2a_base64(number, newline=False).translate(_URL_SAFE)

    @staticmethod
    def digest_in(key: bytes) -> bytes:
        """Return as much of a row's digest as its key holds."""
        return a2b_base64(key.translate(_STANDARD))[:_CONTENT_BYTES].ljust(_DIGEST_SIZE, b"\0")

    def unique_key(self, row: Outgoing) -> str:
        """Return the unique key of a row's message: the same whenever this writer has the row."""
        return f"{(int.from_bytes(row.digest) ^ self._task) + row.ordinal:032X}"
