"""Find the bytes of the log far behind its end: in the page cache, or in blocks that a reader thread brought.

    segment   |  block 0  |  block 1  |  block 2  | ...      each of `BLOCK_SIZE` bytes, the last of a log shorter

What the page cache has is read through the segment's map: the kernel is asked for the pages of an answer (`mincore`),
and the records are copied out of them at once. Between the two a page can go only if the kernel takes it in these
microseconds from under a consumer, and then the copy waits for the disk once; the window of the map trusts the kernel
for longer.

What the page cache does not have a reader thread brings in whole blocks. Producers lay their messages over queues in
turn, so consumers of different queues read the same part of the log: a block is kept for whoever asks next. It is
kept only if its bytes need no further check: this process wrote them, or they match the checksums of the segment. It
counts no longer once the segment is held against other checksums (`Segment.checks`): then damage was found, or mended.
No more than `BLOCKS_MAX` blocks are kept, and none for longer than `IDLE_S` without a reader.

The bytes lie in anonymous maps, which are used again and again, and given back to the system and not to a heap. No
view of them, nor of resident bytes, may leave: who cuts records out copies them.

Measured: `mincore` of 300 KiB, which 32 messages of 1 KiB in 8 queues span, takes 2 us, and 7 us before their pages are
mapped. Copies of whole blocks (RWF_NOWAIT, 20 to 60 us for 512 KiB) were shared by consumers side by side, and made
for each of them again when they had drifted apart: in 8 queues of 1 KiB half of the time of an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.io.disk import Map, memory_map
from store.log.commitlog import CommitLog
from store.log.read_check import ReadCheck
from store.log.segment import Segment

BLOCK_SIZE: Final = 512 << 10
BLOCKS_MAX: Final = 16
IDLE_S: Final = 2.0
_UNCHECKED_MAX: Final = 256
_READ_AHEAD: Final = 2 * BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The place of one block in its segment, in bytes of the segment."""

    segment: Segment
    start: int
    size: int

    @property
    def offset(self) -> int:
        """The log offset of the block's first byte."""
        return self.segment.base_offset + self.start


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Bytes of the log, `[base, end)`, that need no further check as long as the segment has these `checks`."""

    segment: Segment
    checks: ReadCheck | None
    base: int
    end: int
    data: Map
    """The bytes, and behind `end` whatever stood there before."""


class LogBlocks:
    """A bounded cache of blocks of one log. The loop owns it; `read_block` belongs to reader threads."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._blocks: dict[int, LogBlock] = {}
        self._spare: Map | None = None
        self._unchecked: dict[int, object] = {}
        """Blocks without a checksum to hold them against, by log offset, and what was known of the segment then."""
        self._used_s = 0.0

    @property
    def size(self) -> int:
        """The bytes of memory that are held."""
        return sum(len(block.data) for block in self._blocks.values()) + len(self._spare or b"")

    def __contains__(self, offset: int) -> bool:
        """Whether the block that begins at a log offset is kept."""
        return offset in self._blocks

    def place_of(self, offset: int) -> BlockPlace | None:
        """Return the block that log offset `offset` falls in, as far as it is written; None outside of the log."""
        segment = self._log.find(offset)
        if segment is None or offset >= self._log.end_offset:
            return None
        position = offset - segment.base_offset
        start = position - position % BLOCK_SIZE
        end = min(start + BLOCK_SIZE, segment.size, self._log.end_offset - segment.base_offset)
        return BlockPlace(segment, start, end - start)

    def find(self, offset: int, size: int, now_s: float) -> LogBlock | None:
        """Return the kept block with these bytes of the log. HOT."""
        self._used_s = now_s
        if not self._blocks:
            return None
        log = self._log
        # Segments are of one size and stand in a row, so this is where the block of the offset begins.
        start = offset - (offset - log.min_offset) % log.segment_size % BLOCK_SIZE
        block = self._blocks.get(start)
        if block is None or offset + size > block.end or block.segment.checks is not block.checks:
            return None
        return block

    def find_resident(self, offset: int, end: int) -> Segment | None:
        """Return the segment of an offset if the page cache has its bytes up to `end`, and none needs a check. HOT."""
        segment = self._log.find(offset)
        if segment is None:
            return None
        position, checks = offset - segment.base_offset, segment.checks
        size = min(end - segment.base_offset, segment.size) - position
        if checks is not None and not checks.is_checked(position, size):
            return None
        return segment if segment.file.is_resident(position, size) else None

    def read_across(self, offset: int, size: int, now_s: float) -> bytes | None:
        """Return a record that stands in several blocks, if all of its bytes are in memory."""
        parts, at, end = [], offset, offset + size
        while at < end:
            place = self.place_of(at)
            if place is None:
                return None
            stop = min(end, place.offset + place.size)
            if (block := self.find(at, stop - at, now_s)) is not None:
                parts.append(block.data[at - block.base : stop - block.base])
            elif (segment := self.find_resident(at, stop)) is not None:
                parts.append(segment.map[at - segment.base_offset : stop - segment.base_offset])
            else:
                return None
            at = stop
        return b"".join(parts)

    def keep(self, place: BlockPlace, data: bytes | None, checks: ReadCheck | None) -> LogBlock | None:
        """Keep the block read at a place under these checks; without `data`, note that no checksum vouched for it."""
        if data is None:
            self._unchecked.pop(place.offset, None)
            if len(self._unchecked) >= _UNCHECKED_MAX:
                del self._unchecked[next(iter(self._unchecked))]
            self._unchecked[place.offset] = checks
            return None
        buffer = self._take_buffer()
        buffer[: len(data)] = data
        return self._add(place, buffer, checks)

    def _take_buffer(self) -> Map:
        buffer, self._spare = self._spare, None
        return buffer if buffer is not None else memory_map(BLOCK_SIZE)

    def _add(self, place: BlockPlace, buffer: Map, checks: ReadCheck | None) -> LogBlock:
        block = LogBlock(place.segment, checks, place.offset, place.offset + place.size, buffer)
        former = self._blocks.pop(block.base, None)
        if former is None and len(self._blocks) >= BLOCKS_MAX:
            former = self._blocks.pop(next(iter(self._blocks)))
        if former is not None:
            self._spare = former.data
        self._blocks[block.base] = block
        return block

    def can_be_read(self, place: BlockPlace) -> bool:
        """Tell whether a reader thread may bring this block: not if it needs a checksum and has none."""
        missing = object()
        return self._unchecked.get(place.offset, missing) is not place.segment.checks

    def drop_idle(self, now_s: float) -> None:
        """Give the memory back if no reader came by for a while; call often."""
        if (self._blocks or self._spare is not None) and not 0 <= now_s - self._used_s < IDLE_S:
            self._blocks.clear()
            self._spare = None


def read_block(place: BlockPlace, checks: ReadCheck | None) -> bytes | None:
    """Return the bytes of a block, checked; None if they need a check and have no checksum.

    Blocks; for a reader thread. The kernel is asked to have what comes behind the block ready. Raises `OSError`,
    which `BlockDamaged` is.
    """
    segment = place.segment
    if checks is not None:
        checks.check_blocks(place.start, place.size)
        if not checks.is_checked(place.start, place.size):
            return None
    data = segment.file.read_at(place.start, place.size)
    behind = place.start + place.size
    if behind < segment.size:
        segment.file.read_ahead(behind, min(_READ_AHEAD, segment.size - behind))
    return data if len(data) == place.size else None
