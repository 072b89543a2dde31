"""Members of groups against a real broker, under trio, under asyncio, and without a loop."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from ropewalk.client.aio.offset_file import load_offsets, save_offsets
from ropewalk.client.aio.push import sharing
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.aio.queue_reader import QueueReader
from ropewalk.client.blocking.push_consumer import PushConsumer
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater, TopicQueue
from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import Queue
from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.ropewalk.client.aio.members import Seen, fill
from tests.support.long_run import ROOM_S
from tests.support.waiting import until_async

Run = Callable[[Callable[[], Awaitable[None]]], None]
WAIT_S = 30.0
TURNS = itertools.count()


@pytest.fixture(scope="module")
def quick_levels() -> Iterator[RopewalkBroker]:
    """A broker whose delay levels are so short that a test can wait for a retry."""
    with BrokerProcess({"messageDelayLevel": "1s 1s 1s 1s 1s"}) as process:
        broker = RopewalkBroker(process, "")
        yield broker
        broker.close()


@pytest.fixture(scope="module")
def nothing_young() -> Iterator[RopewalkBroker]:
    """A broker that counts no message as being in memory: a new group at "latest" gets no old ones."""
    with BrokerProcess({"accessMessageInMemoryMaxRatio": "0"}) as process:
        broker = RopewalkBroker(process, "")
        yield broker
        broker.close()


def test_what_is_sent_after_start_is_handled_with_latest(nothing_young: RopewalkBroker, run: Run) -> None:
    topic = nothing_young.topic(f"after-start-{next(TURNS)}")
    fill(nothing_young, topic, 20)

    async def one_start(turn: int) -> None:
        seen = Seen()
        async with AsyncPushConsumer(f"g-{topic}-{turn}", {topic: "*"}, seen, nothing_young.namesrv):
            sent = await anyio.to_thread.run_sync(fill, nothing_young, topic, 8, 100 + 8 * turn)
            await until_async(lambda: seen.bodies >= sent, lambda: f"handled: {seen.bodies}")
        assert seen.bodies == sent, "and nothing from before"

    async def story() -> None:
        for turn in range(4):
            await one_start(turn)

    run(story)


def test_a_queue_that_is_taken_on_late_begins_where_its_member_started(
    nothing_young: RopewalkBroker, run: Run
) -> None:
    topic, seen = nothing_young.topic(f"late-{next(TURNS)}"), Seen()
    fill(nothing_young, topic, 20)

    async def story() -> None:
        consumer = AsyncPushConsumer(f"g-{topic}", {topic: "*"}, seen, nothing_young.namesrv)
        core = consumer._member.core
        begin_offset = core.begin_offset

        def away(queue: TopicQueue, since_ms: int | None = None) -> Any:
            raise Unreachable("the broker is away")

        core.begin_offset = away  # type: ignore[method-assign]
        async with consumer:
            sent = await anyio.to_thread.run_sync(fill, nothing_young, topic, 8, 100)
            core.begin_offset = begin_offset  # type: ignore[method-assign]
            await until_async(lambda: seen.bodies >= sent, lambda: f"handled: {seen.bodies}")

    run(story)


def test_members_that_subscribe_differently_are_told_so_and_that_it_is_over(
    ropewalk_broker: RopewalkBroker,
    run: Run,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharing, "HEARTBEAT_S", 0.2)
    caplog.set_level("INFO", "ropewalk.client")
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()

    def told(event: str) -> list[str]:
        events = [record for record in caplog.records if getattr(record, "event", "") == event]
        return [str(record.fields.get("reason")) for record in events]  # type: ignore[attr-defined]

    async def story() -> None:
        everything = AsyncPushConsumer(group, {topic: "*"}, Seen(), ropewalk_broker.namesrv, client_id="all")
        some = AsyncPushConsumer(group, {topic: "paid"}, Seen(), ropewalk_broker.namesrv, client_id="some")
        async with everything:
            async with some:
                await until_async(lambda: len(told("members of the group disagree")) == 2, "both are told")
            await until_async(lambda: len(told("members of the group agree")) == 1, "the one that is left is")

    run(story)
    whole = "\n".join(told("members of the group disagree"))
    assert f"some subscribes to %RETRY%{group}:*, {topic}:paid, all to %RETRY%{group}:*, {topic}:*" in whole
    assert f"all subscribes to %RETRY%{group}:*, {topic}:*, some to %RETRY%{group}:*, {topic}:paid" in whole


def test_every_message_is_handled_and_a_successor_goes_on_behind_it(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    bodies = fill(ropewalk_broker, topic, 50)
    first, second = Seen(), Seen()

    async def story() -> None:
        async with AsyncPushConsumer(group, {topic: "*"}, first, ropewalk_broker.namesrv) as consumer:
            await until_async(lambda: first.bodies == bodies, "all are handled")
            await until_async(lambda: len(consumer.queues) == 4, "all queues are ours")
        ropewalk_broker.send(topic, b"later")
        async with AsyncPushConsumer(group, {topic: "*"}, second, ropewalk_broker.namesrv):
            await until_async(lambda: bool(second.messages), "the later one is handled")
            await anyio.sleep(0.1)

    run(story)
    assert len(first.messages) == 50, "each once"
    assert [message.body for message in second.messages] == [b"later"]
    assert ropewalk_broker.committed(group, topic) == 51


def test_a_message_sent_while_nothing_is_there_is_handled_at_once(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, seen, ropewalk_broker.namesrv
        ) as consumer:
            await until_async(lambda: len(consumer.queues) == 4, "all queues are ours")
            await anyio.sleep(0.1)
            began = time.monotonic()
            await anyio.to_thread.run_sync(ropewalk_broker.send, topic, b"x")
            await until_async(lambda: bool(seen.messages), "it is handled")
            assert time.monotonic() - began < 10 + ROOM_S

    run(story)


def test_a_topic_that_is_made_later_is_found_soon(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic, seen = f"made-later-{next(TURNS)}-{time.monotonic_ns()}", Seen()

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "*"}, seen, ropewalk_broker.namesrv, consume_from="first"
        ):
            await anyio.sleep(0.5)
            began = time.monotonic()
            await anyio.to_thread.run_sync(ropewalk_broker.client.send, topic, Message(b"first"))
            await until_async(lambda: seen.bodies == {b"first"}, "the message that made the topic is handled")
            assert time.monotonic() - began < 10 + ROOM_S, "sooner than the next division of queues"

    run(story)


def test_only_the_tags_that_were_asked_for_arrive(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic, seen = ropewalk_broker.topic(), Seen()
    for number in range(12):  # "Aa" and "BB" have one hash: a broker cannot tell them apart
        ropewalk_broker.send(topic, Message(b"%d" % number, tags=("Aa", "BB", "c")[number % 3]))

    async def story() -> None:
        async with AsyncPushConsumer(
            ropewalk_broker.group(), {topic: "Aa || c"}, seen, ropewalk_broker.namesrv
        ):
            await until_async(lambda: len(seen.messages) == 8, "the eight arrive")
            await anyio.sleep(0.1)

    run(story)
    assert {message.tags for message in seen.messages} == {"Aa", "c"} and len(seen.messages) == 8


def test_members_share_the_queues_and_take_over_from_who_leaves(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group = ropewalk_broker.topic(queues=8), ropewalk_broker.group()
    ann, bob = Seen(), Seen()

    async def story() -> None:
        def consumer(seen: Seen, name: str) -> AsyncPushConsumer:
            return AsyncPushConsumer(group, {topic: "*"}, seen, ropewalk_broker.namesrv, client_id=name)

        async with consumer(ann, "ann") as first:
            await until_async(lambda: len(first.queues) == 8, "ann has all")
            async with consumer(bob, "bob") as second:
                await until_async(lambda: len(first.queues) == len(second.queues) == 4, "they share")
                assert not set(first.queues) & set(second.queues)
                sent = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 80)
                await until_async(lambda: ann.bodies | bob.bodies == sent, "together they have all")
            await until_async(lambda: len(first.queues) == 8, "ann has all again")
            more = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 16, 80)
            await until_async(lambda: ann.bodies >= more, "ann has the rest")

    run(story)
    assert len(ann.messages) + len(bob.messages) == 96, "each once"
    assert len(ann.messages) == 56 and len(bob.messages) == 40


def test_plain_functions_are_handlers_too_and_run_side_by_side(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    together = threading.Barrier(4)
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        together.wait(WAIT_S)  # passes only when four handlers are in it
        seen.append(message.body)

    with PushConsumer(group, {topic: "*"}, handle, ropewalk_broker.namesrv, concurrency=4) as consumer:
        ropewalk_broker.wait_until(lambda: len(consumer.queues) == 4)
        bodies = fill(ropewalk_broker, topic, 20)
        ropewalk_broker.wait_until(lambda: set(seen) == bodies, "all are handled")
    assert ropewalk_broker.committed(group, topic) == 20


def test_a_failed_message_comes_again_with_its_count(quick_levels: RopewalkBroker, run: Run) -> None:
    topic = quick_levels.topic(f"retry-{next(TURNS)}")
    seen: list[tuple[bytes, int, str]] = []
    told: list[Exception] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times, message.topic))
        if message.body == b"bad" and message.reconsume_times < 2:
            raise ValueError("not yet")

    async def story() -> None:
        async with AsyncPushConsumer(
            f"{topic}-g", {topic: "*"}, handle, quick_levels.namesrv, on_error=lambda _, exc: told.append(exc)
        ):
            quick_levels.send(topic, b"bad")
            quick_levels.send(topic, b"good")
            await until_async(lambda: len(seen) == 4, "two failures and two successes")

    run(story)
    assert sorted(seen) == [
        (b"bad", 0, topic), (b"bad", 1, topic), (b"bad", 2, topic), (b"good", 0, topic),
    ]  # fmt: skip
    assert [str(exc) for exc in told] == ["not yet", "not yet"]


def test_a_message_whose_handler_hangs_comes_again_and_holds_nobody_up(
    quick_levels: RopewalkBroker, run: Run
) -> None:
    topic = quick_levels.topic(f"hangs-{next(TURNS)}", queues=1)
    seen: list[tuple[bytes, int]] = []
    told: list[Exception] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"hangs" and not message.reconsume_times:
            await anyio.sleep_forever()

    async def story() -> None:
        async with AsyncPushConsumer(
            f"{topic}-g",
            {topic: "*"},
            handle,
            quick_levels.namesrv,
            on_error=lambda _, exc: told.append(exc),
            consume_timeout=0.3,
            close_timeout=0.1,
        ):
            quick_levels.send(topic, b"hangs")
            quick_levels.send(topic, b"good")
            await until_async(lambda: (b"hangs", 1) in seen, "it comes again")
            await anyio.sleep(0.4)

    run(story)
    assert sorted(seen) == [(b"good", 0), (b"hangs", 0), (b"hangs", 1)], "each once"
    assert [type(exc) for exc in told] == [TimeoutError]
    assert quick_levels.committed(f"{topic}-g", topic) == 2


def test_a_message_that_always_fails_becomes_a_dead_letter(quick_levels: RopewalkBroker) -> None:
    topic = quick_levels.topic("dead")
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        raise RetryLater(delay_level=-1 if message.body == b"given up" else 1)

    with PushConsumer("dead-g", {topic: "*"}, handle, quick_levels.namesrv, max_retries=1):
        quick_levels.send(topic, b"given up")
        quick_levels.send(topic, b"hopeless")
        quick_levels.wait_until(lambda: (b"hopeless", 1) in seen, "one retry")
        quick_levels.wait_until(lambda: "dead-g" in dead_letters(quick_levels), "a dead letter")
        records = quick_levels.messages("%DLQ%dead-g", 2)
    assert [record.body for record in records] == [b"given up", b"hopeless"]
    assert sorted(seen) == [(b"given up", 0), (b"hopeless", 0), (b"hopeless", 1)]


def dead_letters(broker: RopewalkBroker) -> str:
    """The dead letter topics that the broker's name server knows."""
    from ropewalk.format.remoting import Command

    answer = broker.client.connection_to(broker.namesrv).call(Command(206))
    return " ".join(word for word in answer.body.decode().split('"') if word.startswith("%DLQ%"))


