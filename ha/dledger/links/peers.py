"""The links to the other members: a control and a data link each; frames in and out. Sans-IO.

Of two members the one with the larger id dials, so there is one connection for each kind of link, and both ends use
it. It lives in three states:

    introduced    `ha.dledger.links.hello`; nothing of it reaches the core, and a peer that fails it is told why
    up            frames go in and out; the core knows the link by a number of its own, which only rises
    down          the connection has ended, another one took its place, or nothing was heard for `SILENCE_MS`

Between two followers nothing is said for hours, so a PING goes out where nothing else did: without it a cut cable
would be noticed in the minute in which votes are needed. A connection that comes anew takes the place of the one
before: the peer knows better than this end that the old one is dead.

Which members there are, the address book knows (`ha.dledger.links.address_book`). It changes while links are up:
`configure` tells the configuration in force, and an introduction may tell a newer one. Links to members that are in it
no more end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import structlog
from msgspec import Struct

from ha.dledger.links.address_book import AddressBook, Membership
from ha.dledger.links.blocks import Blocks
from ha.dledger.links.frames import from_frame
from ha.dledger.links.hello import (
    CAME_BACK_EMPTY,
    CHALLENGE_SIZE,
    NO_MEMBER,
    Identity,
    Introduction,
    IntroductionFrames,
    Step,
    encode,
    prove,
    read_introduction,
    refusal_of,
    strangers_refusal,
)
from ha.raft.types import Append, Link, MemberId, Message, link_of
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.dledger.entry import FILLER_HEAD_SIZE, check_run
from ropewalk.format.dledger.frame import Frames, Kind, encode_head

log = structlog.get_logger("ha.dledger")

PING_MS: Final = 500
SILENCE_MS: Final = 2_000
INTRODUCTION_MS: Final = 3_000
_STRANGERS_MAX: Final = 64
_SAY_AGAIN_MS: Final = 60_000
_PING: Final = encode_head(Kind.PING, 0, 0, 0, (0, 0, 0, 0, 0, 0))


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


class PeerStatus(Struct):
    """The links to one peer, for people."""

    address: str
    control: bool = False
    data: bool = False
    heard_at: int = -1
    """When it was heard last, on either link, by this member's monotonic clock; -1: never."""
    why: str = ""
    """The reason why a link is down, as far as it is known."""
    refusal: str = ""
    """The reason that one end gave the other for its last refusal; empty once a link is up."""


