"""`OrderedWrites`: small files written on the storage thread, in order. A write that finds no room is done again.

A full disk is no reason for a member to end: a ballot that is not on disk is a vote that is not given, a cut that is
not named is not begun. So what finds no room waits, and so does all that was asked for behind it; `retry` tries again
from there on. Any other error is raised on the loop, as everywhere in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from store.io.workers import Worker
from store.write_back import unless_full


class OrderedWrites:
    """Small files written in order on the storage thread. The loop owns it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._writes: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        """The writes that are not on disk yet, each with its callback; those under way first."""
        self._under_way = 0
        self._is_halted = False
        """Whether a write found no room: set on the thread, and until `retry` nothing is done there."""
        self.lack_room = False
        """Whether the write that was tried last found no room on the disk."""

    def submit(self, write: Callable[[], None], done: Callable[[], None]) -> None:
        """Have the thread `write`, and call `done` on the loop once that is done."""
        self._writes.append((write, done))
        if not self._is_halted:
            self._begin(write)

    def retry(self) -> None:
        """Begin the writes that found no room again."""
        if self._is_halted and not self._under_way:
            self._is_halted = False
            for write, _done in tuple(self._writes):
                self._begin(write)

    def _begin(self, write: Callable[[], None]) -> None:
        self._under_way += 1
        self._worker.submit(partial(self._try, write), self._tried)

    def _try(self, write: Callable[[], None]) -> bool:
        """On the thread."""
        if not self._is_halted:
            self._is_halted = not unless_full(write)
        return not self._is_halted

    def _tried(self, is_written: bool) -> None:
        self._under_way -= 1
        self.lack_room = not is_written
        if is_written:
            _write, done = self._writes.popleft()
            done()
