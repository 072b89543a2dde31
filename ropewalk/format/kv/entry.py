"""A command as an entry of a region's log: the head of DLedger's entry, and a record around the command.

    entry head, 48 bytes | record: 88 bytes of fixed fields | command | topic | no properties

A configuration of the region's members, which opens a term or changes them, stands in the same shape in another topic.
Records are written by `ropewalk.format.record`. Every entry that is applied is read here, in the one shape in which
members write it.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, Protocol

from zlib_ng.zlib_ng import crc32

from ropewalk.format.dledger.entry import HEAD_SIZE, MAGIC
from ropewalk.format.names import KV_TOPIC, TERM_TOPIC
from ropewalk.format.record import HEAD_V4, MAGIC_V1, encode_record, record_size


class Bytes(Protocol):
    """Bytes, or a map of a file."""

    def __getitem__(self, part: slice, /) -> bytes: ...


_ENTRY: Final = Struct(">iiqqq8xIi")
_RECORD: Final = Struct(f">iII8xqq{HEAD_V4.size - 40}xi")
_NO_HOST: Final = bytes(8)
_TOPIC: Final = KV_TOPIC.encode()
_TERM_TOPIC: Final = TERM_TOPIC.encode()
_END: Final = bytes((len(_TOPIC),)) + _TOPIC + bytes(2)
_TERM_END: Final = bytes((len(_TERM_TOPIC),)) + _TERM_TOPIC + bytes(2)


def entry_size(command: bytes, *, configures: bool = False) -> int:
    """Return the size of the entry of a command, or of a configuration."""
    return HEAD_SIZE + record_size(len(_TERM_TOPIC if configures else _TOPIC), len(command), 0)


def encode_body(index: int, pos: int, command: bytes, *, configures: bool = False) -> bytes:
    """Return the body of the entry `index`, which stands at `pos`: of a command, or of a configuration."""
    topic = _TERM_TOPIC if configures else _TOPIC
    return encode_record(topic, 0, 0, index, pos + HEAD_SIZE, 0, 0, _NO_HOST, 0, _NO_HOST, 0, 0, command, b"")


def read_entry(data: Bytes, position: int, pos: int) -> tuple[int, int, int, bytes] | None:
    """Return index, term, size and command of the entry at `position`, which is `pos` in the log. HOT.

    None where no such entry is, or its command fails its CRC. No length is trusted before it is checked.
    """
    head = data[position : position + HEAD_SIZE]
    if len(head) < HEAD_SIZE:
        return None
    magic, size, index, term, place, crc, body_size = _ENTRY.unpack(head)
    if magic != MAGIC or place != pos or size != HEAD_SIZE + body_size or body_size < HEAD_V4.size:
        return None
    body = data[position + HEAD_SIZE : position + size]
    if len(body) != body_size or (crc and crc32(body) != crc):
        return None
    if not body.endswith(end := _END) and not body.endswith(end := _TERM_END):
        return None
    whole, record_magic, command_crc, number, offset, command_size = _RECORD.unpack_from(body)
    command = body[HEAD_V4.size : -len(end)]
    if (
        (whole, record_magic, number, offset) != (body_size, MAGIC_V1, index, pos + HEAD_SIZE)
        or command_size != len(command)
        or crc32(command) & 0x7FFF_FFFF != command_crc
    ):
        return None
    return index, term, size, command
