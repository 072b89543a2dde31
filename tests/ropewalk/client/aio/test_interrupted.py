"""A call that is cancelled at any of its awaits leaves a client that works, has lost nothing, and can be closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import anyio
import pytest

from ropewalk import AsyncProducer, AsyncPullConsumer, Message
from ropewalk.client.core import directory
from tests.ropewalk.client.fake_cluster import FakeCluster

T = TypeVar("T")
PATIENCE_S = 10.0
MOMENTS = ("at once", "when it is ready")


class Interrupted:
    """A coroutine that is cancelled at its n-th await: as it begins to wait, or in the turn in which it need not."""

    def __init__(self, work: Coroutine[Any, Any, T], at: int, moment: str) -> None:
        self._work = work
        self._at = at
        self._moment = moment
        self.reached = False
        """Whether there was an n-th await."""

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        awaits, sent, thrown = 0, None, None
        while True:
            try:
                waited_for = self._work.send(sent) if thrown is None else self._work.throw(thrown)
            except StopIteration as end:
                return end.value
            sent, thrown = None, None
            awaits += 1
            if awaits == self._at:
                self.reached = True
                if self._moment == "when it is ready" and asyncio.isfuture(waited_for):
                    # Before the task hears of it: both are there when its turn comes.
                    waited_for.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            try:
                sent = yield waited_for
            except BaseException as exc:
                thrown = exc


async def interrupt_everywhere(
    moment: str, story: Callable[[Callable[[Coroutine[Any, Any, Any]], Awaitable[None]]], Awaitable[None]]
) -> None:
    """Tell a story again and again; its one call to `interrupt` is cancelled at a later await each time."""
    for at in range(1, 200):
        interrupted: list[Interrupted] = []

        async def interrupt(
            work: Coroutine[Any, Any, Any], at: int = at, made: list[Interrupted] = interrupted
        ) -> None:
            made.append(Interrupted(work, at, moment))

            async def run() -> None:
                await made[0]

            task = asyncio.create_task(run())
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        async with asyncio.timeout(PATIENCE_S):
            await story(interrupt)
        if not interrupted[0].reached:
            assert at > 2, "the call never waited"
            return
    raise AssertionError("the call has no end")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_first_send_that_is_cancelled_anywhere_leaves_a_producer_that_works(
    cluster: FakeCluster, moment: str
) -> None:
    async def story(interrupt: Callable[[Coroutine[Any, Any, Any]], Awaitable[None]]) -> None:
        async with AsyncProducer(cluster.address) as producer:
            await interrupt(producer.send("T", Message(b"first")))
            second = await producer.send("T", Message(b"second"))
            assert second.message_id

    asyncio.run(interrupt_everywhere(moment, story))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_poll_that_is_cancelled_anywhere_has_taken_nothing(
    cluster: FakeCluster, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        directory, "REFRESH_S", 0.0
    )  # every poll asks the name server, also behind its messages
    bodies = [b"%d" % number for number in range(12)]

    async def fill() -> None:
        async with AsyncProducer(cluster.address) as producer:
            for body in bodies:
                await producer.send("T", Message(body))

    async def story(interrupt: Callable[[Coroutine[Any, Any, Any]], Awaitable[None]]) -> None:
        got: list[bytes] = []

        async def poll(consumer: AsyncPullConsumer) -> None:
            got.extend(message.body for message in await consumer.poll(4, timeout=1))

        async with AsyncPullConsumer("g", {"T": "*"}, cluster.address, consume_from="earliest") as consumer:
            await poll(consumer)
            await interrupt(poll(consumer))
            while len(got) < len(bodies):
                before = len(got)
                await poll(consumer)
                assert len(got) > before, f"lost: {set(bodies) - set(got)}"
        assert sorted(got) == sorted(bodies)

    asyncio.run(fill())
    asyncio.run(interrupt_everywhere(moment, story))


def test_callers_of_one_address_share_a_dial_and_one_that_goes_away_leaves_it_to_the_others(
    cluster: FakeCluster, run: Callable[[Callable[[], Awaitable[None]]], None]
) -> None:
    async def story() -> None:
        async with AsyncProducer(cluster.address) as producer:
            sent: list[str] = []

            async def send(number: int) -> None:
                with anyio.CancelScope() as scope:
                    if number % 2:
                        scope.cancel()
                    sent.append((await producer.send("T", Message(b"%d" % number))).message_id)

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(send, number)
            assert len(sent) == 5

    run(story)
