"""The log as a thread looks at it that compares it with another copy: a fixed extent, whose files stay meanwhile."""

from __future__ import annotations

import struct

from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from store.commitlog import CommitLog

__all__ = ["LogPins"]

_FRAME = struct.Struct(">iI")
_WINDOW = 1 << 20


class LogPins:
    """The bytes of a log from its beginning to `end`, as they are now. Made and released on the loop; reads block."""

    def __init__(self, log: CommitLog, end: int) -> None:
        self.begin = log.min_offset
        self.end = end
        self._segments = [segment for segment in log.segments if segment.base_offset < end]
        for segment in self._segments:
            segment.pins += 1

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
                if segment.checks is not None:
                    segment.checks.check_blocks(start - segment.base_offset, stop - start)
                found.append(segment.file.read_at(start - segment.base_offset, stop - start))
        data = b"".join(found)
        assert len(data) == size, (offset, size, len(data))
        return data

    def boundary(self, offset: int) -> int:
        """Where the last record that ends at or before `offset` ends. Walks one segment from its beginning."""
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
