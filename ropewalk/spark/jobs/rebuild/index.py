"""Rebuild the key index. Items keep the order of the log: a first pass counts them and numbers each piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ropewalk.format.index import HEADER_SIZE, Geometry, IndexHeader
from ropewalk.spark.jobs.common.files import write_file
from ropewalk.spark.jobs.common.tasks import Key, Tasks
from ropewalk.spark.jobs.rebuild.index_files import ITEM, index_name, items_of, pack_index
from ropewalk.spark.jobs.records.columns import topics_of
from ropewalk.spark.jobs.records.index_check import geometry_of, index_paths
from ropewalk.spark.jobs.records.log_files import Bytes, StoreFiles, read_at
from ropewalk.spark.jobs.records.scan import Records
from ropewalk.spark.jobs.records.walk import Stretch, Walk, scan_stretch

_NUMBERED: Final = np.dtype([("item", "<i8"), ("hash", "<i4"), ("offset", "<i8"), ("stored", "<i8")])


@dataclass(slots=True)
class IndexBuilt:
    """The index files that were written."""

    files: list[tuple[str, int, int]]
    """Name, items and first log offset of each."""
    different: list[tuple[str, str]]
    compared: int = 0
    doubled: int = 0
    """Records that the store's own index holds twice, as RocketMQ's do after a crash."""


@dataclass(frozen=True, slots=True)
class _Counted:
    items: int
    records: int
    last_item_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class _Numbered:
    stretch: Stretch
    first: int
    """How many items come before this stretch's."""
    per_file: int


def _indexed(stretch: Stretch) -> tuple[Bytes, Records]:
    found, window = scan_stretch(stretch)
    records = found.records
    dead = dict(stretch.store.deleted)
    if dead:
        names = topics_of(window.data, records)
        limits = np.array([dead.get(topic, 0) for topic in names.values], np.int64)
        records = records.select(records.offset >= limits[names.ids])
    return window.data, records


def _count_items(stretch: Stretch) -> _Counted:
    items = items_of(*_indexed(stretch))
    last = int(items.offset[-1]) if len(items.offset) else -1
    return _Counted(len(items.hashes), items.records, last, items.last_offset)


def rebuild_index(
    tasks: Tasks, walked: Walk, out: str, geometry: Geometry | None, *, verify: bool
) -> IndexBuilt:
    """Write the index of a log below `out`, in the geometry given, or else the store's own, or else the usual one."""
    store = walked.store
    (paths,) = tasks.run(index_paths, [store], "listing the index")
    for path in paths if geometry is None else []:
        (geometry,) = tasks.run(_geometry, [(store, path)], "measuring")
        if geometry is not None:
            break
    geometry = geometry or Geometry()
    counts = tasks.run(_count_items, walked.stretches, "counting keys")
    per_file = geometry.items - 1
    numbered: list[_Numbered] = []
    total = 0
    for stretch, counted in zip(walked.stretches, counts, strict=True):
        numbered.append(_Numbered(stretch, total, per_file))
        total += counted.items
    written = tasks.shuffle(_spread_items, _WriteFile(out, geometry), numbered, "index")
    headers = [IndexHeader.decode(data) for _file, data in sorted(written)]
    # A broker opens a file for the next record, and only then looks whether it has keys.
    last_item = max((each.last_item_offset for each in counts), default=-1)
    last_record = max((each.last_offset for each in counts), default=-1)
    if total % per_file == 0 and last_record > last_item:
        headers.append(IndexHeader())
    tasks.run(_name_files, [(out, geometry, tuple(header.encode() for header in headers))], "naming")
    (files,) = tasks.run(_list_index, [out], "listing")
    if not verify:
        return IndexBuilt(files, [])
    ((compared, wrong, doubled),) = tasks.run(_compare_index, [(out, tuple(paths), geometry)], "verifying")
    return IndexBuilt(files, [("index", text) for text in wrong], compared, doubled)


def _geometry(work: tuple[StoreFiles, str]) -> Geometry | None:
    return geometry_of(*work)


def _spread_items(work: _Numbered) -> Iterator[tuple[Key, bytes]]:
    """Yield the items of a stretch by the number of their file."""
    items = items_of(*_indexed(work.stretch))
    numbers = work.first + np.arange(len(items.hashes), dtype=np.int64)
    chunk = np.empty(len(numbers), _NUMBERED)
    chunk["item"], chunk["hash"] = numbers % work.per_file, items.hashes
    chunk["offset"], chunk["stored"] = items.offset, items.stored
    files = numbers // work.per_file
    for file in np.unique(files).tolist():
        yield (file,), chunk[files == file].tobytes()


