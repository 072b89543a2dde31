"""The records of transactions: half messages, their copies, committed messages, operation records. Pure.

    half         the message as sent, with REAL_TOPIC, REAL_QID, __transactionId__ and PGROUP; no transaction bits
    check copy   the half once more, at the end of the half queue: TRANSACTION_CHECK_TIMES raised, and
                 TRAN_PREPARED_QUEUE_OFFSET = queue offset of the first record of the transaction
    committed    the half's properties as they stand, in the real topic: sysFlag COMMIT, log offset of the half
    operation    tag `d`, body `12,13,`: queue offsets of half records that are decided

RocketMQ 4 writes one offset without a comma into an operation record; both forms are read. RocketMQ writes
TRAN_PREPARED_QUEUE_OFFSET only while a half is immune to checks, and reads it only then; here every copy has it,
because it is how a late end that names an older record finds the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from broker.state.offsets import real_queue_id
from ropewalk.codes import MessageSysFlag
from ropewalk.format import names
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, encode_properties
from ropewalk.format.record import Record, encode_host, encode_record

__all__ = [
    "CONSUMER_GROUP",
    "HALF_PROPERTIES_SIZE_MAX",
    "HALF_QUEUE",
    "OP_PROPERTIES",
    "Half",
    "Origin",
    "check_body",
    "copy_properties",
    "half_of",
    "half_properties",
    "immunity_ms",
    "new_half",
    "op_bodies",
    "op_offsets",
    "origin_of",
    "plain_properties",
    "stored_properties",
]

CONSUMER_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose consumer offsets tell how far the half queue and the operation queue have been worked through."""
HALF_QUEUE: Final = 0
REMOVE_TAG: Final = "d"
OP_PROPERTIES: Final = encode_properties({P.TAGS: REMOVE_TAG, P.WAIT: "true"})
HALF_PROPERTIES_SIZE_MAX: Final = PROPERTIES_SIZE_MAX - 128
"""Bytes of a half's properties: copies of it carry three properties more."""
_OF_RECORDS: Final = frozenset((P.CRC32, P.TRANSACTION_SINCE))
"""Properties of one record, and not of its message."""
_FOREVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Origin:
    """The topic and queue that a message goes to when it is committed."""

    topic: str
    queue_id: int


@dataclass(slots=True)
class Half:
    """An undecided transaction, under the newest of its half records."""

    offset: int
    """In the half queue."""
    log_offset: int
    first: int
    """Queue offset of the first record; the name of the transaction."""
    topic: str
    queue_id: int
    """Where its message goes; -1 if that is no queue."""
    group: str
    since_ms: int
    """When its message was taken, by the wall clock: ages are counted from then."""
    checks: int = 0
    """How often a producer was asked."""
    immune_ms: int | None = None
    """How long the message itself asked not to be checked; None leaves that to `transactionTimeOut`."""
    older: tuple[int, ...] = ()
    """Queue offsets of older records that no operation record names."""
    tag_code: int | None = None
    """The tag code of its message; None if it is not known, or the message asks for a delay or a time."""


def half_properties(
    properties: dict[str, str], topic: str, queue_id: int, unique_key: str, producer_group: str
) -> None:
    """Add the properties that a half record carries to those of its message, and remove those that only copies carry.

    A message that was consumed and is sent once more has the counters of the transaction that it was part of.
    """
    for name in (P.TRANSACTION_CHECK_TIMES, P.TRAN_PREPARED_QUEUE_OFFSET, P.TRANSACTION_SINCE):
        properties.pop(name, None)
    if unique_key:
        properties[P.TRANSACTION_ID] = unique_key
    # Without the group nobody could ever decide: RocketMQ's client sends it, and others have named it in the header.
    properties.setdefault(P.PGROUP, producer_group)
    properties[P.REAL_TOPIC] = topic
    properties[P.REAL_QID] = str(queue_id)


def origin_of(properties: Mapping[str, str]) -> Origin:
    """Return where the message of a half record goes. Raises ValueError, in words, if there is no such place."""
    topic, queue_id = properties.get(P.REAL_TOPIC, ""), real_queue_id(properties)
    if queue_id is None:
        raise ValueError(f"REAL_QID is {properties.get(P.REAL_QID, '')!r}, which is no queue id")
    if topic in names.SEND_FORBIDDEN_TOPICS:
        raise ValueError(f"REAL_TOPIC is {topic!r}, into which nothing is committed")
    if (reason := names.check_topic(topic)) is not None:
        raise ValueError(f"REAL_TOPIC is {topic!r}: {reason}")
    return Origin(topic, queue_id)


