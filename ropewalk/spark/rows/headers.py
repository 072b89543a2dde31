"""Gather the fixed fields of many records at once, and the places of their body, topic and properties.

A record's fixed part is one structured numpy type, and all records of a piece are gathered from the buffer in one
step: a view with a stride of one byte, indexed by the positions. Nearly all records have two IPv4 hosts; those with
an IPv6 host have longer fixed parts and are gathered in groups of their own.

Nothing here believes a record. `valid` says for each whether its magic, its parts and its offset fit; a position is
never read beyond the size it claims, which the caller has checked against the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from ropewalk.codes import MessageSysFlag
from ropewalk.format.record import MAGIC_V1, MAGIC_V2

__all__ = ["Buffer", "Headers", "Ints", "as_array", "checksums", "read_headers", "same_sizes"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Buffer = Any
"""Bytes of a log: bytes, a memoryview, an mmap; anything with the buffer protocol and a length."""

_V6_BITS: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


def _head(born_size: int, store_size: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("size", ">i4"),
            ("magic", ">u4"),
            ("body_crc", ">i4"),
            ("queue_id", ">i4"),
            ("flag", ">i4"),
            ("queue_offset", ">i8"),
            ("offset", ">i8"),
            ("sys_flag", ">i4"),
            ("born_time", ">i8"),
            ("born_host", f"V{born_size}"),
            ("store_time", ">i8"),
            ("store_host", f"V{store_size}"),
            ("reconsume_times", ">i4"),
            ("prepared_offset", ">i8"),
            ("body_size", ">i4"),
        ]
    )


_HEAD_V4: Final = _head(8, 8)
_HEADS: Final = {
    bits: _head(
        20 if bits & MessageSysFlag.BORN_HOST_V6 else 8, 20 if bits & MessageSysFlag.STORE_HOST_V6 else 8
    )
    for bits in (
        MessageSysFlag.BORN_HOST_V6,
        MessageSysFlag.STORE_HOST_V6,
        MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6,
    )
}
_BORN_HOST_AT: Final = 48
_COMMON: Final = tuple(name for name in _HEAD_V4.names or () if not name.endswith("_host"))


@dataclass(slots=True)
class Headers:
    """The fields that `read_headers` found at n positions. All arrays have n entries; positions are of the buffer."""

    positions: Ints
    fields: npt.NDArray[Any]
    """Structured and big-endian. The two host fields hold nothing where a record has an IPv6 host: see `hosts`."""
    body_start: Ints
    body_end: Ints
    topic_start: Ints
    topic_end: Ints
    properties_start: Ints
    properties_end: Ints
    valid: Bools
    has_wide_hosts: bool = False
    """Whether any of the records, or of those they were chosen from, has an IPv6 host."""

    def __len__(self) -> int:
        return len(self.positions)

    def of(self, name: str) -> Ints:
        """Return a fixed field in the machine's byte order."""
        result: Ints = self.fields[name].astype(np.int64)
        return result

    def where(self, mask: Bools) -> Headers:
        """Return the records that the mask names."""
        return self.rows(np.flatnonzero(mask))

    def rows(self, rows: Ints) -> Headers:
        """Return the records of these numbers, in this order."""
        # As opaque bytes, as in `_gather`, and for the same reason.
        opaque = np.dtype((np.void, self.fields.dtype.itemsize))
        return Headers(
            self.positions[rows],
            self.fields.view(opaque)[rows].view(self.fields.dtype),
            self.body_start[rows],
            self.body_end[rows],
            self.topic_start[rows],
            self.topic_end[rows],
            self.properties_start[rows],
            self.properties_end[rows],
            self.valid[rows],
            self.has_wide_hosts,
        )

    def hosts(self, buffer: Buffer, name: str) -> list[bytes]:
        """Return the born or store host of each record, 8 or 20 bytes, one by one: for where some are IPv6."""
        bits = self.of("sys_flag")
        born_sizes = np.where(bits & MessageSysFlag.BORN_HOST_V6, 20, 8)
        starts, sizes = self.positions + _BORN_HOST_AT, born_sizes
        if name == "store_host":
            starts = starts + born_sizes + 8
            sizes = np.where(bits & MessageSysFlag.STORE_HOST_V6, 20, 8)
        view = memoryview(buffer)
        return [
            bytes(view[start : start + size])
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]


