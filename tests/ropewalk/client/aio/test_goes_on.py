"""Nothing that a handler, a hook or a disk does ends consumption unheard."""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from ropewalk import AsyncPushConsumer, PushConsumer, ReceivedMessage
from ropewalk.client.aio.push import member, progress, sharing
from ropewalk.client.core.consume.received import TopicQueue
from ropewalk.testing import RopewalkBroker
from tests.ropewalk.client.aio.members import Seen, fill
from tests.support.waiting import until_async

Run = Callable[[Callable[[], Awaitable[None]]], None]


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


def test_a_disk_that_fails_while_progress_is_saved_does_not_stop_a_broadcasting_member(
    ropewalk_broker: RopewalkBroker,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    failures = 0

    def save(path: Path, offsets: Mapping[TopicQueue, int]) -> NoReturn:
        nonlocal failures
        failures += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress, "save_offsets", save)

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, seen, ropewalk_broker.namesrv, consume_from="earliest",
            broadcasting=True, offsets_folder=tmp_path, commit_interval=0.05,
        ) as consumer:  # fmt: skip
            first = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 5)
            await until_async(lambda: first <= seen.bodies and failures > 1, "progress was to be saved")
            later = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 5, 5)
            await until_async(lambda: later <= seen.bodies, "it goes on")
            assert consumer.failure is None

    run(story)
    assert events(caplog).count("progress not saved") == 1, "a trouble that goes on is told once"
    assert "No space left on device" in caplog.text


def exits(message: ReceivedMessage) -> None:
    if message.body == b"0":
        sys.exit(2)


class Odd(BaseException):
    """Neither an error nor a cancellation."""


def raises_odd(message: ReceivedMessage) -> None:
    if message.body == b"0":
        raise Odd("odd")


@pytest.mark.parametrize("fault", [exits, raises_odd])
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("threads", [False, True])
def test_a_handler_that_wants_to_end_the_program_fails_like_any_other(
    ropewalk_broker: RopewalkBroker,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[ReceivedMessage], None],
    orderly: bool,
    threads: bool,
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    bodies = fill(ropewalk_broker, topic, 8)

    def in_a_thread(message: ReceivedMessage) -> None:
        fault(message)
        seen.messages.append(message)

    async def in_the_loop(message: ReceivedMessage) -> None:
        in_a_thread(message)

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, in_a_thread if threads else in_the_loop, ropewalk_broker.namesrv,
            consume_from="earliest", orderly=orderly, concurrency=1,
        ) as consumer:  # fmt: skip
            wanted = bodies - ({b"0", b"4"} if orderly else {b"0"})
            await until_async(lambda: wanted <= seen.bodies, "it goes on with the others")
            assert consumer.failure is None and not consumer.closed

    run(story)
    assert "handler failed" in events(caplog)


def test_a_handler_that_awaits_what_was_cancelled_is_no_cancellation_of_ours(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    bodies = fill(ropewalk_broker, topic, 8)

    async def handle(message: ReceivedMessage) -> None:
        if message.body in (b"0", b"1"):
            task = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            task.cancel()
            await task
        await seen(message)

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, handle, ropewalk_broker.namesrv,
            consume_from="earliest", concurrency=2,
        ):  # fmt: skip
            await until_async(lambda: bodies - {b"0", b"1"} <= seen.bodies, "the workers go on")

    anyio.run(story, backend="asyncio")


def bad_hook(*_: object) -> NoReturn:
    raise RuntimeError("the hook is broken")


@pytest.mark.parametrize("broadcasting", [False, True])
def test_a_hook_that_raises_is_told_and_stops_nothing(
    ropewalk_broker: RopewalkBroker, run: Run, caplog: pytest.LogCaptureFixture, broadcasting: bool
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    bodies = fill(ropewalk_broker, topic, 8)

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            raise ValueError("no")
        await seen(message)

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="earliest",
            concurrency=1, on_error=bad_hook, on_skipped=bad_hook, broadcasting=broadcasting,
        ):  # fmt: skip
            await until_async(lambda: bodies - {b"0"} <= seen.bodies, "it goes on")

    run(story)
    assert "hook failed" in events(caplog)


