"""The timer wheel: for each slot of time the first and the last unit of the timers that are due then.

    <root>/timerwheel    1,209,600 slots of 32 bytes: two weeks of seconds; slot = (time / precision) % 1,209,600

The wheel is memory, of which only pages that ever had a timer exist; `take_dirty` returns the pages that changed, which
a helper thread writes. A slot is empty unless the time in it is the time asked for. Ropewalk clears a slot when it is
delivered: a clock that is set back may then use the slot again, and nothing that stands in the timer log is delivered
twice. To RocketMQ a cleared slot is an empty one.
"""

from __future__ import annotations

import re
from pathlib import Path

from store.io.disk import PAGE_SIZE, Disk, memory_map
from store.log.commitlog import StoreDamaged
from store.timer.layout import NONE, SLOT, SLOT_SIZE, WHEEL_SIZE, WHEEL_SLOTS, Slot

EMPTY = Slot(0, NONE, NONE, 0)
_CLEARED = bytes(SLOT_SIZE)
_CLEARED_PAGE = bytes(PAGE_SIZE)
_PAGE_SLOTS = PAGE_SIZE // SLOT_SIZE
_used = re.compile(rb"[^\0]").search


class TimerWheel:
    """The slots of all pending timers. Times here are in units of the precision: `time_ms // precision_ms`."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._map = memory_map(WHEEL_SIZE)
        self._dirty: set[int] = set()
        self._pages = bytearray(WHEEL_SIZE // PAGE_SIZE)
        """1 for a page with a slot in use; the others are not even read, because that would give them memory."""

    # -- open ----------------------------------------------------------------------------------------

    def load(self, start: int) -> bool:
        """Read the slots from time `start` on, and drop those before it; whether there is a file. Blocks.

        Raises `StoreDamaged` for a file of another size.
        """
        if not self._disk.exists(self.path) or not (size := self._disk.size_of(self.path)):
            return False
        if size != WHEEL_SIZE:
            raise StoreDamaged(
                f"{self.path} has {size} bytes, a timer wheel has {WHEEL_SIZE}: remove it, and the next start builds "
                "it again from the timer log"
            )
        file = self._disk.open_paged(self.path)
        for begin, stop in file.data_ranges(0):
            begin -= begin % PAGE_SIZE
            for at in range(begin, min(stop + -stop % PAGE_SIZE, WHEEL_SIZE), PAGE_SIZE):
                page = file.read_at(at, min(PAGE_SIZE, WHEEL_SIZE - at))
                if page.count(0) != len(page):
                    self._load_page(at, page, start)
        return True

    def _load_page(self, at: int, page: bytes, start: int) -> None:
        stale = False
        for position, fields in zip(range(at, WHEEL_SIZE, SLOT_SIZE), SLOT.iter_unpack(page), strict=False):
            time = fields[0]
            if start <= time < start + WHEEL_SLOTS and time % WHEEL_SLOTS == position // SLOT_SIZE:
                self.put(Slot(*fields))
            elif any(fields):
                stale = True
        if not stale:
            self._dirty.discard(at // PAGE_SIZE)
        else:
            self._dirty.add(at // PAGE_SIZE)

    # -- slots ---------------------------------------------------------------------------------------

    def get(self, time: int) -> Slot:
        """Return the slot of a time; an empty one has no units. HOT."""
        at = time % WHEEL_SLOTS * SLOT_SIZE
        if not self._pages[at // PAGE_SIZE]:
            return EMPTY
        slot = Slot(*SLOT.unpack_from(self._map, at))
        return slot if slot.time == time else EMPTY

    def put(self, slot: Slot) -> None:
        """Store a slot by its time. HOT."""
        position = slot.time % WHEEL_SLOTS * SLOT_SIZE
        SLOT.pack_into(self._map, position, *slot)
        self._pages[position // PAGE_SIZE] = 1
        self._dirty.add(position // PAGE_SIZE)

    def add(self, time: int, position: int, *, weight: int) -> int:
        """Note the newest unit of a time's slot, and count it; return the position of the one before, or NONE. HOT."""
        at = time % WHEEL_SLOTS * SLOT_SIZE
        last: int
        known, first, last, num, magic = SLOT.unpack_from(self._map, at)
        if known != time:
            first, last, num, magic = position, NONE, 0, 0
        SLOT.pack_into(self._map, at, time, first, position, num + weight, magic)
        self._pages[at // PAGE_SIZE] = 1
        self._dirty.add(at // PAGE_SIZE)
        return last

    def clear(self, time: int) -> None:
        """Empty the slot of a time, if it is the one that is stored."""
        position = time % WHEEL_SLOTS * SLOT_SIZE
        page = position // PAGE_SIZE
        if not self._pages[page] or SLOT.unpack_from(self._map, position)[0] != time:
            return
        self._map[position : position + SLOT_SIZE] = _CLEARED
        self._dirty.add(page)
        if self._map[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] == _CLEARED_PAGE:
            self._pages[page] = 0

    def clear_all(self) -> None:
        """Empty every slot."""
        self._dirty.update(page for page, used in enumerate(self._pages) if used)
        self._pages = bytearray(len(self._pages))
        self._map = memory_map(WHEEL_SIZE)

    def next_used(self, time: int, until: int) -> int:
        """Return the first time in [time, until) whose slot is not cleared, `until` if there is none. HOT."""
        until = min(until, time + WHEEL_SLOTS)
        while time < until:
            index = time % WHEEL_SLOTS
            page = index // _PAGE_SLOTS
            used = self._pages.find(1, page)
            if used < 0:
                time += WHEEL_SLOTS - index  # the rest of the wheel is empty: it goes on at the front
                continue
            if used > page:
                time += used * _PAGE_SLOTS - index
                continue
            stop = (page + 1) * _PAGE_SLOTS
            found = _used(self._map, index * SLOT_SIZE, stop * SLOT_SIZE)
            if found is not None:
                return min(time + found.start() // SLOT_SIZE - index, until)
            time += stop - index
        return until

    def count(self, time: int, until: int) -> int:
        """Count the timers that wait in the slots from a time on until another. Two microseconds a slot in use."""
        total = 0
        while (time := self.next_used(time, until)) < until:
            total += max(self.get(time).num, 0)
            time += 1
        return total

    # -- write back ----------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Tell whether `take_dirty` has anything to return."""
        return bool(self._dirty)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Return (position, bytes) of the pages that changed since the last time, runs joined."""
        pages, self._dirty = sorted(self._dirty), set()
        runs: list[tuple[int, bytes]] = []
        begin = 0
        for index in range(1, len(pages) + 1):
            if index == len(pages) or pages[index] != pages[index - 1] + 1:
                start, stop = pages[begin] * PAGE_SIZE, (pages[index - 1] + 1) * PAGE_SIZE
                runs.append((start, self._map[start : min(stop, WHEEL_SIZE)]))
                begin = index
        return runs

    def restore_dirty(self, runs: list[tuple[int, bytes]]) -> None:
        """Count pages as changed again that could not be written."""
        for start, data in runs:
            self._dirty.update(range(start // PAGE_SIZE, (start + len(data) + PAGE_SIZE - 1) // PAGE_SIZE))

    def write(self, runs: list[tuple[int, bytes]]) -> None:
        """Write pages and sync the file. Blocks: for a helper thread. Raises OSError."""
        if not runs:
            return
        file = self._disk.create_paged(self.path, WHEEL_SIZE)
        for start, data in runs:
            file.write_at(start, data)
        file.sync()
