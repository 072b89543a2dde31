"""`KeptBytes`: the bytes of the runs that a leader appended last, for the frames that go to every peer."""

from __future__ import annotations

from typing import Final

import crc32c

_BYTES_MAX: Final = 20 << 20
"""More than the 16 MiB of runs that the core sends from memory (`ha.raft.dispatcher.RecentRuns`)."""
_COUNT_MAX: Final = 5_000


class KeptBytes:
    """Bytes and their CRC32C by the first index of their run; the oldest are dropped."""

    __slots__ = ("_runs", "_size")

    def __init__(self) -> None:
        self._runs: dict[int, tuple[bytes, int]] = {}
        self._size = 0

    def add(self, first: int, data: bytes) -> None:
        """Keep the bytes of the run that begins at `first`."""
        self._runs[first] = (data, crc32c.crc32c(data))
        self._size += len(data)
        while self._size > _BYTES_MAX or len(self._runs) > _COUNT_MAX:
            oldest = next(iter(self._runs))
            self._size -= len(self._runs.pop(oldest)[0])

    def get(self, first: int) -> tuple[bytes, int]:
        """Return the bytes of the run that begins at `first`, and their CRC32C."""
        return self._runs[first]

    def clear(self) -> None:
        """Drop all bytes: another term begins."""
        self._runs.clear()
        self._size = 0
