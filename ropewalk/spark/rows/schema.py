"""The columns of a read: their names, types and presets, and the choice a query makes among them.

A query reads one `Selection`: column names in its order, and for each whether the caller's schema forbids nulls.
Spark compares the Arrow schema of the first batch with its own, name by name, so both are made here from one table
and `arrow_schema` must equal what Spark would derive (a test compares them).

`propertiesFormat=raw` turns `properties` into text with the separators kept. `preset=kafka` names columns as Spark's
Kafka source does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "BODY_BYTES_MAX",
    "COLUMNS",
    "PRESETS",
    "Column",
    "SchemaMismatch",
    "Selection",
    "nearest",
    "chosen_columns",
    "selection_of",
]


BODY_BYTES_MAX: Final = 64 << 20
"""Bytes that a compressed body may unpack to, and all of one batch together, where nobody names a bound."""


class SchemaMismatch(RopewalkError):
    """A column that does not exist, or a type that it does not have."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a read. `type` is written as Spark writes it in a schema."""

    name: str
    type: str
    presets: str = ""
    """Letters of the presets that hold it: default, full, kafka."""


_D: Final = "df"
COLUMNS: Final[dict[str, Column]] = {
    column.name: column
    for column in (
        Column("topic", "string", "dfk"),
        Column("brokerName", "string", _D),
        Column("queueId", "int", _D),
        Column("queueOffset", "bigint", _D),
        Column("tags", "string", _D),
        Column("keys", "string", _D),
        Column("body", "binary", _D),
        Column("properties", "map<string,string>", _D),
        Column("bornTimestamp", "timestamp", _D),
        Column("storeTimestamp", "timestamp", _D),
        Column("uniqKey", "string", "f"),
        Column("msgId", "string", "f"),
        Column("flag", "int", "f"),
        Column("sysFlag", "int", "f"),
        Column("reconsumeTimes", "int", "f"),
        Column("bodyCRC", "int", "f"),
        Column("storeSize", "int", "f"),
        Column("physicalOffset", "bigint", "f"),
        Column("preparedTransactionOffset", "bigint", "f"),
        Column("bornHost", "string", "f"),
        Column("storeHost", "string", "f"),
        Column("crcOk", "boolean"),
        Column("key", "binary"),
        Column("value", "binary"),
        Column("partition", "int"),
        Column("offset", "bigint"),
        Column("timestamp", "timestamp"),
        Column("timestampType", "int"),
        Column("headers", "array<struct<key:string,value:binary>>"),
    )
}

PRESETS: Final[dict[str, tuple[str, ...]]] = {
    "default": tuple(name for name, column in COLUMNS.items() if "d" in column.presets),
    "full": tuple(name for name, column in COLUMNS.items() if "f" in column.presets),
    "kafka": ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """The columns of one read, in its order."""

    names: tuple[str, ...]
    raw_properties: bool = False
    required: frozenset[str] = frozenset()
    """Columns that the caller's schema declares NOT NULL."""

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def type_of(self, name: str) -> str:
        """Return the Spark type of a column under this choice."""
        if name == "properties" and self.raw_properties:
            return "string"
        return COLUMNS[name].type

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of every record batch of this read."""
        return _arrow_schema(self)

    def ddl(self) -> str:
        """Return the schema as Spark reads it from text."""
        return ", ".join(
            f"{name} {self.type_of(name)}{' NOT NULL' if name in self.required else ''}"
            for name in self.names
        )


def chosen_columns(
    preset: str = "default",
    columns: Iterable[str] = (),
    *,
    raw_properties: bool = False,
    headers: bool = False,
) -> Selection:
    """Return the columns that options ask for. Raises SchemaMismatch for names that do not exist.

    `headers` adds the column of that name to the kafka preset, as `includeHeaders` does there.
    """
    chosen = [_known(name) for name in columns]
    if not chosen:
        if preset not in PRESETS:
            raise SchemaMismatch(f"preset {preset!r} does not exist; there are {', '.join(PRESETS)}")
        chosen = list(PRESETS[preset])
        if headers:
            chosen.append("headers" if preset == "kafka" else "properties")
    doubled = sorted({name for name in chosen if chosen.count(name) > 1} - {"properties"})
    if doubled:
        raise SchemaMismatch(f"columns asked for twice: {', '.join(doubled)}")
    return Selection(tuple(dict.fromkeys(chosen)), raw_properties)


def selection_of(schema: StructType, *, raw_properties: bool = False) -> Selection:
    """Return the choice that a schema given with `.schema(...)` makes. Raises SchemaMismatch.

    `properties STRING` asks for the raw text, whatever the option says.
    """
    names: list[str] = []
    for field in schema.fields:
        name = _known(field.name)
        found = field.dataType.simpleString()
        wanted = COLUMNS[name].type
        if name == "properties" and found in ("string", wanted):
            raw_properties = found == "string"
        elif found != wanted:
            raise SchemaMismatch(f"column {name} is {wanted.upper()} and cannot be read as {found.upper()}")
        names.append(name)
    if not names:
        raise SchemaMismatch(f"a schema without columns; there are {', '.join(COLUMNS)}")
    required = frozenset(field.name for field in schema.fields if not field.nullable)
    return Selection(tuple(names), raw_properties, required)


def _known(name: str) -> str:
    if name in COLUMNS:
        return name
    near = nearest(name, COLUMNS)
    hint = f"did you mean {near}? " if near else ""
    raise SchemaMismatch(f"there is no column {name!r}; {hint}the columns are {', '.join(COLUMNS)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one most likely meant."""
    from difflib import get_close_matches

    by_lower = {candidate.lower(): candidate for candidate in known}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


@lru_cache(maxsize=32)
def _arrow_schema(selection: Selection) -> pa.Schema:
    import pyarrow as pa

    fields = [
        pa.field(name, _arrow_type(selection.type_of(name)), nullable=name not in selection.required)
        for name in selection.names
    ]
    return pa.schema(fields)


def _arrow_type(spark_type: str) -> pa.DataType:
    import pyarrow as pa

    match spark_type:
        case "string":
            return pa.string()
        case "int":
            return pa.int32()
        case "bigint":
            return pa.int64()
        case "binary":
            return pa.binary()
        case "boolean":
            return pa.bool_()
        case "timestamp":
            return pa.timestamp("us", tz="UTC")
        case "map<string,string>":
            return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string()))
        case _:
            assert spark_type == COLUMNS["headers"].type, spark_type
            header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
            return pa.list_(pa.field("element", header))
