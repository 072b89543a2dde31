"""Trace records: what clients tell of a message's life, in messages of the trace topic. Pure.

    body     record 0x02 record 0x02 ...      record   field 0x01 field 0x01 ...

The first field names the kind, and the kind says what the others are:

    Pub             time, region, group, topic, message id, tags, keys, store host, body size, cost ms, type,
                    offset message id, success, client host
    SubBefore       time, region, group, request id, message id, retries, keys
    SubAfter        request id, message id, cost ms, success, keys, context code, time, group
    EndTransaction  time, region, group, topic, message id, tags, keys, store host, type, transaction id, state,
                    whether in answer to a check
    Recall          time, region, group, topic, message id, success

The keys of a trace message are the ids and keys of the messages that it tells of, so it is found by them. Older clients
leave the last fields out.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

__all__ = ["ConsumeCode", "MessageType", "TraceRecord", "decode_trace", "encode_trace"]

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pub": (
        *("time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host", "body_size"),
        *("cost_ms", "type", "offset_message_id", "success", "client_host"),
    ),
    "SubBefore": ("time_ms", "region", "group", "request_id", "message_id", "retries", "keys"),
    "SubAfter": ("request_id", "message_id", "cost_ms", "success", "keys", "code", "time_ms", "group"),
    "EndTransaction": (
        *("time_ms", "region", "group", "topic", "message_id", "tags", "keys", "store_host"),
        *("type", "transaction_id", "state", "checked"),
    ),
    "Recall": ("time_ms", "region", "group", "topic", "message_id", "success"),
}
_NUMBERS: Final = frozenset({"time_ms", "cost_ms", "retries", "body_size", "type", "code"})
_TRUTHS: Final = frozenset({"success", "checked"})
_BLANKED: Final = str.maketrans("\x01\x02", "  ")


class MessageType(enum.IntEnum):
    """The type of a message, numbered as in the original's enumeration."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class ConsumeCode(enum.IntEnum):
    """The outcome of a consumption, numbered as in the original's `ConsumeReturnType`."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    FAILED = 4


class TraceRecord(msgspec.Struct, frozen=True):
    """The trace of a client's act on a message."""

    kind: str
    message_id: str
    group: str = ""
    time_ms: int = 0
    topic: str = ""
    keys: str = ""
    """Separated by blanks."""
    store_host: str = ""
    client_host: str = ""
    request_id: str = ""
    retries: int = 0
    cost_ms: int = 0
    success: bool = True
    state: str = ""
    checked: bool = False
    region: str = ""
    tags: str = ""
    body_size: int = 0
    type: int = 0
    """A `MessageType`, or the number of a type that only later clients know."""
    offset_message_id: str = ""
    transaction_id: str = ""
    code: int = 0
    """A `ConsumeCode`, or the number of another."""


def encode_trace(record: TraceRecord) -> str:
    """Return the record as a trace message's body holds it. A separator within a field becomes a blank."""
    fields = (getattr(record, name) for name in _FIELDS[record.kind])
    texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in fields)
    return "\x01".join((record.kind, *(text.translate(_BLANKED) for text in texts))) + "\x02"


def decode_trace(body: bytes) -> Iterator[TraceRecord]:
    """Yield the records of a trace message; pieces of unknown kinds, or without their numbers, are left out."""
    for piece in body.decode(errors="replace").split("\x02"):
        kind, *fields = piece.split("\x01")
        if kind not in _FIELDS:
            continue
        values: dict[str, object] = {}
        try:
            for name, text in zip(_FIELDS[kind], fields, strict=False):
                if name in _NUMBERS:
                    values[name] = int(text or 0)
                elif name in _TRUTHS:
                    values[name] = text.strip().lower() == "true"
                else:
                    values[name] = text
            yield TraceRecord(kind, **values)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            continue
