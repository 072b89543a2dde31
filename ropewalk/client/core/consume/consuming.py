"""A consumer's conversations with brokers: membership, progress, messages. No sockets, no tasks.

Membership (heartbeats, members, locks), progress (where to begin, commits), messages (pulls, and giving back what could
not be handled). The shells decide when; the rules of each exchange are here.

Where a queue begins that the group never committed is said in `consume_from.py`. A broker that still has a young
queue's first message at hand says 0 by itself, unless it is asked not to, as it is where a time was given. A retry
topic always begins at its beginning.

A queue may have changed under a consumer: retention removed what was to come, an administrator moved the group, the
topic was deleted and made again. `relocate` says where to go on then, and `is_same_queue` whether the message that was
read last is still there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ropewalk.client.core.addresses import AddressRing, parse_address_list
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.consume_from import ConsumeFrom, Place, parse_consume_from
from ropewalk.client.core.consume.membership import (
    HEARTBEAT_TIMEOUT_S,
    Subscription,
    consumer_document,
    heartbeat_request,
    members_request,
    unregister_request,
)
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue, decode_received
from ropewalk.client.core.consume.skipped import SkipReason
from ropewalk.client.core.directory import Directory
from ropewalk.client.core.ids import UniqueKeys
from ropewalk.client.core.messages import (
    PROPERTIES_RESERVE,
    PULL_STATUSES,
    Message,
    PullStatus,
    check_found,
    command_of,
    send_request,
)
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX, compress_body
from ropewalk.client.core.routes import MASTER_ID, Queue
from ropewalk.client.core.steps import Steps, answer_header, ask, ask_twice, require_success
from ropewalk.codes import PullSysFlag, RequestCode, ResponseCode
from ropewalk.errors import (
    LocalProtocolError,
    OutcomeUnknown,
    Rejected,
    RemoteProtocolError,
    RopewalkError,
    error_for,
)
from ropewalk.format import fastjson
from ropewalk.format.headers import (
    SUBSCRIPTION_CONFLICT,
    ConsumerSendBackHeader,
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from ropewalk.format.names import RETRY_PREFIX, check_group
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, fit_properties
from ropewalk.format.remoting import Command

CALL_TIMEOUT_S = 3.0
SEND_BACK_TIMEOUT_S = 5.0
PULL_MARGIN_S = 15.0
"""How long after the end of its hold a pull's answer may still come."""
RETRY_DELAY_LEVEL = 3
"""The level (10 s) at which a first retry waits; each further one waits a level more."""


@dataclass(frozen=True, slots=True)
class ConsumerIdentity:
    """The identity of a consumer and its subscriptions."""

    group: str
    client_id: str
    subscriptions: tuple[Subscription, ...]
    consume_from: ConsumeFrom = "latest"
    broadcasting: bool = False
    active: bool = False
    """Pulls when it likes, and takes no part in sharing queues out."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Bytes that a compressed body may unpack to."""

    def __post_init__(self) -> None:
        reason = check_group(self.group)
        if reason is not None:
            raise LocalProtocolError(reason)
        parse_consume_from(self.consume_from)

    @property
    def begin(self) -> Place:
        """The place where a queue begins that the group never committed."""
        return parse_consume_from(self.consume_from)

    @property
    def retry_topic(self) -> str:
        return RETRY_PREFIX + self.group


class Pulled(NamedTuple):
    """The messages that one pull brought, and the next offset."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    """The offset the queue's next message will get."""


