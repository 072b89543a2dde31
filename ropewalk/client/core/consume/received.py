"""A message as a consumer meets it: unpacked, under the topic it was sent to, with a note of where it lies. Pure.

A message that is delivered again comes out of the group's retry topic; its handler sees the topic it was sent to, and
in `reconsume_times` how often it was given back. One that is read from anywhere else shows the topic that it lies in: a
dead letter that of the dead letters, a copy that of the copy.

A pull brings dozens of messages, and most programs look at little but their bodies. So `decode_received` checks each
record, takes its body out and leaves the text of its properties unread until somebody asks: a third of the time.

A compressed body stays compressed until it is asked for: a batch of some kilobytes may unpack to gigabytes. One that is
large is unpacked anew each time, so that messages which wait for their turn take no more memory than they did on the
wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ropewalk.client.core.options import check_count
from ropewalk.client.core.produce.bodies import BODY_BYTES_MAX, unpack_body
from ropewalk.client.core.routes import Queue
from ropewalk.codes import MessageSysFlag
from ropewalk.errors import BodyTooLarge, BodyUnreadable
from ropewalk.format.names import RETRY_PREFIX
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, parse_properties, split_keys
from ropewalk.format.record import (
    HEAD_V4,
    MAGIC_V1,
    RECORD_SIZE_MIN,
    TOPIC_SIZE_MAX_V1,
    Record,
    crc32,
    decode_record,
    decode_records,
    encode_host,
    message_id,
    shown_body,
)

_HEAD_SIZE: Final = HEAD_V4.size
_KEPT_BYTES_MAX: Final = 1 << 20
"""A body that unpacks to more is not kept in its message."""
_EXTRAORDINARY: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.COMPRESSED
_RETRY_TOPIC: Final = P.RETRY_TOPIC.encode()


@dataclass(frozen=True, slots=True, order=True)
class TopicQueue:
    """A queue of a topic. Sorts as clients sort: by topic, then broker, then id."""

    topic: str
    queue: Queue


class RetryLater(Exception):
    """Raised by a handler that wants its message again: after the delay of a level, or as a dead letter.

    `delay_level` 0 lets the broker choose (10 s, 30 s, 1 min, … by the number of tries), -1 gives the message up.
    """

    def __init__(self, delay_level: int = 0) -> None:
        check_count("delay_level", delay_level, -1)
        super().__init__(f"delay level {delay_level}")
        self.delay_level = delay_level

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.delay_level,), self.__dict__


class ReceivedMessage:
    """A message as a handler gets it, immutable. Times are milliseconds since 1970."""

    __slots__ = (
        "_body",
        "_body_bytes_max",
        "_born_ms",
        "_keys",
        "_log_offset",
        "_message_id",
        "_note",
        "_offset_id",
        "_packed",
        "_properties",
        "_queue_offset",
        "_raw",
        "_source",
        "_store_host",
        "_stored_ms",
        "_sys_flag",
        "_tags",
        "_topic",
        "_tries",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        keys: Sequence[str],
        tags: str | None,
        properties: Mapping[str, str],
        message_id: str,
        reconsume_times: int,
        born_timestamp_ms: int,
        store_timestamp_ms: int,
        source: TopicQueue,
        queue_offset: int,
        log_offset: int,
        offset_message_id: str,
        note: str | None = None,
    ) -> None:
        self._topic = topic
        self._body = body
        self._keys = list(keys)
        self._tags = tags
        self._properties = properties
        self._message_id = message_id
        self._tries = reconsume_times
        self._born_ms = born_timestamp_ms
        self._stored_ms = store_timestamp_ms
        self._source = source
        self._queue_offset = queue_offset
        self._log_offset = log_offset
        self._offset_id = offset_message_id
        self._note = note
        # Of a message that was pulled these two are there first, and the properties and ids only when asked for.
        self._raw = b""
        self._store_host = b""
        self._packed = b""
        self._sys_flag = 0
        self._body_bytes_max = BODY_BYTES_MAX

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self._topic

    @property
    def body(self) -> bytes:
        """The body as it was sent. One that was compressed is unpacked now, and again next time if it is large.

        Raises `BodyTooLarge` where that takes more than the consumer's `body_bytes_max`, `BodyUnreadable` where it
        does not unpack: `note` says why, and `wire_body` has it all the same.
        """
        return self._body

    @property
    def keys(self) -> list[str]:
        """The keys it can be found by; empty if it has none."""
        return self._keys

    @property
    def tags(self) -> str | None:
        return self._tags

    @property
    def properties(self) -> Mapping[str, str]:
        return self._properties

    @property
    def message_id(self) -> str:
        """Given by its producer, which finds it in `SendResult.message_id`; the same for every delivery."""
        return self._message_id

    @property
    def reconsume_times(self) -> int:
        """The number of times it was given back."""
        return self._tries

    @property
    def born_timestamp_ms(self) -> int:
        return self._born_ms

    @property
    def store_timestamp_ms(self) -> int:
        return self._stored_ms

    @property
    def source(self) -> TopicQueue:
        """The queue it was read from: of the retry topic, when it comes again."""
        return self._source

    @property
    def queue_id(self) -> int:
        """The id of the queue it was read from; `source` has its topic and broker too."""
        return self._source.queue.queue_id

    @property
    def queue_offset(self) -> int:
        return self._queue_offset

    @property
    def log_offset(self) -> int:
        return self._log_offset

    @property
    def offset_message_id(self) -> str:
        """The id of the place where it lies: what `ropewalk.client.blocking.simple.Client.view` takes."""
        return self._offset_id

    @property
    def note(self) -> str | None:
        """The reason why the body cannot be unpacked; None where it can, or needs not be."""
        return self._note

    @property
    def wire_body(self) -> tuple[int, bytes]:
        """The body as it travels, and the flags that say how it is compressed: 0 for one that is not."""
        return (self._sys_flag, self._packed) if self._packed else (0, self._body)

    @property
    def group(self) -> str | None:
        """The message group it was sent with."""
        return self.properties.get(P.SHARDING_KEY)

    def tried_again(self, times: int) -> ReceivedMessage:
        """Return the same message after so many more tries."""
        message = _restored(self._state())
        message._tries += times
        return message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReceivedMessage):
            return NotImplemented
        if any(getattr(self, name) != getattr(other, name) for name in _FIELDS):
            return False
        if self.wire_body == other.wire_body:
            return True
        try:
            return self.body == other.body
        except BodyUnreadable:
            return False

    __hash__ = None  # type: ignore[assignment]  # its properties are a dictionary

    def __repr__(self) -> str:
        queue = self._source.queue
        parts = [self._topic, f"{queue.broker_name}/{queue.queue_id}@{self._queue_offset}"]
        if self._source.topic != self._topic:
            parts.append(f"from {self._source.topic}")
        if self.tags:
            parts.append(f"tags={self.tags!r}")
        if self.keys:
            parts.append(f"keys={self.keys!r}")
        if self._tries:
            parts.append(f"reconsume_times={self._tries}")
        if self.note is not None:
            parts.append(f"note={self.note!r}")
        try:
            parts.append(shown_body(self.body))
        except BodyUnreadable:
            parts.append(f"({len(self._packed)} bytes, compressed)")
        return f"<ReceivedMessage {' '.join(parts)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._state(),)

    def _state(self) -> dict[str, Any]:
        """Return the slots that are filled."""
        state = {}
        for name in self.__slots__:
            with suppress(AttributeError):
                state[name] = object.__getattribute__(self, name)
        return state

    def _unpack(self) -> tuple[bytes, str | None]:
        """Return the body that was compressed, and the note on it; keep a small one."""
        try:
            body, note = unpack_body(self._sys_flag, self._packed, self._body_bytes_max)
        except BodyTooLarge as exc:
            raise BodyTooLarge(
                f"{exc}, the body_bytes_max of this consumer: message {self._message_id} of {self._topic}"
            ) from None
        self._note = note
        if note is None and len(body) <= _KEPT_BYTES_MAX:
            self._body = body
        return body, note

    def _fill(self, name: str) -> Any:
        """Decode the field of an empty slot: it was left unread until now."""
        match name:
            case "_body":
                body, note = self._unpack()
                if note is not None:
                    raise BodyUnreadable(f"message {self._message_id} of {self._topic}: {note}")
                return body
            case "_note":
                try:
                    return self._unpack()[1]
                except BodyTooLarge as exc:
                    return str(exc)
            case "_properties":
                self._properties = parse_properties(self._raw)
                return self._properties
            case "_keys":
                self._keys = split_keys(self._properties.get(P.KEYS, ""))
                return self._keys
            case "_tags":
                self._tags = self._properties.get(P.TAGS)
                return self._tags
            case "_offset_id":
                self._offset_id = message_id(self._store_host, self._log_offset)
                return self._offset_id
            case "_message_id":
                self._message_id = self._properties.get(P.UNIQ_KEY, self._offset_id)
                return self._message_id
        raise AttributeError(f"a received message has no {name!r}", name=name, obj=self)

    if not TYPE_CHECKING:  # which would take it as leave to ask for attributes that do not exist
        __getattr__ = _fill


_FIELDS: Final = (
    "topic",
    "keys",
    "tags",
    "properties",
    "message_id",
    "reconsume_times",
    "born_timestamp_ms",
    "store_timestamp_ms",
    "source",
    "queue_offset",
    "log_offset",
    "offset_message_id",
)
"""What makes two messages equal, beside their bodies."""


def _restored(state: Mapping[str, Any]) -> ReceivedMessage:
    """Return a message with these slots filled."""
    message = _new(ReceivedMessage)
    for name, value in state.items():
        setattr(message, name, value)
    return message


def received(record: Record, source: TopicQueue, body_bytes_max: int = BODY_BYTES_MAX) -> ReceivedMessage:
    """Return a record read from `source`, as its consumer should see it."""
    message = _new(ReceivedMessage)
    message._raw = record.raw_properties
    message._properties = record.properties
    message._store_host = encode_host(*record.store_host)
    is_retried = source.topic.startswith(RETRY_PREFIX)
    message._topic = record.properties.get(P.RETRY_TOPIC, source.topic) if is_retried else source.topic
    if record.sys_flag & MessageSysFlag.COMPRESSED and record.body:
        message._packed = record.body
        message._sys_flag = record.sys_flag & (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
        message._body_bytes_max = body_bytes_max
    else:
        message._body = record.body
        message._packed = b""
        message._note = None
    message._tries = record.reconsume_times
    message._born_ms = record.born_timestamp
    message._stored_ms = record.store_timestamp
    message._source = source
    message._queue_offset = record.queue_offset
    message._log_offset = record.offset
    return message


def decode_received(
    data: bytes, source: TopicQueue, body_bytes_max: int = BODY_BYTES_MAX
) -> list[ReceivedMessage]:
    """Return the records of a pull's answer, back to back. Raises `CorruptRecord`. HOT: a pull brings dozens."""
    topic = source.topic
    is_retried = topic.startswith(RETRY_PREFIX)
    name = topic.encode()
    if len(name) > TOPIC_SIZE_MAX_V1:
        return [received(record, source, body_bytes_max) for record in decode_records(data)]
    messages: list[ReceivedMessage] = []
    topic_field = len(name).to_bytes(1, "big") + name
    # Behind the body: the topic's length, the topic, the properties' length.
    between = len(topic_field) + 2
    unpack, checksum, new = HEAD_V4.unpack_from, crc32, _new
    position, end = 0, len(data)
    while position < end:
        if end - position >= RECORD_SIZE_MIN:
            (
                size, magic, crc, _queue_id, _flag, queue_offset, log_offset, sys_flag, born_ms, _born_host,
                stored_ms, store_host, tries, _prepared, body_size,
            ) = unpack(data, position)  # fmt: skip
            body_start = position + _HEAD_SIZE
            body_end = body_start + body_size
            raw_start = body_end + between
            record_end = position + size
            # A record with IPv4 hosts, of the topic that was asked for, whose parts fill it and whose body is whole.
            if (
                magic == MAGIC_V1
                and not sys_flag & _EXTRAORDINARY
                and body_size > 0
                and raw_start <= record_end <= end
                and data.startswith(topic_field, body_end)
                and data[raw_start - 2] << 8 | data[raw_start - 1] == record_end - raw_start
                and record_end - raw_start <= PROPERTIES_SIZE_MAX
                and checksum(body := data[body_start:body_end]) & 0x7FFFFFFF == crc
            ):
                raw = data[raw_start:record_end]
                if not is_retried or _RETRY_TOPIC not in raw:
                    message = new(ReceivedMessage)
                    message._raw = raw
                    message._store_host = store_host
                    message._topic = topic
                    message._body = body
                    message._packed = b""
                    message._note = None
                    message._tries = tries
                    message._born_ms = born_ms
                    message._stored_ms = stored_ms
                    message._source = source
                    message._queue_offset = queue_offset
                    message._log_offset = log_offset
                    messages.append(message)
                    position = record_end
                    continue
        record = decode_record(data, position)
        messages.append(received(record, source, body_bytes_max))
        position += record.size
    return messages


_new: Final = object.__new__
