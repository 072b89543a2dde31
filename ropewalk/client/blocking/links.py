"""Conversations over plain sockets: a connection to each address that is talked to, opened when needed.

`BlockingLinks` holds one conversation at a time, `ConversationPool` many: while one waits for its answer, the others
ask. Both belong to one thread at a time, like the connections they talk over. `LinksPool` lends threads as many as hold
conversations at once.
"""

from __future__ import annotations

import itertools
import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from ropewalk.client.blocking.connection import TIMEOUT_S, Connection, receive_any
from ropewalk.client.core.connection import PeerRequestHandler, Unreachable, refuse_peer_request
from ropewalk.client.core.steps import (
    Ask,
    AskAny,
    AwaitPrefetched,
    Effect,
    Oneway,
    Outcome,
    Pause,
    Prefetch,
    Reply,
    Steps,
    T,
)
from ropewalk.client.log import Troubles
from ropewalk.client.machine import clock
from ropewalk.errors import OutcomeUnknown, RopewalkError

K = TypeVar("K")


class BlockingLinks:
    """A carrier of conversations over plain sockets."""

    def __init__(
        self,
        *,
        timeout: float = TIMEOUT_S,
        on_request: PeerRequestHandler = refuse_peer_request,
        troubles: Troubles | None = None,
    ) -> None:
        """Make them without connecting.

        `timeout` seconds bound each connect; `on_request` answers brokers' requests.
        """
        self._timeout = timeout
        self._on_request = on_request
        self._troubles = troubles
        self._connections: dict[str, Connection] = {}
        self._ahead: dict[int, tuple[Connection, int, float]] = {}
        """By ticket: where an answer comes, under which opaque, and how many seconds its asker would wait."""
        self._tickets = itertools.count()

    def drive(self, steps: Steps[T], lock: AbstractContextManager[object] | None = None) -> T:
        """Hold a conversation to its end, and return its result or raise its exception.

        With a `lock`, the conversation itself runs under it and the waiting does not: several threads, each
        with links of its own, can then hold conversations of one core.
        """
        guard = lock if lock is not None else nullcontext()
        reply: Reply = None
        failure: RopewalkError | None = None
        try:
            while True:
                with guard:
                    effect = steps.send(reply) if failure is None else steps.throw(failure)
                reply, failure = None, None
                try:
                    reply = self.carry_out(effect)
                except RopewalkError as exc:
                    failure = exc
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            with guard:
                steps.close()

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def start(self, ask: Ask) -> tuple[Connection, int]:
        """Send a request without waiting: where its answer will come, and under which opaque."""
        connection = self._connection(ask.address, ask.timeout_s)
        return connection, connection.start(ask.command)

    def carry_out(self, effect: Effect) -> Reply:
        """Carry out an effect of a conversation, and return the reply to it. Raises the error that it should hear."""
        match effect:
            case Ask(address, command, timeout_s):
                connection = self._connections.get(address)
                if connection is None or connection.is_quiet:
                    began = clock()
                    connection = self._connection(address, timeout_s)
                    left = timeout_s - (clock() - began)
                    if left <= 0:
                        raise Unreachable(f"no connection to {address} within {timeout_s:g} s")
                    timeout_s = left
                return connection.call(command, timeout_s)
            case Oneway(address, command, timeout_s):
                self._connection(address, timeout_s).oneway(command)
                return None
            case Pause(seconds):
                time.sleep(seconds)
                return None
            case AskAny(asks):
                return self._first_of(asks)
            case Prefetch(ask):
                ticket = next(self._tickets)
                self._ahead[ticket] = (*self.start(ask), ask.timeout_s)
                return ticket
            case AwaitPrefetched(ticket, timeout_s):
                connection, opaque, limit_s = self._ahead.pop(ticket)
                return connection.wait(opaque, min(limit_s, timeout_s))

    def _first_of(self, asks: tuple[Ask, ...]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        under_way: dict[int, tuple[Connection, int]] = {}
        for place, ask in enumerate(asks):
            try:
                under_way[place] = self.start(ask)
            except RopewalkError as exc:
                outcomes[place] = exc
        deadline = clock() + min((ask.timeout_s for ask in asks), default=0.0)
        try:
            while True:
                for place, (connection, opaque) in list(under_way.items()):
                    try:
                        answer = connection.poll_answer(opaque)
                    except OutcomeUnknown as exc:
                        outcomes[place] = exc
                        del under_way[place]
                    else:
                        if answer is not None:
                            outcomes[place] = answer
                            del under_way[place]
                remaining = deadline - clock()
                if outcomes or not under_way:
                    return outcomes
                if remaining <= 0:
                    return {
                        place: OutcomeUnknown(f"no answer from {asks[place].address}") for place in under_way
                    }
                receive_any({connection for connection, _ in under_way.values()}, remaining)
        finally:
            for connection, opaque in under_way.values():
                connection.forget(opaque)

    def _connection(self, address: str, timeout_s: float = math.inf) -> Connection:
        connection = self._connections.get(address)
        if connection is not None:
            # One that the broker closed while we were silent is noticed now and not by losing a request.
            connection.detect_close()
        if connection is None or connection.closed:
            connection = self._connections[address] = self._dial(address, timeout_s)
        return connection

    def _dial(self, address: str, timeout_s: float) -> Connection:
        limit = max(min(self._timeout, timeout_s), 0.001)
        try:
            connection = Connection(
                address, self._timeout, on_request=self._on_request, connect_timeout=limit
            )
        except Unreachable as exc:
            if self._troubles is not None:
                self._troubles.began(("address", address), exc, "not connected", address=address)
            raise
        if self._troubles is not None:
            self._troubles.ended(("address", address), "connected again", address=address)
        return connection


class LinksPool:
    """Connections for several threads: as many sets of them as there were conversations at once, and not threads."""

    def __init__(self, *, timeout: float, troubles: Troubles) -> None:
        """Make it without connecting; `timeout` seconds bound each connect."""
        self._timeout = timeout
        self._troubles = troubles
        self._idle: list[BlockingLinks] = []
        self._all: list[BlockingLinks] = []

    def drive(self, steps: Steps[T], lock: AbstractContextManager[object]) -> T:
        """Hold a conversation to its end, as `BlockingLinks.drive`, over connections that no other thread uses."""
        try:
            links = self._idle.pop()  # one step, whatever other threads do
        except IndexError:
            links = BlockingLinks(timeout=self._timeout, troubles=self._troubles)
            self._all.append(links)
        try:
            return links.drive(steps, lock)
        finally:
            self._idle.append(links)

    def close(self) -> None:
        """Hang up on everybody, also where a thread is in the middle of a conversation."""
        for links in list(self._all):
            links.close()


@dataclass(slots=True, eq=False)
class _Talk(Generic[K, T]):
    """A conversation that waits for an answer."""

    key: K
    steps: Steps[T]
    connection: Connection
    opaque: int
    deadline: float
    timeout_s: float


class ConversationPool(Generic[K, T]):
    """A set of conversations held at the same time. Their requests leave in the order of `begin`."""

    def __init__(self, links: BlockingLinks, lock: AbstractContextManager[object]) -> None:
        """Make it empty. Conversations run under the lock, the waiting does not, as in `BlockingLinks.drive`."""
        self._links = links
        self._lock = lock
        self._talks: list[_Talk[K, T]] = []
        self._paused: list[tuple[float, K, Steps[T]]] = []
        """Conversations that rest, and until when."""
        self.ended: list[tuple[K, T | RopewalkError]] = []
        """Results of conversations by their keys, in the order of their ends; the caller takes them away."""

    def __len__(self) -> int:
        """Conversations that wait for an answer."""
        return len(self._talks) + len(self._paused)

    def close(self) -> None:
        """End the conversations where they are: nobody waits for their results."""
        with self._lock:
            for steps in (*(talk.steps for talk in self._talks), *(steps for _, _, steps in self._paused)):
                steps.close()

    def begin(self, key: K, steps: Steps[T]) -> None:
        """Start one; returns when it waits for its first answer, or has ended."""
        self._go_on(key, steps, None, None)

    def wait(self, timeout: float) -> None:
        """Resume the conversations whose answers have come; wait for an answer for at most `timeout` seconds."""
        if self._take_answers() or not self:
            return
        times = (*(talk.deadline for talk in self._talks), *(until for until, _, _ in self._paused))
        soonest = min(times) - clock()
        receive_any({talk.connection for talk in self._talks}, max(min(timeout, soonest), 0.0))
        self._take_answers()

    def _take_answers(self) -> bool:
        """Go on wherever there is an answer, or will be none. False if there is nowhere."""
        now = clock()
        before = len(self)
        paused, self._paused = self._paused, []
        for until, key, steps in paused:
            if now < until:
                self._paused.append((until, key, steps))
            else:
                self._go_on(key, steps, None, None)
        talks, self._talks = self._talks, []
        for talk in talks:
            answer: Reply = None
            failure: RopewalkError | None = None
            try:
                answer = talk.connection.poll_answer(talk.opaque)
                if answer is None and now < talk.deadline:
                    self._talks.append(talk)
                    continue
                if answer is None:
                    talk.connection.forget(talk.opaque)
                    where = f"{talk.connection.address} within {talk.timeout_s:g} s"
                    failure = OutcomeUnknown(f"no answer from {where}")
            except OutcomeUnknown as exc:
                failure = exc
            self._go_on(talk.key, talk.steps, answer, failure)
        return len(self) < before or bool(self.ended)

    def _go_on(self, key: K, steps: Steps[T], reply: Reply, failure: RopewalkError | None) -> None:
        while True:
            try:
                with self._lock:
                    effect = steps.send(reply) if failure is None else steps.throw(failure)
            except StopIteration as end:
                self.ended.append((key, end.value))
                return
            except RopewalkError as exc:
                self.ended.append((key, exc))
                return
            reply, failure = None, None
            try:
                if isinstance(effect, Pause):
                    self._paused.append((clock() + effect.seconds, key, steps))
                    return
                if isinstance(effect, Ask):
                    deadline = clock() + effect.timeout_s
                    connection, opaque = self._links.start(effect)
                    self._talks.append(_Talk(key, steps, connection, opaque, deadline, effect.timeout_s))
                    return
                reply = self._links.carry_out(effect)
            except RopewalkError as exc:
                failure = exc
