"""A checkpoint whose messages are gone or are others': no way of it may pass for a success, `availableNow` included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ropewalk.spark.live.cluster import BrokerUnreachable
from ropewalk.spark.live.offsets import DataLoss
from ropewalk.spark.live.read import _pool
from ropewalk.spark.live.source import LiveReader, LiveStreamReader
from ropewalk.spark.options import parse_options
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster, FakeQueue

Offset = dict[str, Any]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    moments = iter(range(1_700_000_000_000, 1_800_000_000_000))
    with FakeCluster(clock=lambda: next(moments)) as cluster:
        cluster.create_topic("T", 2)
        put(cluster, 10)
        _pool().without_bulk.add(
            cluster.address
        )  # it answers nothing to a bulk pull, which would be waited for
        yield cluster


def put(cluster: FakeCluster, count: int, topic: str = "T") -> None:
    """Messages in each queue of a topic."""
    for queue_id in range(len(cluster.topics[topic])):
        for n in range(count):
            cluster.put(topic, queue_id, b"%06d" % n)


class Query:
    """Runs of one query on one checkpoint, as Spark would make them; waiting costs no time."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.now = 1000.0
        self._cluster = cluster
        self._streams: list[LiveStreamReader] = []

    def stream(self, **given: str) -> LiveStreamReader:
        raw = {"nameServer": self._cluster.address, "topic": "T", "startingOffsets": "earliest"}
        raw |= {"pullTimeoutMs": "20000", "routeRefreshMs": "0", **given}
        options = parse_options(raw, "stream", {})
        stream = LiveStreamReader(options, options.selection(), lambda: self.now)
        stream.driver._sleep = self.sleep
        self._streams.append(stream)
        return stream

    def sleep(self, seconds: float) -> None:
        self.now += 50 * seconds

    def available_now(self, start: Offset | None = None, **given: str) -> Offset:
        """Where a run with `availableNow` ends, which must be where there is nothing more."""
        stream = self.stream(**given)
        stream.prepareForTriggerAvailableNow()
        at = stream.initialOffset() if start is None else start
        while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
            for partition in stream.partitions(at, end):
                list(stream.read(partition))
            at = end
        return at

    def close(self) -> None:
        for stream in self._streams:
            stream.stop()


@pytest.fixture
def query(cluster: FakeCluster) -> Iterator[Query]:
    made = Query(cluster)
    yield made
    made.close()


def deleted(cluster: FakeCluster) -> None:
    put(cluster, 3)
    del cluster.topics["T"]


def made_again_with_fewer(cluster: FakeCluster) -> None:
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 7)


def made_again_with_as_many(cluster: FakeCluster) -> None:
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 10)


def made_again_with_more(cluster: FakeCluster) -> None:
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 15)


def shrunk(cluster: FakeCluster) -> None:
    put(cluster, 3)
    del cluster.topics["T"][1]


def overtaken(cluster: FakeCluster) -> None:
    put(cluster, 10)
    for queue in cluster.topics["T"]:
        del queue.records[:15]
        queue.min_offset += 15


def overtaken_and_empty(cluster: FakeCluster) -> None:
    put(cluster, 10)
    for queue in cluster.topics["T"]:
        queue.min_offset += len(queue.records)
        queue.records.clear()


def emptied(cluster: FakeCluster) -> None:
    for queue in cluster.topics["T"]:
        queue.records.clear()


LOSSES: list[tuple[Callable[[FakeCluster], None], str]] = [
    (deleted, r"stands at offset 10, and topic T does not exist any more"),
    (made_again_with_fewer, r"stands at offset 10, and the queue ends at 7"),
    (made_again_with_as_many, r"message 9 was stored .* holds other messages"),
    (made_again_with_more, r"message 9 was stored .* holds other messages"),
    (shrunk, r"stands at offset 10, and topic T has 1 readable queue at fake-broker now"),
    (overtaken, r"5 messages from offset 10 on were removed by retention .*begins at 15 now"),
    (overtaken_and_empty, r"10 messages from offset 10 on were removed by retention .*begins at 20 now"),
    (emptied, r"stands at offset 10, and the queue ends at 0"),
]


@pytest.mark.parametrize(("happens", "says"), LOSSES, ids=[happens.__name__ for happens, _ in LOSSES])
def test_a_checkpoint_whose_messages_are_gone_is_an_error_for_available_now(
    cluster: FakeCluster, query: Query, happens: Callable[[FakeCluster], None], says: str
) -> None:
    at = query.available_now()
    assert at["q"] == {"T": {BROKER_NAME: {"0": 10, "1": 10}}}
    happens(cluster)
    with pytest.raises(DataLoss, match=f"queue [01] of T at {BROKER_NAME}.*{says}.*failOnDataLoss=false"):
        query.available_now(at)
    # Whoever allows it goes on with what there is.
    query.available_now(at, failOnDataLoss="false")


