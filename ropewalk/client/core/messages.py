"""Messages, their results, and the requests that carry them. Pure.

A send goes out in the short form (310), several messages for one queue as a batch (320), as the
official clients do it. Keys and tags are properties like any other on the wire; here they have names, and keys, which
the wire separates by blanks, are a list.
A pull carries its own subscription, since a client without a group announces none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from ropewalk.client.core.options import milliseconds_of
from ropewalk.client.core.produce.delay_levels import delay_level_of
from ropewalk.client.core.routes import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT, Queue
from ropewalk.codes import PullSysFlag, RequestCode, ResponseCode
from ropewalk.errors import LocalProtocolError, RemoteProtocolError
from ropewalk.format.batch import encode_batch
from ropewalk.format.headers import PullMessageHeader, RecallMessageHeader, encode_header
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, encode_properties, split_keys
from ropewalk.format.record import Record
from ropewalk.format.remoting import Command

_DEFAULT_TOPIC_QUEUES = str(DEFAULT_TOPIC_QUEUE_COUNT)
PROPERTIES_RESERVE = 1024
"""Bytes of properties that a send leaves free: retries and dead letters add their own."""
PRODUCER_GROUP = "ropewalk-client"
READER_GROUP = "TOOLS_CONSUMER"
"""A group every RocketMQ broker knows from birth; a pull must name one even if it commits nothing."""


class SendStatus(enum.Enum):
    """The broker's promise about a stored message. Only SEND_OK is an acknowledgement."""

    SEND_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT


class PullStatus(enum.Enum):
    """The result of a pull, by kind."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


SEND_STATUSES = {status.value: status for status in SendStatus}
PULL_STATUSES = {status.value: status for status in PullStatus}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATER = frozenset({P.DELAY, P.TIMER_DELAY_SEC, P.TIMER_DELAY_MS, P.TIMER_DELIVER_MS})


class Message(msgspec.Struct, frozen=True):
    """A message to send. `keys` are what it can be found by: a list, or a string for a single one. `tags` is one tag.

    It is delivered at `deliver_at`, a time with a zone or milliseconds since 1970, or after a `delay`, as in
    `timedelta(minutes=1)`; the broker says how far ahead (three days by default). Until then it can be recalled by the
    `recall_handle` of the result. A delay of one of the 18 lengths that every broker has a level for (1 s, 5 s, 10 s,
    30 s, 1 min, … 2 h) is sent as that level, also to brokers without timers, and cannot be recalled. A `delay_level`
    is the number of one, whose length is each broker's affair: one above the highest counts as the highest.
    Messages of one `group` are stored in one queue, in the order they were sent.

    Raises `TypeError` and `ValueError`, which say what is right: a key with a blank would be two on the wire, and a tag
    with `||` is one that no subscription can name. A copy of a message that has such a tag all the same, from another
    client, takes it as the property TAGS.
    """

    body: bytes
    keys: Sequence[str] | None = None
    tags: str | None = None
    properties: Mapping[str, str] = {}
    flag: int = 0
    delay_level: int = 0
    group: str | None = None
    delay: timedelta | None = None
    deliver_at: datetime | int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.body, bytes):
            # A mistake of the program, told where it was made and not where the message is sent.
            raise TypeError(_no_bytes(self.body))
        if self.tags is not None:
            if not isinstance(self.tags, str):
                raise TypeError(f"tags is one tag, as text, and not {self.tags!r}")
            if not can_be_subscribed(self.tags):
                raise ValueError(
                    f"tags {self.tags!r}: a message has one tag, without || and without blanks around it; "
                    'consumers write || between the tags that they want, as in "paid || refunded"'
                )
        if self.group is not None and not isinstance(self.group, str):
            raise TypeError(f"the group of a message is text, and not {self.group!r}")
        if self.properties:
            _check_texts(self.properties)
        if self.flag or self.delay_level:
            _check_numbers(self.flag, self.delay_level)
            if self.delay_level < 0:
                raise ValueError(f"delay_level is from 1 on, or 0 for none, and not {self.delay_level}")
        if self.keys is not None:
            msgspec.structs.force_setattr(self, "keys", _list_of_keys(self.keys) or None)
        if self.delay is not None or self.deliver_at is not None:
            if (self.delay_level > 0) + (self.delay is not None) + (self.deliver_at is not None) > 1:
                raise ValueError("a message has one of delay, delay_level and deliver_at, not both")
            later_property(self)

    @property
    def can_be_batched(self) -> bool:
        """Brokers refuse batches that hold delayed messages."""
        properties = self.properties
        return later_property(self) is None and (not properties or not _LATER.intersection(properties))


def can_be_subscribed(tag: str) -> bool:
    """Return True if a subscription can name the tag: `||` separates tags there, and blanks around one are dropped."""
    return "||" not in tag and tag == tag.strip()


def copied_tags(tags: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the tags and the properties by which a copy of a message has the tags that another client gave it."""
    if not tags:
        return None, {}
    return (tags, {}) if can_be_subscribed(tags) else (None, {P.TAGS: tags})


