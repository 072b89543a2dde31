"""Property texts of many records at once: names and values cut out with numpy, in the rules of `format.properties`.

    name 0x01 value 0x02 name 0x01 value [0x02]

The texts of a piece lie back to back. Both separators are searched in all of them in one go; usually they alternate
strictly, and then every cut is known. A value may hold 0x01, a text may lack its last 0x02 and a piece may say
nothing: the general way looks for the first 0x01 of each piece. Pieces without a name or a value are dropped, and of
two entries with one name the later one wins, which also is what a Spark map demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.spark.headers import Bools, Ints

__all__ = ["Pairs", "as_text", "cut_pairs", "ranges_of"]


@dataclass(slots=True)
class Pairs:
    """The entries of n property texts, in order."""

    row_count: int
    rows: Ints
    """Which text an entry belongs to; ascending."""
    name_codes: npt.NDArray[np.int32]
    """Of each entry's name in `names`."""
    names: list[bytes]
    values: pa.Array
    """Binary, one for each entry."""

    def column(self, name: bytes) -> pa.Array:
        """The value of one name for every text, as binary; null where it is missing."""
        entries = np.full(self.row_count, -1, np.int64)
        if name in self.names:
            hits = np.flatnonzero(self.name_codes == self.names.index(name))
            entries[self.rows[hits]] = hits
        return self.values.take(pa.array(entries, mask=entries < 0))

    def offsets(self) -> pa.Array:
        """Where each text's entries begin, as the offsets of a list array."""
        bounds = np.searchsorted(self.rows, np.arange(self.row_count + 1))
        return pa.array(bounds.astype(np.int32))

    def name_column(self) -> pa.Array:
        names = pa.array(self.names, pa.binary())
        return as_text(names).take(pa.array(self.name_codes))

    def as_map(self) -> pa.Array:
        """One map of strings for each text."""
        kind = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
        return pa.MapArray.from_arrays(self.offsets(), self.name_column(), as_text(self.values), type=kind)

    def as_headers(self) -> pa.Array:
        """One list of (key string, value binary) for each text."""
        fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
        entries = pa.StructArray.from_arrays([self.name_column(), self.values], fields=fields)
        return pa.ListArray.from_arrays(
            self.offsets(), entries, type=pa.list_(pa.field("element", pa.struct(fields)))
        )


def ranges_of(data: pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    """The bytes of ascending ranges of a buffer, as a binary array of its own memory.

    The ranges and the gaps between them are made one array of twice the slots, without copying; taking every other
    slot then copies what is wanted. Offsets must stay below 2 GiB.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = starts
    offsets[1 : 2 * count : 2] = ends
    offsets[-1] = offsets[-2] if count else 0
    slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), data])
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def as_text(binary: pa.Array) -> pa.Array:
    """A binary array as strings. What is not UTF-8 is read with replacement characters, as Java does."""
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if item is None else item.decode("utf-8", "replace") for item in binary.to_pylist()]
        return pa.array(texts, pa.string())


def cut_pairs(texts: pa.Array) -> Pairs:
    """Cut property texts, given as a binary array without nulls, into their entries."""
    _, offsets_buffer, data = texts.buffers()
    count = len(texts)
    bounds = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + count + 1].astype(np.int64)
    if data is None or bounds[-1] == bounds[0]:
        empty = np.zeros(0, np.int64)
        return Pairs(count, empty, empty.astype(np.int32), [], pa.array([], pa.binary()))
    octets = np.frombuffer(data, np.uint8)[: bounds[-1]]
    text = octets[bounds[0] :]
    marks = np.flatnonzero(text == 1) + bounds[0]
    ends = np.flatnonzero(text == 2) + bounds[0]
    row_ends = bounds[1:][bounds[1:] > bounds[:-1]]
    unclosed = row_ends[octets[row_ends - 1] != 2]
    if len(unclosed):
        # The end of a text closes its last piece. A piece after it begins there and not one further on.
        ends = np.sort(np.concatenate((ends, unclosed)))
    starts = np.empty_like(ends)
    starts[0] = bounds[0]
    starts[1:] = ends[:-1] + 1
    if len(unclosed):
        after = np.searchsorted(ends, unclosed) + 1
        after = after[after < len(starts)]
        starts[after] = ends[after - 1]
    counts = np.diff(np.searchsorted(starts, bounds))
    rows = np.repeat(np.arange(count), counts)
    starts, marks, ends, rows = _whole_pieces(starts, marks, ends, rows)
    if not len(starts):
        return Pairs(count, rows, rows.astype(np.int32), [], pa.array([], pa.binary()))

    offsets = np.empty(4 * len(starts) + 1, np.int32)
    offsets[0:-1:4] = starts
    offsets[1:-1:4] = marks
    offsets[2:-1:4] = marks + 1
    offsets[3:-1:4] = ends
    offsets[-1] = ends[-1]
    slots = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    every = np.arange(0, len(offsets) - 1, 4, dtype=np.int64)
    encoded = slots.take(pa.array(every)).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    taken = every + 2
    last = _last_of_each(rows, codes, len(names))
    if last is not None:
        rows, codes, taken = rows[last], codes[last], taken[last]
    return Pairs(count, rows, codes, names, slots.take(pa.array(taken)))


def _whole_pieces(starts: Ints, marks: Ints, ends: Ints, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """The pieces that have a name and a value, each with its first mark."""
    if not (len(marks) == len(ends) and (starts < marks).all() and (marks + 1 < ends).all()):
        first = np.searchsorted(marks, starts)
        inside = first < len(marks)
        found = (
            np.where(inside, marks[np.minimum(first, max(len(marks) - 1, 0))], 0) if len(marks) else starts
        )
        whole = inside & (found > starts) & (found + 1 < ends)
        starts, marks, ends, rows = starts[whole], found[whole], ends[whole], rows[whole]
    return starts, marks, ends, rows


def _last_of_each(rows: Ints, codes: npt.NDArray[Any], name_count: int) -> Bools | None:
    """A mask of the entries that no later one of the same text and name replaces; None if that is all of them."""
    keys = rows * max(name_count, 1) + codes
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return None
    keep = np.ones(len(keys), np.bool_)
    keep[order[:-1][again]] = False
    return keep


def is_one_of(texts: pa.Array, wanted: frozenset[str]) -> Bools:
    """Which of the strings are among the wanted ones; a null is not."""
    hits = pc.is_in(texts, value_set=pa.array(sorted(wanted), pa.string()))
    result: Bools = hits.to_numpy(zero_copy_only=False)
    return result
