"""An administrator's conversations about messages: find them, and see what became of them.

A message has two names. The *offset id* says where it lies (broker address and place in its log); the *unique key* is
given by its producer, is the same wherever it lies, and is what the official clients print as msgId. Both are 32 hex
digits, so a message that is looked up by one of them needs to be told which it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from ropewalk.client.admin.cluster import document_in
from ropewalk.client.admin.groups import RELAY_TIMEOUT_S, GroupSteps
from ropewalk.client.admin.results import (
    BrokerMember,
    DirectResult,
    GroupProgress,
    MessageTrack,
    TrackState,
    read_direct_result,
    read_numbers,
)
from ropewalk.client.admin.retries import Retries, delays_of, judge
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue, received
from ropewalk.client.core.messages import PULL_STATUSES, PullStatus, command_of, pull_request
from ropewalk.client.core.routes import Queue, TopicRoute
from ropewalk.client.core.steps import Pause, Steps, answer_header, ask_twice, require_success
from ropewalk.client.core.steps import ask as ask_once
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import OutcomeUnknown, Refused, Rejected, TryLater, error_for
from ropewalk.format.headers import (
    OffsetResponseHeader,
    PullResponseHeader,
    QueryMessageHeader,
    RelayHeader,
    SearchOffsetHeader,
    ViewMessageHeader,
)
from ropewalk.format.names import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from ropewalk.format.properties import P
from ropewalk.format.record import decode_record, decode_records, parse_message_id

LONG_MAX = 2**63 - 1
PULL_COUNT = 32
DELAYED_MAX = 4_096
"""Messages that wait for their delay, of one broker, which are looked through to count a group's."""
_NOTHING = (ResponseCode.QUERY_NOT_FOUND,)
_BUSY_TRIES, _BUSY_PAUSE_S = 12, 0.5
"""A broker whose key index is behind waits two seconds for it before it says that it is busy: half a minute in all."""


