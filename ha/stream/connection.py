"""Stream the log to a single slave: the bytes behind its report, in order, a frame at a time.

    silent     until the first report, which says where to begin
    transfer   frames as long as there are bytes; a heartbeat when there were none for a while
    shutdown   the slave is gone, kept silent for too long, or said what cannot be

Reading and writing know nothing of each other: reports are taken in while the slave's buffers are full. What may be
under way to it is bounded here, far below what would stop the shell from reading. Bytes near the end of the log go
out as slices of its map, with no copy made here; older ones are fetched by a reader thread first.

A report is believed within limits: it may not be beyond what was sent on this very connection, and the first one not
beyond what this master can have given to anybody. Whether it counts for an acknowledgement is for `service` to say.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ropewalk.errors import RemoteProtocolError
from ropewalk.format.ha import Reports, encode_header

WINDOW = 1 << 20
"""Bytes that may be owed to one slave at a time; the kernel's buffers come on top."""
_LOW = WINDOW // 4
_COLD_READ = 512 << 10
_FETCH_RETRY_MS = 1_000
_STUCK_MS = 1_000


class State(enum.Enum):
    """In RocketMQ's words, with one of ours: SILENT, before the first report."""

    SILENT = "SILENT"
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


class Link(Protocol):
    """A connection as this room sees it; sending never waits and never raises."""

    peer: tuple[str, int]
    out_size: int
    """Bytes owed that the peer has not taken yet."""

    def send(self, data: bytes | memoryview) -> None: ...

    def push(self) -> None:
        """Try to have owed bytes leave now; never waits."""

    def detach_from_map(self) -> None:
        """Copy owed bytes out of the maps of the log."""

    def close(self) -> None: ...


class Source(Protocol):
    """The log as it is sent."""

    @property
    def begin(self) -> int:
        """Return the offset of the oldest byte."""

    @property
    def end(self) -> int:
        """Behind the newest byte."""

    def warm(self, offset: int, size: int) -> memoryview | None:
        """Up to `size` bytes of one segment without waiting for a disk; None if they have to be fetched."""

    def fetch(self, offset: int, size: int, done: Callable[[bytes | None], None]) -> None:
        """Have them read elsewhere; `done(None)` says that it could not be: try again later."""


@dataclass(frozen=True, slots=True)
class HaRules:
    """The configuration of replication. Times in ms, sizes in bytes."""

    heartbeat_ms: int = 5_000
    housekeeping_ms: int = 20_000
    batch: int = 32_768
    gap_max: int = 256 << 20
    """A slave further behind than this is not in sync."""
    bytes_per_second: int = 0
    """The rate at which one slave is sent at most, in bytes a second; 0 is no limit."""
    from_last_file: bool = False
    """Whether an empty slave begins at the newest segment, as with RocketMQ, and not at the oldest."""