@pytest.mark.parametrize(("happens", "says"), LOSSES, ids=[happens.__name__ for happens, _ in LOSSES])
def test_it_is_one_for_a_query_that_runs_on(
    cluster: FakeCluster, query: Query, happens: Callable[[FakeCluster], None], says: str
) -> None:
    stream = query.stream()
    start = stream.initialOffset()
    at = stream.latestOffset(start, ReadAllAvailable())
    assert len(stream.partitions(start, at)) == 2
    happens(cluster)

    def goes_on() -> None:
        for _ in range(4):
            # A queue that ends exactly where the query stands is told apart as soon as anything comes.
            if "T" in cluster.topics and len(cluster.topics["T"]) == 2:
                put(cluster, 1)
            end = stream.latestOffset(at, ReadAllAvailable())
            for partition in stream.partitions(at, end):
                list(stream.read(partition))
            query.now += 30

    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        goes_on()


def test_a_batch_that_is_repeated_reads_what_it_read_or_says_so(cluster: FakeCluster, query: Query) -> None:
    stream = query.stream(maxOffsetsPerTrigger="8")
    start = stream.initialOffset()
    first = stream.latestOffset(start, stream.getDefaultReadLimit())
    second = stream.latestOffset(first, stream.getDefaultReadLimit())
    assert len(query.stream().partitions(first, second)) == 2
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 30)
    # Spark plans the batch that it logged before it asks for anything else.
    with pytest.raises(DataLoss, match=r"message [37] was stored .* holds other messages"):
        query.stream().partitions(first, second)
    with pytest.raises(DataLoss, match=r"message 3 was stored .* holds other messages"):
        query.stream().partitions(start, first)
    assert len(query.stream(failOnDataLoss="false").partitions(first, second)) == 2


def test_a_topic_that_is_made_again_between_plan_and_read(cluster: FakeCluster, query: Query) -> None:
    stream = query.stream()
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    (partition, _) = stream.partitions(start, end)
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 30)
    with pytest.raises(DataLoss, match=r"queue 0 of T .*message 9 was stored .* holds other messages"):
        list(stream.read(partition))


def test_a_broker_that_falls_silent_is_no_end_of_available_now(cluster: FakeCluster, query: Query) -> None:
    at = query.available_now()
    put(cluster, 5)
    stream = query.stream()
    stream.prepareForTriggerAvailableNow()
    cluster.answers[30] = lambda request: None  # the largest offset of a queue
    stream.driver.cluster._links.close()
    stream.driver.cluster._links._timeout = 0.1
    with pytest.raises(BrokerUnreachable, match=f"broker {BROKER_NAME} has not answered"):
        stream.latestOffset(at, ReadAllAvailable())


def test_a_topic_that_is_away_for_a_moment_is_waited_for(cluster: FakeCluster, query: Query) -> None:
    at = query.available_now()
    put(cluster, 5)
    stream = query.stream()
    kept = cluster.topics.pop("T")
    stream.prepareForTriggerAvailableNow()
    looks: list[float] = []

    def come_back(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            cluster.topics["T"] = kept

    stream.driver._sleep = come_back
    end = stream.latestOffset(at, ReadAllAvailable())
    assert end["q"] == {"T": {BROKER_NAME: {"0": 15, "1": 15}}}


def test_assigned_queues_that_are_gone_are_lost_data_and_no_wrong_option(
    cluster: FakeCluster, query: Query
) -> None:
    raw = {"nameServer": cluster.address, "assign": '{"T": {"fake-broker": [0, 1]}}', "pullTimeoutMs": "300"}
    options = parse_options(raw | {"startingOffsets": "earliest"}, "stream", {})
    first, second = (LiveStreamReader(options, options.selection()) for _ in range(2))
    at = first.latestOffset(first.initialOffset(), ReadAllAvailable())
    shrunk(cluster)
    second.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match=r"queue 1 of T at fake-broker.*stands at offset 10"):
        second.latestOffset(at, ReadAllAvailable())
    first.stop()
    second.stop()


def test_a_frame_that_is_read_once_more_reads_no_other_topic_of_that_name(cluster: FakeCluster) -> None:
    options = parse_options({"nameServer": cluster.address, "topic": "T"}, "read", {})
    reader = LiveReader(options, options.selection())
    first, second = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(first)) == 10
    cluster.topics["T"] = [FakeQueue(), FakeQueue()]
    put(cluster, 30)
    with pytest.raises(DataLoss, match=r"queue 1 of T .*message 9 was stored .* holds other messages"):
        list(reader.read(second))
