"""`EventQueue`: events on their way to the core of a member, one after the other.

    tell   -->   queue   -->   RaftNode.step   -->   the owner carries the effects out, and may tell more

An event that arises while effects are carried out waits until they are: nothing is nested. What the owner has appended
is told before any other event, because the core must know of it before it hears of a newer leader. A peer whose message
breaks the protocol is hung up on; any other failure ends the member for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ha.dledger.links.peers import Peers
from ha.raft.node import RaftNode
from ha.raft.types import Effects, Event, Received
from ropewalk.errors import RemoteProtocolError, RopewalkError

__all__ = ["EventOwner", "EventQueue", "MemberFailed"]


class MemberFailed(RopewalkError):
    """A member whose state is inconsistent, or whose write failed: it must stop rather than vote again."""


class EventOwner(Protocol):
    """The owner of a core."""

    core: RaftNode

    def tell_appended(self) -> None:
        """Put the runs that were appended in front of the queue."""

    def carry_out(self, effects: Effects, event: Event, data: bytes | memoryview) -> None:
        """Carry out the effects of an event, which came with `data`."""


class EventQueue:
    """The events that the core has still to hear, and the failure after which it hears none."""

    __slots__ = ("_events", "_failure", "_is_stepping", "_owner", "_peers")

    def __init__(self, owner: EventOwner, peers: Peers) -> None:
        self._owner = owner
        self._peers = peers
        self._events: deque[tuple[Event, bytes | memoryview]] = deque()
        self._is_stepping = False
        self._failure: BaseException | None = None

    def tell(self, event: Event, data: bytes | memoryview = b"") -> None:
        """Tell the core an event: at once, or after those before it. HOT."""
        if self._failure is None:
            self._events.append((event, data))
            if not self._is_stepping:
                self.drain()

    def put_first(self, events: Sequence[Event]) -> None:
        """Have the core hear these events, in their order, before those that are queued."""
        for event in reversed(events):
            self._events.appendleft((event, b""))

    def drain(self) -> None:
        """Tell the core everything that is queued, and the runs that were appended before all else."""
        assert not self._is_stepping, "events are queued while effects are carried out"
        self._is_stepping = True
        owner = self._owner
        try:
            owner.tell_appended()
            while self._events:
                event, data = self._events.popleft()
                try:
                    effects = owner.core.step(event)
                except RemoteProtocolError as exc:
                    assert isinstance(event, Received), event
                    self._peers.hang_up(event.peer, event.link, str(exc))
                    continue
                owner.carry_out(effects, event, data)
        except BaseException as exc:
            # The broker's shell hangs up on a peer whose bytes raise, and goes on. Here nothing may go on.
            self._failure = exc
            self._events.clear()
            raise
        finally:
            self._is_stepping = False

    def refuse_to_go_on(self) -> None:
        """Raise `MemberFailed` once this member must not go on."""
        if self._failure is not None:
            me = self._peers.me
            raise MemberFailed(f"{me.id} of group {me.group} must stop: {self._failure}") from self._failure
