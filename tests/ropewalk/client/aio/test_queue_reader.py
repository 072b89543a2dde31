"""One queue in the hands of a consumer: when its messages may be handled in order, and what a handler is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest

from ropewalk.client.aio import queue_reader
from ropewalk.client.aio.queue_reader import LOCK_LASTS_S, QueueReader, ReadingOptions
from ropewalk.client.core.backoff import STANDSTILL, Standstill
from ropewalk.client.core.connection import NoMaster
from ropewalk.client.core.consume.consuming import Pulled
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.messages import PullStatus
from ropewalk.client.core.routes import Queue
from ropewalk.client.machine import clock
from ropewalk.errors import RopewalkError
from tests.support.waiting import until_async

Run = Callable[[Callable[[], Awaitable[None]]], None]
SOURCE = TopicQueue("T", Queue("a", 0))


def reader(count: int, reconsume_times: int = 0) -> QueueReader:
    """A reader that has read so many messages. It asks nobody for more."""
    nobody = cast(Any, None)
    it = QueueReader(nobody, nobody, SOURCE, 0, ReadingOptions(), lambda *_: None)
    messages = [
        ReceivedMessage("T", b"x", [], None, {}, f"m{n}", reconsume_times, 0, 0, SOURCE, n, n * 100, "")
        for n in range(count)
    ]
    it.cache.add(messages, count)
    return it


class LinksWithoutBroker:
    """Links to a group that has no master for so many requests, and then answers with a message each time."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def drive(self, _steps: object) -> Pulled:
        if self.failures:
            self.failures -= 1
            raise NoMaster("there is none")
        await anyio.lowlevel.checkpoint()
        return Pulled(PullStatus.FOUND, [], 1, 0, 1)


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
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(it.handle_in_order, handle, pause_s=0.01, give_up=refuse))
            await until_async(lambda: len(handled) == 2)
            await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()

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


def test_a_message_that_takes_too_long_is_given_back_once(run: Run) -> None:
    async def story() -> None:
        it = reader(3)
        cache = it.cache
        slow, quick, late = list(cache._unfinished.values())
        assert it.begin(cache, slow, 10.0) and it.begin(cache, quick, 12.0) and it.begin(cache, late, 100.0)
        it.end(cache, quick, 13.0, finished=True)
        assert it.overdue(10.0) == []
        assert it.overdue(10.5) == [(cache, slow)]
        assert it.overdue(99.0) == [], "somebody is at it already"
        assert not it.claim(slow), "and its worker leaves it alone, should it fail now"
        it.unclaim(slow)
        it.finish(cache, slow)
        assert cache.committable == 2 and it.overdue(99.0) == []
        it.end(cache, slow, 50.0, finished=True)  # its handler came to an end after all
        assert (cache.committable, cache.count) == (2, 1)
        assert it.overdue(101.0) == [(cache, late)]

    run(story)


def test_nothing_is_given_back_of_a_queue_that_is_no_longer_ours(run: Run) -> None:
    async def story() -> None:
        it = reader(2)
        first, second = it.cache._unfinished.values()
        assert it.begin(it.cache, first, 1.0) and it.begin(it.cache, second, 1.0)
        it.cache.dropped = True
        assert it.overdue(2.0) == []
        it.cache.dropped = False
        it.release()
        assert it.overdue(2.0) == []

    run(story)


@pytest.mark.parametrize(("orderly", "told"), [(True, 0), (False, 2)])
def test_a_pull_says_what_is_finished_unless_the_next_holder_of_a_lock_relies_on_what_is_recorded(
    run: Run, orderly: bool, told: int
) -> None:
    core = Mock()
    core.identity.broadcasting = False
    core.pull.side_effect = RopewalkError("enough")

    async def story() -> None:
        it = QueueReader(core, Mock(), SOURCE, 2, ReadingOptions(orderly=orderly), lambda *_: None)
        with pytest.raises(RopewalkError, match="enough"):
            await it._pull_once()

    run(story)
    assert core.pull.call_args.args[-1] == told


def test_a_queue_whose_broker_is_gone_for_a_moment_is_read_on_soon_after(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "ERROR_PAUSE_S", 3600.0)
    monkeypatch.setattr(queue_reader, "AWAY_PAUSE_S", 0.001)

    async def story() -> None:
        links = cast(Any, LinksWithoutBroker(4))
        it = QueueReader(Mock(), links, SOURCE, 0, ReadingOptions(), lambda *_: None)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(it.read)
                while not it.cache.next_offset:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                tasks.cancel_scope.cancel()

    run(story)


@pytest.mark.parametrize("status", [PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE])
def test_a_broker_that_answers_at_once_and_brings_nothing_is_asked_slower_and_told_of_once(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, status: PullStatus
) -> None:
    monkeypatch.setattr(Standstill, "MAX_S", 0.2)
    asked: list[float] = []

    class Links:
        async def drive(self, _steps: object) -> Pulled:
            asked.append(clock())
            await anyio.lowlevel.checkpoint()
            return Pulled(status, [], 0, 0, 100)

    async def story() -> None:
        it = QueueReader(Mock(), cast(Any, Links()), SOURCE, 0, ReadingOptions(), lambda *_: None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.read)
            await until_async(lambda: len(asked) >= 5)
            assert asked[4] - asked[0] >= 0.35
            await until_async(lambda: STANDSTILL in caplog.text)
            told = len(asked)
            await until_async(lambda: len(asked) > told)
            tasks.cancel_scope.cancel()
        assert caplog.text.count(STANDSTILL) == 1

    run(story)
