"""Both pull consumers against a real broker."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from ropewalk.client.aio.pull_consumer import AsyncPullConsumer
from ropewalk.client.blocking.pull_consumer import PullConsumer
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import Queue
from ropewalk.errors import LocalProtocolError, Rejected
from ropewalk.testing import RopewalkBroker
from tests.support.long_run import ROOM_S

Run = Callable[[Callable[[], Awaitable[None]]], None]
WAIT_S = 60.0


def fill(broker: RopewalkBroker, topic: str, count: int) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    for body in bodies:
        broker.send(topic, body.decode())
    return bodies


def test_poll_brings_everything_and_a_commit_is_where_the_next_one_goes_on(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    bodies = fill(ropewalk_broker, topic, 50)

    async def story() -> None:
        async with AsyncPullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv) as consumer:
            assert len(await consumer.assign_topics()) == 4
            await consumer.seek_to_begin()
            got: list[bytes] = []
            while len(got) < 50 and (messages := await consumer.poll(7, timeout=WAIT_S)):
                assert len(messages) <= 7 and len({message.source for message in messages}) == 1
                got += [message.body for message in messages]
            assert len(got) == 50 and set(got) == bodies
            assert await consumer.poll(7, timeout=0.1) == []
            await consumer.commit()
        ropewalk_broker.send(topic, b"later")
        async with AsyncPullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv) as again:
            await again.assign_topics()
            assert [message.body for message in await again.poll(timeout=WAIT_S)] == [b"later"]

    run(story)
    assert ropewalk_broker.committed(group, topic) == 50


def test_the_same_without_a_loop(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    bodies = fill(ropewalk_broker, topic, 50)
    with PullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv, consume_from="first") as consumer:
        consumer.assign_topics()
        got: list[bytes] = []
        while len(got) < 50 and (messages := consumer.poll(timeout=WAIT_S)):
            got += [message.body for message in messages]
        assert len(got) == 50 and set(got) == bodies
        assert consumer.poll(timeout=0.1) == []
        consumer.commit()
    assert ropewalk_broker.committed(group, topic) == 50


def test_a_consumer_that_assigned_nothing_reads_all_queues_of_its_topics(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic = ropewalk_broker.topic()
    bodies = fill(ropewalk_broker, topic, 8)
    got: set[bytes] = set()
    with PullConsumer("g", {topic: "*"}, ropewalk_broker.namesrv, consume_from="earliest") as consumer:
        while len(got) < 8 and (messages := consumer.poll(timeout=WAIT_S)):
            got |= {message.body for message in messages}
    assert got == bodies

    async def story() -> None:
        async with AsyncPullConsumer("g", {topic: "*"}, ropewalk_broker.namesrv) as late:
            await late.seek_to_begin()
            assert len(late.assignment) == 4 and await late.poll(timeout=WAIT_S)

    run(story)


def test_a_held_poll_is_ended_by_the_next_message(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        async with AsyncPullConsumer("g", {topic: "*"}, ropewalk_broker.namesrv) as consumer:
            await consumer.assign_topics()
            await consumer.seek_to_end()

            async def send_later() -> None:
                await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(ropewalk_broker.send, topic, b"late")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_later)
                began = time.monotonic()
                messages = await consumer.poll(timeout=15)
            assert [message.body for message in messages] == [b"late"]
            assert time.monotonic() - began < 10 + ROOM_S

    run(story)


def test_an_empty_poll_ends_in_time(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with PullConsumer("g", {topic: "*"}, ropewalk_broker.namesrv) as consumer:
        consumer.assign_topics()
        began = time.monotonic()
        assert consumer.poll(timeout=0.3) == []
        assert 0.2 < time.monotonic() - began < 10 + ROOM_S


def test_tags_are_filtered_and_progress_passes_what_is_not_wanted(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    for number in range(9):
        ropewalk_broker.send(topic, Message(b"%d" % number, tags=("Aa", "BB", "c")[number % 3]))  # one hash
    with PullConsumer(group, {topic: "Aa || c"}, ropewalk_broker.namesrv, consume_from="first") as consumer:
        (queue,) = consumer.assign_topics()
        got: list[int] = []
        while len(got) < 6 and (messages := consumer.poll(timeout=WAIT_S)):
            got += [int(message.body) for message in messages]
        assert got == [0, 2, 3, 5, 6, 8]
        assert consumer.poll(timeout=0.1) == []
        assert consumer.position(queue) == 9


def test_seek_by_offset_and_by_time(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=1)
    ropewalk_broker.send(topic, b"0")
    time.sleep(0.02)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.02)
    ropewalk_broker.send(topic, b"1")
    ropewalk_broker.send(topic, b"2")
    with PullConsumer("g", {topic: "*"}, ropewalk_broker.namesrv) as consumer:
        (queue,) = consumer.assign_topics()
        consumer.seek(queue, 2)
        assert [message.body for message in consumer.poll(timeout=WAIT_S)] == [b"2"]
        consumer.seek_to_time(middle)
        assert [message.body for message in consumer.poll(timeout=WAIT_S)] == [b"1", b"2"]
        with pytest.raises(KeyError):
            consumer.seek(TopicQueue(topic, Queue("nobody", 0)), 0)
        consumer.seek(queue, 999)
        assert consumer.poll(timeout=0.1) == [] and consumer.position(queue) == 3, "back into what there is"


def test_a_commit_of_a_group_that_never_showed_up_is_kept(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group("unseen")
    ropewalk_broker.send(topic, b"0")
    with PullConsumer(group, {topic: "*"}, ropewalk_broker.namesrv) as consumer:
        (queue,) = consumer.assign_topics()
        consumer.seek(queue, 1)
        consumer.commit()
    assert ropewalk_broker.committed(group, topic) == 1


def test_errors_say_whose_fault(ropewalk_broker: RopewalkBroker) -> None:
    with (
        PullConsumer("g", {"nowhere-at-all": "*"}, ropewalk_broker.namesrv) as consumer,
        pytest.raises(Rejected),
    ):
        consumer.assign_topics()
    with pytest.raises(LocalProtocolError):
        PullConsumer("a b", {"T": "*"}, ropewalk_broker.namesrv)
    with PullConsumer("g", {"T": "*"}, "127.0.0.1:1") as consumer, pytest.raises(Unreachable):
        consumer.assign_topics()
