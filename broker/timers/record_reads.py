"""Records of many places of the commit log, read together: from memory at once, else by a reader thread.

What stands in the warm window is copied from the map, and what the page cache has is read without waiting. If a single
record is in neither, the batch goes to a reader thread, which joins neighbours into one read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from store.message_store import MessageStore
from store.read.reader import Reader

__all__ = ["Place", "Records", "read_records"]

Place: TypeAlias = tuple[int, int]
"""Log offset and size of a record."""
Records: TypeAlias = Sequence[bytes]
"""Bytes of records in the order that they were asked for; empty for one that the log does not have."""

_JOIN_GAP = 16 << 10
_JOIN_MAX = 1 << 20


def read_records(
    store: MessageStore, reader: Reader, places: Sequence[Place], then: Callable[[Records | None], None]
) -> None:
    """Read records, and call `then` with them, now or later; with None if the disk cannot, or is too busy."""
    found = _resident(store, places)
    if found is not None:
        then(found)
    else:
        reader.run(lambda: _read(store, places), then, then)


def _resident(store: MessageStore, places: Sequence[Place]) -> list[bytes] | None:
    log = store.log
    window = max(log.end_offset - store.config.warm_window, log.trusted_offset)
    found: list[bytes] = []
    for offset, size in places:
        segment = log.find(offset)
        if segment is None or offset + size > segment.end_offset:
            found.append(b"")
            continue
        position = offset - segment.base_offset
        if offset >= window:
            found.append(segment.map[position : position + size])
            continue
        try:
            data = segment.file.read_at_nowait(position, size)
        except OSError:
            return None  # the reader thread meets it again, and answers with None
        if data is None:
            return None
        found.append(data)
    return found


def _read(store: MessageStore, places: Sequence[Place]) -> list[bytes]:
    """Read on a thread. The order of places is mostly the log's, so neighbours are found in one pass."""
    found: list[bytes] = []
    begin = 0
    while begin < len(places):
        start, size = places[begin]
        end, stop = start + size, begin + 1
        while stop < len(places):
            offset, size = places[stop]
            if not end <= offset <= end + _JOIN_GAP or offset + size - start > _JOIN_MAX:
                break
            end, stop = offset + size, stop + 1
        segment = store.log.find(start)
        if segment is not None and end > segment.end_offset and stop > begin + 1:
            stop = begin + 1  # the run crosses into the next file: read the first alone
            end = start + places[begin][1]
        if segment is None or end > segment.end_offset:
            found.append(b"")
            begin += 1
            continue
        data = segment.file.read_at(start - segment.base_offset, end - start)
        found += [data[offset - start : offset - start + size] for offset, size in places[begin:stop]]
        begin = stop
    return found
