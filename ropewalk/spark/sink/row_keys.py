"""Keys of rows: equal for the same row whenever its task is run again, and different for every other row of the task.

A key is a digest of all parts of the message, and of how many equal rows the task has had before: the order of rows may
be another one in each run, and equal rows may change places among themselves.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import blake2b
from typing import Final
from zlib import crc32

from ropewalk.client.core.produce.row_identity import row_prefix
from ropewalk.spark.sink.rows import Outgoing

__all__ = ["RowDigest", "RowKeys"]

_DIGEST_SIZE: Final = 16
_KEY_BYTES: Final = 12
"""So much of a digest is the key: two rows of a task of a million have the same with a chance of 1 in 10^17."""
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
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
    """The digests and keys of the rows of one task."""

    def __init__(self, sink_id: str, query: str, batch: int, partition: int) -> None:
        self.prefix = row_prefix(sink_id, query, batch, partition)
        """The property text in front of each key."""
        self.digest = RowDigest()
        self._task = blake2b(self.prefix, digest_size=_DIGEST_SIZE).digest()
        self._seen: set[bytes] = set()
        self._repeats: dict[bytes, int] = {}

    def digest_of(self, row: Outgoing) -> bytes:
        """Return the digest of the next row. HOT: once for each row."""
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
        digest = blake2b(
            b"%b%d:%b%b" % (self._task, len(text), text, message.body), digest_size=_DIGEST_SIZE
        ).digest()
        self.digest.add(
            1, crc32(message.body, crc32(text))
        )  # of no task: a repeated write may be cut otherwise
        if digest in self._seen:
            repeat = self._repeats[digest] = self._repeats.get(digest, 0) + 1
            return blake2b(digest + b"%d" % repeat, digest_size=_DIGEST_SIZE).digest()
        self._seen.add(digest)
        return digest

    @staticmethod
    def key_of(digest: bytes) -> bytes:
        """Return the key of a row, as its property holds it."""
        return b2a_base64(digest[:_KEY_BYTES], newline=False).translate(_URL_SAFE)

    @staticmethod
    def unique_key(digest: bytes) -> str:
        """Return the unique key of a row's message: the same in each run, so that consumers can tell repeats too."""
        return digest.hex().upper()

    def property_of(self, digest: bytes) -> bytes:
        """Return the property text of a row."""
        return b"%b%b\x02" % (self.prefix, self.key_of(digest))
