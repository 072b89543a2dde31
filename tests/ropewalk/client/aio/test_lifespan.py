"""`start` and `close` from any task: what pytest fixtures and web frameworks' lifespans do with a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from ropewalk import (
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    NotOpen,
    ReceivedMessage,
    Unreachable,
)
from ropewalk.testing import RopewalkBroker

Run = Callable[[Callable[[], Awaitable[None]]], None]


async def handle(message: ReceivedMessage) -> None:
    """Do nothing."""


def clients(namesrv: str) -> dict[str, Any]:
    return {
        "producer": AsyncProducer(namesrv),
        "pull consumer": AsyncPullConsumer("readers", {"orders": "*"}, namesrv),
        "push consumer": AsyncPushConsumer("members", {"orders": "*"}, handle, namesrv),
        "admin": AsyncAdmin(namesrv),
    }


KINDS = tuple(clients("127.0.0.1:1"))


async def in_a_task(action: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(action)


@pytest.mark.parametrize("kind", KINDS)
def test_one_task_opens_it_and_another_closes_it(
    ropewalk_broker: RopewalkBroker, run: Run, kind: str
) -> None:
    client = clients(ropewalk_broker.namesrv)[kind]

    async def story() -> None:
        await in_a_task(client.start)
        await in_a_task(client.close)
        await client.close()  # closing twice is harmless

    run(story)


@pytest.mark.parametrize("kind", KINDS)
def test_a_with_block_may_end_in_another_task(ropewalk_broker: RopewalkBroker, run: Run, kind: str) -> None:
    client = clients(ropewalk_broker.namesrv)[kind]

    async def leave() -> None:
        await client.__aexit__(None, None, None)

    async def story() -> None:
        await in_a_task(client.__aenter__)
        await in_a_task(leave)

    run(story)


def test_a_producer_sends_from_any_task_between_start_and_close(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        producer = AsyncProducer(ropewalk_broker.namesrv)
        await in_a_task(producer.start)

        async def send() -> None:
            await producer.send(topic, Message(b"one"))
            pending = await producer.send_async(topic, Message(b"two"))
            await pending.wait()

        await in_a_task(send)
        await producer.close()

    run(story)
    assert {record.body for record in ropewalk_broker.messages(topic, 2)} == {b"one", b"two"}


def test_close_waits_for_what_is_pending(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        producer = AsyncProducer(ropewalk_broker.namesrv, linger=0.2)
        await producer.start()
        pending = await producer.send_async(topic, Message(b"late"))
        await producer.close()
        assert pending.done and producer.counts.acknowledged == 1

    run(story)


USES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "producer": lambda producer: producer.send("orders", b"x"),
    "pull consumer": lambda consumer: consumer.poll(timeout=0),
    "admin": lambda admin: admin.topics(),
}


@pytest.mark.parametrize("kind", USES)
def test_using_one_that_is_not_open_says_so(ropewalk_broker: RopewalkBroker, run: Run, kind: str) -> None:
    client = clients(ropewalk_broker.namesrv)[kind]

    async def story() -> None:
        with pytest.raises(NotOpen, match="use it as `async with`"):
            await USES[kind](client)
        await client.start()
        await client.close()
        with pytest.raises(NotOpen, match="was closed"):
            await USES[kind](client)
        with pytest.raises(NotOpen, match="opened once"):
            await client.start()

    run(story)


def test_send_async_of_a_producer_that_is_not_open_says_so(run: Run) -> None:
    async def story() -> None:
        with pytest.raises(NotOpen):
            await AsyncProducer("127.0.0.1:1").send_async("orders", b"x")

    run(story)


def test_a_start_without_a_name_server_raises_and_leaves_nothing_behind(run: Run) -> None:
    async def story() -> None:
        consumer = AsyncPushConsumer("members", {"orders": "*"}, handle, "127.0.0.1:1")
        with pytest.raises(Unreachable):
            await consumer.start()
        await consumer.close()

    run(story)


def test_an_async_generator_fixture_holds_a_producer_as_pytest_asyncio_runs_it(
    ropewalk_broker: RopewalkBroker,
) -> None:
    """Set-up, test and tear-down are three tasks of one loop."""
    topic = ropewalk_broker.topic()

    @asynccontextmanager
    async def fixture() -> AsyncIterator[AsyncProducer]:
        async with AsyncProducer(ropewalk_broker.namesrv) as producer:
            yield producer

    with asyncio.Runner() as runner:
        held = fixture()
        producer = runner.run(held.__aenter__())
        runner.run(producer.send(topic, Message(b"one")))
        runner.run(held.__aexit__(None, None, None))
    assert [record.body for record in ropewalk_broker.messages(topic, 1)] == [b"one"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_program_that_ends_without_close_ends(ropewalk_broker: RopewalkBroker, backend: str) -> None:
    async def story() -> None:
        producer = AsyncProducer(ropewalk_broker.namesrv)
        await producer.start()
        consumer = AsyncPushConsumer(
            ropewalk_broker.group(), {"orders": "*"}, handle, ropewalk_broker.namesrv
        )
        await consumer.start()

    anyio.run(story, backend=backend)
