"""What the stream's cores are tested with: a clock, links that only collect, and a log that is one byte string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.format.ha import Frames, encode_report

SEGMENT = 1 << 16


@dataclass
class FakeSource:
    """A log that begins at `begin`; what lies before `warm_from` has to be fetched, when the test says so."""

    data: bytearray = field(default_factory=bytearray)
    begin: int = 0
    warm_from: int = 0
    fetches: list[tuple[int, int, Callable[[bytes | None], None]]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    @property
    def last_segment(self) -> int:
        return max(self.begin, (self.end - 1) // SEGMENT * SEGMENT) if self.data else 0

    def _piece(self, offset: int, size: int) -> bytes:
        stop = min(self.end, offset - offset % SEGMENT + SEGMENT, offset + size)
        return bytes(self.data[offset - self.begin : stop - self.begin])

    def warm(self, offset: int, size: int) -> memoryview | None:
        if offset < max(self.warm_from, self.begin):
            return None
        return memoryview(self._piece(offset, size))

    def fetch(self, offset: int, size: int, done: Callable[[bytes | None], None]) -> None:
        self.fetches.append((offset, size, done))

    def answer(self, *, fails: bool = False) -> None:
        offset, size, done = self.fetches.pop(0)
        done(None if fails else self._piece(offset, size))


def report(*offsets: int) -> bytes:
    return b"".join(encode_report(offset) for offset in offsets)


def received(data: bytes) -> list[tuple[int, bytes]]:
    return [(offset, bytes(piece)) for offset, piece in Frames().feed(data)]
