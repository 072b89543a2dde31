"""Scan the records in a stretch of a log: where each begins, its fields, and which bytes are no records.

    |a                       b|            a piece: it owns the records that *begin* in it
    ..|r1|r2|xxxxxxx|r4|r5 ...|..r5|       xxxx is lost: no record begins where one should

A walk goes from size to size in Python and gathers all fields with numpy afterwards: 2 to 3 million records a second.
What it cannot walk over is a *lost* stretch, up to the next bytes that are one whole record for their very place. If
none follows in the piece the walk ends open: only who sees all pieces knows whether that is the end of the log.

Nothing here trusts a length before it was checked, and nothing reads files.
"""

from __future__ import annotations

import enum
import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ropewalk.errors import CorruptRecord
from ropewalk.format.find import find_bytes
from ropewalk.format.properties import P
from ropewalk.format.record import (
    CRC_PROPERTY_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    crc_property,
    decode_record,
)
from ropewalk.spark.rows.headers import as_array, checksums, same_sizes

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

HEADER_SIZE: Final = 88
"""Bytes up to and with the body's length, for hosts of eight bytes; every IPv6 host adds twelve."""
OVERREAD: Final = 1 << 16
"""How much is read behind a piece at first, for the record that begins in it and ends behind it."""

_HEADER: Final = np.dtype(
    [
        ("size", ">i4"), ("magic", ">u4"), ("crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"), ("born_host", "V8"),
        ("stored", ">i8"), ("store_host", "V8"), ("reconsumed", ">i4"), ("prepared", ">i8"), ("body_size", ">i4"),
    ]
)  # fmt: skip
_SIZE: Final = Struct(">i")
_STEP: Final = Struct(">iI20xq")
_FRAME: Final = Struct(">iI")
_STEPS: Final = 64
"""Records that are walked over one by one before it is asked whether all have one size."""
_AT_ONCE: Final = 4096
"""Records whose fields are gathered together: of more, what one step touched has left the cache before the next."""
_MAGICS: Final = (_FRAME.pack(0, MAGIC_V1)[4:], _FRAME.pack(0, MAGIC_V2)[4:])


class Stop(enum.Enum):
    """The reason why a walk ended."""

    PIECE = "the next record belongs to the next piece"
    FILLER = "the segment has no more records"
    ZEROS = "nothing but zeros follows in this piece"
    NO_RECORD = "bytes that are no record, and none follows in this piece"


class Window:
    """Bytes of one segment from log offset `start` on; more of them are read when a record needs them."""

    def __init__(
        self, start: int, segment_end: int, size: int, read: Callable[[int, int], bytes | mmap.mmap]
    ) -> None:
        """`read(offset, size)` gives bytes of the segment by log offset, fewer where its file is too short."""
        self.start = start
        self.segment_end = segment_end
        self.data = read(start, size)
        self.is_short = len(self.data) < size
        """The file ends inside this window."""
        self._read = read

    def need(self, end: int) -> bool:
        """Read the bytes before position `end`, if the segment's file has them."""
        if end <= len(self.data):
            return True
        if self.is_short or self.start + end > self.segment_end:
            return False
        wanted = min(end + OVERREAD, self.segment_end - self.start)
        if isinstance(self.data, bytes):
            self.data += self._read(self.start + len(self.data), wanted - len(self.data))[:]
        else:
            self.data = self._read(self.start, wanted)
        self.is_short = len(self.data) < wanted
        return end <= len(self.data)


@dataclass(slots=True)
class Records:
    """Fields of records in log order, one array each. Positions are in the window, `offset` in the log."""

    position: Ints
    size: Ints
    offset: Ints
    queue_id: Ints
    queue_offset: Ints
    sys_flag: Ints
    stored: Ints
    body_at: Ints
    body_size: Ints
    topic_at: Ints
    topic_size: Ints
    properties_at: Ints
    properties_size: Ints
    crc: Ints
    crc_ok: Bools

    def __len__(self) -> int:
        return len(self.position)

    def select(self, chosen: Any) -> Records:
        """Return the same fields of fewer records."""
        return Records(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @classmethod
    def join(cls, parts: list[Records]) -> Records:
        if len(parts) == 1:
            return parts[0]
        empty = cls.none()
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(p, n) for p in (parts or [empty])]) for n in names))

    @classmethod
    def none(cls) -> Records:
        columns: dict[str, Any] = {name: np.zeros(0, np.int64) for name in cls.__dataclass_fields__}
        return cls(**(columns | {"crc_ok": np.zeros(0, np.bool_)}))


