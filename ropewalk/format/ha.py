"""The bytes of the replication stream between a slave and its master. Integers are big-endian and signed.

    slave -> master    i64 how far the slave's log reaches                                        8 bytes
    master -> slave    i64 log offset of the first body byte | i32 body size | raw bytes of the log    12 + n

A report is the acknowledgement and the heartbeat, and the first one is the request to begin. A frame without a body
is the master's heartbeat, and its offset is still the one at which the next byte will stand. Bodies are cut
anywhere, inside records too, but never across the border of two segments. There is no magic, no version and no
checksum: what a peer is, and whether its bytes are a log's, has to be judged from what the numbers say.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from ropewalk.errors import RemoteProtocolError

REPORT_SIZE = 8
HEADER_SIZE = 12
BODY_SIZE_MAX = (4 << 20) - HEADER_SIZE
"""A RocketMQ slave collects a whole frame in a buffer of 4 MiB, and waits for ever for one that does not fit."""

_REPORT = Struct(">q")
_HEADER = Struct(">qi")

encode_report = _REPORT.pack
encode_header = _HEADER.pack


class Reports:
    """A decoder of a slave's reports from the pieces in which they arrive; the grid of eight bytes is never lost."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[int, ...]:
        """Return the reports that are complete now, oldest first."""
        if len(data) == REPORT_SIZE and not self._rest:  # as it nearly always is
            return _REPORT.unpack(data)
        if self._rest:
            data = self._rest + data
        end = len(data) - len(data) % REPORT_SIZE
        self._rest = data[end:]
        return tuple(value for (value,) in _REPORT.iter_unpack(data[:end]))


class Frames:
    """A decoder of a master's frames from the pieces in which they arrive.

    A body is handed on as it comes and not collected: it is a piece of a stream, and the place for it is the log.
    """

    __slots__ = ("_left", "_offset", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._offset = 0
        self._left = 0
        """Bytes of the current body that are still to come."""

    @property
    def is_between(self) -> bool:
        """Return True between two frames, when none is partly received."""
        return not self._left and not self._rest

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
        """Return (log offset, bytes of the log) of each complete frame, in order; a heartbeat has no bytes.

        Raises `RemoteProtocolError` for a header that cannot be: it is judged before its body arrives.
        """
        if self._rest:
            data = self._rest + bytes(data)
            self._rest = b""
        view, position, end = memoryview(data), 0, len(data)
        while position < end:
            if not self._left:
                if end - position < HEADER_SIZE:
                    self._rest = bytes(view[position:])
                    return
                offset, size = _HEADER.unpack_from(data, position)
                if offset < 0 or not 0 <= size <= BODY_SIZE_MAX:
                    raise RemoteProtocolError(
                        f"a frame of {size} bytes at log offset {offset} is out of bounds"
                    )
                position += HEADER_SIZE
                self._offset, self._left = offset, size
                if not size:
                    yield offset, view[position:position]
                    continue
            piece = view[position : position + self._left]
            if piece:
                offset = self._offset
                self._offset += len(piece)
                self._left -= len(piece)
                position += len(piece)
                yield offset, piece
