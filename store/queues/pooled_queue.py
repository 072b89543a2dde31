"""A queue as the pool of waiting entries sees it.

`store.queues.entry_pool` keeps entries of very many queues; the queues themselves, their files and their readers are
none of its business.
"""

from __future__ import annotations

from typing import Any, Protocol


class PooledQueue(Protocol):
    """A queue that may have entries in a pool, at its `slot`."""

    topic: str
    slot: int
    pool: Any
    """The pool that the queue has a slot in, or None; set by the pool."""

    @property
    def held(self) -> Any:
        """The long polls that wait for this queue to become longer, or None."""

    @property
    def tail_next(self) -> int:
        """The number behind the last entry that the queue itself has."""

    @property
    def written(self) -> int:
        """The number up to which its entries are in files."""

    def extend_from_pool(self, entries: bytes, through: int) -> None:
        """Take over the entries before number `through`, which consumers may read."""

    def continue_at(self, number: int, last: bytes) -> None:
        """Go on behind `number`, all entries below which are in files; `last` is the last of them."""

    def mark_written(self, through: int, keep: int) -> None:
        """Count the entries below `through` as written, and keep at least `keep` of them in memory."""