def half_of(record: Record) -> Half:
    """Return the transaction of a half record that was read from the log."""
    properties = record.properties
    first = _number(properties.get(P.TRAN_PREPARED_QUEUE_OFFSET), record.queue_offset)
    since = record.store_timestamp
    if P.TRANSACTION_SINCE in properties:
        since = min(_number(properties[P.TRANSACTION_SINCE], since), since)
    elif P.TRAN_PREPARED_QUEUE_OFFSET in properties or P.TRANSACTION_CHECK_TIMES in properties:
        # A copy that RocketMQ made: only the client's time is still that of the first record.
        since = min(record.born_timestamp, since)
    return Half(
        record.queue_offset,
        record.offset,
        first if 0 <= first < record.queue_offset else record.queue_offset,
        properties.get(P.REAL_TOPIC, ""),
        _number(properties.get(P.REAL_QID), -1),
        properties.get(P.PGROUP, ""),
        since,
        max(_number(properties.get(P.TRANSACTION_CHECK_TIMES), 0), 0),
        immunity_ms(properties),
    )


def new_half(
    properties: Mapping[str, str], offset: int, log_offset: int, now_ms: int, tag_code: int | None
) -> Half:
    """Return the transaction of a half message that was just stored with these properties; `tag_code` as in `Half`."""
    return Half(
        offset,
        log_offset,
        offset,
        properties[P.REAL_TOPIC],
        int(properties[P.REAL_QID]),
        properties[P.PGROUP],
        now_ms,
        immune_ms=immunity_ms(properties),
        tag_code=tag_code,
    )


def immunity_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long a message asks not to be checked, ms; None if it does not ask, or in no number."""
    seconds = _number(properties.get(P.CHECK_IMMUNITY_TIME_IN_SECONDS), -1)
    return min(seconds * 1000, _FOREVER_MS) if seconds >= 0 else None


def _number(text: str | None, otherwise: int) -> int:
    try:
        return int(text) if text is not None and len(text) < 20 else otherwise
    except ValueError:
        return otherwise


def copy_properties(record: Record, *, checks: int, first: int | None, since_ms: int) -> bytes:
    """Return the property text of a copy of a half record of this age; `first` None begins a new transaction."""
    properties = plain_properties(record)
    properties[P.TRANSACTION_CHECK_TIMES] = str(checks)
    if first is None:
        properties.pop(P.TRAN_PREPARED_QUEUE_OFFSET, None)
    else:
        properties[P.TRAN_PREPARED_QUEUE_OFFSET] = str(first)
        properties[P.TRANSACTION_SINCE] = str(since_ms)
    return encode_properties(properties)


def plain_properties(record: Record) -> dict[str, str]:
    """Return the properties of a half record that its message keeps."""
    return {name: value for name, value in record.properties.items() if name not in _OF_RECORDS}


def stored_properties(record: Record) -> bytes:
    """Return the property text of a half as the committed message carries it."""
    if _OF_RECORDS.isdisjoint(record.properties):
        return record.raw_properties
    return encode_properties(plain_properties(record))


def check_body(
    record: Record, properties: bytes, queue_offset: int, log_offset: int, store_ms: int, store_host: bytes
) -> bytes:
    """Return the message that a producer is asked about: the half record, under its real topic and queue."""
    origin = origin_of(record.properties)
    return encode_record(
        origin.topic.encode(),
        origin.queue_id,
        record.flag,
        queue_offset,
        log_offset,
        record.sys_flag & ~MessageSysFlag.TRANSACTION_MASK,
        record.born_timestamp,
        encode_host(*record.born_host),
        store_ms,
        store_host,
        record.reconsume_times,
        0,
        record.body,
        properties,
    )


def op_bodies(offsets: Iterable[int], size_max: int) -> list[tuple[bytes, int]]:
    """Return the bodies of operation records for these half offsets, none much longer than `size_max`, with counts."""
    bodies: list[tuple[bytes, int]] = []
    pieces: list[bytes] = []
    size = 0
    for offset in offsets:
        piece = b"%d," % offset
        pieces.append(piece)
        size += len(piece)
        if size >= size_max:
            bodies.append((b"".join(pieces), len(pieces)))
            pieces, size = [], 0
    if pieces:
        bodies.append((b"".join(pieces), len(pieces)))
    return bodies


def op_offsets(record: Record) -> list[int]:
    """Return the half offsets that an operation record decides; none of a record with another tag.

    Pieces of the body that are no numbers are passed over.
    """
    if record.properties.get(P.TAGS) != REMOVE_TAG:
        return []
    return [int(piece) for piece in record.body.split(b",") if piece.isdigit() and len(piece) < 20]
