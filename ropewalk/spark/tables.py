"""Options of SQL tables: `CREATE TABLE orders USING ropewalk OPTIONS (nameServer '…', topic 'orders')`.

Spark asks a source for the schema of a table that is created, with the options among the table's properties, and
leaves the options out when the table is read or written (seen with 4.3). The schema it keeps, metadata of its fields
included. So the options travel there: `with_options` puts them into the metadata of the first field, `options_of` takes
them out. Frames and temporary views have their options as they are, and no such metadata.

Options of a query (`SELECT … FROM orders WITH (endingTimestamp = '…')`) go before those of its table. A table holds
options of reads and of writes; each use takes its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ropewalk.spark.options import BadOption, Use, fits, parse_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["is_table", "options_of", "table_options", "with_options"]

_KEY: Final = "ropewalk.options"
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
    """Return the schema with options in the metadata of its first field."""
    from pyspark.sql.types import StructField, StructType

    first, *others = schema.fields
    metadata = {**first.metadata, _KEY: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(raw: Mapping[str, str], schema: StructType, use: Use) -> dict[str, str]:
    """Return the options of a read or write: the caller's, before those that its table has in the schema."""
    kept: dict[str, str] = {}
    for field in schema.fields:
        if _KEY in field.metadata:
            kept = json.loads(field.metadata[_KEY])
    return {name: value for name, value in kept.items() if fits(name, use)} | dict(raw)
