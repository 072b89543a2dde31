"""Connections without sockets: they keep what is sent, for the test to look at."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class From:
    """A client, as far as tables count what it makes."""

    peer_host: str


class FakeLink:
    """A client's connection, as a session of the remoting port sees it."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self.peer = peer
        self.local = ("127.0.0.1", 10911)
        self.sent = bytearray()
        self.congested = False
        self.sole_ready = True
        self.closed = False
        self.paused = False

    def send(self, data: bytes | memoryview) -> None:
        self.sent += data

    def push(self) -> None:
        pass

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True


class FakeHaLink(FakeLink):
    """A slave's connection, as the replication of its master sees it; the slave takes all bytes at once."""

    def __init__(self, peer: tuple[str, int] = ("10.0.0.2", 1)) -> None:
        super().__init__(peer)
        self.stall_exempt = False
        self.pushed: list[int] = []
        """How much had been sent each time it was to leave at once."""

    @property
    def out_size(self) -> int:
        return 0

    def push(self) -> None:
        self.pushed.append(len(self.sent))

    def go_first(self) -> None:
        pass

    def detach_from_map(self) -> None:
        pass


@dataclass
class BufferedLink:
    """A connection whose other end takes the buffered bytes when the test says so."""

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
        """Return everything buffered, which leaves now."""
        data = b"".join(self.out)
        self.out.clear()
        self.out_size = 0
        return data

    def frames(self) -> list[tuple[int, bytes]]:
        """Return the buffered frames, which leave now; cut as they were made."""
        data, found, position = self.take(), [], 0
        while position < len(data):
            size = int.from_bytes(data[position + 8 : position + 12], "big")
            found.append((int.from_bytes(data[position : position + 8], "big"), data[position + 12 :][:size]))
            position += 12 + size
        return found
