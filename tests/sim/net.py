"""A network in memory: connections that deliver in order, late, in pieces, or not at all.

What a cut direction holds back arrives when the cut is healed, as TCP's retransmissions would have it, unless the
connection is reset meanwhile: then both ends learn of it, sooner or later. A connection can be half open: one end is
gone, and the other one goes on talking to nobody until it is told. Directions are cut one by one. Nothing here knows
what the bytes mean: an end is anything with a `session` as the broker's shell knows them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tests.sim.events import Events

Address = tuple[str, int]


class Host(Protocol):
    """A machine that listens."""

    alive: bool

    def accept(self, end: End) -> None:
        """Somebody has connected."""

    def received(self, end: End, piece: bytes) -> None:
        """Bytes for one of its ends."""

    def turn(self, act: Callable[[], object]) -> None:
        """Do something to one of its sessions."""


class End:
    """One end of a connection: what the broker's own `Connection` is to sessions and to replication."""

    def __init__(self, net: Net, host: Host | None, local: Address, peer: Address) -> None:
        self.net = net
        self.host = host
        """Whose end it is; None for a client's."""
        self.local = local
        self.peer = peer
        self.session: Any = None
        self.other: End
        self.out_size = 0
        self.congested = False
        self.sole_ready = True
        self.closing = False
        self.stall_exempt = False
        self.paused = False
        self.last_due = 0.0  # what leaves later does not arrive earlier
        self.held: list[bytes] = []
        self.leaving: deque[list[bytes]] = deque()
        """What is under way to the other end, in order; what left at one moment arrives together."""
        self.stuck = 0
        """How much of it waits for a cut to be healed."""
        self._left_at = -1.0

    @property
    def is_open(self) -> bool:
        return not self.closing

    def go_first(self) -> None:
        pass

    def send(self, data: bytes | memoryview) -> None:
        if self.closing:
            return
        piece = bytes(data)  # the map may be written to before this arrives
        self.net.on_sent(self, piece)
        self.out_size += len(piece)
        now = self.net.events.now
        if self.leaving and self._left_at == now:
            self.leaving[-1].append(piece)
            return
        self._left_at = now
        self.leaving.append([piece])
        self.net.carry(self)

    def push(self) -> None:
        pass

    def detach_from_map(self) -> None:
        pass

    def close(self) -> None:
        self.net.reset(self)

    def pause(self) -> None:
        self.paused = True

    def go_on(self) -> None:
        self.paused = False
        if self.held:
            held, self.held = self.held, []
            for piece in held:
                self.net.arrive(self, piece)


class Net:
    """All connections of one world, and what delays them."""

    def __init__(self, chance: random.Random, events: Events) -> None:
        self.chance = chance
        self.events = events
        self.on_sent: Callable[[End, bytes], None] = lambda end, piece: None
        """Told of everything at the moment it is sent."""
        self.cuts: set[tuple[str, str]] = set()
        """Directions (from, to) in which nothing passes."""
        self.slow: set[str] = set()
        self.half_open = 0.0
        """How often a peer is not told for seconds that a connection is gone."""
        self.hosts: dict[str, Host] = {}
        self._ports = 40_000
        self.ends: dict[End, None] = {}  # in the order in which they came

    def _latency(self, one: End) -> float:
        slow = one.local[0] in self.slow or one.peer[0] in self.slow
        return self.chance.uniform(0.05, 0.3) if slow else self.chance.uniform(0.0001, 0.002)

    # -- connections -----------------------------------------------------------------------------------

    def connect(self, from_ip: str, host: Host | None, to: Address) -> End:
        """A connection to a listening host. Raises ConnectionRefusedError, or TimeoutError into a cut."""
        target = self.hosts.get(to[0])
        if (from_ip, to[0]) in self.cuts or (to[0], from_ip) in self.cuts:
            raise TimeoutError("no connection through a cut")
        if target is None or not target.alive:
            raise ConnectionRefusedError("nobody listens")
        self._ports += 1
        here = End(self, host, (from_ip, self._ports), to)
        there = End(self, target, to, (from_ip, self._ports))
        here.other, there.other = there, here
        self.ends |= {here: None, there: None}
        target.accept(there)
        return here

    def carry(self, end: End) -> None:
        """Have what it sent last arrive at the other end, perhaps in two pieces."""
        if self.chance.random() < 0.1:
            self._schedule(end, whole=False)
        self._schedule(end)

    def _schedule(self, end: End, *, whole: bool = True) -> None:
        due = end.last_due = max(end.last_due, self.events.now + self._latency(end))
        self.events.at(due, lambda: self._pass(end, whole))

    def _pass(self, end: End, whole: bool) -> None:
        if (end.local[0], end.peer[0]) in self.cuts:
            if whole:
                end.stuck += 1
            return
        piece = b"".join(end.leaving.popleft())
        if not whole and len(piece) > 1:
            at = self.chance.randrange(1, len(piece))
            end.leaving.appendleft([piece[at:]])
            piece = piece[:at]
        elif not whole:
            end.leaving.appendleft([piece])
            return
        end.out_size -= len(piece)
        self.arrive(end.other, piece)

    def arrive(self, end: End, piece: bytes) -> None:
        if end.closing or end.session is None:
            return
        if end.paused:
            end.held.append(piece)
        elif end.host is not None:
            end.host.received(end, piece)
        else:
            end.session.receive(piece)
        sender = end.other
        if (
            sender.host is not None
            and sender.is_open
            and sender.session is not None
            and sender.session.has_backlog
        ):
            sender.host.turn(sender.session.resume)

    def uncut(self, one: str, other: str) -> None:
        self.cuts -= {(one, other), (other, one)}
        self._release()

    def heal(self) -> None:
        """Everything passes again, what was held back first."""
        self.cuts.clear()
        self.slow.clear()
        self._release()

    def _release(self) -> None:
        for end in list(self.ends):
            if end.stuck and (end.local[0], end.peer[0]) not in self.cuts:
                count, end.stuck = end.stuck, 0
                for _piece in range(count):
                    self._schedule(end)

    def reset(self, end: End, *, tell_after_s: float = 0.0) -> None:
        """Both ends are gone: this one at once, the other one when word of it can arrive."""
        if end.closing:
            return
        self._gone(end)
        other = end.other

        def tell() -> None:
            if (end.local[0], end.peer[0]) in self.cuts and other.is_open:
                self.events.later(1.0, tell)
            else:
                self._gone(other)

        self.events.later(tell_after_s + self._latency(end), tell)

    def _gone(self, end: End) -> None:
        if end.closing:
            return
        end.closing = True
        self.ends.pop(end, None)
        session, end.session = end.session, None
        if session is None:
            return
        if end.host is not None:
            end.host.turn(session.closed)
        else:
            session.closed()

    def reset_host(self, ip: str) -> None:
        """A process is gone: its kernel resets what it had, and some peers do not hear of it for long."""
        for end in [each for each in self.ends if each.local[0] == ip]:
            end.session = None
            late = self.chance.random() < self.half_open
            self.reset(end, tell_after_s=self.chance.uniform(0.2, 5) if late else 0.0)

    def leave_half_open(self, ip: str, peer: Address) -> None:
        """What this machine has with that peer ends here, and there only seconds later."""
        for end in [each for each in self.ends if each.local[0] == ip and each.peer == peer]:
            self.reset(end, tell_after_s=self.chance.uniform(0.3, 3))
