"""Notifications to the members of consumer groups that have changed (40)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from broker.remoting.session import Session
from broker.state.clients import Notification
from ropewalk.codes import RequestCode

__all__ = ["MemberNotifier"]


MEMBERS_PER_TICK = 300
"""A notification costs a frame and a write: a group of ten thousand members must not take a tick of them all."""


class MemberNotifier:
    """The members of changed groups, until they are told at the next tick."""

    def __init__(self) -> None:
        self._owed: dict[tuple[Session, str], None] = {}

    def notify(self, notifications: Iterable[Notification]) -> None:
        """Owe members the news that their group has changed; `tell_members` tells them."""
        for notification in notifications:
            assert isinstance(notification.peer, Session)
            self._owed[notification.peer, notification.group] = None

    def tell_members(self) -> None:
        """Tell members of changed groups; at every tick, some thousands a second.

        Each member is told once, however many came and went since: a thousand that join one group together would
        otherwise be owed half a million notifications, each of which has a client divide the queues anew.
        """
        owed = list(islice(self._owed, MEMBERS_PER_TICK))
        for session, group in owed:
            del self._owed[session, group]
            if session.is_open:
                session.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
