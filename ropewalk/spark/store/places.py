"""Find places in a log for streaming reads: where a time begins, and where a number of records ends. Runs on the
driver.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator

import numpy as np

from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import DLEDGER_HEAD_SIZE, SegmentDecoder
from ropewalk.spark.rows.headers import Headers
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.files import Segment, Store

__all__ = ["has_records", "offset_after", "offset_at_time"]


def offset_at_time(store: Store, end: int, time_ms: int) -> int:
    """Return the offset of the first record that was stored at or after a time; `end` if there is none before it."""
    # Store times rise along the log, so the place is in the last segment that begins with an older record.
    for segment in reversed(store.segments):
        if segment.base_offset >= end:
            continue
        older_seen = False
        for headers in _headers(segment, segment.base_offset, end):
            times = headers.of("store_time")
            later = np.flatnonzero(times >= time_ms)
            if not len(later):
                older_seen = True
            elif older_seen or later[0] > 0:
                return _segment_start(segment, headers, int(later[0]))
            else:
                break
        else:
            if older_seen:
                return min(segment.end_offset, end)
    return store.min_offset if store.segments else end


def offset_after(store: Store, start: int, end: int, count: int) -> int:
    """Return the log offset behind `count` more records from `start` on; at most `end`.

    Always where a record begins, also for a count of 0 and a start in the middle of one.
    """
    for segment in store.segments:
        if segment.end_offset <= start or segment.base_offset >= end:
            continue
        for headers in _headers(segment, max(start, segment.base_offset), end):
            if count < len(headers):
                return min(end, _segment_start(segment, headers, count))
            count -= len(headers)
    return end


def has_records(stores: Iterable[tuple[Store, int, int]], count: int) -> bool:
    """Return whether that many records lie between start and end of these logs, taken together."""
    for store, start, end in stores:
        for segment in store.segments:
            if segment.end_offset <= start or segment.base_offset >= end:
                continue
            for headers in _headers(segment, max(start, segment.base_offset), end):
                count -= len(headers)
                if count <= 0:
                    return True
    return count <= 0


def _segment_start(segment: Segment, headers: Headers, row: int) -> int:
    """Where a record, or the entry around it, begins in the log."""
    offset = int(headers.of("offset")[row])
    return offset - DLEDGER_HEAD_SIZE if segment.is_dledger else offset


def _headers(segment: Segment, start: int, end: int) -> Iterator[Headers]:
    """Yield the headers of a segment's records from `start` on, which may lie in the middle of one."""
    base = segment.base_offset
    with open(segment.path, "rb") as opened:
        size = min(segment.size, os.fstat(opened.fileno()).st_size)
        if not size:
            return
        data = mmap.mmap(opened.fileno(), size, prot=mmap.PROT_READ)
    plan = Plan(Selection(()))
    decoder = SegmentDecoder(data, base, start - base, min(end - base, size), plan, segment.log_format)
    if start > base and not decoder.seek():
        return
    for headers, _ in decoder.steps():
        if headers is not None:
            yield headers
