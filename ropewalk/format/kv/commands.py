"""Commands in a region's log, and the outcomes that its clients are told."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct as Layout
from struct import error as LayoutError
from typing import Final

from msgspec import Struct

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.configuration import decode_configuration
from ropewalk.format.kv.items import (
    Operation,
    Result,
    decode_operations,
    decode_results,
    decode_values,
    encode_items,
    encode_values,
)

KNOWS_NO_LEADER: Final = "it knows no leader"
"""Part of the remark of a member that can serve nothing, as most others do not run or do not hear it."""

_COMMAND: Final = Layout(">Bq")
_WRITE: Final = Layout(">qqqq")
_PAIR: Final = Layout(">qq")


class Status(IntEnum):
    """The outcome of a request to a region."""

    OK = 0
    WRONG_EPOCH = 1
    """The region is not cut as the client believes; nothing was done."""
    SESSION_EXPIRED = 2
    """The session is not known any more: whether an earlier attempt was applied, nobody can tell."""
    STALE = 3
    """The write was answered before, or is too far ahead of the lowest unanswered one; nothing was done."""
    FULL = 4
    """`kvMemoryMax` would be passed; nothing was done."""
    TOO_LARGE = 5
    """The results would be larger than an answer may be; nothing was done."""
    FENCED = 6
    """The lock of a `Guard` was granted to another one since; nothing was done."""
    TOO_MANY = 7
    """There are as many regions as a store may have; nothing was done."""


_STATUS: Final = {int(each): each for each in Status}


class Outcome(Struct, frozen=True):
    """The end of a write."""

    status: Status
    results: tuple[Result, ...] = ()


# -- commands ----------------------------------------------------------------------------------------------


class OpenTerm(Struct, frozen=True):
    """The first entry of a term."""

    stamp_ms: int
    leader: str
    """The address at which clients reach the leader."""


class OpenSession(Struct, frozen=True):
    """A client's wish for a session."""

    stamp_ms: int
    origin: str = ""
    """The address that its client counts under among all that open sessions."""


class Write(Struct, frozen=True):
    """Operations of a session, which are applied together and once."""

    stamp_ms: int
    session: int
    seq: int
    lowest: int
    """The lowest seq that the client has no answer to."""
    epoch: int
    operations: tuple[Operation, ...]


class FoundRegions(Struct, frozen=True):
    """The cut of a store that was never cut, at keys in order: the regions get the ids 1, 2 and so on."""

    stamp_ms: int
    keys: tuple[bytes, ...]


class ReserveRegion(Struct, frozen=True):
    """A wish for the id of the region that is cut from `parent` while that has this epoch: always the same one."""

    stamp_ms: int
    parent: int
    epoch: int


class SplitRegion(Struct, frozen=True):
    """The cut of a region at `key`: what is there, and behind it, is the region `id` from this entry on."""

    stamp_ms: int
    epoch: int
    id: int
    key: bytes


Command = OpenTerm | OpenSession | Write | FoundRegions | ReserveRegion | SplitRegion
_OPEN, _SESSION, _WRITES, _FOUND, _RESERVE, _SPLIT = range(1, 7)
_CONFIGURATION: Final = b"{"


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the body of an answer to a write."""
    return bytes((outcome.status,)) + encode_items(outcome.results)


def decode_outcome(data: bytes | memoryview) -> Outcome:
    """Return the outcome in an answer. Raises `CorruptRecord`."""
    return Outcome(_status(data), decode_results(data, 1))


def encode_found(status: Status, values: Sequence[bytes | None] = ()) -> bytes:
    """Return the body of an answer to a read."""
    return bytes((status,)) + encode_values(values)


def decode_found(data: bytes | memoryview) -> tuple[Status, list[bytes | None]]:
    """Return status and values in an answer to a read. Raises `CorruptRecord`."""
    return _status(data), decode_values(data, 1)


def _status(data: bytes | memoryview) -> Status:
    found = _STATUS.get(data[0]) if data else None
    if found is None:
        raise CorruptRecord("an answer of the key-value store begins with its status")
    return found


def encode_command(command: Command) -> bytes:
    """Return a command as it stands in a region's log."""
    stamp = command.stamp_ms
    match command:
        case OpenTerm():
            return _COMMAND.pack(_OPEN, stamp) + command.leader.encode()
        case OpenSession():
            return _COMMAND.pack(_SESSION, stamp) + command.origin.encode()
        case Write():
            return encode_write(command, encode_items(command.operations))
        case FoundRegions():
            return _COMMAND.pack(_FOUND, stamp) + encode_values(command.keys)
        case ReserveRegion():
            return _COMMAND.pack(_RESERVE, stamp) + _PAIR.pack(command.parent, command.epoch)
        case SplitRegion():
            return _COMMAND.pack(_SPLIT, stamp) + _PAIR.pack(command.epoch, command.id) + command.key


def encode_write(write: Write, operations: bytes) -> bytes:
    """Return a write as it stands in a region's log; `operations` are its own as bytes, as they came in a request."""
    return (
        _COMMAND.pack(_WRITES, write.stamp_ms)
        + _WRITE.pack(write.session, write.seq, write.lowest, write.epoch)
        + operations
    )


def decode_command(data: bytes | memoryview) -> Command:
    """Return the command in a log's record. Raises `CorruptRecord`.

    A record with a configuration of the region, which opens a term or changes the members, is in JSON.
    """
    if data[:1] == _CONFIGURATION:
        found = decode_configuration(bytes(data))
        return OpenTerm(found.stamp_ms, found.serves)
    try:
        kind, stamp = _COMMAND.unpack_from(data)
        if kind == _WRITES:  # HOT
            session, seq, lowest, epoch = _WRITE.unpack_from(data, _COMMAND.size)
            operations = decode_operations(data, _COMMAND.size + _WRITE.size)
            return Write(stamp, session, seq, lowest, epoch, operations)
        rest = memoryview(data)[_COMMAND.size :]
        if kind == _OPEN:
            return OpenTerm(stamp, bytes(rest).decode())
        if kind == _SESSION:
            return OpenSession(stamp, bytes(rest).decode())
        if kind == _FOUND:
            return FoundRegions(stamp, tuple(key for key in decode_values(rest) if key is not None))
        if kind == _RESERVE:
            parent, epoch = _PAIR.unpack(rest)
            return ReserveRegion(stamp, parent, epoch)
        if kind == _SPLIT:
            epoch, id = _PAIR.unpack_from(rest)
            return SplitRegion(stamp, epoch, id, bytes(rest[_PAIR.size :]))
    except (LayoutError, UnicodeDecodeError) as exc:
        raise CorruptRecord(f"a command of the key-value store is cut off or damaged: {exc}") from exc
    raise CorruptRecord(f"no command of the key-value store is of kind {kind}")
