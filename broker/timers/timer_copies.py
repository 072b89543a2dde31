"""Copies of timer messages whose time has come: in the real topic, or in the timer topic again.

A copy has body, flags, born time and host, and retries of the waiting record, and its property text as it stands, with
TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS behind it, as the original leaves it; a rolled one counts TIMER_ROLL_TIMES.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from broker.timers.real_place import real_place
from ropewalk.errors import CorruptRecord
from ropewalk.format import names
from ropewalk.format.properties import (
    PROPERTIES_SIZE_MAX,
    P,
    encode_properties,
    find_property,
    parse_properties,
    tags_code,
)
from ropewalk.format.record import (
    HEAD_V4,
    HOST_V6_BITS,
    MAGIC_V1,
    Record,
    decode_record,
    encode_host,
    record_size,
)
from store.append import Message
from store.message_store import MessageStore
from store.timer.layout import ENQUEUED_LATE

__all__ = ["Copy", "copy_of", "decode_timer", "delete_key", "is_cancelled", "waiting_of"]

_FORBIDDEN = (names.SCHEDULE_TOPIC, names.TRANS_HALF_TOPIC, names.TIMER_TOPIC)
_OWN = (P.TIMER_ENQUEUE_MS, P.TIMER_DEQUEUE_MS, P.TIMER_ROLL_TIMES)
_REPLACED = b"TIMER_ENQUEUE_MS"
_CRC = P.CRC32.encode()
_PLACED_AT = f"{P.TIMER_OUT_MS}\x01".encode()
_PLACED = re.compile(rb"TIMER_OUT_MS\x01(\d{1,18})\x02REAL_TOPIC\x01([^\x02]+)\x02REAL_QID\x01(\d+)\x02")
"""The end of a text that `placement` has written."""
_MARKER, _ROLLED = P.TIMER_DEL_UNIQKEY.encode(), P.TIMER_ROLL_TIMES.encode()
_TOPIC = bytes((len(names.TIMER_TOPIC),)) + names.TIMER_TOPIC.encode()


class Copy(NamedTuple):
    """A message to append, the encoded host that it was born at, and its real topic."""

    message: Message
    born_host: bytes
    topic: str
    counted: bool
    """Whether it was counted as pending when it was enqueued."""


class Waiting(NamedTuple):
    """The parts of a timer message that the wheel needs. Times in ms."""

    due_ms: int
    topic: str
    """Its real one."""
    queue_text: str
    store_ms: int
    born_ms: int
    is_marker: bool
    comes_again: bool
    """Whether it was rolled."""


def decode_timer(data: bytes, offset: int) -> Record:
    """Read the record of a timer message. Raises ValueError with the reason why it is none."""
    try:
        record = decode_record(data)
    except CorruptRecord as exc:
        raise ValueError(f"the record at log offset {offset}: {exc}") from exc
    if record.topic != names.TIMER_TOPIC or record.offset != offset:
        raise ValueError(
            f"the record at log offset {offset} is no timer message, but of topic {record.topic}"
        )
    if P.TIMER_OUT_MS not in record.properties or P.REAL_TOPIC not in record.properties:
        raise ValueError(f"the record at log offset {offset} has no TIMER_OUT_MS or REAL_TOPIC")
    return record


def waiting_of(data: bytes, offset: int) -> Waiting:
    """Read the parts of a record that the wheel needs. HOT. Raises ValueError with the reason why it is no timer."""
    ordinary = _read_ordinary(data, offset)
    if ordinary is not None:
        return ordinary
    record = decode_timer(data, offset)
    properties = record.properties
    return Waiting(
        int(properties[P.TIMER_OUT_MS]),
        properties[P.REAL_TOPIC],
        properties.get(P.REAL_QID, ""),
        record.store_timestamp,
        record.born_timestamp,
        P.TIMER_DEL_UNIQKEY in properties,
        P.TIMER_ROLL_TIMES in properties,
    )


def _read_ordinary(data: bytes, offset: int) -> Waiting | None:
    """Read a record as a send of this broker leaves it, no marker and not rolled; None for every other one. HOT."""
    at = data.rfind(_PLACED_AT)
    if at < HEAD_V4.size or data[at - 1] != 2:
        return None
    placed = _PLACED.fullmatch(data, at)
    size, magic, crc, _id, _flag, _number, position, sys_flag, born_ms, _host, store_ms, *_, body_size = (
        HEAD_V4.unpack_from(data)
    )
    body_end = HEAD_V4.size + body_size
    topic_end = body_end + len(_TOPIC)
    if (
        placed is None
        or (size, position, magic) != (len(data), offset, MAGIC_V1)
        or sys_flag & HOST_V6_BITS
        or data[body_end:topic_end] != _TOPIC
        or at < topic_end + 2
        or data.find(_MARKER, topic_end) >= 0
        or data.find(_ROLLED, topic_end) >= 0
        or int.from_bytes(data[topic_end : topic_end + 2], "big") != size - topic_end - 2
        or (body_size and crc32(data[HEAD_V4.size : body_end]) & 0x7FFFFFFF != crc)
    ):
        return None
    due, topic, queue_id = placed.groups()
    return Waiting(
        int(due), topic.decode("utf-8", "replace"), queue_id.decode(), store_ms, born_ms, False, False
    )


def delete_key(record: Record) -> tuple[str, str]:
    """Return topic and unique key of the message that a marker cancels: of its own topic, and of no other's."""
    topic, key = record.properties[P.REAL_TOPIC], record.properties.get(P.TIMER_DEL_UNIQKEY, "")
    return topic, key.removeprefix(f"{topic}+")


