"""The files of the key index: their names and headers, one file being filled, and where an index is to be gone on with.

Files are written in the order items, slots, header: a search that runs meanwhile never meets a slot whose item is not
there. The layout is `ropewalk.format.index`'s. No file here is ever mapped, and all of them are sparse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    Geometry,
    IndexHeader,
    record_hashes,
    time_difference,
)
from ropewalk.format.record import RECORD_SIZE_MIN, decode_record
from store.io.disk import Disk, PagedFile
from store.io.idle_worker import GiveWay, never_yield
from store.log.commitlog import segment_name

NAME_DIGITS = 17
_PAGE = 4096
_PAGES_MAX = 16_384  # of slots kept in memory, 64 MiB: more than three times what the usual geometry has

_unpack_slot, _pack_slot, _pack_item = SLOT.unpack_from, SLOT.pack_into, ITEM.pack


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """The place of an index and of the log that it follows, and the shape of its files."""

    directory: Path
    log_directory: Path
    segment_size: int
    geometry: Geometry
    lock: Path
    """Held by whoever writes the index."""
    head_size: int = 0
    """Bytes in front of each record: of the head of an entry, in a log of entries."""


class IndexFile:
    """An index file being filled. What is put in stays in memory until `write_back`."""

    def __init__(self, file: PagedFile, geometry: Geometry, header: IndexHeader) -> None:
        self.file = file
        self.header = header
        self._geometry = geometry
        self._pages: dict[int, bytearray] = {}
        self._dirty: set[int] = set()
        self._items: list[bytes] = []
        self._items_from = header.next_item

    @property
    def is_full(self) -> bool:
        return self.header.next_item >= self._geometry.items

    def put(self, hashes: Sequence[int], offset: int, store_timestamp: int) -> int:
        """Index one record under as many of the hashes as there is room for; return how many that were. HOT."""
        header, pages, slots = self.header, self._pages, self._geometry.slots
        number, items_max = header.next_item, self._geometry.items
        done = 0
        for value in hashes:
            if number >= items_max:
                break
            page_number, at = divmod(value % slots * SLOT_SIZE, _PAGE)
            page = pages.get(page_number)
            if page is None:
                page = self._load(page_number)
            (previous,) = _unpack_slot(page, at)
            if not 0 < previous <= number:
                previous = 0
                header.slots_used += 1
            seconds = time_difference(store_timestamp, header.begin_timestamp)
            self._items.append(_pack_item(value, offset, seconds, previous))
            _pack_slot(page, at, number)
            self._dirty.add(page_number)
            if number == 1:
                header.begin_offset, header.begin_timestamp = offset, store_timestamp
            number += 1
            done += 1
        if done:
            header.next_item = number
            header.end_offset, header.end_timestamp = offset, store_timestamp
        return done

    def _load(self, number: int) -> bytearray:
        size = min(_PAGE, SLOT_SIZE * self._geometry.slots - number * _PAGE)
        page = self._pages[number] = bytearray(self.file.read_at(HEADER_SIZE + number * _PAGE, size))
        return page

    @property
    def pending(self) -> int:
        """Items not written yet."""
        return len(self._items)

    def write_back(self, give_way: GiveWay = never_yield) -> None:
        """Write pending items, slots and header. It can be called again behind an error, with no loss. Blocks."""
        give_way()
        if self._items:
            self.file.write_at(self._geometry.item_position(self._items_from), b"".join(self._items))
        for first, last in _runs(sorted(self._dirty)):
            give_way()
            data = b"".join(self._pages[number] for number in range(first, last + 1))
            self.file.write_at(HEADER_SIZE + first * _PAGE, data)
        self.file.write_at(0, self.header.encode())
        self._items.clear()
        self._items_from = self.header.next_item
        self._dirty.clear()
        if len(self._pages) > _PAGES_MAX:
            self._pages.clear()


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of adjacent numbers as (first, last)."""
    first = last = -1
    for number in numbers:
        if number != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = number
        last = number
    if first >= 0:
        yield first, last


def index_names(disk: Disk, directory: Path) -> list[str]:
    """The files of an index, oldest first."""
    return [name for name in disk.names(directory) if len(name) == NAME_DIGITS and name.isdigit()]


