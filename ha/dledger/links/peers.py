"""`Peers`: the links to the other members, a control and a data link each. Sans-IO.

Of two members the one with the larger id dials, so there is one connection for each kind of link, and both ends use
it. Between two followers nothing is said for hours, so a PING goes out where nothing else did: without it a cut cable
would be noticed in the minute in which votes are needed. A connection that comes anew takes the place of the one
before: the peer knows better than this end that the old one is dead.

Which members there are, the address book knows (`ha.dledger.links.address_book`). It changes while links are up:
`configure` tells the configuration in force, and an introduction may tell a newer one. Links to members that are in it
no more end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ha.dledger.links.address_book import AddressBook, Membership
from ha.dledger.links.blocks import Blocks
from ha.dledger.links.hello import (
    CAME_BACK_EMPTY,
    NO_MEMBER,
    Identity,
    Introduction,
    Proof,
    introduction_of,
    refusal_of,
    strangers_refusal,
)
from ha.dledger.links.link import Connection, LinkEvents, PeerLink
from ha.dledger.links.peer_status import HangUpLog, PeerStatus
from ha.raft.terms import is_too_high
from ha.raft.types import Link, MemberId
from ropewalk.format.dledger.frame import Kind, encode_head

__all__ = ["INTRODUCTION_MS", "PING_MS", "SILENCE_MS", "Peers"]

PING_MS: Final = 500
SILENCE_MS: Final = 2_000
INTRODUCTION_MS: Final = 3_000
_STRANGERS_MAX: Final = 64
_PING: Final = encode_head(Kind.PING, 0, 0, 0, (0, 0, 0, 0, 0, 0))


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
        self._hosts: dict[MemberId, str] = {}
        """The IP from which each member came last: its address may be a name."""
        self._last_number = 0
        self._log = HangUpLog()

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

    def _refused_as_stranger(self) -> None:
        """Leave all others alone that have no configuration either: the group works, and has to add each of them.

        Else new members could be a majority of what their `dLegerPeers` say, and begin a group of their own.
        """
        if not self.is_stranger and self.book.newest.index < 0:
            self.is_stranger = True
            for link in list(self._up.values()):
                link.hang_up(strangers_refusal(link.peer, self.me, self.book.newest))

    def _refused_as_empty(self, peer: MemberId) -> None:
        """Have this member learn before it votes, in all groups, if its log is empty indeed."""
        if peer in self.members and self.groups[0][0].is_empty:
            for _number, (events, _size) in sorted(self.groups.items()):
                events.met(peer, -1, True)

    def _members_changed(self) -> None:
        self.members = self.book.members
        for link in [*self._strangers, *self._up.values()]:
            if link.peer and link.peer not in self.members:
                link.hang_up(strangers_refusal(link.peer, self.me, self.book.newest))
        for peer in self.status.keys() - self.members:
            del self.status[peer]
            self._hosts.pop(peer, None)
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
            self._make_room(accepted)
        return link

    def _make_room(self, accepted: list[PeerLink]) -> None:
        """Hang up on one of too many connections without an introduction: strangers must not push members out.

        Those from no member's address go first, then those from the address with most of them, then the oldest.
        """
        hosts = {self.book.address(peer).rpartition(":")[0] for peer in self.members} | set(
            self._hosts.values()
        )
        count = Counter(each.connection.peer[0] for each in accepted)
        goes = min(
            accepted,
            key=lambda each: (each.connection.peer[0] in hosts, -count[each.connection.peer[0]]),
        )
        goes.hang_up("too many connections came without an introduction")

    def introduction(self, to: MemberId, kind: Link, challenge: bytes) -> Introduction:
        """Return the introduction of this member to a peer."""
        lost = to in self.readmitted
        return introduction_of(self.me, to, kind, challenge, self.book.newest, self.terms, lost=lost)

    def judge(self, found: Introduction, proof: Proof, dialed: MemberId) -> str | None:
        """Return the reason in words why a peer is refused, or None; note a newer configuration that it knows.

        `dialed` is the member that this one looked for; "" where the peer did the dialing.
        """
        known = self.known.get(found.id)
        why = refusal_of(found, proof, self.me, known, is_named=found.id in self.members)
        if why is None and dialed and found.id != dialed:
            why = f"{found.id} answers where dLegerPeers says that {dialed} is"
        for group, term in found.terms.items() if why is None else ():
            if is_too_high(term, own := self.terms.get(group, 0)):
                why = f"{found.id} is in term {term} of group {group}, far above {own} of this member"
        if why is None:
            if self.book.hear(Membership(found.index, found.members)):
                self._members_changed()
            if found.id not in self.members or (self.is_stranger and self.book.newest.index < 0):
                why = strangers_refusal(found.id, self.me, self.book.newest)
        return why

    def refused(self, link: PeerLink, why: str, peer: MemberId) -> None:
        """End a link of which one end has refused the other, and note the reason of the peer if that is a member."""
        link.hang_up(why)
        if why.startswith(f"{self.me.id}{NO_MEMBER}"):
            self._refused_as_stranger()
        elif why.startswith(f"{self.me.id}{CAME_BACK_EMPTY}"):
            self._refused_as_empty(peer)
        # Of a member that is linked, a stranger under its name tells nothing.
        if (status := self.status.get(peer)) is not None and not (status.control and status.data):
            status.refusal = status.why = why

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
        self._hosts[link.peer] = link.connection.peer[0]
        self._up[link.peer, link.kind] = link
        self.status[link.peer].changed(link.kind, True, "")
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

    def hung_up(self, link: PeerLink, why: str) -> None:
        """Write to the log why this member ends a link."""
        address = f"{link.connection.peer[0]}:{link.connection.peer[1]}"
        self._log.say(link.peer or address, why, self.now())

    def gone(self, link: PeerLink, why: str) -> None:
        """Note that a link has ended."""
        if link in self._strangers:
            self._strangers.remove(link)
            if link.peer in self.status:
                self.status[link.peer].why = why
        if link.number >= 0 and self._up.get((link.peer, link.kind)) is link:
            del self._up[link.peer, link.kind]
            self.status[link.peer].changed(link.kind, False, why)
            self._linked(link, False)

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
