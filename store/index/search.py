"""Searches of the key index, for reader threads: chains of items are followed, and every record found is looked at.

Only hashes stand in an index: a record is an answer when it has the key itself. Chains lead to ever smaller numbers,
whatever a damaged file says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import (
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    TAG_MARK,
    Geometry,
    IndexHeader,
    key_hash,
)
from ropewalk.format.properties import P, split_keys
from ropewalk.format.record import RECORD_SIZE_MIN, Record, decode_record
from store.index.file import IndexPlace, index_names, read_header
from store.io.disk import Disk, PagedFile
from store.log.commitlog import CommitLog
from store.log.segment import Segment

_CHAIN_MAX = 100_000  # items of one chain that a search follows: hashes of one key, or a damaged file
_IDENTITY = struct.Struct(">i24xq")


def search(disk: Disk, place: IndexPlace, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
    """Log offsets of records that may have this key and were stored between two times, newest first. Blocks.

    Only hashes are compared and times are kept in whole seconds: the caller looks at each record.
    """
    wanted = key_hash(topic, key)
    for name in reversed(index_names(disk, place.directory)):
        path = place.directory / name
        try:
            header = read_header(disk, path, place.geometry)
            if header is None:
                continue
            if header.begin_timestamp <= end_ms and header.end_timestamp >= begin_ms:
                yield from _search_file(
                    disk.open_paged(path), header, place.geometry, wanted, begin_ms, end_ms
                )
            if 0 < header.begin_timestamp < begin_ms:
                return
        except FileNotFoundError:
            return  # retention was here; what is older is gone too
        finally:
            disk.forget(path)  # the writer may remove the file, and its space must come free then


def _search_file(
    file: PagedFile, header: IndexHeader, geometry: Geometry, wanted: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    (number,) = SLOT.unpack(file.read_at(geometry.slot_position(wanted % geometry.slots), SLOT_SIZE))
    above = geometry.items
    for _step in range(_CHAIN_MAX):
        if not 0 < number < above:
            return  # a chain leads to ever smaller numbers
        value, offset, seconds, previous = ITEM.unpack(
            file.read_at(geometry.item_position(number), ITEM_SIZE)
        )
        # The first item of a file counts from the end of the file before it: its own time stands in the header.
        stored = header.begin_timestamp + (seconds * 1000 if number > 1 else 0)
        if seconds < 0 or stored + 999 < begin_ms:
            return
        if value == wanted and stored <= end_ms:
            yield offset
        above, number = number, previous


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a query: whole records by their place in the log, and how far the index has come."""

    records: list[bytes]
    last_timestamp: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """A query for messages with a key; times in ms."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    by_tag: bool = False
    bytes_max: int = 15 << 20


def find_messages(disk: Disk, place: IndexPlace, log: CommitLog, query: Query) -> Found:
    """The newest messages that have the key, at most `count_max` of them. Blocks; for a reader thread."""
    names = index_names(disk, place.directory)
    last = read_header(disk, place.directory / names[-1], place.geometry) if names else None
    found: dict[int, bytes] = {}
    total = 0
    key = TAG_MARK + query.key if query.by_tag else query.key
    for offset in search(disk, place, query.topic, key, query.begin_ms, query.end_ms):
        if len(found) >= query.count_max:
            break
        if offset in found:
            continue
        segment = log.find(offset)
        data = read_record(segment, offset) if segment is not None else None
        if data is None or not _asked_for(data, query):
            continue
        total += len(data)
        if found and total > query.bytes_max:
            break
        found[offset] = data
    records = [found[offset] for offset in sorted(found)]
    return Found(records, last.end_timestamp if last else 0, last.end_offset if last else 0)


def _asked_for(data: bytes, query: Query) -> bool:
    """Whether a record has the key itself and not only its hash."""
    try:
        record: Record = decode_record(data)
    except CorruptRecord:
        return False
    if record.topic != query.topic:
        return False
    properties = record.properties
    if query.by_tag:
        return properties.get(P.TAGS) == query.key
    return properties.get(P.UNIQ_KEY) == query.key or query.key in split_keys(properties.get(P.KEYS, ""))


def read_record(segment: Segment, offset: int) -> bytes | None:
    """The whole record that begins at log offset `offset` of this segment, or None if none does. Blocks."""
    position = offset - segment.base_offset
    head = segment.file.read_at(position, _IDENTITY.size)
    if len(head) < _IDENTITY.size:
        return None
    size, stands_at = _IDENTITY.unpack(head)
    if stands_at != offset or not RECORD_SIZE_MIN <= size <= segment.size - position:
        return None
    if segment.checks is not None:
        segment.checks.check(position, size)
    return segment.file.read_at(position, size)
