"""The stored record: the same bytes in the commit log, in a pull's answer and in the replication stream.

     0 i32 size, all of it        28 i64 offset in the log           72 i32 reconsume times
     4 u32 magic, V1 or V2        36 i32 sys flag                    76 i64 prepared transaction offset
     8 i32 CRC of the body        40 i64 born time, ms               84 i32 n, body
    12 i32 queue id               48 born host                       .. u8 or i16 n, topic
    16 i32 flag                   56 i64 store time, ms              .. i16 n, properties
    20 i64 queue offset           64 store host

A host is an IP of 4 or 16 bytes and the port as i32; two bits of the sys flag say which, and every IPv6 host
moves what follows by 12. A V1 record has one byte for its topic's length, read as signed, so up to 127 bytes;
a longer topic makes the record V2 with two. Every checksum of this format is CRC-32 with the top bit cleared.

A file of the log ends in a *blank*: i32 bytes left in the file, u32 magic. What lies behind those eight bytes
is undefined.

`decode_record` raises `CorruptRecord` for everything that is not one whole record; it never reads outside the
size the record claims, and all the parts must fill that size exactly.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from struct import Struct
from struct import error as struct_error
from typing import Final

import msgspec

from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord, LocalProtocolError
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, parse_properties, split_keys

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # an install of the client alone: the same sums, more slowly
    from zlib import crc32

__all__ = [
    "CRC_PROPERTY_SIZE",
    "HEAD_V4",
    "HOST_V6_BITS",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "RECORD_SIZE_MIN",
    "TOPIC_SIZE_MAX_V1",
    "CorruptRecord",
    "Record",
    "body_crc",
    "cut_message",
    "crc32",
    "crc_property",
    "decode_host",
    "decode_record",
    "decode_records",
    "encode_blank",
    "encode_host",
    "encode_record",
    "is_blank",
    "message_id",
    "parse_message_id",
    "read_frame",
    "record_size",
    "WrittenRecords",
]

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194

RECORD_SIZE_MIN: Final = 91
"""Bytes of a record with IPv4 hosts whose body, topic and properties are empty."""

TOPIC_SIZE_MAX_V1: Final = 127

CRC_PROPERTY_SIZE: Final = 20
"""Bytes of the whole-record checksum, which is the last property where a broker writes it."""

HOST_V6_BITS: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_FRAME: Final = Struct(">iI")
_BLANK: Final = _FRAME
_U32: Final = Struct(">I")


def _head(born_host_size: int, store_host_size: int) -> Struct:
    return Struct(f">iIIiiqqiq{born_host_size}sq{store_host_size}siqi")


_HEADS: Final = {(born, store): _head(born, store) for born in (8, 20) for store in (8, 20)}
HEAD_V4: Final = _HEADS[8, 8]
"""The fields in front of the body of a record with IPv4 hosts."""
# By the two bits of the sys flag.
_HEAD_BY_BITS: Final = {
    (MessageSysFlag.BORN_HOST_V6 if born == 20 else 0)
    | (MessageSysFlag.STORE_HOST_V6 if store == 20 else 0): head
    for (born, store), head in _HEADS.items()
}
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(TOPIC_SIZE_MAX_V1 + 1))


class Record(msgspec.Struct):
    """A decoded record. Times are ms since 1970, hosts (ip, port); the body is as stored."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: dict[str, str]
    raw_properties: bytes
    body_crc: int
    magic: int

    @property
    def msg_id(self) -> str:
        """Return the offset message id: the host that stored the record first, and its log offset there."""
        return message_id(encode_host(*self.store_host), self.offset)

    @property
    def uniq_key(self) -> str | None:
        """Return the id that the sending client made, which consumers show as message id."""
        return self.properties.get(P.UNIQ_KEY)

    @property
    def tags(self) -> str | None:
        return self.properties.get(P.TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties.get(P.KEYS, ""))

    def __repr__(self) -> str:
        parts = [f"{self.topic}/{self.queue_id}@{self.queue_offset} at {self.offset}"]
        if self.tags:
            parts.append(f"tags={self.tags!r}")
        if self.keys:
            parts.append(f"keys={self.keys!r}")
        return f"<Record {' '.join(parts)} {shown_body(self.body)}>"


SHOWN_BYTES_MAX = 48


def shown_body(body: bytes) -> str:
    """Return the beginning of a body, for people, and the size of one that is longer."""
    if len(body) <= SHOWN_BYTES_MAX:
        return repr(bytes(body))
    return f"{bytes(body[:SHOWN_BYTES_MAX])!r}… ({len(body)} bytes)"


# Writing


