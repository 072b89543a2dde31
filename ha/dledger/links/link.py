"""`PeerLink`: one connection to a member, or to a stranger that has yet to introduce itself. It lives in three states:

    introduced    `ha.dledger.links.handshake`; nothing of it reaches the core, and a peer that fails it is told why
    up            frames go in and out; the core knows the link by a number of its own, which only rises
    down          the connection has ended, another one took its place, or nothing was heard for a while

Its owner is told of each change, and has the groups whose frames the link carries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ha.dledger.links.blocks import Blocks
from ha.dledger.links.frames import from_frame
from ha.dledger.links.handshake import Handshake, Host
from ha.dledger.links.hello import CHALLENGE_SIZE, Introduction
from ha.raft.types import Append, Link, MemberId, Message, link_of
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.dledger.entry import FILLER_HEAD_SIZE, check_run
from ropewalk.format.dledger.frame import Frames, Kind

__all__ = ["Connection", "LinkEvents", "LinkOwner", "PeerLink"]


class Connection(Protocol):
    """A connection as the shell has it; sending never waits and never raises."""

    peer: tuple[str, int]

    def send(self, data: bytes | memoryview) -> None: ...

    def push(self) -> None:
        """Try to write owed bytes now, and not only when the turn ends."""

    def go_first(self) -> None:
        """Have this connection read before the others of a turn."""

    def close(self) -> None: ...


class LinkEvents(Protocol):
    """The receiver of news about links."""

    @property
    def term(self) -> int:
        """Return the term that this member is in."""

    @property
    def is_empty(self) -> bool:
        """Tell whether the log of this member has no entry."""

    def linked(self, peer: MemberId, number: int, kind: Link, up: bool) -> None: ...

    def received(self, peer: MemberId, number: int, message: Message, body: bytes | memoryview) -> None: ...

    def forwarded(self, link: PeerLink, kind: Kind, number: int, body: bytes) -> None:
        """Hear a request that was forwarded, or the answer to one."""

    def met(self, peer: MemberId, term: int, lost: bool) -> None:
        """Note the term of a peer that was introduced, -1 if it is not in this group, and whether it knows this log for
        lost.
        """

    def noted(self) -> None:
        """Write down the incarnations of the peers, one of which was heard for the first time."""


class LinkOwner(Host, Protocol):
    """The owner of a link: all links of its member."""

    now: Callable[[], int]
    draw: Callable[[int], bytes]
    clock: int
    """The time of the last tick."""
    blocks: Blocks
    on_unknown_group: Callable[[int], None]

    @property
    def groups(self) -> Mapping[int, tuple[LinkEvents, int]]:
        """Return the groups that share the links, by the number in their frames: receiver, and size of segments."""

    def introduced(self, link: PeerLink, found: Introduction) -> None:
        """Bring a link up whose introduction was accepted."""

    def refused(self, link: PeerLink, why: str, peer: MemberId) -> None:
        """End a link of which one end has refused the other."""

    def hung_up(self, link: PeerLink, why: str) -> None:
        """Hear that this member ends a link, before it does."""

    def gone(self, link: PeerLink, why: str) -> None:
        """Note that a link has ended."""


class PeerLink:
    """A connection to a member, or to a stranger that has yet to introduce itself."""

    def __init__(
        self,
        owner: LinkOwner,
        connection: Connection,
        dialed: tuple[MemberId, Link] | None,
        on_gone: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.number = -1
        """The number by which the core knows it; -1 until it is up."""
        self.peer: MemberId = dialed[0] if dialed is not None else ""
        self.kind = dialed[1] if dialed is not None else Link.CONTROL
        self.terms: dict[int, int] = {}
        """The terms that the peer was in when it introduced itself, by group."""
        self.says_lost = False
        """Whether the peer knows that this member had lost its log."""
        self.heard_at = self.sent_at = self.began_at = owner.now()
        self._owner = owner
        self._on_gone = on_gone
        self._frames = Frames()
        self._is_gone = False
        self._handshake: Handshake | None = Handshake(
            owner, connection, dialed, owner.draw(CHALLENGE_SIZE), self._accepted, self._refused
        )

    @property
    def is_up(self) -> bool:
        """Tell whether frames may be sent."""
        return self.number >= 0 and not self._is_gone

    # -- the shell's session -----------------------------------------------------------------------------

    has_backlog = False

    def resume(self) -> None:
        """Do nothing: no request is ever put off here."""

    def receive(self, data: bytes) -> None:
        """Handle bytes that arrived. Raises `RemoteProtocolError` for a peer to hang up on."""
        if self._is_gone:
            return
        self.heard_at = self._owner.now()
        if self._handshake is not None:
            data = self._handshake.receive(data)
            if self._handshake.is_over:
                self._handshake = None
        if data and self.is_up:
            self._received(data)

    def closed(self) -> None:
        """Note that the connection has ended."""
        self._leave("the connection has ended")

    # -- the introduction --------------------------------------------------------------------------------

    def _accepted(self, found: Introduction) -> bool:
        self.peer, self.kind = found.id, Link(found.kind)
        self._owner.introduced(self, found)
        return self.is_up

    def _refused(self, why: str, peer: MemberId) -> None:
        self._owner.refused(self, why, peer)

    # -- frames ------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        groups = self._owner.groups
        for frame in self._frames.feed(data):
            if frame.kind is Kind.PING:
                continue
            group = groups.get(frame.group)
            if group is None:
                self._owner.on_unknown_group(frame.group)
                continue  # a member that is set up otherwise, or starts: lost, as on any network
            events, segment_size = group
            if frame.kind in (Kind.BLOCK, Kind.BLOCK_ANSWER):
                if self.kind is not Link.CONTROL:
                    raise RemoteProtocolError(f"a {frame.kind.name} on the {self.kind.name} link")
                self._owner.blocks.received(self, frame)
                continue
            if frame.kind in (Kind.FORWARD, Kind.FORWARD_ANSWER):
                if self.kind is not Link.CONTROL:
                    raise RemoteProtocolError(f"a {frame.kind.name} on the {self.kind.name} link")
                events.forwarded(self, frame.kind, frame.count, bytes(frame.body))
                if self._is_gone:
                    return
                continue
            message = from_frame(frame, segment_size)
            if self.kind is not link_of(message):
                raise RemoteProtocolError(f"a {frame.kind.name} on the {self.kind.name} link")
            if isinstance(message, Append) and (run := message.run) is not None:
                try:
                    check_run(run.first, run.count, run.term, run.pos, frame.body)
                except CorruptRecord as exc:
                    raise RemoteProtocolError(f"{self.peer} sent {exc}") from exc
                if run.pos % segment_size + run.size > segment_size - FILLER_HEAD_SIZE:
                    raise RemoteProtocolError(
                        f"{self.peer} sent entries through {run.end.pos}: no room is left for a filler"
                    )
            events.received(self.peer, self.number, message, frame.body)
            if self._is_gone:
                return

    def send(self, head: bytes, body: bytes | memoryview = b"") -> None:
        """Owe the peer a frame. HOT."""
        self.sent_at = self._owner.clock
        self.connection.send(head)
        if body:
            self.connection.send(body)

    def push(self) -> None:
        """Write owed bytes now, and not only when the turn ends."""
        self.connection.push()

    # -- the end -----------------------------------------------------------------------------------------

    def hang_up(self, why: str) -> None:
        """End the connection."""
        if not self._is_gone:
            self._owner.hung_up(self, why)
            self._leave(why)
            self.connection.close()

    def _leave(self, why: str) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._owner.gone(self, why)
            self._on_gone()
