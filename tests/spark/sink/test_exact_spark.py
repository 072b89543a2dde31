"""Exactly-once writes through Spark itself: batches, micro-batches that fail, and what users see of mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ropewalk.client.blocking.admin import Admin
from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 240


def write(frame: DataFrame, broker: RopewalkBroker, topic: str, sink_id: str, **options: str) -> None:
    """One batch write."""
    (
        frame.write.format("ropewalk")
        .option("nameServer", broker.namesrv)
        .option("topic", topic)
        .option("delivery", "exactly-once")
        .option("sinkId", sink_id)
        .options(**options)
        .mode("append")
        .save()
    )


def numbers(broker: RopewalkBroker, topic: str, count: int) -> list[int]:
    return sorted(int(record.body) for record in broker.messages(topic, count))


def test_a_batch_write_is_done_once_under_its_name(
    spark: SparkSession, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=3)
    rows = spark.range(0, 300, 1, 3).selectExpr("cast(id as string) as body", "concat('k', id % 7) as keys")
    for _ in range(2):
        write(rows, ropewalk_broker, topic, "once")
        assert numbers(ropewalk_broker, topic, 300) == list(range(300))
    with pytest.raises(
        Exception, match=r"once has done its batch write, with other rows .*sinkId of its own"
    ):
        write(rows.where("body < 100"), ropewalk_broker, topic, "once")
    write(rows.where("cast(body as int) < 10"), ropewalk_broker, topic, "another")
    assert len(numbers(ropewalk_broker, topic, 310)) == 310
    with Admin(ropewalk_broker.namesrv) as admin:
        sinks = {sink.sink_id: sink for sink in admin.sinks()}
    assert (sinks["once"].query, sinks["once"].batch, sinks["once"].is_open) == ("-", 0, False)


def test_a_task_that_fails_after_it_wrote_is_run_again_without_a_second_row(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    from pyspark.sql import functions

    topic = ropewalk_broker.topic(queues=2)
    marker = str(tmp_path / "failed")

    def fail_once(body: str) -> str:
        import os

        if body == "350" and not os.path.exists(marker):
            open(marker, "w").close()
            raise RuntimeError("this executor is out of luck")
        return body

    unlucky = functions.udf(fail_once, useArrow=False)
    rows = spark.range(0, 400, 1, 1).select(unlucky(functions.col("id").cast("string")).alias("body"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    try:
        write(rows, ropewalk_broker, topic, "unlucky", batchMessages="10")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(marker).exists()
    assert numbers(ropewalk_broker, topic, 400) == list(range(400))


def test_a_micro_batch_whose_commit_failed_is_repeated_and_rows_are_there_once(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, tmp_path: Path
) -> None:
    source, topic = ropewalk_broker.topic("source", queues=2), ropewalk_broker.topic("target", queues=2)
    fill(ropewalk_broker, source, 120)
    fail = [True]

    def sink(frame: DataFrame, batch_id: int) -> None:
        write(frame.selectExpr("body", "keys"), ropewalk_broker, topic, "in-foreach")
        if fail[0] and batch_id == 1:
            raise RuntimeError("the driver is out of luck")

    def run() -> Any:
        query = (
            spark.readStream.format("ropewalk")
            .option("nameServer", ropewalk_broker.namesrv)
            .option("topic", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "60")
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE_S)
        return query

    with pytest.raises(Exception, match="the driver is out of luck"):
        run()
    fail[0] = False
    assert run().exception() is None
    assert numbers(ropewalk_broker, topic, 120) == list(range(120))
    with Admin(ropewalk_broker.namesrv) as admin:
        (state,) = [sink for sink in admin.sinks() if sink.sink_id == "in-foreach"]
    stored = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    assert (state.query, state.batch) == (stored["id"][:8], 1)
    # Its checkpoint is lost: all rows would come a second time.
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(
        Exception, match=f"in-foreach belongs to the streaming query {state.query}, and this is the"
    ):
        run()
    assert numbers(ropewalk_broker, topic, 120) == list(range(120))


@pytest.mark.parametrize(
    ("column", "given", "says"),
    [
        ("topic", {"topic": ""}, "."),
        ("delayLevel", {}, "takes no delayed rows"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(
    spark: SparkSession, ropewalk_broker: RopewalkBroker, column: str, given: dict[str, str], says: str
) -> None:
    topic = ropewalk_broker.topic()
    rows = spark.range(1).selectExpr(
        "'x' as body", f"{'1' if column == 'delayLevel' else repr(topic)} as {column}"
    )
    with pytest.raises(Exception, match=says):
        write(rows, ropewalk_broker, topic, "mistaken", **given)
