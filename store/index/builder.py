"""The builder of the key index, which follows the log from the log's own files.

`IndexBuilder` is the one writer of the `index` directory. It follows the log from a position of its own, reads the
records from their files and knows nothing of the loop's memory, so it runs wherever there is time for it: in the
helper process (`helper`), or right here when a store is closed.

What a crash leaves in the file that was being filled is not judged but built again from the log: `open` keeps full
files that the checkpoint vouches for, and the position falls back to where the last of them ends. A record of several
keys may have some of them on either side of that place; it gets the others only. A search would not mind more, but the
original's answers name a message as often as its index does.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence

from ropewalk.format.dledger.entry import MAGIC_FILLER
from ropewalk.format.index import Geometry, IndexHeader, record_hashes
from ropewalk.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN
from store.index.file import (
    NAME_DIGITS,
    IndexFile,
    IndexPlace,
    index_names,
    indexed_through,
    read_header,
    read_log,
    speaks_of_its_log,
)
from store.io.disk import Disk
from store.io.idle_worker import GiveWay, never_yield
from store.log.limits import NO_LIMIT

_CHUNK = 256 << 10
_ITEMS_PENDING_MAX = 50_000  # a batch, between two looks at what is asked: a quarter of a second

# size, magic, offset, sys flag, store time, body size; for hosts of eight bytes, which is nearly always
_HEAD = struct.Struct(">iI20xqi16xq20xi")
_V6_BITS = 0x30
_TRANSACTION_MASK = _ROLLBACK = 0xC
_BLANK = struct.pack(">I", MAGIC_BLANK)
_ENTRY_FILLER = struct.pack(">i", MAGIC_FILLER)


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
        self.give_way: GiveWay = never_yield
        """Called before each record and each write. What it raises leaves a builder that can go on."""
        self._place = place
        self._disk = disk
        self._now_ms = now_ms
        self._names: list[str] = []
        self._file: IndexFile | None = None
        self._begun = (-1, 0)  # offset of a record and how many of its hashes are in a file that is full

    # -- open ----------------------------------------------------------------------------------------

    def open(self, log_end: int, trusted_ms: int | None) -> None:
        """Open the index files that are there, to go on behind them.

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
        while names and not speaks_of_its_log(self._disk, self._place, names):
            self._drop(names[-1:], "the last record it speaks of is none of the log's")
            del names[-1]
            last = read_header(self._disk, directory / names[-1], geometry) if names else None
        self._names = names
        if last is not None:
            if last.next_item < geometry.items:
                self._file = IndexFile(self._disk.open_paged(directory / names[-1]), geometry, last)
            self.position, done = indexed_through(self._disk, self._place)
            self.written = self.position
            self._begun = self.position + self._place.head_size, done

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
        self._see_to_removed_files()
        self.position = max(self.position, min_offset)
        if self._file is not None and self._file.pending:
            self._file.write_back(self.give_way)  # left over from a disk that had no room, say
        size = self._place.segment_size
        while self.position < through:
            base = self.position - self.position % size
            try:
                # Who says how far may not know where records end.
                wanted = max(through - self.position, self._place.head_size + _HEAD.size)
                chunk = read_log(self._disk, self._place, self.position, min(_CHUNK, wanted))
                found = self._take(chunk) if chunk else self._not_a_record(self.position)
            except FileNotFoundError:
                found = False  # retention was faster
            if not found:
                self.position = base + size
            if self._file is not None and self._file.pending >= items_max:
                break
        if self._file is not None and self._file.pending:
            self._file.write_back(self.give_way)
        self.written = self.position
        return self.position >= through

    def _see_to_removed_files(self) -> None:
        """Leave out index files that something else removed; build the newest again from where the one before ends."""
        there = set(index_names(self._disk, self._place.directory))
        gone = [name for name in self._names if name not in there]
        if not gone:
            return
        for name in gone:
            self._disk.forget(self._place.directory / name)
        text = f"index files {', '.join(gone)} in {self._place.directory} were removed by something else"
        if gone[-1] == self._names[-1]:
            self._file, self._begun, self.position, self.written = None, (-1, 0), 0, 0
            self.open(NO_LIMIT, None)
            text += f": the index is built again from log offset {self.position} on"
        else:
            self._names = [name for name in self._names if name in there]
            text += (
                ": their messages are not found by key. Stop the broker and remove the whole folder to have all of "
                "it built again"
            )
        self.findings.append(text)

    def _take(self, chunk: bytes) -> bool:
        """Index the records of a chunk that begins at `position`. False if the segment has no more. HOT."""
        place, room, head_size = self.position, len(chunk), self._place.head_size
        at = head_size  # of the record, which stands behind the head of its entry if it has one
        unpack, put, give_way = _HEAD.unpack_from, self._put, self.give_way
        while at - head_size < room:
            self.position, offset = place, place + head_size
            give_way()
            if room - at < _HEAD.size:
                if at == head_size:
                    is_filler = chunk.startswith(_ENTRY_FILLER) if head_size else chunk[4:8] == _BLANK
                    return not is_filler and self._not_a_record(place)  # only a filler is so short
                return True  # the next chunk begins with this record
            size, magic, stands_at, sys_flag, store_timestamp, body_size = unpack(chunk, at)
            if chunk.startswith(_ENTRY_FILLER, at - head_size) if head_size else magic == MAGIC_BLANK:
                return False
            if stands_at != offset or size < RECORD_SIZE_MIN or magic not in (MAGIC_V1, MAGIC_V2):
                return self._not_a_record(offset)
            end = at + size
            if end > room:
                if at > head_size:
                    return True
                chunk = read_log(self._disk, self._place, place, head_size + size)
                room = len(chunk)
                if room < end:
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
            at, place = end + head_size, place + head_size + size
        self.position = place
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
        """Write pending items, durably."""
        self._see_to_removed_files()
        if self._file is not None:
            self._file.write_back()
            self._file.file.sync()


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
