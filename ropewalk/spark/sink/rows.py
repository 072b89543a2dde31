"""Convert rows of a DataFrame to messages: the meaning of columns, and the limits of a message.

    body | value        STRING or BINARY, required, never empty
    topic               STRING; the option of that name goes before it
    keys | key, tags    STRING (key also BINARY, read as UTF-8)
    properties | headers  MAP<STRING,STRING>, or ARRAY<STRUCT<key, value>> as Kafka's source gives them
    queueId, brokerName   INT and STRING: the queue to write to
    shardingKey         STRING: rows of one key lie in one queue, in order
    delayLevel, deliverTimeMs  INT and BIGINT, not both
    flag                INT

Everything about a row is judged before it is sent: a broker would refuse it too, after the rows before it were stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ropewalk.client.core.messages import Message, copied_tags
from ropewalk.client.core.produce.sendable import BODY_SIZE_MAX
from ropewalk.errors import LocalProtocolError, RopewalkError
from ropewalk.format.names import check_topic
from ropewalk.format.properties import PROPERTIES_SIZE_MAX, P, encode_properties, split_keys
from ropewalk.spark.options import Options
from ropewalk.spark.rows.schema import SchemaMismatch, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["RESERVED_PROPERTIES", "Columns", "Outgoing", "RowRefused", "columns_of", "rows_of"]

_TEXT: Final = ("string",)
_TEXT_OR_BYTES: Final = ("string", "binary")
_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
_PAIRS: Final = (
    "map<string,string>",
    "array<struct<key:string,value:binary>>",
    "array<struct<key:string,value:string>>",
)
_COLUMNS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    # name in a DataFrame: what it is here, and the types it may have
    "body": ("body", _TEXT_OR_BYTES),
    "value": ("body", _TEXT_OR_BYTES),
    "topic": ("topic", _TEXT),
    "keys": ("keys", _TEXT_OR_BYTES),
    "key": ("keys", _TEXT_OR_BYTES),
    "tags": ("tags", _TEXT),
    "properties": ("properties", _PAIRS),
    "headers": ("properties", _PAIRS),
    "queueId": ("queue_id", _WHOLE),
    "brokerName": ("broker", _TEXT),
    "shardingKey": ("sharding_key", _TEXT),
    "delayLevel": ("delay_level", _WHOLE),
    "deliverTimeMs": ("deliver_ms", _WHOLE),
    "flag": ("flag", _WHOLE),
}
_OWN: Final = frozenset(
    {P.KEYS: "keys", P.TAGS: "tags", P.SHARDING_KEY: "shardingKey", P.DELAY: "delayLevel"}.items()
)
_COLUMN_OF: Final = dict(_OWN) | {P.TIMER_DELIVER_MS: "deliverTimeMs"}
RESERVED_PROPERTIES: Final = frozenset(
    value for name, value in vars(P).items() if name.isupper() and value not in _COLUMN_OF
)
"""Names that brokers and clients set themselves, or read as orders."""
_ROOM_FOR_OURS: Final = 256
"""Bytes of properties that the sender and the broker add."""


class RowRefused(RopewalkError):
    """A row that no message can be made of."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that the parts of a message come from: part -> column name."""

    names: Mapping[str, str]
    topic: str | None
    """The option, which goes before the column."""


@dataclass(slots=True)
class Outgoing:
    """A row that is ready to be sent."""

    topic: str
    message: Message
    size: int
    queue_id: int | None = None
    broker: str | None = None
    born_ms: int | None = None
    """When the message was made, if that is not now."""
    digest: bytes = b""
    """The digest of the content of a row that is written exactly once."""
    ordinal: int = 0
    """How many equal rows its task had before."""


def columns_of(schema: StructType, options: Options) -> Columns:
    """Check the columns of a DataFrame. Raises SchemaMismatch."""
    names: dict[str, str] = {}
    for field in schema.fields:
        known = _COLUMNS.get(field.name)
        if known is None:
            if options.ignore_extra_columns:
                continue
            near = nearest(field.name, _COLUMNS)
            raise SchemaMismatch(
                f"column {field.name} is no part of a message"
                + (f"; did you mean {near}?" if near else "")
                + f" A sink takes {', '.join(_COLUMNS)}; leave the others out with select(), or set "
                f"ignoreExtraColumns=true"
            )
        part, types = known
        found = field.dataType.simpleString()
        if found not in types:
            allowed = " or ".join(one.upper() for one in types)
            raise SchemaMismatch(f"column {field.name} is {found.upper()}, and has to be {allowed}")
        if part in names:
            raise SchemaMismatch(f"columns {names[part]} and {field.name} mean the same: keep one")
        names[part] = field.name
    if "body" not in names:
        raise SchemaMismatch("a sink needs a column body (or value) of type STRING or BINARY")
    topics = options.topics
    if len(topics) > 1:
        raise SchemaMismatch(f"option topic names {len(topics)} topics; a sink takes one, or a column topic")
    if not topics and "topic" not in names:
        raise SchemaMismatch("where to? give option topic, or a column topic")
    if topics and (reason := check_topic(topics[0])) is not None:
        raise SchemaMismatch(f"option topic: {reason}")
    return Columns(names, topics[0] if topics else None)


