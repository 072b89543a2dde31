"""The files of a consume queue: which bytes of its entries go to which place of which file.

    files of `size` bytes, named by the byte offset of their first entry    |  0 .. size  |  size .. 2 size  | ...

Entry `n` stands at byte `20 n` of this row. What is to be written crosses between threads, and to a helper process, as
plain tuples: there are tens of thousands of them in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ropewalk.format.queue_entry import ENTRY_SIZE
from store.log.commitlog import segment_name

Write: TypeAlias = tuple[str, int, int, bytes]
"""Path, size of the whole file, position, bytes."""
Waiting: TypeAlias = tuple[str, int, int, int, int]
"""Directory of a queue, size of its files, number of the first entry and behind the last, where that one stands."""


def writes_into(directory: str, size: int, first: int, entries: bytes) -> Iterator[Write]:
    """Yield the writes that put these entries of a queue, from number `first` on, into its files of `size` bytes."""
    logical, end = first * ENTRY_SIZE, first * ENTRY_SIZE + len(entries)
    start = 0
    while logical < end:
        position = logical % size
        count = min(end - logical, size - position)
        path = f"{directory}/{segment_name(logical - position)}"
        yield path, size, position, entries[start : start + count]
        logical += count
        start += count
