"""Parse message bodies that are JSON: a body's fields become columns beside the message's own.

    orders = ropewalk.spark.json_bodies(frame, "orderId BIGINT, amount DECIMAL(10,2), at TIMESTAMP")

The work is Spark's `from_json`, in batch and in streaming queries; times without a zone are of the session's zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["MALFORMED", "BadSchema", "parse_json"]

MALFORMED: Final = "malformed"
"""The column for bodies that are not JSON of the schema."""


class BadSchema(RopewalkError):
    """A schema of bodies that does not fit the frame."""


def parse_json(
    frame: DataFrame,
    schema: str | StructType,
    *,
    column: str | None = None,
    malformed: str = "keep",
) -> DataFrame:
    """Replace the column of bodies by the fields of their JSON.

    `schema` is a StructType or text such as "orderId BIGINT, name STRING"; fields that a body lacks are null. `column`
    is `body`, or `value` where the frame has that. A body that is not JSON of the schema is kept as text in a further
    column `malformed`, which is null elsewhere; "drop" leaves such rows out, "fail" fails the query. Raises BadSchema.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    if malformed not in ("keep", "drop", "fail"):
        raise BadSchema(f"malformed is {malformed!r}: it is keep, drop or fail")
    bodies = column or next((name for name in ("body", "value") if name in frame.columns), None)
    if bodies is None or bodies not in frame.columns:
        raise BadSchema(f"there is no column {column or 'body'}; the frame has {', '.join(frame.columns)}")
    fields = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(fields, StructType):
        raise BadSchema(
            f"a schema of bodies has fields, such as 'orderId BIGINT, name STRING', and this is {schema!r}"
        )
    others = [name for name in frame.columns if name != bodies]
    taken = {name.lower() for name in others} | {MALFORMED}
    doubled = [field.name for field in fields if field.name.lower() in taken]
    if doubled:
        raise BadSchema(
            f"the schema's field {doubled[0]} has the name of a column of the frame; drop or rename that first: "
            f"frame.drop({doubled[0]!r}), or frame.withColumnRenamed({doubled[0]!r}, ...)"
        )
    text = f.col(f"`{bodies}`").cast("string")
    if malformed == "fail":
        parsed = f.from_json(text, fields, {"mode": "FAILFAST"})
    else:
        with_text = StructType([*fields.fields, StructField(MALFORMED, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
        parsed = f.from_json(text, with_text, options)
    kept = frame.select(*(f.col(f"`{name}`") for name in others), parsed.alias("__json")).select(
        *(f.col(f"`{name}`") for name in others), "__json.*"
    )
    return kept.where(f.col(MALFORMED).isNull()).drop(MALFORMED) if malformed == "drop" else kept