def is_cancelled(record: Record, keys: set[tuple[str, str]]) -> bool:
    """Tell whether a message of the slot is among those that its markers cancel."""
    return bool(keys) and (record.properties[P.REAL_TOPIC], record.properties.get(P.UNIQ_KEY, "")) in keys


def copy_of(
    store: MessageStore,
    record: Record,
    enqueue_ms: int,
    now_ms: int,
    read_queue: Callable[[str, int], int],
    *,
    rolled: bool,
) -> Copy:
    """Return the copy of a record. Raises ValueError if it has no place to go."""
    properties = record.properties
    real_topic = properties[P.REAL_TOPIC]
    if rolled:
        queue = store.queue(names.TIMER_TOPIC, 0)
    else:
        topic, queue_id = real_place(record, store.queues, _FORBIDDEN)
        queue = store.queue(topic, read_queue(topic, queue_id))
    raw = _text(record, enqueue_ms, now_ms, rolled=rolled)
    size = record_size(len(queue.topic_bytes), len(record.body), len(raw), 20, 20)
    if not store.log.fits(size):
        raise ValueError(
            f"the record at log offset {record.offset}: its {size} bytes fit into no segment any more"
        )
    message = (
        queue,
        record.body,
        raw,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.reconsume_times,
        0,
        tags_code(properties.get(P.TAGS)),
    )
    return Copy(message, encode_host(*record.born_host), real_topic, enqueue_ms != ENQUEUED_LATE)


def _text(record: Record, enqueue_ms: int, now_ms: int, *, rolled: bool) -> bytes:
    """The property text of a copy. HOT."""
    raw = record.raw_properties
    own = f"TIMER_ENQUEUE_MS\x01{enqueue_ms}\x02TIMER_DEQUEUE_MS\x01{now_ms}\x02".encode()
    if rolled or _REPLACED in raw or find_property(raw, _CRC) is not None:
        properties = {k: v for k, v in parse_properties(raw).items() if k not in _OWN and k != P.CRC32}
        times = record.properties.get(P.TIMER_ROLL_TIMES, "0")
        if rolled:
            properties[P.TIMER_ROLL_TIMES] = str(int(times) + 1 if times.isascii() and times.isdigit() else 1)
        elif P.TIMER_ROLL_TIMES in record.properties:
            properties[P.TIMER_ROLL_TIMES] = times
        raw = encode_properties(properties)
    joint = b"" if not raw or raw[-1] == 2 else b"\x02"
    text = b"".join((raw, joint, own))
    # The original loses a message whose text does not fit any more; what is left out here nobody acts on.
    return text if len(text) <= PROPERTIES_SIZE_MAX else raw
