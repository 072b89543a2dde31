"""The index of one queue: entry `n` tells where in the commit log the queue's message `n` stands.

    files of 20-byte entries (phy offset, record size, tag code), named by the *byte* offset of their first entry
    |  min_offset ...  written | readable | next_offset
                tail_base ^~~~~ in memory ~~~~~~~~~~~^

An entry is born in memory when its record is appended. It becomes readable when the store says that no producer's
answer about it is open any more, and goes to its file some time later: never before, so that a queue file never
points at a record that a crash could still take back. Entries of a queue that is one of very many are born in a pool
(`entry_pool`), and taken from there before anything is said about the queue.

Invariants: `tail_base <= written <= readable <= next_offset`, and the tail holds [tail_base, next_offset).
The loop owns everything here; a helper thread gets copies to write.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.io.disk import Disk, PagedFile
from store.log.commitlog import NAME_DIGITS, StoreDamaged, segment_name
from store.queues.entry_pool import EntryPool
from store.queues.queue_writer import Waiting, Write, writes_into

PRE_BLANK_SIZE = 0x7FFFFFFF
TAIL_KEEP = 1024
"""Entries kept in memory behind `written`, so that consumers at the tail never read the file."""
_TRIM = 4  # times as many more have to be there before any is let go
_HEAD_SIZE = (
    200 * ENTRY_SIZE
)  # of a file, read at once: most queues are short, and there can be tens of thousands

_pack_entry = ENTRY.pack


class ConsumeQueue:
    __slots__ = (
        "_directory",
        "_disk",
        "_held",
        "_loaded_end",
        "_read_last",
        "dirty",
        "epoch",
        "file_size",
        "first",
        "loaded_next",
        "min_offset",
        "own_next",
        "own_readable",
        "own_tail",
        "pool",
        "queue_id",
        "slot",
        "tail_base",
        "topic",
        "topic_bytes",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, directory: Path | str, file_size: int, disk: Disk) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self._directory = str(directory)  # there can be tens of thousands, and a Path takes ten times as long
        self.file_size = file_size - file_size % ENTRY_SIZE
        self.first = 0
        """The number of the first entry in the first file; `min_offset` can be higher, and is not stored."""
        self.min_offset = 0
        self.loaded_next = 0
        """Entries below this number were found in files, and those from it on added since: they cannot be stale."""
        self.written = 0
        self.tail_base = 0
        self.own_next = self.own_readable = 0
        """As `next_offset` and `readable`, and `own_tail` what is in memory, but for entries that wait in `pool`.

        For whoever appends, and has had the queue `settle` before."""
        self.own_tail = bytearray()
        self._loaded_end = 0
        self.dirty = False
        self.epoch = 0
        """Another one since entries were taken back: what was read of the queue before is worth nothing."""
        self.pool: EntryPool | None = None
        """Where entries may wait for the queue, at its `slot`; set by the pool."""
        self.slot = -1
        self._held: Any = None
        self._disk = disk
        self._read_last: tuple[int, PagedFile] | None = None

    @property
    def directory(self) -> Path:
        return Path(self._directory)

    @property
    def next_offset(self) -> int:
        """The number that the next message gets."""
        self.settle()
        return self.own_next

    @property
    def readable(self) -> int:
        """The number up to which consumers may see messages."""
        self.settle()
        return self.own_readable

    @property
    def held(self) -> Any:
        """Whoever waits for this queue to become longer; set and read by the broker's long polling."""
        return self._held

    @held.setter
    def held(self, waiting: Any) -> None:
        self._held = waiting
        if self.pool is not None:
            self.pool.note_held(self)

    def settle(self) -> None:
        """Take what waits in the pool. HOT."""
        if self.pool is not None:
            self.pool.settle(self)

    def _leave_pool(self) -> None:
        if self.pool is not None:
            self.pool.leave(self)

    # -- append --------------------------------------------------------------------------------------

    def add(self, offset: int, size: int, tags_code: int) -> None:
        """Index the record just appended at `offset`; it is not readable yet. HOT."""
        self._leave_pool()
        self.own_tail += _pack_entry(offset, size, tags_code)
        self.own_next += 1

    def add_run(self, entries: bytes) -> None:
        """Index records just appended, the next ones of this queue, by their packed entries. HOT."""
        self._leave_pool()
        self.own_tail += entries
        self.own_next += len(entries) // ENTRY_SIZE

    def start_at(self, queue_offset: int) -> None:
        """Begin an empty queue at a later number: its earlier messages are gone with their log segments."""
        assert self.next_offset == 0, (self.topic, self.queue_id, self.next_offset)
        self._leave_pool()
        self.min_offset = self.own_next = self.own_readable = queue_offset
        # RocketMQ fills the head of such a file with entries that are no messages.
        first = queue_offset - queue_offset % (self.file_size // ENTRY_SIZE)
        self.tail_base = self.written = self.first = first
        self.own_tail += _pack_entry(0, PRE_BLANK_SIZE, 0) * (queue_offset - first)

    # -- read ----------------------------------------------------------------------------------------

    @property
    def max_physical(self) -> int:
        """The log offset behind the record of the last entry; 0 if the queue never had one."""
        self.settle()
        if not self.own_tail:
            return self._loaded_end
        offset, size, _tags = ENTRY.unpack_from(self.own_tail, len(self.own_tail) - ENTRY_SIZE)
        return offset + size if size != PRE_BLANK_SIZE else 0

    def entries_nowait(self, queue_offset: int, count: int) -> bytes | None:
        """Up to `count` raw entries from `queue_offset`, within one file; None if that needs the disk."""
        if queue_offset >= self.tail_base:
            start = (queue_offset - self.tail_base) * ENTRY_SIZE
            return bytes(self.own_tail[start : start + count * ENTRY_SIZE])
        file, position, size = self.place(queue_offset, count)
        return file.read_at_nowait(position, size)

    def place(self, queue_offset: int, count: int) -> tuple[PagedFile, int, int]:
        """Where up to `count` written entries stand: file, position, bytes; cut at the end of the file."""
        count = min(count, self.written - queue_offset)
        logical = queue_offset * ENTRY_SIZE
        position = logical % self.file_size
        size = min(count * ENTRY_SIZE, self.file_size - position)
        base, last = logical - position, self._read_last
        if last is None or last[0] != base:
            last = self._read_last = base, self._disk.open_paged(self._path(base))
        return last[1], position, size

    def _path(self, file_base: int) -> Path:
        return Path(f"{self._directory}/{segment_name(file_base)}")

    def frozen(self) -> FrozenQueue:
        """What a reader thread may use while the loop goes on: the readable entries as they are now."""
        count = self.readable - self.tail_base
        return FrozenQueue(self, bytes(self.own_tail[: count * ENTRY_SIZE]))

    # -- write back ----------------------------------------------------------------------------------

    def take_writes(self) -> list[Write]:
        """What a helper thread has to write now, as (path, file size, position, bytes) in order."""
        self.settle()
        start, end = ((at - self.tail_base) * ENTRY_SIZE for at in (self.written, self.own_readable))
        entries = bytes(self.own_tail[start:end])
        return list(writes_into(self._directory, self.file_size, self.written, entries))

    def waiting_writes(self, through: int, newest: int) -> Waiting:
        """The same of entries that the pool still has, through a number, whose last one stands at a place there."""
        return self._directory, self.file_size, self.written, through, newest

    def unwritten_from(self, offset: int) -> int:
        """How many of the entries that `take_writes` gives are of records at or behind a log offset."""
        if self.written == self.own_readable or self._offset_in_memory(self.own_readable - 1) < offset:
            return 0
        late = bisect_left(range(self.written, self.own_readable), offset, key=self._offset_in_memory)
        return self.own_readable - self.written - late

    def _offset_in_memory(self, number: int) -> int:
        offset: int
        offset, _size, _tags = ENTRY.unpack_from(self.own_tail, (number - self.tail_base) * ENTRY_SIZE)
        return offset

    def note_written(self, through: int, keep: int = TAIL_KEEP) -> None:
        """Entries below `through` are in their files; the tail may let go of those more than `keep` behind."""
        self.written = max(self.written, through)
        keep_from = self.written - keep
        if keep_from - self.tail_base > _TRIM * keep:
            del self.own_tail[: (keep_from - self.tail_base) * ENTRY_SIZE]
            self.tail_base = keep_from

    def go_on_at(self, number: int, last: bytes) -> None:
        """All entries below `number` are in their files, though they were never here; the `last` of them is kept."""
        self.own_next = self.own_readable = self.written = number
        self.own_tail[:] = last
        self.tail_base = number - 1

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Find the last written entry. Blocks. Whether the entries tell the truth is recovery's question.

        False if a file is missing between others: the queue then counts as empty, to be built again from the log.
        Raises `StoreDamaged` for a file of another size, which this queue would read at the wrong places.
        """
        self.forget()
        files: dict[int, PagedFile] = {}
        for base in self._bases():
            file = self._disk.open_paged(self._path(base))
            size = self._disk.size_of(file.path)
            if size == 0:  # a crash between creating and sizing it
                self._disk.remove(file.path)
                continue
            files[base] = file
            if size != self.file_size:
                raise StoreDamaged(
                    f"{file.path} has {size} bytes, but mappedFileSizeConsumeQueue is {self.file_size}: start with the "
                    f"size the store was written with. If it was cut (at queue offset {(base + size) // ENTRY_SIZE}), "
                    f"`ropewalk store repair {self.directory.parent.parent.parent} --to COPY` builds it again"
                )
        if not files:
            return True
        bases = list(files)
        if bases != list(range(bases[0], bases[-1] + 1, self.file_size)):
            return False
        end, head = 0, b""
        for base in reversed(bases):
            head = self._head(files[base])
            count = self._first(files[base], head, lambda offset, size: offset < 0 or size <= 0)
            if count or base == bases[0]:
                end = base // ENTRY_SIZE + count
                break
        self._read_last = base, files[base]
        if base != bases[0]:
            head = self._head(files[bases[0]])
        blanks = self._first(
            files[bases[0]], head, lambda offset, size: (offset, size) != (0, PRE_BLANK_SIZE)
        )
        self.first = bases[0] // ENTRY_SIZE
        self.min_offset = self.first + blanks
        self._set_end(max(end, self.min_offset))
        return True

    def _bases(self) -> list[int]:
        return [int(n) for n in self._disk.names(self.directory) if len(n) == NAME_DIGITS and n.isdigit()]

    def forget(self) -> None:
        """Be empty, as if nothing had ever been added. The files are for the caller to remove."""
        self.first = self.min_offset = 0
        self._set_end(0)

    def _head(self, file: PagedFile) -> bytes:
        return file.read_at(0, min(_HEAD_SIZE, self.file_size))

    def _first(self, file: PagedFile, head: bytes, past: Callable[[int, int], bool]) -> int:
        """How many entries of a file come before the first that is `past`; it begins with `head`, and is ordered.

        The search goes from the front on, in growing steps, and reads what belongs together at once: most queues are
        short, and each place that is looked at brings a page of the file into memory.
        """
        at, piece, width = 0, head, len(head) // ENTRY_SIZE

        def is_past(number: int) -> bool:
            nonlocal at, piece
            if not at <= number < at + width:
                at = number - number % width
                piece = file.read_at(at * ENTRY_SIZE, width * ENTRY_SIZE)
            offset, size, _tags = ENTRY.unpack_from(piece, (number - at) * ENTRY_SIZE)
            return past(offset, size)

        low, high, reach = 0, self.file_size // ENTRY_SIZE, width
        while reach < high:
            if is_past(reach - 1):
                high = reach - 1
                break
            low, reach = reach, 2 * reach
        while low < high:
            middle = (low + high) // 2
            if is_past(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _set_end(self, end: int) -> None:
        self.epoch += 1
        self._leave_pool()
        self.own_next = self.own_readable = self.written = self.tail_base = self.loaded_next = end
        self.own_tail.clear()
        self._loaded_end = 0
        if end > self.min_offset:
            offset, size, _tags = self.read(end - 1)
            self._loaded_end = offset + size

    def read(self, queue_offset: int) -> tuple[int, int, int]:
        """One entry as (offset, size, tag code). Blocks; for recovery and look-ups off the loop."""
        if queue_offset >= self.tail_base:
            offset, size, tags = ENTRY.unpack_from(
                self.own_tail, (queue_offset - self.tail_base) * ENTRY_SIZE
            )
        else:
            file, position, _size = self.place(queue_offset, 1)
            offset, size, tags = ENTRY.unpack(file.read_at(position, ENTRY_SIZE))
        return offset, size, tags

    def keep(self, end: int) -> None:
        """Believe the entries below `end` only; those behind it are gone from memory, not yet from the files."""
        if end == self.next_offset and not self.own_tail:
            return  # as it is after `load`
        self.first = min(self.first, end)
        self.min_offset = min(self.min_offset, end)
        self._set_end(end)

    def restart_at(self, queue_offset: int) -> None:
        """Give up all entries, whose records are gone, and begin again at a later number."""
        self.forget()
        self.start_at(queue_offset)

    def clear_files(self, end: int) -> None:
        """Zero the files from entry `end` on: a stale entry would come back to life. Blocks.

        The file in which `end` falls stays, empty or not: its name alone may carry the queue's numbers.
        """
        bases = self._bases()
        for base in bases:
            keep = end * ENTRY_SIZE - base
            if not end or keep < 0 or (keep == 0 and base - self.file_size in bases):
                self._disk.remove(self._path(base))
            elif keep < self.file_size:
                file = self._disk.open_paged(self._path(base))
                for start, stop in list(file.data_ranges(keep)):
                    rest = file.read_at(start, stop - start)
                    if rest.count(0) != len(rest):
                        file.write_at(start, bytes(len(rest)))

    def raise_min(self, log_min_offset: int) -> None:
        """Skip entries whose records went with a deleted segment. Blocks."""
        if log_min_offset:
            self.min_offset = self.find(log_min_offset)

    def find(self, offset: int) -> int:
        """The first entry of a record at or behind log offset `offset`, or of none at all. Blocks."""
        low, high = self.min_offset, self.next_offset
        while low < high:
            middle = (low + high) // 2
            physical, size, _tags = self.read(middle)
            if physical < offset and size > 0:
                low = middle + 1
            else:
                high = middle
        return low

    # -- retention -----------------------------------------------------------------------------------

    def find_written(self, offset: int, written: int) -> int:
        """The first of the entries below `written` whose record is at or behind log offset `offset`, or `written`.

        Blocks; reads files only, so a helper thread may ask. A file that cannot be read proves nothing: then the
        answer is the number from which the search began.
        """
        first = low = self.min_offset
        high = written
        try:
            while low < high:
                middle = (low + high) // 2
                file, position, size = self.place(middle, 1)
                if ENTRY.unpack(file.read_at(position, size))[0] < offset:
                    low = middle + 1
                else:
                    high = middle
        except (OSError, ValueError, struct.error):
            return first
        return max(first, low)

    def skip_to(self, number: int, offset: int) -> None:
        """The log begins at `offset` now, and no entry below `number` has a record: go on there, or further."""
        self.min_offset = max(self.min_offset, min(number, self.next_offset))
        if self.min_offset >= self.tail_base:
            self.min_offset = self.find(offset)  # in memory

    def give_up_files(self) -> tuple[int, list[Path]]:
        """The files that hold nothing from `min_offset` on, and how many entries; they are the caller's to remove.

        The last file stays, whatever is in it: its name carries the queue's numbers.
        """
        count = self.file_size // ENTRY_SIZE
        first = self.first
        last = max(self.written - 1, 0)
        self.first = max(first, min(self.min_offset, last) // count * count)
        return self.first - first, [
            self._path(number * ENTRY_SIZE) for number in range(first, self.first, count)
        ]


class FrozenQueue:
    """The readable entries of a queue at one moment, for look-ups on a reader thread. Its reads block."""

    def __init__(self, queue: ConsumeQueue, tail: bytes) -> None:
        self.min_offset = queue.min_offset
        self.readable = queue.readable
        self._queue = queue
        self._tail_base = queue.tail_base
        self._tail = tail

    def read(self, queue_offset: int) -> tuple[int, int, int]:
        """One entry as (offset, size, tag code)."""
        if queue_offset >= self._tail_base:
            offset, size, tags = ENTRY.unpack_from(self._tail, (queue_offset - self._tail_base) * ENTRY_SIZE)
        else:
            file, position, _size = self._queue.place(queue_offset, 1)
            entry = file.read_at(position, ENTRY_SIZE)
            if len(entry) < ENTRY_SIZE:  # it was cut while it was open
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.path))
            offset, size, tags = ENTRY.unpack(entry)
        return offset, size, tags
