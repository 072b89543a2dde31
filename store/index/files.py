"""The key index: built behind the log from the log's own files, and searched by reader threads.

`IndexBuilder` is the one writer of the `index` directory. It follows the log from a position of its own, reads the
records from their files and knows nothing of the loop's memory, so it runs wherever there is time for it: in the
helper process (`janitor`), or right here when a store is closed. Files are written in the order items, slots,
header: a search that runs meanwhile never meets a slot whose item is not there.

What a crash leaves in the file that was being filled is not judged but built again from the log: `open` keeps full
files that the checkpoint vouches for, and the position falls back to where the last of them ends. A record of several
keys may have some of them on either side of that place; it gets the others only. A search would not mind more, but the
original's answers name a message as often as its index does.

The layout is `ropewalk.format.index`'s. No file here is ever mapped, and all of them are sparse.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.index import (
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    TAG_MARK,
    Geometry,
    IndexHeader,
    key_hash,
    record_hashes,
    time_difference,
    words_of,
)
from ropewalk.format.properties import P
from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, Record, decode_record
from store.io.disk import Disk, PagedFile
from store.io.idle_worker import GiveWay
from store.log.commitlog import CommitLog, segment_name
from store.log.segment import Segment

NAME_DIGITS = 17
_CHUNK = 256 << 10
_PAGE = 4096
_PAGES_MAX = 16_384  # of slots kept in memory, 64 MiB: more than three times what the usual geometry has
_ITEMS_PENDING_MAX = 50_000  # a batch, between two looks at what is asked: a quarter of a second
_CHAIN_MAX = 100_000  # items of one chain that a search follows: hashes of one key, or a damaged file

# size, magic, offset, sys flag, store time, body size; for hosts of eight bytes, which is nearly always
_HEAD = struct.Struct(">iI20xqi16xq20xi")
_V6_BITS = 0x30
_TRANSACTION_MASK = _ROLLBACK = 0xC
_IDENTITY = struct.Struct(">i24xq")
_unpack_slot, _pack_slot, _pack_item = SLOT.unpack_from, SLOT.pack_into, ITEM.pack
_BLANK = struct.pack(">I", MAGIC_BLANK)


def stay() -> None:
    """Whoever has a thread or a process in a hurry gives way to nobody."""


# -- writing -----------------------------------------------------------------------------------------


class IndexFile:
    """One file being filled. What is put in stays in memory until `write_back`."""

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

    def write_back(self, give_way: GiveWay = stay) -> None:
        """Write what was put in. Whatever ends it early, it can be called again; nothing is lost. Blocks."""
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


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where the index and the log it follows are, and in which shape."""

    directory: Path
    log_directory: Path
    segment_size: int
    geometry: Geometry
    lock: Path
    """Held by whoever writes the index."""


