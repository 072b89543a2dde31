"""Deliver again the messages that a consumer could not handle, or give them up as dead letters.

Two ways lead here. A consumer sends a message back by its place in the log (36); the broker reads the record and
stores it again in `%RETRY%<group>`, delayed by a level that grows with each try. And a client that cannot do that
sends the message itself to `%RETRY%<group>`, as any other message (`send` asks `RetryRules` about it).

    sent back      tries >= maximum, or delay level below 0        ->  %DLQ%<group>
    sent anew      tries >  maximum, or the group holds a lock     ->  %DLQ%<group>

The two comparisons differ in the original too: a client counts the try that it sends before it sends it. Some groups'
maximum is their configuration's, but clients since 3.4.9 say their own in the request, and theirs counts.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from broker.context import BrokerContext
from broker.remoting.refused import RequestRefused
from broker.remoting.session import Session
from broker.state.groups import GroupTable, SubscriptionGroupConfig
from broker.state.queue_locks import LockTable
from broker.state.shares import Stranger
from broker.state.topics import TopicTable
from ropewalk.codes import Permission, ResponseCode
from ropewalk.errors import CorruptRecord, LocalProtocolError
from ropewalk.format import names
from ropewalk.format.headers import ConsumerSendBackHeader, decode_header
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, encode_properties, fit_properties
from ropewalk.format.record import Record, decode_record, encode_host
from ropewalk.format.remoting import Command
from store.queues.consume_queue import ConsumeQueue

VERSION_3_4_9 = 121
"""From this version on a client's own maximum counts."""
_FIRST_LEVEL = 3
_UNIT_SUB = 2


