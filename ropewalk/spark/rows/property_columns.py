"""Cut names and values out of the property texts of many records at once, in the rules of `format.properties`.

    name 0x01 value 0x02 name 0x01 value [0x02]

The texts of a piece lie back to back. Both separators are searched in all of them in one go; usually they alternate
strictly, and then every cut is known. A value may hold 0x01, a text may lack its last 0x02 and a piece may say
nothing: the general way looks for the first 0x01 of each piece. Pieces without a name or a value are dropped, and of
two entries with one name the later one wins, which also is what a Spark map demands.

Texts of one producer mostly have the same names in the same order. That is asked first, a machine word of a name at a
time, and where it is so no name needs to be looked up: twice as fast as the general way.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.spark.rows.headers import Bools, Ints

__all__ = ["Pairs", "as_text", "cut_pairs", "is_one_of", "ranges_of", "views_of"]

Octets = npt.NDArray[np.uint8]
_INLINE_MAX: Final = 12
_ROWS_STEP: Final = 256


class Pairs:
    """The entries of n property texts, in order. Values are copied out when they are asked for."""

    def __init__(
        self,
        row_count: int,
        names: list[bytes],
        slots: pa.Array,
        value_slots: Ints,
        *,
        rows: Ints | None = None,
        codes: Ints | None = None,
    ) -> None:
        """`slots` holds the texts in slices, and entry i's value is number `value_slots[i]` of them.

        `rows` says which text each entry belongs to, ascending, and `codes` which of the names it has. Without them
        every text has all of the names, in their order.
        """
        self.row_count = row_count
        self.names = names
        self._slots = slots
        self._value_slots = value_slots
        self._rows = rows
        self._codes = codes

    @cached_property
    def values(self) -> pa.Array:
        """Return the values as binary, one for each entry."""
        return self._slots.take(pa.array(self._value_slots))

    def column(self, name: bytes) -> pa.Array:
        """Return the value of one name for every text, as binary; null where it is missing."""
        if name not in self.names:
            return pa.nulls(self.row_count, pa.binary())
        code = self.names.index(name)
        if self._rows is None:
            return self._slots.take(pa.array(self._value_slots[code :: len(self.names)]))
        slots = np.full(self.row_count, -1, np.int64)
        hits = np.flatnonzero(self._codes == code)
        slots[self._rows[hits]] = self._value_slots[hits]
        return self._slots.take(pa.array(slots, mask=slots < 0))

    def text_column(self, name: bytes) -> pa.Array:
        """Return the value of one name for every text, as strings."""
        return as_text(self.column(name))

    def offsets(self) -> pa.Array:
        """Return the offsets of each text's entries, as those of a list array."""
        if self._rows is None:
            count = len(self.names)
            return pa.array(np.arange(0, self.row_count * count + 1, count, dtype=np.int32))
        bounds = np.searchsorted(self._rows, np.arange(self.row_count + 1))
        return pa.array(bounds.astype(np.int32))

    def name_column(self) -> pa.Array:
        if self._rows is not None:
            return as_text(pa.array(self.names, pa.binary())).take(pa.array(self._codes))
        # Some more than these rows need, which is the same for nearly every piece of a log.
        rows = -(-self.row_count // _ROWS_STEP) * _ROWS_STEP
        bounds, data = _repeated(tuple(self.names), rows)
        return pa.Array.from_buffers(pa.string(), self.row_count * len(self.names), [None, bounds, data])

    def as_map(self) -> pa.Array:
        """Return one map of strings for each text."""
        kind = pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
        values = as_text(self.values)
        return pa.MapArray.from_arrays(self.offsets(), self.name_column(), values, type=kind)

    def as_headers(self) -> pa.Array:
        """Return one list of (key string, value binary) for each text."""
        fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
        entries = pa.StructArray.from_arrays([self.name_column(), self.values], fields=fields)
        return pa.ListArray.from_arrays(
            self.offsets(), entries, type=pa.list_(pa.field("element", pa.struct(fields)))
        )


@lru_cache(maxsize=4)
def _repeated(names: tuple[bytes, ...], rows: int) -> tuple[pa.Buffer, pa.Buffer]:
    """Return the names as strings, all of them for every row: where each begins, and the text."""
    parts = [name.encode() for name in as_text(pa.array(names, pa.binary())).to_pylist()]
    ends = np.cumsum([len(part) for part in parts])
    bounds = np.zeros(rows * len(parts) + 1, np.int32)
    bounds[1:] = (np.arange(rows)[:, None] * ends[-1] + ends).ravel()
    return pa.py_buffer(bounds), pa.py_buffer(b"".join(parts) * rows)


def ranges_of(data: pa.Buffer, starts: Ints, ends: Ints, order: Ints | None = None) -> pa.Array:
    """Return the bytes of ascending ranges of a buffer, in this order or another, as a binary array of its own memory.

    The ranges and the gaps between them are made one array of twice the slots, without copying; taking every other
    slot then copies what is wanted. Offsets must stay below 2 GiB.
    """
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = starts
    offsets[1 : 2 * count : 2] = ends
    offsets[-1] = offsets[-2] if count else 0
    slots = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), data])
    return slots.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64) if order is None else 2 * order))