class MessageSteps(GroupSteps):
    """Conversations about messages."""

    def message_by_id(self, offset_id: str) -> Steps[ReceivedMessage]:
        """Return the message at the place that an offset id names.

        Raises `Rejected` for what is no such id, `Unreachable` when no broker is there, `Refused` when no message is.
        """
        address, offset = _place(offset_id)
        answer = yield from self.query(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        assert answer is not None
        record = decode_record(answer.body)
        names = {member.address: member.broker_name for member in (yield from self.members())}
        source = TopicQueue(record.topic, Queue(names.get(address, address), record.queue_id))
        return received(record, source)

    def messages_by_key(
        self, topic: str, key: str, *, max_count: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> Steps[list[ReceivedMessage]]:
        """Return the latest messages with a key, in the order they were stored."""
        header = QueryMessageHeader(topic, key, max_count, begin_ms, LONG_MAX if end_ms is None else end_ms)
        found = yield from self._query(topic, header)
        return [message for message in found if key in message.keys][-max_count:]

    def messages_by_unique_key(self, topic: str, unique_key: str) -> Steps[list[ReceivedMessage]]:
        """Return the messages that a producer gave this id: one as a rule, more if a send was repeated."""
        header = QueryMessageHeader(topic, unique_key, 32, 0, LONG_MAX, unique_key_query=True)
        found = yield from self._query(topic, header)
        return [message for message in found if message.properties.get(P.UNIQ_KEY) == unique_key]

    def message_at(self, topic: str, queue: Queue, offset: int) -> Steps[ReceivedMessage | None]:
        """Return the message at an offset of a queue; None where there is none."""
        route = yield from self.topic_route(topic)
        messages, _ = yield from self._pull(topic, route, queue, offset, 1)
        return messages[0] if messages and messages[0].queue_offset == offset else None

    def messages_by_time(
        self, topic: str, begin_ms: int, end_ms: int, *, max_count: int = 64
    ) -> Steps[list[ReceivedMessage]]:
        """Return the first messages stored in `begin_ms` up to and with `end_ms`, in the order they were stored."""
        route = yield from self.topic_route(topic)
        found: list[list[ReceivedMessage]] = []
        for queue in sorted(route.read_queues()):
            header = SearchOffsetHeader(topic, queue.queue_id, begin_ms)
            answer = yield from self.query(
                _read_from(route, queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header
            )
            assert answer is not None
            offset: int | None = answer_header(OffsetResponseHeader, answer).offset
            in_queue: list[ReceivedMessage] = []
            while offset is not None and len(in_queue) < max_count:
                messages, offset = yield from self._pull(topic, route, queue, offset, PULL_COUNT)
                in_time = [one for one in messages if begin_ms <= one.store_timestamp_ms <= end_ms]
                in_queue += in_time
                if any(one.store_timestamp_ms > end_ms for one in messages):
                    break
            found.append(in_queue)
        merged: Iterator[ReceivedMessage] = heapq.merge(
            *found, key=lambda message: (message.store_timestamp_ms, message.log_offset)
        )
        return [message for message, _ in zip(merged, range(max_count), strict=False)]

    def message_track(self, message: ReceivedMessage) -> Steps[tuple[MessageTrack, ...]]:
        """Return the state of a message in each group that reads its topic."""
        tracks: list[MessageTrack] = []
        for group in (yield from self.topic_groups(message.source.topic)):
            consumers = yield from self.consumers(group)
            progress = yield from self.progress(group, message.source.topic)
            state = _state(message, progress)
            if consumers is not None and consumers.message_model == "BROADCASTING":
                state = "broadcast"
            elif consumers is not None and state == "consumed":
                wish = consumers.subscriptions.get(message.source.topic, "*")
                if wish.strip() not in ("", "*"):
                    tags = {tag.strip() for tag in wish.split("||")}
                    state = "consumed" if message.tags in tags else "filtered"
            retries = (yield from self._retries(group, message)) if state != "broadcast" else None
            if retries is not None and (retries.waits or retries.dead_since_ms is not None):
                state = "waiting for retry" if retries.waits else "dead letter"
            tracks.append(
                MessageTrack(
                    group,
                    state,
                    consumers is not None,
                    retries.failures if retries is not None else 0,
                    retries.next_ms if retries is not None else None,
                    retries.dead_since_ms if retries is not None else None,
                )
            )
        return tuple(tracks)

    def _retries(self, group: str, message: ReceivedMessage) -> Steps[Retries | None]:
        """Find the copies that a group's failures have left of a message; None if it never failed."""
        key = message.properties.get(P.UNIQ_KEY)
        if key is None:
            return None
        masters = yield from self.masters()
        copies: list[list[ReceivedMessage]] = []
        for topic in (SCHEDULE_TOPIC, RETRY_PREFIX + group, DLQ_PREFIX + group):
            header = QueryMessageHeader(topic, key, 32, 0, LONG_MAX, unique_key_query=True)
            found = yield from self._query_at(masters, topic, header)
            copies.append([copy for copy in found if copy.properties.get(P.UNIQ_KEY) == key])
        delayed, again, dead = copies
        delayed = [copy for copy in delayed if copy.properties.get(P.REAL_TOPIC) == RETRY_PREFIX + group]
        if not (delayed or again or dead):
            return None
        progress = yield from self.progress(group, RETRY_PREFIX + group)
        offsets = {queue.source: queue.consumer_offset for queue in progress.queues}
        delays = (yield from self._delays(masters)) if delayed and not dead else ()
        return judge(delayed, again, dead, offsets, delays)

    def dead_letters(self) -> Steps[dict[str, int]]:
        """Count the dead letters of every group that has any."""
        found: dict[str, int] = {}
        for topic in (yield from self.topics()):
            if topic.startswith(DLQ_PREFIX):
                status = yield from self.topic_status(topic)
                if status.count:
                    found[topic.removeprefix(DLQ_PREFIX)] = status.count
        return found

    def delayed_retries(self, group: str, *, at_most: int = DELAYED_MAX) -> Steps[tuple[int, bool]]:
        """Count a group's messages that wait for the delay before their next try; and whether all were counted.

        Brokers keep what waits by its delay and not by its group: of each broker at most `at_most` messages are read.
        """
        masters = yield from self.masters()
        levels = len((yield from self._delays(masters)))
        total, complete = 0, True
        for member in masters:
            answer = yield from self.query(member.address, RequestCode.GET_ALL_DELAY_OFFSET)
            assert answer is not None
            delivered = read_numbers(document_in(answer), "offsetTable")
            left = at_most
            for level in range(1, levels + 1):
                queue = Queue(member.broker_name, level - 1)
                offset: int | None = delivered.get(str(level), 0)
                while offset is not None and left > 0:
                    messages, offset = yield from self._pull_at(
                        member.address, SCHEDULE_TOPIC, queue, offset, PULL_COUNT
                    )
                    left -= len(messages)
                    retry = RETRY_PREFIX + group
                    total += sum(one.properties.get(P.REAL_TOPIC) == retry for one in messages)
                complete = complete and offset is None
        return total, complete

    def _delays(self, masters: Sequence[BrokerMember]) -> Steps[tuple[int, ...]]:
        """Read the delay levels of the first master that tells them."""
        for member in masters:
            try:
                answer = yield from self.query(member.address, RequestCode.GET_BROKER_CONFIG)
            except (Refused, Unreachable, OutcomeUnknown):
                continue
            assert answer is not None
            for line in answer.body.decode(errors="replace").splitlines():
                name, _, value = line.partition("=")
                if name.strip() == "messageDelayLevel":
                    return delays_of(value)
        return ()

    def consume_directly(
        self, group: str, client_id: str, message: ReceivedMessage, *, address: str | None = None
    ) -> Steps[DirectResult]:
        """Have one client of a group consume one message now, at any offset; return the client's answer.

        Raises `Refused` when the client is not connected to the broker that has the message, and `OutcomeUnknown`
        when it does not answer: it may have consumed it.
        """
        where = address or _place(message.offset_message_id)[0]
        header = RelayHeader(group, client_id, message.offset_message_id)
        command = command_of(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        command.ext["topic"] = message.source.topic
        answer = yield from ask_once(where, command, RELAY_TIMEOUT_S)
        return read_direct_result(document_in(answer))

    # Helpers

    def _query(self, topic: str, header: QueryMessageHeader) -> Steps[list[ReceivedMessage]]:
        masters: tuple[BrokerMember, ...] = yield from self.topic_masters(topic)
        return (yield from self._query_at(masters, topic, header))

    def _query_at(
        self, masters: Sequence[BrokerMember], topic: str, header: QueryMessageHeader
    ) -> Steps[list[ReceivedMessage]]:
        """Look up messages in the key indexes of brokers, where one that is behind is waited for."""
        for left in reversed(range(_BUSY_TRIES)):
            try:
                answers = yield from self.query_all(
                    masters, RequestCode.QUERY_MESSAGE, header, none_for=_NOTHING
                )
            except TryLater:
                if not left:
                    raise
                yield Pause(_BUSY_PAUSE_S)
            else:
                break
        found = [
            received(record, TopicQueue(topic, Queue(member.broker_name, record.queue_id)))
            for member, answer in answers
            for record in decode_records(answer.body)
            if record.topic == topic
        ]
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.log_offset))

    def _pull(
        self, topic: str, route: TopicRoute, queue: Queue, offset: int, count: int
    ) -> Steps[tuple[list[ReceivedMessage], int | None]]:
        """Messages from an offset on, and where to go on; None at the end."""
        return (yield from self._pull_at(_read_from(route, queue), topic, queue, offset, count))

    def _pull_at(
        self, address: str, topic: str, queue: Queue, offset: int, count: int
    ) -> Steps[tuple[list[ReceivedMessage], int | None]]:
        command = pull_request(topic, queue, offset, count, "*", 0)
        answer = yield from ask_twice(address, command, self._timeout_s)
        status = PULL_STATUSES.get(answer.code)
        if status is None:
            raise error_for(answer.code, answer.remark)
        if status is PullStatus.NO_NEW_MESSAGE:
            return [], None
        header = answer_header(PullResponseHeader, answer)
        next_offset = header.next_begin_offset
        go_on = next_offset if offset < next_offset < header.max_offset else None
        if status is not PullStatus.FOUND:
            return [], go_on
        source = TopicQueue(topic, queue)
        return [received(record, source) for record in decode_records(require_success(answer).body)], go_on


def _state(message: ReceivedMessage, progress: GroupProgress) -> TrackState:
    for queue in progress.queues:
        if queue.source == message.source:
            return "consumed" if queue.consumer_offset > message.queue_offset else "not consumed yet"
    return "unknown"


def _place(offset_id: str) -> tuple[str, int]:
    """Return the broker's address and the log offset in an offset id. Raises `Rejected`."""
    try:
        host, port, offset = parse_message_id(offset_id)
    except ValueError as exc:
        raise Rejected(f"{offset_id!r} is no offset message id: {exc}") from exc
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"), offset


def _read_from(route: TopicRoute, queue: Queue) -> str:
    broker = route.brokers.get(queue.broker_name)
    address = broker.address() if broker is not None else None
    if address is None:
        names = ", ".join(sorted(route.brokers)) or "none"
        raise Rejected(f"the topic has no broker {queue.broker_name}; it has {names}")
    return address
