"""`CheckTargets`: which connection of a producer group is asked about a transaction.

Producers that announced their group by heartbeat come first, by turns. A producer that has only sent is known by its
half messages: RocketMQ's clients heartbeat every 30 s, and a transaction may have to be checked before that.
"""

from __future__ import annotations

from broker.remoting.session import Session
from broker.state.clients import ClientRegistry
from broker.state.shares import Shares

__all__ = ["CheckTargets"]

GROUPS_MAX = 20_000
SESSIONS_MAX = 16
"""Connections of a group that are remembered because they sent; the newest ones."""
GROUPS_PER_SESSION_MAX = 100
"""Groups for which a connection is remembered because it sent; the newest ones."""
NAME_SIZE_MAX = 255
"""Characters of the name of a group that may be remembered."""


class CheckTargets:
    """The producers of half messages, by group."""

    def __init__(self, clients: ClientRegistry) -> None:
        self._clients = clients
        self._senders: dict[str, dict[Session, None]] = {}
        self._groups: dict[Session, dict[str, None]] = {}
        self._shares = Shares(GROUPS_MAX)
        self._turn = 0

    def sent(self, group: str, session: Session) -> None:
        """Remember that a half message of this group came on this connection."""
        senders = self._senders.get(group)
        if senders is None:
            if len(group) > NAME_SIZE_MAX or self._shares.refuses(session, len(self._senders)):
                return
            senders = self._senders[group] = {}
            self._shares.add(group, session)
        if session in senders:
            return
        senders[session] = None
        groups = self._groups.setdefault(session, {})
        groups[group] = None
        if len(groups) > GROUPS_PER_SESSION_MAX:
            self._remove(session, next(iter(groups)))
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
            self._shares.discard(group)
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
