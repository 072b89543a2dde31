"""Entries with whole records in them, for logs that a test writes byte by byte."""

from __future__ import annotations

from ropewalk.format.dledger.entry import HEAD_SIZE, encode_entries
from ropewalk.format.names import TERM_TOPIC
from ropewalk.format.record import encode_record
from tests.store.worlds import HOST

TERM = 2


def record_of(number: int, pos: int) -> bytes:
    body = b"body of %d" % number
    return encode_record(b"T", 0, 0, number, pos + HEAD_SIZE, 0, 7, HOST, 8, HOST, 0, 0, body, b"K\x01v\x02")


def encoded(number: int, pos: int, *, index: int | None = None, term: int = TERM) -> bytes:
    return encode_entries(number if index is None else index, term, pos, [record_of(number, pos)])


def opening(number: int, pos: int, term: int) -> bytes:
    """Return the entry that opens a term."""
    body = b'{"term": %d, "leader": "n1"}' % term
    record = encode_record(
        TERM_TOPIC.encode(), 0, 0, number, pos + HEAD_SIZE, 0, 7, HOST, 8, HOST, 0, 0, body, b""
    )
    return encode_entries(number, term, pos, [record])
