"""Clients of the simulated store: the shipped client's conversations, several at a time, over the simulated network."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ropewalk.client.core.connection import RemotingCore, Response, Unreachable
from ropewalk.client.core.steps import Ask, Pause, Steps
from ropewalk.client.kv.core import KvCore
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from ropewalk.format.remoting import Command
from tests.linear.kv_calls import KvCall, KvCalls, Torn
from tests.sim.ledger.node import Broken

if TYPE_CHECKING:
    from tests.sim.kv.regions import RegionsWorld
    from tests.sim.net import End

NAME_SERVER: Final = "10.0.0.9:9876"
TIMEOUTS_S: Final = 0.6, 1.5, 3.0
AT_A_TIME: Final = 3
"""How many calls of a client are under way at most."""

Heard = Callable[[Command | RopewalkError], None]


class _Connection:
    """A client's end of a connection, as the network knows a session."""

    has_backlog = False

    def __init__(self, carrier: Carrier, address: str) -> None:
        self.core = RemotingCore()
        self.end: End
        self.hear: dict[int, Heard] = {}
        self._carrier = carrier
        self._address = address

    def receive(self, data: bytes) -> None:
        """Hand answers to those who wait for them."""
        for event in self.core.feed(data):
            if isinstance(event, Response):
                self.hear.pop(event.opaque)(event.command)

    def closed(self) -> None:
        """Tell all who wait that no answer will come."""
        self._carrier.forget(self._address, self)
        for opaque in self.core.fail():
            self.hear.pop(opaque)(OutcomeUnknown("the connection broke"))


class Carrier:
    """The connections of one client, one to each address."""

    def __init__(self, world: RegionsWorld, ip: str) -> None:
        self._world = world
        self._ip = ip
        self._connections: dict[str, _Connection] = {}

    def forget(self, address: str, connection: _Connection) -> None:
        """Drop a connection that is gone."""
        if self._connections.get(address) is connection:
            del self._connections[address]

    def drive(self, steps: Steps[Any], done: Callable[[Any], None]) -> None:
        """Carry a conversation on from event to event; `done` hears its result, or the error that it raised."""

        def go_on(outcome: Command | RopewalkError | None) -> None:
            try:
                effect = steps.throw(outcome) if isinstance(outcome, RopewalkError) else steps.send(outcome)
            except StopIteration as end:
                done(end.value)
            except RopewalkError as exc:
                done(exc)
            else:
                if isinstance(effect, Pause):
                    self._world.events.later(effect.seconds, lambda: go_on(None))
                else:
                    assert isinstance(effect, Ask), effect
                    self._ask(effect, go_on)

        go_on(None)

    def _ask(self, ask: Ask, hear: Heard) -> None:
        events = self._world.events
        if ask.address == NAME_SERVER:
            answer = self._world.name_server(ask.command)
            events.later(0.001, lambda: hear(answer))
            return
        connection = self._connections.get(ask.address)
        if connection is None:
            host, _, port = ask.address.rpartition(":")
            opened = _Connection(self, ask.address)
            try:
                opened.end = self._world.net.connect(self._ip, None, (host, int(port)))
            except OSError as exc:
                why = Unreachable(str(exc))
                events.later(ask.timeout_s if isinstance(exc, TimeoutError) else 0.0005, lambda: hear(why))
                return
            opened.end.session = opened
            self._connections[ask.address] = connection = opened
        opaque, frame = connection.core.request(ask.command)
        connection.hear[opaque] = hear
        connection.end.send(frame)

        def too_late() -> None:
            if connection.core.forget(opaque):
                connection.hear.pop(opaque)(OutcomeUnknown(f"no answer within {ask.timeout_s} s"))

        events.later(ask.timeout_s, too_late)


class RegionsClient:
    """A client that makes calls until it is told to stop, some at a time."""

    def __init__(self, world: RegionsWorld, number: int) -> None:
        self.under_way = 0
        self._world = world
        self._core = KvCore(
            NAME_SERVER,
            clock=lambda: world.events.now,
            timeout_s=world.chance.choice(TIMEOUTS_S),
            broker=None,
            start=number,
        )
        self._carrier = Carrier(world, f"10.0.2.{number}")
        self._calls = KvCalls(f"client {number}", world.book, world.chance, batching=True)
        for _ in range(AT_A_TIME):
            self._soon()

    def _soon(self) -> None:
        pause_s = self._world.chance.choice((0.001, 0.005, 0.02, 0.05))
        self._world.events.later(0.001 if self._world.book.hot else pause_s, self._go_on)

    def _go_on(self) -> None:
        if self._world.quiet:
            return
        call = self._calls.draw()
        self.under_way += 1
        steps = getattr(self._core, call.method)(*call.arguments, **call.keywords)
        self._carrier.drive(steps, lambda outcome: self._ended(call, outcome))

    def _ended(self, call: KvCall, outcome: Any) -> None:
        self.under_way -= 1
        try:
            self._calls.ended(call, outcome)
        except Torn as torn:
            raise Broken(str(torn)) from torn
        self._soon()


class Operator:
    """A client that cuts regions while they are used."""

    def __init__(self, world: RegionsWorld) -> None:
        self.cuts = 0
        self._world = world
        self._core = KvCore(NAME_SERVER, clock=lambda: world.events.now, timeout_s=3.0, broker=None, start=0)
        self._carrier = Carrier(world, "10.0.3.1")

    def cut(self, key: str, done: Callable[[], None]) -> None:
        """Cut the region that has a key, as far as one attempt gets."""

        def ended(outcome: Any) -> None:
            if isinstance(outcome, Rejected):
                raise Broken(f"a cut at {key} was refused: {outcome}")
            self.cuts += isinstance(outcome, int)
            self._world.log("operator", f"cut at {key}: {outcome}")
            done()

        self._carrier.drive(self._core.split(key), ended)


def name_server_answer(request: Command, brokers: dict[int, str]) -> Command:
    """Return what a name server tells of the members of the group, by id."""
    assert request.code == RequestCode.GET_BROKER_CLUSTER_INFO
    told = {
        "clusterAddrTable": {"DefaultCluster": ["b"]},
        "brokerAddrTable": {
            "b": {"cluster": "DefaultCluster", "brokerName": "b", "brokerAddrs": dict(brokers)}
        },
    }
    return request.reply(ResponseCode.SUCCESS, body=json.dumps(told).encode())
