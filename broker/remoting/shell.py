"""The shell: all connections of the process, the turns in which they are served, and no opinions about their bytes.

One trio task waits on one epoll for all connections, reads every ready one, lets their sessions handle all complete
frames, ends the turn (which appends, publishes and completes whatever waited), and then writes to each connection
once. On two cores this carries twice the requests of a task per connection when many clients each wait for a reply
(100 k/s against 48 k/s), and no message costs a wake-up of its own. A connection that others wait for, as producers
wait for what a slave reports, goes first among few, and what it leads to is written before the others are read.

Nothing here ever waits for a peer: one that takes nothing for `stall_s` seconds is closed. Left to others: when turns
come (`event_loop`), reading and writing one connection (`connection`), accepting and connecting (`sockets`).
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final, Protocol

import structlog

from broker.remoting.connection import OUT, Connection, MakeSession
from broker.remoting.event_loop import EventLoop, Events, WaitHints
from broker.remoting.outgoing import TOTAL_MAX, OutgoingBudget
from broker.remoting.places import Places
from broker.remoting.sockets import Kind, Listeners, connect

__all__ = ["Shell", "Turns"]

log = structlog.get_logger("broker.serve")

_READ_SIZE: Final = 256 << 10
_READING_S: Final = 0.003
"""The time of a turn after which no further connections are read, where many are ready."""
_BETWEEN_LOOKS: Final = 4
"""Connections that are read before the clock is looked at."""
_CROWD_MAX: Final = 5
"""Where more connections have something to say, none goes first: each waits for few answers, and it would cost more."""


class Turns(WaitHints, Protocol):
    """The owner of the state behind the sessions, which hears when a turn begins and ends."""

    def begin_turn(self) -> None: ...

    def end_turn(self) -> None: ...

    def on_wakeup(self) -> None:
        """A helper thread left something to take in."""

    def on_priority_served(self) -> None:
        """Within a turn: those that go first have said what they have to say, and the others' turn comes now."""


