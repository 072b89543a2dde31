"""The transfer of a snapshot over a data link: begin, pieces within a window, end; each piece is answered.

    leader    SNAPSHOT_BEGIN  ->                     follower: does it lack this? the core judges
              <-  SNAPSHOT_ANSWER 0
              SNAPSHOT_CHUNK, eight at most  ->      <-  SNAPSHOT_ANSWER received
              SNAPSHOT_END  ->                       checksum, disk, core, and the member begins anew with it

Nothing is taken up again: a link that breaks or another term ends a transfer, and the next one has newer tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import crc32c
import structlog

from ha.dledger.links.frames import to_fields
from ha.dledger.links.link import PeerLink
from ha.dledger.links.peer_status import region_field
from ha.dledger.links.peers import Peers
from ha.dledger.storage import LogPoint, LogStorage
from ha.raft.types import (
    Event,
    Link,
    MemberId,
    Point,
    SnapshotAnswer,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotFailed,
    SnapshotMessage,
    SnapshotTaken,
)
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.dledger.entry import decode_head
from ropewalk.format.dledger.frame import CHUNK_SIZE_MAX, encode_head_with
from ropewalk.format.dledger.snapshot import decode_member_snapshot

log = structlog.get_logger("ha.dledger")

__all__ = ["IncomingSnapshot", "OutgoingSnapshot", "SnapshotExchange"]

AGAIN_MS: Final = 1_000
"""How long a peer whose snapshot failed waits for the next."""
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


class SnapshotExchange:
    """The snapshots that a member makes for others, and the one that its leader sends."""

    def __init__(
        self,
        group: int,
        peers: Peers,
        storage: LogStorage,
        now_ms: Callable[[], int],
        term: Callable[[], int],
        tell: Callable[[Event], None],
    ) -> None:
        """Begin without any. `term` returns the member's term, `tell` tells its core an event."""
        self.make: Callable[[Callable[[LogPoint, bytes], None]], None] | None = None
        """Make a snapshot and hand it over with the log through its first entry; no bytes: there is none now."""
        self.refuse: Callable[[bytes], str | None] = lambda state: None
        """Return in words why a snapshot with this state cannot be taken. May raise `CorruptRecord`."""
        self._group = group
        self._peers = peers
        self._storage = storage
        self._now = now_ms
        self._term = term
        self._tell = tell
        self._begun: dict[MemberId, int] = {}
        """When the last snapshot for each peer was begun."""
        self._due: dict[MemberId, int] = {}
        """The terms in which this member leads and waits to begin another one, by peer: a later one has its own."""
        self._outgoing: dict[MemberId, OutgoingSnapshot] = {}
        self._incoming: IncomingSnapshot | None = None

    def tick(self) -> None:
        """Begin the snapshots whose time has come."""
        for peer, term in tuple(self._due.items()):
            if term == self._term():
                self.begin(peer)
            else:
                del self._due[peer]

    def begin(self, peer: MemberId) -> None:
        """Make a snapshot for a peer, at most one in a while."""
        now, link = self._now(), self._peers.link(peer, Link.DATA)
        self._due.pop(peer, None)
        if self.make is None or link is None:
            if self.make is None and peer not in self._begun:
                self._begun[peer] = now
                log.error(
                    "a member is behind what is kept of the log, and there are no snapshots of this group to send",
                    peer=peer, remedy="give it a copy of another member's store (docs/operate/dledger.md)",
                    **region_field(self._group),
                )  # fmt: skip
            return
        if now - self._begun.get(peer, -AGAIN_MS) < AGAIN_MS:
            self._due[peer] = self._term()
            return
        self._begun[peer] = now
        self.make(partial(self._made, peer, link.number, self._term()))

    def _made(self, peer: MemberId, number: int, term: int, point: LogPoint, data: bytes) -> None:
        link = self._peers.link(peer, Link.DATA)
        if link is None or link.number != number or self._term() != term:
            return  # whatever ended this transfer has the core look again
        if not data:
            self._tell(SnapshotFailed(peer, self._now()))
            return
        log.warning(
            "a member is behind what retention has kept: it is sent a snapshot",
            peer=peer, size=len(data), **region_field(self._group),
        )  # fmt: skip
        self._outgoing[peer] = outgoing = OutgoingSnapshot(number, term, Point(*point), data)
        self._send(link, outgoing.begin)

    def received(self, peer: MemberId, message: SnapshotMessage, data: bytes | memoryview) -> None:
        """Go on with a transfer; a peer that breaks its rules is hung up on."""
        link = self._peers.link(peer, Link.DATA)
        if link is None:
            return
        if isinstance(message, SnapshotAnswer):
            outgoing = self._outgoing.get(peer)
            found = (link.number, message.term, message.index)
            if outgoing is not None and (outgoing.link, outgoing.term, outgoing.point.index) == found:
                for each, piece in outgoing.answered(message.received):
                    self._send(link, each, piece)
            return
        try:
            self._take(link, message, data)
        except (RemoteProtocolError, CorruptRecord) as exc:
            self._incoming = None
            link.hang_up(str(exc))

    def _take(
        self, link: PeerLink, message: SnapshotBegin | SnapshotChunk | SnapshotEnd, data: bytes | memoryview
    ) -> None:
        if isinstance(message, SnapshotBegin):
            self._incoming = IncomingSnapshot(link.peer, link.number, message)
        incoming = self._incoming
        if incoming is None:
            return
        if isinstance(message, SnapshotChunk | SnapshotEnd) and not incoming.is_of(
            link.peer, link.number, message
        ):
            return
        if isinstance(message, SnapshotChunk):
            incoming.add(message.offset, bytes(data))
        if isinstance(message, SnapshotEnd):
            whole, self._incoming = incoming.end(message), None
            self._judge(whole, incoming.point)
            if (why := self.refuse(decode_member_snapshot(whole).state)) is not None:
                log.warning("this member is behind, and cannot begin with the leader's state yet", why=why)
                return
            taken = SnapshotTaken(incoming.leader, incoming.term, incoming.point)
            self._storage.stage_snapshot(whole, partial(self._tell, taken))
        else:
            self._send(link, SnapshotAnswer(incoming.term, incoming.point.index, incoming.received))

    def _judge(self, data: bytes, point: Point) -> None:
        """Raise `RemoteProtocolError` or `CorruptRecord` for a snapshot that is not what it was said to be."""
        head, size = decode_head(decode_member_snapshot(data).entry), self._storage.segment_size
        if Point(head.index, head.term, head.pos + head.size) != point or head.pos % size:
            raise RemoteProtocolError(f"a snapshot of {point} has entry {head.index} at {head.pos}")

    def _send(self, link: PeerLink, message: SnapshotMessage, body: bytes | memoryview = b"") -> None:
        frame, flags, count, numbers = to_fields(message)
        checksum = crc32c.crc32c(body) if body else 0
        link.send(encode_head_with(frame, flags, self._group, count, numbers, len(body), checksum), body)
