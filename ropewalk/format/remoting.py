"""Frames of the remoting protocol: cutting a byte stream into frames, and frames into commands.

    i32 length | u8 serialize type, u24 header size | header | body
               `-------------- `length` bytes: the payload -------'

The whole frame, its length field included, is at most `FRAME_SIZE_MAX`. The header is JSON (type 0) or the
binary layout called ROCKETMQ (type 1); each frame says which, and a receiver reads both. Both carry the same
fields: code, language, version, opaque, flag, remark and the string-to-string `extFields`, which `headers`
gives types.

Nothing here waits or reads a socket. `FrameBuffer` takes what has arrived and gives back payloads;
`decode_frame` turns a payload into a `Command`. Whatever the bytes, the only error is `RemoteProtocolError`,
after which the connection is of no use: there is no next frame to find. Unknown codes and fields, absent
fields, numbers in quotes and other languages' habits are ordinary and accepted, as the original does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final, overload

import msgspec

from ropewalk.codes import FrameFlag, Language
from ropewalk.errors import LocalProtocolError, RemoteProtocolError
from ropewalk.format import fastjson

FRAME_SIZE_MAX: Final = 16_777_216
"""Bytes of the longest frame, its length field included. A longer one ends the connection."""

TOLERANT_SIZE_MAX: Final = 8 << 10
"""Bytes of the longest JSON header (or `extFields`) that is read when it is not plain JSON of texts and numbers.

