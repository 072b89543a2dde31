"""The columns, as Arrow and as Spark see them."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ropewalk.spark.rows.schema import (
    COLUMNS,
    PRESETS,
    SchemaMismatch,
    Selection,
    chosen_columns,
    selection_of,
)
from ropewalk.spark.versions import Stamp, VersionMismatch, check_stamp, stamp

# By hand, because Spark parses such text only with a JVM.
KINDS: dict[str, t.DataType] = {
    "string": t.StringType(),
    "int": t.IntegerType(),
    "bigint": t.LongType(),
    "binary": t.BinaryType(),
    "boolean": t.BooleanType(),
    "timestamp": t.TimestampType(),
    "map<string,string>": t.MapType(t.StringType(), t.StringType()),
    "array<struct<key:string,value:binary>>": t.ArrayType(
        t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    ),
}


def struct_of(selection: Selection) -> t.StructType:
    fields = [
        t.StructField(name, KINDS[selection.type_of(name)], name not in selection.required)
        for name in selection.names
    ]
    return t.StructType(fields)


@pytest.mark.parametrize(
    "selection",
    [
        Selection(tuple(COLUMNS)),
        Selection(("properties",), raw_properties=True),
        Selection(("body", "topic"), required=frozenset({"topic"})),
        *(chosen_columns(preset) for preset in PRESETS),
    ],
)
def test_record_batches_have_the_schema_that_spark_expects(selection: Selection) -> None:
    struct = struct_of(selection)
    assert selection.arrow_schema() == to_arrow_schema(struct, timezone="UTC")
    assert selection_of(struct, raw_properties=selection.raw_properties) == selection


def test_properties_as_text_ask_for_the_raw_ones() -> None:
    struct = t.StructType([t.StructField("properties", t.StringType())])
    assert selection_of(struct).raw_properties
    struct = t.StructType([t.StructField("properties", KINDS["map<string,string>"])])
    assert not selection_of(struct, raw_properties=True).raw_properties


def test_a_column_of_another_type_or_none_at_all_is_refused() -> None:
    wrong = t.StructType([t.StructField("queueOffset", t.IntegerType())])
    with pytest.raises(SchemaMismatch, match="column queueOffset is BIGINT and cannot be read as INT"):
        selection_of(wrong)
    unknown = t.StructType([t.StructField("offsets", t.LongType())])
    with pytest.raises(SchemaMismatch, match=r"no column 'offsets'; did you mean offset\?"):
        selection_of(unknown)
    with pytest.raises(SchemaMismatch, match="a schema without columns"):
        selection_of(t.StructType([]))
    with pytest.raises(SchemaMismatch, match="preset 'most' does not exist"):
        chosen_columns("most")


def test_a_worker_with_another_version_refuses() -> None:
    check_stamp(stamp())
    with pytest.raises(VersionMismatch, match=r"the driver runs ropewalk 99\.0 .* install the same version"):
        check_stamp(Stamp("99.0", stamp().format_version))