def rows_of(batch: pa.RecordBatch, columns: Columns, *, wait_store_ok: bool = True) -> Iterator[Outgoing]:
    """Convert the rows of a batch to messages, in their order. Raises RowRefused, naming row and reason."""
    names = batch.schema.names
    parts = {part: batch.column(names.index(name)).to_pylist() for part, name in columns.names.items()}
    checked: set[str] = set()
    for number, values in enumerate(zip(*parts.values(), strict=True)):
        row = dict(zip(parts, values, strict=True))
        try:
            yield _outgoing(row, columns, checked, wait_store_ok)
        except (RowRefused, LocalProtocolError) as exc:
            raise RowRefused(f"row {number} of a batch cannot be sent: {exc}") from None


def _outgoing(row: Mapping[str, Any], columns: Columns, checked: set[str], wait_store_ok: bool) -> Outgoing:
    topic = columns.topic or row.get("topic")
    if not topic:
        raise RowRefused("its topic is null")
    if topic not in checked:
        if (reason := check_topic(topic)) is not None:
            raise RowRefused(reason)
        checked.add(topic)
    body = row["body"]
    if isinstance(body, str):
        body = body.encode()
    if not body:
        raise RowRefused(f"its {columns.names['body']} is null or empty, which no message may be")
    if len(body) > BODY_SIZE_MAX:
        raise RowRefused(f"its body of {len(body)} bytes is over the {BODY_SIZE_MAX} that brokers take")
    properties = _properties(row.get("properties"))
    delay_level = row.get("delay_level") or 0
    deliver_ms = row.get("deliver_ms")
    if deliver_ms is not None:
        if delay_level:
            raise RowRefused("it has both a delayLevel and a deliverTimeMs")
        properties[P.TIMER_DELIVER_MS] = str(deliver_ms)
    if not wait_store_ok:
        properties[P.WAIT] = "false"
    keys = row.get("keys")
    if isinstance(keys, bytes):
        try:
            keys = keys.decode()
        except UnicodeDecodeError:
            raise RowRefused(f"its {columns.names['keys']} is not UTF-8 text") from None
    tags, odd_tags = copied_tags(row.get("tags"))
    message = Message(
        bytes(body),
        keys=split_keys(keys or ""),
        tags=tags,
        properties=properties | odd_tags,
        flag=row.get("flag") or 0,
        delay_level=delay_level,
        group=row.get("sharding_key") or None,
    )
    size = len(encode_properties(message.properties)) + sum(
        len((text or "").encode()) for text in (keys, message.tags, message.group)
    )
    if size + _ROOM_FOR_OURS > PROPERTIES_SIZE_MAX:
        raise RowRefused(
            f"its properties, keys and tags take {size} bytes, and {PROPERTIES_SIZE_MAX - _ROOM_FOR_OURS} are the limit"
        )
    _check_separators(message)
    return Outgoing(topic, message, len(body) + size, row.get("queue_id"), row.get("broker"))


def _properties(given: Any) -> dict[str, str]:
    if not given:
        return {}
    if isinstance(given, dict):
        pairs = list(given.items())
    else:
        # Arrow gives a map as pairs, and an array of structs as dictionaries.
        pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in given]
    result: dict[str, str] = {}
    for name, value in pairs:
        if not name or value is None:
            continue
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise RowRefused(
                    f"its header {name} is not UTF-8 text, which properties have to be"
                ) from None
        if name in _COLUMN_OF:
            raise RowRefused(f"its property {name} has a column of its own: {_COLUMN_OF[name]}")
        if name in RESERVED_PROPERTIES:
            raise RowRefused(f"its property {name} is reserved: brokers and clients set it themselves")
        result[name] = value
    return result


def _check_separators(message: Message) -> None:
    for name, value in (
        ("keys", " ".join(message.keys or ())),
        ("tags", message.tags),
        ("shardingKey", message.group),
    ):
        if value is not None and ("\x01" in value or "\x02" in value):
            raise RowRefused(f"its {name} holds a control character (1 or 2) that separates properties")
