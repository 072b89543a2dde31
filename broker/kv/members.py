"""`RegionMembers`: the members of the regions' groups, which follow those of the group of the messages.

An operator changes the members of one group, that of the messages. Each region's group makes the same change, by a
joint configuration of its own log: so it has a majority of its own at every moment, whatever the others have come to.

    begins    region 0 with the members of the first configuration of the group's log that says that there is a store;
              a region that is cut off with those that its parent has at that entry. Every member finds the same ones.
              Until it does, a member answers candidates and is none itself
    follows   the leader of a region takes a step to the newest configuration of the group that is final and committed:
              a new voter learns first, and votes when it lacks little
    is told   a leader that the group has left out may never hear of it, and another one late: so members that know a
              newer configuration than the region follows tell its leader
    goes on   the region notes which configuration it follows; an older one is never followed again

A member that was left out stays linked until every region has let it go (`ha.dledger.links.address_book`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from broker.kv.region import KvRegion
from ha.dledger.ledger import LedgerShell
from ha.dledger.links.frames import config_of
from ha.raft.types import UNKNOWN, Config
from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import Configuration, decode_configuration, encode_configuration

__all__ = ["RegionMembers"]

_TELL_AGAIN_MS: Final = 500


class RegionMembers:
    """The members of the regions, which follow those of the group of the messages."""

    def __init__(
        self, shared: LedgerShell, regions: Iterable[KvRegion], monotonic_ms: Callable[[], int]
    ) -> None:
        """`shared` is the group of the messages; `regions` are those that are open at the moment."""
        self._shared = shared
        self._regions = regions
        self._now = monotonic_ms
        self._told_at: dict[int, int] = {}
        """When a region's leader was told last, by the number of the region."""

    @property
    def is_removed(self) -> bool:
        """Return True if this member is none of the group any more, by the newest configuration in its log."""
        shared = self._shared
        return (
            shared.members.configurations.newest is not None
            and shared.me.id not in shared.members.config.members
        )

    def identity(self) -> dict[str, object]:
        """Return the id of this member and, once settled, those of all members and the entry that says so."""
        settled = self._shared.members.settled
        told: dict[str, object] = {"member": self._shared.me.id}
        if settled is not None:
            told |= {"index": settled[0], "members": config_of(settled[1]).members}
        return told

    def begin(self, region: KvRegion) -> None:
        """Begin with the first members of a region, if they are known, and its log has not named any."""
        base = self._base(region)
        if not region.ledger.members.is_founded and base is not None and base != UNKNOWN:
            region.ledger.members.found(base)

    def _base(self, region: KvRegion) -> Config | None:
        if region.origin is not None:
            parent, index = region.origin
            return parent.ledger.core.log.configs.at(index)
        # Logs from before regions could change their members name none, although they have entries.
        is_known = region.machine.region.id == 0 or region.ledger.core.log.end.index >= 0
        return self._shared.members.founding if is_known else None

    def tick(self) -> None:
        """Have regions follow the group where this member leads them, and tell the leaders of the others."""
        settled = self._shared.members.settled
        for region in self._regions:
            self.begin(region)
            if settled is not None and region.ledger.members.is_founded:
                self._follow(region, *settled)

    def _follow(self, region: KvRegion, index: int, found: Configuration) -> None:
        members = region.ledger.members
        if (
            index <= members.configurations.follows
            or members.config.old
            or _are_same(members.config, config_of(found))
        ):
            return
        if region.leads:
            members.following.follow(index, found)
            return
        now = self._now()
        if now - self._told_at.get(region.number, now - _TELL_AGAIN_MS) >= _TELL_AGAIN_MS:
            self._told_at[region.number] = now
            region.ledger.forward(encode_configuration(replace(found, follows=index)), lambda answer: None)

    def told(self, region: KvRegion, data: bytes) -> None:
        """Hear of a final, committed configuration of the group, as the leader of a region."""
        try:
            found = decode_configuration(data)
        except CorruptRecord:
            return
        if region.leads and region.ledger.members.is_founded:
            self._follow(region, found.follows, found)

    @property
    def behind(self) -> list[int]:
        """Return the regions that have still to follow the group, as far as they are applied here."""
        settled = self._shared.members.settled
        return [
            region.machine.region.id
            for region in self._regions
            if settled is None
            or not _are_same(region.ledger.core.log.configs.at(region.machine.applied), config_of(settled[1]))
        ]


def _are_same(config: Config, other: Config) -> bool:
    """Return whether the same members vote, and the same ones learn."""
    return not config.old and {*config.voters} == {*other.voters} and {*config.learners} == {*other.learners}