def read_headers(buffer: Buffer, positions: Ints, base_offset: int | None) -> Headers:
    """Gather the fixed fields of the records at ascending positions.

    The caller has seen that each claims a size of at least 91 bytes, all of them within the buffer. With
    `base_offset`, the log offset of the buffer's first byte, a record that names another place is not valid; None is
    for records that were copied out of their log, such as the answer to a pull.
    """
    fields = _gather(buffer, _HEAD_V4, positions)
    size = fields["size"].astype(np.int64)
    bits = fields["sys_flag"].astype(np.int32) & _V6_BITS
    magic = fields["magic"].astype(np.uint32)
    is_v2 = magic == MAGIC_V2
    valid: Bools = (magic == MAGIC_V1) | is_v2
    # One number for all where it is one number, which it nearly always is.
    head_size: Ints | int = _HEAD_V4.itemsize
    topic_field_size: Ints | int = 1
    any_v2 = bool(is_v2.any())
    if any_v2:
        topic_field_size = 1 + is_v2.astype(np.int64)
    has_wide_hosts = bool(bits.any())
    if has_wide_hosts:
        head_size = np.full(len(positions), _HEAD_V4.itemsize, np.int64)
        fields = _with_wide_hosts(buffer, positions, fields, bits, size, head_size, valid)
    if base_offset is not None:
        valid &= fields["offset"].astype(np.int64) == positions + base_offset

    # A length that lies is replaced by one that stays inside the record, so that what is read from there is
    # nonsense but never out of bounds; such a record is not valid already.
    end = positions + size
    tail = topic_field_size + 2
    body_size = fields["body_size"].astype(np.int64)
    fits = (body_size >= 0) & (body_size <= size - (head_size + tail))
    if not fits.all():
        valid &= fits
        body_size = np.where(fits, body_size, 0)
    body_start = positions + head_size
    body_end = np.minimum(body_start + body_size, end - tail)
    octets = np.frombuffer(buffer, np.uint8)
    topic_size = octets[body_end].astype(np.int64)
    if any_v2:
        topic_size = np.where(is_v2, topic_size << 8 | octets[body_end + 1], topic_size)
    topic_start = body_end + topic_field_size
    topic_end = topic_start + topic_size
    # A topic's length is signed in the file: 128 and more in a V1 record is a negative one.
    fits = (topic_size <= (np.where(is_v2, 0x7FFF, 0x7F) if any_v2 else 0x7F)) & (topic_end + 2 <= end)
    if not fits.all():
        valid &= fits
        topic_end = np.where(fits, topic_end, topic_start)
    properties_start = topic_end + 2
    properties_size = octets[topic_end].astype(np.int64) << 8 | octets[topic_end + 1]
    valid &= (properties_start + properties_size == end) & (properties_size <= 0x7FFF)
    return Headers(
        positions,
        fields,
        body_start,
        body_end,
        topic_start,
        topic_end,
        properties_start,
        end if valid.all() else np.where(valid, end, properties_start),
        valid,
        has_wide_hosts,
    )


def as_array(numbers: list[int]) -> Ints:
    """Convert integers to an array, in half the time of `numpy.array`, which checks each for its type."""
    return np.fromiter(numbers, np.int64, len(numbers))


def same_sizes(buffer: Buffer, found: list[int], position: int, most: int) -> int:
    """Return how many records at and behind a position have the size of the last ones before it.

    Records of one kind of event mostly have one size. Where the last three had, the size fields that come next are
    compared in one step, in a tenth of the time that walking over them takes; elsewhere this costs a hundredth of it.
    `found` is where records begin, the last of them right before `position`; all fields must lie in the buffer.
    """
    size = position - found[-1]
    if most < 1 or len(found) < 3 or found[-1] - found[-2] != size or found[-2] - found[-3] != size:
        return 0
    others = np.ndarray((most,), ">i4", buffer, position, (size,)) != size
    return int(others.argmax()) if others.any() else most


def checksums(buffer: Buffer, starts: Ints, ends: Ints) -> Ints:
    """Return the CRC-32 of ranges of a buffer, each without its highest bit, as records keep it."""
    count = len(starts)
    ranges: Any
    if count > 1 and _is_table(starts, ends):
        # Its rows are handed out in two thirds of the time that it takes to cut each range out of the buffer.
        shape, width = (count, int(ends[0] - starts[0])), int(starts[1] - starts[0])
        ranges = np.ndarray(shape, np.uint8, buffer, int(starts[0]), (width, 1))
    else:
        ranges = map(memoryview(buffer).__getitem__, map(slice, starts.tolist(), ends.tolist()))
    sums = np.fromiter(map(crc32, ranges), np.int64, count)
    sums &= 0x7FFFFFFF
    return sums


def _is_table(starts: Ints, ends: Ints) -> bool:
    """Whether ranges have one size, and one distance from each to the next."""
    size, width = ends[0] - starts[0], starts[1] - starts[0]
    return bool(
        size > 0 < width and (ends - starts == size).all() and (starts[1:] - starts[:-1] == width).all()
    )


def _gather(buffer: Buffer, head: np.dtype[Any], positions: Ints) -> npt.NDArray[Any]:
    """Return the fixed parts at these positions: a view of every place as if a record began there, indexed."""
    # As opaque bytes: a structured type would be copied field by field, in fifteen times the time.
    opaque = np.dtype((np.void, head.itemsize))
    places: npt.NDArray[Any] = np.ndarray(
        (max(len(buffer) - head.itemsize + 1, 0),), opaque, buffer, strides=(1,)
    )
    return places[positions].view(head)


def _with_wide_hosts(
    buffer: Buffer,
    positions: Ints,
    fields: npt.NDArray[Any],
    bits: npt.NDArray[np.int32],
    size: Ints,
    head_size: Ints,
    valid: Bools,
) -> npt.NDArray[Any]:
    """Gather again those records whose fixed part is longer; changes `head_size` and `valid` in place."""
    fields = fields.copy()
    for kind, head in _HEADS.items():
        # 3 bytes: the shortest topic field, and the properties' length.
        too_small = (bits == kind) & (size < head.itemsize + 3)
        valid &= ~too_small
        rows = np.flatnonzero((bits == kind) & ~too_small)
        if len(rows):
            group = _gather(buffer, head, positions[rows])
            for name in _COMMON:
                fields[name][rows] = group[name]
            head_size[rows] = head.itemsize
    return fields
