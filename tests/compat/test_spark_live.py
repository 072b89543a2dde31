"""The live Spark source and sink against Apache RocketMQ: ordinary pulls, the same rows; no Spark JVM is needed."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from ropewalk.client.blocking.simple import Client
from ropewalk.errors import RopewalkError
from ropewalk.spark.live.read import _pool
from ropewalk.spark.live.source import LiveReader, LiveStreamReader
from ropewalk.spark.options import parse_options
from ropewalk.spark.sink.rows import Columns, rows_of
from ropewalk.spark.sink.send import Sender, Sent
from tests.compat.conftest import Server

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TURNS = itertools.count(1)
COUNT = 3000


def rows_in(reader: LiveReader | LiveStreamReader, partitions: Any) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


def reader_of(server: Server, **given: str) -> LiveReader:
    options = parse_options({"nameServer": server.namesrv, **given}, "read", {})
    return LiveReader(options, options.selection())


@pytest.fixture(scope="module")
def written(original_server: Server) -> tuple[str, Sent]:
    """A topic of Apache RocketMQ that our sink has filled."""
    topic = f"spark-{next(TURNS)}"
    options = parse_options(
        {"nameServer": original_server.namesrv, "topic": topic, "sendTimeoutMs": "60000"}, "write", {}
    )
    batch = pa.RecordBatch.from_pydict(
        {
            "body": [f"{n:06d}" for n in range(COUNT)],
            "keys": [f"k{n % 50}" for n in range(COUNT)],
            "tags": ["even" if n % 2 == 0 else "odd" for n in range(COUNT)],
        }
    )
    # The topic comes into being with its first message, and its route a moment later.
    first = batch.slice(0, 1)
    columns = Columns({"body": "body", "keys": "keys", "tags": "tags"}, topic)
    sender = Sender(options)
    for row in rows_of(first, columns):
        sender.add(row)
    sender.finish()
    sender.close()
    deadline = time.monotonic() + 60
    with Client(original_server.namesrv) as client:
        while True:
            try:
                if client.read_queues(topic):
                    break
            except RopewalkError:
                assert time.monotonic() < deadline, "the topic has no route"
            time.sleep(0.1)
    sender = Sender(options)
    for row in rows_of(batch.slice(1), columns):
        sender.add(row)
    sent = sender.finish()
    sender.close()
    return topic, sent


def test_the_sink_stores_every_row_once_and_says_where(
    written: tuple[str, Sent], original_server: Server
) -> None:
    topic, sent = written
    assert (sent.rows, sent.unreplicated) == (COUNT - 1, 0)
    # RocketMQ puts a message into its queue a moment after the answer, and later on a busy machine.
    deadline = time.monotonic() + 30
    ends: dict[int, int] = {}
    with Client(original_server.namesrv) as client:
        while sum(ends.values()) < COUNT and time.monotonic() < deadline:
            time.sleep(0.05)
            ends = {queue.queue_id: client.max_offset(topic, queue) for queue in client.read_queues(topic)}
    assert sum(ends.values()) == COUNT
    for (_, _, queue_id), (_, last) in sent.offsets.items():
        assert last < ends[queue_id]


def test_a_topic_is_read_whole_by_ordinary_pulls(written: tuple[str, Sent], original_server: Server) -> None:
    topic, _ = written
    reader = reader_of(original_server, topic=topic)
    partitions = reader.partitions()
    rows = rows_in(reader, partitions)
    assert sorted(row["body"] for row in rows) == [b"%06d" % n for n in range(COUNT)]
    for queue_id in {row["queueId"] for row in rows}:
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
        assert offsets == list(range(len(offsets)))
    assert Counter(row["tags"] for row in rows) == {"even": COUNT // 2, "odd": COUNT // 2}
    assert _pool().without_bulk, "a stock broker answers 3 to a bulk pull, and is remembered for it"


def test_tags_are_filtered_by_the_broker(written: tuple[str, Sent], original_server: Server) -> None:
    topic, _ = written
    reader = reader_of(original_server, topic=topic, filterTags="odd")
    rows = rows_in(reader, reader.partitions())
    assert sorted(int(row["body"]) for row in rows) == list(range(1, COUNT, 2))


def test_times_become_offsets(written: tuple[str, Sent], original_server: Server) -> None:
    topic, _ = written
    everything = reader_of(original_server, topic=topic)
    rows = rows_in(everything, everything.partitions())
    middle = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    later = reader_of(
        original_server,
        topic=topic,
        startingTimestamp=middle.isoformat(),
        startingOffsetsByTimestampStrategy="latest",
    )
    found = rows_in(later, later.partitions())
    assert {row["body"] for row in found} == {row["body"] for row in rows if row["storeTimestamp"] >= middle}
    earlier = reader_of(original_server, topic=topic, endingTimestamp=middle.isoformat())
    rest = rows_in(earlier, earlier.partitions())
    assert len(rest) + len(found) == COUNT


def test_a_stream_reads_in_limited_steps_and_commits_back(
    written: tuple[str, Sent], original_server: Server
) -> None:
    topic, _ = written
    options = parse_options(
        {
            "nameServer": original_server.namesrv,
            "subscribePattern": f"{topic[:-1]}.*",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "1000",
            "commitOffsets": "true",
            "groupId": "spark-lag",
        },
        "stream",
        {},
    )
    stream = LiveStreamReader(options, options.selection())
    at, sizes, found = stream.initialOffset(), list[int](), list[int]()
    while (end := stream.latestOffset(at, ReadMaxRows(1000))) != at:
        rows = rows_in(stream, stream.partitions(at, end))
        sizes.append(len(rows))
        found += [int(row["body"]) for row in rows]
        at = end
    assert sizes == [1000, 1000, 1000]
    assert sorted(found) == list(range(COUNT))
    stream.commit(at)
    assert stream.latestOffset(at, ReadAllAvailable()) == at
    stream.stop()
    with Client(original_server.namesrv) as client:
        committed = [
            client.committed_offset("spark-lag", topic, queue) for queue in client.read_queues(topic)
        ]
    assert sum(offset or 0 for offset in committed) == COUNT
