"""What goes while a task reads a live topic: told with a way out, or passed over where the options allow it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.core.messages import command_of
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import CorruptRecord, RemoteProtocolError
from ropewalk.format.headers import TopicHeader
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command
from ropewalk.spark.live.offsets import DataLoss
from ropewalk.spark.live.source import LiveReader
from ropewalk.spark.options import parse_options
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.fake_cluster import BROKER_NAME, FakeCluster
from tests.spark.live.readers import MakeReader, fill, numbers, rows_of


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

    def as_many_as_asked(request: Command) -> Command:
        # A broker counts messages and not numbers: for those that are missing it brings later ones.
        return with_a_hole(
            replace(request, ext={**request.ext, "maxMsgNums": str(int(request.ext["maxMsgNums"]) + 3)})
        )

    stock.answers[RequestCode.PULL_MESSAGE] = as_many_as_asked
    ends = json.dumps({"T": {BROKER_NAME: {"0": 45}}})
    shorter = reader_at(stock, failOnDataLoss="false", endingOffsets=ends)
    assert numbers(rows_of(shorter, shorter.partitions())) == [*range(40), 43, 44]


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
    stock.put("other", 0, b"x")
    stock.topics["other"][2] = stock.topics["other"][0]
    with pytest.raises(RemoteProtocolError, match="messages of topic other"):
        rows_of(reader := reader_at(stock), reader.partitions())


def test_as_many_messages_as_were_asked_for_are_not_always_those(stock: FakeCluster) -> None:
    def doubled(request: Command) -> Command:
        reply = stock._pull(request)
        found = [r.queue_offset for r in decode_records(reply.body)]
        raw = stock.topics["T"][0].records
        reply.body = b"".join(raw[41 if offset == 42 else offset] for offset in found)
        return reply

    stock.answers[RequestCode.PULL_MESSAGE] = doubled
    with pytest.raises(RemoteProtocolError, match="answered with message 41 of queue 0 where 42 was due"):
        rows_of(reader := reader_at(stock), reader.partitions())


def test_a_damaged_body_is_told_left_out_or_shown(stock: FakeCluster) -> None:
    queue = stock.topics["T"][0]
    queue.records[7] = queue.records[7].replace(b"000007", b"00000X")
    with pytest.raises(CorruptRecord, match=r"does not match its checksum.*onCorrupt=skip"):
        rows_of(reader := reader_at(stock), reader.partitions())
    trusting = reader_at(stock, checkCrc="false", columns="body")
    assert b"00000X" in [row["body"] for row in rows_of(trusting, trusting.partitions())]
    skipping = reader_at(stock, onCorrupt="skip")
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