@dataclass(frozen=True, slots=True)
class Lost:
    """A stretch between two records that is none; log offsets."""

    offset: int
    end: int


@dataclass(slots=True)
class Scan:
    """The records and the gaps of one piece of a log."""

    first: int
    """Log offset where the walk began: of a record, or of what should be one; -1 if none begins in this piece."""
    end: int
    """Where it ended: behind the last record or lost stretch. If it ended open, where the open stretch begins."""
    stop: Stop
    records: Records
    count: int
    """Of the records, also where they were not kept."""
    lost: list[Lost] = field(default_factory=list)


def scan(
    window: Window, stop: int, *, start: int | None = None, check_crc: bool = True, keep: bool = True
) -> Scan:
    """Walk over the records that begin before log offset `stop`.

    With `start` one begins there; without, the first whole record behind the window's own start is searched. Unless
    they are to be kept, records are looked at all the same, and counted.
    """
    last = stop - window.start
    if start is None:
        found = find_record(window, 0, last)
        if found < 0:
            blank = not window.data[:last].strip(b"\0")
            return Scan(-1, window.start, Stop.ZEROS if blank else Stop.NO_RECORD, Records.none(), 0)
        position = found
    else:
        position = start - window.start
    first = window.start + position
    parts: list[Records] = []
    count = 0
    lost: list[Lost] = []
    while True:
        positions, position = _chain(window, position, last, _AT_ONCE)
        records, good = _gather(window, positions)
        if good < len(positions):
            # Its own lengths contradict each other: it is damaged, and its size may be what is wrong.
            position = int(positions[good])
        count += good
        if keep:
            parts.append(records)
        if good == _AT_ONCE:
            continue
        reason = Stop.PIECE if position >= last else _sight(window, position)
        if reason is not Stop.NO_RECORD and not (reason is Stop.ZEROS and _more(window, position, last)):
            break
        following = find_next(window, position, last)
        if following < 0:
            break
        lost.append(Lost(window.start + position, window.start + following))
        position = following
    everything = Records.join(parts)
    if check_crc:
        everything.crc_ok = _crc_ok(window, everything)
    return Scan(first, window.start + position, reason, everything, count, lost)


