"""Our own client against both servers: what works with Ropewalk works with Apache RocketMQ."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from ropewalk import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendStatus,
)
from tests.compat.conftest import Server

pytestmark = [pytest.mark.compat, pytest.mark.slow]

WAIT_S = 60.0
TURNS = itertools.count(1)


@pytest.fixture(scope="module", params=["ropewalk_server", "original_server"])
def namesrv(request: pytest.FixtureRequest) -> str:
    server: Server = request.getfixturevalue(request.param)
    return server.namesrv


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic with its four queues there already, so that consumers find all of them."""
    name = f"python-{next(TURNS)}"
    with Producer(namesrv, timeout=20.0) as producer:
        producer.send(name, b"first")

        def visible() -> bool:
            with PullConsumer("python-looking", {name: "*"}, namesrv) as looking:
                return len(looking.assign_topics()) == 4

        until(visible, "the route of the topic")
    return name


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if condition():
                return
        except Exception:
            if time.monotonic() >= deadline:
                raise
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:g} s"
        time.sleep(0.02)


def test_what_is_sent_in_every_way_is_pulled(namesrv: str, topic: str) -> None:
    with Producer(namesrv) as producer:
        message = Message(b"z" * 5000, keys="k", tags="t", properties={"shop": "7"})
        assert producer.send(topic, message).status is SendStatus.SEND_OK
        producer.send_batch(topic, [b"b1", b"b2"])
        producer.send_oneway(topic, b"oneway")
        futures = [producer.send_async(topic, b"%d" % number) for number in range(200)]
        producer.flush()
        assert len({future.result(0).message_ids for future in futures}) == 200
        assert producer.counts.acknowledged == 203 and producer.counts.pending == 0
    got: list[ReceivedMessage] = []
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv, consume_from="first") as consumer:
        consumer.assign_topics()

        def all_there() -> bool:
            got.extend(consumer.poll(timeout=0.2))
            return len(got) == 205

        until(all_there, "205 messages")
        consumer.commit()
    (large,) = [one for one in got if one.keys == "k"]
    assert large.body == b"z" * 5000 and large.tags == "t" and large.properties["shop"] == "7"
    with PullConsumer(f"{topic}-g", {topic: "*"}, namesrv, consume_from="first") as again:
        again.assign_topics()
        assert again.poll(timeout=0.5) == []


def test_a_group_consumes_retries_and_goes_on_after_a_restart(namesrv: str, topic: str) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times == 0:
            raise RetryLater(delay_level=1)

    def consumer() -> PushConsumer:
        return PushConsumer(f"{topic}-g", {topic: "*"}, handle, namesrv, consume_from="first")

    with Producer(namesrv) as producer:
        with consumer():
            for number in range(20):
                producer.send(topic, b"%d" % number)
            producer.send(topic, b"bad")
            until(lambda: (b"bad", 1) in seen and len({body for body, _ in seen}) == 22, "all, one twice")
        producer.send(topic, b"later")
        before = len(seen)
        with consumer():
            until(lambda: (b"later", 0) in seen, "the later one")
            time.sleep(0.3)
    assert len(seen) == before + 1, seen[before:]


def test_orderly_members_share_queues_without_a_gap_or_a_duplicate(namesrv: str, topic: str) -> None:
    seen: dict[int, list[int]] = defaultdict(list)

    def handle(message: ReceivedMessage) -> None:
        time.sleep(0.005)
        seen[message.source.queue.queue_id].append(message.queue_offset)

    def consumer() -> PushConsumer:
        return PushConsumer(
            f"{topic}-g", {topic: "*"}, handle, namesrv, consume_from="first", orderly=True, pull_count=4
        )

    with Producer(namesrv) as producer:
        for number in range(399):
            producer.send(topic, Message(b"%d" % number))
    with consumer() as one:
        until(lambda: sum(map(len, seen.values())) > 10, "the first member is at it")
        with consumer() as other:
            until(lambda: len(one.queues) == len(other.queues) == 2, "they share")
        until(lambda: sum(map(len, seen.values())) >= 400, "all are handled")
        time.sleep(0.3)
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values()), dict(seen)
    assert sum(map(len, seen.values())) == 400


def test_a_delayed_message_comes_when_it_is_due(namesrv: str, topic: str) -> None:
    arrived: list[tuple[bytes, float]] = []
    with (
        PushConsumer(
            f"{topic}-g", {topic: "*"}, lambda m: arrived.append((m.body, time.monotonic())), namesrv
        ) as consumer,
        Producer(namesrv) as producer,
    ):
        until(lambda: len(consumer.queues) == 4, "all queues are ours")
        began = time.monotonic()
        producer.send(topic, Message(b"later", delay_level=1))
        until(lambda: any(body == b"later" for body, _ in arrived), "the delayed one")
    (moment,) = [moment for body, moment in arrived if body == b"later"]
    assert 0.9 <= moment - began < 10
