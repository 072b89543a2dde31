"""What the stream's cores are tested with: a clock, links that only collect, and a log that is one byte string."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.format.ha import Frames, encode_report

SEGMENT = 1 << 16


@dataclass
class Clock:
    ms: int = 1_000_000

    def __call__(self) -> int:
        return self.ms


@dataclass
class FakeLink:
    """A connection whose other end takes what it is owed when the test says so."""

    peer: tuple[str, int] = ("10.0.0.2", 40_001)
    out: list[bytes | memoryview] = field(default_factory=list)
    out_size: int = 0
    closed: bool = False
    paused: bool = False
    owned: int = 0

    def send(self, data: bytes | memoryview) -> None:
        assert not self.closed
        self.out.append(data)
        self.out_size += len(data)

    def push(self) -> None:
        pass

    def detach_from_map(self) -> None:
        self.owned += 1

    def close(self) -> None:
        self.closed = True

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False

    def take(self) -> bytes:
        """Everything owed, which leaves now."""
        data = b"".join(self.out)
        self.out.clear()
        self.out_size = 0
        return data

    def frames(self) -> list[tuple[int, bytes]]:
        """The frames owed, which leave now; cut as they were made."""
        data, found, position = self.take(), [], 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big")
            found.append((int.from_bytes(data[position : position + 8], "big"), data[position + 12 :][:size]))
            position += 12 + size
        return found


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