def later_property(message: Message) -> tuple[str, str] | None:
    """Return the property that says when a message is delivered, and its value; None for one without a delay.

    Raises `TypeError` and `ValueError` for a time that is none.
    """
    if message.delay is not None:
        if level := delay_level_of(message.delay):
            return P.DELAY, str(level)
        return (P.TIMER_DELAY_MS, str(_milliseconds(message.delay))) if message.delay else None
    if (deliver_at := message.deliver_at) is not None:
        if isinstance(deliver_at, datetime):
            if deliver_at.tzinfo is None:
                raise ValueError("deliver_at has no time zone: give one, as in datetime.now(UTC)")
            return P.TIMER_DELIVER_MS, str(_milliseconds(deliver_at - _EPOCH))
        return P.TIMER_DELIVER_MS, str(milliseconds_of("deliver_at", deliver_at))
    return (P.DELAY, str(message.delay_level)) if message.delay_level else None


def _milliseconds(span: timedelta) -> int:
    """Round up, so that nothing is delivered a fraction early."""
    return -(-span // timedelta(milliseconds=1))


class SendResult(msgspec.Struct, frozen=True):
    """The place of a stored message, or of a batch of them."""

    status: SendStatus
    queue: Queue
    queue_offset: int
    """Of the first message; the others of a batch follow it without a gap."""
    offset_message_ids: tuple[str, ...]
    """One for each message, from the place where it lies: what the official clients call offsetMsgId."""
    message_ids: tuple[str, ...]
    """One for each message, given before it was sent: the `message_id` of the received one, msgId elsewhere."""
    recall_handle: str | None = None
    """The handle by which `recall` takes the message back until its time; None for one that waits for none."""

    @property
    def message_id(self) -> str:
        """The id of the message, the first one of a batch: what its consumers see as `message_id`."""
        return self.message_ids[0]

    def __repr__(self) -> str:
        ids = self.message_id if len(self.message_ids) == 1 else f"{len(self.message_ids)} messages"
        where = f"{self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}"
        return f"<SendResult {self.status.name} {where} {ids}>"


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages that one pull brought, and the next offset."""

    status: PullStatus
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int
    """The offset the queue's next message will get."""


def has_moved(status: PullStatus, offset: int, next_offset: int) -> bool:
    """Return True if the answer to a pull at an offset moves its reader on in the queue."""
    return next_offset > offset and status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)


def check_found(status: PullStatus, offset: int, next_offset: int, body: bytes) -> None:
    """Refuse an answer that finds nothing, or leads nowhere, and calls that a success. Raises `RemoteProtocolError`."""
    if status is not PullStatus.FOUND:
        return
    if not body:
        raise RemoteProtocolError("a pull was answered as if messages were found, and there is none in it")
    if next_offset <= offset:
        raise RemoteProtocolError(
            f"a pull at offset {offset} found messages, and the next one is to be at {next_offset}"
        )


def check_properties(message: Message) -> None:
    """Refuse properties that leave no room for those that retries add. Raises `LocalProtocolError`."""
    if not (message.properties or message.keys or message.tags):
        return
    room = PROPERTIES_SIZE_MAX - PROPERTIES_RESERVE
    # Four bytes a character is the most that UTF-8 takes: nearly every message ends here.
    texts = (*(message.keys or ()), message.tags or "", *message.properties, *message.properties.values())
    if 4 * (sum(map(len, texts)) + 2 * len(texts)) <= room:
        return
    size = len(message_properties(message, "0" * 32))
    if size > room:
        raise LocalProtocolError(
            f"the message has {size} bytes of properties; {room} are taken, because a retry and a dead letter add some"
        )


