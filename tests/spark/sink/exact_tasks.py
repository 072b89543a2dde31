"""The parts of an exactly-once write as Spark calls them, without Spark: drivers, tasks, and the rows of a topic."""

from __future__ import annotations

from collections.abc import Iterable

from ropewalk.client.blocking.simple import Client
from ropewalk.client.core.messages import Message
from ropewalk.spark.options import Options, parse_options
from ropewalk.spark.sink.exact import SinkDriver
from ropewalk.spark.sink.keyed import KeyedSender
from ropewalk.spark.sink.rows import Outgoing
from ropewalk.spark.sink.run import Run, TaskResult


def options_of(namesrv: str, topic: str, **given: str) -> Options:
    raw = {
        "nameServer": namesrv, "topic": topic, "delivery": "exactly-once", "sinkId": "S", "batchMessages": "10",
        "sendTimeoutMs": "60s", **given,
    }  # fmt: skip
    return parse_options(raw, "write", {})


def begin(options: Options) -> Run:
    driver = SinkDriver(options)
    try:
        return driver.begin()
    finally:
        driver.close()


def commit(options: Options, results: list[TaskResult]) -> None:
    driver = SinkDriver(options)
    try:
        driver.commit(results)
    finally:
        driver.close()


def write(sender: KeyedSender, topic: str, rows: Iterable[int]) -> TaskResult:
    try:
        for row in rows:
            sender.add(Outgoing(topic, Message(b"%d" % row), 20))
        sender.finish()
        return sender.result()
    finally:
        sender.close()


def bodies(namesrv: str, topic: str) -> list[int]:
    found: list[int] = []
    with Client(namesrv, timeout=10.0) as client:
        for queue in client.read_queues(topic):
            at, end = 0, client.max_offset(topic, queue)
            while at < end:
                result = client.pull(topic, queue, at)
                found += [int(record.body) for record in result.records]
                at = result.next_offset
    return found
