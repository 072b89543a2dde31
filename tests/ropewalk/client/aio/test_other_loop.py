"""A client that is used in another event loop than the one it was opened in raises an error by name, and waits for
nothing: what it would wait for comes from the other loop, and wakes nobody."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from ropewalk import (
    AsyncAdmin,
    AsyncKv,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Message,
    NotOpen,
    ReceivedMessage,
    SendResult,
)
from ropewalk.client.core.produce.transacting import Outcome
from ropewalk.testing import RopewalkBroker

Run = Callable[[Callable[[], Awaitable[None]]], None]


async def handle(message: ReceivedMessage) -> None:
    """Do nothing."""


async def decide(message: ReceivedMessage) -> Outcome:
    return Outcome.UNKNOWN


CLIENTS: dict[str, Callable[[str], Any]] = {
    "producer": AsyncProducer,
    "transaction producer": lambda namesrv: AsyncTransactionProducer(decide, namesrv, group="payers"),
    "pull consumer": lambda namesrv: AsyncPullConsumer("readers", {"orders": "*"}, namesrv),
    "push consumer": lambda namesrv: AsyncPushConsumer("members", {"orders": "*"}, handle, namesrv),
    "admin": AsyncAdmin,
    "kv": AsyncKv,
}

VALUES: dict[str, object] = {
    "message": Message(b"x"),
    "messages": [Message(b"x")],
    "topic": "orders",
    "selector": None,
}
"""Arguments by the names of parameters; any other one is a text."""


@contextmanager
def opened(client: Any, backend: str) -> Iterator[None]:
    """Open a client in a loop that goes on in a thread of its own, and close it there."""
    ready, over = threading.Event(), threading.Event()

    async def live() -> None:
        await client.start()
        ready.set()
        await anyio.to_thread.run_sync(over.wait)
        await client.close()

    thread = threading.Thread(target=lambda: anyio.run(live, backend=backend))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        over.set()
        thread.join(30)
    assert not thread.is_alive(), "its own loop closes it"


def uses(client: Any) -> dict[str, Callable[[], Any]]:
    """Return all coroutine methods that a program calls, with arguments that they would take."""
    found: dict[str, Callable[[], Any]] = {}
    for name, function in inspect.getmembers(type(client), inspect.iscoroutinefunction):
        if name.startswith("_") or name == "start":
            continue
        needed = [
            VALUES.get(each.name, "text")
            for each in list(inspect.signature(function).parameters.values())[1:]
            if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        ]
        found[name] = partial(getattr(client, name), *needed)
    return found


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("kind", CLIENTS)
def test_every_call_in_another_loop_raises_by_name(
    ropewalk_broker: RopewalkBroker, run: Run, kind: str, backend: str
) -> None:
    client = CLIENTS[kind](ropewalk_broker.namesrv)
    silent = []

    async def story() -> None:
        for name, use in uses(client).items():
            with anyio.move_on_after(5) as scope:
                try:
                    await use()
                except NotOpen as exc:
                    assert "opened in another event loop" in str(exc)
                    continue
                except (TypeError, ValueError, AttributeError):
                    continue  # an argument that it refuses, before it waits for anything
            silent.append((name, scope.cancelled_caught))

    with opened(client, backend):
        run(story)
    assert silent in ([], [("flush", False)]), "a flush has nothing to wait for"


def test_what_was_handed_over_in_one_loop_is_not_waited_for_in_another(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic = ropewalk_broker.topic()
    producer = AsyncProducer(ropewalk_broker.namesrv, linger=60)

    async def elsewhere() -> None:
        for use in (producer.flush, pending.wait, producer.close):
            with pytest.raises(NotOpen, match="in another event loop"), anyio.fail_after(5):
                await use()

    async def outcome() -> SendResult:
        return await pending.wait()

    with asyncio.Runner() as runner:
        runner.run(producer.start())
        pending = runner.run(producer.send_async(topic, b"x"))
        with ThreadPoolExecutor() as threads:
            threads.submit(anyio.run, elsewhere).result()
        runner.run(producer.close())
    assert anyio.run(outcome).queue_offset == 0, "what is there already is told in any loop"
