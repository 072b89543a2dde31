"""What a consumer passes over is never passed over in silence, and what it can still have it does not pass over."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from ropewalk import Admin, AsyncPushConsumer, PullConsumer, Queue, ReceivedMessage, Skipped, TopicQueue
from ropewalk.client.aio import queue_reader
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.aio.members import Seen, fill
from tests.support.waiting import until_async

Run = Callable[[Callable[[], Awaitable[None]]], None]


def make_again(broker: RopewalkBroker, topic: str, bodies: list[bytes]) -> None:
    with Admin(broker.namesrv) as admin:
        admin.delete_topic(topic)
    broker.topic(topic.removeprefix(broker.prefix), queues=1)
    for body in bodies:
        broker.send(topic, body)


@pytest.mark.parametrize("later", [3, 10], ids=["fewer", "more"])
@pytest.mark.parametrize("gap_s", [0.0, 1.0])
def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(
    ropewalk_broker: RopewalkBroker, run: Run, later: int, gap_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "ERROR_PAUSE_S", 0.2)  # while there is no such topic, pulls fail
    topic, seen = ropewalk_broker.topic(queues=1), Seen()
    first = fill(ropewalk_broker, topic, 5)
    second = {b"new %d" % number for number in range(later)}

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, seen, ropewalk_broker.namesrv, consume_from="earliest",
            rebalance_interval=0.5,
        ):  # fmt: skip
            await until_async(lambda: seen.bodies == first, "the old ones are handled")
            await anyio.sleep(gap_s)
            await anyio.to_thread.run_sync(make_again, ropewalk_broker, topic, sorted(second))
            await until_async(lambda: second <= seen.bodies, f"the new ones are handled: {seen.bodies}")

    run(story)


def test_a_reset_forward_is_told_with_what_it_passes_over(
    ropewalk_broker: RopewalkBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 20)
    told: list[Skipped] = []
    gate = anyio.Event

    async def story() -> None:
        held = gate()

        async def handle(message: ReceivedMessage) -> None:
            await held.wait()

        async with AsyncPushConsumer(
            group, {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="earliest",
            on_skipped=told.append,
        ) as consumer:  # fmt: skip
            await until_async(lambda: bool(consumer.queues), "the queue is ours")
            await anyio.sleep(0.3)
            with Admin(ropewalk_broker.namesrv) as admin:
                queue = ropewalk_broker.client.read_queues(topic)[0]
                await anyio.to_thread.run_sync(lambda: admin.reset_offset(group, topic, queue, 15))
            await until_async(lambda: bool(told), "the hook is told")
            held.set()
            assert consumer.skipped == 15

    with caplog.at_level(logging.WARNING, "ropewalk.client"):
        anyio.run(story, backend="trio")
    (skipped,) = told
    assert (skipped.queue.topic, skipped.first, skipped.next) == (topic, 0, 15)
    assert "reset" in skipped.reason
    record = next(record for record in caplog.records if record.event == "messages skipped")  # type: ignore[attr-defined]
    assert record.levelno == logging.WARNING and f"topic={topic}" in record.getMessage()


def test_a_failed_message_that_a_broadcasting_member_drops_is_told(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 1)
    told: list[Skipped] = []

    async def handle(message: ReceivedMessage) -> None:
        raise ValueError("no")

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="earliest",
            broadcasting=True, on_skipped=told.append, on_error=lambda *_: None,
        ):  # fmt: skip
            await until_async(lambda: bool(told), "the hook is told")

    run(story)
    assert (told[0].first, told[0].next) == (0, 1) and "failed" in told[0].reason


def test_a_pull_consumer_tells_too(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 5)
    told: list[Skipped] = []
    with PullConsumer(
        ropewalk_broker.group(),
        {topic: "*"},
        ropewalk_broker.namesrv,
        consume_from="earliest",
        on_skipped=told.append,
    ) as consumer:
        (queue,) = consumer.assign_topics()
        assert len(consumer.poll()) == 5
        make_again(ropewalk_broker, topic, [b"a", b"b", b"c"])
        deadline = time.monotonic() + 60
        found: list[bytes] = []
        while len(found) < 3 and time.monotonic() < deadline:
            try:
                found += [message.body for message in consumer.poll(timeout=0.2)]
            except Exception:
                time.sleep(0.1)
    assert found == [b"a", b"b", b"c"]
    assert told == [], "nothing that is there was passed over"
    assert queue == TopicQueue(topic, Queue(queue.queue.broker_name, 0))
