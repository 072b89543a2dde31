"""Consumers that filter by an SQL92 expression: both kinds, both shells, against a real broker."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import anyio
import pytest

from ropewalk.client.aio.pull_consumer import AsyncPullConsumer
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.blocking.pull_consumer import PullConsumer
from ropewalk.client.blocking.push_consumer import PushConsumer
from ropewalk.client.core.consume.received import ReceivedMessage
from ropewalk.client.core.messages import Message
from ropewalk.client.machine import subscriptions
from ropewalk.errors import Refused
from ropewalk.testing import BrokerProcess, RopewalkBroker

Run = Callable[[Callable[[], Awaitable[None]]], None]
WANTED = "amount > 100 AND region = 'eu'"


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with BrokerProcess({"enablePropertyFilter": "true"}) as process:
        yield process.namesrv


numbers = count()


def fill(namesrv: str) -> tuple[str, str]:
    """Make a topic with four orders; returns its name, and one for a group."""
    topic = f"orders-{next(numbers)}"
    with Producer(namesrv, group="shop") as producer:
        for number, (amount, region) in enumerate([(50, "eu"), (150, "eu"), (500, "us"), (101, "eu")]):
            properties = {"amount": str(amount), "region": region}
            producer.send(topic, Message(b"%d" % number, properties=properties))
    return topic, f"{topic}-group"


def test_pull_consumers_get_what_the_expression_lets_through(namesrv: str, run: Run) -> None:
    topic, group = fill(namesrv)
    skipped: list[object] = []
    with PullConsumer(
        group, {}, namesrv, sql={topic: WANTED}, consume_from="first", on_skipped=skipped.append
    ) as consumer:
        consumer.assign_topics()
        got: list[bytes] = []
        while messages := consumer.poll(timeout=0.5):
            got += [message.body for message in messages]
    assert sorted(got) == [b"1", b"3"]
    assert skipped == [], "what a filter leaves out is not skipped"

    async def story() -> None:
        async with AsyncPullConsumer(
            f"{group}-2", {}, namesrv, sql={topic: "region = 'us'"}, consume_from="first"
        ) as consumer:
            await consumer.assign_topics()
            assert [message.body for message in await consumer.poll(timeout=20)] == [b"2"]

    run(story)


def test_push_consumers_get_what_the_expression_lets_through(namesrv: str, run: Run) -> None:
    topic, group = fill(namesrv)
    seen: list[bytes] = []

    def take(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async def story() -> None:
        with anyio.fail_after(30):
            async with AsyncPushConsumer(
                group,
                {},
                take,
                namesrv,
                sql={topic: WANTED},
                consume_from="first",
            ):
                while len(seen) < 2:  # noqa: ASYNC110 - the handler runs in a thread
                    await anyio.sleep(0.05)
                await anyio.sleep(0.3)

    run(story)
    assert sorted(seen) == [b"1", b"3"]
    seen.clear()
    with PushConsumer(f"{group}-2", {}, take, namesrv, sql={topic: WANTED}, consume_from="first"):
        until = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < until:
            time.sleep(0.05)
    assert sorted(seen) == [b"1", b"3"]


def test_an_expression_is_read_before_anything_is_sent() -> None:
    with pytest.raises(
        ValueError, match=r"compares numbers and properties, and nothing else \(at character 8"
    ):
        subscriptions({}, {"orders": "amount > 'x'"})
    with pytest.raises(ValueError, match="orders: a topic is filtered by tags or by"):
        PullConsumer("g", {"orders": "*"}, sql={"orders": "a = 5"})
    (one,) = subscriptions({}, {"orders": "a = 5"})
    assert one.document()["expressionType"] == "SQL92"
    assert (one.tags, one.is_filtered, one.wants("any")) == ((), True, True)


def test_a_broker_that_allows_no_filters_says_so(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    ropewalk_broker.send(topic, "x")
    with PullConsumer(
        "g5", {}, ropewalk_broker.namesrv, sql={topic: "a = 5"}, consume_from="first"
    ) as consumer:
        consumer.assign_topics()
        with pytest.raises(Refused, match="enablePropertyFilter is false"):
            while True:
                consumer.poll(timeout=1)
