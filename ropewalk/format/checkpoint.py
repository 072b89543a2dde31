"""The `checkpoint` file of a store: how far each part of it had reached the disk.

    0  i64 store time of the last flushed commit-log record        ms
    8  i64 store time of the last record put into a consume queue  ms
   16  i64 end time of the last full and flushed index file        ms
   24  i64 offset the master had flushed
   32  i64 confirm offset; a plain broker writes it once per start and never again
   40  zeros up to 4096

A new file is all zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from ropewalk.errors import CorruptCheckpoint

__all__ = ["CHECKPOINT_SIZE", "Checkpoint", "CorruptCheckpoint"]

CHECKPOINT_SIZE: Final = 4096

_FIELDS: Final = Struct(">5q")


@dataclass(slots=True)
class Checkpoint:
    """The five fields of the file. Timestamps are store times in ms, offsets are of the commit log."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Return the store time through which log and queues were flushed, with three seconds of margin."""
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - 3000)

    def encode(self) -> bytes:
        """Encode the whole file."""
        return _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        ).ljust(CHECKPOINT_SIZE, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Checkpoint:
        """Read a file; only its first 40 bytes count. Raises CorruptCheckpoint for less."""
        if len(data) < _FIELDS.size:
            raise CorruptCheckpoint(f"checkpoint of {len(data)} bytes, {_FIELDS.size} are needed")
        return cls(*_FIELDS.unpack_from(data))
