"""Queue entries one behind the other as their records stand in the log, each of which leads to one before it.

What is added together is of records of one size side by side, so that where the first stands, their size and their tag
code are all that has to be kept of them: a *run*. Of an entry itself there is only its link: the place where another
one of its queue stands before it. In runs of 32 that is 9 bytes for each and not 28, of memory that grows by megabytes
a second: a new page can cost whoever grows it more than a message.

    starts                     0             32            57 ...     the index of each run's first entry
    offsets, sizes, tag codes  . . .         . . .                    of its record, and of all
    links                      -1 7 4 -1 ...                          one for each entry

A process that looks at nearly all of them unfolds them first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import chain, pairwise, repeat
from struct import Struct
from typing import Final

from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE

_COUNT: Final = Struct("=Q")
_LINKED: Final = Struct(">qiqq")
_CUT: Final = Struct(f">{ENTRY_SIZE}sq").unpack_from
_pack_entry = ENTRY.pack
_pack_linked = _LINKED.pack


class LinkedEntries:
    """An append-only column store of queue entries, grouped in runs of equal record size."""

    __slots__ = ("_links", "_offsets", "_sizes", "_starts", "_tag_codes", "_unfolded")

    def __init__(self) -> None:
        self._starts, self._sizes = array("Q"), array("Q")
        self._offsets, self._tag_codes, self._links = array("q"), array("q"), array("q")
        self._unfolded = b""
        """All entries with their links, if there will be no more."""

    def add(self, offset: int, size: int, tag_code: int, links: list[int]) -> None:
        """Append the entries of records of this size, the first of which stands at this log offset. HOT."""
        self._starts.append(len(self._links))
        self._offsets.append(offset)
        self._sizes.append(size)
        self._tag_codes.append(tag_code)
        self._links.fromlist(links)

    def entry(self, index: int) -> tuple[bytes, int]:
        """Return one entry as it stands in a queue file, and its link. HOT."""
        if self._unfolded:
            entry, link = _CUT(self._unfolded, index * _LINKED.size)
            return entry, link
        run = bisect_right(self._starts, index) - 1
        size = self._sizes[run]
        offset = self._offsets[run] + (index - self._starts[run]) * size
        return _pack_entry(offset, size, self._tag_codes[run]), self._links[index]

    def copy(self) -> LinkedEntries:
        """Return a copy of the entries as they are now."""
        copied = LinkedEntries()
        copied._starts, copied._offsets, copied._sizes = self._starts[:], self._offsets[:], self._sizes[:]
        copied._tag_codes, copied._links = self._tag_codes[:], self._links[:]
        return copied

    def packed(self) -> bytes:
        """Pack the entries for another process on this machine: how many runs, their columns, and the links."""
        columns = (self._starts, self._offsets, self._sizes, self._tag_codes, self._links)
        return _COUNT.pack(len(self._starts)) + b"".join(column.tobytes() for column in columns)


def unfolded(packed: bytes) -> LinkedEntries:
    """Unpack packed entries, for reading only."""
    (count,) = _COUNT.unpack_from(packed)
    columns, at = [array(code) for code in "QqQqq"], _COUNT.size
    for column in columns[:-1]:
        end = at + count * column.itemsize
        column.frombytes(packed[at:end])
        at = end
    columns[-1].frombytes(packed[at:])
    starts, offsets, sizes, tag_codes, links = columns
    runs = zip(pairwise((*starts, len(links))), offsets, sizes, tag_codes, strict=True)
    entries = LinkedEntries()
    entries._unfolded = b"".join(
        chain.from_iterable(
            map(
                _pack_linked,
                range(offset, offset + (end - start) * size, size),
                repeat(size),
                repeat(tag_code),
                links[start:end],
            )
            for (start, end), offset, size, tag_code in runs
        )
    )
    return entries