class Shell:
    """All connections of one process, and the turns in which they are served."""

    def __init__(
        self,
        turns: Turns,
        *,
        out_max: int = 8 << 20,
        out_total_max: int = TOTAL_MAX,
        stall_s: float = 30.0,
        idle_s: float = 120.0,
        first_request_s: float = 10.0,
        connections_max: int = 1 << 30,
    ) -> None:
        """`connections_max` leaves descriptors to the store: a file it cannot open would stop everybody.

        A client over whose connection nothing arrives for `first_request_s` after it came is closed.
        """
        self._turns = turns
        self.loop = EventLoop(turns)
        self.epoll = self.loop.epoll
        self.connections: dict[int, Connection] = {}
        self.places = Places(connections_max)
        self.listeners = Listeners(self.epoll, self._adopt, self.make_room)
        self.budget = OutgoingBudget(out_max, out_total_max)
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._first_request_s = first_request_s
        # What connections see of it (`ConnectionOwner`).
        self.now = time.monotonic()
        self.ready_count = 0
        self.buffer = memoryview(bytearray(_READ_SIZE))
        self.dirty: list[Connection] = []
        self.resumed: list[Connection] = []
        self.to_close: list[Connection] = []
        self.priority_fds: set[int] = set()
        self._left: Events = []
        """Ready connections that the last turn had no time for."""

    async def run(self) -> None:
        """Serve until cancelled."""
        await self.loop.run(self.turn)

    def close(self) -> None:
        self.listeners.close()
        for connection in list(self.connections.values()):
            self._drop(connection)
        self.loop.close()

    # -- one turn ------------------------------------------------------------------------------------

    def turn(self, events: Events, now: float) -> None:
        """Read ready connections, end the turn, write owed bytes. HOT."""
        self.now = now
        self.ready_count = len(events)
        turns, loop = self._turns, self.loop
        turns.begin_turn()
        if self.priority_fds and 1 < self.ready_count <= _CROWD_MAX:
            events = self._serve_foremost(events)
        if self.ready_count <= _CROWD_MAX and not self._left:
            self._serve(events)
        else:
            self._serve_crowd(events)
        resumed, self.resumed = self.resumed, []
        for connection in resumed:
            if connection.is_open:
                connection.resume()
        if loop.has_news:
            loop.has_news = False
            turns.on_wakeup()
        turns.end_turn()
        self.flush()

    def _serve_foremost(self, events: Events) -> Events:
        """Serve those that go first, and write at once what is owed then; the events of all others. HOT.

        A client that gets its answers before the rest of the turn has its next requests ready behind it: 6 % at 1 x 64
        of SYNC_MASTER, and nothing at 32 x 1.
        """
        priority_fds = self.priority_fds
        others = [event for event in events if event[0] not in priority_fds]
        if others and len(others) < len(events):
            self._serve([event for event in events if event[0] in priority_fds])
            self._turns.on_priority_served()
            self._write_owed()
            self.ready_count = len(others)
            return others
        return events

    def _serve_crowd(self, events: Events) -> None:
        """Serve many connections for `_READING_S` at most; the others go first in the next turn.

        A read of each can hold some milliseconds of work, and whoever is served waits for the end of the turn. New
        connections never wait behind others: those could have something to say again and again.
        """
        connections, left = self.connections, self._left
        self._serve([event for event in events if event[0] not in connections])
        events = [event for event in events if event[0] in connections]
        if left:
            self._left = []
            fds = {fd for fd, _ in left}
            events = [event for event in left if event[0] in connections] + [
                event for event in events if event[0] not in fds
            ]
        until = time.monotonic() + _READING_S
        for start in range(0, len(events), _BETWEEN_LOOKS):
            self._serve(events[start : start + _BETWEEN_LOOKS])
            if time.monotonic() > until:
                self._left = events[start + _BETWEEN_LOOKS :]
                break
        if self._left:
            self.loop.wake()

    def _serve(self, events: Events) -> None:
        now, connections = self.now, self.connections
        for fd, event in events:
            connection = connections.get(fd)
            if connection is None:
                if fd == self.loop.wake_fd:
                    os.eventfd_read(fd)
                else:
                    self.listeners.accept(fd)
                continue
            connection.active = now
            if event & OUT:
                connection.write()
            if event & ~OUT:
                connection.read()

    def flush(self) -> None:
        """Write the bytes that sessions owe, and close the connections that they gave up."""
        self._write_owed()
        while self.to_close:
            self._drop(self.to_close.pop())
        if self.resumed:
            self.loop.wake()  # in a turn of its own, so that the others have theirs in between

    def _write_owed(self) -> None:
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            for connection in dirty:
                connection.dirty = False
                if not connection.closing:
                    connection.write()

    # -- coming and going ----------------------------------------------------------------------------

    async def dial(self, host: str, port: int, make_session: MakeSession, timeout_s: float) -> Connection:
        """Connect to a peer, and serve the connection like an accepted one. Raises OSError."""
        sock, peer = await connect(host, port, timeout_s)
        return self._adopt(sock, peer, make_session)

    def _adopt(
        self,
        sock: socket.socket,
        peer: tuple[str, int],
        make_session: MakeSession,
        kind: Kind = Kind.MEMBER,
    ) -> Connection:
        connection = Connection(self, sock, peer, is_guest=kind is not Kind.MEMBER)
        connection.patient = kind is not Kind.CLIENT
        self.priority_fds.discard(connection.fd)  # of one that never came to be
        connection.session = make_session(connection)
        self.connections[connection.fd] = connection
        self.epoll.register(connection.fd, connection.mask)
        if connection.origin:
            self.places.add(connection)
            if self.places.is_overfull:
                self.make_room()
        return connection

    def make_room(self) -> bool:
        """Close the connection of a client that has to go for others; return whether there was any."""
        goes = self.places.pop_next(time.monotonic())
        if goes is not None:
            goes.close()
        return goes is not None

    def _drop(self, connection: Connection) -> None:
        if self.connections.pop(connection.fd, None) is None:
            return
        self.priority_fds.discard(connection.fd)
        self.places.remove(connection)
        connection.end()

    def sweep(self) -> None:
        """Close connections that take nothing or say nothing; call every second or so."""
        self.now = now = time.monotonic()
        self.listeners.listen_again()
        self.places.report()
        pressed = self.places.is_pressed
        mute = 0
        for connection in self.connections.values():
            connection.detach_from_map()
            if connection.out and now - connection.progress > self._stall_s:
                # The kernel calls a socket writable again when a third of its buffer is free, which is minutes on
                # a thin line: whatever a send can place now is progress too.
                connection.write()
            if connection.out and now - connection.progress > self._stall_s and not connection.stall_exempt:
                log.warning(
                    "closed a peer that takes nothing", peer=connection.peer, owed=connection.out_size
                )
                connection.close()
            elif now - max(connection.active, connection.progress) > self._idle_s:
                connection.close()
            elif (
                not connection.active
                and now - connection.progress > self._first_request_s
                and (pressed or not connection.patient)
                and connection.origin
            ):
                mute += 1
                connection.close()
        if mute:
            log.info(
                "closed connections over which no request came",
                connections=mute,
                seconds=self._first_request_s,
            )
        for connection in self.budget.excess(self.connections.values()):
            log.warning(
                "closed a peer that takes its answers slowly, as all together are owed too much",
                peer=connection.peer,
                owed=connection.out_size,
            )
            connection.close()
        self.flush()