The reader for other dialects takes half a microsecond for every byte, and whoever sent the header is a stranger.
"""
FIELDS_MAX: Final = 1_000
"""Fields of a binary header; a send has fourteen."""

JSON: Final = 0
ROCKETMQ: Final = 1

VERSION: Final = 479
"""The version that we claim: RocketMQ 5.3.3. Consumers refuse SQL filters from brokers that claim less than 232."""

I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]

_LENGTH: Final = Struct(">i")
_WORD: Final = Struct(">I")
_ALIKE_MIN: Final = 8
_LOOKS_MAX: Final = 4
"""So many payloads of a row are cut one by one; who asks for more asks for all."""
_PREFIX: Final = Struct(">iI")
_BINARY_FIXED: Final = Struct(">hbhiii")
_I16: Final = range(-(2**15), 2**15)
_I32: Final = range(-(2**31), 2**31)
# What msgspec raises for bytes it cannot read as the type asked for.
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(slots=True)
class Command:
    """A request or response.

    `opaque` ties a response to its request; each direction of a connection counts its own. `ext` never holds
    None: an absent field has no entry.
    """

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str = "PYTHON"
    version: int = VERSION
    serialize_type: int = JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FrameFlag.RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Return True for a request whose sender reads no answer: none may be written, not even for an error."""
        return bool(self.flag & FrameFlag.ONEWAY)

    def reply(
        self, code: int, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Return the response to this request, in the request's own serialisation."""
        return Command(
            code=code,
            ext={} if ext is None else ext,
            body=body,
            opaque=self.opaque,
            flag=FrameFlag.RESPONSE,
            remark=remark,
            serialize_type=self.serialize_type,
        )


class JsonHeader(msgspec.Struct):
    """A JSON header with its `extFields` still unread, so that a hot request decodes them straight into its
    type.

    Read it with `decode_json_header`; an absent `extFields` is empty.
    """

    code: I32 = 0
    extFields: msgspec.Raw = msgspec.Raw(b"")
    flag: I32 = 0
    # A name, or the number of one in the original's enum.
    language: str | int | None = "JAVA"
    opaque: I32 = 0
    remark: str | None = None
    version: I32 = 0


class _WrittenHeader(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The JSON header as we write it: the original's order of fields, and its omissions."""

    code: int
    extFields: dict[str, str] | None = None
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serializeTypeCurrentRPC: str
    version: int


def _frames_alike(data: bytes, position: int, length: int) -> Sequence[bytes]:
    """The payloads from `position` on that have this length, without one of another length in between. HOT.

    Whoever keeps many requests in flight sends frames of equal length: cut in one loop of C's.
    """
    size = 4 + length
    count = (len(data) - position) // size
    for at in range(position + 3, position - 1, -1):  # column by column, the one that differs first in front
        column = data[at : position + count * size : size]
        count = len(column) - len(column.lstrip(column[:1]))
    return list(chain.from_iterable(_cutter(length)(memoryview(data)[position : position + count * size])))


@lru_cache(maxsize=256)
def _cutter(length: int) -> Callable[[memoryview], Iterator[tuple[bytes]]]:
    return Struct(f"4x{length}s").iter_unpack


class AlikeFrames(Sequence[bytes]):
    """The payloads of a row of frames of one length, cut when they are asked for."""

    __slots__ = ("_data", "_looks", "_payloads", "length")

    def __init__(self, data: bytes, length: int, count: int) -> None:
        """`data` begins with `count` frames whose payloads have `length` bytes."""
        self.length = length
        """Bytes of each payload."""
        self._data = memoryview(data)[: count * (4 + length)]
        self._looks = 0
        self._payloads: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self._data) // (4 + self.length)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if self._payloads is None:
            if isinstance(at, int) and self._looks < _LOOKS_MAX:
                self._looks += 1
                begin = range(4, len(self._data), 4 + self.length)[at]
                return self._data[begin : begin + self.length].tobytes()
            self._payloads = list(chain.from_iterable(_cutter(self.length)(self._data)))
        return self._payloads[at]

    def rows(self, start: int, end: int, layout: Struct) -> Iterator[tuple[bytes, ...]]:
        """Cut the frames `[start, end)` into the pieces of a layout, which has the four bytes of their length too."""
        size = 4 + self.length
        return layout.iter_unpack(self._data[start * size : end * size])


class FrameBuffer:
    """A buffer that cuts a peer's byte stream into payloads.

    Bytes of a frame that is still incomplete are the only ones kept. A length out of bounds is refused as
    soon as its four bytes are here; frames in front of it in the same read are dropped with it, and their
    sender, who gets no answer, must take their outcome as unknown. From then on every `feed` is refused.
    """

    __slots__ = ("_failure", "_length_max", "_needed", "_partial")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._length_max = frame_size_max - 4
        self._partial = bytearray()
        # Size `_partial` must reach before there is something to decide: 4 while the length is incomplete,
        # then the size of the whole frame. It is at least 4 and always greater than len(_partial).
        self._needed = 4
        self._failure: str | None = None

    @property
    def buffered(self) -> int:
        """Return the number of bytes kept for a frame that is not complete yet."""
        return len(self._partial)

    @property
    def expected(self) -> int:
        """Return the size of the frame that is kept in part, its length field included; 4 before that has arrived."""
        return self._needed

    def is_whole(self, data: bytes) -> bool:
        """Return True for bytes that are one complete frame, which `feed` would give as it is. HOT."""
        return (
            not self._partial
            and self._failure is None
            and len(data) >= 8
            and _LENGTH.unpack_from(data)[0] == len(data) - 4 <= self._length_max
        )

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Add the next bytes of the stream and return the payloads that are complete now, in order.

        Costs time in proportion to `data`, however the stream is cut. Raises RemoteProtocolError.
        """
        if self._failure is not None:
            raise RemoteProtocolError(self._failure)
        if not isinstance(data, bytes):
            data = bytes(data)
        frames: list[bytes] = []
        position = self._finish_partial(data, frames) if self._partial else 0
        end = len(data)
        unpack = _LENGTH.unpack_from
        length_max = self._length_max
        perhaps_alike = True
        while end - position >= 4:
            (length,) = unpack(data, position)
            if not 4 <= length <= length_max:
                raise self._length_refused(length)
            frame_end = position + 4 + length
            if perhaps_alike and end - position >= _ALIKE_MIN * (4 + length):
                frames += (alike := _frames_alike(data, position, length))
                position += len(alike) * (4 + length)
                perhaps_alike = False
                continue
            if frame_end > end:
                self._needed = 4 + length
                break
            frames.append(data[position + 4 : frame_end])
            position = frame_end
        if position < end:
            self._partial += data[position:]
        assert len(self._partial) < self._needed
        return frames

    def feed_alike(self, data: bytes) -> AlikeFrames | None:
        """Add bytes as `feed` does that are many frames of one length and perhaps a part of the next. HOT.

        Returns None, and adds nothing, if they are anything else. Raises RemoteProtocolError.
        """
        if self._partial or self._failure is not None or len(data) < 8:
            return None
        (length,) = _LENGTH.unpack_from(data)
        size = 4 + length
        if not 4 <= length <= self._length_max or len(data) < _ALIKE_MIN * size:
            return None
        count = len(data) // size
        behind = count * size
        for at in range(3, -1, -1):
            column = data[at:behind:size]
            if column.count(column[:1]) != count:
                return None
        if behind + 4 <= len(data) and behind + 4 + _LENGTH.unpack_from(data, behind)[0] <= len(data):
            return None  # a shorter one, or a length that is refused
        if behind < len(data):
            self.feed(data[behind:])
        return AlikeFrames(data, length, count)

    def _finish_partial(self, data: bytes, frames: list[bytes]) -> int:
        """Complete the kept frame from the front of `data`; returns how much of it was taken."""
        position = 0
        partial = self._partial
        while True:
            wanted = self._needed - len(partial)
            # HOT: of a large frame nearly every read is a middle part, which needs no copy of its own.
            partial += data if not position and wanted >= len(data) else data[position : position + wanted]
            if len(partial) < self._needed:
                return len(data)
            position += wanted
            if self._needed == 4:
                # Judged before the body arrives: a length we would refuse anyway is a reason to hang up now,
                # not after a stranger has made us buffer two gigabytes.
                (length,) = _LENGTH.unpack_from(partial)
                if not 4 <= length <= self._length_max:
                    raise self._length_refused(length)
                self._needed = 4 + length
            else:
                frames.append(bytes(memoryview(partial)[4:]))
                self._partial = bytearray()
                self._needed = 4
                return position

    def _length_refused(self, length: int) -> RemoteProtocolError:
        return self.refuse(f"frame length {length} is out of bounds (4 to {self._length_max})")

    def refuse(self, reason: str) -> RemoteProtocolError:
        """Forget the kept bytes and refuse all others: nobody knows where the next frame would begin."""
        self._partial = bytearray()
        self._failure = reason
        return RemoteProtocolError(reason)


# Reading


def split_payload(payload: bytes) -> tuple[int, bytes, bytes]:
    """Split a payload into serialize type, header and body."""
    if len(payload) < 4:
        raise RemoteProtocolError(f"payload of {len(payload)} bytes has no header word")
    (word,) = _WORD.unpack_from(payload)
    header_end = 4 + (word & 0xFFFFFF)
    if header_end > len(payload):
        raise RemoteProtocolError(f"header of {header_end - 4} bytes in a payload of {len(payload)}")
    return word >> 24, payload[4:header_end], payload[header_end:]


def decode_frame(payload: bytes) -> Command:
    """Decode a payload (a frame without its length field). Raises RemoteProtocolError."""
    serialize_type, header, body = split_payload(payload)
    if serialize_type == JSON:
        return _decode_json(header, body)
    if serialize_type == ROCKETMQ:
        return _decode_binary(header, body)
    raise RemoteProtocolError(f"serialize type {serialize_type} is unknown")


def plain_json_header(header: bytes) -> JsonHeader | None:
    """Decode a JSON header as nearly all senders write it; None for one that `decode_json_header` has to read. HOT."""
    try:
        return _JSON_HEADER.decode(header)
    except _UNREADABLE:
        return None


def decode_json_header(header: bytes) -> JsonHeader:
    """Decode a JSON header, leaving `extFields` as it came. Raises RemoteProtocolError."""
    plain = plain_json_header(header)
    if plain is not None:
        return plain
    # Nulls for numbers, unquoted names and the like: rare enough that reading it twice does not matter.
    fields: dict[str, Any]
    try:
        fields = _read_fields(_RAW_FIELDS.decode(header))
    except _UNREADABLE:
        fields = _object(header, "header")
    known = {
        name: value for name, value in fields.items() if value is not None and name in _JSON_HEADER_FIELDS
    }
    ext = known.pop("extFields", None)
    try:
        result = msgspec.convert(known, JsonHeader, strict=False)
        if not isinstance(ext, msgspec.Raw):
            ext = msgspec.Raw(b"" if ext is None else msgspec.json.encode(ext))
        result.extFields = ext
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header: {error}") from None
    return result


def decode_ext(raw: msgspec.Raw | bytes) -> dict[str, str]:
    """Decode the `extFields` of a JSON header: values that are not strings become their text, nulls go.

    Raises RemoteProtocolError.
    """
    if not memoryview(raw).nbytes:
        return {}
    try:
        return _EXT.decode(raw)
    except _UNREADABLE:
        pass
    if bytes(memoryview(raw)).strip() == b"null":
        return {}
    fields: dict[str, Any]
    try:
        fields = _SCALARS.decode(raw)
    except _UNREADABLE:
        fields = _object(bytes(memoryview(raw)), "extFields")
    return {name: _text_of(value) for name, value in fields.items() if value is not None}


_JSON_HEADER: Final = msgspec.json.Decoder(JsonHeader, strict=False)
_JSON_HEADER_FIELDS: Final = frozenset(JsonHeader.__struct_fields__)
_EXT: Final = msgspec.json.Decoder(dict[str, str])
_RAW_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCALARS: Final = msgspec.json.Decoder(dict[str, str | int | float | bool | None])


def _read_fields(raw: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """Return the fields of a header whose text is plain JSON; `extFields` stays as it came."""
    ext = raw.get("extFields")
    known = {
        name: msgspec.json.decode(value)
        for name, value in raw.items()
        if name in _JSON_HEADER_FIELDS
        and name != "extFields"
        and memoryview(value).nbytes <= TOLERANT_SIZE_MAX
    }
    return known if ext is None or bytes(memoryview(ext)[:5]) == b"null" else {**known, "extFields": ext}


def _object(text: bytes, what: str) -> dict[str, Any]:
    if len(text) > TOLERANT_SIZE_MAX:
        raise RemoteProtocolError(
            f"JSON {what} of {len(text)} bytes is not plain JSON; at most {TOLERANT_SIZE_MAX} bytes of another "
            "dialect are read"
        )
    try:
        # No sender's header repeats an object, and a few references could stand for a million values.
        value = fastjson.loads(text, references=False)
    except fastjson.FastjsonError as error:
        raise RemoteProtocolError(f"JSON {what}: {error}") from None
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"JSON {what} is not an object")
    return value


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else fastjson.dumps(value).decode()


def _decode_json(header: bytes, body: bytes) -> Command:
    fields = decode_json_header(header)
    language = fields.language
    if not isinstance(language, str):
        language = "OTHER" if language is None else Language.name_of(language)
    return Command(
        fields.code,
        decode_ext(fields.extFields),
        body,
        fields.opaque,
        fields.flag,
        fields.remark,
        language,
        fields.version,
        JSON,
    )


def _decode_binary(header: bytes, body: bytes) -> Command:
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(header)
        position = _BINARY_FIXED.size + remark_size
        (ext_size,) = _LENGTH.unpack_from(header, position) if remark_size >= 0 else (-1,)
    except struct_error:
        raise RemoteProtocolError(f"binary header of {len(header)} bytes is cut short") from None
    ext_end = position + 4 + ext_size
    if ext_size < 0 or ext_end > len(header):
        raise RemoteProtocolError("binary header holds a length out of bounds")
    try:
        remark = header[_BINARY_FIXED.size : position].decode() if remark_size else None
        ext = _decode_binary_ext(header, position + 4, ext_end)
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"binary header is not UTF-8: {error}") from None
    return Command(code, ext, body, opaque, flag, remark, Language.name_of(language), version, ROCKETMQ)


def _decode_binary_ext(header: bytes, position: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    count = 0
    while position < end:
        count += 1
        if count > FIELDS_MAX:
            raise RemoteProtocolError(f"binary extFields hold more than {FIELDS_MAX} fields")
        name_end = position + 2 + int.from_bytes(header[position : position + 2], "big", signed=True)
        value_end = name_end + 4 + int.from_bytes(header[name_end : name_end + 4], "big", signed=True)
        # Both slices above may reach past the end or before the start; then one of these three does not hold.
        if not position + 2 <= name_end <= name_end + 4 <= value_end <= end:
            raise RemoteProtocolError("binary extFields hold a length out of bounds")
        # An empty name or value is the layout's way to write null.
        if name_end > position + 2 and value_end > name_end + 4:
            ext[header[position + 2 : name_end].decode()] = header[name_end + 4 : value_end].decode()
        position = value_end
    return ext


# Writing


def encode_frame(command: Command, opaque: int | None = None, flag: int | None = None) -> bytes:
    """Encode the frame of a command, length field included; `opaque` and `flag` replace the command's own.

    A command whose code does not fit the binary header is written as JSON whatever it asks for: every
    receiver goes by the frame itself. Raises LocalProtocolError for what no frame can carry.
    """
    opaque = command.opaque if opaque is None else opaque
    flag = command.flag if flag is None else flag
    if opaque not in _I32 or flag not in _I32 or command.code not in _I32:
        raise LocalProtocolError(f"code {command.code}, opaque {opaque} or flag {flag} is no i32")
    try:
        if command.serialize_type == ROCKETMQ and command.code in _I16 and command.version in _I16:
            kind, header = ROCKETMQ, _encode_binary(command, opaque, flag)
        else:
            kind, header = JSON, _encode_json(command, opaque, flag)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"text that UTF-8 cannot carry: {error}") from None
    return frame_bytes(kind, header, command.body)


def encode_head(command: Command, body_size: int) -> bytes:
    """Encode the part of a frame in front of its body, which the caller has in pieces; the command's own is not used.

    Raises LocalProtocolError for what no frame can carry.
    """
    head = encode_frame(replace(command, body=b""))
    size = int.from_bytes(head[:4], "big") + body_size
    if size + 4 > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"frame of {size + 4} bytes is over {FRAME_SIZE_MAX}")
    return size.to_bytes(4, "big") + head[4:]


def frame_bytes(serialize_type: int, header: bytes, body: bytes) -> bytes:
    """Return the frame around an encoded header, for callers that build headers themselves."""
    length = 4 + len(header) + len(body)
    if length + 4 > FRAME_SIZE_MAX or len(header) > 0xFFFFFF:
        raise LocalProtocolError(f"frame of {length + 4} bytes is over {FRAME_SIZE_MAX}")
    return b"".join((_PREFIX.pack(length, serialize_type << 24 | len(header)), header, body))


def _encode_json(command: Command, opaque: int, flag: int) -> bytes:
    return msgspec.json.encode(
        _WrittenHeader(
            code=command.code,
            extFields=command.ext or None,
            flag=flag,
            language=command.language,
            opaque=opaque,
            remark=command.remark,
            serializeTypeCurrentRPC="JSON",
            version=command.version,
        )
    )


def _encode_binary(command: Command, opaque: int, flag: int) -> bytes:
    ext: list[bytes] = []
    for name, value in command.ext.items():
        name_bytes, value_bytes = name.encode(), value.encode()
        if len(name_bytes) > 0x7FFF:
            raise LocalProtocolError(f"field name of {len(name_bytes)} bytes")
        ext += (
            len(name_bytes).to_bytes(2, "big"),
            name_bytes,
            len(value_bytes).to_bytes(4, "big"),
            value_bytes,
        )
    ext_bytes = b"".join(ext)
    remark = (command.remark or "").encode()
    fixed = _BINARY_FIXED.pack(
        command.code,
        Language.code_of(command.language),
        command.version,
        opaque,
        flag,
        len(remark),
    )
    return b"".join((fixed, remark, _LENGTH.pack(len(ext_bytes)), ext_bytes))
