"""Batching: messages that wait a moment for others, which leave together, and when. Pure.

Messages with the same key (a topic, and a group where order matters) share a batch. A batch leaves when it is full,
by bytes or by count, or when its first message has waited for `linger_s`. A message larger than a batch leaves alone.

Two batches of an *ordered* key are never under way together: the second waits until `completed` is told of the first,
whatever its age, because two requests that fail apart could be stored the wrong way round.

Nothing is dropped: what was added comes out of `pop_ready` exactly once, in order of its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Batch(Generic[T]):
    due_at: float
    items: list[T] = field(default_factory=list)
    size: int = 0
    closed: bool = False


class Batcher(Generic[T]):
    """A collector of items of type T into batches. Times are seconds of one clock that never goes back."""

    def __init__(self, linger_s: float, size_max: int, count_max: int) -> None:
        """Make it empty. `size_max` is bytes, as counted by the caller of `add`."""
        assert linger_s >= 0 and size_max > 0 and count_max > 0
        self._linger_s = linger_s
        self._size_max = size_max
        self._count_max = count_max
        # Only the last batch of a key can be open.
        self._waiting: dict[Hashable, deque[_Batch[T]]] = {}
        self._ordered: set[Hashable] = set()
        self._under_way: set[Hashable] = set()
        self._count = 0

    def __len__(self) -> int:
        """Items that have been added and not taken."""
        return self._count

    def add(
        self, key: Hashable, item: T, size: int, now: float, *, ordered: bool = False, alone: bool = False
    ) -> bool:
        """Let an item wait. `alone` keeps it out of company but not out of its key's order.

        True if `pop_ready` or `next_due` may say something else now: whoever sleeps until then is to look again.
        """
        batches = self._waiting.setdefault(key, deque())
        alone = alone or size >= self._size_max or self._count_max == 1 or self._linger_s == 0
        last = batches[-1] if batches else None
        is_news = False
        if last is None or last.closed or alone or last.size + size > self._size_max:
            if last is not None:
                last.closed = True
            last = _Batch(now + self._linger_s)
            batches.append(last)
            is_news = True
        last.items.append(item)
        last.size += size
        self._count += 1
        last.closed = alone or last.size >= self._size_max or len(last.items) >= self._count_max
        if ordered:
            self._ordered.add(key)
        return is_news or last.closed

    def pop_ready(self, now: float) -> list[tuple[Hashable, list[T]]]:
        """Remove and return the batches that are due, with their keys."""
        leaving: list[tuple[Hashable, list[T]]] = []
        for key in list(self._waiting):
            batches = self._waiting[key]
            while batches and key not in self._under_way and (batches[0].closed or batches[0].due_at <= now):
                batch = batches.popleft()
                leaving.append((key, batch.items))
                self._count -= len(batch.items)
                if key in self._ordered:
                    self._under_way.add(key)
            if not batches:
                del self._waiting[key]
                if key not in self._under_way:
                    self._ordered.discard(key)
        return leaving

    def pop_all(self) -> list[tuple[Hashable, list[T]]]:
        """Remove and return all waiting batches, also those behind a send under way: nothing more will be sent."""
        leaving = [(key, batch.items) for key, batches in self._waiting.items() for batch in batches]
        self._waiting.clear()
        self._count = 0
        return leaving

    def completed(self, key: Hashable) -> None:
        """Record that a batch of this key is no longer under way, however it ended."""
        self._under_way.discard(key)
        if key not in self._waiting:
            self._ordered.discard(key)

    def close_batches(self) -> None:
        """Close every batch, so that all that waits now is due."""
        for batches in self._waiting.values():
            for batch in batches:
                batch.closed = True

    def next_due(self) -> float | None:
        """Return when `pop_ready` will next have something, unless `completed` or `add` comes first; None for never."""
        due = [
            -1.0 if batches[0].closed else batches[0].due_at
            for key, batches in self._waiting.items()
            if key not in self._under_way
        ]
        return min(due, default=None)
