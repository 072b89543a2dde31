"""`CheckTargets`: which connection of a producer group is asked about a transaction.

Producers that announced their group by heartbeat come first, by turns. A producer that has only sent is known by its
half messages: RocketMQ's clients heartbeat every 30 s, and a transaction may have to be checked before that.
"""

from __future__ import annotations

from broker.remoting.session import Session
from broker.state.clients import ClientRegistry

__all__ = ["CheckTargets"]

GROUPS_MAX = 20_000
SESSIONS_MAX = 16
"""Connections of a group that are remembered because they sent; the newest ones."""


class CheckTargets:
    """The producers of half messages, by group."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._senders: dict[str, dict[Session, None]] = {}
        self._groups: dict[Session, dict[str, None]] = {}
        self._turn = 0

    def sent(self, group: str, session: Session) -> None:
        """Remember that a half message of this group came on this connection."""
        senders = self._senders.get(group)
        if senders is None:
            if len(self._senders) >= GROUPS_MAX:
                return
            senders = self._senders[group] = {}
        if session in senders:
            return
        senders[session] = None
        self._groups.setdefault(session, {})[group] = None
        if len(senders) > SESSIONS_MAX:
            self._remove(next(iter(senders)), group)

    def closed(self, session: Session) -> None:
        """Forget a connection that has ended."""
        for group in tuple(self._groups.get(session, ())):
            self._remove(session, group)

    def _remove(self, session: Session, group: str) -> None:
        senders = self._senders[group]
        del senders[session]
        if not senders:
            del self._senders[group]
        groups = self._groups[session]
        del groups[group]
        if not groups:
            del self._groups[session]

    def next_of(self, group: str) -> Session | None:
        """Return a live connection of the group, another one each time; None if there is none."""
        registered = [peer for peer in self._clients.producer_members(group) if isinstance(peer, Session)]
        for candidates in (registered, list(self._senders.get(group, ()))):
            live = [session for session in candidates if session.is_open]
            free = [session for session in live if not session.link.congested] or live
            if free:
                self._turn += 1
                return free[self._turn % len(free)]
        return None