@pytest.mark.parametrize("part, victim", [(sharing.Sharing, "_rebalance"), (progress.Progress, "record")])
def test_a_task_of_the_consumers_own_that_fails_is_told_and_begun_again(
    ropewalk_broker: RopewalkBroker,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    part: type,
    victim: str,
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    monkeypatch.setattr(member, "RESTART_PAUSE_S", 0.05)
    whole = getattr(part, victim)
    calls = 0

    async def fails_once(self: object, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("an answer without what it should have")
        return await whole(self, *arguments)

    monkeypatch.setattr(part, victim, fails_once)

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, seen, ropewalk_broker.namesrv, consume_from="earliest",
            commit_interval=0.05,
        ):  # fmt: skip
            bodies = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 4)
            await until_async(lambda: bodies <= seen.bodies and calls > 2, "it goes on")

    run(story)
    assert "consumer task failed" in events(caplog)


def test_what_does_end_it_is_in_failure_and_in_the_log_and_raised_by_close(
    ropewalk_broker: RopewalkBroker,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(self: AsyncPushConsumer) -> NoReturn:
        raise Odd("the end")

    monkeypatch.setattr(progress.Progress, "commit_forever", ends)

    async def story() -> None:
        consumer = AsyncPushConsumer(
            ropewalk_broker.group(), {ropewalk_broker.topic(): "*"}, Seen(), ropewalk_broker.namesrv
        )
        await consumer.start()
        await until_async(lambda: consumer.closed, "it ends")
        assert isinstance(consumer.failure, Odd)
        with pytest.raises(Odd):
            await consumer.close()
        await consumer.close()

    run(story)
    assert "push consumer ended" in events(caplog)


def test_a_blocking_consumer_says_so_too(
    ropewalk_broker: RopewalkBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(self: AsyncPushConsumer) -> NoReturn:
        raise Odd("the end")

    monkeypatch.setattr(progress.Progress, "commit_forever", ends)
    consumer = PushConsumer(
        ropewalk_broker.group(), {ropewalk_broker.topic(): "*"}, lambda message: None, ropewalk_broker.namesrv
    )
    consumer.start()
    deadline = time.monotonic() + 60
    while not consumer.closed and time.monotonic() < deadline:
        time.sleep(0.01)
    assert isinstance(consumer.failure, Odd)
    with pytest.raises(Odd):
        consumer.close()
    consumer.close()


def test_handlers_failures_are_warnings_that_the_standard_library_shows(
    ropewalk_broker: RopewalkBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    topic = ropewalk_broker.topic()
    fill(ropewalk_broker, topic, 1)

    async def handle(message: ReceivedMessage) -> None:
        raise ValueError("100 % wrong")

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="earliest"
        ):
            await until_async(lambda: "handler failed" in events(caplog), "it is told")

    run(story)
    record = next(record for record in caplog.records if getattr(record, "event", "") == "handler failed")
    assert record.levelno == logging.WARNING and record.name == "ropewalk.client"
    assert f"topic={topic}" in record.getMessage() and record.exc_info is not None
    assert vars(record)["fields"]["topic"] == topic
    assert "100 % wrong" in caplog.text


def test_a_topic_that_does_not_exist_and_a_lost_broker_are_told_once(
    ropewalk_own_broker: RopewalkBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = ropewalk_own_broker
    broker.topic("there")
    with (
        caplog.at_level(logging.INFO, "ropewalk.client"),
        PushConsumer("g", {"there": "*", "missing": "*"}, lambda message: None, broker.namesrv) as consumer,
    ):
        broker.wait_until(lambda: len(consumer.queues) == 4, "queues")
        broker.process.kill()
        # A broker that dies may take one more connection before all its ports are closed.
        broker.wait_until(
            lambda: events(caplog).count("not connected") == 2, "broker and name server are gone"
        )
        told = events(caplog)
        time.sleep(1)
        assert events(caplog) == told, "nothing is told again while they are away"
    assert told.count("topic does not exist") == 1
    assert 1 <= told.count("connection lost") <= 4