class ConsumerCore:
    """The state of a consumer, and its conversations."""

    def __init__(
        self,
        name_servers: str,
        identity: ConsumerIdentity,
        *,
        unique_keys: UniqueKeys,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.identity = identity
        self.directory = Directory(AddressRing(parse_address_list(name_servers)), clock, CALL_TIMEOUT_S)
        self._unique_keys = unique_keys
        self._now_ms = now_ms
        self._subscriptions = {subscription.topic: subscription for subscription in identity.subscriptions}
        self._pull_from: dict[TopicQueue, int] = {}
        self._clock = clock
        self.conflicts: dict[str, str | None] = {}
        """A sentence of each broker that knows another member with other subscriptions, from the last heartbeats."""
        self.deadline: float | None = None
        """Until when a conversation may take that its program has given a time; None where it has given none."""

    def renew(self, client_id: str) -> None:
        """Begin anew as another client, in a process that was forked."""
        self.identity = replace(self.identity, client_id=client_id)

    def subscription(self, topic: str) -> Subscription:
        """Return the subscription of a topic; all of it, where none was given."""
        return self._subscriptions.get(topic) or Subscription(topic)

    # Membership

    def heartbeats(self) -> Steps[dict[str, RopewalkError | None]]:
        """Send a heartbeat with our subscriptions to every broker of our topics; return the outcome by address."""
        me = self.identity
        where = {"earliest": "FIRST_OFFSET", "latest": "LAST_OFFSET"}.get(str(me.begin), "TIMESTAMP")
        document = consumer_document(
            me.group,
            me.subscriptions,
            active=me.active,
            broadcasting=me.broadcasting,
            consume_from=f"CONSUME_FROM_{where}",
        )
        command = heartbeat_request(me.client_id, consumers=[document])
        outcomes: dict[str, RopewalkError | None] = {}
        for address in self.directory.addresses():
            outcomes[address] = None
            try:
                answer = require_success((yield from ask_twice(address, command, HEARTBEAT_TIMEOUT_S)))
                self.conflicts[address] = answer.ext.get(SUBSCRIPTION_CONFLICT)
            except RopewalkError as exc:
                outcomes[address] = exc
        return outcomes

    def unregister(self) -> Steps[None]:
        """Leave the group at every broker, and be heard: the others take our queues as soon as they know."""
        command = unregister_request(self.identity.client_id, consumer=self.identity.group)
        for address in self.directory.addresses():
            try:
                yield from ask_twice(address, command, CALL_TIMEOUT_S)
            except RopewalkError:
                continue

    def queues(self, topic: str) -> Steps[list[TopicQueue]]:
        """Return the queues a topic has now. Raises `Rejected` (17) when it has none because there is no such topic."""
        self.directory.invalidate(topic)
        route = yield from self.directory.route(topic, deadline=self.deadline)
        return [TopicQueue(topic, queue) for queue in route.read_queues()]

    def find_makers(self, topic: str) -> Steps[None]:
        """Learn which brokers would make a topic that does not exist: from now on `heartbeats` go there too.

        They tell their members of a new topic, if they are Ropewalk's. Without such brokers there is nothing to learn.
        """
        try:
            yield from self.directory.write_route(topic)
        except RopewalkError:
            return

    def members(self, topic: str) -> Steps[tuple[str, ...]]:
        """Return the client ids of our group, as a broker of this topic knows them. Empty if it knows of nobody."""
        route = yield from self.directory.route(topic)
        addresses = [
            address for broker in route.brokers.values() if (address := broker.address()) is not None
        ]
        if not addresses:
            return ()
        answer = yield from ask_twice(addresses[0], members_request(self.identity.group), CALL_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return ()
        return _member_ids(answer.body)

    def lock(self, queues: Iterable[TopicQueue]) -> Steps[set[TopicQueue]]:
        """Ask for the right to read these queues in order; return those that were granted or are ours already."""
        granted: set[TopicQueue] = set()
        for address, some in self._by_master(queues):
            try:
                answer = yield from ask_twice(
                    address, self._lock_command(RequestCode.LOCK_BATCH_MQ, some), 1.0
                )
                for queue in some:
                    self.directory.heed(queue.topic, answer)
                granted |= _granted(require_success(answer).body)
            except RopewalkError:
                continue
        return granted

    def unlock(self, queues: Iterable[TopicQueue]) -> Steps[None]:
        """Give the right up. A broker that does not hear it lets the lock expire after a minute."""
        for address, some in self._by_master(queues):
            try:
                yield from ask_twice(address, self._lock_command(RequestCode.UNLOCK_BATCH_MQ, some), 1.0)
            except RopewalkError:
                continue

    # Progress

    def begin_offset(self, queue: TopicQueue, since_ms: int | None = None) -> Steps[int]:
        """Return the offset at which the group goes on in a queue, or begins.

        `since_ms`: since when a member at "latest" has its place; None where it takes that this moment.
        """
        if not self.identity.broadcasting:  # its members keep their progress themselves
            committed = yield from self.committed(queue)
            if committed is not None:
                return committed
            if queue.topic == self.identity.retry_topic:
                return (yield from self.begin_of(queue))
        match self.identity.begin:
            case "earliest":
                return (yield from self.begin_of(queue))
            case "latest" if since_ms is not None:
                return (yield from self.offset_at(queue, since_ms))
            case "latest":
                return (yield from self.end_offset(queue))
            case moment:
                return (yield from self.offset_at(queue, moment))

    def committed(self, queue: TopicQueue) -> Steps[int | None]:
        """Return the group's committed offset; None if the broker has none."""
        young_begins = False if isinstance(self.identity.begin, int) else None
        group = self.identity.group
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue.queue_id, young_begins)
        answer = yield from self._ask(queue, command_of(RequestCode.QUERY_CONSUMER_OFFSET, header))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return answer_header(OffsetResponseHeader, require_success(answer)).offset

    def commit(self, queue: TopicQueue, offset: int) -> Steps[None]:
        """Record how far the group has come. Raises `Rejected` (26) for a group the broker does not know."""
        header = UpdateConsumerOffsetHeader(self.identity.group, queue.topic, queue.queue.queue_id, offset)
        require_success((yield from self._ask(queue, command_of(RequestCode.UPDATE_CONSUMER_OFFSET, header))))

    def begin_of(self, queue: TopicQueue) -> Steps[int]:
        """Return the first message that is still there."""
        header = QueueHeader(queue.topic, queue.queue.queue_id)
        return (yield from self._ask_offset(queue, command_of(RequestCode.GET_MIN_OFFSET, header)))

    def end_offset(self, queue: TopicQueue) -> Steps[int]:
        """Return the offset the next message will get."""
        header = GetMaxOffsetHeader(queue.topic, queue.queue.queue_id)
        return (yield from self._ask_offset(queue, command_of(RequestCode.GET_MAX_OFFSET, header)))

    def offset_at(self, queue: TopicQueue, timestamp_ms: int) -> Steps[int]:
        """Return the first message stored at or after a time."""
        header = SearchOffsetHeader(queue.topic, queue.queue.queue_id, timestamp_ms)
        return (
            yield from self._ask_offset(queue, command_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header))
        )

    # Messages

    def pull_command(
        self, queue: TopicQueue, offset: int, max_count: int, suspend_ms: int, committable: int = 0
    ) -> tuple[str, Command]:
        """Return the address and the request of the next pull of a queue.

        `committable` above 0 is committed with it.
        """
        broker_id = self._pull_from.get(queue, MASTER_ID)
        address = self.directory.member_of(queue.topic, queue.queue, broker_id)
        subscription = self.subscription(queue.topic)
        flags = PullSysFlag.SUSPEND if suspend_ms else 0
        if committable > 0 and broker_id == MASTER_ID:
            flags |= PullSysFlag.COMMIT_OFFSET
        if self.identity.active:
            flags |= PullSysFlag.SUBSCRIPTION  # no heartbeat has announced it
        header = PullMessageHeader(
            consumer_group=self.identity.group,
            topic=queue.topic,
            queue_id=queue.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_count,
            sys_flag=flags,
            commit_offset=committable,
            suspend_timeout_millis=suspend_ms,
            sub_version=0 if self.identity.active else subscription.version,
            subscription=subscription.expression if self.identity.active else None,
            expression_type=subscription.kind,
        )
        return address, command_of(RequestCode.PULL_MESSAGE, header)

    def read_pull(self, queue: TopicQueue, offset: int, answer: Command) -> Pulled:
        """Make sense of the answer to a pull at an offset; remembers where the broker wants the next pull.

        Raises what it refused, and `RemoteProtocolError` for what is no answer.
        """
        status = PULL_STATUSES.get(answer.code)
        if status is None:
            self._pull_from.pop(queue, None)
            self.directory.heed(queue.topic, answer)
            raise error_for(answer.code, answer.remark)
        header = answer_header(PullResponseHeader, answer)
        check_found(status, offset, header.next_begin_offset, answer.body)
        self._pull_from[queue] = header.suggest_which_broker_id
        messages = (
            decode_received(answer.body, queue, self.identity.body_bytes_max)
            if status is PullStatus.FOUND
            else []
        )
        subscription = self.subscription(queue.topic)
        if subscription.tags:
            messages = [message for message in messages if subscription.wants(message.tags)]
        return Pulled(status, messages, header.next_begin_offset, header.min_offset, header.max_offset)

    def relocate(
        self, queue: TopicQueue, offset: int, pulled: Pulled, last: ReceivedMessage | None
    ) -> Steps[tuple[int, SkipReason]]:
        """Return where to go on after `OFFSET_ILLEGAL`, and why. `last` is the message that was read last, if any."""
        if offset < pulled.min_offset:
            return max(pulled.next_offset, pulled.min_offset), "removed"
        if offset <= pulled.max_offset:
            return pulled.next_offset, "reset"
        # It ends before what was read: made again, or cut by a fail-over. The time tells which.
        if last is not None:
            found = yield from self.offset_at(queue, last.store_timestamp_ms)
            return min(max(found, pulled.min_offset), pulled.max_offset), "truncated"
        return (0 if pulled.min_offset == 0 else pulled.next_offset), "truncated"

    def is_same_queue(self, queue: TopicQueue, last: ReceivedMessage) -> Steps[bool]:
        """Return True if the message that was read last still lies where it was read."""
        pulled = yield from self.pull(queue, last.queue_offset, 1, 0)
        if pulled.status is PullStatus.FOUND and pulled.messages:
            return pulled.messages[0].log_offset == last.log_offset
        return pulled.status is PullStatus.OFFSET_ILLEGAL and last.queue_offset < pulled.min_offset

    def pull(
        self, queue: TopicQueue, offset: int, max_count: int, suspend_ms: int, committable: int = 0
    ) -> Steps[Pulled]:
        """Read on, and let the broker hold the answer for `suspend_ms` while there is nothing."""
        yield from self.directory.route(queue.topic)
        address, command = self.pull_command(queue, offset, max_count, suspend_ms, committable)
        try:
            answer = yield from ask(address, command, suspend_ms / 1000 + PULL_MARGIN_S)
        except Unreachable:
            self._pull_from.pop(queue, None)  # the master may be there even if the suggested slave is not
            self.directory.invalidate(queue.topic)
            raise
        return self.read_pull(queue, offset, answer)

    def send_back(self, message: ReceivedMessage, delay_level: int, max_retries: int) -> Steps[None]:
        """Give a message back, to be delivered again later or become a dead letter.

        If its broker does not take it back, it is sent to the retry topic as a new message, wherever that lives.
        """
        header = ConsumerSendBackHeader(
            offset=message.log_offset,
            group=self.identity.group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.source.topic,
            max_reconsume_times=max_retries,
        )
        command = command_of(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        try:
            address = self.directory.master_of(message.source.topic, message.source.queue.broker_name)
            answer = yield from ask(address, command, SEND_BACK_TIMEOUT_S)
            require_success(self.directory.heed(message.source.topic, answer))
        except RopewalkError:
            yield from self.resend(message, max_retries)

    def resend(self, message: ReceivedMessage, max_retries: int) -> Steps[None]:
        """Send a message to the group's retry topic as a new one; past `max_retries` it becomes a dead letter."""
        topic = self.identity.retry_topic
        tries = message.reconsume_times + 1
        properties = {
            **message.properties,
            P.RETRY_TOPIC: message.topic,
            P.ORIGIN_MESSAGE_ID: message.properties.get(P.ORIGIN_MESSAGE_ID, message.message_id),
            P.RECONSUME_TIME: str(tries),
            P.MAX_RECONSUME_TIMES: str(max_retries),
            P.DELAY: str(RETRY_DELAY_LEVEL + message.reconsume_times),
        }
        properties = fit_properties(properties, PROPERTIES_SIZE_MAX - PROPERTIES_RESERVE)
        route = yield from self.directory.write_route(topic)
        queues = route.write_queues()
        if not queues:
            raise error_for(ResponseCode.NO_PERMISSION, f"{topic} has no queue that can be written to")
        sys_flag, body = message.wire_body
        if not sys_flag:
            sys_flag, body = compress_body(body)
        command = send_request(
            topic,
            queues[0],
            Message(body, properties=properties),
            message.message_id,
            self._now_ms(),
            producer_group="CLIENT_INNER_PRODUCER",
            sys_flag=sys_flag,
            body=body,
        )
        command.ext["j"] = str(tries)
        command.ext["l"] = str(max_retries)
        address = self.directory.master_of(topic, queues[0].broker_name)
        answer = yield from ask(address, command, SEND_BACK_TIMEOUT_S)
        require_success(self.directory.heed(topic, answer))

    # Asking

    def seconds_left(self, at_most: float) -> float:
        """Return the time limit of a request: `at_most`, or what the deadline leaves of it."""
        if self.deadline is None:
            return at_most
        return max(min(at_most, self.deadline - self._clock()), 0.001)

    def _ask(self, queue: TopicQueue, command: Command) -> Steps[Command]:
        yield from self.directory.route(queue.topic, deadline=self.deadline)
        address = self.directory.member_of(queue.topic, queue.queue)
        try:
            if self.deadline is None:
                answer = yield from ask_twice(address, command, CALL_TIMEOUT_S)
            else:
                answer = yield from ask(address, command, self.seconds_left(CALL_TIMEOUT_S))
        except (Unreachable, OutcomeUnknown):
            self.directory.invalidate(queue.topic)
            raise
        return self.directory.heed(queue.topic, answer)

    def _ask_offset(self, queue: TopicQueue, command: Command) -> Steps[int]:
        answer = yield from self._ask(queue, command)
        return answer_header(OffsetResponseHeader, require_success(answer)).offset

    def _by_master(self, queues: Iterable[TopicQueue]) -> Iterable[tuple[str, list[TopicQueue]]]:
        by_address: dict[str, list[TopicQueue]] = {}
        for queue in sorted(queues):
            try:
                address = self.directory.master_of(queue.topic, queue.queue.broker_name)
            except Unreachable:
                continue  # nobody to ask: not granted
            by_address.setdefault(address, []).append(queue)
        return by_address.items()

    def _lock_command(self, code: int, queues: Sequence[TopicQueue]) -> Command:
        body = {
            "clientId": self.identity.client_id,
            "consumerGroup": self.identity.group,
            "mqSet": [
                {"brokerName": q.queue.broker_name, "queueId": q.queue.queue_id, "topic": q.topic}
                for q in queues
            ],
            "onlyThisBroker": False,
        }
        return Command(code, {}, json.dumps(body, separators=(",", ":")).encode())


def is_missing_topic(exc: RopewalkError) -> bool:
    """Return True if an error only says that a topic does not exist (yet)."""
    return isinstance(exc, Rejected) and exc.code == ResponseCode.TOPIC_NOT_EXIST


def _member_ids(body: bytes) -> tuple[str, ...]:
    """Read the client ids of a group. Raises `RemoteProtocolError`."""
    try:
        ids = fastjson.loads(body)["consumerIdList"]
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise TypeError("consumerIdList is no list of texts")
    except (ValueError, TypeError, KeyError) as exc:
        raise RemoteProtocolError(f"the members of the group cannot be read: {exc!r}") from exc
    return tuple(ids)


def _granted(body: bytes) -> set[TopicQueue]:
    """Read the queues that are locked for a client. Raises `RemoteProtocolError`."""
    try:
        held = fastjson.loads(body).get("lockOKMQSet") or ()
        return {
            TopicQueue(str(entry["topic"]), Queue(str(entry["brokerName"]), int(entry["queueId"])))
            for entry in held
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as exc:
        raise RemoteProtocolError(f"the locked queues cannot be read: {exc!r}") from exc
