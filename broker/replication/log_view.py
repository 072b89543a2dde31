"""Show a fixed extent of the log to a thread that compares it with another copy, and keep its files meanwhile.

What is under checksums is held against them first. Bytes that were damaged after they were written look like another
log; a slave would cut its own for them, or for its master's. So they are an error here, and no difference.
"""

from __future__ import annotations

import struct

from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from ropewalk.format.sidecar import Sidecar, block_sum
from store.integrity.block_repair import Damage
from store.integrity.checksums import BlockDamaged, Damaged
from store.log.commitlog import CommitLog
from store.log.segment import Segment

__all__ = ["LogPins"]

_FRAME = struct.Struct(">iI")
_WINDOW = 1 << 20


class LogPins:
    """The bytes of a log from its beginning to `end`, as they are now. Made and released on the loop; reads block."""

    def __init__(self, log: CommitLog, end: int, damage: Damage | None = None) -> None:
        """`damage` knows the checksums, and is told of blocks that do not match."""
        self.begin = log.min_offset
        self.end = end
        self._segments = [segment for segment in log.segments if segment.base_offset < end]
        for segment in self._segments:
            segment.pins += 1
        self._damage = damage
        self._sidecars: dict[int, Sidecar | None] = {}
        self._good: set[tuple[int, int]] = set()

    def release(self) -> None:
        """The files may go."""
        for segment in self._segments:
            segment.pins -= 1
        self._segments = []

    def read(self, offset: int, size: int) -> bytes:
        """Exactly these bytes, which are all there. Raises OSError for damaged ones: they are nobody's log."""
        found = []
        for segment in self._segments:
            start, stop = max(offset, segment.base_offset), min(offset + size, segment.end_offset)
            if start < stop:
                self._check(segment, start - segment.base_offset, stop - start)
                found.append(segment.file.read_at(start - segment.base_offset, stop - start))
        data = b"".join(found)
        assert len(data) == size, (offset, size, len(data))
        return data

    def _check(self, segment: Segment, position: int, size: int) -> None:
        """Hold what will be read against its checksums, each block once."""
        damage, base = self._damage, segment.base_offset
        if damage is None:
            return
        if base not in self._sidecars:
            self._sidecars[base] = damage.frozen(segment)
        sidecar = self._sidecars[base]
        if sidecar is None:
            return
        for number in sidecar.blocks_of(position, size):
            if (base, number) in self._good:
                continue
            start, stop = sidecar.block(number)
            if block_sum(segment.file.read_at(start, stop - start)) != sidecar.sums[number]:
                damage.report(Damaged(base, start, stop, sidecar.sums[number]))
                raise BlockDamaged(f"damaged bytes in {segment.file.path} at byte {start} to {stop}")
            self._good.add((base, number))

    def boundary(self, offset: int) -> int:
        """Return the end of the last record that ends at or before `offset`. Walks one segment from its beginning."""
        segment = next((each for each in reversed(self._segments) if each.base_offset <= offset), None)
        if segment is None:
            return self.begin
        position, limit = 0, min(offset, self.end) - segment.base_offset
        window, window_at = b"", 0
        while position + _FRAME.size <= limit:
            if not window_at <= position <= window_at + len(window) - _FRAME.size:
                # By system call: a page fault on the map would stop the loop too.
                window, window_at = segment.file.read_at(position, _WINDOW), position
            size, magic = _FRAME.unpack_from(window, position - window_at)
            if (
                magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
                or size < _FRAME.size
                or position + size > limit
            ):
                break
            position += size
        return int(segment.base_offset + position)