def read_header(disk: Disk, path: Path, geometry: Geometry) -> IndexHeader | None:
    """Return the header of a file; None if it cannot be one of this geometry, or was removed. Blocks."""
    try:
        if disk.size_of(path) != geometry.file_size:
            return None
        header = IndexHeader.decode(disk.open_paged(path).read_at(0, HEADER_SIZE))
    except FileNotFoundError:
        return None
    return header if geometry.holds(header) else None


def read_log(disk: Disk, place: IndexPlace, offset: int, size: int) -> bytes:
    """Return up to `size` bytes of the log from an offset on, of one segment. Blocks; raises FileNotFoundError.

    The descriptor is closed behind each read. Segments are removed by the broker, and one that is open in the process
    that builds the index would keep its room on the disk.
    """
    base = offset - offset % place.segment_size
    path = place.log_directory / segment_name(base)
    try:
        return disk.open_paged(path).read_at(offset - base, size)
    finally:
        disk.forget(path)


def indexed_through(disk: Disk, place: IndexPlace) -> tuple[int, int]:
    """The log offset where a cleanly left index is to be gone on with, and how many hashes of that record it has.

    That is the place behind its last record if that is wholly in it, and the place of that record otherwise.
    Only looks, so it can be asked by others than the writer.
    Blocks.
    """
    names = index_names(disk, place.directory)
    header = read_header(disk, place.directory / names[-1], place.geometry) if names else None
    if header is None:
        return 0, 0
    last = header.end_offset
    try:
        size, hashes = _indexable_at(disk, place, last)
    except (FileNotFoundError, CorruptRecord):
        return last - place.head_size, 0
    wanted = [(value, last) for value in hashes]
    found = _last_items(disk, place, names, len(wanted))
    done = next((n for n in range(len(wanted), 0, -1) if found[-n:] == wanted[:n]), 0)
    return (last + size, 0) if done == len(wanted) else (last - place.head_size, done)


def speaks_of_its_log(disk: Disk, place: IndexPlace, names: Sequence[str]) -> bool:
    """Tell whether the last item of an index is of the record that begins there, as far as the log reaches back.

    A loss of power can leave a log that is shorter than a full and flushed file tells. Before anybody has looked at
    that file, the log can have grown past its end again, with other records. Blocks.
    """
    for value, offset in _last_items(disk, place, names, 1):
        try:
            return value in _indexable_at(disk, place, offset)[1]
        except FileNotFoundError:
            pass
        except CorruptRecord:
            return False
    return True


def _indexable_at(disk: Disk, place: IndexPlace, offset: int) -> tuple[int, list[int]]:
    """Size of the record that begins at a log offset, and the hashes of its keys.

    Raises CorruptRecord if none does, and FileNotFoundError where the log does not reach back so far. Blocks.
    """
    size = int.from_bytes(read_log(disk, place, offset, 4), "big", signed=True)
    if not RECORD_SIZE_MIN <= size <= place.segment_size:
        raise CorruptRecord(f"log offset {offset}: a record of {size} bytes")
    record = decode_record(read_log(disk, place, offset, size), check_crc=False)
    if record.offset != offset:
        raise CorruptRecord(f"log offset {offset}: a record of offset {record.offset}")
    return size, record_hashes(record.topic.encode(), record.raw_properties)


def _last_items(disk: Disk, place: IndexPlace, names: Sequence[str], count: int) -> list[tuple[int, int]]:
    """Hash and log offset of so many items from the end of an index, oldest first; fewer if there are no more."""
    found: list[tuple[int, int]] = []
    for name in reversed(names):
        if len(found) == count:
            break
        header = read_header(disk, place.directory / name, place.geometry)
        if header is None:
            break
        first = max(1, header.next_item - (count - len(found)))
        file = disk.open_paged(place.directory / name)
        data = file.read_at(place.geometry.item_position(first), ITEM_SIZE * (header.next_item - first))
        found = [(value, offset) for value, offset, _seconds, _previous in ITEM.iter_unpack(data)] + found
    return found


def drop_unfinished(disk: Disk, place: IndexPlace) -> None:
    """Remove the file that was being filled, if its builder ended too early; there must be no writer. Blocks.

    Its slots may name items that its header does not count, and whoever went on with it would cut off what stands
    behind these. The next builder begins where the last full file ends, as after a crash.
    """
    names = index_names(disk, place.directory)
    if names:
        path = place.directory / names[-1]
        header = read_header(disk, path, place.geometry)
        if header is None or header.next_item < place.geometry.items:
            disk.remove(path)
