"""Notifications to the members of consumer groups that have changed (40)."""

from __future__ import annotations

from collections.abc import Iterable

from broker.remoting.session import Session
from broker.state.clients import Notification
from ropewalk.codes import RequestCode

__all__ = ["MemberNotifier"]


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
        """Tell members of changed groups; at every tick.

        Each member is told once, however many came and went since: a thousand that join one group together would
        otherwise be owed half a million notifications, each of which has a client divide the queues anew.
        """
        owed, self._owed = self._owed, {}
        for session, group in owed:
            if session.is_open:
                session.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