class IndexBuilder:
    """The writer of an index. Every method can block, and belongs to one thread or process."""

    def __init__(self, place: IndexPlace, disk: Disk, now_ms: Callable[[], int]) -> None:
        self.position = 0
        """Every record that begins below this log offset is indexed, or gone."""
        self.written = 0
        """Every record that begins below this one can be searched: it does not wait for room on the disk."""
        self.full_timestamp = 0
        """End time of the last file that became full and was flushed, ms; 0: none did since the start."""
        self.findings: list[str] = []
        self.give_way: GiveWay = stay
        """Called before each record and each write. What it raises leaves a builder that can go on."""
        self._place = place
        self._disk = disk
        self._now_ms = now_ms
        self._names: list[str] = []
        self._file: IndexFile | None = None
        self._begun = (-1, 0)  # offset of a record and how many of its hashes are in a file that is full

    # -- open ----------------------------------------------------------------------------------------

    def open(self, log_end: int, trusted_ms: int | None) -> None:
        """Find what is there and go on behind it.

        `trusted_ms` is given after an abnormal exit: the checkpoint's index time, up to which files were full and
        flushed. What lies behind a file that cannot stay goes with it, because the index is built in one go.
        """
        directory, geometry = self._place.directory, self._place.geometry
        names = index_names(self._disk, directory)
        last: IndexHeader | None = None
        for at, name in enumerate(names):
            header = read_header(self._disk, directory / name, geometry)
            why = _why_not(header, geometry, log_end, trusted_ms)
            if why is not None:
                self._drop(names[at:], why)
                del names[at:]
                break
            last = header
        while names and not _speaks_of_its_log(self._disk, self._place, names):
            self._drop(names[-1:], "the last record it speaks of is none of the log's")
            del names[-1]
            last = read_header(self._disk, directory / names[-1], geometry) if names else None
        self._names = names
        if last is not None:
            if last.next_item < geometry.items:
                self._file = IndexFile(self._disk.open_paged(directory / names[-1]), geometry, last)
            self._begun = indexed_through(self._disk, self._place)
            self.position = self.written = self._begun[0]

    def _drop(self, names: Sequence[str], why: str) -> None:
        for name in names:
            self._disk.remove(self._place.directory / name)
        self.findings.append(
            f"index files from {names[0]} on ({len(names)}) are built again from the log: {why}"
        )

    # -- follow the log ------------------------------------------------------------------------------

    def advance(self, through: int, min_offset: int, items_max: int = _ITEMS_PENDING_MAX) -> bool:
        """Index records from `position` on, those that begin below log offset `through`; True when that is reached.

        The log must be readable to the end of the last of them; where that one begins, nobody needs to know. Stops
        earlier when `items_max` items were added, so that others get a turn. What was added can be searched when this
        returns. Raises OSError when it cannot be written; call again later then.
        """
        self.position = max(self.position, min_offset)
        if self._file is not None and self._file.pending:
            self._file.write_back(self.give_way)  # left over from a disk that had no room, say
        size = self._place.segment_size
        while self.position < through:
            base = self.position - self.position % size
            file = self._disk.open_paged(self._place.log_directory / segment_name(base))
            try:
                wanted = max(
                    through - self.position, _HEAD.size
                )  # who says how far may not know where records end
                chunk = file.read_at(self.position - base, min(_CHUNK, wanted))
            except FileNotFoundError:
                self.position = base + size  # retention was faster
                continue
            if not self._take(chunk, file, base):
                self.position = base + size
            if self._file is not None and self._file.pending >= items_max:
                break
        if self._file is not None and self._file.pending:
            self._file.write_back(self.give_way)
        self.written = self.position
        return self.position >= through

    def _take(self, chunk: bytes, file: PagedFile, base: int) -> bool:
        """Index the records of a chunk that begins at `position`. False if the segment has no more. HOT."""
        at, offset, room = 0, self.position, len(chunk)
        unpack, put, give_way = _HEAD.unpack_from, self._put, self.give_way
        while at < room:
            self.position = offset
            give_way()
            if room - at < _HEAD.size:
                if at == 0:
                    return chunk[4:8] != _BLANK and self._not_a_record(offset)  # only a filler is so short
                return True  # the next chunk begins with this record
            size, magic, stands_at, sys_flag, store_timestamp, body_size = unpack(chunk, at)
            if magic == MAGIC_BLANK:
                return False
            if stands_at != offset or size < RECORD_SIZE_MIN or magic not in (MAGIC_V1, MAGIC_V2):
                return self._not_a_record(offset)
            end = at + size
            if end > room:
                if at:
                    return True
                chunk = file.read_at(offset - base, size)
                room = len(chunk)
                if room < size:
                    return self._not_a_record(offset)
            head = 88
            if sys_flag & _V6_BITS:
                head, store_timestamp, body_size = _wide(chunk, at, sys_flag)
            topic_at = at + head + body_size
            if body_size < 0 or topic_at + 3 > end:
                return self._not_a_record(offset)
            if magic == MAGIC_V1:
                topic_end = topic_at + 1 + chunk[topic_at]
                topic = chunk[topic_at + 1 : topic_end]
            else:
                topic_end = topic_at + 2 + int.from_bytes(chunk[topic_at : topic_at + 2], "big")
                topic = chunk[topic_at + 2 : topic_end]
            if topic_end + 2 > end:
                return self._not_a_record(offset)
            if sys_flag & _TRANSACTION_MASK != _ROLLBACK:
                put(record_hashes(topic, chunk[topic_end + 2 : end]), offset, store_timestamp)
            at, offset = end, offset + size
        self.position = offset
        return True

    def _not_a_record(self, offset: int) -> bool:
        self.findings.append(f"log offset {offset} is no record: the index goes on in the next segment")
        return False

    def _put(self, hashes: Sequence[int], offset: int, store_timestamp: int) -> None:
        done = 0
        if offset == self._begun[0]:
            done = self._begun[1]
            hashes = hashes[done:]
        file = self._file
        if file is None or file.is_full:
            file = self._roll()
        while (put := file.put(hashes, offset, store_timestamp)) < len(hashes):
            done += put
            self._begun = offset, done
            hashes = hashes[put:]
            file = self._roll()

    def _roll(self) -> IndexFile:
        """Begin the next file; the one before it is flushed, and the checkpoint may say so."""
        header = IndexHeader()
        if self._file is not None:
            self._file.write_back()
            self._file.file.sync()
            self.full_timestamp = self._file.header.end_timestamp
            header = self._file.header.following()
        elif self._names:
            path = self._place.directory / self._names[-1]
            last = read_header(self._disk, path, self._place.geometry)
            if last is not None:
                self._disk.sync_file(path)
                self.full_timestamp = last.end_timestamp
                header = last.following()
        name = self._next_name()
        path = self._place.directory / name
        self._file = IndexFile(
            self._disk.create_paged(path, self._place.geometry.file_size), self._place.geometry, header
        )
        self._names.append(name)
        return self._file

    def _next_name(self) -> str:
        """The local time to the millisecond, and later than any name there: clocks step back, names sort."""
        now = self._now_ms()
        name = time.strftime("%Y%m%d%H%M%S", time.localtime(now / 1000)) + f"{now % 1000:03d}"
        if self._names and name <= self._names[-1]:
            name = f"{int(self._names[-1]) + 1:0{NAME_DIGITS}d}"
        return name

    # -- retention -----------------------------------------------------------------------------------

    def drop_before(self, min_offset: int) -> None:
        """Remove files that only speak of records below `min_offset`; the last file stays."""
        while len(self._names) > 1:
            path = self._place.directory / self._names[0]
            header = read_header(self._disk, path, self._place.geometry)
            if header is not None and header.end_offset >= min_offset:
                return
            self._disk.remove(path)
            del self._names[0]

    def close(self) -> None:
        """Write what is left, durably."""
        if self._file is not None:
            self._file.write_back()
            self._file.file.sync()


