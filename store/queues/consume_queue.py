"""A consume queue, the index of one queue: entry `n` tells where in the commit log the queue's message `n` stands.

    files of 20-byte entries (phy offset, record size, tag code), named by the *byte* offset of their first entry
    |  min_offset ...  written | readable | next_offset
                tail_base ^~~~~ in memory ~~~~~~~~~~~^

An entry is born in memory when its record is appended. It becomes readable when the store says that no producer's
answer about it is open any more, and goes to its file some time later: never before, so that a queue file never
points at a record that a crash could still take back. Entries of a queue that is one of very many are born in a pool
(`entry_pool`), and drained from there before anything is said about the queue.

Invariants: `tail_base <= written <= tail_readable <= tail_next`, and `tail` holds the entries [tail_base, tail_next).
The methods here are the only writers of these fields, and assert what they change. The loop owns everything here; a
helper thread gets copies to write.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE
from store.io.disk import Disk, PagedFile
from store.log.commitlog import NAME_DIGITS, StoreDamaged, segment_name
from store.queues.entry_pool import EntryPool
from store.queues.file_layout import Waiting, Write, writes_into

PRE_BLANK_SIZE = 0x7FFFFFFF
TAIL_KEEP = 1024
"""Entries kept in memory behind `written`, so that consumers at the tail never read the file."""
_TRIM = 4  # times as many more have to be there before any is let go
_HEAD_SIZE = (
    200 * ENTRY_SIZE
)  # of a file, read at once: most queues are short, and there can be tens of thousands

_pack_entry = ENTRY.pack


class ConsumeQueue:
    """The index of one queue of a topic: entries in files, and the newest ones in memory."""

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
        "tail_next",
        "tail_readable",
        "tail",
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
        self.tail_next = self.tail_readable = 0
        """As `next_offset` and `readable`, and `tail` what is in memory, but for entries that wait in `pool`.

        To be read by an appender, which has drained the pool before; changed by no one but this class."""
        self.tail = bytearray()
        self._loaded_end = 0
        self.dirty = False
        self.epoch = 0
        """Another one since entries were taken back: what was read of the queue before is worth nothing."""
        self.pool: EntryPool[ConsumeQueue] | None = None
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
        """The number of the next message."""
        self.drain_pool()
        return self.tail_next

    @property
    def readable(self) -> int:
        """The number up to which consumers may see messages."""
        self.drain_pool()
        return self.tail_readable

    @property
    def held(self) -> Any:
        """The long polls that wait for this queue to become longer; set and read by the broker."""
        return self._held

    @held.setter
    def held(self, waiting: Any) -> None:
        self._held = waiting
        if self.pool is not None:
            self.pool.update_held(self)

    def drain_pool(self) -> None:
        """Take over the entries that wait in the pool. HOT."""
        if self.pool is not None:
            self.pool.drain(self)

    def _leave_pool(self) -> None:
        if self.pool is not None:
            self.pool.leave(self)

    # -- append --------------------------------------------------------------------------------------

    def add(self, offset: int, size: int, tags_code: int) -> None:
        """Index the record just appended at `offset`; it is not readable yet. HOT."""
        self._leave_pool()
        self.tail += _pack_entry(offset, size, tags_code)
        self.tail_next += 1

    def add_run(self, entries: bytes) -> None:
        """Index records just appended, the next ones of this queue, by their packed entries. HOT."""
        self._leave_pool()
        self.tail += entries
        self.tail_next += len(entries) // ENTRY_SIZE

    def append_entry(self, entry: bytes) -> int:
        """Index the record just appended, in a queue whose pool is drained; return its number. HOT."""
        number = self.tail_next
        self.tail += entry
        self.tail_next = number + 1
        return number

    def append_entries(self, entries: bytes, count: int) -> int:
        """Index a run of `count` records as `append_entry` does one; return the number of the first. HOT."""
        assert len(entries) == count * ENTRY_SIZE, (len(entries), count)
        number = self.tail_next
        self.tail += entries
        self.tail_next = number + count
        return number

    def extend_from_pool(self, entries: bytes, through: int) -> None:
        """Take over the entries before number `through`, which waited in the pool and are readable. HOT."""
        assert self.tail_next + len(entries) // ENTRY_SIZE == through, (self.tail_next, len(entries), through)
        self.tail += entries
        self.tail_next = self.tail_readable = through

    def make_readable(self, through: int | None = None) -> None:
        """Let consumers see the entries before number `through`, or all that are here. HOT."""
        if through is None:
            self.tail_readable = self.tail_next
        elif through > self.tail_readable:
            assert through <= self.tail_next, (self.topic, self.queue_id, through, self.tail_next)
            self.tail_readable = through

    def take_back(self) -> None:
        """Forget the entries that are not readable: their records were not committed, and may be replaced."""
        self._leave_pool()
        if self.tail_next > self.tail_readable:
            del self.tail[(self.tail_readable - self.tail_base) * ENTRY_SIZE :]
            self.tail_next = self.tail_readable
            self.epoch += 1
        self._assert_invariants()

    def start_at(self, queue_offset: int) -> None:
        """Begin an empty queue at a later number: its earlier messages are gone with their log segments."""
        assert self.next_offset == 0, (self.topic, self.queue_id, self.next_offset)
        self._leave_pool()
        self.min_offset = self.tail_next = self.tail_readable = queue_offset
        # RocketMQ fills the head of such a file with entries that are no messages.
        first = queue_offset - queue_offset % (self.file_size // ENTRY_SIZE)
        self.tail_base = self.written = self.first = first
        self.tail += _pack_entry(0, PRE_BLANK_SIZE, 0) * (queue_offset - first)
        self._assert_invariants()

    # -- read ----------------------------------------------------------------------------------------

    @property
    def max_physical(self) -> int:
        """The log offset behind the record of the last entry; 0 if the queue never had one."""
        self.drain_pool()
        if not self.tail:
            return self._loaded_end
        offset, size, _tags = ENTRY.unpack_from(self.tail, len(self.tail) - ENTRY_SIZE)
        return offset + size if size != PRE_BLANK_SIZE else 0

    def entries_nowait(self, queue_offset: int, count: int) -> bytes | None:
        """Return up to `count` raw entries from `queue_offset`, within one file; None if that needs the disk."""
        if queue_offset >= self.tail_base:
            start = (queue_offset - self.tail_base) * ENTRY_SIZE
            return bytes(self.tail[start : start + count * ENTRY_SIZE])
        file, position, size = self.place(queue_offset, count)
        return file.read_at_nowait(position, size)

    def place(self, queue_offset: int, count: int) -> tuple[PagedFile, int, int]:
        """Locate up to `count` written entries: file, position, bytes; cut at the end of the file."""
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
        """Return the readable entries as they are now, for a reader thread to use while the loop goes on."""
        count = self.readable - self.tail_base
        return FrozenQueue(self, bytes(self.tail[: count * ENTRY_SIZE]))

    # -- write back ----------------------------------------------------------------------------------

    def pending_writes(self) -> list[Write]:
        """Return the writes that a helper thread has to make now, as (path, file size, position, bytes) in order."""
        self.drain_pool()
        self._assert_invariants()
        start, end = ((at - self.tail_base) * ENTRY_SIZE for at in (self.written, self.tail_readable))
        entries = bytes(self.tail[start:end])
        return list(writes_into(self._directory, self.file_size, self.written, entries))

    def pooled_writes(self, through: int, newest: int) -> Waiting:
        """Return the same of entries that the pool has, through a number, whose last one stands at a place there."""
        return self._directory, self.file_size, self.written, through, newest

    def unwritten_from(self, offset: int) -> int:
        """Return how many of the entries of `pending_writes` are of records at or behind a log offset."""
        if self.written == self.tail_readable or self._offset_in_memory(self.tail_readable - 1) < offset:
            return 0
        late = bisect_left(range(self.written, self.tail_readable), offset, key=self._offset_in_memory)
        return self.tail_readable - self.written - late

    def _offset_in_memory(self, number: int) -> int:
        offset: int
        offset, _size, _tags = ENTRY.unpack_from(self.tail, (number - self.tail_base) * ENTRY_SIZE)
        return offset

    def mark_written(self, through: int, keep: int = TAIL_KEEP) -> None:
        """Count entries below `through` as written; the tail may let go of those more than `keep` behind."""
        self.written = max(self.written, through)
        assert self.written <= self.tail_readable, (self.topic, self.queue_id, through, self.tail_readable)
        keep_from = self.written - keep
        if keep_from - self.tail_base > _TRIM * keep:
            del self.tail[: (keep_from - self.tail_base) * ENTRY_SIZE]
            self.tail_base = keep_from

    def continue_at(self, number: int, last: bytes) -> None:
        """Go on behind `number`: all entries below it are in files, and never were here; keep the `last` of them."""
        self.tail_next = self.tail_readable = self.written = number
        self.tail[:] = last
        self.tail_base = number - 1
        self._assert_invariants()

    def _assert_invariants(self) -> None:
        assert self.tail_base <= self.written <= self.tail_readable <= self.tail_next, (
            f"queue {self.queue_id} of topic {self.topic}: {self.tail_base} <= {self.written} <= "
            f"{self.tail_readable} <= {self.tail_next}"
        )
        assert len(self.tail) == (self.tail_next - self.tail_base) * ENTRY_SIZE, (
            len(self.tail),
            self.tail_next,
        )

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
        self.tail_next = self.tail_readable = self.written = self.tail_base = self.loaded_next = end
        self.tail.clear()
        self._assert_invariants()
        self._loaded_end = 0
        if end > self.min_offset:
            offset, size, _tags = self.read(end - 1)
            self._loaded_end = offset + size

    def read(self, queue_offset: int) -> tuple[int, int, int]:
        """Return one entry as (offset, size, tag code). Blocks; for recovery and look-ups off the loop."""
        if queue_offset >= self.tail_base:
            offset, size, tags = ENTRY.unpack_from(self.tail, (queue_offset - self.tail_base) * ENTRY_SIZE)
        else:
            file, position, _size = self.place(queue_offset, 1)
            offset, size, tags = ENTRY.unpack(file.read_at(position, ENTRY_SIZE))
        return offset, size, tags

    def truncate(self, end: int) -> None:
        """Believe the entries below `end` only; those behind it are gone from memory, not yet from the files."""
        if end == self.next_offset and not self.tail:
            return  # as it is after `load`
        self.first = min(self.first, end)
        self.min_offset = min(self.min_offset, end)
        self._set_end(end)

    def detach(self) -> ConsumeQueue:
        """Be empty; return all entries as a queue of their own, over the same files.

        For a topic that was deleted and created again where its records come from.
        """
        self._leave_pool()
        before = ConsumeQueue(self.topic, self.queue_id, self._directory, self.file_size, self._disk)
        before._copy(self)
        self._read_last = None
        self.tail = bytearray()
        self.forget()
        return before

    def attach(self, before: ConsumeQueue) -> None:
        """Take back entries that were detached, in the place of those that came since; leave `before` empty."""
        self._leave_pool()
        self.epoch += 1
        self._copy(before)
        before.tail = bytearray()
        before.forget()
        self._assert_invariants()

    def _copy(self, other: ConsumeQueue) -> None:
        self.first, self.min_offset, self.loaded_next = other.first, other.min_offset, other.loaded_next
        self.written, self.tail_base = other.written, other.tail_base
        self.tail_next, self.tail_readable, self.tail = other.tail_next, other.tail_readable, other.tail
        self._loaded_end, self._read_last = other._loaded_end, other._read_last

    def restart_at(self, queue_offset: int) -> None:
        """Give up all entries, and begin again at another number."""
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
        """Return the first entry of a record at or behind log offset `offset`, or of none at all. Blocks."""
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
        """Return the first entry below `written` whose record is at or behind log offset `offset`, or `written`.

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
        """Begin at `number`, or further: the log begins at `offset` now, and no entry below `number` has a record."""
        self.min_offset = max(self.min_offset, min(number, self.next_offset))
        if self.min_offset >= self.tail_base:
            self.min_offset = self.find(offset)  # in memory

    def files_before(self, offset: int) -> int:
        """Return how many files would go if the log began at `offset`. Blocks; a helper thread may ask."""
        count, written = self.file_size // ENTRY_SIZE, self.written
        last = max(written - 1, 0)
        if last // count * count <= self.first:
            return 0  # it has one file, which stays
        number = self.find_written(offset, written)
        return max(0, min(number, last) // count * count - self.first) // count

    def give_up_files(self) -> tuple[int, list[Path]]:
        """Return the files that hold nothing from `min_offset` on, and how many entries; the caller removes them.

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
    """A snapshot of a queue's readable entries, for look-ups on a reader thread. Its reads block."""

    def __init__(self, queue: ConsumeQueue, tail: bytes) -> None:
        self.min_offset = queue.min_offset
        self.readable = queue.readable
        self._queue = queue
        self._tail_base = queue.tail_base
        self._tail = tail

    def read(self, queue_offset: int) -> tuple[int, int, int]:
        """Return one entry as (offset, size, tag code)."""
        if queue_offset >= self._tail_base:
            offset, size, tags = ENTRY.unpack_from(self._tail, (queue_offset - self._tail_base) * ENTRY_SIZE)
        else:
            file, position, _size = self._queue.place(queue_offset, 1)
            entry = file.read_at(position, ENTRY_SIZE)
            if len(entry) < ENTRY_SIZE:  # it was cut while it was open
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(file.path))
            offset, size, tags = ENTRY.unpack(entry)
        return offset, size, tags


def append_each(queues: Iterable[ConsumeQueue], entries: Iterable[bytes]) -> list[int]:
    """Index one record after the other, each in its queue, as `append_entry` does; return their numbers. HOT."""
    numbers = []
    for queue, entry in zip(queues, entries, strict=True):
        number = queue.tail_next
        numbers.append(number)
        queue.tail += entry
        queue.tail_next = number + 1
    return numbers