class RetryRules:
    """Rules by which a message is given up, over the broker's tables."""

    def __init__(
        self,
        groups: GroupTable,
        topics: TopicTable,
        locks: LockTable,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def max_times(self, config: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
        return asked if asked is not None and version >= VERSION_3_4_9 else config.retry_max_times

    def group_of(self, topic: str, by: Stranger | None = None) -> SubscriptionGroupConfig | None:
        """Return the group of a retry topic, created if it may be; None if there is none (26)."""
        group = self._groups.find_or_create(topic.removeprefix(names.RETRY_PREFIX), self._now_ms(), by)
        if group is not None:
            self._groups.made.pop(group.name, None)
        return group

    def given_up_on_send(
        self, config: SubscriptionGroupConfig, times: int, asked: int | None, version: int
    ) -> bool:
        """Tell whether a message sent anew to the group's retry topic goes to its dead letters."""
        if times > self.max_times(config, asked, version):
            return True
        return self._locks.held(config.name, self._monotonic_ms())

    def given_up_on_send_back(
        self, config: SubscriptionGroupConfig, header: ConsumerSendBackHeader, times: int, version: int
    ) -> bool:
        """Tell whether a message that is given back goes to the group's dead letters.

        So do all of a group without retry queues; RocketMQ answers success and keeps none of them.
        """
        if header.delay_level < 0 or config.retry_queue_nums <= 0:
            return True
        return times >= self.max_times(config, header.max_reconsume_times, version)

    def dead_letters(self, config: SubscriptionGroupConfig) -> str | None:
        """Return the name of the group's dead-letter topic, created if need be; None if it cannot be."""
        topic = self._topics.create_dlq(config.name, now_ms=self._now_ms())
        return None if topic is None else topic.name


class SendBack:
    """Handler of code 36, CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        broker: BrokerContext,
        rules: RetryRules,
        place: Callable[[ConsumeQueue, dict[str, str]], tuple[ConsumeQueue, int]],
        refusal: Callable[[], tuple[int, str] | None],
        chance: random.Random,
    ) -> None:
        """`place` finds the queue and tag code of a message (`schedule`); `refusal` says why none is taken now."""
        self._broker = broker
        self._rules = rules
        self._place = place
        self._refusal = refusal
        self._chance = chance

    def handle(self, session: Session, request: Command) -> Command | None:
        """Judge the request, and read the record; `_send_back` goes on when it is there."""
        header = decode_header(ConsumerSendBackHeader, request.ext)
        broker = self._broker
        if (refused := self._refusal()) is not None:
            return request.reply(*refused)
        now = broker.now_ms()
        config = broker.groups.find_or_create(header.group, now, session)
        if config is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group}: "
                f"{broker.groups.creation_refusal(header.group, session)}",
            )
        if not broker.config.broker_permission & Permission.WRITE:
            return request.reply(
                ResponseCode.NO_PERMISSION, f"the broker[{broker.address[0]}] sending message is forbidden"
            )
        broker.groups.made.pop(header.group, None)
        sys_flag = _UNIT_SUB if header.unit_mode else 0
        queues = max(config.retry_queue_nums, 1)
        topic = broker.topics.create_retry(header.group, queue_nums=queues, sys_flag=sys_flag, now_ms=now)
        broker.topics_changed()
        if topic is None:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, f"topic[{names.retry_topic(header.group)}] not exist"
            )
        if not topic.writable:
            return request.reply(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden"
            )

        def send(answer: Command) -> None:
            session.outbox.send(request, answer)

        def done(data: bytes | None) -> None:
            try:
                self._send_back(config, header, data, request.version)
                answer = request.reply(ResponseCode.SUCCESS)
            except RequestRefused as exc:
                answer = request.reply(exc.code, exc.remark)
            send(answer)

        def busy(_result: None) -> None:
            send(request.reply(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, too many reads from disk"))

        broker.reader.look_up(header.offset, broker.store.find_queue, done, busy)
        return None

    def _send_back(
        self,
        config: SubscriptionGroupConfig,
        header: ConsumerSendBackHeader,
        data: bytes | None,
        version: int,
    ) -> None:
        """Store the record again. Raises `RequestRefused`."""
        if (refused := self._refusal()) is not None:
            raise RequestRefused(*refused)
        record = self._record(header, data)
        properties = record.properties
        properties.setdefault(P.RETRY_TOPIC, record.topic)
        properties.setdefault(P.ORIGIN_MESSAGE_ID, record.msg_id)
        properties[P.WAIT] = "false"
        properties.pop(P.CRC32, None)
        if self._rules.given_up_on_send_back(config, header, record.reconsume_times, version):
            topic, queue_id = self._rules.dead_letters(config), 0
            self._broker.topics_changed()
            if topic is None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"topic[{names.dlq_topic(config.name)}] not exist"
                )
            properties[P.DELAY] = "0"
        else:
            topic, queue_id = (
                names.retry_topic(config.name),
                self._chance.randrange(config.retry_queue_nums),
            )
            properties[P.DELAY] = str(header.delay_level or _FIRST_LEVEL + record.reconsume_times)
        queue_id = self._broker.topics.read_queue(topic, queue_id)
        self._store(record, self._broker.store.queue(topic, queue_id))
        now = self._broker.store.now
        back = self._broker.statistics.meter(
            "SNDBCK_PUT_NUMS", f"{properties[P.RETRY_TOPIC]}@{config.name}", now
        )
        back.add(now, 1, record.size)
        if topic == names.dlq_topic(config.name):
            self._broker.statistics.dead(properties[P.RETRY_TOPIC], config.name, now, record.size)

    def _record(self, header: ConsumerSendBackHeader, data: bytes | None) -> Record:
        # `originTopic` is not compared: of a retried message clients name the topic that it was first sent to.
        try:
            record = decode_record(data) if data is not None else None
        except CorruptRecord:
            record = None
        if record is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        return record

    def _store(self, record: Record, queue: ConsumeQueue) -> None:
        properties = record.properties
        place, tag_code = self._place(queue, properties)
        try:
            # A message whose properties leave no room for what a retry adds would be tried for ever.
            raw = encode_properties(fit_properties(properties, PROPERTIES_SIZE_MAX))
            if len(raw) > PROPERTIES_SIZE_MAX:
                raise LocalProtocolError(f"the properties would have {len(raw)} bytes")
            message = (
                place,
                record.body,
                raw,
                record.flag,
                record.sys_flag,
                record.born_timestamp,
                record.reconsume_times + 1,
                0,
                tag_code,
            )
            stored = self._broker.store.put([message], encode_host(*record.born_host))
        except LocalProtocolError as exc:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message cannot be stored again: {exc}"
            ) from exc
        if not stored:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, self._broker.store.shortage)
