"""Search for bytes in a mapped file, on every Python.

Before 3.11.5 `mmap.find` looks at the byte behind the part that it searches. Where that is the end of the map, and no
other memory of the process happens to lie behind it, the process dies (cpython issue 105235). Debian 12 has 3.11.2.
"""

from __future__ import annotations

from typing import Protocol


class Bytes(Protocol):
    """`bytes`, or a map."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...

    def find(self, wanted: bytes, start: int, end: int, /) -> int: ...


def find_bytes(data: Bytes, wanted: bytes, start: int, end: int) -> int:
    """Return the first position of `wanted` in `data[start:end]`, or -1, as `find` does; `start` is not below 0."""
    last = len(data) - 1
    found = data.find(wanted, start, min(end, last))
    if found < 0 and end > last:
        at = len(data) - len(wanted)  # the one place that was left out
        if 0 <= start <= at and data[at:] == wanted:
            return at
    return found
