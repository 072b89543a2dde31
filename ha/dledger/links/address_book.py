"""`AddressBook`: the members that this one is linked to, and where they are.

Three sources name members. Which of them are voters is the core's affair; links come before that:

    own        the newest configuration in this member's log; `dLegerPeers` while the log has none
    heard      a newer one, which a peer told when it introduced itself: this member's log lacks it
    leaving    members that the newest configuration left out a moment ago: one of them may lead until that is committed
    pinned     members of another group that shares the links, which may have one for longer than this group

A new member finds its group by any member that `dLegerPeers` names, and the others by what that one tells. A member
that was away while others came is told of them by whoever is left, and reaches a leader that its log has never heard
of. What was heard decides about links and about nothing else: it is forgotten when the own log is as new.

The address of a member stands in the log. Where a machine has moved, the log is old and `dLegerPeers` of whoever dials
may be newer: both are tried in turn. A wrong one does no harm, as every end of a link says who it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from msgspec import Struct

from ha.raft.types import MemberId

LEAVING_MS: Final = 10_000
"""How long a member is linked that the newest configuration leaves out."""


class Membership(Struct, frozen=True):
    """The members of a group and their addresses, as one configuration says them."""

    index: int
    """Of the log entry that holds the configuration; -1 where `dLegerPeers` says it."""
    addresses: dict[MemberId, str]
    """`host:port` of each member: voters, learners, and voters that a change has still to remove."""


class AddressBook:
    """The members of a group and their addresses, as far as this member knows."""

    def __init__(self, me: MemberId, settings: Mapping[MemberId, str]) -> None:
        """`settings`: the addresses in `dLegerPeers`."""
        self.own = Membership(-1, dict(settings))
        self._me = me
        self._settings = dict(settings)
        self._pinned: dict[int, frozenset[MemberId]] = {}
        """The members of each other group, by its number: they stay linked whatever the log says."""
        self._heard: Membership | None = None
        self._leaving: dict[MemberId, int] = {}
        """When the link to a member that has left ends, by this member's clock."""
        self._addresses = dict(settings)
        """Every address that this member has ever been told; the newest of each member."""

    @property
    def newest(self) -> Membership:
        """Return the newest configuration that this member knows of."""
        return self._heard or self.own

    @property
    def members(self) -> frozenset[MemberId]:
        """Return the other members to be linked to."""
        heard = self._heard.addresses if self._heard is not None else {}
        pinned = chain.from_iterable(self._pinned.values())
        return frozenset({*self.own.addresses, *heard, *self._leaving, *pinned} - {self._me})

    def address(self, member: MemberId) -> str:
        """Return the address of a member as it was told last; empty for a stranger's."""
        return self._addresses.get(member, "")

    def places(self, member: MemberId) -> tuple[str, ...]:
        """Return the addresses at which to look for a member, the likelier first."""
        found = dict.fromkeys((self._addresses.get(member, ""), self._settings.get(member, "")))
        return tuple(filter(None, found))

    def pin(self, group: int, members: Iterable[MemberId], now: int) -> bool:
        """Keep the members of another group linked; return whether they are others than before."""
        before, pinned = self._pinned.get(group, frozenset()), frozenset(members)
        self._pinned[group] = pinned
        for member in before - pinned:
            self._leaving[member] = now + LEAVING_MS
        return pinned != before

    def tell(self, member: MemberId, address: str) -> None:
        """Note the address of a member that an operator names."""
        self._addresses[member] = address

    def tell_strangers(self, addresses: Mapping[MemberId, str]) -> None:
        """Note the addresses of members of which none is known."""
        told = {id: address for id, address in addresses.items() if address}
        self._addresses = {**told, **self._addresses}

    def configure(self, membership: Membership, now: int) -> None:
        """Take over the configuration in force: it was appended or received, or a cut went back to it."""
        for member in self.own.addresses.keys() - membership.addresses.keys():
            self._leaving[member] = now + LEAVING_MS
        self.own = membership
        self._addresses |= membership.addresses
        for member in membership.addresses:
            self._leaving.pop(member, None)
        if self._heard is not None and self._heard.index <= membership.index:
            self._heard = None

    def hear(self, membership: Membership) -> bool:
        """Note the configuration that a peer tells; return whether it is newer than all that was known."""
        if membership.index <= self.newest.index:
            return False
        self._heard = membership
        for member, address in membership.addresses.items():
            self._addresses[member] = address
        return True

    def expire(self, now: int) -> bool:
        """Forget members that have left long enough ago; return whether there were any."""
        gone = [member for member, until in self._leaving.items() if now >= until]
        for member in gone:
            del self._leaving[member]
        return bool(gone)
