"""Check the consume queues of a store against its records: does every record have its entry, with the right fields?

Records of a piece are grouped by queue; a queue's numbers are almost always one run, so a group is compared with one
read of its file. Entries that no record asked for are looked at afterwards (`orphans`), when the numbers of all pieces
are known.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ropewalk.format.queue_entry import ENTRY_SIZE, PRE_BLANK
from ropewalk.spark.jobs.records.columns import Names
from ropewalk.spark.jobs.records.log_files import NAME_DIGITS, StoreFiles, read_at
from ropewalk.spark.jobs.records.scan import Bools, Ints
from ropewalk.spark.store.files import data_ranges

ENTRY: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_ENTRIES_AT_ONCE: Final = 1 << 14
_BLANK: Final = np.frombuffer(PRE_BLANK, ENTRY)[0]

Entries = npt.NDArray[Any]


class Fault(enum.Enum):
    """The fault of an entry."""

    MISSING = "missing"
    WRONG = "names another place"
    CODE = "has another tag code or delivery time"
    ORPHAN = "names no record of its queue"


@dataclass(frozen=True, slots=True)
class QueueFault:
    """A run of entries of one queue that are wrong in one way."""

    fault: Fault
    topic: str
    queue_id: int
    first: int
    last: int
    offset: int
    """Log offset of the first one's record, or what an orphan names."""
    entries: bytes
    """The entries that should stand there."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The numbers of one queue that one piece of log asks for."""

    topic: str
    queue_id: int
    first: int
    last: int
    count: int


@dataclass(slots=True)
class ExpectedEntries:
    """The queue entries that records ask for."""

    topics: Names
    queue_id: Ints
    number: Ints
    offset: Ints
    size: Ints
    code: Ints

    def select(self, chosen: Bools) -> ExpectedEntries:
        names = Names(self.topics.ids[chosen], self.topics.values)
        return ExpectedEntries(
            names,
            self.queue_id[chosen],
            self.number[chosen],
            self.offset[chosen],
            self.size[chosen],
            self.code[chosen],
        )

    def groups(self) -> Iterator[tuple[str, int, Any]]:
        """Yield (topic, queue id, indices by number) for each queue."""
        if not len(self.number):
            return
        order = np.lexsort((self.number, self.queue_id, self.topics.ids))
        topic, queue = self.topics.ids[order], self.queue_id[order]
        breaks = np.flatnonzero((np.diff(topic) != 0) | (np.diff(queue) != 0)) + 1
        for group in np.split(order, breaks):
            yield self.topics.values[self.topics.ids[group[0]]], int(self.queue_id[group[0]]), group


@dataclass(slots=True)
class Checked:
    """The result of checking the queues of one store for the records of one piece."""

    faults: list[QueueFault]
    ranges: list[QueueRange]
    vouched: int = 0
    """The end of the last record whose entry is right."""


def check(store: StoreFiles, asked: ExpectedEntries) -> Checked:
    """Compare the entries that records ask for with those of the store's queue files. Blocks."""
    faults: list[QueueFault] = []
    ranges: list[QueueRange] = []
    dead = dict(store.deleted)
    vouched = 0
    for topic, queue_id, group in asked.groups():
        if topic in dead:
            group = group[asked.offset[group] >= dead[topic]]
            if not len(group):
                continue
        numbers = asked.number[group]
        ranges.append(QueueRange(topic, queue_id, int(numbers[0]), int(numbers[-1]), len(numbers)))
        found = entries_at(store, topic, queue_id, numbers)
        missing = (found["size"] <= 0) | (found == _BLANK)
        place_ok = (found["offset"] == asked.offset[group]) & (found["size"] == asked.size[group])
        code_ok = found["code"] == asked.code[group]
        if place_ok.any():
            last = group[np.flatnonzero(place_ok)[-1]]
            vouched = max(vouched, int(asked.offset[last] + asked.size[last]))
        for fault, marks in (
            (Fault.MISSING, missing),
            (Fault.WRONG, ~missing & ~place_ok),
            (Fault.CODE, ~missing & place_ok & ~code_ok),
        ):
            for low, high in runs(numbers[marks]):
                chosen = group[marks & (numbers >= low) & (numbers <= high)]
                offset = int(asked.offset[chosen[0]])
                right = pack(asked.offset[chosen], asked.size[chosen], asked.code[chosen])
                faults.append(QueueFault(fault, topic, queue_id, low, high, offset, right.tobytes()))
    return Checked(faults, ranges, vouched)


