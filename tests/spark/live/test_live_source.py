"""The live source without Spark around it: planning and reading against a real broker, in one process."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from ropewalk.client.blocking import Connection
from ropewalk.client.messages import Message, command_of
from ropewalk.client.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.headers import TopicHeader
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.spark.live_cluster import BrokerSilent
from ropewalk.spark.live_offsets import CheckpointMismatch, DataLoss, QueueKey
from ropewalk.spark.live_read import _pool
from ropewalk.spark.live_source import LiveReader, LiveStreamReader
from ropewalk.spark.options import BadOption, Use, parse_options
from ropewalk.spark.versions import VersionMismatch
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import FakeCluster

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

MakeReader = Callable[..., LiveReader]
MakeStream = Callable[..., LiveStreamReader]


def options_for(broker: RopewalkBroker, use: Use, given: dict[str, Any]) -> Any:
    raw = {"nameServer": broker.namesrv, "pullTimeoutMs": "5000", "routeRefreshMs": "0", **given}
    return parse_options({name: value for name, value in raw.items() if value is not None}, use, {})


@pytest.fixture(autouse=True)
def _no_connection_is_left() -> Iterator[None]:
    yield
    for connection, _ in _pool()._idle.values():
        connection.close()
    _pool()._idle.clear()


@pytest.fixture
def make_reader(ropewalk_broker: RopewalkBroker) -> MakeReader:
    def make(broker: RopewalkBroker = ropewalk_broker, **given: Any) -> LiveReader:
        options = options_for(broker, "read", given)
        return LiveReader(options, options.selection())

    return make


@pytest.fixture
def make_stream(ropewalk_broker: RopewalkBroker) -> Iterator[MakeStream]:
    made: list[LiveStreamReader] = []

    def make(
        broker: RopewalkBroker = ropewalk_broker, clock: Callable[[], float] | None = None, **given: Any
    ) -> LiveStreamReader:
        options = options_for(broker, "stream", given)
        more = {} if clock is None else {"monotonic": clock}
        made.append(LiveStreamReader(options, options.selection(), **more))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()


def fill(broker: RopewalkBroker, topic: str, count: int, *, start: int = 0, tags: str = "") -> None:
    """Messages `start` to `start + count`, turn by turn over the queues of a topic."""
    queues = broker.client.read_queues(topic)
    for at, queue in enumerate(queues):
        numbers = range(start + at, start + count, len(queues))
        messages = [
            Message(
                b"%06d" % n,
                keys=f"k{n}",
                tags=tags.split(",")[n // len(queues) % len(tags.split(","))] if tags else None,
                properties={"n": str(n)},
            )
            for n in numbers
        ]
        for first in range(0, len(messages), 200):
            broker.client.send_batch(topic, messages[first : first + 200], queue)


def rows_of(reader: LiveReader | LiveStreamReader, partitions: Any) -> list[dict[str, Any]]:
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


# -- batch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "stock"])
def test_a_topic_is_read_whole_with_every_column(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = ropewalk_broker.topic(queues=3)
    fill(ropewalk_broker, topic, 1000)
    if not bulk:
        monkeypatch.setattr("ropewalk.spark.live_read._Finder.knows_bulk", False)
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


def test_the_kafka_preset_counts_partitions_over_brokers(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 10)
    rows = rows_of(reader := make_reader(topic=topic, preset="kafka"), reader.partitions())
    assert {row["partition"] for row in rows} == {0, 1}
    assert sorted(int(row["value"]) for row in rows) == list(range(10))
    assert sorted(row["key"] for row in rows) == sorted(b"k%d" % n for n in range(10))


def test_an_empty_topic_and_the_partition_spark_makes_up_for_it_give_no_rows(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    from pyspark.sql.datasource import InputPartition

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
    times = [record.store_timestamp for record in ropewalk_broker.messages(topic)]
    ropewalk_broker.wait_until(lambda: __import__("time").time() * 1000 > times[-1] + 2)
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


@pytest.mark.parametrize("bulk", [True, False], ids=["bulk", "stock"])
def test_tags_are_filtered_also_where_their_hashes_are_equal(
    ropewalk_broker: RopewalkBroker, make_reader: MakeReader, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bulk:
        monkeypatch.setattr("ropewalk.spark.live_read._Finder.knows_bulk", False)
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


# -- losses -----------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_between_plan_and_read(
    ropewalk_own_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    broker = ropewalk_own_broker
    topic = broker.topic("T", queues=1)
    fill(broker, topic, 10)
    reader = make_reader(broker, topic=topic)
    lenient = make_reader(broker, topic=topic, failOnDataLoss="false")
    (partition,) = reader.partitions()
    with Connection(broker.broker) as connection:
        delete = command_of(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic))
        assert connection.call(delete).code == 0
    with pytest.raises(DataLoss, match="queue 0 of T"):
        list(reader.read(partition))
    assert list(lenient.read(partition)) == []


def test_a_broker_that_dies_while_it_is_read_is_waited_for_and_then_given_up(
    ropewalk_own_broker: RopewalkBroker, make_reader: MakeReader
) -> None:
    broker = ropewalk_own_broker
    topic = broker.topic("T", queues=1)
    fill(broker, topic, 5000)
    reader = make_reader(
        broker, topic=topic, arrowBatchRows="100", pullBatchSize="100", pullInFlight="1", pullTimeoutMs="500"
    )
    (partition,) = reader.partitions()
    batches = reader.read(partition)
    next(batches)
    broker.process.kill()
    with pytest.raises(Exception, match=r"cannot connect|no name server"):
        list(batches)
    with pytest.raises(Exception, match="no name server"):
        make_reader(broker, topic=topic).partitions()


# -- streaming --------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_and_reads_what_comes(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic)
    start = stream.initialOffset()
    assert start["fresh"] is True
    # Spark runs a first batch in any case: its end holds the beginning from then on.
    nothing = stream.latestOffset(start, ReadAllAvailable())
    assert "fresh" not in nothing
    assert nothing["init"] == nothing["q"] == start["q"]
    assert stream.latestOffset(nothing, ReadAllAvailable()) == nothing
    fill(ropewalk_broker, topic, 20, start=10)
    # Spark asks again, and "latest" is another place by now: the batch begins where the first answer was.
    end = stream.latestOffset(start, ReadAllAvailable())
    later = stream.initialOffset()
    assert later["q"] != start["q"]
    assert numbers(rows_of(stream, stream.partitions(later, end))) == list(range(10, 30))
    assert stream.latestOffset(end, ReadAllAvailable()) == end
    fill(ropewalk_broker, topic, 5, start=30)
    following = stream.latestOffset(end, ReadAllAvailable())
    assert "init" not in following
    assert numbers(rows_of(stream, stream.partitions(end, following))) == list(range(30, 35))
    newest = stream.reportLatestOffset()
    assert newest is not None
    assert newest["q"] == following["q"]


def test_a_first_batch_that_is_repeated_after_a_crash_begins_where_it_began(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=2)
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    fill(ropewalk_broker, topic, 20, start=10)
    # The next process asks for the beginning anew, and has the end from the log.
    again = make_stream(topic=topic)
    assert list(again.partitions(again.initialOffset(), end)) == []
    following = again.latestOffset(end, ReadAllAvailable())
    assert numbers(rows_of(again, again.partitions(end, following))) == list(range(10, 30))


def test_limits_share_out_a_backlog_and_everything_comes(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=3)
    fill(ropewalk_broker, topic, 300)
    stream = make_stream(topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger="70")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(70)
    at, sizes, found = stream.initialOffset(), list[int](), list[dict[str, Any]]()
    while (end := stream.latestOffset(at, limit)) != at:
        rows = rows_of(stream, stream.partitions(at, end))
        sizes.append(len(rows))
        found += rows
        at = end
    assert sizes == [70, 70, 70, 70, 20]
    assert numbers(found) == list(range(300))


def test_a_limit_in_bytes_goes_by_the_size_of_the_messages(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    queue = ropewalk_broker.client.read_queues(topic)[0]
    ropewalk_broker.client.send_batch(topic, [Message(b"x" * 10_000) for _ in range(100)], queue)
    stream = make_stream(topic=topic, startingOffsets="earliest", maxBytesPerTrigger="200k")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(200 << 10)
    start = stream.initialOffset()
    end = stream.latestOffset(start, limit)
    assert 15 <= len(rows_of(stream, stream.partitions(start, end))) <= 20


def test_a_minimum_is_waited_for_but_not_for_ever(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    now = [100.0]
    topic = ropewalk_broker.topic(queues=1)
    stream = make_stream(
        clock=lambda: now[0],
        topic=topic,
        startingOffsets="earliest",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="60s",
        maxOffsetsPerTrigger="1000",
    )
    start = stream.initialOffset()
    limit = stream.getDefaultReadLimit()
    fill(ropewalk_broker, topic, 5)
    assert stream.latestOffset(start, limit)["q"] == start["q"]
    fill(ropewalk_broker, topic, 5, start=5)
    end = stream.latestOffset(start, limit)
    assert len(rows_of(stream, stream.partitions(start, end))) == 10
    fill(ropewalk_broker, topic, 1, start=10)
    now[0] += 59
    assert stream.latestOffset(end, limit) == end
    now[0] += 2
    assert stream.latestOffset(end, limit) != end


def test_available_now_reads_what_was_there_and_nothing_that_comes_meanwhile(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic("an-one", queues=1)
    fill(ropewalk_broker, topic, 25)
    stream = make_stream(
        subscribePattern=f"{ropewalk_broker.prefix}an-.*",
        startingOffsets="earliest",
        maxOffsetsPerTrigger="10",
    )
    stream.prepareForTriggerAvailableNow()
    at, found = stream.initialOffset(), []
    for _ in range(10):
        fill(ropewalk_broker, topic, 10, start=1000)
        ropewalk_broker.topic("an-two", queues=1)
        fill(ropewalk_broker, ropewalk_broker.name("an-two"), 1, start=2000)
        end = stream.latestOffset(at, stream.getDefaultReadLimit())
        if end == at:
            break
        found += rows_of(stream, stream.partitions(at, end))
        at = end
    assert numbers(found) == list(range(25))
    # The next run has its checkpoint, and a target of its own.
    again = make_stream(subscribePattern=f"{ropewalk_broker.prefix}an-.*", startingOffsets="earliest")
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(at, ReadAllAvailable())
    rest = numbers(rows_of(again, again.partitions(at, end)))
    assert 2000 in rest
    assert set(rest) <= {2000, *range(1000, 1010)}


def test_topics_and_queues_that_appear_later_are_read_from_their_first_message(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    later = ropewalk_broker.name("later")
    stream = make_stream(topic=later)
    start = stream.initialOffset()
    assert start["q"] == {}
    assert stream.latestOffset(start, ReadAllAvailable())["q"] == {}
    ropewalk_broker.topic("later", queues=1)
    fill(ropewalk_broker, later, 5)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert numbers(rows_of(stream, stream.partitions(start, end))) == list(range(5))
    ropewalk_broker.topic("later", queues=2)
    name = ropewalk_broker.client.read_queues(later)[0].broker_name
    ropewalk_broker.client.send(later, Message(b"77"), Queue(name, 1))
    more = stream.latestOffset(end, ReadAllAvailable())
    assert numbers(rows_of(stream, stream.partitions(end, more))) == [77]


def test_a_checkpoint_of_another_topic_is_refused(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    one, two = ropewalk_broker.topic("one"), ropewalk_broker.topic("two")
    start = make_stream(topic=one).initialOffset()
    with pytest.raises(CheckpointMismatch, match="checkpointLocation"):
        make_stream(topic=two).latestOffset(start, ReadAllAvailable())
    with pytest.raises(CheckpointMismatch, match="checkpointLocation"):
        make_stream(topic=two).partitions(start, start)
    with pytest.raises(CheckpointMismatch, match="no offset of a live Ropewalk source"):
        make_stream(topic=two).latestOffset({"logOffset": 3}, ReadAllAvailable())


def test_offsets_that_went_back_stop_the_query_or_are_followed(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 10)
    name = ropewalk_broker.client.read_queues(topic)[0].broker_name
    ahead = {"q": {topic: {name: {"0": 50}}}, "v": 1}
    with pytest.raises(DataLoss, match="stands at offset 50, and the queue ends at 10"):
        make_stream(topic=topic).latestOffset(ahead, ReadAllAvailable())
    lenient = make_stream(topic=topic, failOnDataLoss="false")
    end = lenient.latestOffset(ahead, ReadAllAvailable())
    assert end["q"] == {topic: {name: {"0": 10}}}
    assert list(lenient.partitions(ahead, end)) == []
    report = lenient.reportLatestOffset()
    assert report is not None
    assert report["lost"] >= 40
    fill(ropewalk_broker, topic, 3, start=10)
    more = lenient.latestOffset(end, ReadAllAvailable())
    assert numbers(rows_of(lenient, lenient.partitions(end, more))) == [10, 11, 12]


def test_offsets_that_a_new_master_gave_to_other_messages_are_noticed(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 10)
    name = ropewalk_broker.client.read_queues(topic)[0].broker_name
    stored = ropewalk_broker.messages(topic)[6].store_timestamp

    def at(master: str, time_ms: int) -> dict[str, Any]:
        return {"e": {name: master}, "q": {topic: {name: {"0": 7}}}, "t": time_ms, "v": 1}

    def next_of(start: dict[str, Any], **given: str) -> dict[str, Any]:
        return make_stream(topic=topic, **given).latestOffset(start, ReadAllAvailable())

    # The same master, or a message that was there when the batch was made: nothing is wrong.
    assert next_of(at(ropewalk_broker.broker, stored - 60_000))["q"][topic][name] == {"0": 10}
    end = next_of(at("h:1", stored))
    assert end["q"][topic][name] == {"0": 10}
    assert end["e"] == {name: ropewalk_broker.broker}
    with pytest.raises(DataLoss, match="message 6 was stored 60 s after the batch that read it"):
        next_of(at("h:1", stored - 60_000))
    assert next_of(at("h:1", stored - 60_000), failOnDataLoss="false")["q"][topic][name] == {"0": 10}


def test_a_queue_that_is_gone_is_missed_after_a_while(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    now = [100.0]
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 10)
    at = {"q": {topic: {"another-broker": {"0": 5}}}, "v": 1}
    stream = make_stream(clock=lambda: now[0], topic=topic)
    assert stream.latestOffset(at, ReadAllAvailable())["q"][topic]["another-broker"] == {"0": 5}
    now[0] += 6
    with pytest.raises(DataLoss, match=r"queue 0 of .* at another-broker: it is gone"):
        stream.latestOffset(at, ReadAllAvailable())


def test_a_stream_outlives_a_broker_that_is_away_for_a_moment_and_not_one_that_stays_away(
    ropewalk_own_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    now = [100.0]
    topic = ropewalk_own_broker.topic("T", queues=1)
    fill(ropewalk_own_broker, topic, 10)
    stream = make_stream(ropewalk_own_broker, clock=lambda: now[0], topic=topic, startingOffsets="earliest")
    start = stream.initialOffset()
    ropewalk_own_broker.process.kill()
    assert stream.latestOffset(start, ReadAllAvailable())["q"] == start["q"]
    now[0] += 6
    with pytest.raises(BrokerSilent, match=r"has not answered for 6\.0 s"):
        stream.latestOffset(start, ReadAllAvailable())


def test_offsets_are_committed_back_for_a_group(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic, startingOffsets="earliest", commitOffsets="true", groupId=group)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    stream.commit(end)
    assert ropewalk_broker.committed(group, topic) == 10


def test_without_the_option_nothing_is_committed(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic, startingOffsets="earliest", groupId=group)
    stream.commit(stream.latestOffset(stream.initialOffset(), ReadAllAvailable()))
    assert ropewalk_broker.committed(group, topic) == 0


def test_a_stream_reader_travels_to_workers_without_its_connections(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    import pickle

    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic, startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    partitions = stream.partitions(stream.initialOffset(), end)
    there, sent = pickle.loads(pickle.dumps((stream, partitions)))
    assert numbers(rows_of(there, sent)) == list(range(10))
    assert sent[0].task.key == QueueKey(topic, sent[0].task.key.broker, 0)


# -- what goes while it is read, with a stock broker ------------------------------------------------------


@pytest.fixture
def stock() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        cluster.create_topic("T", 1)
        for n in range(100):
            cluster.put("T", 0, b"%06d" % n)
        yield cluster


def reader_at(cluster: FakeCluster, **given: str) -> LiveReader:
    raw = {"nameServer": cluster.address, "topic": "T", "pullTimeoutMs": "600", **given}
    options = parse_options(raw, "read", {})
    return LiveReader(options, options.selection())


def remove_first(cluster: FakeCluster, count: int) -> None:
    queue = cluster.topics["T"][0]
    del queue.records[:count]
    queue.min_offset += count


def test_retention_between_plan_and_read_is_an_error_with_a_way_out(stock: FakeCluster) -> None:
    reader = reader_at(stock)
    (partition,) = reader.partitions()
    remove_first(stock, 30)
    with pytest.raises(DataLoss, match=r"messages 0 to 29 are gone .*begins at 30 now.*failOnDataLoss=false"):
        list(reader.read(partition))


def test_or_the_rest_is_read(stock: FakeCluster) -> None:
    reader = reader_at(stock, failOnDataLoss="false")
    (partition,) = reader.partitions()
    remove_first(stock, 30)
    assert numbers(rows_of(reader, [partition])) == list(range(30, 100))


def test_a_hole_in_the_answers_is_an_error_or_left_out(stock: FakeCluster) -> None:
    def with_a_hole(request: Command) -> Command:
        # As a broker answers whose queue entries 40 to 42 name nothing: it goes on behind them.
        reply = stock._pull(request)
        offset = int(request.ext["queueOffset"])
        kept = [r for r in decode_records(reply.body) if r.queue_offset not in (40, 41, 42)]
        raw = stock.topics["T"][0].records
        reply.body = b"".join(raw[record.queue_offset] for record in kept)
        assert int(reply.ext["nextBeginOffset"]) > offset or reply.code == ResponseCode.PULL_NOT_FOUND
        return reply

    stock.answers[RequestCode.PULL_MESSAGE] = with_a_hole
    with pytest.raises(DataLoss, match="messages 40 to 42 are missing between others"):
        rows_of(reader := reader_at(stock), reader.partitions())
    lenient = reader_at(stock, failOnDataLoss="false")
    assert numbers(rows_of(lenient, lenient.partitions())) == [*range(40), *range(43, 100)]


def test_an_answer_about_another_queue_is_the_brokers_mistake(stock: FakeCluster) -> None:
    stock.create_topic("other", 3)
    stock.put("other", 2, b"x")

    def wrong(request: Command) -> Command:
        reply = stock._pull(request)
        reply.body = stock.topics["other"][2].records[0]
        return reply

    stock.answers[RequestCode.PULL_MESSAGE] = wrong
    with pytest.raises(RemoteProtocolError, match="queue 2"):
        rows_of(reader := reader_at(stock), reader.partitions())


def test_a_damaged_body_is_told_left_out_or_shown(stock: FakeCluster) -> None:
    queue = stock.topics["T"][0]
    queue.records[7] = queue.records[7].replace(b"000007", b"00000X")
    with pytest.raises(CorruptRecord, match=r"does not match its checksum.*onCorrupt=skip"):
        rows_of(reader := reader_at(stock, checkCrc="true"), reader.partitions())
    skipping = reader_at(stock, checkCrc="true", onCorrupt="skip")
    assert numbers(rows_of(skipping, skipping.partitions())) == [n for n in range(100) if n != 7]
    keeping = reader_at(stock, onCorrupt="keep", columns="body,crcOk")
    rows = rows_of(keeping, keeping.partitions())
    assert [row["body"] for row in rows if not row["crcOk"]] == [b"00000X"]


def test_offsets_that_went_back_under_a_task_are_given_up_after_a_while(stock: FakeCluster) -> None:
    reader = reader_at(stock)
    (partition,) = reader.partitions()
    del stock.topics["T"][0].records[60:]
    with pytest.raises(DataLoss, match="messages 60 to 99 do not come"):
        list(reader.read(partition))
    lenient = LiveReader(
        parse_options(
            {"nameServer": stock.address, "topic": "T", "pullTimeoutMs": "300", "failOnDataLoss": "false"},
            "read",
            {},
        ),
        reader._selection,
    )
    assert numbers(rows_of(lenient, [partition])) == list(range(60))


def test_a_broker_that_is_busy_or_elsewhere_for_a_moment_is_asked_again(stock: FakeCluster) -> None:
    answers = iter([ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY])

    def moody(request: Command) -> Command:
        code = next(answers, None)
        return stock._pull(request) if code is None else request.reply(code, "not now")

    stock.answers[RequestCode.PULL_MESSAGE] = moody
    reader = reader_at(stock, pullTimeoutMs="5000", pullInFlight="1")
    assert numbers(rows_of(reader, reader.partitions())) == list(range(100))