def _chain(window: Window, position: int, last: int, most: int) -> tuple[Ints, int]:
    """Step from record to record, over `most` of them; only magic, size and place are looked at.

    HOT: the steps go by size alone, and magics and places are looked at when all are made. What is no record leads
    somewhere, and is cut off together with what it led to.
    """
    found: list[int] = []
    before: list[Ints] = []
    append, unpack = found.append, _SIZE.unpack_from
    data, end = window.data, window.segment_end - window.start
    room = len(data)
    while position < last and most > len(found):
        if position + RECORD_SIZE_MIN > room:
            if not window.need(position + RECORD_SIZE_MIN):
                break
            data, room = window.data, len(window.data)
        (size,) = unpack(data, position)
        following = position + size
        if size < RECORD_SIZE_MIN or following > end:
            break
        if following > room:
            if not window.need(following):
                break
            data, room = window.data, len(window.data)
        append(position)
        position = following
        if len(found) >= _STEPS:
            # Whole ones, that begin in this piece.
            whole = min((min(room, end) - position) // size, -((position - last) // size))
            equal = same_sizes(data, found, position, min(whole, most - len(found)))
            before += (as_array(found), np.arange(position, position + equal * size, size))
            most -= len(found) + equal
            found.clear()
            position += equal * size
    at = np.concatenate((*before, as_array(found)))
    if not len(at):
        return at, position
    magics = np.ndarray((len(data) - 7,), ">u4", data, 4, (1,))[at]
    places = np.ndarray((len(data) - 35,), ">i8", data, 28, (1,))[at]
    right = ((magics == MAGIC_V1) | (magics == MAGIC_V2)) & (places == at + window.start)
    if right.all():
        return at, position
    first = int(np.argmin(right))
    return at[:first], int(at[first])


def _sight(window: Window, position: int) -> Stop:
    """Judge the bytes that stand where no record does."""
    if not window.need(position + 8):
        # A filler needs eight bytes; in fewer nothing can stand.
        rest = window.data[position:]
        left = window.segment_end - window.start - position
        return Stop.FILLER if left < 8 else Stop.NO_RECORD if rest.strip(b"\0") else Stop.ZEROS
    size, magic = _FRAME.unpack_from(window.data, position)
    if magic == MAGIC_BLANK:
        return Stop.FILLER
    return Stop.ZEROS if size == magic == 0 else Stop.NO_RECORD


def _more(window: Window, position: int, last: int) -> bool:
    return bool(window.data[position:last].strip(b"\0"))


def _gather(window: Window, at: Ints) -> tuple[Records, int]:
    """All fields of the records there; how many of them come before the first whose lengths do not add up."""
    if not len(at):
        return Records.none(), 0
    data = window.data
    raw = np.frombuffer(data, np.uint8)
    # As opaque bytes: a structured type would be copied field by field, in fifteen times the time.
    places = np.ndarray((len(data) - HEADER_SIZE + 1,), np.dtype((np.void, HEADER_SIZE)), data, strides=(1,))
    head = places[at].view(_HEADER)
    size = head["size"].astype(np.int64)
    sys_flag = head["sys_flag"].astype(np.int64)
    stored, body_size = head["stored"].astype(np.int64), head["body_size"].astype(np.int64)
    born_wide, store_wide = sys_flag >> 4 & 1, sys_flag >> 5 & 1
    body_at = at + HEADER_SIZE + 12 * (born_wide + store_wide)
    end = at + size
    wide = np.flatnonzero(sys_flag & 0x30)
    if len(wide):
        stored[wide] = _big_endian(raw, at[wide] + 56 + 12 * born_wide[wide], 8)
        body_size[wide] = _big_endian(raw, np.minimum(body_at[wide], end[wide]) - 4, 4)
    is_v2 = (head["magic"] == MAGIC_V2).astype(np.int64)
    topic_field = body_at + body_size
    ok = (body_size >= 0) & (topic_field + 3 + is_v2 <= end)
    safe = np.where(ok, topic_field, at)
    narrow = raw[safe].astype(np.int8).astype(np.int64)
    topic_size = np.where(is_v2 == 1, _big_endian(raw, safe, 2), narrow) if is_v2.any() else narrow
    topic_at = safe + 1 + is_v2
    properties_at = topic_at + topic_size + 2
    ok &= (topic_size > 0) & (properties_at <= end)
    properties_size = _big_endian(raw, np.where(ok, properties_at, at + 2) - 2, 2)
    ok &= (properties_size >= 0) & (properties_at + properties_size == end)
    ok &= (head["queue_id"] >= 0) & (head["queue_offset"] >= 0)
    good = len(at) if ok.all() else int(np.argmin(ok))
    records = Records(
        at, size, head["offset"].astype(np.int64), head["queue_id"].astype(np.int64),
        head["queue_offset"].astype(np.int64), sys_flag, stored, body_at, body_size, topic_at, topic_size,
        properties_at, properties_size, head["crc"].astype(np.int64), np.ones(len(at), np.bool_),
    )  # fmt: skip
    return (records if good == len(at) else records.select(slice(good))), good


def _big_endian(raw: Bytes, at: Ints, width: int) -> Ints:
    """Signed big-endian integers of 2, 4 or 8 bytes, wherever they stand."""
    columns = raw[at[:, None] + np.arange(width)]
    return np.ascontiguousarray(columns).view(f">i{width}")[:, 0].astype(np.int64)


def _crc_ok(window: Window, records: Records) -> Bools:
    """Whether each body matches its checksum."""
    data = memoryview(window.data)
    sums = checksums(data, records.body_at, records.body_at + records.body_size)
    # Of an empty body nothing is said: writers differ.
    ok: Bools = (sums == records.crc) | (records.body_size == 0)
    for index in _with_own_checksum(window, records).tolist():
        start, end = int(records.position[index]), int(records.position[index] + records.size[index])
        checked = end - CRC_PROPERTY_SIZE
        ok[index] &= data[checked:end] == crc_property(data[start:checked])
    return ok


def _with_own_checksum(window: Window, records: Records) -> Ints:
    """Return the records that carry a checksum of the whole of themselves, as some brokers write."""
    mark = np.frombuffer(f"{P.CRC32}\x01".encode(), np.uint8)
    chosen = np.flatnonzero(records.properties_size >= CRC_PROPERTY_SIZE)
    at = (records.position + records.size)[chosen] - CRC_PROPERTY_SIZE
    raw = np.frombuffer(window.data, np.uint8)
    for index, octet in enumerate(mark.tolist()):
        same = raw[at + index] == octet
        chosen, at = chosen[same], at[same]
    return chosen


# -- over damage -------------------------------------------------------------------------------------


def find_next(window: Window, position: int, last: int) -> int:
    """Return where the log goes on behind bytes at `position` that are no record; -1 if not in this piece.

    What the damaged record says about its own length is tried first: a body can hold bytes that are a valid record
    for their place, and then only the length leads past them.
    """
    for candidate in _claimed_ends(window, position):
        if candidate > position and _goes_on(window, candidate):
            return candidate
    return find_record(window, position + 1, last)


def _claimed_ends(window: Window, position: int) -> list[int]:
    if not window.need(position + RECORD_SIZE_MIN):
        return []
    data = window.data
    size, magic, offset = _STEP.unpack_from(data, position)
    marks = (magic in (MAGIC_V1, MAGIC_V2)) + (offset == window.start + position) + (size >= RECORD_SIZE_MIN)
    if marks < 2:
        return []
    ends = [position + size] if size >= RECORD_SIZE_MIN else []
    sys_flag = int.from_bytes(data[position + 36 : position + 40], "big")
    at = position + 84 + 12 * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    body_size = int.from_bytes(data[at : at + 4], "big", signed=True)
    if body_size < 0 or not window.need(at + 4 + body_size + 2):
        return ends
    at += 4 + body_size
    data = window.data
    for field_size in (1, 2):
        topic_end = at + field_size + int.from_bytes(data[at : at + field_size], "big")
        if window.need(topic_end + 2):
            ends.append(topic_end + 2 + int.from_bytes(window.data[topic_end : topic_end + 2], "big"))
    return ends


def _goes_on(window: Window, position: int) -> bool:
    """Whether a whole record, a filler or the blank end of the log stands here."""
    left = window.segment_end - window.start - position
    if left < 8:
        return left == 0
    if not window.need(position + 8):
        return False
    frame = window.data[position : position + 8]
    if frame == bytes(8):
        # The end of the log, behind a last record that was written to its end; the tail of a torn one is zeros.
        return window.data[position - 1] != 0
    return bool(_FRAME.unpack(frame)[1] == MAGIC_BLANK) or is_record(window, position)


def is_record(window: Window, position: int) -> bool:
    """Return whether one whole record stands here that names this place."""
    if not window.need(position + RECORD_SIZE_MIN):
        return False
    size, magic, offset = _STEP.unpack_from(window.data, position)
    if magic not in (MAGIC_V1, MAGIC_V2) or offset != window.start + position or size < RECORD_SIZE_MIN:
        return False
    if not window.need(position + size):
        return False
    try:
        decode_record(memoryview(window.data), position)
    except CorruptRecord:
        return False
    return True


def find_record(window: Window, position: int, last: int) -> int:
    """Return the first whole record that begins in [position, last); -1 if none does."""
    found = -1
    for magic in _MAGICS:
        # A search without an end would read everything for the rare one of both.
        limit = (last if found < 0 else found) + 7
        at = find_bytes(window.data, magic, position + 4, limit)
        while at >= 0:
            if is_record(window, at - 4):
                found = at - 4
                break
            at = find_bytes(window.data, magic, at + 1, limit)
    return found
