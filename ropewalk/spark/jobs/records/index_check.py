"""Check a sample of the items of an index file against the log: does a record stand there, and has it such a key?

How many slots a file has stands nowhere. The first item can be told by heart from the record that the header names, and
where it lies gives the number away (`geometry_of`).
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT_SIZE,
    Geometry,
    IndexHeader,
    record_hashes,
    time_difference,
)
from ropewalk.format.record import Record, decode_record
from ropewalk.spark.jobs.records.findings import Finding, Kind
from ropewalk.spark.jobs.records.log_files import StoreFiles, read_at

INDEX_NAME_DIGITS: Final = 17
_FIRST: Final = struct.Struct(">iq")
_STEP: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """The check of one index file."""

    store: StoreFiles
    path: str
    end: int
    samples: int
    damaged: tuple[tuple[int, int], ...]
    """Stretches of the log that are known to be damaged: what is said about them proves nothing."""


@dataclass(frozen=True, slots=True)
class IndexFault:
    """A wrong item of an index file, or its header (item 0)."""

    item: int
    offset: int
    text: str


def index_paths(store: StoreFiles) -> list[str]:
    """Return the index files of a store, oldest first. Blocks."""
    directory = Path(store.root, "index")
    if not directory.is_dir():
        return []
    names = [n for n in sorted(os.listdir(directory)) if len(n) == INDEX_NAME_DIGITS and n.isdigit()]
    return [str(directory / name) for name in names]


def read_record(store: StoreFiles, offset: int) -> Record | None:
    """Return the record at a log offset, its body's checksum unchecked; None if no record begins there. Blocks."""
    segment = store.segment(offset)
    if segment is None or offset < 0:
        return None
    position = offset - segment.base
    size = int.from_bytes(read_at(segment.path, position, 4), "big", signed=True)
    if not 0 < size <= store.segment_size - position:
        return None
    try:
        record = decode_record(read_at(segment.path, position, size), check_crc=False)
    except CorruptRecord:
        return None
    return record if record.offset == offset else None


def geometry_of(store: StoreFiles, path: str) -> Geometry | None:
    """Return the number of slots and items of an index file; None if the file does not tell. Blocks."""
    size = os.path.getsize(path)
    if size == Geometry().file_size:
        return Geometry()
    header = IndexHeader.decode(read_at(path, 0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
    record = read_record(store, header.begin_offset)
    hashes = record_hashes(record.topic.encode(), record.raw_properties) if record else []
    # A record whose keys did not all fit into the file before begins with a later one here.
    for value in hashes:
        wanted = _FIRST.pack(value, header.begin_offset)
        for at in range(0, size, _STEP):
            data = read_at(path, at, _STEP + len(wanted))
            found = data.find(wanted)
            while found >= 0:
                slots, rest = divmod(at + found - HEADER_SIZE - ITEM_SIZE, SLOT_SIZE)
                geometry = Geometry(slots, (size - HEADER_SIZE - SLOT_SIZE * slots) // ITEM_SIZE)
                if rest == 0 and slots > 0 and geometry.file_size == size:
                    return geometry
                found = data.find(wanted, found + 1)
    return None


def check_index_file(check: IndexCheck) -> tuple[int, list[IndexFault]]:
    """Check items of one file, and return how many, and the first few faults."""
    if not check.store.is_clean:
        return 0, []  # the file that was being filled is built again at the next start
    header = IndexHeader.decode(read_at(check.path, 0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
    geometry = geometry_of(check.store, check.path)
    if header.next_item <= 1:
        return 0, []
    if geometry is None or not geometry.holds(header):
        if any(start <= header.begin_offset < end for start, end in check.damaged):
            return 0, []
        text = "the header, or the first item, does not fit a file of this size and the record that it names"
        return 0, [IndexFault(0, header.begin_offset, text)]
    data = read_at(check.path, geometry.item_position(1), (header.next_item - 1) * ITEM_SIZE)
    count = len(data) // ITEM_SIZE
    faults: list[IndexFault] = []
    for at in np.unique(np.linspace(0, count - 1, min(count, check.samples)).astype(np.int64)).tolist():
        text, offset = _item_fault(check, header, data, at)
        if text:
            faults.append(IndexFault(at + 1, offset, text))
            if len(faults) >= 20:
                break
    return min(count, check.samples), faults


def _item_fault(check: IndexCheck, header: IndexHeader, data: bytes, at: int) -> tuple[str, int]:
    value, offset, seconds, previous = ITEM.unpack_from(data, at * ITEM_SIZE)
    if offset < check.store.min_offset or any(start <= offset < end for start, end in check.damaged):
        return "", offset
    if offset >= check.end:
        return "names a place behind the end of the log", offset
    record = read_record(check.store, offset)
    if record is None:
        return "names a place where no record begins", offset
    if value not in record_hashes(record.topic.encode(), record.raw_properties):
        return "its hash is of no key that its record has", offset
    if not 0 <= previous <= at:
        return "its chain goes on at a later item", offset
    # The first item of a file counts from the end of the file before.
    if at and seconds != time_difference(record.store_timestamp, header.begin_timestamp):
        return "its time is not when its record was stored", offset
    return "", offset


def index_finding(number: int, check: IndexCheck, fault: IndexFault) -> Finding:
    """Return a fault of an index file as a finding; its own log has the bytes to repair it."""
    return Finding(
        Kind.WRONG_INDEX,
        number,
        fault.offset,
        fault.offset,
        f"{check.path} item {fault.item}",
        fault.text,
        number,
    )
