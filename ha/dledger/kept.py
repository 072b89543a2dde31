"""`KeptBytes`: the bytes of the runs that a leader appended last, for the frames that go to every peer."""

from __future__ import annotations

from typing import Final

import crc32c

_BYTES_MAX: Final = 20 << 20
"""More than the 16 MiB of runs that the core sends from memory (`ha.raft.dispatcher.RecentRuns`)."""
_COUNT_MAX: Final = 5_000


class KeptBytes:
    """Count, bytes and CRC32C by the first index of their run; the oldest are dropped."""

    __slots__ = ("_runs", "_size")

    def __init__(self) -> None:
        self._runs: dict[int, tuple[int, bytes, int]] = {}
        self._size = 0

    def add(self, first: int, count: int, data: bytes) -> None:
        """Keep the bytes of the `count` entries that begin at `first`."""
        self._runs[first] = (count, data, crc32c.crc32c(data))
        self._size += len(data)
        while self._size > _BYTES_MAX or len(self._runs) > _COUNT_MAX:
            oldest = next(iter(self._runs))
            self._size -= len(self._runs.pop(oldest)[1])

    def get(self, first: int, count: int) -> tuple[bytes, int]:
        """Return the bytes of a run, or of runs that follow each other, and their CRC32C."""
        found, data, checksum = self._runs[first]
        if found == count:
            return data, checksum
        parts, end = [data], first + count
        first += found
        while first < end:
            found, data, _ = self._runs[first]
            parts.append(data)
            first += found
        joined = b"".join(parts)
        return joined, crc32c.crc32c(joined)

    def clear(self) -> None:
        """Drop all bytes: another term begins."""
        self._runs.clear()
        self._size = 0
