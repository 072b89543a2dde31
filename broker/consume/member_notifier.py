"""Notifications to the members of consumer groups that have changed (40)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from broker.remoting.session import Session
from ropewalk.codes import RequestCode

__all__ = ["MemberNotifier"]


MEMBERS_PER_TICK: Final = 300
"""A notification costs a frame and a write: a group of ten thousand members must not take a tick of them all."""
_MEMBERS_AT_ONCE: Final = 50
"""Members of a group that are told before the next group has its turn."""


class MemberNotifier:
    """The groups that have changed, until their members are told, some at each tick."""

    def __init__(self, members_of: Callable[[str], list[Hashable]]) -> None:
        """`members_of` returns the connections of a group."""
        self._members_of = members_of
        self._owed: dict[str, list[Hashable] | None] = {}
        """The members that are still to be told, by group; None until the first of them is."""
        self._again: dict[str, None] = {}
        """Groups that changed while their members were told."""

    def notify(self, groups: Iterable[str]) -> None:
        """Owe the members of these groups the news that their group has changed; `tell_members` tells them."""
        for group in groups:
            if self._owed.setdefault(group, None) is not None:
                self._again[group] = None

    def tell_members(self) -> None:
        """Tell members of changed groups; at every tick, some thousands a second.

        Each member is told once, however many came and went since: a thousand that join one group together would
        otherwise be owed half a million notifications, each of which has a client divide the queues anew.
        """
        left = MEMBERS_PER_TICK
        while self._owed and left > 0:
            group, members = next(iter(self._owed.items()))
            del self._owed[group]
            if members is None:
                members = self._members_of(group)
                members.reverse()
            left -= 1
            for _ in range(min(_MEMBERS_AT_ONCE, len(members))):
                session = members.pop()
                assert isinstance(session, Session)
                if session.is_open:
                    session.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
                left -= 1
            if members:
                self._owed[group] = members
            elif group in self._again:
                del self._again[group]
                self._owed[group] = None
