"""The transfer of a snapshot over a data link: begin, pieces within a window, end; each piece is answered.

    leader    SNAPSHOT_BEGIN  ->                     follower: does it lack this? the core judges
              <-  SNAPSHOT_ANSWER 0
              SNAPSHOT_CHUNK, eight at most  ->      <-  SNAPSHOT_ANSWER received
              SNAPSHOT_END  ->                       checksum, disk, core, and the member begins anew with it

Nothing is taken up again: a link that breaks or another term ends a transfer, and the next one has newer tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import crc32c

from ha.raft.types import MemberId, Point, SnapshotBegin, SnapshotChunk, SnapshotEnd
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.dledger.frame import CHUNK_SIZE_MAX

__all__ = ["IncomingSnapshot", "OutgoingSnapshot"]

_WINDOW: Final = 8 * CHUNK_SIZE_MAX


class OutgoingSnapshot:
    """A snapshot on its way to one peer."""

    def __init__(self, link: int, term: int, point: Point, data: bytes) -> None:
        self.link = link
        self.term = term
        self.point = point
        self._data = data
        self._sent = 0
        self._is_ended = False

    @property
    def begin(self) -> SnapshotBegin:
        """The first message."""
        return SnapshotBegin(self.term, self.point, len(self._data))

    def answered(self, received: int) -> Iterator[tuple[SnapshotChunk | SnapshotEnd, memoryview]]:
        """Return the messages that may follow when so much has arrived, with the bytes of each."""
        data = memoryview(self._data)
        while self._sent < len(data) and self._sent - received < _WINDOW:
            piece = data[self._sent : self._sent + CHUNK_SIZE_MAX]
            chunk = SnapshotChunk(self.term, self.point.index, self._sent)
            self._sent += len(piece)
            yield chunk, piece
        if received == len(data) and not self._is_ended:
            self._is_ended = True
            yield SnapshotEnd(self.term, self.point.index, len(data), crc32c.crc32c(data)), data[:0]


class IncomingSnapshot:
    """A snapshot on its way from the leader."""

    def __init__(self, leader: MemberId, link: int, begin: SnapshotBegin) -> None:
        self.leader = leader
        self.link = link
        self.term = begin.term
        self.point = begin.point
        self.received = 0
        self._size = begin.size
        self._pieces: list[bytes] = []

    def is_of(self, leader: MemberId, link: int, message: SnapshotChunk | SnapshotEnd) -> bool:
        """Return whether a message belongs to this transfer."""
        mine = self.leader, self.link, self.term, self.point.index
        return mine == (leader, link, message.term, message.index)

    def add(self, offset: int, piece: bytes) -> None:
        """Take the next piece. Raises `RemoteProtocolError` for any other."""
        if offset != self.received or offset + len(piece) > self._size:
            raise RemoteProtocolError(
                f"{len(piece)} bytes at {offset} of a snapshot of {self._size} bytes, {self.received} of which are here"
            )
        self._pieces.append(piece)
        self.received += len(piece)

    def end(self, end: SnapshotEnd) -> bytes:
        """Return the whole snapshot. Raises `RemoteProtocolError` if it is not what was sent."""
        data = b"".join(self._pieces)
        if len(data) != self._size or end.size != self._size or crc32c.crc32c(data) != end.checksum:
            raise RemoteProtocolError(
                f"a snapshot of {end.size} bytes ended with {len(data)} of {self._size} here, or with others"
            )
        return data