@dataclass(frozen=True, slots=True)
class _WriteFile:
    """Packs one index file: a function that travels to a task."""

    out: str
    geometry: Geometry

    def __call__(self, values: tuple[Key, list[bytes]]) -> tuple[int, bytes]:
        (file,), some = values
        chunks = sorted(
            (np.frombuffer(each, _NUMBERED) for each in some), key=lambda chunk: int(chunk["item"][0])
        )
        items = np.concatenate(chunks)
        # What a file inherits from the one before it is known when all are there: `_name_files` puts it in.
        parts = list(
            pack_index(items["hash"].astype(np.int64), items["offset"], items["stored"], self.geometry, None)
        )
        path = Path(self.out, "index", f"part-{int(file):08d}")
        write_file(path, [(part.position, part.data) for part in parts], self.geometry.file_size)
        return int(file), parts[-1].data


def _name_files(work: tuple[str, Geometry, tuple[bytes, ...]]) -> None:
    """Give the files the names of their times, and each first item its time since the end of the file before."""
    out, geometry, encoded = work
    directory = Path(out, "index")
    directory.mkdir(parents=True, exist_ok=True)
    headers = [IndexHeader.decode(data) for data in encoded]
    name, before = "", IndexHeader()
    for number, header in enumerate(headers):
        part = directory / f"part-{number:08d}"
        is_empty = header.next_item == 1
        name = index_name(before.end_timestamp if is_empty else header.begin_timestamp, name)
        target = directory / name
        if is_empty:
            following = before.following() if number else header
            write_file(target, [(0, following.encode())], geometry.file_size)
        elif part.exists():  # else a task that ran twice has done it
            if number:
                _set_first_seconds(part, geometry, header, before)
            part.rename(target)
        before = header


def _set_first_seconds(path: Path, geometry: Geometry, header: IndexHeader, before: IndexHeader) -> None:
    seconds = max(header.begin_timestamp - before.end_timestamp, 0) // 1000 if before.end_timestamp > 0 else 0
    with path.open("r+b") as file:
        file.seek(geometry.item_position(1) + 12)
        file.write(min(seconds, 0x7FFFFFFF).to_bytes(4, "big"))


def _list_index(out: str) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for path in sorted(Path(out, "index").iterdir()):
        header = IndexHeader.decode(read_at(str(path), 0, HEADER_SIZE))
        found.append((path.name, header.next_item - 1, header.begin_offset))
    return found


def _compare_index(work: tuple[str, tuple[str, ...], Geometry]) -> tuple[int, list[str], int]:
    """How many files were compared, how they differ, and how many records the store's own holds twice.

    Names are times of creation and do not count. After a crash RocketMQ goes on with the last record that is indexed
    already; what comes behind it then stands a few items further on. Such an index holds the same and is no different.
    """
    out, theirs, geometry = work
    ours = sorted(str(path) for path in Path(out, "index").iterdir())
    wrong: list[str] = []
    if len(ours) != len(theirs):
        wrong.append(f"{len(ours)} files were built and the store has {len(theirs)}")
    for mine, other in zip(ours, theirs, strict=False):
        at = _first_difference(mine, other)
        if at >= 0:
            wrong.append(f"{Path(other).name} differs from byte {at} on")
    if wrong:
        once, doubled = _without_repeats(_items_in(theirs, geometry))
        if doubled and np.array_equal(once, _items_in(ours, geometry)):
            return min(len(ours), len(theirs)), [], doubled
    return min(len(ours), len(theirs)), wrong, 0


def _items_in(paths: Sequence[str], geometry: Geometry) -> Any:
    """Hash and log offset of every item, file by file."""
    found = [np.zeros(0, ITEM)]
    for path in paths:
        header = IndexHeader.decode(read_at(path, 0, HEADER_SIZE).ljust(HEADER_SIZE, b"\0"))
        count = min(header.next_item, geometry.items) - 1
        data = read_at(path, geometry.item_position(1), count * ITEM.itemsize)
        found.append(np.frombuffer(data[: len(data) - len(data) % ITEM.itemsize], ITEM))
    return np.concatenate(found)[["hash", "offset"]].copy()


def _without_repeats(items: Any) -> tuple[Any, int]:
    """Return the items without those of a record that were put in a second time right behind the first; how many
    records.
    """
    breaks = np.flatnonzero(np.diff(items["offset"].astype(np.int64)) != 0) + 1
    kept, repeated = [items[:0]], 0
    for group in np.split(items, breaks):
        half = len(group) // 2
        if half and len(group) % 2 == 0 and (group[:half] == group[half:]).all():
            group, repeated = group[:half], repeated + 1
        kept.append(group)
    return np.concatenate(kept), repeated


def _first_difference(one: str, other: str) -> int:
    position, step = 0, 8 << 20
    while True:
        a, b = read_at(one, position, step), read_at(other, position, step)
        if a != b:
            return position + next(
                (n for n in range(min(len(a), len(b))) if a[n] != b[n]), min(len(a), len(b))
            )
        if not a:
            return -1
        position += len(a)
