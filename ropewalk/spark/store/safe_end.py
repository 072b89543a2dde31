"""Find the safe end of a store. Behind it, bytes may be half written, or left over and still look right.

    safe      the end of the record behind the highest consume-queue entry that checks out: the record at its offset
              has its size and says the same topic, queue and queue offset. Beside an `epochFileCheckpoint` the
              checkpoint's confirm offset bounds it too; without one that field is written once per start and means
              nothing. In a DLedger directory also the committed index counts: entries are dispatched to the queues
              after they are committed, so the further of the two is the end.
    scan      the first bytes that are no record, nothing else. Refused while a broker serves the directory.
    <number>  as given, and no more than there is.

A record in front of the safe end that cannot be read is damage and not the end: it had been dispatched once.
"""

from __future__ import annotations

import heapq
import mmap
import os
import struct
from pathlib import Path
from typing import Final

from ropewalk.errors import CorruptCheckpoint
from ropewalk.format.checkpoint import Checkpoint
from ropewalk.format.queue_entry import is_message
from ropewalk.spark.rows.columns import Plan
from ropewalk.spark.rows.decode import Ended, SegmentDecoder
from ropewalk.spark.rows.schema import Selection
from ropewalk.spark.store.files import Queue, Segment, Store, UnreadableStore

__all__ = ["end_of_log", "safe_end", "scan_end"]

_INDEX_ENTRY: Final = struct.Struct(">iqiqq")
_STEP: Final = 1024


def end_of_log(store: Store, end_at: str | int) -> int:
    """Return the log offset that nothing is read at or behind. Raises UnreadableStore where there is no telling."""
    if isinstance(end_at, int):
        return max(store.min_offset, min(end_at, store.max_offset))
    if end_at == "scan":
        if store.is_locked():
            raise UnreadableStore(
                f"a broker serves {store.roots[0]}: with endAt=scan half-written and left-over records would be read; "
                f"use endAt=safe, or stop the broker"
            )
        return scan_end(store)
    return safe_end(store)


def safe_end(store: Store) -> int:
    """Return the safe end, by the rule of `endAt=safe`. Raises UnreadableStore for a log without any other witness."""
    if not store.segments:
        return 0
    committed = _committed_end(store)
    if committed is None and not store.has_queues():
        # A broker makes the queues with its first message.
        if store.is_locked() or scan_end(store) == store.min_offset:
            return store.min_offset
        raise UnreadableStore(
            f"{store.roots[0]} has no consume queues, so nothing says where its log safely ends: use endAt=scan for a "
            f"log that nobody writes, or endAt=OFFSET"
        )
    end = max(_highest_dispatched(store), committed or 0, store.min_offset)
    confirmed = _confirmed(store)
    return end if confirmed is None else max(store.min_offset, min(end, confirmed))


def _highest_dispatched(store: Store) -> int:
    """Return the end of the record behind the highest queue entry that checks out; 0 if none does."""
    # Highest claim first: usually the very first one checks out, and no other queue is looked at.
    claims: list[tuple[int, int, int, Queue]] = []
    for number, queue in enumerate(store.queues()):
        low, high = queue.bounds(store.min_offset)
        entry = queue.entry(high - 1) if high > low else None
        if entry is not None:
            claims.append((-(entry.offset + entry.size), number, high - 1, queue))
    heapq.heapify(claims)
    while claims:
        claim, number, queue_offset, queue = heapq.heappop(claims)
        entry = queue.entry(queue_offset)
        if entry is not None:
            record = store.record_at(entry.offset, entry.size)
            if (
                record is not None
                and record.topic == queue.topic
                and record.queue_id == queue.queue_id
                and record.queue_offset == queue_offset
            ):
                return -claim
        earlier = _claim_before(store, queue, queue_offset)
        if earlier is not None:
            heapq.heappush(claims, (-earlier[0], number, earlier[1], queue))
    return 0


def _claim_before(store: Store, queue: Queue, queue_offset: int) -> tuple[int, int] | None:
    """(end, queue offset) of the next earlier entry of a queue that could check out."""
    while queue_offset > 0:
        low = max(0, queue_offset - _STEP)
        entries = queue.entries(low, queue_offset)
        for index in range(len(entries) - 1, -1, -1):
            offset, size = int(entries["offset"][index]), int(entries["size"][index])
            if not is_message(offset, size):
                continue
            if offset < store.min_offset:
                return None  # entries in front point at even older records
            if offset + size <= store.max_offset:
                return offset + size, low + index
        if not entries["size"].any():
            return None  # no file reaches back this far
        queue_offset = low
    return None


def _confirmed(store: Store) -> int | None:
    """Return the confirm offset, where a controller keeps it up to date."""
    for root in store.roots:
        if (root / "epochFileCheckpoint").is_file():
            try:
                found = Checkpoint.decode((root / "checkpoint").read_bytes())
            except (OSError, CorruptCheckpoint):
                return None
            return found.confirm_offset or None
    return None


def _committed_end(store: Store) -> int | None:
    """Return the end of the entry at a DLedger member's committed index; None where there is none."""
    for segment in store.segments:
        if segment.is_dledger:
            member = Path(segment.path).parent.parent
            index = _committed_index(member / "checkpoint")
            return None if index is None else _entry_end(member / "index", index)
    return None


def _committed_index(path: Path) -> int | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    values = dict(line.strip().partition("=")[::2] for line in lines if "=" in line)
    text = values.get("committedIndex", "").strip()
    return int(text) if text.isdigit() else None


def _entry_end(directory: Path, index: int) -> int | None:
    """Where the data entry of an index ends, by the index files."""
    at = index * _INDEX_ENTRY.size
    try:
        names = sorted(name for name in os.listdir(directory) if name.isdigit())
        holding = [name for name in names if int(name) <= at]
        if not holding:
            return None
        with (directory / holding[-1]).open("rb") as opened:
            data = os.pread(opened.fileno(), _INDEX_ENTRY.size, at - int(holding[-1]))
    except OSError:
        return None
    if len(data) < _INDEX_ENTRY.size:
        return None
    magic, position, size, found, _ = _INDEX_ENTRY.unpack(data)
    return position + size if magic > 0 and found == index else None


def scan_end(store: Store) -> int:
    """Return the end of the last record of the chain, looked for from the last segment that begins with one."""
    for segment in reversed(store.segments):
        end = _chain_end(segment)
        if end > segment.base_offset:
            return end
    return store.min_offset


def _chain_end(segment: Segment) -> int:
    """Where the records of one file end, from its first on."""
    with open(segment.path, "rb") as opened:
        size = min(segment.size, os.fstat(opened.fileno()).st_size)
        if not size:
            return segment.base_offset
        with mmap.mmap(opened.fileno(), size, prot=mmap.PROT_READ) as data:
            end = _chain_end_in(data, segment)
    return end


def _chain_end_in(data: mmap.mmap, segment: Segment) -> int:
    decoder = SegmentDecoder(data, segment.base_offset, 0, None, Plan(Selection(())), segment.log_format)
    end = segment.base_offset
    for _, damage in decoder.steps():
        if damage is not None:
            return damage.offset
        end = segment.base_offset + decoder.position
    return segment.end_offset if decoder.ended is Ended.BLANK and decoder.position else end
