"""The checksums of one commit-log segment: a file beside the log, named as the segment is.

     0  "RWS1"                                24 i64 bytes covered, counted from the front
     4  u32 block size                        32 u32 CRC32C of each block, the last may be a short one
     8  i64 log offset of the first byte      .. u32 CRC32C of everything before it
    16  i64 segment size

A record carries one checksum, of its body; topic, properties, offsets and fillers have none. A block covers all of
them. The bytes that a sidecar covers had survived a flush when it was written, and nobody changes them afterwards:
a block that no longer matches is damage and not an interrupted write.

A file that is cut short, or whose own checksum does not match, counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import crc32c

__all__ = ["BLOCK_SIZE", "Sidecar", "block_sum"]

BLOCK_SIZE: Final = 1 << 20

_MAGIC: Final = b"RWS1"
_HEAD: Final = Struct(">4sIqqq")
_SUM: Final = Struct(">I")


def block_sum(block: bytes | bytearray | memoryview) -> int:
    """Compute the checksum of a block. Lets other threads run while it computes a large one."""
    return int(crc32c.crc32c(block))


@dataclass(slots=True)
class Sidecar:
    """The checksums of a segment. All sizes in bytes; `sums` holds one for each begun block of what is covered."""

    base_offset: int
    segment_size: int
    block_size: int = BLOCK_SIZE
    covered: int = 0
    sums: list[int] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.covered == self.segment_size

    def block(self, number: int) -> tuple[int, int]:
        """Return the begin and the end of a block in its segment."""
        start = number * self.block_size
        return start, min(start + self.block_size, self.covered)

    def blocks_of(self, position: int, size: int) -> range:
        """Return the covered blocks that a range of the segment touches."""
        end = min(position + size, self.covered)
        return range(position // self.block_size, -(-end // self.block_size)) if position < end else range(0)

    def shorten(self, position: int) -> bool:
        """Drop the checksums of bytes behind `position`, whole blocks at a time; return True if there were any."""
        if position >= self.covered:
            return False
        count = position // self.block_size
        del self.sums[count:]
        self.covered = count * self.block_size
        return True

    def encode(self) -> bytes:
        """Encode the whole file."""
        head = _HEAD.pack(_MAGIC, self.block_size, self.base_offset, self.segment_size, self.covered)
        data = head + b"".join(map(_SUM.pack, self.sums))
        return data + _SUM.pack(block_sum(data))

    @classmethod
    def decode(cls, data: bytes | None) -> Sidecar | None:
        """Decode a file; return None for a file that is no whole sidecar. Bytes behind it do not count."""
        if data is None or len(data) < _HEAD.size + _SUM.size:
            return None
        magic, block_size, base, segment_size, covered = _HEAD.unpack_from(data)
        if magic != _MAGIC or not block_size > 0 or not 0 <= covered <= segment_size or base < 0:
            return None
        count = -(-covered // block_size)
        end = _HEAD.size + count * _SUM.size
        if len(data) < end + _SUM.size or _SUM.unpack_from(data, end)[0] != block_sum(data[:end]):
            return None
        sums = [value for (value,) in _SUM.iter_unpack(data[_HEAD.size : end])]
        return cls(base, segment_size, block_size, covered, sums)
