"""Live topics through Spark itself: DataFrames, queries with checkpoints, and what users see of mistakes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import command_of
from ropewalk.codes import RequestCode
from ropewalk.format.headers import TopicHeader
from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

PATIENCE_S = 240
"""A query takes seconds, and many times that on a machine that is busy with something else."""


def batch(spark: SparkSession, broker: RopewalkBroker, **options: str) -> DataFrameReader:
    return spark.read.format("ropewalk").option("nameServer", broker.namesrv).options(**options)


def stream(spark: SparkSession, broker: RopewalkBroker, **options: str) -> DataStreamReader:
    reader = spark.readStream.format("ropewalk").option("nameServer", broker.namesrv)
    return reader.option("startingOffsets", "earliest").options(**options)


def run_once(frame: DataFrame, checkpoint: Path, lake: Path, **options: str) -> StreamingQuery:
    """One AvailableNow run into Parquet, to its end."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(lake))
        .trigger(availableNow=True)
        .options(**options)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S), query.status
    return query


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_a_topic_is_a_data_frame(spark: SparkSession, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=3)
    fill(ropewalk_broker, topic, 2000)
    frame = batch(spark, ropewalk_broker, topic=topic).load()
    assert frame.count() == 2000
    assert numbers(frame) == list(range(2000))
    (row,) = frame.where("keys = 'k7'").collect()
    assert (row.topic, row.queueId, row.queueOffset, bytes(row.body)) == (topic, 1, 2, b"000007")
    assert row.storeTimestamp is not None
    narrow = batch(spark, ropewalk_broker, topic=topic).schema("queueOffset BIGINT, queueId INT").load()
    by_queue = narrow.groupBy("queueId").count().orderBy("queueId").collect()
    assert [row["count"] for row in by_queue] == [667, 667, 666]
    assert batch(spark, ropewalk_broker, topic=ropewalk_broker.topic("empty")).load().count() == 0


def test_the_mistake_is_what_the_user_reads(spark: SparkSession, ropewalk_broker: RopewalkBroker) -> None:
    with pytest.raises(Exception, match=r"no option 'topik'; did you mean topic\?"):
        batch(spark, ropewalk_broker, topik="T").load()
    with pytest.raises(Exception, match="topic nowhere does not exist"):
        batch(spark, ropewalk_broker, topic="nowhere").load().count()
    with pytest.raises(Exception, match=r"did you mean queueOffset\?"):
        batch(spark, ropewalk_broker, topic="T").schema("queueOfset BIGINT").load().count()


def test_a_stream_reads_each_message_once_over_restarts(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    frame = stream(spark, ropewalk_broker, topic=topic, maxOffsetsPerTrigger="40").load()
    checkpoint, lake = tmp_path / "checkpoint", tmp_path / "lake"
    fill(ropewalk_broker, topic, 100)
    first = run_once(frame, checkpoint, lake)
    assert first.exception() is None
    rows = [progress["numInputRows"] for progress in first.recentProgress]
    assert [count for count in rows if count] == [40, 40, 20]
    fill(ropewalk_broker, topic, 30, start=100)
    second = run_once(frame, checkpoint, lake)
    assert second.exception() is None
    assert numbers(spark.read.parquet(str(lake))) == list(range(130))
    assert second.lastProgress is not None
    last = json.loads(second.lastProgress["sources"][0]["endOffset"])
    assert sum(number for queues in last["q"][topic].values() for number in queues.values()) == 130
    # Another topic on the same checkpoint is refused, in words.
    other = stream(spark, ropewalk_broker, topic=ropewalk_broker.topic("other")).load()
    with pytest.raises(Exception, match="checkpointLocation"):
        run_once(other, checkpoint, lake)


def test_a_batch_that_fails_is_repeated_as_it_was_and_a_query_begins_where_it_began(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    seen: list[tuple[int, list[int]]] = []
    fail = [True]

    def sink(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, numbers(frame)))
        if fail[0]:
            raise RuntimeError("the lake is closed")

    def start() -> StreamingQuery:
        reader = stream(spark, ropewalk_broker, topic=topic, startingOffsets="latest")
        return (
            reader.load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )

    fill(ropewalk_broker, topic, 10)
    query = start()  # at the end; its batch 0 is empty, and fails all the same
    with pytest.raises(Exception, match="the lake is closed"):
        query.awaitTermination(PATIENCE_S)
    fill(ropewalk_broker, topic, 20, start=10)
    fail[0] = False
    query = start()
    deadline = time.monotonic() + PATIENCE_S
    while sum(len(rows) for _, rows in seen) < 20 and time.monotonic() < deadline:
        assert query.exception() is None, str(query.exception())
        time.sleep(0.05)
    query.stop()
    assert seen[:2] == [(0, []), (0, [])]
    assert sorted(n for _, rows in seen for n in rows) == list(range(10, 30))


def test_a_stream_becomes_messages_of_another_topic(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    source, target = ropewalk_broker.topic("source", queues=2), ropewalk_broker.topic("target", queues=2)
    frame = stream(spark, ropewalk_broker, topic=source).load()
    louder = frame.selectExpr(
        "concat('copy of ', cast(body as string)) as value", "cast(keys as binary) as key"
    )
    writer = (
        louder.writeStream.format("ropewalk")
        .option("nameServer", ropewalk_broker.namesrv)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    fill(ropewalk_broker, source, 200)
    query = writer.start()
    assert query.awaitTermination(PATIENCE_S), query.status
    assert query.exception() is None
    records = ropewalk_broker.messages(target, 200)
    assert sorted(record.body for record in records) == [b"copy of %06d" % n for n in range(200)]
    assert {record.properties["KEYS"] for record in records} == {f"k{n}" for n in range(200)}
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        batch(spark, ropewalk_broker, topic=source, columns="body").load().write.format("ropewalk").option(
            "nameServer", ropewalk_broker.namesrv
        ).option("topic", target).mode("overwrite").save()


def test_a_topic_that_was_deleted_is_an_error_and_so_is_another_of_its_name(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    topic = ropewalk_broker.topic("deleted", queues=1)
    frame = stream(spark, ropewalk_broker, topic=topic, pullTimeoutMs="1s").load()
    checkpoint, lake = tmp_path / "checkpoint", tmp_path / "lake"
    fill(ropewalk_broker, topic, 10)
    assert run_once(frame, checkpoint, lake).exception() is None
    fill(ropewalk_broker, topic, 5, start=10)
    with Connection(ropewalk_broker.broker) as connection:
        delete = command_of(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        assert connection.call(delete).code == 0
    # The name server may tell of the topic for a while yet; its broker has nothing of it then.
    says = f"queue 0 of {topic} at .*stands at offset 10, and (topic .* does not exist|the queue ends at 0)"
    with pytest.raises(Exception, match=says):
        run_once(frame, checkpoint, lake)
    ropewalk_broker.topic("deleted", queues=1)
    fill(ropewalk_broker, topic, 20)
    with pytest.raises(
        Exception, match=f"queue 0 of {topic} at .*message 9 was stored .*failOnDataLoss=false"
    ):
        run_once(frame, checkpoint, lake)
    assert numbers(spark.read.parquet(str(lake))) == list(range(10))