def test_orderly_handlers_see_each_queue_in_order_and_a_failure_holds_it_up(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    seen: dict[int, list[int]] = defaultdict(list)
    failed: set[bytes] = set()
    at_work: set[int] = set()

    async def handle(message: ReceivedMessage) -> None:
        queue = message.source.queue.queue_id
        assert queue not in at_work
        at_work.add(queue)
        await anyio.sleep(0.001)
        at_work.remove(queue)
        if int(message.body) % 7 == 0 and message.body not in failed:
            failed.add(message.body)
            raise RetryLater
        assert message.reconsume_times == (1 if message.body in failed else 0)
        seen[queue].append(message.queue_offset)

    fill(ropewalk_broker, topic, 60)

    async def story() -> None:
        async with AsyncPushConsumer(
            group,
            {topic: "*"},
            handle,
            ropewalk_broker.namesrv,
            orderly=True,
            order_pause=0.02,
            max_retries=-1,
        ):
            await until_async(lambda: sum(map(len, seen.values())) == 60, "all are handled")

    run(story)
    assert all(offsets == sorted(set(offsets)) for offsets in seen.values())
    assert len(failed) == 9
    assert ropewalk_broker.committed(group, topic) == 60


def test_orderly_members_hand_queues_over_without_a_gap_or_a_duplicate(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    seen: dict[int, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        await anyio.sleep(0.002)
        seen[message.source.queue.queue_id].append(message.queue_offset)

    fill(ropewalk_broker, topic, 400)

    async def story() -> None:
        def consumer() -> AsyncPushConsumer:
            return AsyncPushConsumer(
                group, {topic: "*"}, handle, ropewalk_broker.namesrv, orderly=True, pull_count=4
            )

        async with consumer() as first:
            await until_async(lambda: sum(map(len, seen.values())) > 20, "the first is at it")
            async with consumer() as second:
                await until_async(lambda: len(first.queues) == len(second.queues) == 2, "they share")
                await anyio.sleep(0.1)
            await until_async(lambda: sum(map(len, seen.values())) >= 400, "all are handled")
            await anyio.sleep(0.1)

    run(story)
    assert all(offsets == list(range(100)) for offsets in seen.values()), dict(seen)


def test_broadcasting_every_member_gets_everything_and_keeps_its_place(
    ropewalk_broker: RopewalkBroker, run: Run, tmp_path: Path
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    members = [Seen(), Seen()]

    async def story() -> None:
        def consumer(place: int) -> AsyncPushConsumer:
            return AsyncPushConsumer(
                group,
                {topic: "*"},
                members[place],
                ropewalk_broker.namesrv,
                broadcasting=True,
                offsets_folder=tmp_path / str(place),
                consume_from="first",
            )

        sent = await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 20)
        async with consumer(0), consumer(1):
            await until_async(lambda: all(seen.bodies == sent for seen in members), "both have all")
        ropewalk_broker.send(topic, b"later")
        async with consumer(0):
            await until_async(lambda: b"later" in members[0].bodies, "the place was kept")
            await anyio.sleep(0.1)

    run(story)
    assert [len(seen.messages) for seen in members] == [21, 20]
    assert ropewalk_broker.committed(group, topic) == 0, "a broadcasting group has no progress at the broker"


def test_a_queue_is_unlocked_when_its_handler_is_through_and_its_progress_recorded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def record(_reader: QueueReader) -> None:
        done.append("recorded")

    async def unlock(_queues: list[TopicQueue]) -> None:
        done.append("unlocked")

    async def settled(_reader: QueueReader) -> None:
        done.append("settled")

    async def story() -> None:
        consumer = AsyncPushConsumer("g", {"T": "*"}, Seen(), orderly=True)
        nobody, queue = cast(Any, None), TopicQueue("T", Queue("a", 0))
        reader = QueueReader(nobody, nobody, queue, 0, consumer.options, lambda *_: None)
        consumer._member.leaving[queue] = reader
        consumer._sharing.open()
        monkeypatch.setattr(QueueReader, "wait_idle", settled)
        monkeypatch.setattr(consumer._progress, "record", record)
        monkeypatch.setattr(consumer._sharing, "_unlock", unlock)
        await consumer._sharing._finish_giving_up(reader)

    run(story)
    assert done == ["settled", "recorded", "unlocked"]


def test_queues_that_a_broadcasting_member_loses_together_are_recorded_one_after_the_other(
    ropewalk_broker: RopewalkBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, at_work = ropewalk_broker.topic(queues=4), threading.Lock()
    handled: list[bytes] = []
    together: list[bool] = []
    fill(ropewalk_broker, topic, 8)

    def save(path: Path, offsets: Mapping[TopicQueue, int]) -> None:
        together.append(not at_work.acquire(blocking=False))
        time.sleep(0.05)
        save_offsets(path, offsets)
        if not together[-1]:
            at_work.release()

    monkeypatch.setattr("ropewalk.client.aio.push.progress.save_offsets", save)
    with PushConsumer(
        ropewalk_broker.group(), {topic: "*"}, lambda message: handled.append(message.body), ropewalk_broker.namesrv,
        broadcasting=True, offsets_folder=tmp_path, consume_from="first", rebalance_interval=0.1,
    ) as consumer:  # fmt: skip
        ropewalk_broker.wait_until(lambda: len(handled) == 8 and len(consumer.queues) == 4)
        ropewalk_broker.topic(queues=1)
        ropewalk_broker.wait_until(lambda: len(consumer.queues) == 1)
    assert len(together) >= 3 and not any(together)
    (file,) = tmp_path.iterdir()
    assert sorted(load_offsets(file).values()) == [2, 2, 2, 2]


def test_a_broadcasting_member_without_a_place_begins_at_the_end(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic, group, seen = ropewalk_broker.topic(queues=1), ropewalk_broker.group(), Seen()
    fill(ropewalk_broker, topic, 5)
    ropewalk_broker.client.send(topic, Message(b"last of the old"))

    async def story() -> None:
        async with AsyncPushConsumer(
            group, {topic: "*"}, seen, ropewalk_broker.namesrv, broadcasting=True
        ) as consumer:
            await until_async(lambda: len(consumer.queues) == 1, "it reads")
            ropewalk_broker.send(topic, b"new")
            await until_async(lambda: b"new" in seen.bodies, "what comes is handled")

    run(story)
    assert [message.body for message in seen.messages] == [b"new"], "a clustering group would begin at 0 here"


@pytest.mark.parametrize("bound", [{"cached_count_max": 10}, {"cached_bytes_max": 1000}])
def test_reading_ahead_stops_at_its_bound(ropewalk_broker: RopewalkBroker, bound: dict[str, Any]) -> None:
    topic = ropewalk_broker.topic(queues=1)
    for _ in range(100):
        ropewalk_broker.send(topic, bytes(100))
    go_on = threading.Event()
    handled: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        go_on.wait(WAIT_S)
        handled.append(message.queue_offset)

    with PushConsumer(
        ropewalk_broker.group(), {topic: "*"}, handle, ropewalk_broker.namesrv, pull_count=5, **bound
    ) as consumer:
        ropewalk_broker.wait_until(lambda: len(consumer.queues) == 1)
        (reader,) = (r for q, r in consumer._client._member.readers.items() if q.topic == topic)
        ropewalk_broker.wait_until(lambda: reader.cache.count >= 5, "it reads ahead")
        time.sleep(0.3)
        ahead = reader.cache.count
        go_on.set()
        ropewalk_broker.wait_until(lambda: len(handled) == 100, "all are handled in the end")
    assert 5 <= ahead <= 15


def test_cancelled_anywhere_nothing_is_lost(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    seen = Seen()
    sent = fill(ropewalk_broker, topic, 100)

    async def handle(message: ReceivedMessage) -> None:
        await anyio.sleep(0.005)
        await seen(message)

    async def story() -> None:
        for moment in (0.0, 0.005, 0.02, 0.05, 0.1):
            with anyio.move_on_after(moment):
                async with AsyncPushConsumer(
                    group, {topic: "*"}, handle, ropewalk_broker.namesrv, concurrency=3
                ):
                    await anyio.sleep_forever()
        async with AsyncPushConsumer(group, {topic: "*"}, handle, ropewalk_broker.namesrv):
            await until_async(lambda: seen.bodies == sent, "all are handled")

    run(story)
    assert ropewalk_broker.committed(group, topic) == 100


def test_an_exception_leaves_the_block_as_it_is(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        with pytest.raises(KeyError):
            async with AsyncPushConsumer("g", {topic: "*"}, Seen(), ropewalk_broker.namesrv):
                raise KeyError("the program's own")
        with pytest.raises(Unreachable):
            async with AsyncPushConsumer("g", {topic: "*"}, Seen(), "127.0.0.1:1"):
                pass

    run(story)
    with pytest.raises(Unreachable):
        PushConsumer("g", {topic: "*"}, print, "127.0.0.1:1").start()
