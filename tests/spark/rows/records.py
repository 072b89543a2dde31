"""Encoded records and DLedger entries for the tests of decoders."""

from __future__ import annotations

from typing import Any

from ropewalk.format.record import encode_record
from tests.spark.stores import BORN_HOST, START_MS, STORE_HOST


def record(offset: int, **parts: Any) -> bytes:
    """One record at a log offset, everyday in whatever is not given."""
    fields: dict[str, Any] = {
        "topic": b"orders",
        "queue_id": 3,
        "flag": 0,
        "queue_offset": 0,
        "offset": offset,
        "sys_flag": 0,
        "born_timestamp": START_MS,
        "born_host": BORN_HOST,
        "store_timestamp": START_MS + 1,
        "store_host": STORE_HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"hello",
        "properties": b"TAGS\x01a\x02",
    }
    return encode_record(**(fields | parts))


def entry(offset: int, index: int, **parts: Any) -> bytes:
    """A DLedger entry at a log offset, with a record in it."""
    inner = record(offset + 48, **parts)
    head = (1).to_bytes(4, "big") + (48 + len(inner)).to_bytes(4, "big") + index.to_bytes(8, "big")
    head += (3).to_bytes(8, "big") + offset.to_bytes(8, "big") + bytes(12) + len(inner).to_bytes(4, "big")
    return head + inner
