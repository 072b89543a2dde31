"""The index, looked at beside the log: each item belongs to a record, each chain to its slot, each header to its file.

Items stand in the order of the log, so they are met in step with the records that pass by. Whether a record is there
twice does not matter, as a search does not mind; whether one is missing does, unless it comes behind the last item.
After an abnormal exit the file that was being filled is judged by nobody: the next start builds it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    IndexHeader,
    record_hashes,
    time_difference,
)
from ropewalk.format.record import decode_record
from store.index.file import index_names
from store.log.commitlog import CommitLog
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Findings
from store.offline.layout import Layout
from store.recovery.record_scan import ScannedRecord

_ITEMS_AT_ONCE = 4096
_TRANSACTION_MASK = _ROLLBACK = 0xC
_MISSING_MAX = 20


class _Item(NamedTuple):
    path: Path
    number: int
    value: int
    offset: int
    seconds: int
    begin_timestamp: int


class IndexCheck:
    def __init__(
        self,
        report: Findings,
        layout: Layout,
        log: CommitLog,
        disk: DryRunDisk,
        trusted_ms: int,
        *,
        abnormal: bool,
    ) -> None:
        """`trusted_ms` is the checkpoint's index time, which counts where the last exit was `abnormal`."""
        self._report = report
        self._log = log
        self._disk = disk
        self._directory = layout.root / "index"
        self._geometry = layout.index
        self._trusted_ms = trusted_ms
        self._abnormal = abnormal
        self._headers: list[tuple[Path, IndexHeader]] = []
        self._unjudged_from: list[int] = []
        """Ends of judged files behind which there is one that is not judged."""
        self._unjudged_to: list[int] = []
        """Beginnings of judged files before which there is one that is not judged, or was removed by retention."""
        self._missing = 0
        self._begins: dict[Path, tuple[int, int]] = {}
        self._ends: dict[Path, tuple[int, int]] = {}
        geometry = self._geometry
        names = index_names(self._disk, self._directory)
        if names and geometry is None:
            for name in names:
                self._cannot_tell(self._directory / name)
            names = []
        before: IndexHeader | None = None
        for name in names:
            header = self._open(self._directory / name)
            if header is None and before is not None:
                self._unjudged_from.append(before.end_offset)
            elif header is not None and before is None:
                self._unjudged_to.append(header.begin_offset)
            before = header
        self._items = self._each_item()
        self._next = next(self._items, None)
        self._last = max((header.end_offset for _path, header in self._headers), default=-1)
        self._first = min((header.begin_offset for _path, header in self._headers), default=0)

    def _cannot_tell(self, path: Path) -> None:
        """Nobody knows how many slots and items this file has; its first item would give it away."""
        data = self._disk.open_paged(path).read_at(0, HEADER_SIZE)
        if not data or (len(data) == HEADER_SIZE and IndexHeader.decode(data).next_item <= 1):
            return  # a crash came while it was created, or before anything was in it
        if len(data) == HEADER_SIZE and IndexHeader.decode(data).begin_offset < self._log.min_offset:
            self._report.note(
                path, "", "how many slots and items it has cannot be told; not looked at",
                "give --config FILE with maxHashSlotNum and maxIndexNum",
            )  # fmt: skip
            return
        self._report.damage(
            path, f"byte {self._disk.size_of(path)}", "cut, or its first item is not where it should be",
            "remove it: the next start builds it again",
        )  # fmt: skip

    def _open(self, path: Path) -> IndexHeader | None:
        """Check a file by itself; return its header if its items can be judged."""
        geometry = self._geometry
        assert geometry is not None
        size = self._disk.size_of(path)
        if size != geometry.file_size:
            self._report.damage(
                path, f"byte {size}", f"{size} bytes, not {geometry.file_size}", self._report.rebuild
            )
            return None
        header = IndexHeader.decode(self._disk.open_paged(path).read_at(0, HEADER_SIZE))
        if not geometry.holds(header):
            self._report.damage(path, "byte 0", f"no header of an index: {header}", self._report.rebuild)
            return None
        if self._is_rebuilt(header):
            self._report.note(
                path,
                "",
                "it was being filled when the last exit was abnormal",
                "the next start builds it again",
            )
            return None
        self._headers.append((path, header))
        self._check_chains(path, header)
        return header

    def _is_rebuilt(self, header: IndexHeader) -> bool:
        """Whether the next start throws this file away whatever is in it."""
        geometry = self._geometry
        assert geometry is not None
        return self._abnormal and (
            header.end_timestamp > self._trusted_ms or header.next_item < geometry.items
        )

    def _check_chains(self, path: Path, header: IndexHeader) -> None:
        """Put the items in once more, in memory, and compare what slots and chains come to."""
        geometry = self._geometry
        assert geometry is not None
        file = self._disk.open_paged(path)
        heads: dict[int, int] = {}
        for number, (value, _offset, seconds, previous) in self._items_in(path, header):
            slot = value % geometry.slots
            if value < 0 or seconds < 0 or previous != heads.get(slot, 0):
                self._report.damage(
                    path, f"item {number}", f"its chain goes on at item {previous}, not {heads.get(slot, 0)}",
                    self._report.rebuild,
                )  # fmt: skip
                return
            heads[slot] = number
        if len(heads) != header.slots_used:
            self._report.damage(
                path,
                "byte 32",
                f"{header.slots_used} slots in use, but the items take {len(heads)}",
                self._report.rebuild,
            )
        step = 1 << 16
        for first in range(0, geometry.slots, step):
            count = min(step, geometry.slots - first)
            data = file.read_at(geometry.slot_position(first), count * SLOT_SIZE)
            if data.count(0) == len(data) and not heads:
                continue
            for slot, (head,) in enumerate(SLOT.iter_unpack(data), first):
                wanted = heads.get(slot, 0)
                if head != wanted and (wanted or head):
                    self._report.damage(
                        path, f"slot {slot}", f"it begins at item {head}, not {wanted}", self._report.rebuild
                    )
                    return

    def _items_in(self, path: Path, header: IndexHeader) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        geometry = self._geometry
        assert geometry is not None
        file = self._disk.open_paged(path)
        for first in range(1, header.next_item, _ITEMS_AT_ONCE):
            count = min(_ITEMS_AT_ONCE, header.next_item - first)
            data = file.read_at(geometry.item_position(first), count * ITEM_SIZE)
            yield from enumerate(ITEM.iter_unpack(data), first)

    def _each_item(self) -> Iterator[_Item]:
        for path, header in self._headers:
            for number, (value, offset, seconds, _previous) in self._items_in(path, header):
                self._report.counts.items += 1
                yield _Item(path, number, value, offset, seconds, header.begin_timestamp)

    # -- in step with the log ------------------------------------------------------------------------

    def check(self, seen: ScannedRecord) -> None:
        """A record passes by: its items must be the next ones."""
        item = self._next
        if item is None and seen.offset > self._last:
            return
        while item is not None and item.offset < seen.offset:
            if item.offset >= self._log.min_offset and not self._report.is_lost(item.offset):
                self._wrong(item, f"names log offset {item.offset}, where no record begins")
            item = next(self._items, None)
        found = []
        first = item
        while item is not None and item.offset == seen.offset:
            found.append(item.value)
            self._ends[item.path] = (item.offset, seen.store_timestamp)
            if item.number == 1:
                self._begins[item.path] = (item.offset, seen.store_timestamp)
            # The first item of a file counts from the end of the file before.
            if item.number > 1 and item.seconds != time_difference(
                seen.store_timestamp, item.begin_timestamp
            ):
                self._wrong(item, f"{item.seconds} s, which is not when its record was stored")
            item = next(self._items, None)
        self._next = item
        if not found and not self._first <= seen.offset <= self._last:
            return
        wanted = self._hashes_of(seen)
        if self._is_unjudged(seen.offset):
            if first is not None and set(found) - set(wanted):
                self._wrong(first, "its hash is not of a key that its record has")
            return
        if not found and wanted:
            self._missing += 1
            if self._missing <= _MISSING_MAX:
                self._report.damage(
                    self._directory,
                    f"log offset {seen.offset}",
                    "no item leads to this record",
                    self._report.rebuild,
                )
        elif first is not None and (set(found) - set(wanted) or set(wanted[:-1]) - set(found)):
            # The last may be the tag's, which older brokers do not index.
            self._wrong(first, "its hash is not of a key that its record has")

    def _is_unjudged(self, offset: int) -> bool:
        """Tell whether a record's items can stand in a file that is not judged, in part or all of them.

        A file is full after any item, so those of one record can lie in two. One of the two may be gone with retention,
        of no shape, or left by a crash for the next start to build again.
        """
        if offset >= self._last or offset in self._unjudged_to or offset in self._unjudged_from:
            return True
        begin = max((end for end in self._unjudged_from if end < offset), default=None)
        return begin is not None and not any(begin < to <= offset for to in self._unjudged_to)

    def _hashes_of(self, seen: ScannedRecord) -> list[int]:
        segment = self._log.find(seen.offset)
        assert segment is not None
        position = seen.offset - segment.base_offset
        try:
            record = decode_record(segment.map[position : position + seen.size], check_crc=False)
        except CorruptRecord:
            return []
        if record.sys_flag & _TRANSACTION_MASK == _ROLLBACK:
            return []
        return record_hashes(record.topic.encode(), record.raw_properties)

    def _wrong(self, item: _Item, text: str) -> None:
        self._missing += 1
        if self._missing <= _MISSING_MAX:
            self._report.damage(item.path, f"item {item.number}", text, self._report.rebuild)

    def finish(self, log_end: int) -> None:
        """The log is at its end: what items are left speak of nothing."""
        item = self._next
        if item is not None and not self._report.is_lost(item.offset):
            self._wrong(item, f"names log offset {item.offset}, behind the end of the log at {log_end}")
        for path, header in self._headers:
            for place, items_say, header_says in (
                ("byte 0", self._begins.get(path), (header.begin_offset, header.begin_timestamp)),
                ("byte 8", self._ends.get(path), (header.end_offset, header.end_timestamp)),
            ):
                if (
                    items_say is not None
                    and items_say != header_says
                    and not self._report.is_lost(header_says[0])
                ):
                    text = f"the header says {header_says}, the items {items_say} (log offset, ms)"
                    self._report.damage(path, place, text, self._report.rebuild)
