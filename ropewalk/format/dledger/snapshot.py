"""A snapshot of a member: what another one needs to begin its log with the first entry that retention has kept.

    "RWSN" | u32 CRC32C of what follows | u32 size of the head | head in JSON | tables | the first entry

The tables are the bytes of a file `state-<index>`, which has a checksum of its own. Everything behind the first entry
is replicated as usual: so a snapshot is as large as the tables, and not as the log.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import crc32c
import msgspec

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE, decode_head

__all__ = ["MemberSnapshot", "decode_member_snapshot", "encode_member_snapshot"]

_MAGIC: Final = b"RWSN"
_PREFIX: Final = Struct(">4sII")


class _Head(msgspec.Struct, frozen=True):
    commit: msgspec.Raw
    queues: list[tuple[str, int, int]]
    state_index: int
    state_size: int


class MemberSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of a member: its head, its tables, and the first entry behind them."""

    commit: bytes
    """The note of the commit point, through the first entry: term rows and configurations are in it. JSON."""
    queues: list[tuple[str, int, int]]
    """(topic, queue id, next number) of each queue that has no message in the log any more."""
    state_index: int
    """The index of the entry through which the tables are."""
    state: bytes
    entry: bytes
    """The first entry of the log, which begins a segment."""

    @property
    def index(self) -> int:
        """The index of the first entry."""
        return decode_head(self.entry).index

    @property
    def base(self) -> int:
        """The log offset at which the first entry begins."""
        return decode_head(self.entry).pos


def encode_member_snapshot(snapshot: MemberSnapshot) -> bytes:
    """Return the bytes of a snapshot."""
    head = msgspec.json.encode(
        _Head(msgspec.Raw(snapshot.commit), snapshot.queues, snapshot.state_index, len(snapshot.state))
    )
    rest = b"".join((len(head).to_bytes(4, "big"), head, snapshot.state, snapshot.entry))
    return _MAGIC + crc32c.crc32c(rest).to_bytes(4, "big") + rest


def decode_member_snapshot(data: bytes) -> MemberSnapshot:
    """Return the snapshot of these bytes. Raises `CorruptRecord` for bytes that are none."""
    if len(data) < _PREFIX.size:
        raise CorruptRecord(f"a snapshot of {len(data)} bytes")
    magic, checksum, size = _PREFIX.unpack_from(data)
    if magic != _MAGIC or checksum != crc32c.crc32c(memoryview(data)[8:]):
        raise CorruptRecord("a snapshot of a member that is not what was sent")
    at = _PREFIX.size + size
    try:
        head = msgspec.json.decode(data[_PREFIX.size : at], type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise CorruptRecord(f"a snapshot whose head says nothing: {exc}") from exc
    state, entry = data[at : at + head.state_size], data[at + head.state_size :]
    found = decode_head(entry[:HEAD_SIZE])
    if found.size != len(entry) or any(number < 0 for _topic, _id, number in head.queues):
        raise CorruptRecord(f"a snapshot whose first entry has {len(entry)} bytes and not {found.size}")
    return MemberSnapshot(bytes(head.commit), head.queues, head.state_index, state, entry)
