"""HAClient: a slave's end of the stream. Bytes in, reports out; no socket and no clock of its own.

    READY      not connected; when to try again is told by `wait_ms`
    HANDSHAKE  connected; nothing is said before the shell says `begin`, because Ropewalk peers compare logs first
    TRANSFER   bytes are appended and reported
    ERROR      the master's bytes do not continue this log: a person has to look; it is tried again, seldom

What is reported is the end of the last whole record that was looked at and appended, or (`ackAfterFlush`) flushed. It
is never more than this log has, and a record is reported only when all of it is here. A disk without room stops the
reading, and nothing else: the last good report goes on as the heartbeat, and the stream goes on when there is room.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import structlog

from ha.stream.connection import HaRules
from ha.stream.progress import CopyProgress
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.ha import Frames, encode_report
from store.follow import Follower, StreamRejected

log = structlog.get_logger("ha.client")

_RETRY_FIRST_MS, _RETRY_MAX_MS = 200, 1_000
_ERROR_RETRY_MS = 30_000
_LAGGING = 1 << 20
_LAGGING_REPORT_MS = 5
"""How often a report is due while more than `_LAGGING` bytes are missing; each makes turns of both sides longer."""


class ClientState(enum.Enum):
    READY = "READY"
    HANDSHAKE = "HANDSHAKE"
    TRANSFER = "TRANSFER"
    ERROR = "ERROR"
    SHUTDOWN = "SHUTDOWN"


class SlaveLink(Protocol):
    """The connection to the master."""

    def send(self, data: bytes) -> None: ...

    def push(self) -> None:
        """Try to have owed bytes leave now, and not only when the turn ends; never waits."""

    def close(self) -> None: ...

    def pause(self) -> None:
        """Read nothing more for the time being."""

    def go_on(self) -> None:
        """Read again."""


def joined(
    frames: Iterable[tuple[int, memoryview]], segment_size: int
) -> Iterator[tuple[int, list[memoryview]]]:
    """Frames as they came, those that follow each other in one segment together.

    Heartbeats, which have no pieces, stay alone, and what came before a frame that is out of bounds is handed on first.
    """
    run: list[memoryview] = []
    start = end = 0
    try:
        for offset, piece in frames:
            within = offset % segment_size
            if run and (offset != end or not piece or not within or within + len(piece) > segment_size):
                yield start, run
                run = []
            if not piece:
                yield offset, []
                continue
            if not run:
                start = offset
            run.append(piece)
            end = offset + len(piece)
    except RemoteProtocolError:
        if run:
            yield start, run
        raise
    if run:
        yield start, run


class HaClient:
    """The slave's end of the connection to its master, which is made again and again."""

    def __init__(
        self,
        follower: Follower,
        rules: HaRules,
        flushed: Callable[[], int],
        now_ms: Callable[[], int],
        *,
        ack_after_flush: bool = False,
    ) -> None:
        """`flushed` tells through where the log is flushed."""
        self.follower = follower
        self.rules = rules
        self.state = ClientState.READY
        self.link: SlaveLink | None = None
        self.why = ""
        """Of READY and ERROR: why there is no connection."""
        self.paused = False
        """Whether nothing is read because there is no room for it."""
        self.reported = -1
        self.read_ms = self.written_ms = 0
        self.received_bytes = 0
        self.rate = 0
        """Bytes received in the last full second."""
        self.master_end = 0
        """Where the master's log ended when it was last heard of: by its own word, or by what it sent at least."""
        self.copy_progress = CopyProgress()
        self._flushed = flushed
        self._clock = now_ms
        self._ack_after_flush = ack_after_flush
        follower.found_whole = None if ack_after_flush else self._found_whole
        self._frames = Frames()
        self._pending: deque[tuple[int, bytes]] = deque()
        self._begins = False
        """Whether the first report is due, and waits for a flush."""
        self._retry_ms = 0
        self._told: str | None = None
        """Why the last connection ended before it was of any use, as it was logged."""
        self._next_try_ms = now_ms()
        self._second_ms, self._second_bytes = self._next_try_ms, 0

    # -- life of a connection ------------------------------------------------------------------------

    @property
    def wait_ms(self) -> int:
        """Return the time until the next try to connect is due."""
        return max(0, self._next_try_ms - self._clock())

    def opened(self, link: SlaveLink) -> None:
        """There is a connection; nothing is said yet."""
        assert self.link is None
        self.link = link
        self.why = ""
        self.state = ClientState.HANDSHAKE
        self.read_ms = self.written_ms = self._clock()
        self._frames = Frames()
        self._pending.clear()
        self.paused = self._begins = False

    def begin(self) -> None:
        """Ask the master to send: the first report says from where."""
        assert self.link is not None and self.state is ClientState.HANDSHAKE
        self.follower.drop_partial()
        self._begins = True
        self._try_to_begin()

    def _try_to_begin(self) -> None:
        # The first report is where the bytes go on, so it can be no other than the end; and where only what is
        # flushed may be reported, the end has to be flushed first.
        if self._reportable() < self.follower.boundary:
            return
        self._begins = False
        self._told = None
        self.state = ClientState.TRANSFER
        self.reported = self.follower.boundary
        self._send_report()
        log.info("following", reported=self.reported)

    def failed(self, why: str) -> None:
        """No connection could be made."""
        if why != self.why:
            log.warning("no connection to the master", reason=why)
        self._over(why)

    def closed(self) -> None:
        """The connection is gone."""
        if self.link is None:
            return
        self.link = None
        self._pending.clear()
        self.follower.drop_partial()
        if self.state is ClientState.HANDSHAKE or self.state is ClientState.TRANSFER:
            if self.state is ClientState.TRANSFER or self.why != self._told:
                log.warning("the connection to the master ended", reason=self.why or "it hung up")
            self._told = self.why
            self._over(self.why or "the master hung up")

    def closed_for(self, why: str) -> None:
        """The connection was given up before anything was said on it."""
        self.why = why
        self.closed()

    def _over(self, why: str) -> None:
        self.why = why
        self.state = ClientState.READY
        self._retry_ms = min(max(self._retry_ms * 2, _RETRY_FIRST_MS), _RETRY_MAX_MS)
        self._next_try_ms = self._clock() + self._retry_ms

    def drop(self, why: str) -> None:
        """Hang up; a new connection to the present master is tried at once."""
        if self.link is not None:
            self.link.close()
            self.closed()
        self.why = why
        self.state = ClientState.READY
        self._retry_ms = 0
        self._next_try_ms = self._clock()

    def shutdown(self, why: str = "") -> None:
        """Hang up for good; `why` is told in the log."""
        if self.link is not None:
            self.why = self.why or why
            self.link.close()
            self.closed()
        self.state = ClientState.SHUTDOWN

    # -- in ------------------------------------------------------------------------------------------

    def receive(self, data: bytes | memoryview) -> None:
        """Append the master's bytes. Raises `RemoteProtocolError` for what cannot be."""
        if self.link is None:
            return
        self.read_ms = self._clock()
        self._second_bytes += len(data)
        self.received_bytes += len(data)
        if self.state is not ClientState.TRANSFER:
            raise RemoteProtocolError("the master spoke before it was asked")
        try:
            try:
                for offset, pieces in joined(self._frames.feed(data), self.follower.segment_size):
                    self.master_end = max(self.master_end, offset + sum(map(len, pieces)))
                    if self._pending:
                        self._pending.append((offset, b"".join(pieces)))
                    else:
                        self._take(offset, pieces)
            finally:
                self.follower.scan_arrived()
        except RemoteProtocolError as exc:
            self._refuse(exc)
            raise

    def _take(self, offset: int, pieces: Sequence[bytes | memoryview]) -> bool:
        """Append what came; False if there is no room for it."""
        follower = self.follower
        if pieces:
            self._retry_ms = 0
            if not follower.append_pieces(offset, pieces):
                self._pending.appendleft((offset, b"".join(pieces)))
                self._pause()
                return False
        elif follower.end and follower.end != offset:  # the master's heartbeat
            raise StreamRejected(
                f"the master goes on at log offset {offset}, but this log ends at {follower.end}"
            )
        return True

    def _refuse(self, exc: RemoteProtocolError) -> None:
        """The stream cannot go on as it is."""
        self.why = str(exc)
        self._pending.clear()
        if isinstance(exc, StreamRejected):
            self.state = ClientState.ERROR
            self._next_try_ms = self._clock() + _ERROR_RETRY_MS
            log.error(
                "the master's bytes are refused",
                reason=str(exc),
                remedy="compare the two logs with `ropewalk store verify`; to copy the master's anew, stop this slave "
                "and empty its store",
            )

    # -- no room -------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if not self.paused:
            self.paused = True
            if self.link is not None:
                self.link.pause()

    def _retry_pending(self) -> None:
        """There may be room now for what is waiting."""
        pending = self._pending
        try:
            try:
                while pending:
                    offset, data = pending.popleft()
                    if not self._take(offset, (data,) if data else ()):
                        return
            finally:
                self.follower.scan_arrived()
        except RemoteProtocolError as exc:
            self._refuse(exc)
            if self.link is not None:
                self.link.close()
            return
        self.paused = False
        self.read_ms = self._clock()
        if self.link is not None:
            self.link.go_on()

    # -- out -----------------------------------------------------------------------------------------

    def _reportable(self) -> int:
        boundary = self.follower.boundary
        return min(boundary, self._flushed()) if self._ack_after_flush else boundary

    def turn_ended(self) -> None:
        """Report the bytes that this turn has appended."""
        if self._begins:
            self._try_to_begin()
        if self.state is not ClientState.TRANSFER:
            return
        if self._pending:
            self._retry_pending()
        offset = self._reportable()
        if offset > self.reported and self.state is ClientState.TRANSFER:
            if self.behind > _LAGGING and self._clock() - self.written_ms < _LAGGING_REPORT_MS:
                return
            self.reported = offset
            self._send_report()

    def _found_whole(self, end: int) -> None:
        """All is here and in order through `end`: if that is all that came, say so before entries are made of it. HOT.

        A producer that waits for it has its answer 13 us of some 210 earlier (1 x 64).
        """
        if end == self.master_end and end > self.reported and self.state is ClientState.TRANSFER:
            self.reported = end
            self._send_report()
            assert self.link is not None
            self.link.push()

    def _send_report(self) -> None:
        assert self.link is not None
        self.link.send(encode_report(self.reported))
        self.written_ms = self._clock()

    # -- time ----------------------------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """Bytes of the master's log that are not here."""
        return max(0, self.master_end - self.follower.boundary)

    def tick(self) -> None:
        """The work of time; call several times a second."""
        now = self._clock()
        if self.state is ClientState.TRANSFER and (
            news := self.copy_progress.observe(self.behind, self.received_bytes, now)
        ):
            log.info("replication", news=news)
        passed = now - self._second_ms
        if passed >= 1000:
            self.rate = self._second_bytes * 1000 // passed
            self._second_ms, self._second_bytes = now, 0
        if self.link is None or self.state is not ClientState.TRANSFER:
            return
        if not self.paused and now - self.read_ms > self.rules.housekeeping_ms:
            self.why = f"the master was silent for more than {self.rules.housekeeping_ms} ms"
            self.link.close()
            self.closed()
            self._retry_ms = 0
            self._next_try_ms = now  # as with RocketMQ: at once
        elif now - self.written_ms > self.rules.heartbeat_ms:
            self._send_report()


class Stream:
    """A single connection to the master as the shell serves it: what comes late, of an older one, touches nothing."""

    has_backlog = False

    def __init__(self, client: HaClient) -> None:
        self.link: SlaveLink | None = None
        self._client = client

    def receive(self, data: bytes | memoryview) -> None:
        if self.link is not None and self._client.link is self.link:
            self._client.receive(data)

    def resume(self) -> None:
        """Nothing is put off."""

    def closed(self) -> None:
        if self.link is not None and self._client.link is self.link:
            self._client.closed()
