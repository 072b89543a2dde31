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

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

__all__ = ["TraceRecord", "decode_trace"]

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "Pub": (
        *("time_ms", "", "group", "topic", "message_id", "", "keys", "store_host", "", "cost_ms", "", ""),
        *("success", "client_host"),
    ),
    "SubBefore": ("time_ms", "", "group", "request_id", "message_id", "retries", "keys"),
    "SubAfter": ("request_id", "message_id", "cost_ms", "success", "keys", "", "time_ms", "group"),
    "EndTransaction": (
        *(
            "time_ms",
            "",
            "group",
            "topic",
            "message_id",
            "",
            "keys",
            "store_host",
            "",
            "",
            "state",
            "checked",
        ),
    ),
    "Recall": ("time_ms", "", "group", "topic", "message_id", "success"),
}
_NUMBERS: Final = frozenset({"time_ms", "cost_ms", "retries"})
_TRUTHS: Final = frozenset({"success", "checked"})


class TraceRecord(msgspec.Struct, frozen=True):
    """The trace of a client's act on a message."""

    kind: str
    message_id: str
    group: str = ""
    time_ms: int = 0
    topic: str = ""
    keys: str = ""
    store_host: str = ""
    client_host: str = ""
    request_id: str = ""
    retries: int = 0
    cost_ms: int = 0
    success: bool = True
    state: str = ""
    checked: bool = False


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
                elif name:
                    values[name] = text
            yield TraceRecord(kind, **values)  # type: ignore[arg-type]
        except (ValueError, TypeError):
            continue