def route_request(topic: str) -> Command:
    """Ask a name server where a topic lives, in JSON that is JSON."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)


def send_request(
    topic: str,
    queue: Queue,
    message: Message,
    unique_key: str,
    now_ms: int,
    *,
    producer_group: str = PRODUCER_GROUP,
    sys_flag: int = 0,
    body: bytes | None = None,
) -> Command:
    """Return the send request of one message, in the short form (310; 325 for an answer to a request).

    `body` replaces the message's own where it travels in another form, which `sys_flag` then names.
    """
    ext = _send_ext(topic, queue, now_ms, producer_group, message_properties(message, unique_key))
    if message.flag:
        ext["h"] = str(message.flag)
    if sys_flag:
        ext["f"] = str(sys_flag)
    is_reply = message.properties.get(P.MSG_TYPE) == "reply"
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_reply else RequestCode.SEND_MESSAGE_V2
    return Command(code, ext, message.body if body is None else body)


def batch_request(
    topic: str,
    queue: Queue,
    messages: Sequence[Message],
    unique_keys: Sequence[str],
    batch_key: str,
    now_ms: int,
    *,
    producer_group: str = PRODUCER_GROUP,
) -> Command:
    """Return the send request of several messages for one queue (320)."""
    items = [
        (message.flag, message.body, message_properties(message, unique_key))
        for message, unique_key in zip(messages, unique_keys, strict=True)
    ]
    body = encode_batch(items)
    return encoded_batch_request(topic, queue, body, batch_key, now_ms, producer_group=producer_group)


def encoded_batch_request(
    topic: str,
    queue: Queue,
    body: bytes,
    batch_key: str,
    now_ms: int,
    *,
    producer_group: str = PRODUCER_GROUP,
) -> Command:
    """Return the send request of a batch whose body is encoded (320)."""
    properties = encode_properties({P.UNIQ_KEY: batch_key, P.WAIT: "true"})
    ext = _send_ext(topic, queue, now_ms, producer_group, properties)
    ext["m"] = "true"
    return Command(RequestCode.SEND_BATCH_MESSAGE, ext, body)


def recall_request(handle: str, topic: str, *, producer_group: str = PRODUCER_GROUP) -> Command:
    """Return the request that takes a timer message back (370)."""
    header = RecallMessageHeader(topic=topic, recall_handle=handle, producer_group=producer_group)
    return command_of(RequestCode.RECALL_MESSAGE, header)


def pull_request(
    topic: str,
    queue: Queue,
    offset: int,
    max_count: int,
    subscription: str,
    suspend_ms: int,
    *,
    is_sql: bool = False,
) -> Command:
    """Return a pull that carries its own subscription, since no heartbeat has announced one.

    `is_sql`: the subscription is an SQL92 expression over properties, and not of tags.
    """
    header = PullMessageHeader(
        consumer_group=READER_GROUP,
        topic=topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_count,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if suspend_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=suspend_ms,
        sub_version=0,
        subscription=subscription,
        expression_type="SQL92" if is_sql else "TAG",
    )
    return command_of(RequestCode.PULL_MESSAGE, header)


def _send_ext(
    topic: str, queue: Queue, now_ms: int, producer_group: str, properties: bytes
) -> dict[str, str]:
    """Return the fields of `SendMessageHeaderV2`, written out: by way of the header they would cost a send 5 us."""
    return {
        "a": producer_group,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": _DEFAULT_TOPIC_QUEUES,
        "e": str(queue.queue_id),
        "f": "0",
        "g": str(now_ms),
        "h": "0",
        "i": properties.decode(),
        "j": "0",
        "k": "false",
        "m": "false",
        "n": queue.broker_name,
    }


def message_properties(message: Message, unique_key: str) -> bytes:
    """Return the property text of a message, with a separator behind every entry."""
    later = later_property(message)
    if not (message.properties or message.keys or message.tags or later or message.group):
        return f"WAIT\x01true\x02UNIQ_KEY\x01{unique_key}\x02".encode()
    properties = dict(message.properties)
    if message.keys:
        properties[P.KEYS] = " ".join(message.keys)
    if message.tags:
        properties[P.TAGS] = message.tags
    if later:
        properties[later[0]] = later[1]
    if message.group:
        properties[P.SHARDING_KEY] = message.group
    properties.setdefault(P.WAIT, "true")
    properties[P.UNIQ_KEY] = unique_key
    return encode_properties(properties)


def _no_bytes(body: object) -> str:
    hint = ": encode it, as in text.encode()" if isinstance(body, str) else ""
    if isinstance(body, dict | list):
        hint = ": encode it, as in json.dumps(body).encode()"
    return f"the body must be bytes, not {type(body).__name__}{hint}"


def _check_numbers(*numbers: object) -> None:
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"flag and delay_level are whole numbers, and not {number!r}")
        if not -(2**31) <= number < 2**31:
            raise ValueError(f"flag and delay_level are numbers of 32 bits, and not {number!r}")


def _check_texts(properties: object) -> None:
    if not isinstance(properties, Mapping):
        raise TypeError(f'properties are names and values, as in {{"region": "eu"}}, and not {properties!r}')
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"names and values of properties are text, and not {name!r}: {value!r}")


def _list_of_keys(keys: Sequence[str]) -> list[str]:
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys are a list of texts, and not {keys!r}")
    found = [keys] if isinstance(keys, str) else list(keys)
    for key in found:
        if not isinstance(key, str):
            raise TypeError(f"a key is text, and not {key!r}")
        if not key or " " in key:
            several = f"; several keys are a list, as in keys={split_keys(key)!r}" if key.strip() else ""
            raise ValueError(f"{key!r} cannot be a key: keys are separated by blanks on the wire{several}")
    return found


def command_of(code: int, header: msgspec.Struct, body: bytes = b"") -> Command:
    return Command(code, encode_header(header), body)
