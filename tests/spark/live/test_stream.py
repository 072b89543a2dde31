"""Streaming reads of live topics without Spark around them: offsets, limits, and what appears meanwhile."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import Queue
from ropewalk.spark.live.offsets import QueueKey
from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import MakeStream, fill, numbers, rows_of


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


def test_offsets_are_committed_back_for_a_group(
    ropewalk_broker: RopewalkBroker, make_stream: MakeStream
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic, startingOffsets="earliest", commitOffsets="true", groupId=group)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    stream.partitions(stream.initialOffset(), end)
    assert ropewalk_broker.committed(group, topic) == 0  # planned, and not read yet
    fill(ropewalk_broker, topic, 4, start=10)
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
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 10)
    stream = make_stream(topic=topic, startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    partitions = stream.partitions(stream.initialOffset(), end)
    there, sent = pickle.loads(pickle.dumps((stream, partitions)))
    assert numbers(rows_of(there, sent)) == list(range(10))
    assert sent[0].task.key == QueueKey(topic, sent[0].task.key.broker, 0)
