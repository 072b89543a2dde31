"""The body of a broker's registration: its topics, in each of the forms that brokers send them.

    plain        {"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{…},"topicConfigTable":{…}}}
    bare         the value of topicConfigSerializeWrapper alone, from brokers older than 3.0.11
    compressed   zlib of: i32 + DataVersion JSON, i32 topic count,
                 per topic i32 + "name read write perm filterType {attributes}", i32 + filter server JSON,
                 and sections that do not matter to routes

A compressed body is told by the header or by its first byte, 0x78: brokers of the 5.x line compress without
saying so. Whatever arrives comes from a stranger, so the inflated size is bounded before it is inflated, and
everything that is wrong raises BadRegistration and nothing else.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from broker.namesrv.routes import BROKER_TOPICS_MAX, NAME_SIZE_MAX, TOPICS_PER_STEP, TopicConfig
from broker.state.data_version import DataVersion, int_of
from ropewalk.format.fastjson import FastjsonError
from ropewalk.format.remoting import FRAME_SIZE_MAX
from ropewalk.format.sliced_json import Slices, finish, loads_at_once, loads_in_slices

INFLATED_SIZE_MAX = 16 << 20
"""Bytes a compressed registration may grow to; 100 000 topics take about 6 MiB in this form."""
_PLAIN_AT_ONCE_MAX = 256 << 10
"""Bytes of a plain registration that are read at once, in a millisecond."""
_INFLATE_STEP = 16 << 10
"""Compressed bytes of a step; they grow to `_INFLATED_STEP` at most."""
_INFLATED_STEP = 512 << 10
_CRC_STEP = 512 << 10

_TOPIC_TEXT_MAX = 2_048
"""Bytes of a topic's text that are looked at: its name and numbers; attributes may follow."""
_I32 = struct.Struct(">i")
_ZLIB_MARK = 0x78


class BadRegistration(ValueError):
    """An unreadable body of a registration, or an oversized one."""


@dataclass(frozen=True, slots=True)
class RegistrationBody:
    """The content of a registration's body; `filter_servers` is None where the body has no such list."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: tuple[TopicConfig, ...] = ()
    filter_servers: tuple[str, ...] | None = None


class _Version(msgspec.Struct, rename="camel"):
    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class _Wrapper(msgspec.Struct, rename="camel"):
    data_version: _Version = msgspec.field(default_factory=_Version)
    topic_config_table: dict[str, TopicConfig] = {}


class _PlainBody(msgspec.Struct, rename="camel"):
    """The plain form as today's brokers write it."""

    topic_config_serialize_wrapper: _Wrapper
    filter_server_list: list[str] | None = None


_plain_decoder = msgspec.json.Decoder(_PlainBody)


Reading: TypeAlias = Generator[None, None, RegistrationBody]
"""A body that is being read: each step costs the loop little, and the body is what it returns."""


def decode_registration(body: bytes, *, compressed: bool) -> RegistrationBody:
    """Read a registration body in one go."""
    return finish(registration_in_slices(body, compressed=compressed))


def registration_in_slices(body: bytes, *, compressed: bool) -> Reading:
    """Read a registration body; an empty one registers a broker without topics."""
    if not body:
        return RegistrationBody()
    if compressed or body[0] == _ZLIB_MARK:
        return (yield from _from_sections((yield from _inflate(body))))
    if len(body) > _PLAIN_AT_ONCE_MAX:
        return (yield from _from_json((yield from _json(body))))
    try:
        plain = _plain_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return (yield from _from_json((yield from _json(body))))
    wrapper = plain.topic_config_serialize_wrapper
    _check_count(len(wrapper.topic_config_table))
    version = wrapper.data_version
    return RegistrationBody(
        version=DataVersion(version.state_version, version.counter, version.timestamp),
        topics=tuple(wrapper.topic_config_table.values()),
        filter_servers=None if plain.filter_server_list is None else tuple(plain.filter_server_list),
    )


def crc32_in_slices(body: bytes) -> Generator[None, None, int]:
    """Sum a body as the header of its registration tells it, a slice at each step."""
    crc, view = 0, memoryview(body)
    for start in range(0, len(view), _CRC_STEP):
        if start:
            yield
        crc = zlib.crc32(view[start : start + _CRC_STEP], crc)
    return crc & 0x7FFFFFFF


def _check_count(count: int) -> None:
    if count > BROKER_TOPICS_MAX:
        raise BadRegistration(f"{count} topics; a broker may have {BROKER_TOPICS_MAX}")


