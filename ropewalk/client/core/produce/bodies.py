"""Body compression: clients compress, brokers never do, readers undo it.

`sysFlag` bit 0 says that a body is compressed, bits 8 to 10 say how; none of them set means ZLIB, which is what old
clients wrote. LZ4 and ZSTD are frames, as Java's streams write them, and need the libraries of the extra `compression`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

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
        return body, f"{exc}"


def unpack_body(sys_flag: int, body: bytes, size_max: int) -> tuple[bytes, str | None]:
    """Undo the compression `sys_flag` names. Raises `BodyTooLarge` for a body of more than `size_max` bytes.

    Returns the body as it is, with a note, where its compression is unknown or its bytes are damaged.
    """
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body, None
    kind = sys_flag & MessageSysFlag.COMPRESSION_MASK
    name = "ZLIB" if kind in ZLIB_TYPES else OTHER_TYPES.get(kind)
    if name is None:
        return body, f"the body is compressed in an unknown way (sysFlag {sys_flag:#x})"
    try:
        plain, is_whole = _UNPACK[name](body, size_max)
    except ImportError:
        return body, (
            f"the body is compressed with {name}, which takes a library: pip install 'ropewalk[compression]'"
        )
    except _Damaged as exc:
        return (
            body,
            f"the body says it is compressed with {name} but does not unpack ({exc})",
        )
    if not is_whole:
        if len(plain) >= size_max:
            raise BodyTooLarge(f"the {name} body unpacks to more than {size_max} bytes")
        return body, f"the {name} body is cut short"
    return plain, None


class _Damaged(Exception):
    """The bytes are not what their flags say."""


def _unpack_zlib(body: bytes, size_max: int) -> tuple[bytes, bool]:
    """Return at most so many bytes, and whether that was all."""
    unpacker = zlib.decompressobj()
    try:
        return unpacker.decompress(body, size_max), unpacker.eof
    except zlib.error as exc:
        raise _Damaged(exc) from None


def _unpack_lz4(body: bytes, size_max: int) -> tuple[bytes, bool]:
    import lz4.frame

    unpacker = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = unpacker.decompress(body, size_max)
    except RuntimeError as exc:
        raise _Damaged(exc) from None
    return plain, unpacker.eof


def _unpack_zstd(body: bytes, size_max: int) -> tuple[bytes, bool]:
    import zstandard

    library = zstandard.ZstdDecompressor()
    try:
        plain = library.stream_reader(body).read(size_max + 1)
        if len(plain) > size_max:
            return plain, False
        unpacker = library.decompressobj()  # it knows the end of a frame, and has no bound
        return unpacker.decompress(body), unpacker.eof
    except zstandard.ZstdError as exc:
        raise _Damaged(exc) from None


_UNPACK: dict[str, Callable[[bytes, int], tuple[bytes, bool]]] = {
    "ZLIB": _unpack_zlib,
    "LZ4": _unpack_lz4,
    "ZSTD": _unpack_zstd,
}


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
