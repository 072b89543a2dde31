"""A network in memory under trio's mock clock: connections that deliver in order, late, in pieces, or not at all.

What a cut direction holds back arrives when the cut is healed, as TCP's retransmissions would have it, unless the
connection is reset meanwhile: then both ends learn of it. Directions are cut one by one. Nothing here knows what the
bytes mean: an end is anything with a `session` as the broker's shell knows them.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from tests.sim.group import Node

Address = tuple[str, int]

_STORED = b'{"code":0,"extFields":{"MSG_REGION"'
"""How the answer to a send begins that was stored and is as safe as its broker promises."""


class End:
    """One end of a connection: what the broker's own `Connection` is to sessions and to replication."""

    def __init__(self, net: Net, node: Node | None, local: Address, peer: Address) -> None:
        self.net = net
        self.node = node
        """Whose end it is; None for a client's."""
        self.local = local
        self.peer = peer
        self.session: Any = None
        self.other: End
        self.out_size = 0
        self.congested = False
        self.alone = True
        self.closing = False
        self.patient = False
        self.paused = False
        self.last_due = 0.0
        self.held: list[bytes] = []

    @property
    def is_open(self) -> bool:
        return not self.closing

    def send(self, data: bytes | memoryview) -> None:
        if not self.closing:
            piece = bytes(data)  # the map may be written to before this arrives
            if self.node is not None and _STORED in piece:
                self.node.world.told_zero(self.node)
            self.out_size += len(piece)
            self.net.carry(self, piece)

    def push(self) -> None:
        pass

    def own(self) -> None:
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

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.cuts: set[tuple[str, str]] = set()
        """Directions (from, to) in which nothing passes."""
        self.slow: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._changed = trio.Event()
        self._stuck: list[tuple[End, bytes]] = []
        self._ports = 40_000
        self.ends: dict[End, None] = {}  # in the order in which they came

    # -- time ------------------------------------------------------------------------------------------

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._at(trio.current_time() + delay_s, act)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (when, self._number, act))
        self._changed.set()

    async def run(self) -> None:
        """Deliver what is due, until cancelled."""
        while True:
            self._changed = trio.Event()
            if not self._due:
                await self._changed.wait()
                continue
            when = self._due[0][0]
            if when > trio.current_time():
                with trio.move_on_at(when):
                    await self._changed.wait()
                continue
            heapq.heappop(self._due)[2]()
            await trio.lowlevel.checkpoint()

    def _latency(self, one: End) -> float:
        slow = one.local[0] in self.slow or one.peer[0] in self.slow
        return self.chance.uniform(0.05, 0.3) if slow else self.chance.uniform(0.0001, 0.002)

    # -- connections -----------------------------------------------------------------------------------

    def connect(self, from_ip: str, node: Node | None, to: Address) -> End:
        """A connection to a listening node. Raises ConnectionRefusedError, or TimeoutError into a cut."""
        target = self.nodes.get(to[0])
        if (from_ip, to[0]) in self.cuts or (to[0], from_ip) in self.cuts:
            raise TimeoutError("no connection through a cut")
        if target is None or not target.alive:
            raise ConnectionRefusedError("nobody listens")
        self._ports += 1
        here = End(self, node, (from_ip, self._ports), to)
        there = End(self, target, to, (from_ip, self._ports))
        here.other, there.other = there, here
        self.ends |= {here: None, there: None}
        target.accept(there)
        return here

    def carry(self, end: End, piece: bytes) -> None:
        """Have it arrive at the other end, in order."""
        if (end.local[0], end.peer[0]) in self.cuts:
            self._stuck.append((end, piece))
            return
        if len(piece) > 1 and self.chance.random() < 0.1:
            at = self.chance.randrange(1, len(piece))
            self._schedule(end, piece[:at])
            piece = piece[at:]
        self._schedule(end, piece)

    def _schedule(self, end: End, piece: bytes) -> None:
        due = end.last_due = max(end.last_due, trio.current_time() + self._latency(end))

        def act() -> None:
            if (end.local[0], end.peer[0]) in self.cuts:
                self._stuck.append((end, piece))
            else:
                end.out_size -= len(piece)
                self.arrive(end.other, piece)

        self._at(due, act)

    def arrive(self, end: End, piece: bytes) -> None:
        if end.closing or end.session is None:
            return
        if end.paused:
            end.held.append(piece)
        elif end.node is not None:
            end.node.received(end, piece)
        else:
            end.session.receive(piece)
        sender = end.other
        if (
            sender.node is not None
            and sender.is_open
            and sender.session is not None
            and sender.session.has_backlog
        ):
            sender.node.turn(sender.session.resume)

    def heal(self) -> None:
        """Everything passes again, what was held back first."""
        self.cuts.clear()
        self.slow.clear()
        stuck, self._stuck = self._stuck, []
        for end, piece in stuck:
            if end.is_open:
                self._schedule(end, piece)

    def reset(self, end: End) -> None:
        """Both ends are gone: this one at once, the other one when word of it can arrive."""
        if end.closing:
            return
        self._gone(end)
        other = end.other

        def tell() -> None:
            if (end.local[0], end.peer[0]) in self.cuts and other.is_open:
                self.later(1.0, tell)
            else:
                self._gone(other)

        self.later(self._latency(end), tell)

    def _gone(self, end: End) -> None:
        if end.closing:
            return
        end.closing = True
        self.ends.pop(end, None)
        self._stuck = [(each, piece) for each, piece in self._stuck if each is not end]
        session, end.session = end.session, None
        if session is None:
            return
        if end.node is not None:
            end.node.turn(session.closed)
        else:
            session.closed()

    def reset_node(self, ip: str) -> None:
        """A process is gone: its kernel resets what it had."""
        for end in [each for each in self.ends if each.local[0] == ip]:
            end.session = None
            self.reset(end)