def _inflate(body: bytes) -> Generator[None, None, bytearray]:
    inflater = zlib.decompressobj()
    plain = bytearray()
    position, piece = 0, b""
    try:
        while not inflater.eof:
            if not piece:
                if position >= len(body):
                    raise BadRegistration("the body's zlib stream is cut short")
                piece = body[position : position + _INFLATE_STEP]
                position += _INFLATE_STEP
            plain += inflater.decompress(piece, _INFLATED_STEP)
            piece = inflater.unconsumed_tail
            if len(plain) > INFLATED_SIZE_MAX:
                raise BadRegistration(f"the body inflates to more than {INFLATED_SIZE_MAX} bytes")
            if len(plain) >= _INFLATED_STEP:
                yield
    except zlib.error as error:
        raise BadRegistration(f"the body is not a zlib stream: {error}") from None
    return plain


def _json(text: bytes) -> Slices:
    try:
        return (yield from loads_in_slices(text, FRAME_SIZE_MAX))
    except FastjsonError as error:
        raise BadRegistration(f"the body is not JSON: {error}") from None


def _json_at_once(text: bytes) -> Any:
    try:
        return loads_at_once(text)
    except FastjsonError as error:
        raise BadRegistration(f"a section of the body is not JSON: {error}") from None


def _from_json(document: Any) -> Reading:
    if not isinstance(document, dict):
        raise BadRegistration("the body is not a JSON object")
    wrapper = document if "topicConfigTable" in document else document.get("topicConfigSerializeWrapper")
    table = _object(_object(wrapper).get("topicConfigTable"))
    _check_count(len(table))
    topics = []
    for name, config in table.items():
        topics.append(_topic(name, _object(config)))
        if len(topics) % TOPICS_PER_STEP == 0:
            yield
    return RegistrationBody(
        version=DataVersion.from_json(_object(wrapper).get("dataVersion")),
        topics=tuple(topics),
        filter_servers=_servers(document.get("filterServerList")),
    )


def _object(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRegistration("a table of the body is not a JSON object")
    return value


def _topic(name: str, config: Mapping[str, Any]) -> TopicConfig:
    # The name inside wins, as in the original; the key is what stands there when it is missing.
    inner = config.get("topicName")
    return _checked(
        inner if isinstance(inner, str) and inner else name,
        read=int_of(config.get("readQueueNums"), 16),
        write=int_of(config.get("writeQueueNums"), 16),
        perm=int_of(config.get("perm"), 6),
        flags=int_of(config.get("topicSysFlag"), 0),
    )


def _checked(name: str, *, read: int, write: int, perm: int, flags: int) -> TopicConfig:
    """A topic whose numbers fit what routes can say: Go's and Java's readers take 32 bits."""
    if not 1 <= len(name) <= NAME_SIZE_MAX:
        raise BadRegistration(f"a topic name of {len(name)} characters")
    numbers = {"readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": flags}
    for what, value in numbers.items():
        if not 0 <= value < 2**31:
            raise BadRegistration(f"topic {name}: {what} is {value}")
    return TopicConfig(
        topic_name=name, perm=perm, read_queue_nums=read, topic_sys_flag=flags, write_queue_nums=write
    )


def _servers(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRegistration("filterServerList is not a list of texts")
    return tuple(value)


# --- the compressed form -------------------------------------------------------------------------------


def _from_sections(plain: bytearray) -> Reading:
    version, position = _section(plain, 0)
    count, position = _number(plain, position)
    # Each topic takes four bytes at least, so a count beyond that is a lie not worth a loop.
    if not 0 <= count <= len(plain) // _I32.size:
        raise BadRegistration(f"{count} topics in a body of {len(plain)} bytes")
    _check_count(count)
    topics = []
    for _ in range(count):
        text, position = _section(plain, position)
        topics.append(_topic_of_text(text))
        if len(topics) % TOPICS_PER_STEP == 0:
            yield
    filters = b""
    if position < len(plain):
        filters, position = _section(plain, position)
    # What follows maps queues of static topics, which no route of ours shows.
    return RegistrationBody(
        version=DataVersion.from_json(_json_at_once(version)),
        topics=tuple(topics),
        filter_servers=_servers(_json_at_once(filters)) if filters else None,
    )


def _topic_of_text(raw: bytes) -> TopicConfig:
    words = raw[:_TOPIC_TEXT_MAX].decode("utf-8", "replace").split(" ", 5)
    if len(words) < 5 or not all(word.isdecimal() and len(word) <= 10 for word in words[1:4]):
        raise BadRegistration(f"a topic is written as {raw[:100]!r}")
    read, write, perm = (int(word) for word in words[1:4])
    return _checked(words[0], read=read, write=write, perm=perm, flags=0)


def _number(plain: bytearray, position: int) -> tuple[int, int]:
    if position + _I32.size > len(plain):
        raise BadRegistration("the compressed body is cut short")
    (number,) = _I32.unpack_from(plain, position)
    return number, position + _I32.size


def _section(plain: bytearray, position: int) -> tuple[bytes, int]:
    size, position = _number(plain, position)
    if not 0 <= size <= len(plain) - position:
        raise BadRegistration(f"a section of {size} bytes in a body with {len(plain) - position} left")
    return bytes(plain[position : position + size]), position + size
