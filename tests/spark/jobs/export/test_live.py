"""Live topics into a lake: what was sent is there once, also when more comes between two runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message
from ropewalk.spark.jobs.common.tasks import LocalTasks, TaskFailed
from ropewalk.spark.jobs.export.job import Exported, ExportOptions, export
from ropewalk.spark.jobs.export.lake import read_lake
from ropewalk.spark.jobs.export.sources import LiveSource, selection_for
from ropewalk.spark.jobs.inspect import TAIL_COLUMNS, lake_offsets, live_offsets, newest
from ropewalk.spark.jobs.stats.job import COLUMNS, stats
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import FakeCluster


@pytest.fixture(scope="module", autouse=True)
def syncs_cost_nothing() -> Iterator[None]:
    """Nothing here pulls the plug."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


def send(broker: RopewalkBroker, topic: str, first: int, count: int) -> None:
    with Client(broker.namesrv) as client:
        for number in range(first, first + count):
            client.send(topic, Message(f"message {number}".encode(), keys=f"k{number}"))


def source(broker: RopewalkBroker, topic: str, columns: tuple[str, ...] = (), **more: str) -> LiveSource:
    options = {"nameServer": broker.namesrv, "topic": topic, **more}
    return LiveSource(options, selection_for(columns, "full"), range_messages=40)


def run(broker: RopewalkBroker, topic: str, lake: Path, limit: int | None = None) -> Exported:
    return export(LocalTasks(), source(broker, topic), ExportOptions(str(lake), max_per_batch=limit))


def rows_of(lake: Path) -> list[tuple[int, int, bytes]]:
    rows: list[tuple[int, int, bytes]] = []
    for path in lake.glob("topic=*/**/*.parquet"):
        table = pq.ParquetFile(path).read(["queueId", "queueOffset", "body"])
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(rows)


def test_a_topic_becomes_a_lake_and_grows_with_it(ropewalk_broker: RopewalkBroker, tmp_path: Path) -> None:
    topic, lake = ropewalk_broker.topic("orders"), tmp_path / "lake"
    send(ropewalk_broker, topic, 0, 150)
    assert sum(batch[3] for batch in run(ropewalk_broker, topic, lake).batches) == 150
    assert not run(ropewalk_broker, topic, lake).batches
    send(ropewalk_broker, topic, 150, 70)
    done = run(ropewalk_broker, topic, lake, limit=30)
    assert len(done.batches) >= 3 and sum(batch[3] for batch in done.batches) == 70
    rows = rows_of(lake)
    assert sorted(body for _queue, _offset, body in rows) == sorted(b"message %d" % n for n in range(220))
    assert len({row[:2] for row in rows}) == 220
    paths = {file.path for file in read_lake(str(lake)).files}
    assert paths == {str(path.relative_to(lake)) for path in lake.glob("topic=*/**/*.parquet")}
    # A lake stands where the queues end.
    ends = {(row[0], row[1], row[2]): row[4] for row in live_offsets(source(ropewalk_broker, topic), None)}
    assert {(row[0], row[1], row[2]): row[4] for row in lake_offsets(str(lake))} == ends


def test_a_stream_goes_on_while_messages_come(ropewalk_broker: RopewalkBroker, tmp_path: Path) -> None:
    topic, lake = ropewalk_broker.topic("stream"), tmp_path / "lake"
    send(ropewalk_broker, topic, 0, 20)
    sender = threading.Thread(target=send, args=(ropewalk_broker, topic, 20, 60))
    sender.start()
    looks = 0

    def wait() -> bool:
        nonlocal looks
        if sender.is_alive():
            return True
        looks += 1  # one more look, behind the last message
        return looks < 2

    export(LocalTasks(), source(ropewalk_broker, topic), ExportOptions(str(lake)), wait=wait)
    sender.join()
    assert sorted(body for *_place, body in rows_of(lake)) == sorted(b"message %d" % n for n in range(80))


def test_a_lake_of_another_topic_is_refused(ropewalk_broker: RopewalkBroker, tmp_path: Path) -> None:
    one, other = ropewalk_broker.topic("one"), ropewalk_broker.topic("other")
    for topic in (one, other):
        send(ropewalk_broker, topic, 0, 3)
    run(ropewalk_broker, one, tmp_path / "lake")
    with pytest.raises(TaskFailed, match="is a lake with topic"):
        run(ropewalk_broker, other, tmp_path / "lake")
    with pytest.raises(TaskFailed, match=r"nothere does not exist"):
        run(ropewalk_broker, "nothere", tmp_path / "new")


def test_live_topics_are_counted_and_their_newest_shown(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic("looked-at")
    send(ropewalk_broker, topic, 0, 45)
    for number in range(45, 50):
        time.sleep(0.01)  # messages of one millisecond have no order among queues
        send(ropewalk_broker, topic, number, 1)
    done = stats(LocalTasks(), source(ropewalk_broker, topic, COLUMNS), top_keys=3)
    assert sum(each.count for each in done.total.queues.values()) == 50
    assert done.doubles == 0 and len(done.top_keys) == 3
    rows = newest(LocalTasks(), source(ropewalk_broker, topic, TAIL_COLUMNS), 5)
    assert [row["body"] for row in rows] == [b"message %d" % n for n in range(45, 50)]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    moments = iter(range(1_700_000_000_000, 1_800_000_000_000))
    with FakeCluster(clock=lambda: next(moments)) as made:
        yield made


@pytest.mark.parametrize(
    ("queues", "messages", "says"),
    [
        (2, 12, r"queue 0 of T at fake-broker: .*message 9 was stored .* holds other messages"),
        (2, 4, r"queue 0 of T at fake-broker: .*stands at offset 10, and the queue ends at 4"),
        (1, 12, r"queue 1 of T at fake-broker: .*come to offset 10, and topic T has 1 readable queue at"),
        (
            0,
            0,
            "topic T does not exist any more; this job has come to offset 10 of queue 0 of T at fake-broker",
        ),
    ],
)
def test_a_topic_that_is_not_the_one_of_the_lake_is_lost_data(
    cluster: FakeCluster, tmp_path: Path, queues: int, messages: int, says: str
) -> None:
    def put(count: int, queues: int) -> None:
        cluster.topics.pop("T", None)
        if queues:
            cluster.create_topic("T", queues)
        for queue_id in range(queues):
            for number in range(count):
                cluster.put("T", queue_id, b"%d" % number)

    def run() -> Exported:
        options = {"nameServer": cluster.address, "topic": "T"}
        live = LiveSource(options, selection_for(("body",), "full"))
        return export(LocalTasks(), live, ExportOptions(str(tmp_path / "lake")))

    put(10, 2)
    assert sum(batch[3] for batch in run().batches) == 20
    assert not run().batches
    put(messages, queues)
    with pytest.raises(TaskFailed, match=says) as raised:
        run()
    assert raised.value.kind == "DataLoss"
