"""A request as its handler gets it: with its fields still unread (`Request`), or whole (`CommandRequest`).

Hot handlers decode the typed header that they want, once; all others get a `Command` with its `extFields` as strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import MsgspecError, Raw, Struct

from ropewalk.codes import FrameFlag
from ropewalk.format.headers import decode_header
from ropewalk.format.remoting import (
    JSON,
    ROCKETMQ,
    VERSION,
    Command,
    JsonHeader,
    decode_ext,
    encode_frame,
    frame_bytes,
)

__all__ = ["CommandRequest", "LargeAnswer", "Request"]

_NO_FIELDS = Raw(b"")
_PLAIN = (
    b'{"code":%%d,"flag":%d,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    % (FrameFlag.RESPONSE, VERSION)
)
"""The JSON header of an answer without fields and remark, as `encode_frame` writes it."""
_H = TypeVar("_H", bound=Struct)


class Request:
    """A request whose `extFields` are still as they came: JSON text or a table of strings."""

    __slots__ = (
        "body",
        "code",
        "ext",
        "flag",
        "json",
        "language",
        "opaque",
        "read_at",
        "serialize_type",
        "version",
    )

    def __init__(self, header: JsonHeader | Command, body: bytes, read_at: float = 0.0) -> None:
        """`read_at`: when its last byte had been read, by the clock of `rpc_times`."""
        self.code = header.code
        self.opaque = header.opaque
        self.flag = header.flag
        self.version = header.version
        self.language = header.language
        self.body = body
        self.read_at = read_at
        if isinstance(header, JsonHeader):
            self.serialize_type = JSON
            self.json = header.extFields
            self.ext: dict[str, str] | None = None
        else:
            self.serialize_type = ROCKETMQ
            self.ext = header.ext

    @property
    def is_oneway(self) -> bool:
        return self.flag & FrameFlag.ONEWAY != 0

    def header(self, kind: type[_H], decode: Callable[[Raw], _H]) -> _H:
        """The typed header; `decode` is its JSON decoder. Raises `HeaderError`, naming the field. HOT."""
        if self.ext is None:
            try:
                return decode(self.json)
            except (MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # values that are no strings, or a field missing: the tolerant way also names it
        return decode_header(kind, self.fields())

    def forget(self) -> None:
        """Drop everything but the fields that an answer needs: a request that waits for minutes must not keep
        megabytes waiting too.
        """
        self.body = b""
        self.json = _NO_FIELDS
        self.ext = None
        self.language = ""

    def fields(self) -> dict[str, str]:
        """All extFields as strings."""
        return decode_ext(self.json) if self.ext is None else self.ext

    def reply(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> bytes:
        """The frame of an answer."""
        if remark is None and not ext and self.serialize_type == JSON:
            return frame_bytes(JSON, _PLAIN % (code, self.opaque), body)
        return encode_frame(
            Command(
                code=code,
                ext=ext or {},
                body=body,
                opaque=self.opaque,
                flag=FrameFlag.RESPONSE,
                remark=remark,
                serialize_type=self.serialize_type,
            )
        )


@dataclass(slots=True)
class LargeAnswer(Command):
    """An answer whose body is in pieces: it was made in steps, and none of them may copy it whole."""

    pieces: Sequence[bytes] = ()


@dataclass(slots=True)
class CommandRequest(Command):
    """A request as a whole, for handlers that are not hot."""

    read_at: float = 0.0
    """As that of `Request`."""
