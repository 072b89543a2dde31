"""Options of SQL tables: `CREATE TABLE orders USING ropewalk OPTIONS (nameServer '…', topic 'orders')`.

Spark asks a source for the schema of a table that is created, with the options among the table's properties, and
leaves the options out when the table is read or written (seen with 4.3). The schema it keeps, metadata of its fields
included. So the options travel there: `with_options` puts them into the metadata of a field, `options_of` takes them
out. Frames and temporary views have their options as they are, and no such metadata.

In an INSERT the schema is that of the query. Spark gives its columns the metadata of the table's only where it has to
cast or rename one; columns of the same names and types keep their own, which is none, or that of the ropewalk table
they were read from. So the carrier is a VARCHAR whose length follows from the options: equal types mean equal options.

Options of a query (`SELECT … FROM orders WITH (endingTimestamp = '…')`) go before those of its table. A table holds
options of reads and of writes; each use takes its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ropewalk.spark.options import BadOption, Use, fits, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["is_table", "options_of", "table_options", "with_options"]

_KEY: Final = "ropewalk.options"
_LENGTH_MIN: Final = 1 << 30
"""More characters than a message has: the length of the carrier's type limits nothing."""
_NO_CARRIER: Final = (
    "the options of the table did not come with the rows: a table that is written by INSERT INTO has its columns from "
    "option columns, and a text among them, such as columns 'keys,tags,body' (CREATE TABLE name USING ropewalk OPTIONS "
    "(nameServer 'HOST:PORT', topic 'T', columns 'keys,tags,body'))"
)
_OF_FRAMES: Final = ("nameserver", "namesrvaddr")
"""Options that a write of a frame has, and one of a table has not: the frame may have been read from another table."""
_PREFIX: Final = "option."
_SECRETS: Final = ("secretkey", "securitytoken")


def is_table(raw: Mapping[str, str]) -> bool:
    """Return whether these are a table's properties, and not the options of a frame."""
    return "provider" in raw and ("owner" in raw or any(name.startswith(_PREFIX) for name in raw))


def table_options(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options among a table's properties. Raises BadOption."""
    options = {name.removeprefix(_PREFIX): value for name, value in raw.items() if name.startswith(_PREFIX)}
    if "path" in raw:
        options.setdefault("path", raw["path"])
    if not options:
        raise BadOption(
            "a table needs options: CREATE TABLE name USING ropewalk OPTIONS (nameServer 'HOST:PORT', topic 'T')"
        )
    for name in _SECRETS:
        if name in options:
            raise BadOption(
                f"option {name} of a table would stand in the catalog for all to read: give it by the environment "
                f"(ROPEWALK_SECRET_KEY, ROPEWALK_SECURITY_TOKEN), or as option secretKeyFile"
            )
    for name, value in options.items():
        if not any(fits(name, use) for use in ("read", "stream", "write")):
            parse_options({name: value}, "read")  # which says what is wrong with the name
    return options


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with options in the metadata of a field, of a STRING where there is one."""
    from pyspark.sql.types import StringType, StructField, StructType, VarcharType

    text = json.dumps(dict(options), sort_keys=True)
    fields = list(schema.fields)
    strings = [number for number, one in enumerate(fields) if isinstance(one.dataType, StringType)]
    number = strings[0] if strings else 0
    carrier = fields[number]
    kind = VarcharType(_LENGTH_MIN + crc32(text.encode()) % _LENGTH_MIN) if strings else carrier.dataType
    fields[number] = StructField(carrier.name, kind, carrier.nullable, {**carrier.metadata, _KEY: text})
    return StructType(fields)


def options_of(raw: Mapping[str, str], schema: StructType, use: Use) -> dict[str, str]:
    """Return the options of a read or write: the caller's, before those that its table has in the schema.

    Raises BadOption for a write to a table whose options cannot have come here.
    """
    from pyspark.sql.types import StringType, VarcharType

    kept: dict[str, str] = {}
    if use != "write" or not any(name.lower() in _OF_FRAMES for name in raw):
        for field in schema.fields:
            if _KEY not in field.metadata:
                continue
            if use == "write" and not isinstance(field.dataType, StringType | VarcharType):
                raise BadOption(_NO_CARRIER)
            kept = json.loads(field.metadata[_KEY])
    if use == "write" and not kept and not raw:
        raise BadOption(_NO_CARRIER)
    return {name: value for name, value in kept.items() if fits(name, use)} | dict(raw)
