"""Fetch blocks of the log that are in no cache by reader threads, once for all reads that wait for them.

A consumer that drains a backlog from the disk asks for one block after the other. The first read of a block that a
thread has brought has the next ones fetched too, so that disk and loop work at the same time; not while the loop has
no time for cold reads (`store.read.cold_read_budget`), and not for many consumers at once, who would push each
other's blocks out of the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from store.io.workers import Worker
from store.log.commitlog import CommitLog
from store.read.cold_read_budget import ColdReadBudget
from store.read.log_blocks import BLOCK_SIZE, BLOCKS_MAX, BlockPlace, LogBlock, LogBlocks, read_block
from store.read.pinned import read_pinned

_WAITING_MAX: Final = 256
"""Reads that wait for one block."""
_AHEAD_BLOCKS: Final = 4
"""Blocks that are fetched ahead of a consumer."""
_AHEAD_FETCHES_MAX: Final = 4
"""With more blocks on their way none is fetched ahead."""


class BlockFetcher:
    """The blocks of one log that are in memory, and those on their way. The loop owns it."""

    def __init__(
        self, log: CommitLog, budget: ColdReadBudget, free_worker: Callable[[], Worker | None]
    ) -> None:
        """`free_worker` returns a reader thread that takes one more job, or None if all have enough to do."""
        self.blocks = LogBlocks(log)
        """The log behind the window, as far as it was read a moment ago."""
        self._budget = budget
        self._free_worker = free_worker
        self._fetches: dict[int, list[Callable[[], None]]] = {}
        """Blocks on their way, by log offset, and how each read that waits for one goes on."""
        self._unread: set[int] = set()
        """The log offsets of blocks that a thread brought and no read has used since."""

    @property
    def is_idle(self) -> bool:
        """Tell whether no block is on its way."""
        return not self._fetches

    def find_missing(self, records: list[tuple[int, int, int]], window_from: int) -> BlockPlace | None:
        """Return the first block of these records that is not in memory, and can be read by a thread."""
        for offset, size, _number in records:
            at = offset
            while at < offset + size and offset < window_from:
                place = self.blocks.place_of(at)
                if place is None:
                    return None
                end = place.offset + place.size
                if (
                    self.blocks.find(at, 1, self._budget.now) is None
                    and self.blocks.find_resident(at, min(end, offset + size)) is None
                ):
                    return place if self.blocks.can_be_read(place) else None
                at = end
        return None

    def fetch(self, place: BlockPlace, go_on: Callable[[], None], refuse: Callable[[], None]) -> None:
        """Have a reader thread deliver a block, then call `go_on`; reads that wait for one block share it."""
        waiting = self._fetches.get(place.offset)
        if waiting is not None:
            if len(waiting) >= _WAITING_MAX:
                refuse()
            else:
                waiting.append(go_on)
            return
        worker = self._free_worker()
        if worker is None:
            refuse()
            return
        self._fetches[place.offset] = [go_on]
        self._submit(worker, place)

    def find(self, offset: int, size: int, window_from: int) -> LogBlock | None:
        """Return the kept block with these bytes. HOT."""
        block = self.blocks.find(offset, size, self._budget.now)
        if block is not None and block.base in self._unread:
            self._unread.remove(block.base)
            self._fetch_ahead(block.end, window_from)
        return block

    def _fetch_ahead(self, offset: int, window_from: int) -> None:
        """Have the blocks behind a log offset brought while the one before it is read, if the loop has time."""
        end = min(offset + _AHEAD_BLOCKS * BLOCK_SIZE, window_from)
        while offset < end and self._budget.has_room and len(self._fetches) < _AHEAD_FETCHES_MAX:
            place, worker = self.blocks.place_of(offset), self._free_worker()
            if place is None or worker is None:
                return
            if not (place.offset in self.blocks or place.offset in self._fetches) and self.blocks.can_be_read(
                place
            ):
                self._fetches[place.offset] = []
                self._submit(worker, place)
            offset = place.offset + place.size

    def _submit(self, worker: Worker, place: BlockPlace) -> None:
        checks = place.segment.checks

        def arrived(data: bytes | None) -> None:
            if self.blocks.keep(place, data, checks) is not None:
                if len(self._unread) >= 2 * BLOCKS_MAX:
                    self._unread.clear()
                self._unread.add(place.offset)
            for go_on in self._fetches.pop(place.offset):
                go_on()

        # A block of which a part cannot be read, or is damaged, is read record by record: others may be whole.
        read_pinned(
            worker, lambda: read_block(place, checks), arrived, lambda: arrived(None), [place.segment]
        )
