"""Unwrap records whose body holds several messages, as topics of the type BatchCQ store them: one row for each message.

Such records are rare, so they are not decoded by a second set of rules: each is written out anew as the records it
stands for, and the piece is read again. Message k has the queue offset of the record plus k, its own flag, body and
properties, and the record's other fields, its log offset among them. `storeSize` is what the message alone would
take.
"""

from __future__ import annotations

import numpy as np

from ropewalk.codes import MessageSysFlag
from ropewalk.errors import CorruptRecord, MalformedBatch
from ropewalk.format.batch import split_batch
from ropewalk.format.record import decode_record, encode_host, encode_record
from ropewalk.spark.rows.columns import unpack_body
from ropewalk.spark.rows.headers import Buffer, Headers, checksums, read_headers

__all__ = ["has_inner_batches", "unwrap"]

_BITS = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


def has_inner_batches(headers: Headers) -> bool:
    """Return whether any of the records holds several messages."""
    return bool(((headers.fields["sys_flag"].astype(np.int32) & _BITS) == _BITS).any())


def unwrap(
    buffer: Buffer, headers: Headers, *, check_crc: bool, body_bytes_max: int
) -> tuple[bytes, Headers]:
    """Replace each inner batch by its messages, and return the new bytes and their headers.

    One that cannot be taken apart stays as it is: its row shows the body as stored. So does one that would unpack to
    more than is left of `body_bytes_max` for all together, and one whose body is damaged, where checksums are checked:
    that of the record speaks for all of its messages, and theirs are made here.
    """
    view = memoryview(buffer)
    flags = headers.of("sys_flag")
    if check_crc:
        intact = checksums(buffer, headers.body_start, headers.body_end) == headers.of("body_crc")
        flags = np.where(intact, flags, 0)
    sizes = headers.of("size")
    parts: list[bytes] = []
    for row, position in enumerate(headers.positions.tolist()):
        stored = bytes(view[position : position + int(sizes[row])])
        if int(flags[row]) & _BITS == _BITS:
            messages = _messages_of(stored, body_bytes_max)
            body_bytes_max -= sum(map(len, messages))
            parts += messages
        else:
            parts.append(stored)
    starts = np.zeros(len(parts), np.int64)
    np.cumsum([len(part) for part in parts[:-1]], out=starts[1:])
    data = b"".join(parts)
    return data, read_headers(data, starts, None)


def _messages_of(stored: bytes, body_bytes_max: int) -> list[bytes]:
    try:
        record = decode_record(stored, check_crc=False)
        flags = record.sys_flag
        is_packed = flags & MessageSysFlag.COMPRESSED
        body = unpack_body(flags, record.body, max(body_bytes_max, 1)) if is_packed else record.body
        items = split_batch(body)
    except (CorruptRecord, MalformedBatch):
        return [stored]
    plain = flags & ~(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
    return [
        encode_record(
            record.topic.encode(),
            record.queue_id,
            item.flag,
            record.queue_offset + number,
            record.offset,
            plain,
            record.born_timestamp,
            encode_host(*record.born_host),
            record.store_timestamp,
            encode_host(*record.store_host),
            record.reconsume_times,
            record.prepared_transaction_offset,
            item.body,
            item.properties,
        )
        for number, item in enumerate(items)
    ]
