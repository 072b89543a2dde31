"""One queue in the hands of a consumer: when its messages may be handled in order, and what a handler is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio

from ropewalk.client.machine import clock
from ropewalk.client.queue_reader import LOCK_LASTS_S, QueueReader, ReadingOptions
from ropewalk.client.received import ReceivedMessage, TopicQueue
from ropewalk.client.routes import Queue

Run = Callable[[Callable[[], Awaitable[None]]], None]
SOURCE = TopicQueue("T", Queue("a", 0))


def reader(count: int, reconsume_times: int = 0) -> QueueReader:
    """A reader that has read so many messages. It asks nobody for more."""
    nobody = cast(Any, None)
    it = QueueReader(nobody, nobody, SOURCE, 0, ReadingOptions(), lambda *_: None)
    messages = [
        ReceivedMessage("T", b"x", None, None, {}, f"m{n}", reconsume_times, 0, 0, SOURCE, n, n * 100, "")
        for n in range(count)
    ]
    it.cache.add(messages, count)
    return it


async def refuse(_message: ReceivedMessage) -> bool:
    return False


def test_nothing_is_handled_under_a_lock_that_was_not_confirmed_for_half_a_minute(run: Run) -> None:
    handled: list[int] = []

    async def story() -> None:
        it = reader(3)

        async def handle(message: ReceivedMessage) -> bool:
            handled.append(message.queue_offset)
            if message.queue_offset == 1:
                it.locked_at = clock() - LOCK_LASTS_S - 1
            return True

        it.locked_at = clock() - LOCK_LASTS_S - 1
        with anyio.move_on_after(0.05):
            await it.handle_in_order(handle, pause_s=0.01, give_up=refuse)
        assert handled == []
        it.locked_at = clock()
        with anyio.move_on_after(0.05):
            await it.handle_in_order(handle, pause_s=0.01, give_up=refuse)

    run(story)
    assert handled == [0, 1], "the lock was lost between two messages"


def test_tries_in_place_are_counted_behind_those_that_were_before(run: Run) -> None:
    tries: list[int] = []
    committable: list[int] = []

    async def fail(message: ReceivedMessage) -> bool:
        tries.append(message.reconsume_times)
        return False

    async def give_up(message: ReceivedMessage) -> bool:
        return message.reconsume_times == 4

    async def story() -> None:
        it = reader(1, reconsume_times=2)
        it.locked_at = clock()

        async def handle_all() -> None:
            await it.handle_in_order(fail, pause_s=0.001, give_up=give_up)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle_all)
            while it.cache.count:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        committable.append(it.cache.committable)

    run(story)
    assert tries == [2, 3, 4] and committable == [1]
