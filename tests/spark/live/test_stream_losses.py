"""A stream whose offsets fit no longer: a wrong checkpoint, a log that went back, a broker that went away."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ropewalk.spark.live.cluster import BrokerUnreachable
from ropewalk.spark.live.offsets import CheckpointMismatch, DataLoss
from ropewalk.testing import RopewalkBroker
from tests.spark.live.readers import MakeStream, fill, numbers, rows_of


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
    stored = ropewalk_broker.messages(topic)[6].store_timestamp_ms

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
    with pytest.raises(
        DataLoss, match=r"another-broker: .*stands at offset 5, and broker another-broker does not serve"
    ):
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
    with pytest.raises(BrokerUnreachable, match=r"has not answered for 6\.0 s"):
        stream.latestOffset(start, ReadAllAvailable())