def body_crc(body: bytes | memoryview) -> int:
    """Compute the checksum stored with a body: 31 bits; 0 for an empty body."""
    return crc32(body) & 0x7FFFFFFF


def record_size(
    topic_size: int, body_size: int, properties_size: int, born_host_size: int = 8, store_host_size: int = 8
) -> int:
    """Return the number of bytes that `encode_record` will return for parts of these sizes."""
    topic_field_size = 2 if topic_size > TOPIC_SIZE_MAX_V1 else 1
    hosts_size = born_host_size + store_host_size
    return 74 + hosts_size + topic_field_size + topic_size + body_size + properties_size


_OFFSETS_AT: Final = 20
_STORE_TIME_AT: Final = 48
"""Where the store time of a record stands, but for the host before it."""


def encode_record(
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    properties: bytes,
) -> bytes:
    """Encode a record.

    Hosts come from `encode_host` and decide the two address bits of the sys flag, whatever `sys_flag` says
    about them. Sizes within the format's own limits are for the caller to ensure; beyond them this raises
    LocalProtocolError.
    """
    topic_size = len(topic)
    properties_size = len(properties)
    if topic_size > TOPIC_SIZE_MAX_V1:
        magic = MAGIC_V2
        size = 76 + len(born_host) + len(store_host) + len(body) + topic_size + properties_size
        topic_length = topic_size.to_bytes(2, "big")
    else:
        magic = MAGIC_V1
        size = 75 + len(born_host) + len(store_host) + len(body) + topic_size + properties_size
        topic_length = _ONE_BYTE[topic_size]
    # One comparison for nearly every record; only then the question which of the three it was.
    if properties_size > PROPERTIES_SIZE_MAX or topic_size > 0x7FFF or size > 0x7FFFFFFF:
        raise LocalProtocolError(f"too long: topic {topic_size}, properties {properties_size}, record {size}")
    head = HEAD_V4
    sys_flag &= ~HOST_V6_BITS
    if len(born_host) != 8 or len(store_host) != 8:
        head, v6_bits = _head_for(born_host, store_host)
        sys_flag |= v6_bits
    try:
        fixed = head.pack(
            size,
            magic,
            crc32(body) & 0x7FFFFFFF,
            queue_id,
            flag,
            queue_offset,
            offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except struct_error as error:
        raise LocalProtocolError(f"record field out of its range: {error}") from None
    return b"".join((fixed, body, topic_length, topic, properties_size.to_bytes(2, "big"), properties))


_OFFSETS: Final = Struct(">qq")
_TIME: Final = Struct(">q")


class WrittenRecords:
    """Records of one queue, side by side, that are encoded but for their offsets and store times."""

    def __init__(self, topic: bytes, queue_id: int, born_host: bytes, store_host: bytes) -> None:
        self._topic, self._queue_id, self._hosts = topic, queue_id, (born_host, store_host)
        self._records = bytearray()
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def size(self) -> int:
        """Return the bytes of all records."""
        return len(self._records)

    def add(
        self,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
    ) -> None:
        """Encode one more record. Raises as `encode_record` does."""
        born_host, store_host = self._hosts
        record = encode_record(
            self._topic, self._queue_id, flag, 0, 0, sys_flag, born_timestamp, born_host, 0, store_host,
            reconsume_times, 0, body, properties,
        )  # fmt: skip
        self._records += record
        self.sizes.append(len(record))

    def place(self, first: int, offsets: Sequence[int], store_timestamp: int) -> None:
        """Write the log offsets of the records, their queue offsets, from `first` on, and the store time of all."""
        begins = list(accumulate(self.sizes[:-1], initial=_OFFSETS_AT))
        numbers = range(first, first + len(self.sizes))
        deque(map(_OFFSETS.pack_into, repeat(self._records), begins, numbers, offsets), 0)
        after = (_STORE_TIME_AT - _OFFSETS_AT + len(self._hosts[0])).__add__
        deque(map(_TIME.pack_into, repeat(self._records), map(after, begins), repeat(store_timestamp)), 0)

    def joined(self) -> memoryview:
        """Return all records in one piece."""
        return memoryview(self._records)

    def each(self) -> list[memoryview]:
        """Return the records one by one."""
        ends = list(accumulate(self.sizes, initial=0))
        return list(map(memoryview(self._records).__getitem__, map(slice, ends, ends[1:])))


def _head_for(born_host: bytes, store_host: bytes) -> tuple[Struct, int]:
    head = _HEADS.get((len(born_host), len(store_host)))
    if head is None:
        raise LocalProtocolError(f"hosts of {len(born_host)} and {len(store_host)} bytes")
    return head, (MessageSysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0) | (
        MessageSysFlag.STORE_HOST_V6 if len(store_host) == 20 else 0
    )


def encode_blank(remaining: int) -> bytes:
    """Encode the eight bytes that close a file with `remaining` bytes left, themselves included."""
    assert 8 <= remaining <= 0x7FFFFFFF, remaining
    return _BLANK.pack(remaining, MAGIC_BLANK)


def crc_property(record_without_it: bytes | memoryview) -> bytes:
    """Encode the whole-record checksum as a record's last property: 20 bytes over everything in front of them.

    The record's size and properties length must already count these 20 bytes. The ten digits stand least
    significant first, as the original writes them.
    """
    digits = f"{crc32(record_without_it) & 0x7FFFFFFF:010d}"[::-1]
    return f"{P.CRC32}\x01{digits}\x02".encode()


# Reading


def read_frame(buffer: bytes | bytearray | memoryview, position: int = 0) -> tuple[int, int]:
    """Read the claimed size and the magic at a position: enough to tell record, blank and nothing apart.

    Raises CorruptRecord if eight bytes are not there.
    """
    if position < 0 or len(buffer) - position < 8:
        raise CorruptRecord(f"position {position}: fewer than 8 bytes")
    size, magic = _FRAME.unpack_from(buffer, position)
    return size, magic


def is_blank(buffer: bytes | bytearray | memoryview, position: int = 0) -> bool:
    """Return True for a filler, behind which the log goes on in the next file."""
    return len(buffer) - position >= 8 and _FRAME.unpack_from(buffer, position)[1] == MAGIC_BLANK


def decode_record(
    buffer: bytes | bytearray | memoryview, position: int = 0, *, check_crc: bool = True
) -> Record:
    """Decode the record at a position. Raises CorruptRecord.

    `check_crc=False` trusts the body, for readers that have just checked it or cannot afford to.
    """
    if type(buffer) is bytes:
        record = _decode_ordinary(buffer, position, check_crc=check_crc)
        if record is not None:
            return record
    size, magic = read_frame(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(f"position {position}: magic {magic:08x} is no record's")
    if not RECORD_SIZE_MIN <= size <= len(buffer) - position:
        raise CorruptRecord(f"position {position}: size {size} of {len(buffer) - position} bytes there")
    # From here on nothing outside the record can be read, however its inner lengths lie.
    data = bytes(memoryview(buffer)[position : position + size])
    sys_flag = int.from_bytes(data[36:40], "big", signed=True)
    head = _HEAD_BY_BITS[sys_flag & HOST_V6_BITS]
    topic_field_size = 1 if magic == MAGIC_V1 else 2
    if head.size > size:
        raise CorruptRecord(f"position {position}: size {size} is too small for its hosts")
    fields = head.unpack_from(data)
    body_end = head.size + fields[14]
    topic_start = body_end + topic_field_size
    if fields[14] < 0 or topic_start + 2 > size:
        raise CorruptRecord(f"position {position}: body of {fields[14]} bytes in a record of {size}")
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big", signed=True)
    if topic_end < topic_start or topic_end + 2 > size:
        raise CorruptRecord(f"position {position}: the topic's length is out of bounds")
    properties_size = int.from_bytes(data[topic_end : topic_end + 2], "big", signed=True)
    if topic_end + 2 + properties_size != size:
        raise CorruptRecord(f"position {position}: its parts do not fill its size {size}")
    body = data[head.size : body_end]
    if check_crc and body and crc32(body) & 0x7FFFFFFF != fields[2]:
        raise CorruptRecord(f"position {position}: the body's checksum does not match")
    try:
        topic = data[topic_start:topic_end].decode()
    except UnicodeDecodeError:
        raise CorruptRecord(f"position {position}: the topic is not UTF-8") from None
    raw_properties = data[topic_end + 2 :]
    return Record(
        offset=fields[6],
        size=size,
        topic=topic,
        queue_id=fields[3],
        queue_offset=fields[5],
        flag=fields[4],
        sys_flag=sys_flag,
        born_timestamp=fields[8],
        born_host=decode_host(fields[9]),
        store_timestamp=fields[10],
        store_host=decode_host(fields[11]),
        reconsume_times=fields[12],
        prepared_transaction_offset=fields[13],
        body=body,
        properties=parse_properties(raw_properties),
        raw_properties=raw_properties,
        body_crc=fields[2],
        magic=magic,
    )


def _decode_ordinary(buffer: bytes, position: int, *, check_crc: bool) -> Record | None:
    """The record, if it is one with IPv4 hosts, a short topic and nothing wrong with it; else None.

    Nearly every record is such a one, and is read here in half the time. What to say about another is for
    `decode_record`. HOT: a pull reads dozens.
    """
    room = len(buffer) - position
    if room < RECORD_SIZE_MIN or position < 0:
        return None
    fields = HEAD_V4.unpack_from(buffer, position)
    size, magic, crc, queue_id, flag, queue_offset, offset, sys_flag = fields[:8]
    body_start = position + HEAD_V4.size
    body_end = body_start + fields[14]
    end = position + size
    if (
        magic != MAGIC_V1
        or sys_flag & HOST_V6_BITS
        or not RECORD_SIZE_MIN <= size <= room
        or not body_start <= body_end <= end - 3
    ):
        return None
    topic_end = body_end + 1 + buffer[body_end]
    if buffer[body_end] > TOPIC_SIZE_MAX_V1 or topic_end + 2 > end:
        return None
    properties_size = buffer[topic_end] << 8 | buffer[topic_end + 1]
    if topic_end + 2 + properties_size != end or properties_size > PROPERTIES_SIZE_MAX:
        return None
    body = buffer[body_start:body_end]
    if check_crc and body and crc32(body) & 0x7FFFFFFF != crc:
        return None
    try:
        topic = buffer[body_end + 1 : topic_end].decode()
    except UnicodeDecodeError:
        return None
    raw_properties = buffer[topic_end + 2 : end]
    return Record(
        offset,
        size,
        topic,
        queue_id,
        queue_offset,
        flag,
        sys_flag,
        fields[8],
        decode_host(fields[9]),
        fields[10],
        decode_host(fields[11]),
        fields[12],
        fields[13],
        body,
        parse_properties(raw_properties),
        raw_properties,
        crc,
        magic,
    )


def cut_message(record: bytes) -> tuple[bytes, bytes, int, int, int, bytes, int] | None:
    """Cut the parts of a record that a copy of its message carries: body, property text, flag, sys flag, born time in
    ms, born host, reconsume times.

    None for a record that is not an ordinary one, as `decode_record` says; the checksum of the body is not looked at,
    and no property is read. HOT.
    """
    if len(record) < RECORD_SIZE_MIN:
        return None
    (
        size,
        magic,
        _crc,
        _id,
        flag,
        _number,
        _offset,
        sys_flag,
        born_ms,
        born_host,
        *_,
        times,
        _half,
        body_size,
    ) = HEAD_V4.unpack_from(record)
    body_end = HEAD_V4.size + body_size
    if (
        magic != MAGIC_V1
        or sys_flag & HOST_V6_BITS
        or size != len(record)
        or not HEAD_V4.size <= body_end <= size - 3
    ):
        return None
    properties_at = body_end + 3 + record[body_end]
    if record[body_end] > TOPIC_SIZE_MAX_V1 or properties_at > size:
        return None
    if properties_at + int.from_bytes(record[properties_at - 2 : properties_at], "big") != size:
        return None
    return record[HEAD_V4.size : body_end], record[properties_at:], flag, sys_flag, born_ms, born_host, times


def decode_records(body: bytes | bytearray | memoryview, *, check_crc: bool = True) -> list[Record]:
    """Decode the records of a pull's answer, which lie back to back. Raises CorruptRecord."""
    records: list[Record] = []
    position = 0
    while position < len(body):
        record = decode_record(body, position, check_crc=check_crc)
        records.append(record)
        position += record.size
    return records


# Hosts and message ids


@lru_cache(maxsize=4096)
def encode_host(ip: str, port: int) -> bytes:
    """Encode a host field: 8 bytes for IPv4, 20 for IPv6. Raises ValueError for what is no address.

    Cached because a connection's peer is the born host of all its messages.
    """
    return ipaddress.ip_address(ip).packed + port.to_bytes(4, "big", signed=True)


@lru_cache(maxsize=4096)
def decode_host(field: bytes) -> tuple[str, int]:
    """Decode the address and port in a host field of 8 or 20 bytes; the port is as its writer put it there."""
    return str(ipaddress.ip_address(field[:-4])), int.from_bytes(field[-4:], "big", signed=True)


def message_id(store_host: bytes, offset: int) -> str:
    """Return the offset message id: upper-case hex of the store host's field and the offset, 32 or 56 characters."""
    return (store_host + offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_message_id(text: str) -> tuple[str, int, int]:
    """Parse an offset message id into (ip, port, offset). Raises ValueError; a client's UNIQ_KEY looks alike and may
    pass.
    """
    if len(text) not in (32, 56):
        raise ValueError(f"a message id has 32 or 56 characters, not {len(text)}")
    data = bytes.fromhex(text)
    if len(data) * 2 != len(text):
        raise ValueError("a message id has no blanks")
    ip, port = decode_host(data[:-8])
    return ip, port, int.from_bytes(data[-8:], "big", signed=True)
