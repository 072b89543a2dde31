"""Body compression: clients compress, brokers never do, readers undo it.

`sysFlag` bit 0 says that a body is compressed, bits 8 to 10 say how; none of them set means ZLIB,
which is what old clients wrote. LZ4 and ZSTD need libraries we do not carry: such a body is
handed back as it is, with a note for the person who looks at it.
"""

from __future__ import annotations

import zlib

from ropewalk.codes import MessageSysFlag
from ropewalk.errors import BodyTooLarge

ZLIB_TYPES = (0, MessageSysFlag.COMPRESSION_ZLIB)
OTHER_TYPES = {MessageSysFlag.COMPRESSION_LZ4: "LZ4", MessageSysFlag.COMPRESSION_ZSTD: "ZSTD"}

BODY_BYTES_MAX = 16 * 1024 * 1024
"""Bytes a body may unpack to where its reader names no bound: a few kilobytes of ZLIB can unpack to gigabytes."""


def decompress_body(sys_flag: int, body: bytes, size_max: int = BODY_BYTES_MAX) -> tuple[bytes, str | None]:
    """Undo the compression `sys_flag` names. Returns the body, and a note when it could not be undone."""
    try:
        return unpack_body(sys_flag, body, size_max)
    except BodyTooLarge as exc:
        return body, f"{exc}: shown as stored"


def unpack_body(sys_flag: int, body: bytes, size_max: int) -> tuple[bytes, str | None]:
    """Undo the compression `sys_flag` names. Raises `BodyTooLarge` for a body of more than `size_max` bytes.

    Returns the body as it is, with a note, where its compression is unknown or its bytes are damaged.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body, None
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    if kind in OTHER_TYPES:
        return (
            body,
            f"the body is compressed with {OTHER_TYPES[kind]}, which is not supported: shown as stored",
        )
    if kind not in ZLIB_TYPES:
        return body, f"the body is compressed in an unknown way (sysFlag {sys_flag:#x}): shown as stored"
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, size_max)
    except zlib.error as exc:
        return body, f"the body says it is compressed with ZLIB but does not unpack ({exc}): shown as stored"
    if not unpacker.eof:
        if len(plain) >= size_max:
            raise BodyTooLarge(f"the ZLIB body unpacks to more than {size_max} bytes")
        return body, "the ZLIB body is cut short: shown as stored"
    return plain, None


COMPRESS_OVER = 4096
"""Bytes up to which a body is sent as it is, as in the official clients."""
COMPRESSION_LEVEL = 5


def compress_body(body: bytes, compress_over: int = COMPRESS_OVER) -> tuple[int, bytes]:
    """Return the form a body travels in: its `sysFlag` bits and its bytes. One that would not shrink stays as it is."""
    if len(body) <= compress_over:
        return 0, body
    packed = zlib.compress(body, COMPRESSION_LEVEL)
    if len(packed) >= len(body):
        return 0, body
    return MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB, packed
