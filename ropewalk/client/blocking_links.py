"""Conversations over plain sockets: a connection to each address that is talked to, opened when needed.

Belongs to one thread, like the connections it holds.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext

from ropewalk.client.blocking import TIMEOUT_S, Connection, receive_any
from ropewalk.client.core import PeerRequestHandler, refuse_peer_request
from ropewalk.client.steps import Ask, AskAny, Effect, Outcome, Reply, Steps, T, Tell
from ropewalk.errors import OutcomeUnknown, RopewalkError


class BlockingLinks:
    """Carries out what conversations ask for."""

    def __init__(
        self, *, timeout: float = TIMEOUT_S, on_request: PeerRequestHandler = refuse_peer_request
    ) -> None:
        """`timeout` seconds bound each connect. `on_request` answers what brokers ask of us."""
        self._timeout = timeout
        self._on_request = on_request
        self._connections: dict[str, Connection] = {}

    def drive(self, steps: Steps[T], lock: AbstractContextManager[object] | None = None) -> T:
        """Hold a conversation to its end and return its result, or raise what it raises.

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
                    reply = self._carry_out(effect)
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

    def _carry_out(self, effect: Effect) -> Reply:
        match effect:
            case Ask(address, command, timeout_s):
                return self._connection(address).call(command, timeout_s)
            case Tell(address, command):
                self._connection(address).oneway(command)
                return None
            case AskAny(asks):
                return self._first_of(asks)

    def _first_of(self, asks: tuple[Ask, ...]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        under_way: dict[int, tuple[Connection, int]] = {}
        for place, ask in enumerate(asks):
            try:
                connection = self._connection(ask.address)
                under_way[place] = (connection, connection.start(ask.command))
            except RopewalkError as exc:
                outcomes[place] = exc
        deadline = time.monotonic() + min((ask.timeout_s for ask in asks), default=0.0)
        try:
            while True:
                for place, (connection, opaque) in list(under_way.items()):
                    try:
                        answer = connection.take(opaque)
                    except OutcomeUnknown as exc:
                        outcomes[place] = exc
                        del under_way[place]
                    else:
                        if answer is not None:
                            outcomes[place] = answer
                            del under_way[place]
                remaining = deadline - time.monotonic()
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

    def _connection(self, address: str) -> Connection:
        connection = self._connections.get(address)
        if connection is not None:
            # One that the broker closed while we were silent is noticed now and not by losing a request.
            connection.receive(0)
        if connection is None or connection.closed:
            connection = Connection(address, self._timeout, on_request=self._on_request)
            self._connections[address] = connection
        return connection