def views_of(data: pa.Buffer, starts: Ints, ends: Ints) -> pa.Array:
    """Return ranges of a buffer as a binary view array, which copies only values of twelve bytes or fewer.

    A view: size | first four bytes | number of the buffer | where in it; or size | all of the bytes, zeros behind.
    """
    count = len(starts)
    octets = np.frombuffer(data, np.uint8)
    views = np.zeros((count, 4), np.int32)
    sizes = ends - starts
    views[:, 0] = sizes
    views[:, 3] = starts
    is_short = sizes <= _INLINE_MAX
    if is_short.all():
        short = np.arange(count)
    else:
        words = np.ndarray((len(octets) - 3,), np.int32, octets, strides=(1,))
        short = np.flatnonzero(is_short)
        views[:, 1] = words[np.minimum(starts, len(words) - 1)]
    if len(short):
        within = np.arange(_INLINE_MAX)
        places = np.minimum(starts[short, None] + within, max(len(octets) - 1, 0))
        inline = np.where(within < sizes[short, None], octets[places], 0).astype(np.uint8)
        views[short, 1:] = inline.view(np.int32)
    return pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), data])


def as_text(binary: pa.Array) -> pa.Array:
    """Convert a binary array to strings. Invalid UTF-8 is read with replacement characters, as Java does."""
    data = binary.buffers()[2]
    if not data or np.frombuffer(data, np.uint8).max() < 0x80:
        return binary.view(pa.string())  # a cast would look at each for itself, in ten times the time
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
    none = pa.array([], pa.binary())
    no_rows = np.zeros(0, np.int64)
    if data is None or bounds[-1] == bounds[0]:
        return Pairs(count, [], none, no_rows, rows=no_rows, codes=no_rows)
    octets = np.frombuffer(data, np.uint8)[: bounds[-1]]
    text = octets[bounds[0] :]
    # One look for both: finding them costs more than all that follows.
    found = np.flatnonzero(text <= 2)
    kinds = text[found]
    if len(found) % 2 == 0 and (kinds[0::2] == 1).all() and (kinds[1::2] == 2).all():
        marks, ends = found[0::2], found[1::2]
    else:
        marks, ends = found[kinds == 1], found[kinds == 2]
    if bounds[0]:
        marks += bounds[0]
        ends += bounds[0]
    row_ends = bounds[1:]
    if (bounds[1:] == bounds[:-1]).any():
        row_ends = row_ends[bounds[1:] > bounds[:-1]]
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
    whole = len(marks) == len(ends) and bool((starts < marks).all() and (marks + 1 < ends).all())
    if whole and not len(unclosed):
        names = _shared_names(octets, starts, marks, bounds)
        if names is not None:
            slots, first = _slots(data, starts, marks, ends)
            return Pairs(count, names, slots, first + 2)

    counts = np.diff(np.searchsorted(starts, bounds))
    rows = np.repeat(np.arange(count), counts)
    if not whole:
        starts, marks, ends, rows = _whole_pieces(starts, marks, ends, rows)
    if not len(starts):
        return Pairs(count, [], none, no_rows, rows=no_rows, codes=no_rows)
    slots, first = _slots(data, starts, marks, ends)
    encoded = slots.take(pa.array(first)).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    names = encoded.dictionary.to_pylist()
    taken = first + 2
    last = _last_of_each(rows, codes, len(names))
    if last is not None:
        rows, codes, taken = rows[last], codes[last], taken[last]
    return Pairs(count, names, slots, taken, rows=rows, codes=codes)


