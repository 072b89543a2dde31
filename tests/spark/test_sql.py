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


def test_columns_that_are_named_as_the_tables_are_inserted_into_its_topic_and_no_other(
    spark: SparkSession, ropewalk_broker: RopewalkBroker
) -> None:
    """Spark hands such columns over as they are, with the metadata of the table that they were read from, or none."""
    source, first, second = (ropewalk_broker.topic(name, queues=1) for name in ("s", "one", "two"))
    fill(ropewalk_broker, source, 10)
    address = f"nameServer '{ropewalk_broker.namesrv}'"
    spark.sql(f"CREATE TABLE orders USING ropewalk OPTIONS ({address}, topic '{source}')")
    columns = "columns 'keys,tags,body'"
    for name, topic in (("first", first), ("second", second)):
        spark.sql(f"CREATE TABLE {name} USING ropewalk OPTIONS ({address}, topic '{topic}', {columns})")
    spark.sql("INSERT INTO first SELECT keys, tags, body FROM orders LIMIT 5")
    spark.sql("INSERT INTO second SELECT * FROM first")
    found = {topic: ropewalk_broker.messages(topic, 5) for topic in (first, second)}
    assert [record.body for record in found[first]] == [record.body for record in found[second]]
    assert len(found[first]) == len(found[second]) == 5
    # The options of a frame are its own: none of the table that it was read from.
    frame = spark.table("first").write.format("ropewalk").option("nameServer", ropewalk_broker.namesrv)
    with pytest.raises(Exception, match="where to"):
        frame.mode("append").save()
    spark.sql(f"CREATE TABLE bare USING ropewalk OPTIONS ({address}, topic '{first}', columns 'body')")
    for query in ("SELECT body FROM orders", "SELECT body FROM bare"):
        with pytest.raises(Exception, match=r"a text among them, such as columns 'keys,tags,body'"):
            spark.sql(f"INSERT INTO bare {query}")
    assert len(ropewalk_broker.messages(first, 5)) == 5


def test_an_insert_is_done_once_under_its_name(spark: SparkSession, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=1)
    spark.sql(
        f"CREATE TABLE exact USING ropewalk OPTIONS (nameServer '{ropewalk_broker.namesrv}', topic '{topic}', "
        f"columns 'keys,body', delivery 'exactly-once')"
    )
    insert = "INSERT INTO exact {} SELECT 'k' AS keys, cast('{}' AS binary) AS body"
    for _ in range(2):
        spark.sql(insert.format(f"WITH (sinkId = '{topic}-1')", "one"))
    spark.sql(insert.format(f"WITH (sinkId = '{topic}-2')", "two"))
    with pytest.raises(Exception, match="has done its batch write, with other rows"):
        spark.sql(insert.format(f"WITH (sinkId = '{topic}-2')", "three"))
    with pytest.raises(Exception, match="needs option sinkId"):
        spark.sql(insert.format("", "four"))
    assert sorted(record.body for record in ropewalk_broker.messages(topic, 2)) == [b"one", b"two"]


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
