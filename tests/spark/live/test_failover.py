"""Live reads and writes while brokers die, come back and change roles. Real processes, no Spark around."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ropewalk.client.blocking.connection import Connection
from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message, command_of
from ropewalk.codes import RequestCode
from ropewalk.errors import Rejected
from ropewalk.format.headers import GetMaxOffsetHeader
from ropewalk.spark.live.source import LiveReader, LiveStreamReader
from ropewalk.spark.options import Use, parse_options
from ropewalk.spark.sink.rows import Columns, rows_of
from ropewalk.spark.sink.send import Sender
from tests.ha.process_group import BROKER, Group, group_of

TOPIC = "T"


def options_of(group: Group, use: Use, **given: str) -> Any:
    raw = {"nameServer": group.namesrv, "topic": TOPIC, **given}
    return parse_options(raw, use, {})


def works(step: Callable[[], object]) -> bool:
    try:
        return bool(step())
    except Rejected:
        return False


def fill(group: Group, count: int) -> None:
    with Client(group.namesrv, timeout=20.0) as client:
        group.until(lambda: works(lambda: client.send(TOPIC, Message(b"0"))), "a broker that creates topics")
        group.until(lambda: works(lambda: client.read_queues(TOPIC)), "the route of the topic")
        queue = client.read_queues(TOPIC)[0]
        for start in range(1, count, 100):
            messages = [Message(b"%d" % n) for n in range(start, min(start + 100, count))]
            client.send_batch(TOPIC, messages, queue)


def ends_at(address: str) -> list[int]:
    """Where the topic's queues end, as one member says."""
    with Connection(address) as connection:
        questions = [command_of(RequestCode.GET_MAX_OFFSET, GetMaxOffsetHeader(TOPIC, n)) for n in range(4)]
        return [int(connection.call(question).ext["offset"]) for question in questions]


def bodies(batches: Any) -> list[int]:
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Group]:
    group = Group(tmp_path)
    try:
        group.start("a")
        yield group
    finally:
        group.close()


def test_a_task_goes_on_where_it_was_when_its_broker_comes_back(alone: Group) -> None:
    fill(alone, 3000)
    options = options_of(alone, "read", arrowBatchRows="100", pullBatchSize="100", pullInFlight="2")
    reader = LiveReader(options, options.selection())
    found: list[int] = []
    for partition in reader.partitions():
        for number, batch in enumerate(reader.read(partition)):
            found += bodies([batch])
            if number == 5:
                alone.kill("a")
                threading.Timer(0.5, lambda: alone.start("a")).start()
    assert sorted(found) == list(range(3000))


@pytest.mark.slow
def test_a_slave_is_read_while_its_master_is_gone(tmp_path: Path) -> None:
    with group_of(tmp_path, "b") as group:
        fill(group, 1000)
        group.until_followed("a")
        # A slave shows what its master has published, which comes a moment behind the bytes.
        group.until(lambda: sum(ends_at(group.replicas["b"].address)) == 1000, "the slave shows all")
        options = options_of(group, "read", arrowBatchRows="100", pullBatchSize="100", pullInFlight="1")
        reader = LiveReader(options, options.selection())
        partitions = reader.partitions()
        group.kill("a")
        assert sorted(n for one in partitions for n in bodies(reader.read(one))) == list(range(1000))
        # A stream that stands at the end takes a slave that may be behind for neither loss nor news.
        stream = LiveStreamReader(stream_options := options_of(group, "stream"), stream_options.selection())
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["q"] == start["q"]
        stream.stop()


def test_a_stream_and_a_sink_outlive_a_change_of_roles(tmp_path: Path) -> None:
    count = 4000
    with group_of(tmp_path, "b") as group:
        fill(group, 1)
        target = options_of(group, "write", sendTimeoutMs="40000", batchMessages="20")
        failures: list[Exception] = []
        halfway, go_on = threading.Event(), threading.Event()

        def write() -> None:
            sender = Sender(target)
            try:
                for start in range(0, count, 100):
                    if start == count // 2:
                        halfway.set()
                        assert go_on.wait(60)
                    body = [str(n) for n in range(start, start + 100)]
                    for row in rows_of(
                        pa.RecordBatch.from_pydict({"body": body}), Columns({"body": "body"}, TOPIC)
                    ):
                        sender.add(row)
                assert sender.finish().rows == count
            except Exception as exc:
                failures.append(exc)
            finally:
                sender.close()

        writer = threading.Thread(target=write)
        writer.start()
        options = options_of(group, "stream", startingOffsets="earliest", routeRefreshMs="0")
        stream = LiveStreamReader(options, options.selection())
        at, found = stream.initialOffset(), list[tuple[int, int, int]]()

        def read_on() -> None:
            nonlocal at
            end = stream.latestOffset(at, ReadAllAvailable())
            for partition in stream.partitions(at, end):
                for batch in stream.read(partition):
                    rows = batch.select(["queueId", "queueOffset", "body"]).to_pylist()
                    found.extend((row["queueId"], row["queueOffset"], int(row["body"])) for row in rows)
            at = end

        assert halfway.wait(60)
        read_on()
        go_on.set()  # rows are on their way while the roles change
        report = group.admin("switch", BROKER)
        assert report["newMaster"] == group.replicas["b"].address
        writer.join(90)
        assert not failures, failures
        group.until_followed("b")
        for _ in range(3):
            read_on()
        assert {body for _, _, body in found} == set(range(count))
        # Every place of every queue was read exactly once, and none was left out.
        places = sorted((queue, offset) for queue, offset, _ in found)
        ends = {queue: offset + 1 for queue, offset in places}
        assert places == [(queue, n) for queue in sorted(ends) for n in range(ends[queue])]
        stream.stop()
