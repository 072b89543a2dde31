"""The load of a drill: producers that send in order, know what they were promised, and go where the route says.

A lane is one producer with one connection and one request in flight. It sends the next message when the last one is
stored, and sends a message again as long as it does not know that; nothing overtakes. Lanes are paced, so that the
rate says something about the cluster only when the cluster cannot follow.

The router asks the name server for the master, again and again, and hangs up on a broker that is the master no more.
Real clients ask every few seconds; a drill measures the cluster and not a client's patience.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from ropewalk.client.aio.connection import AsyncConnection, open_connection
from ropewalk.client.core.messages import Message, command_of, route_request, send_request
from ropewalk.client.core.routes import Queue, parse_route
from ropewalk.codes import Permission, RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError, error_for
from ropewalk.format.headers import CreateTopicHeader, SendResponseHeader, decode_header
from ropewalk.format.record import parse_message_id
from ropewalk.format.remoting import Command
from tools.drill.audit import OPEN_CODES, Attempt, Sent
from tools.drill.messages import Identity, body_of
from tools.drill.timeline import Timeline

CONNECT_TIMEOUT_S = 1.0
SEND_TIMEOUT_S = 2.5
"""Longer than the cluster's `slaveTimeout`, so that a late slave is told by the broker and not guessed here."""
RETRY_S = 0.02
_ROUTE_EVERY_S = 0.1
_ROUTE_SEARCH_S = 0.01
_CREATE_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The messages to be sent."""

    run: str
    """A word in every message of this run."""
    topic: str
    broker_name: str
    queues: int = 4
    lanes: int = 16
    rate: float = 300.0
    """Messages a second, all lanes together."""
    body_size: int = 256


class Router:
    """Knows the master as the name server tells it."""

    def __init__(self, name_server: str, topic: str, broker_name: str) -> None:
        self._name_server = name_server
        self._topic = topic
        self._broker_name = broker_name
        self._changed = trio.Event()
        self.master: str | None = None
        self.last_master: str | None = None
        """`master`, or while there is none the one that was."""
        self.on_change: Callable[[str | None], None] = lambda master: None
        self.searching = 0
        """Lanes that have no master to talk to."""

    async def run(self) -> None:
        """Ask until cancelled. A name server that is away changes nothing."""
        while True:
            try:
                async with open_connection(self._name_server, timeout=CONNECT_TIMEOUT_S) as connection:
                    while True:
                        await self._ask(connection)
                        await trio.sleep(_ROUTE_SEARCH_S if self.searching else _ROUTE_EVERY_S)
            except (RopewalkError, OSError):
                await trio.sleep(_ROUTE_EVERY_S)

    async def _ask(self, connection: AsyncConnection) -> None:
        answer = await connection.call(route_request(self._topic), CONNECT_TIMEOUT_S)
        master = None
        if answer.code == ResponseCode.SUCCESS:
            broker = parse_route(answer.body).brokers.get(self._broker_name)
            master = broker.master if broker is not None else None
        elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
            return
        if master != self.master:
            self.master = master
            self.last_master = master or self.last_master
            self.on_change(master)
            self._changed.set()
            self._changed = trio.Event()

    async def wait(self) -> str:
        """The master, once there is one."""
        while self.master is None:
            await self._changed.wait()
        return self.master


class Load:
    """All lanes, and the ledger of their messages."""

    def __init__(
        self, spec: LoadSpec, router: Router, timeline: Timeline, name_of: Callable[[str], str]
    ) -> None:
        """`name_of` turns a broker's address into the name that reports call it by."""
        self.spec = spec
        self.sent: list[Sent] = []
        self.probes: list[Sent] = []
        """Messages from before the load, which only the audit looks at."""
        self.answer_counts: dict[int, int] = {}
        """Answers by code; -1 counts requests that never had one."""
        self.stopping = False
        self.finished = False
        self.first_remarks: dict[int, str] = {}
        """The remark of the first answer with each code, 0 excepted."""
        self._router = router
        self._timeline = timeline
        self._name_of = name_of
        self._connections: dict[int, tuple[str, AsyncConnection]] = {}

    async def run(self) -> None:
        """Send until `stopping`; returns when every lane has its last answer, or has given up on it."""
        async with trio.open_nursery() as nursery:
            for lane in range(self.spec.lanes):
                nursery.start_soon(self._lane, lane)
        self.finished = True

    async def probe(self, address: str) -> int | None:
        """Send one message before the load begins; the code of its answer. Raises `Unreachable`."""
        message = Sent(Identity(self.spec.lanes, len(self.probes), 0))
        self.probes.append(message)
        async with open_connection(address, timeout=CONNECT_TIMEOUT_S) as connection:
            attempt = await self._send(connection, address, message)
        return attempt.code

    def leave_others(self, master: str | None) -> None:
        """Hang up on everybody but the master. What was under way there will never be known."""
        for address, connection in list(self._connections.values()):
            if address != master and master is not None:
                connection.close()

    async def _lane(self, lane: int) -> None:
        spec = self.spec
        pace_s = spec.lanes / spec.rate
        due = trio.current_time() + pace_s * lane / spec.lanes
        number = 0
        pending: Sent | None = None
        failing = False
        while not self.stopping:
            try:
                async with self._connection(lane, failing) as (address, connection):
                    while not self.stopping:
                        if pending is None:
                            await trio.sleep_until(due)
                            due = max(due + pace_s, trio.current_time())
                            number += 1
                            pending = Sent(Identity(lane, number, lane % spec.queues))
                        attempt = await self._attempt(connection, address, pending)
                        failing = attempt.outcome != "acknowledged" and attempt.code not in OPEN_CODES
                        if failing:
                            break
                        pending = None
            except (RopewalkError, OSError):
                failing = True
            if not self.stopping:
                await trio.sleep(RETRY_S)

    @asynccontextmanager
    async def _connection(self, lane: int, failing: bool) -> AsyncIterator[tuple[str, AsyncConnection]]:
        """A connection to whoever is the master now."""
        # Whoever failed may have been told of a master that is none any more: then the router looks more often.
        self._router.searching += failing
        try:
            address = await self._router.wait()
            async with open_connection(address, timeout=CONNECT_TIMEOUT_S) as connection:
                self._connections[lane] = address, connection
                yield address, connection
        finally:
            self._router.searching -= failing
            self._connections.pop(lane, None)

    async def _attempt(self, connection: AsyncConnection, address: str, message: Sent) -> Attempt:
        """Send a message once, and count it."""
        first = not message.attempts
        attempt = await self._send(connection, address, message)
        if first:
            self.sent.append(message)
        code = -1 if attempt.code is None else attempt.code
        self.answer_counts[code] = self.answer_counts.get(code, 0) + 1
        if attempt.code:
            self.first_remarks.setdefault(attempt.code, attempt.remark)
        return attempt

    async def _send(self, connection: AsyncConnection, address: str, message: Sent) -> Attempt:
        """Send a message once. Raises `Unreachable` when it never left, which is no attempt."""
        spec = self.spec
        identity = message.identity
        body = body_of(spec.run, identity, spec.body_size)
        command = send_request(
            spec.topic,
            Queue(spec.broker_name, identity.queue),
            Message(body, keys=str(identity)),
            f"{spec.run}{identity}",
            time.time_ns() // 1_000_000,
        )
        attempt = Attempt(self._timeline.now(), self._name_of(address))
        try:
            answer = await connection.call(command, SEND_TIMEOUT_S)
        except OutcomeUnknown as exc:
            attempt.remark = str(exc)
        else:
            try:
                _note_answer(attempt, answer)
            except ValueError as exc:  # HeaderError is one, too: it may have been stored
                attempt.code, attempt.remark = None, f"{address} answered what cannot be read: {exc}"
        attempt.answered_at = self._timeline.now()
        message.attempts.append(attempt)
        return attempt

    @property
    def acknowledged_count(self) -> int:
        return self.answer_counts.get(ResponseCode.SUCCESS, 0)


