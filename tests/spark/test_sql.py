"""SQL over the data source: tables that keep their options, temporary views, and what is refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import fill
from tests.spark.stores import MadeStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 240


@pytest.fixture(autouse=True)
def tables_are_dropped(spark: SparkSession) -> Iterator[None]:
    yield
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


def test_a_table_is_a_topic_whenever_it_is_read(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 100)
    spark.sql(
        f"CREATE TABLE orders USING ropewalk OPTIONS (nameServer '{ropewalk_broker.namesrv}', topic '{topic}')"
    )
    assert count(spark, "SELECT count(*) FROM orders") == 100
    fill(ropewalk_broker, topic, 20, start=100)
    assert count(spark, "SELECT count(*) FROM orders WHERE cast(body AS string) >= '000090'") == 30
    # What a query says goes before what its table says.
    assert count(spark, "SELECT count(*) FROM orders WITH (endingTimestamp = '1000')") == 0
    frame = spark.readStream.option("startingOffsets", "earliest").table("orders")
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "lake"))
    )
    assert query.awaitTermination(PATIENCE_S)
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 120


def test_rows_are_inserted_into_a_table_of_a_messages_parts(
    spark: SparkSession, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    spark.sql(
        f"CREATE TABLE loud USING ropewalk OPTIONS (nameServer '{ropewalk_broker.namesrv}', topic '{topic}', "
        f"columns 'keys,tags,body')"
    )
    spark.sql(
        "INSERT INTO loud SELECT 'k1', 'a', cast('hello' AS binary) UNION ALL SELECT 'k2', 'b', X'00FF'"
    )
    records = ropewalk_broker.messages(topic, 2)
    assert sorted((record.properties["KEYS"], record.body) for record in records) == [
        ("k1", b"hello"),
        ("k2", b"\0\xff"),
    ]
    assert count(spark, "SELECT count(*) FROM loud WHERE tags = 'b'") == 1


def test_a_store_is_a_table_and_a_view(spark: SparkSession, tmp_path: Path) -> None:
    MadeStore(tmp_path / "store").fill(40)
    options = f"mode 'store', path '{tmp_path / 'store'}', endAt 'scan'"
    spark.sql(f"CREATE TABLE archive USING ropewalk OPTIONS ({options})")
    spark.sql(f"CREATE TEMPORARY VIEW archived USING ropewalk OPTIONS ({options}, topic 'orders')")
    assert count(spark, "SELECT count(*) FROM archive") == 40
    assert count(spark, "SELECT count(DISTINCT queueOffset) FROM archived") == 10
    assert (
        count(spark, "SELECT count(*) FROM archive a JOIN archived b USING (topic, queueId, queueOffset)")
        == 20
    )


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("CREATE TABLE t USING ropewalk OPTIONS (nameServer 'h:1', topik 'T')", r"did you mean topic\?"),
        ("CREATE TABLE t USING ropewalk", "a table needs options: CREATE TABLE name USING ropewalk OPTIONS"),
        ("CREATE TABLE t USING ropewalk OPTIONS (nameServer 'h:1')", "which topics"),
        (
            "CREATE TABLE t USING ropewalk OPTIONS (nameServer 'h:1', topic 'T', secretKey 's3cret')",
            "option secretkey of a table would stand in the catalog for all to read",
        ),
        ("CREATE TEMPORARY VIEW t USING ropewalk OPTIONS (topic 'T')", "nameServer is missing"),
    ],
)
def test_a_wrong_option_is_told_when_the_table_is_made(
    spark: SparkSession, statement: str, says: str
) -> None:
    with pytest.raises(Exception, match=says) as raised:
        spark.sql(statement)
    assert "s3cret" not in str(raised.value)


def test_a_table_with_columns_of_its_own_says_how_to_choose_them(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t (topic STRING) USING ropewalk OPTIONS (nameServer 'h:1', topic 'T')")
    with pytest.raises(Exception, match=r"leave the columns out .*option columns chooses some"):
        spark.sql("SELECT * FROM t").collect()