def drop_unfinished(disk: Disk, place: IndexPlace) -> None:
    """Remove the file that was being filled, when its builder ended before all was written; nobody writes now. Blocks.

    Its slots may name items that its header does not count, and whoever went on with it would cut off what stands
    behind these. The next builder begins where the last full file ends, as after a crash.
    """
    names = index_names(disk, place.directory)
    if names:
        path = place.directory / names[-1]
        header = read_header(disk, path, place.geometry)
        if header is None or header.next_item < place.geometry.items:
            disk.remove(path)


def _why_not(
    header: IndexHeader | None, geometry: Geometry, log_end: int, trusted_ms: int | None
) -> str | None:
    """Why a file found at the start cannot stay, or None."""
    if header is None:
        return "it is damaged, or of another maxHashSlotNum and maxIndexNum"
    if header.next_item > 1 and header.end_offset >= log_end:
        return "it speaks of records that the log does not have"
    if trusted_ms is not None and header.end_timestamp > trusted_ms:
        return "the last exit was abnormal, and the checkpoint does not vouch for it"
    if trusted_ms is not None and header.next_item < geometry.items:
        return "the last exit was abnormal, and it was being filled"
    return None


def _wide(chunk: bytes, at: int, sys_flag: int) -> tuple[int, int, int]:
    """Size of the fixed part, store time and body size of a record with an IPv6 host."""
    store_at = 48 + (20 if sys_flag & 0x10 else 8)
    body_at = store_at + 8 + (20 if sys_flag & 0x20 else 8) + 12
    if len(chunk) < at + body_at + 4:
        return body_at + 4, 0, -1
    (store_timestamp,) = struct.unpack_from(">q", chunk, at + store_at)
    (body_size,) = struct.unpack_from(">i", chunk, at + body_at)
    return body_at + 4, store_timestamp, body_size


# -- looking -----------------------------------------------------------------------------------------


def index_names(disk: Disk, directory: Path) -> list[str]:
    """The files of an index, oldest first."""
    return [name for name in disk.names(directory) if len(name) == NAME_DIGITS and name.isdigit()]


def read_header(disk: Disk, path: Path, geometry: Geometry) -> IndexHeader | None:
    """The header of a file; None if the file cannot be one of this geometry. Blocks."""
    if disk.size_of(path) != geometry.file_size:
        return None
    header = IndexHeader.decode(disk.open_paged(path).read_at(0, HEADER_SIZE))
    return header if geometry.holds(header) else None


def indexed_through(disk: Disk, place: IndexPlace) -> tuple[int, int]:
    """The log offset where a cleanly left index is to be gone on with, and how many hashes of that record it has.

    That is behind its last record if that is wholly in it. Only looks, so it can be asked by others than the writer.
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
        return last, 0
    wanted = [(value, last) for value in hashes]
    found = _last_items(disk, place, names, len(wanted))
    done = next((n for n in range(len(wanted), 0, -1) if found[-n:] == wanted[:n]), 0)
    return (last + size, 0) if done == len(wanted) else (last, done)


def _speaks_of_its_log(disk: Disk, place: IndexPlace, names: Sequence[str]) -> bool:
    """Whether the last item of an index is one of the record that begins there, as far as the log reaches back.

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
    base = offset - offset % place.segment_size
    file = disk.open_paged(place.log_directory / segment_name(base))
    size = int.from_bytes(file.read_at(offset - base, 4), "big", signed=True)
    if not RECORD_SIZE_MIN <= size <= place.segment_size:
        raise CorruptRecord(f"log offset {offset}: a record of {size} bytes")
    record = decode_record(file.read_at(offset - base, size), check_crc=False)
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
    """What a query found: whole records by their place in the log, and how far the index has come."""

    records: list[bytes]
    last_timestamp: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Query:
    """Which messages are asked for; times in ms."""

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
    return properties.get(P.UNIQ_KEY) == query.key or query.key in words_of(properties.get(P.KEYS, ""))


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