class PeerLink:
    """A connection to a member, or to a stranger that has yet to introduce itself."""

    def __init__(
        self,
        peers: Peers,
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
        self.heard_at = self.sent_at = self.began_at = peers.now()
        self._peers = peers
        self._dialed = dialed is not None
        self._on_gone = on_gone
        self._introduction: IntroductionFrames | None = IntroductionFrames()
        self._frames = Frames()
        self._last_word: IntroductionFrames | None = None
        """The first bytes from a dialer that was welcomed: it may refuse all the same."""
        self._challenge = peers.draw(CHALLENGE_SIZE)
        self._is_gone = False
        if not self._dialed:
            connection.send(encode(Step.CHALLENGE, self._challenge))

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
        self.heard_at = self._peers.now()
        if self._introduction is not None:
            data = self._introduced(data, self._introduction)
        if data and self._last_word is not None and self.is_up:
            data = self._welcomed(data, self._last_word)
        if data and self.is_up:
            self._received(data)

    def closed(self) -> None:
        """Note that the connection has ended."""
        self._leave("the connection has ended")

    # -- the introduction --------------------------------------------------------------------------------

    def _introduced(self, data: bytes, introduction: IntroductionFrames) -> bytes:
        """Take what belongs to the introduction; return the bytes behind it."""
        introduction.feed(data)
        while (message := introduction.next_message()) is not None:
            self._step(*message)
            if self.is_up:
                self._introduction = None
                return introduction.rest
            if self._is_gone:
                break
        return b""

    def _welcomed(self, data: bytes, last_word: IntroductionFrames) -> bytes:
        """Return the first bytes from a dialer that was welcomed, unless they refuse this member."""
        last_word.feed(data)
        if last_word.are_of_a_link:
            self._last_word = None
            return last_word.rest
        if (message := last_word.next_message()) is not None:
            step, body = message
            if step is not Step.REFUSED:
                raise RemoteProtocolError(f"a {step.name} that nothing asked for")
            self._refused(body.decode("utf-8", "replace"), self.peer)
        return b""

    def _step(self, step: Step, body: bytes) -> None:
        peers = self._peers
        if step is Step.REFUSED and self._dialed:
            self._refused(body.decode("utf-8", "replace"), self.peer)
        elif step is Step.CHALLENGE and self._dialed and self._peers_challenge is None:
            if len(body) != CHALLENGE_SIZE:
                raise RemoteProtocolError(f"a challenge of {len(body)} bytes")
            self._peers_challenge = body
            self.connection.send(self._introduce(Step.HELLO, body))
        elif step is (Step.WELCOME if self._dialed else Step.HELLO):
            found, proven = read_introduction(step, body, peers.me.secret, self._challenge)
            why = refusal_of(found, proven, peers.me, peers.known.get(found.id))
            if why is None and self._dialed and found.id != self.peer:
                why = f"{found.id} answers where dLegerPeers says that {self.peer} is"
            if why is None:
                peers.hear(found)
                if found.id not in peers.members or (peers.is_stranger and peers.book.newest.index < 0):
                    why = strangers_refusal(found.id, peers.me, peers.book.newest)
            if why is not None:
                # Also to an acceptor that has sent its welcome: a member that lost its store, and that all others
                # dial, would hear of it from nobody else.
                self.connection.send(encode(Step.REFUSED, why.encode()[:2048]))
                self.connection.push()
                self._refused(why, self.peer or (found.id if proven else ""))
                return
            if not self._dialed:
                self.peer, self.kind = found.id, Link(found.kind)
                self.connection.send(self._introduce(Step.WELCOME, found.challenge))
                self._last_word = IntroductionFrames()
            peers.introduced(self, found)
        else:
            raise RemoteProtocolError(f"a {step.name} that nothing asked for")

    _peers_challenge: bytes | None = None

    def _refused(self, why: str, peer: MemberId) -> None:
        """Hang up after a refusal, and note it of the peer if that is a member."""
        self.hang_up(why)
        if why.startswith(f"{self._peers.me.id}{NO_MEMBER}"):
            self._peers.refused_as_stranger()
        elif why.startswith(f"{self._peers.me.id}{CAME_BACK_EMPTY}"):
            self._peers.refused_as_empty(peer)
        if (status := self._peers.status.get(peer)) is not None:
            status.refusal = status.why = why

    def _introduce(self, step: Step, challenge: bytes) -> bytes:
        me, newest = self._peers.me, self._peers.book.newest
        return prove(
            step,
            Introduction(
                me.cluster, me.group, me.id, self.peer, me.incarnation, me.segment_size, self.kind, self._challenge,
                me.software, self._peers.terms, self.peer in self._peers.readmitted, newest.index,
                newest.addresses if newest.index >= 0 else {},
            ),
            me.secret,
            challenge,
        )  # fmt: skip

    # -- frames ------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        groups = self._peers.groups
        for frame in self._frames.feed(data):
            if frame.kind is Kind.PING:
                continue
            group = groups.get(frame.group)
            if group is None:
                self._peers.on_unknown_group(frame.group)
                continue  # a member that is set up otherwise, or starts: lost, as on any network
            events, segment_size = group
            if frame.kind in (Kind.BLOCK, Kind.BLOCK_ANSWER):
                if self.kind is not Link.CONTROL:
                    raise RemoteProtocolError(f"a {frame.kind.name} on the {self.kind.name} link")
                self._peers.blocks.received(self, frame)
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
        self.sent_at = self._peers.clock
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
            self._peers.say(self, why)
            self._leave(why)
            self.connection.close()

    def _leave(self, why: str) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._peers.gone(self, why)
            self._on_gone()


def region_field(group: int) -> dict[str, int]:
    """Return the region of a group as a field of a line of the log; none for the group of the messages."""
    return {"region": group - 1} if group else {}


class Peers:
    """All links of this member."""

    def __init__(
        self,
        me: Identity,
        addresses: Mapping[MemberId, str],
        known: Mapping[MemberId, bytes],
        readmitted: Iterable[MemberId],
        events: LinkEvents,
        now: Callable[[], int],
        draw: Callable[[int], bytes],
    ) -> None:
        """`addresses` in `dLegerPeers`; `known`: the incarnations that were noted; `draw`: so many random bytes.

        `events` hears of the frames of group 0, and of new peers.
        """
        self.me = me
        self.book = AddressBook(me.id, addresses)
        self.members = self.book.members
        """The other members, which are linked or about to be."""
        self.is_stranger = False
        """Whether the group refused this member, whose log names no members, as none of its own."""
        self.known = dict(known)
        self.readmitted = set(readmitted)
        """The members that had lost their logs and were let in again, for good: they know when they have caught up."""
        self.groups: dict[int, tuple[LinkEvents, int]] = {0: (events, me.segment_size)}
        """The groups that share the links, by the number in their frames: receiver, and size of their segments."""
        self.on_unknown_group: Callable[[int], None] = lambda group: None
        """Called with the number of a group that is not here, when a frame of it comes."""
        self.blocks = Blocks()
        self.now = now
        self.draw = draw
        self.clock = now()
        """The time of the last tick."""
        self.status = {peer: PeerStatus(self.book.address(peer)) for peer in sorted(self.members)}
        self._up: dict[tuple[MemberId, Link], PeerLink] = {}
        self._strangers: list[PeerLink] = []
        """Links that are not introduced yet, oldest first."""
        self._last_number = 0
        self._said: dict[str, int] = {}

    @property
    def terms(self) -> dict[int, int]:
        """Return the term that this member is in, by group."""
        return {number: events.term for number, (events, _size) in self.groups.items()}

    def dials(self, peer: MemberId) -> bool:
        """Tell whether this member connects to `peer`, and not the other way round."""
        return self.me.id > peer

    @property
    def dialed_members(self) -> tuple[MemberId, ...]:
        """Return the members that this one connects to."""
        return tuple(sorted(peer for peer in self.members if self.dials(peer)))

    # -- members come and go -----------------------------------------------------------------------------

    def configure(self, membership: Membership) -> None:
        """Take over the configuration in force of group 0."""
        self.book.configure(membership, self.now())
        self._members_changed()

    def refused_as_stranger(self) -> None:
        """Leave all others alone that have no configuration either: the group works, and has to add each of them.

        Else new members could be a majority of what their `dLegerPeers` say, and begin a group of their own.
        """
        if not self.is_stranger and self.book.newest.index < 0:
            self.is_stranger = True
            for link in list(self._up.values()):
                link.hang_up(strangers_refusal(link.peer, self.me, self.book.newest))

    def refused_as_empty(self, peer: MemberId) -> None:
        """Have this member learn before it votes, in all groups, if its log is empty indeed."""
        if peer in self.members and self.groups[0][0].is_empty:
            for _number, (events, _size) in sorted(self.groups.items()):
                events.met(peer, -1, True)

    def hear(self, found: Introduction) -> None:
        """Note a newer configuration that an introduced peer knows."""
        if self.book.hear(Membership(found.index, found.members)):
            self._members_changed()

    def _members_changed(self) -> None:
        self.members = self.book.members
        for link in [*self._strangers, *self._up.values()]:
            if link.peer and link.peer not in self.members:
                link.hang_up(strangers_refusal(link.peer, self.me, self.book.newest))
        for peer in self.status.keys() - self.members:
            del self.status[peer]
        for peer in sorted(self.members):
            self.status.setdefault(peer, PeerStatus("")).address = self.book.address(peer)

    def pin(self, group: int, members: Iterable[MemberId]) -> None:
        """Keep the members of a group linked that shares the links, also those that group 0 has no more."""
        if self.book.pin(group, members, self.now()):
            self._members_changed()

    def join(self, group: int, events: LinkEvents, segment_size: int) -> None:
        """Have another group share the links, also those that are up."""
        assert group not in self.groups, group
        self.groups[group] = events, segment_size
        for link in self._up.values():
            self._meet(link, group, events)
            events.linked(link.peer, link.number, link.kind, True)

    def _meet(self, link: PeerLink, group: int, events: LinkEvents) -> None:
        """Tell a group of a peer, before the link to it is up: a learner says nothing that counts."""
        if group in link.terms or link.says_lost:
            events.met(link.peer, link.terms.get(group, -1), link.says_lost)

    def _linked(self, link: PeerLink, up: bool) -> None:
        for _number, (events, _size) in sorted(self.groups.items()):
            events.linked(link.peer, link.number, link.kind, up)

    # -- links come and go -------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> PeerLink:
        """Return the session of a connection that came in."""
        return self._begin(PeerLink(self, connection, None, _nothing))

    def dialed(
        self, connection: Connection, peer: MemberId, kind: Link, on_gone: Callable[[], None]
    ) -> PeerLink:
        """Return the session of a connection that this member made; `on_gone` when it is over."""
        return self._begin(PeerLink(self, connection, (peer, kind), on_gone))

    def _begin(self, link: PeerLink) -> PeerLink:
        self._strangers.append(link)
        accepted = [each for each in self._strangers if not each.peer]
        if len(accepted) > _STRANGERS_MAX:
            accepted[0].hang_up("too many connections came without an introduction")
        return link

    def introduced(self, link: PeerLink, found: Introduction) -> None:
        """Bring a link up whose introduction was accepted; the one before it goes."""
        self._strangers.remove(link)
        if found.id not in self.known:
            self.known[found.id] = found.incarnation
            self.groups[0][0].noted()
        if (older := self._up.get((link.peer, link.kind))) is not None:
            older.hang_up("a newer connection took its place")
        self._last_number += 1
        link.number = self._last_number
        link.connection.go_first()
        self._up[link.peer, link.kind] = link
        self._show(link, True, "")
        self.status[link.peer].refusal = ""
        link.terms, link.says_lost = found.terms, found.lost
        for number, (events, _size) in sorted(self.groups.items()):
            self._meet(link, number, events)
        self._linked(link, True)

    def readmit(self, peer: MemberId) -> None:
        """Let in the next log with which a member comes, and tell it that the one before was lost."""
        self.known.pop(peer, None)
        self.readmitted.add(peer)

    def forget(self) -> None:
        """Forget the logs of all members: the group goes on without them, and one that comes back is a new one."""
        for peer in self.members:
            self.known.pop(peer, None)
            self.readmitted.discard(peer)

    def gone(self, link: PeerLink, why: str) -> None:
        """Note that a link has ended."""
        if link in self._strangers:
            self._strangers.remove(link)
            if link.peer in self.status:
                self.status[link.peer].why = why
        if link.number >= 0 and self._up.get((link.peer, link.kind)) is link:
            del self._up[link.peer, link.kind]
            self._show(link, False, why)
            self._linked(link, False)

    def _show(self, link: PeerLink, up: bool, why: str) -> None:
        status = self.status[link.peer]
        status.why = why
        if link.kind is Link.CONTROL:
            status.control = up
        else:
            status.data = up

    def say(self, link: PeerLink, why: str) -> None:
        """Write to the log why a link is ended, the same reason once a minute."""
        now = self.now()
        if now - self._said.get(why, -_SAY_AGAIN_MS) >= _SAY_AGAIN_MS:
            if len(self._said) >= _STRANGERS_MAX:
                self._said.clear()
            self._said[why] = now
            address = f"{link.connection.peer[0]}:{link.connection.peer[1]}"
            log.warning("hung up on a DLedger member", peer=link.peer or address, reason=why)

    # -- use ---------------------------------------------------------------------------------------------

    def link(self, peer: MemberId, kind: Link) -> PeerLink | None:
        """Return the link that is up; None if there is none."""
        return self._up.get((peer, kind))

    def hang_up(self, peer: MemberId, number: int, why: str) -> None:
        """End the link with this number, if it is up."""
        for link in list(self._up.values()):
            if (link.peer, link.number) == (peer, number):
                link.hang_up(why)

    def push(self) -> None:
        """Write all owed bytes now, and not only when the turn ends."""
        for link in self._up.values():
            link.connection.push()

    def tick(self, now: int, late: int) -> None:
        """Keep links alive, and end those that say nothing. What came while this loop was late is not read yet."""
        self.clock = now
        self.blocks.tick(now)
        if self.book.expire(now):
            self._members_changed()
        for link in [*self._strangers, *self._up.values()]:
            if late > PING_MS // 2:
                link.heard_at += late
                link.began_at += late
            if not link.is_up:
                if now - link.began_at > INTRODUCTION_MS:
                    link.hang_up(f"no introduction within {INTRODUCTION_MS} ms")
            elif now - link.heard_at > SILENCE_MS:
                link.hang_up(f"nothing was heard for {SILENCE_MS} ms")
            elif now - link.sent_at >= PING_MS:
                link.send(_PING)
        for (peer, _kind), link in self._up.items():
            self.status[peer].heard_at = max(self.status[peer].heard_at, link.heard_at)

    def close(self) -> None:
        """End all links."""
        for link in [*self._strangers, *self._up.values()]:
            link.hang_up("this member stops")


def _nothing() -> None:
    pass
