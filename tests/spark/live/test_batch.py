"""Batch reads of live topics without Spark around them: what is planned, and what every row holds."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from ropewalk.client.core.routes import QueueData, TopicRoute
from ropewalk.spark.live.offsets import DataLoss, QueueKey, Range
from ropewalk.spark.live.read import _pool
from ropewalk.spark.live.tasks import tasks_of
from ropewalk.spark.options import BadOption, parse_options
from ropewalk.spark.versions import VersionMismatch
from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import MakeReader, fill, numbers, rows_of

if TYPE_CHECKING:
    from ropewalk.spark.live.cluster import Cluster


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "stock"])
def test_a_topic_is_read_whole_with_every_column(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ropewalk_broker.topic(queues=3)
    fill(ropewalk_broker, topic, 1000)
    if not bulk:
        monkeypatch.setattr("ropewalk.spark.live.read._MemberLocator.supports_bulk", False)
    reader = make_reader(topic=topic)
    partitions = reader.partitions()
    assert len(partitions) == 3
    rows = rows_of(reader, partitions)
    assert numbers(rows) == list(range(1000))
    row = next(row for row in rows if row["body"] == b"000007")
    assert (row["topic"], row["queueId"], row["queueOffset"], row["keys"]) == (topic, 1, 2, "k7")
    assert row["brokerName"] == ropewalk_broker.client.read_queues(topic)[0].broker_name
    assert ("n", "7") in row["properties"]
    of_queue = [row["queueOffset"] for row in rows if row["queueId"] == 0]
    assert of_queue == sorted(of_queue)


def test_batches_have_the_schema_that_spark_expects_and_are_bounded(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 1000)
    reader = make_reader(topic=topic, columns="queueOffset,body", arrowBatchRows="300")
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    expected = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
    assert {batch.schema for batch in batches} == {expected}
    assert all(batch.num_rows <= 300 for batch in batches)
    assert sum(batch.num_rows for batch in batches) == 1000


class TwoBrokers:
    """A topic with three queues at `b` and two at `a`, as the driver sees it; more of them can be written to."""

    routes: ClassVar = {"T": TopicRoute({}, (QueueData("b", 3, 5, 6), QueueData("a", 2, 4, 6)))}

    def member(self, _key: QueueKey) -> tuple[str, int]:
        return "h:1", 0


def test_partitions_of_the_kafka_preset_are_dense_over_brokers() -> None:
    ranges = [Range(QueueKey("T", broker, queue_id), 0, 9) for broker, queue_id in (("a", 1), ("b", 0))]
    options = parse_options({"nameServer": "h:1", "topic": "T", "preset": "kafka"}, "read", {})
    tasks = tasks_of(ranges, options, cast("Cluster", TwoBrokers()))
    assert [task.partition_base + task.key.queue_id for task in tasks] == [1, 2]


def test_the_kafka_preset_counts_partitions(ropewalk_broker: RopewalkBroker, make_reader: MakeReader) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 10)
    rows = rows_of(reader := make_reader(topic=topic, preset="kafka"), reader.partitions())
    assert {row["partition"] for row in rows} == {0, 1}
    assert sorted(int(row["value"]) for row in rows) == list(range(10))
    assert sorted(row["key"] for row in rows) == sorted(b"k%d" % n for n in range(10))


def test_an_empty_topic_and_the_partition_spark_makes_up_for_it_give_no_rows(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    reader = make_reader(topic=ropewalk_broker.topic())
    assert list(reader.partitions()) == []
    assert list(reader.read(InputPartition(None))) == []


def test_a_topic_that_does_not_exist_is_named(make_reader: MakeReader) -> None:
    with pytest.raises(BadOption, match="topic nowhere does not exist"):
        make_reader(topic="nowhere").partitions()


def test_pieces_are_planned_and_cover_the_topic(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 3000)
    reader = make_reader(topic=topic, maxRecordsPerPartition="1000")
    assert len(reader.partitions()) == 3
    reader = make_reader(topic=topic, minPartitions="2")
    partitions = reader.partitions()
    assert len(partitions) == 2
    assert numbers(rows_of(reader, partitions)) == list(range(3000))


def test_a_range_by_offsets_and_by_time(ropewalk_broker: RopewalkBroker, make_reader: MakeReader) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 100)
    (queue,) = ropewalk_broker.client.read_queues(topic)
    times = [record.store_timestamp_ms for record in ropewalk_broker.messages(topic)]
    ropewalk_broker.wait_until(lambda: time.time() * 1000 > times[-1] + 2)
    fill(ropewalk_broker, topic, 100, start=100)
    middle = times[-1] + 1

    def given(number: int) -> str:
        return json.dumps({topic: {queue.broker_name: {"0": number}}})

    def read(**options: str) -> list[int]:
        reader = make_reader(topic=topic, **options)
        return numbers(rows_of(reader, reader.partitions()))

    assert read(startingOffsets=given(30), endingOffsets=given(60)) == list(range(30, 60))
    assert read(startingTimestamp=str(middle)) == list(range(100, 200))
    assert read(endingTimestamp=str(middle)) == list(range(100))
    assert read(startingOffsetsByTimestamp=given(middle), startingOffsets="earliest") == list(range(100, 200))
    assert read(startingOffsets=given(60), endingOffsets=given(30)) == []
    with pytest.raises(BadOption, match="no message at or after the starting time"):
        read(startingTimestamp=str(middle + 3_600_000))
    assert read(startingTimestamp=str(middle + 3_600_000), startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(DataLoss, match="200 to 299 are gone"):
        read(endingOffsets=given(300))


def test_patterns_and_assignments(ropewalk_broker: RopewalkBroker, make_reader: MakeReader) -> None:
    one, two = ropewalk_broker.topic("p-one", queues=2), ropewalk_broker.topic("p-two", queues=1)
    ropewalk_broker.topic("other")
    fill(ropewalk_broker, one, 10)
    fill(ropewalk_broker, two, 10, start=10)
    reader = make_reader(subscribePattern=f"{ropewalk_broker.prefix}p-.*")
    assert numbers(rows_of(reader, reader.partitions())) == list(range(20))
    broker_name = ropewalk_broker.client.read_queues(one)[0].broker_name
    reader = make_reader(assign=json.dumps({one: {broker_name: [1]}, two: {broker_name: [0]}}))
    assert numbers(rows_of(reader, reader.partitions())) == [1, 3, 5, 7, 9, *range(10, 20)]


def test_brokers_can_be_named_without_a_name_server(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 50)
    name = ropewalk_broker.client.read_queues(topic)[0].broker_name
    reader = make_reader(nameServer=None, brokers=f"{name}@{ropewalk_broker.broker}", topic=topic)
    assert numbers(rows_of(reader, reader.partitions())) == list(range(50))


def test_a_broker_in_a_name_servers_place_is_called_one(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    reader = make_reader(nameServer=ropewalk_broker.broker, topic="T")
    with pytest.raises(BadOption, match="is no name server, but a broker perhaps"):
        reader.partitions()


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "stock"])
def test_tags_are_filtered_also_where_their_hashes_are_equal(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bulk:
        monkeypatch.setattr("ropewalk.spark.live.read._MemberLocator.supports_bulk", False)
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 300, tags="Aa,BB,C")  # "Aa" and "BB" have one hash in Java
    reader = make_reader(topic=topic, filterTags="Aa || C")
    rows = rows_of(reader, reader.partitions())
    assert numbers(rows) == [n for n in range(300) if n % 3 != 1]
    assert {row["tags"] for row in rows} == {"Aa", "C"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"accessKey": "a", "secretKey": "s"}, "accessKey: signed requests are not supported yet"),
        ({"vip": "true"}, "option vip"),
        ({"nameServer": "http://h:1"}, "option nameServer: .*is a URL"),
        ({"nameServer": None, "brokers": "h:1"}, r"option brokers: 'h:1': expected NAME@HOST:PORT"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(
    make_reader: MakeReader, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadOption, match=says):
        make_reader(topic="T", **given)


def test_a_worker_with_another_version_refuses(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 1)
    reader = make_reader(topic=topic)
    (partition,) = reader.partitions()
    monkeypatch.setattr("ropewalk.spark.versions.__version__", "9.9.9")
    with pytest.raises(VersionMismatch, match=r"this worker has 9\.9\.9"):
        list(reader.read(partition))


def test_a_connection_serves_one_task_after_the_other(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=4)
    fill(ropewalk_broker, topic, 400)
    reader = make_reader(topic=topic)
    rows_of(reader, reader.partitions())
    (connection,) = [one for one, _ in _pool()._idle.values()]
    rows_of(reader, reader.partitions())
    assert [one for one, _ in _pool()._idle.values()] == [connection]


def test_a_query_that_stops_half_way_leaves_no_connection_behind(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 1000)
    reader = make_reader(topic=topic, arrowBatchRows="10", pullBatchSize="10")
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not _pool()._idle
