"""Rebuild consume queues: entries are decoded piece by piece, shuffled by queue, and packed queue by queue.

What travels in the shuffle is one blob for each queue and piece, not a row for each entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ropewalk.format.queue_entry import ENTRY_SIZE
from ropewalk.spark.jobs.common.files import write_file
from ropewalk.spark.jobs.common.tasks import Key, Tasks
from ropewalk.spark.jobs.rebuild.queue_files import QueueBuilt, QueueFiles
from ropewalk.spark.jobs.records.columns import is_queued, tag_codes, topics_of
from ropewalk.spark.jobs.records.log_files import NAME_DIGITS, NAME_SIZE_MAX, StoreFiles, read_at
from ropewalk.spark.jobs.records.queue_check import ENTRY, ExpectedEntries, pack, queue_directories
from ropewalk.spark.jobs.records.walk import Stretch, scan_stretch

_NUMBERED: Final = np.dtype([("number", "<i8"), ("offset", "<i8"), ("size", "<i4"), ("code", "<i8")])


@dataclass(frozen=True, slots=True)
class KeyEntries:
    """A function for tasks that keys the entries of a stretch by queue."""

    delays_ms: tuple[int, ...]
    topics: frozenset[str]
    """Only these; all if empty."""

    def __call__(self, stretch: Stretch) -> Iterator[tuple[Key, bytes]]:
        found, window = scan_stretch(stretch)
        dead = dict(stretch.store.deleted)
        records = found.records.select(is_queued(found.records))
        names = topics_of(window.data, records)
        codes = tag_codes(window.data, records, names, self.delays_ms)
        asked = ExpectedEntries(
            names, records.queue_id, records.queue_offset, records.offset, records.size, codes
        )
        for topic, queue_id, group in asked.groups():
            if (self.topics and topic not in self.topics) or not is_directory_name(topic):
                continue
            group = group[asked.offset[group] >= dead.get(topic, 0)]
            if len(group):
                chunk = np.empty(len(group), _NUMBERED)
                chunk["number"], chunk["offset"] = asked.number[group], asked.offset[group]
                chunk["size"], chunk["code"] = asked.size[group], asked.code[group]
                yield (topic, queue_id), chunk.tobytes()


def is_directory_name(topic: str) -> bool:
    """Return whether a topic can be a directory: a broker takes no other, a damaged record can hold anything."""
    usable = topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic
    return usable and len(topic.encode()) <= NAME_SIZE_MAX


@dataclass(frozen=True, slots=True)
class PackQueue:
    """A function for tasks that packs the entries of one queue into its files."""

    out: str
    file_size: int
    gap_max: int
    """Numbers that can be missing between two records; a larger gap says that some of them are damaged."""

    def __call__(self, values: tuple[Key, list[bytes]]) -> QueueBuilt:
        (topic, queue_id), some = values
        assert isinstance(topic, str) and isinstance(queue_id, int)
        chunks = sorted(
            (np.frombuffer(each, _NUMBERED) for each in some), key=lambda chunk: int(chunk["offset"][0])
        )
        steps = itertools.pairwise(chunks)
        if any(before["number"][-1] >= after["number"][0] for before, after in steps):
            # A topic of before, whose deletion nobody remembers: numbers come twice.
            together = np.concatenate(chunks)
            chunks = [together[np.lexsort((together["offset"], together["number"]))]]
        total = sum(map(len, chunks))
        if int(chunks[-1]["number"][-1]) - int(chunks[0]["number"][0]) > self.gap_max:
            chunks = [self._merge(np.concatenate(chunks))]
        writer = _queue_writer(self.out, (topic, queue_id), self.file_size)
        for chunk in chunks:
            writer.add(chunk["number"], pack(chunk["offset"], chunk["size"], chunk["code"]))
        return replace(writer.finish(), astray=total - sum(map(len, chunks)))

    def _merge(self, entries: Any) -> Any:
        """Return the most entries without such a gap: filling it would fill the disk for a flipped bit."""
        breaks = np.flatnonzero(np.diff(entries["number"]) > self.gap_max) + 1
        return max(np.split(entries, breaks), key=len)


def _queue_writer(out: str, queue: tuple[str, int], file_size: int) -> QueueFiles:
    directory = Path(out, "consumequeue", queue[0], str(queue[1]))

    def write(base: int, data: bytes) -> None:
        write_file(directory / f"{base:0{NAME_DIGITS}d}", [(0, data)], file_size)

    return QueueFiles(queue[0], queue[1], file_size, write)


@dataclass(frozen=True, slots=True)
class _Compare:
    store: StoreFiles
    out: str
    topic: str
    queue_id: int
    first: int


def _compare_queue(work: _Compare) -> tuple[int, str]:
    """How many files of a queue were compared, and how they differ from the store's own."""
    own = work.store.queue_directory(work.topic, work.queue_id)
    made = Path(work.out, "consumequeue", work.topic, str(work.queue_id))
    theirs = {path.name for path in own.iterdir() if len(path.name) == NAME_DIGITS} if own.is_dir() else set()
    ours = {path.name for path in made.iterdir()} if made.is_dir() else set()
    wrong = 0
    for name in sorted(ours | theirs):
        if name in theirs and int(name) + work.store.queue_file_size <= work.first * ENTRY_SIZE:
            continue  # of records that retention took
        mine, other = (_entries(path / name) for path in (made, own))
        count = max(len(mine), len(other))
        low = max(work.first - int(name) // ENTRY_SIZE, 0)
        both = [np.concatenate([each, np.zeros(count - len(each), ENTRY)])[low:] for each in (mine, other)]
        wrong += int((both[0] != both[1]).sum())
    text = f"{wrong} entries differ" if wrong else ""
    if ours != theirs and not text:
        odd = sorted(ours ^ theirs, key=int)
        if any(int(name) + work.store.queue_file_size > work.first * ENTRY_SIZE for name in odd):
            text = f"only one of both has {odd[0]}"
    return len(ours), text


def _entries(path: Path) -> Any:
    if not path.exists():
        return np.zeros(0, ENTRY)
    data = read_at(str(path), 0, path.stat().st_size)
    return np.frombuffer(data[: len(data) - len(data) % ENTRY_SIZE], ENTRY)


def verify_queues(
    tasks: Tasks, store: StoreFiles, out: str, topics: Sequence[str], built: Sequence[QueueBuilt]
) -> tuple[int, list[tuple[str, str]]]:
    """Compare the built queues with the store's own, and count files compared and kinds of difference."""
    listed = tasks.run_one(queue_directories, store, "listing queues")
    first = {(each.topic, each.queue_id): each.first for each in built}
    everything = sorted(
        {*first, *((topic, queue) for topic, queue in listed if not topics or topic in topics)}
    )
    lean = store.narrowed(-1)
    work = [_Compare(lean, out, topic, queue, first.get((topic, queue), 0)) for topic, queue in everything]
    answers = tasks.run(_compare_queue, work, "verifying")
    different = [
        (f"consumequeue/{each.topic}/{each.queue_id}", text)
        for each, (_files, text) in zip(work, answers, strict=True)
        if text
    ]
    return sum(files for files, _text in answers), different
