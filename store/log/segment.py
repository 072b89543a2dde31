"""A file of the commit log: a fixed run of bytes, filled from the front, sealed by a filler.

    base_offset                     write_position                  size
    |  record | record | ... | record |  filler header (8 bytes) ....  |

Invariants: records never span segments; a full segment ends with a filler of 8 bytes or more, which is how a
reader tells "carry on in the next file" from "this is where the log ends". What lies behind `write_position` is
zero, or dead bytes that recovery has judged.

A segment places bytes. Which bytes, when they may be seen, and when they are durable is the commit log's and the
flusher's business.
"""

from __future__ import annotations

from collections.abc import Sequence

from store.io.disk import MappedFile
from store.log.placing import PLAIN, Placing
from store.log.read_check import ReadCheck

FILLER_HEADER_SIZE = 8


class Segment:
    __slots__ = (
        "base_offset",
        "checks",
        "file",
        "filled_position",
        "gathered",
        "map",
        "pins",
        "placing",
        "room",
        "size",
        "write_position",
    )

    def __init__(
        self, base_offset: int, file: MappedFile, write_position: int = 0, placing: Placing = PLAIN
    ) -> None:
        self.base_offset = base_offset
        self.placing = placing
        self.file = file
        self.map = file.map
        self.size = file.size
        self.room = file.size - FILLER_HEADER_SIZE
        """Where records have to end: the last eight bytes belong to the filler that `seal` writes."""
        self.write_position = write_position
        self.gathered = 0
        """How many bytes of large records were placed here."""
        self.filled_position = write_position
        """Up to here zeros were written ahead of the writer (`store.log.preallocate`)."""
        self.pins = 0
        """How many helpers off the loop hold this segment; its file stays until there are none. The loop's own."""
        self.checks: ReadCheck | None = None
        """The check of bytes that an earlier process wrote; None asks for no check."""

    @property
    def end_offset(self) -> int:
        """The log offset behind the last byte this segment can hold."""
        return self.base_offset + self.size

    def has_room_for(self, record_size: int) -> bool:
        return self.write_position + record_size <= self.room

    def write(self, records: Sequence[bytes | memoryview], sizes: Sequence[int] | None = None) -> None:
        """Place encoded records after the last one; the caller has asked `has_room_for`. HOT.

        With `sizes` they come in pieces that are not to be joined: each is placed as it is.
        """
        if sizes is not None:
            self._gather(records)
            return
        data = b"".join(records)
        assert self.write_position + len(data) <= self.room or not data
        self.append(data)

    def _gather(self, pieces: Sequence[bytes | memoryview]) -> None:
        position, size = self.write_position, sum(map(len, pieces))
        end = position + size
        assert end <= self.room or not pieces
        self.file.write_pieces_at(position, pieces, size)
        self.write_position = end
        self.gathered += size

    def append(self, data: bytes | memoryview) -> None:
        """Place bytes after the last ones. Raises OSError. HOT."""
        position = self.write_position
        end = position + len(data)
        self.file.write_at(position, data)
        self.write_position = end

    def end_at(self, position: int) -> None:
        """Count the records as ending at `position`, behind which all is zero. For a start, which has seen to that."""
        assert 0 <= position <= self.size, (self.base_offset, position, self.size)
        self.write_position = self.filled_position = position

    def mark_filled(self, position: int) -> None:
        """Count zeros as written ahead of the writer up to `position`."""
        assert position <= self.size, (self.base_offset, position, self.size)
        self.filled_position = position

    def drop_from(self, position: int) -> None:
        """Zero the bytes from `position` on, and go on there. Not durable before the next sync of the file."""
        end = self.write_position
        assert 0 <= position <= end, (self.base_offset, position, end)
        self.map[position:end] = bytes(end - position)
        self.write_position = position

    def seal(self) -> None:
        """Write the filler and count this segment as full."""
        remaining = self.size - self.write_position
        assert remaining >= FILLER_HEADER_SIZE, (self.base_offset, self.write_position, self.size)
        self.append(self.placing.filler(remaining))
        self.write_position = self.size