def _note_answer(attempt: Attempt, answer: Command) -> None:
    """Note code and offsets of an answer. Raises ValueError where they cannot be read."""
    attempt.code = answer.code
    attempt.remark = answer.remark or ""
    if answer.code == ResponseCode.SUCCESS:
        stored = decode_header(SendResponseHeader, answer.ext)
        attempt.queue_offset = stored.queue_offset
        attempt.log_offset = parse_message_id(stored.msg_id)[2]


async def remove_topic(name_server: str, brokers: Sequence[str], topic: str) -> None:
    """Remove a topic again from every broker that can be reached."""
    places = [(broker, RequestCode.DELETE_TOPIC_IN_BROKER) for broker in brokers]
    for address, code in [*places, (name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV)]:
        with suppress(RopewalkError, OSError):
            async with open_connection(address) as connection:
                await connection.call(Command(code, {"topic": topic}))


async def create_topic(address: str, topic: str, queues: int) -> None:
    """Make a topic with so many queues, at a broker that may have started a moment ago. Raises RopewalkError."""
    header = CreateTopicHeader(
        topic=topic,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=Permission.READ | Permission.WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=False,
    )
    trouble: RopewalkError = RopewalkError(f"{address} did not make topic {topic} in time")
    with trio.move_on_after(_CREATE_PATIENCE_S):
        while True:
            try:
                async with open_connection(address) as connection:
                    answer = await connection.call(command_of(RequestCode.UPDATE_AND_CREATE_TOPIC, header))
                if answer.code == ResponseCode.SUCCESS:
                    return
                trouble = error_for(answer.code, answer.remark)
                if isinstance(trouble, Rejected):
                    break
            except RopewalkError as exc:
                trouble = exc
            await trio.sleep(0.1)
    raise trouble
