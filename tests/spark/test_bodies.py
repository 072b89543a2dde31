"""Bodies that are JSON: fields as columns, malformed ones kept, left out or an error, times of the session's zone."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from ropewalk.spark import json_bodies
from ropewalk.spark.bodies import BadSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "orderId BIGINT, amount DECIMAL(10,2), at TIMESTAMP"


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    bodies = [
        b'{"orderId": 1, "amount": 12.50, "at": "2025-06-01T12:00:00"}',
        b'{"orderId": 2, "at": "2025-06-01T12:00:00Z", "more": [1]}',
        b"no JSON",
        b'{"orderId": "three"}',
    ]
    rows = [(f"k{n}", bytearray(body)) for n, body in enumerate(bodies)]
    return spark.createDataFrame(rows, "keys STRING, body BINARY")


def test_fields_are_columns_and_what_does_not_fit_is_kept(spark: SparkSession, frame: DataFrame) -> None:
    parsed = json_bodies(frame, SCHEMA)
    assert parsed.columns == ["keys", "orderId", "amount", "at", "malformed"]
    first, second, third, fourth = parsed.orderBy("keys").collect()
    assert (first.orderId, first.amount, first.malformed) == (1, Decimal("12.50"), None)
    assert (second.orderId, second.amount, second.malformed) == (2, None, None)
    assert (third.keys, third.orderId, third.malformed) == ("k2", None, "no JSON")
    assert fourth.malformed == '{"orderId": "three"}'


def test_times_without_a_zone_are_of_the_sessions(spark: SparkSession, frame: DataFrame) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = json_bodies(frame, SCHEMA, malformed="drop").selectExpr("unix_millis(at) AS ms").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    noon = int(datetime(2025, 6, 1, 12, tzinfo=UTC).timestamp() * 1000)
    assert sorted(row.ms for row in rows) == [noon - 9 * 3_600_000, noon]


def test_malformed_ones_are_left_out_or_an_error(frame: DataFrame) -> None:
    dropped = json_bodies(frame, SCHEMA, malformed="drop")
    assert dropped.columns == ["keys", "orderId", "amount", "at"]
    assert dropped.count() == 2
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        json_bodies(frame, SCHEMA, malformed="fail").collect()


def test_a_schema_that_does_not_fit_the_frame_is_refused(frame: DataFrame) -> None:
    with pytest.raises(BadSchema, match="field keys has the name of a column of the frame"):
        json_bodies(frame, "keys STRING")
    with pytest.raises(BadSchema, match="there is no column value; the frame has keys, body"):
        json_bodies(frame, SCHEMA, column="value")
    with pytest.raises(BadSchema, match="it is keep, drop or fail"):
        json_bodies(frame, SCHEMA, malformed="ignore")
    with pytest.raises(BadSchema, match="a schema of bodies has fields"):
        json_bodies(frame, "BIGINT")