def _slots(data: pa.Buffer, starts: Ints, marks: Ints, ends: Ints) -> tuple[pa.Array, Ints]:
    """Slice the texts without copying: name, mark, value, rest up to the next name; and tell which are names."""
    offsets = np.empty(4 * len(starts) + 1, np.int32)
    offsets[0:-1:4] = starts
    offsets[1:-1:4] = marks
    offsets[2:-1:4] = marks + 1
    offsets[3:-1:4] = ends
    offsets[-1] = ends[-1]
    slots = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), data])
    return slots, np.arange(0, len(offsets) - 1, 4, dtype=np.int64)


def _shared_names(octets: Octets, starts: Ints, marks: Ints, bounds: Ints) -> list[bytes] | None:
    """Return the names that every text has, in this order and no others; None if it is not so.

    The pieces must be whole, and each text closed.
    """
    count = len(bounds) - 1
    each = len(starts) // count
    if each * count != len(starts) or not (starts[::each] == bounds[:-1]).all():
        return None
    lengths = (marks - starts).reshape(count, each)
    if not (lengths == lengths[0]).all():
        return None
    for number, length in enumerate(lengths[0].tolist()):
        at = starts[number::each]
        width = 8 if length >= 8 else 4 if length >= 4 else 2 if length >= 2 else 1
        words = np.ndarray((len(octets) - width + 1,), f"u{width}", octets, strides=(1,))
        for step in (*range(0, length - width, width), length - width):
            found = words[at + step] if step else words[at]
            if not (found == found[0]).all():
                return None
    names = [
        octets[start:mark].tobytes()
        for start, mark in zip(starts[:each].tolist(), marks[:each].tolist(), strict=True)
    ]
    return names if len(set(names)) == each else None


def _whole_pieces(starts: Ints, marks: Ints, ends: Ints, rows: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the pieces that have a name and a value, each with its first mark."""
    first = np.searchsorted(marks, starts)
    inside = first < len(marks)
    found = np.where(inside, marks[np.minimum(first, max(len(marks) - 1, 0))], 0) if len(marks) else starts
    whole = inside & (found > starts) & (found + 1 < ends)
    return starts[whole], found[whole], ends[whole], rows[whole]


def _last_of_each(rows: Ints, codes: npt.NDArray[Any], name_count: int) -> Bools | None:
    """Return a mask of the entries that no later one of the same text and name replaces; None if that is all."""
    keys = rows * max(name_count, 1) + codes
    if (keys[1:] > keys[:-1]).all():
        return None
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return None
    keep = np.ones(len(keys), np.bool_)
    keep[order[:-1][again]] = False
    return keep


def is_one_of(texts: pa.Array, wanted: frozenset[str]) -> Bools:
    """Return a mask of the strings that are among the wanted ones; a null is not."""
    hits = pc.is_in(texts, value_set=pa.array(sorted(wanted), pa.string()))
    result: Bools = hits.to_numpy(zero_copy_only=False)
    return result
