"""A small blocking client: find a topic's queues, send, pull, ask for offsets.

It belongs to no group, sends no heartbeats and rebalances with nobody, which is what a command
line, a test or a script wants. What goes over the wire is built in `messages.py`; `start_…` and
`finish_…` are the two halves of `send` and `pull`, for callers that keep several requests under way.

Nothing is retried behind the caller's back except the search for a name server that answers. An
error is one of `ropewalk.errors`: its class says whether a second attempt can help or could store
a message twice. A send that was stored with a reservation is not an error; look at its status.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType

import msgspec

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.results import read_texts, topic_kind
from ropewalk.client.blocking.connection import TIMEOUT_S, Connection
from ropewalk.client.core.addresses import AddressRing, parse_address_list
from ropewalk.client.core.connection import NoMaster, Unreachable
from ropewalk.client.core.directory import NoNameServer
from ropewalk.client.core.ids import UniqueKeys, default_unique_keys
from ropewalk.client.core.messages import (
    PULL_STATUSES,
    Message,
    PullResult,
    PullStatus,
    SendResult,
    SendStatus,
    batch_request,
    check_found,
    command_of,
    pull_request,
    route_request,
    send_request,
)
from ropewalk.client.core.produce.results import read_send_result
from ropewalk.client.core.produce.target_queues import write_queues
from ropewalk.client.core.routes import (
    DEFAULT_TOPIC,
    MASTER_ID,
    NOBODY_CREATES_IT,
    Queue,
    TopicRoute,
    parse_route,
)
from ropewalk.client.core.steps import answer_header, require_success
from ropewalk.client.machine import name_servers_or_default
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, error_for
from ropewalk.format.headers import (
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from ropewalk.format.record import Record, decode_record, decode_records, parse_message_id
from ropewalk.format.remoting import Command

__all__ = [
    "Client",
    "Message",
    "NoNameServer",
    "PendingPull",
    "PendingSend",
    "PullResult",
    "PullStatus",
    "Queue",
    "SendResult",
    "SendStatus",
]

PULL_COUNT = 32


@dataclass(frozen=True, slots=True)
class PendingSend:
    """A send under way. Hand it to `finish_send`."""

    connection: Connection
    opaque: int
    queue: Queue
    unique_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingPull:
    """A pull under way. Hand it to `finish_pull`."""

    connection: Connection
    opaque: int
    topic: str
    queue: Queue
    offset: int
    timeout: float


class Client:
    """Blocking access to a cluster through its name servers. Belongs to one thread."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        unique_keys: UniqueKeys | None = None,
    ) -> None:
        """`name_servers` is `host:port;host:port`, else the environment's; `timeout` seconds bound a connect or call.

        Nothing is connected yet. Raises `BadAddress` when the list cannot be read.
        """
        self.timeout = timeout
        self._name_servers = AddressRing(parse_address_list(name_servers_or_default(name_servers)))
        self._unique_keys = unique_keys or default_unique_keys()
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._write_routes: dict[str, TopicRoute] = {}
        self._existing: set[str] = set()
        """Topics that a name server has known."""
        self.new_topics: set[str] = set()
        """Topics that did not exist when they were first sent to: their first message makes them."""
        self._pull_from: dict[tuple[str, Queue], int] = {}
        self._turn = count()

    def close(self) -> None:
        """Hang up on everybody."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Finding things

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; remembered until `forget_routes`. Raises `Rejected` (17) if nowhere."""
        if topic not in self._routes:
            answer = self._ask_name_server(route_request(topic))
            self._routes[topic] = parse_route(require_success(answer).body)
        return self._routes[topic]

    def write_queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues to send to. For a topic that does not exist yet: those it will have once created.

        Raises `Unreachable` if there would be some with a master, as while a group elects one.
        """
        return write_queues(topic, self.write_route(topic))

    def read_queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues to pull from."""
        return self.route(topic).read_queues()

    def connection_to(self, address: str) -> Connection:
        """Return a connection to any address, shared with this client's own requests. Raises `Unreachable`."""
        return self._connection(address)

    def forget_routes(self) -> None:
        """Ask the name server again at the next need: something is not where it was."""
        self._routes.clear()
        self._write_routes.clear()

    def renew_routes(self) -> None:
        """Ask again about every topic whose route is remembered. One that nobody can tell of stays as it was."""
        for topic in list(self._routes):
            try:
                answer = self._ask_name_server(route_request(topic))
            except Unreachable:
                return
            if answer.code == ResponseCode.SUCCESS:
                self._routes[topic] = parse_route(answer.body)

    # Sending

    def send(self, topic: str, message: Message, queue: Queue | None = None) -> SendResult:
        """Send one message, to the next queue in turn unless one is given."""
        return self.finish_send(self.start_send(topic, [message], queue))

    def send_batch(self, topic: str, messages: Sequence[Message], queue: Queue | None = None) -> SendResult:
        """Send messages as one batch: all lie in one queue, in order, or none is stored."""
        return self.finish_send(self.start_send(topic, messages, queue))

    def start_send(self, topic: str, messages: Sequence[Message], queue: Queue | None = None) -> PendingSend:
        """Write a send and do not wait. Several messages become a batch (`can_be_batched` of each)."""
        assert messages, "nothing to send"
        queue = queue or self._next_queue(topic)
        broker = self.write_route(topic).brokers.get(queue.broker_name)
        if broker is None or broker.master is None:
            raise NoMaster(
                f"the name server knows no master of broker {queue.broker_name}", [queue.broker_name]
            )
        connection = self._connection(broker.master)
        now_ms = time.time_ns() // 1_000_000
        unique_keys = tuple(self._unique_keys.next() for _ in messages)
        if len(messages) == 1:
            command = send_request(topic, queue, messages[0], unique_keys[0], now_ms)
        else:
            batch_key = self._unique_keys.next()
            command = batch_request(topic, queue, messages, unique_keys, batch_key, now_ms)
        return PendingSend(connection, connection.start(command), queue, unique_keys)

    def finish_send(self, pending: PendingSend, timeout: float | None = None) -> SendResult:
        """Wait for the answer to a send. Raises what the broker answered if nothing was stored."""
        answer = pending.connection.wait(pending.opaque, self.timeout if timeout is None else timeout)
        return read_send_result(answer, pending.queue.broker_name, pending.unique_keys)[0]

    # Pulling

    def pull(
        self,
        topic: str,
        queue: Queue,
        offset: int,
        max_count: int = PULL_COUNT,
        *,
        subscription: str = "*",
        sql: str | None = None,
        suspend_ms: int = 0,
    ) -> PullResult:
        """Read up to `max_count` messages, by tags or by an SQL92 expression over properties.

        With `suspend_ms` the broker holds an empty answer that long.
        """
        return self.finish_pull(
            self.start_pull(
                topic, queue, offset, max_count, subscription=subscription, sql=sql, suspend_ms=suspend_ms
            )
        )

    def start_pull(
        self,
        topic: str,
        queue: Queue,
        offset: int,
        max_count: int = PULL_COUNT,
        *,
        subscription: str = "*",
        sql: str | None = None,
        suspend_ms: int = 0,
    ) -> PendingPull:
        """Write a pull and do not wait."""
        broker_id = self._pull_from.get((topic, queue), MASTER_ID)
        connection = self._broker_connection(self.route(topic), queue.broker_name, broker_id)
        wanted = subscription if sql is None else sql
        command = pull_request(topic, queue, offset, max_count, wanted, suspend_ms, is_sql=sql is not None)
        timeout = self.timeout + suspend_ms / 1000
        return PendingPull(connection, connection.start(command), topic, queue, offset, timeout)

    def finish_pull(self, pending: PendingPull) -> PullResult:
        """Wait for the answer to a pull."""
        return self.read_pull(pending, pending.connection.wait(pending.opaque, pending.timeout))

    def read_pull(self, pending: PendingPull, answer: Command) -> PullResult:
        """Make sense of a pull's answer that was taken from its connection."""
        status = PULL_STATUSES.get(answer.code)
        if status is None:
            raise error_for(answer.code, answer.remark)
        header = answer_header(PullResponseHeader, answer)
        check_found(status, pending.offset, header.next_begin_offset, answer.body)
        self._pull_from[pending.topic, pending.queue] = header.suggest_which_broker_id
        return PullResult(
            status,
            decode_records(answer.body) if status is PullStatus.FOUND else [],
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
        )

    def view(self, message_id: str) -> Record:
        """Return a message by its offset id. Raises `ValueError` for what is no such id."""
        host, port, offset = parse_message_id(message_id)
        connection = self._connection(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        answer = connection.call(command_of(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset)))
        return decode_record(require_success(answer).body)

    # Offsets

    def min_offset(self, topic: str, queue: Queue) -> int:
        """Return the first message that is still there."""
        return self._ask_offset(RequestCode.GET_MIN_OFFSET, topic, queue, QueueHeader(topic, queue.queue_id))

    def max_offset(self, topic: str, queue: Queue) -> int:
        """Return the offset the next message will get."""
        header = GetMaxOffsetHeader(topic, queue.queue_id)
        return self._ask_offset(RequestCode.GET_MAX_OFFSET, topic, queue, header)

    def search_offset(self, topic: str, queue: Queue, timestamp_ms: int) -> int:
        """Return the first message stored at or after a time."""
        header = SearchOffsetHeader(topic, queue.queue_id, timestamp_ms)
        return self._ask_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic, queue, header)

    def committed_offset(self, group: str, topic: str, queue: Queue) -> int | None:
        """Return a group's committed offset; None if the broker has none."""
        header = QueryConsumerOffsetHeader(group, topic, queue.queue_id, set_zero_if_not_found=False)
        answer = self._ask_broker(topic, queue, command_of(RequestCode.QUERY_CONSUMER_OFFSET, header))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return answer_header(OffsetResponseHeader, require_success(answer)).offset

    def commit_offset(self, group: str, topic: str, queue: Queue, offset: int) -> None:
        """Record how far a group has come. Backwards is allowed; the group must exist (else `Rejected`, 26)."""
        header = UpdateConsumerOffsetHeader(group, topic, queue.queue_id, offset)
        require_success(
            self._ask_broker(topic, queue, command_of(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        )

    def _ask_offset(self, code: int, topic: str, queue: Queue, header: msgspec.Struct) -> int:
        answer = self._ask_broker(topic, queue, command_of(code, header))
        return answer_header(OffsetResponseHeader, require_success(answer)).offset

    # Names

    def topics(self) -> tuple[str, ...]:
        """Return the topics of users, sorted: without retry and dead-letter topics, and the brokers' own."""
        names, system = (
            read_texts(document_in(answer), "topicList")
            for code in (
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            )
            for answer in (self._ask_name_server(Command(code)),)
        )
        return tuple(sorted(name for name in names if topic_kind(name, system) == "normal"))

    def write_route(self, topic: str) -> TopicRoute:
        """Return the route to send by; remembered until `forget_routes`. Raises `Rejected` (17) if there is none."""
        if topic not in self._write_routes:
            answer = self._ask_name_server(route_request(topic))
            if answer.code == ResponseCode.TOPIC_NOT_EXIST and topic in self._existing:
                raise error_for(
                    ResponseCode.SERVICE_NOT_AVAILABLE, f"no broker serves topic {topic} at the moment"
                )
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                template = self._ask_name_server(route_request(DEFAULT_TOPIC))
                if template.code == ResponseCode.TOPIC_NOT_EXIST:
                    raise error_for(answer.code, f"topic {topic} {NOBODY_CREATES_IT}")
                self._write_routes[topic] = parse_route(require_success(template).body).as_template()
                self.new_topics.add(topic)
            else:
                self._write_routes[topic] = parse_route(require_success(answer).body)
                self._existing.add(topic)
        return self._write_routes[topic]

    # Connections

    def _next_queue(self, topic: str) -> Queue:
        queues = self.write_queues(topic)
        if not queues:
            raise error_for(ResponseCode.NO_PERMISSION, f"topic {topic} has no queue that can be written to")
        return queues[next(self._turn) % len(queues)]

    def _ask_broker(self, topic: str, queue: Queue, command: Command) -> Command:
        return self._broker_connection(self.route(topic), queue.broker_name).call(command)

    def _broker_connection(self, route: TopicRoute, name: str, broker_id: int = MASTER_ID) -> Connection:
        broker = route.brokers.get(name)
        address = broker.address(broker_id) if broker is not None else None
        if address is None:
            raise Unreachable(f"the name server knows no address of broker {name}")
        return self._connection(address)

    def _ask_name_server(self, command: Command) -> Command:
        failures: list[str] = []
        unknown: Command | None = None
        is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        for address in self._name_servers.one_round():
            reused = str(address) in self._connections
            try:
                try:
                    answer = self._connection(str(address)).call(command)
                except OutcomeUnknown:
                    # A connection that was idle for long may have been cut unnoticed, and a question
                    # can be asked twice.
                    if not reused or not self._connection_is_gone(str(address)):
                        raise
                    answer = self._connection(str(address)).call(command)
                if not is_route or answer.code != ResponseCode.TOPIC_NOT_EXIST:
                    return answer
                unknown = answer  # another one may have heard of it
            except (Unreachable, OutcomeUnknown) as exc:
                failures.append(str(exc))
        if unknown is not None:
            return unknown
        raise NoNameServer(f"no name server at {self._name_servers}: {'; '.join(failures)}")

    def _connection_is_gone(self, address: str) -> bool:
        connection = self._connections.get(address)
        return connection is None or connection.closed

    def _connection(self, address: str) -> Connection:
        if self._connection_is_gone(address):
            self._connections[address] = Connection(address, self.timeout)
        return self._connections[address]