class HaConnection:
    """The master's end of one slave's connection."""

    def __init__(
        self,
        link: Link,
        source: Source,
        rules: HaRules,
        start_of: Callable[[HaConnection, int], int],
        changed: Callable[[HaConnection], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`start_of` judges the first report and says where to begin, or raises `RemoteProtocolError`."""
        self.link = link
        self.state = State.SILENT
        self._clock = now_ms
        now = now_ms()
        self.acknowledged = -1
        """The last report; -1 before the first."""
        self.next_offset = -1
        """Where the next byte to be sent stands."""
        self.read_ms = self.written_ms = now
        self.rate = 0
        """Bytes sent in the last full second."""
        self.on_leave: Callable[[], None] = lambda: None
        """Called when the slave has hung up, while its last report still counts."""
        self._source = source
        self._rules = rules
        self._start_of = start_of
        self._changed = changed
        self._reports = Reports()
        self._fetching = False
        self._fetch_from_ms = now
        """Before this time nothing is fetched: the disk refused it a moment ago."""
        self._second_ms, self._second_bytes = now, 0
        self._stuck = (0, now)
        """The bytes owed when the slave last took some of them, and the time of that."""

    # -- in ------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Take in reports. Raises `RemoteProtocolError` for one that cannot be."""
        if self.state is State.SHUTDOWN:
            return
        self.read_ms = self._clock()
        for offset in self._reports.feed(data):
            if self.state is State.SILENT:
                self.next_offset = self._start_of(self, offset)
                self.state = State.TRANSFER
            elif not 0 <= offset <= self.next_offset:
                raise RemoteProtocolError(
                    f"a report of log offset {offset}, but only bytes before {self.next_offset} were sent"
                )
            self.acknowledged = offset
        if self.acknowledged >= 0:
            self._changed(self)

    @property
    def has_backlog(self) -> bool:
        """Return whether the shell should come back as soon as the slave has taken something."""
        return (
            self.state is State.TRANSFER
            and self.next_offset < self._source.end
            and not self._fetching
            and self._fetch_from_ms <= self._clock()
            and self.link.out_size <= _LOW
            and self._allowance() > 0
        )

    def resume(self) -> None:
        """The slave took something: go on."""
        self.advance()

    def closed(self) -> None:
        """Note that the slave has hung up."""
        if self.state is State.TRANSFER:
            self.on_leave()
        self.state = State.SHUTDOWN
        self._changed(self)

    # -- out -----------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Owe the slave the bytes behind those that were sent, as far as may be under way. HOT."""
        if self.state is not State.TRANSFER or self._fetching:
            return
        link, source = self.link, self._source
        end = source.end
        while self.next_offset < end and link.out_size < WINDOW:
            size = min(end - self.next_offset, WINDOW, self._allowance())
            if size <= 0:
                return
            data = source.warm(self.next_offset, size)
            if data is None:
                if self._clock() < self._fetch_from_ms:
                    return
                self._fetching = True
                source.fetch(self.next_offset, min(size, _COLD_READ), self._fetched)
                return
            self._send(data)

    def _fetched(self, data: bytes | None) -> None:
        self._fetching = False
        if not data:
            self._fetch_from_ms = self._clock() + _FETCH_RETRY_MS
        elif self.state is State.TRANSFER:
            self._send(memoryview(data))
            self.advance()

    def _send(self, data: memoryview) -> None:
        send, batch, offset = self.link.send, self._rules.batch, self.next_offset
        size = len(data)
        if size <= batch:
            send(encode_header(offset, size))
            send(data)
        else:
            for start in range(0, size, batch):
                piece = data[start : start + batch]
                send(encode_header(offset + start, len(piece)))
                send(piece)
        self.next_offset = offset + size
        self._second_bytes += size
        self.written_ms = self._clock()

    def _allowance(self) -> int:
        limit = self._rules.bytes_per_second
        return limit - self._second_bytes if limit else WINDOW

    # -- time ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """The work of time; call several times a second. Raises `RemoteProtocolError` for a slave to hang up on."""
        now_ms = self._clock()
        if self.state is State.SHUTDOWN:
            return
        passed = now_ms - self._second_ms
        if passed >= 1000:
            self.rate = self._second_bytes * 1000 // passed
            self._second_ms, self._second_bytes = now_ms, 0
        if now_ms - self.read_ms > self._rules.housekeeping_ms:
            raise RemoteProtocolError(f"no report for more than {self._rules.housekeeping_ms} ms")
        if self.state is State.TRANSFER:
            if self.next_offset < self._source.begin:
                raise RemoteProtocolError(
                    f"it needs log offset {self.next_offset}, and the log begins at {self._source.begin} by now: it "
                    f"was too slow for fileReservedTime or the disk"
                )
            if self.link.out_size != self._stuck[0]:
                self._stuck = self.link.out_size, now_ms
            elif self.link.out_size and now_ms - self._stuck[1] > _STUCK_MS:
                self.link.detach_from_map()  # it may leave much later, from pages that went cold
            self.advance()
            if now_ms - self.written_ms > self._rules.heartbeat_ms and not self.link.out_size:
                self.link.send(encode_header(self.next_offset, 0))
                self.written_ms = now_ms

    def is_in_sync(self, end: int) -> bool:
        """Return whether the slave's report is close enough to the end of the log."""
        return self.state is State.TRANSFER and end - self.acknowledged < self._rules.gap_max