def pack(offsets: Ints, sizes: Ints, codes: Ints) -> Entries:
    """Pack queue entries of these fields."""
    entries = np.empty(len(offsets), ENTRY)
    entries["offset"], entries["size"], entries["code"] = offsets, sizes, codes
    return entries


def runs(numbers: Ints) -> list[tuple[int, int]]:
    """Return runs of adjacent numbers as (first, last)."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    return [(int(run[0]), int(run[-1])) for run in np.split(numbers, breaks)]


def entries_at(store: StoreFiles, topic: str, queue_id: int, numbers: Ints) -> Entries:
    """Return the entries of these ascending numbers; zeros where no file has them. Blocks."""
    found = np.zeros(len(numbers), ENTRY)
    per_file = store.queue_file_size // ENTRY_SIZE
    directory = store.queue_directory(topic, queue_id)
    files = numbers // per_file
    for file in np.unique(files).tolist():
        chosen = np.flatnonzero(files == file)
        path = directory / f"{file * store.queue_file_size:0{NAME_DIGITS}d}"
        low, high = int(numbers[chosen[0]]), int(numbers[chosen[-1]])
        if not os.path.exists(path):  # nor can it be where the topic is too long for a name
            continue
        data = read_at(str(path), (low - file * per_file) * ENTRY_SIZE, (high - low + 1) * ENTRY_SIZE)
        there = np.frombuffer(data[: len(data) - len(data) % ENTRY_SIZE], ENTRY)
        inside = numbers[chosen] - low < len(there)
        found[chosen[inside]] = there[numbers[chosen[inside]] - low]
    return found


# -- entries without a record ------------------------------------------------------------------------


def queue_directories(store: StoreFiles) -> list[tuple[str, int]]:
    """Return every queue that has a directory. Blocks."""
    base = Path(store.root, "consumequeue")
    found: list[tuple[str, int]] = []
    for topic in sorted(os.listdir(base)) if base.is_dir() else []:
        if (base / topic).is_dir():
            found += [(topic, int(name)) for name in sorted(os.listdir(base / topic)) if name.isdigit()]
    return found


def orphans(
    store: StoreFiles, topic: str, queue_id: int, first: int, following: int, end: int
) -> list[QueueFault]:
    """Return the entries outside [first, following), the numbers that records asked for, which name a place in the log.

    Blocks.

    What names a place behind `end` is stale and read by nobody; what names one before the log's beginning is old.
    """
    low, dead = store.min_offset, dict(store.deleted).get(topic, 0)
    faults: list[QueueFault] = []
    directory = store.queue_directory(topic, queue_id)
    for name in sorted(os.listdir(directory)):
        if len(name) != NAME_DIGITS or not name.isdigit():
            continue
        base, count = int(name) // ENTRY_SIZE, store.queue_file_size // ENTRY_SIZE
        for start, stop in ((base, min(first, base + count)), (max(following, base), base + count)):
            numbers, entries = _written(directory / name, base, start, stop)
            offsets = entries["offset"].astype(np.int64)
            marks = (entries["size"] > 0) & (offsets >= max(low, dead)) & (offsets < end)
            marks[marks] = entries[marks] != _BLANK
            for one, last in runs(numbers[marks]):
                offset = int(offsets[np.searchsorted(numbers, one)])
                zeros = bytes(ENTRY_SIZE * (last - one + 1))
                faults.append(QueueFault(Fault.ORPHAN, topic, queue_id, one, last, offset, zeros))
    return faults


def _written(path: Path, base: int, start: int, stop: int) -> tuple[Ints, Entries]:
    """Numbers and entries of a file in [start, stop), without the zeros that nearly all of it is. Blocks."""
    numbers, parts = [np.zeros(0, np.int64)], [np.zeros(0, ENTRY)]
    with path.open("rb") as file:
        for low, high in data_ranges(file.fileno(), (stop - base) * ENTRY_SIZE) if start < stop else ():
            begin, behind = max(low // ENTRY_SIZE + base, start), min(-(-high // ENTRY_SIZE) + base, stop)
            for at in range(begin, behind, _ENTRIES_AT_ONCE):
                size = (min(at + _ENTRIES_AT_ONCE, behind) - at) * ENTRY_SIZE
                data = os.pread(file.fileno(), size, (at - base) * ENTRY_SIZE)
                if np.frombuffer(data, np.uint8).any():
                    parts.append(np.frombuffer(data[: len(data) - len(data) % ENTRY_SIZE], ENTRY))
                    numbers.append(at + np.arange(len(parts[-1])))
    return np.concatenate(numbers), np.concatenate(parts)
