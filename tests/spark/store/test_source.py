"""`mode=store` through Spark: what a query over a directory returns, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ropewalk.spark
from ropewalk.spark.jobs.export.sources import default_broker_name
from ropewalk.spark.spark_session import start_all
from ropewalk.spark.store.files import open_stores
from tests.spark.stores import COMPAT_NAMES, START_MS, MadeStore, unpack_compat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, path: Path | str, **options: str | int) -> DataFrame:
    return spark.read.format("ropewalk").options(mode="store", **options).load(str(path))


@pytest.mark.parametrize("name", COMPAT_NAMES)
def test_a_store_of_rocketmq_reads_as_its_java_consumer_saw_it(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    store, expected = unpack_compat(name, tmp_path)
    rows = read(spark, store, preset="full", splitBytes="20k", endAt="safe").collect()
    found = sorted((row.asDict() for row in rows), key=lambda row: int(row["physicalOffset"]))
    assert [row["physicalOffset"] for row in found] == [message["commitLogOffset"] for message in expected]
    for row, message in zip(found, expected, strict=True):
        assert told_by_spark(row) == told_by_java(message)


def told_by_spark(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "topic": row["topic"],
        "queue": (row["queueId"], row["queueOffset"]),
        "size": row["storeSize"],
        "flags": (row["flag"], row["sysFlag"] & ~1),
        "born": (round(row["bornTimestamp"].timestamp() * 1000), f"/{row['bornHost']}"),
        "stored": (round(row["storeTimestamp"].timestamp() * 1000), f"/{row['storeHost']}"),
        "again": (row["reconsumeTimes"], row["preparedTransactionOffset"]),
        "properties": row["properties"],
        "named": (row["tags"], row["keys"], row["uniqKey"]),
        "body": hashlib.sha256(row["body"]).hexdigest(),
        "crc": row["bodyCRC"],
        "id": row["msgId"],
    }


def told_by_java(message: dict[str, Any]) -> dict[str, Any]:
    properties = message["properties"]
    return {
        "topic": message["topic"],
        "queue": (message["queueId"], message["queueOffset"]),
        "size": message["storeSize"],
        "flags": (message["flag"], message["sysFlag"] & ~1),
        "born": (message["bornTimestamp"], message["bornHost"]),
        "stored": (message["storeTimestamp"], message["storeHost"]),
        "again": (message["reconsumeTimes"], message["preparedTransactionOffset"]),
        "properties": properties,
        "named": (properties.get("TAGS"), properties.get("KEYS"), properties.get("UNIQ_KEY")),
        "body": message["bodySha256"],
        "crc": message["bodyCrc"],
        "id": message["offsetMsgId"],
    }


def test_a_schema_chooses_columns_in_its_own_order(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.fill(20)
    frame = (
        spark.read.format("ropewalk")
        .schema("queueOffset BIGINT, properties STRING, topic STRING NOT NULL")
        .options(mode="store", topic="orders")
        .load(str(tmp_path))
    )
    rows = frame.orderBy("properties").collect()
    assert frame.columns == ["queueOffset", "properties", "topic"]
    assert {row.topic for row in rows} == {"orders"}
    assert len(rows) == 10
    assert rows[0].properties.startswith("KEYS\x01key-0\x02TAGS\x01tag0\x02")


def test_a_column_that_does_not_exist_is_refused_with_the_ones_that_do(
    spark: SparkSession, tmp_path: Path
) -> None:
    MadeStore(tmp_path).fill(1)
    reader = spark.read.format("ropewalk").options(mode="store")
    with pytest.raises(Exception, match="there is no column 'queueid'; did you mean queueId"):
        reader.schema("queueid INT").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="column queueId is INT and cannot be read as BIGINT"):
        reader.schema("queueId BIGINT").load(str(tmp_path)).collect()


def test_an_empty_store_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "consumequeue").mkdir()
    assert read(spark, tmp_path).count() == 0


def test_the_kafka_preset_has_the_columns_of_sparks_kafka_source(spark: SparkSession, tmp_path: Path) -> None:
    for name in "ab":
        made = MadeStore(tmp_path / name)
        for queue_id in (0, 1):
            made.append("orders", queue_id, name.encode(), KEYS="k1", TAGS="t")
    both = f"broker-b={tmp_path / 'b'},broker-a={tmp_path / 'a'}"
    frame = read(spark, both, preset="kafka", includeHeaders="true")
    rows = sorted(frame.collect(), key=lambda row: int(row.partition))
    assert [(row.partition, bytes(row.value)) for row in rows] == [(0, b"a"), (1, b"a"), (2, b"b"), (3, b"b")]
    assert {(bytes(row.key), row.offset, row.timestampType) for row in rows} == {(b"k1", 0, 1)}
    assert [(header.key, bytes(header.value)) for header in rows[0].headers] == [
        ("KEYS", b"k1"),
        ("TAGS", b"t"),
    ]


def test_damage_fails_the_query_and_names_the_place(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.fill(30)
    hurt, record = made.written[11]
    made.write(hurt + 84, b"\xff")  # a body of two billion bytes
    with pytest.raises(Exception, match=rf"offset {hurt}: .*onCorrupt=skip"):
        read(spark, tmp_path).collect()
    rows = read(spark, tmp_path, onCorrupt="skip", preset="full").collect()
    assert len(rows) == 29
    assert hurt not in {row.physicalOffset for row in rows}
    assert len(record) < 800


def test_a_segment_that_vanishes_during_a_query_is_lost_data(spark: SparkSession, tmp_path: Path) -> None:
    MadeStore(tmp_path, segment_size=4096).fill(60)
    strict = read(spark, tmp_path)
    lenient = read(spark, tmp_path, failOnDataLoss="false")
    whole = strict.count()
    assert lenient.count() == whole == 60
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(Exception, match="has vanished since the read was planned"):
        strict.count()
    assert 0 < lenient.count() < whole


def run_stream(
    spark: SparkSession, path: Path, checkpoint: Path, output: Path, **options: str | int
) -> tuple[list[int], list[int]]:
    """One AvailableNow run into Parquet: rows of each batch that had any, and all physical offsets so far."""
    frame = (
        spark.readStream.format("ropewalk")
        .options(mode="store", startingOffsets="earliest", columns="physicalOffset,body")
        .options(**options)
        .load(str(path))
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(output))
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    counts = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    rows = spark.read.schema("physicalOffset BIGINT, body BINARY").parquet(str(output)).collect()
    return counts, sorted(row.physicalOffset for row in rows)


def test_a_stream_follows_a_growing_store_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store", segment_size=8192)
    made.fill(40)
    folders = (tmp_path / "store", tmp_path / "checkpoint", tmp_path / "lake")
    counts, offsets = run_stream(spark, *folders, maxOffsetsPerTrigger=25)
    assert counts == [25, 15]
    made.fill(25)
    made.append(dispatch=False)  # behind the safe end: not yet
    counts, offsets = run_stream(spark, *folders)
    assert counts == [25]
    assert offsets == [offset for offset, _ in made.written[:-1]]


def test_conditions_are_arguments_of_the_helper(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeStore(tmp_path)
    made.fill(40)
    since = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(milliseconds=11)
    frame = ropewalk.spark.read(
        spark, "orders", store=str(tmp_path), queues={"b": [1]}, since=since, tags=["tag0"], brokerName="b"
    )
    rows = frame.collect()
    assert {(row.topic, row.queueId, row.tags) for row in rows} == {("orders", 1, "tag0")}
    assert len(rows) == len([number for number in range(10, 40) if number % 4 == 2 and number % 3 == 0])


def test_queries_are_started_one_after_the_other(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "store")
    made.fill(10)
    reader = spark.readStream.format("ropewalk").options(
        mode="store", startingOffsets="earliest", columns="topic"
    )
    writers = [
        reader.load(str(made.root)).writeStream.format("memory").queryName(f"memory_{number}")
        for number in range(2)
    ]
    queries = start_all(writers)
    try:
        for query in queries:
            query.processAllAvailable()
        assert [spark.table(f"memory_{number}").count() for number in range(2)] == [10, 10]
    finally:
        for query in queries:
            query.stop()


@pytest.mark.parametrize(
    ("topics", "name"),
    [
        ({"orders": {}, "rmq_sys_SYNC_BROKER_MEMBER_broker-z": {}}, "broker-z"),
        ({"rmq_sys_SYNC_BROKER_MEMBER_a": {}, "rmq_sys_SYNC_BROKER_MEMBER_b": {}}, None),
        ({"orders": {}}, None),
        ([], None),
    ],
)
def test_rows_of_a_store_carry_its_brokers_name(tmp_path: Path, topics: object, name: str | None) -> None:
    MadeStore(tmp_path / "copy").fill(3)
    config = tmp_path / "copy" / "config"
    config.mkdir()
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (store,) = open_stores(str(tmp_path / "copy"))
    assert store.broker_name == name
    assert default_broker_name(str(tmp_path / "copy")) == (name or "copy")
    (named,) = open_stores(str(tmp_path / "copy"), "other")
    assert named.broker_name == "other"
    (config / "topics.json").write_text("{")
    (config / "topics.json.bak").write_text(json.dumps({"topicConfigTable": topics}))
    assert default_broker_name(str(tmp_path / "copy")) == (name or "copy")
