"""Both producers against a real broker: one story each, under trio, under asyncio, and without a loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import zlib
from collections.abc import Awaitable, Callable

import anyio
import pytest

from ropewalk.client.aio.producer import AsyncProducer
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.messages import Message, SendResult, SendStatus, command_of
from ropewalk.codes import RequestCode
from ropewalk.errors import OutcomeUnknown, Rejected, RopewalkError
from ropewalk.format.headers import ProducerGroupHeader
from ropewalk.testing import RopewalkBroker

Run = Callable[[Callable[[], Awaitable[None]]], None]
MIXED = [
    Message(b"plain"),
    Message(b"marked", keys="k1", tags="paid", properties={"shop": "7"}),
    Message(b"z" * 5000),
]


def test_messages_arrive_as_they_were_sent(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        async with AsyncProducer(ropewalk_broker.namesrv) as producer:
            for message in MIXED:
                assert (await producer.send(topic, message)).status is SendStatus.SEND_OK
            await producer.send_batch(topic, [b"b1", b"b2"])
            await producer.send_oneway(topic, b"oneway")
            assert producer.counts.acknowledged == 5 and producer.counts.pending == 0

    run(story)
    check_mixed(ropewalk_broker, topic)


def test_messages_arrive_as_they_were_sent_without_a_loop(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv) as producer:
        for message in MIXED:
            assert producer.send(topic, message).status is SendStatus.SEND_OK
        producer.send_batch(topic, [b"b1", b"b2"])
        producer.send_oneway(topic, b"oneway")
        assert producer.counts.acknowledged == 5 and producer.counts.pending == 0
    check_mixed(ropewalk_broker, topic)


def check_mixed(broker: RopewalkBroker, topic: str) -> None:
    records = broker.messages(topic, 6)
    bodies = sorted(record.body for record in records)
    assert bodies == sorted([b"plain", b"marked", b"z" * 5000, b"b1", b"b2", b"oneway"])
    (marked,) = [record for record in records if record.body == b"marked"]
    assert marked.properties["KEYS"] == "k1" and marked.properties["TAGS"] == "paid"
    assert marked.properties["shop"] == "7"
    (packed,) = [record for record in records if record.body == b"z" * 5000]
    stored = broker.client.view(packed.offset_message_id)
    assert stored.sys_flag & 1 and zlib.decompress(stored.body) == packed.body


def test_gathered_messages_are_each_accounted_for(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        async with AsyncProducer(ropewalk_broker.namesrv, linger=0.02) as producer:
            pending = [await producer.send_async(topic, b"%d" % number) for number in range(1000)]
            await producer.flush()
            assert all(one.done for one in pending)
            results = [await one.wait() for one in pending]
        places = {(result.queue, result.queue_offset) for result in results}
        assert len(places) == 1000 and producer.counts.acknowledged == 1000
        assert len({result.message_ids for result in results}) == 1000
        assert len({result.offset_message_ids for result in results}) == 1000

    run(story)
    assert {record.body for record in ropewalk_broker.messages(topic, 1000)} == {
        b"%d" % n for n in range(1000)
    }


def test_gathered_messages_are_each_accounted_for_without_a_loop(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv, pending_max=100) as producer:
        futures = [producer.send_async(topic, b"%d" % number) for number in range(1000)]
        assert producer.flush(60)
        assert len({(one.result().queue, one.result().queue_offset) for one in futures}) == 1000
    assert producer.counts.acknowledged == 1000
    assert len(ropewalk_broker.messages(topic, 1000)) == 1000


def test_outcomes_are_what_the_standard_library_calls_futures(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    told: list[concurrent.futures.Future[SendResult]] = []
    with Producer(ropewalk_broker.namesrv, linger=1.0) as producer:
        late = producer.send_async(topic, b"0")
        with pytest.raises(concurrent.futures.TimeoutError):
            late.result(0.01)  # one of many that share a condition: its own time is up all the same
        futures = [late, *(producer.send_async(topic, b"%d" % number) for number in range(1, 50))]
        for one in futures:
            one.add_done_callback(told.append)
        assert not late.cancel()
        assert set(concurrent.futures.as_completed(futures, 60)) == set(futures)
        assert not concurrent.futures.wait(futures, 60).not_done

        async def awaited() -> SendResult:
            return await asyncio.wrap_future(producer.send_async(topic, b"50"))

        assert asyncio.run(awaited()).status is SendStatus.SEND_OK
    assert told == futures and all(one.exception() is None for one in futures)


def test_messages_of_a_group_keep_their_order(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()
    groups = ["a", "b", "c", "d", "e"]

    async def story() -> None:
        async with AsyncProducer(ropewalk_broker.namesrv, linger=0.001, batch_count=7) as producer:
            for number in range(300):
                group = groups[number % 5]
                await producer.send_async(topic, Message(b"%d" % number, group=group))

    run(story)
    records = ropewalk_broker.messages(topic, 300)
    for group in groups:
        of_group = [record for record in records if record.properties["__SHARDINGKEY"] == group]
        assert len({record.queue_id for record in of_group}) == 1
        numbers = [int(record.body) for record in of_group]
        assert numbers == sorted(numbers) and len(numbers) == 60


def test_a_delayed_message_among_gathered_ones_goes_by_itself(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv) as producer:
        producer.send_async(topic, b"now")
        producer.send_async(topic, Message(b"later", delay_level=1))
    assert [record.body for record in ropewalk_broker.messages(topic, 2)] == [b"now", b"later"]


def test_threads_share_a_producer(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv) as producer:

        def send_some(thread: int) -> None:
            for number in range(20):
                producer.send(topic, b"%d-%d" % (thread, number))

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(send_some, range(4)))
        assert producer.counts.acknowledged == 80
    assert len(ropewalk_broker.messages(topic, 80)) == 80


def test_a_selector_sees_every_queue_and_is_obeyed(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv) as producer:
        results = [producer.send(topic, b"x", selector=lambda queues: queues[2]) for _ in range(3)]
    assert {result.queue.queue_id for result in results} == {2}


def test_the_broker_knows_the_producer(ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    group = ropewalk_broker.group("shop")
    request = command_of(RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader(group))
    connection = ropewalk_broker.client.connection_to(ropewalk_broker.broker)
    with Producer(ropewalk_broker.namesrv, group=group) as producer:
        producer.send(topic, b"x")
        assert producer.client_id.encode() in connection.call(request).body
    ropewalk_broker.wait_until(lambda: producer.client_id.encode() not in connection.call(request).body)


def test_cancelled_anywhere_every_message_is_accounted_for(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        for moment in (0.0, 0.001, 0.004, 0.01, 0.03):
            producer = AsyncProducer(ropewalk_broker.namesrv, linger=0.002)
            pending = []
            with anyio.move_on_after(moment):
                async with producer:
                    for _ in range(200):
                        pending.append(await producer.send_async(topic, b"x"))
                        await producer.send(topic, b"y")
            assert producer.counts.pending == 0
            assert all(one.done for one in pending)

    run(story)


def test_an_exception_leaves_the_block_as_it_is(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    async def story() -> None:
        with pytest.raises(KeyError):
            async with AsyncProducer(ropewalk_broker.namesrv) as producer:
                pending = await producer.send_async(ropewalk_broker.name("nowhere"), b"x")
                raise KeyError("the program's own")
        with pytest.raises((OutcomeUnknown, Unreachable)):
            await pending.wait()

    run(story)


def test_an_exception_abandons_what_waits_behind_a_batch_of_its_group(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic = ropewalk_broker.topic()
    messages = [Message(b"%d" % number, group="one") for number in range(200)]

    async def story() -> None:
        producer = AsyncProducer(ropewalk_broker.namesrv, linger=0, batch_count=1)
        with pytest.raises(ZeroDivisionError):
            async with producer:
                for message in messages:
                    await producer.send_async(topic, message)
                raise ZeroDivisionError
        counts = producer.counts
        assert counts.submitted == 200 and counts.pending == 0 and counts.refused > 0

    run(story)
    blocking = Producer(ropewalk_broker.namesrv, linger=0, batch_count=1)
    with pytest.raises(ZeroDivisionError), blocking:
        for message in messages:
            blocking.send_async(topic, message)
        raise ZeroDivisionError
    assert blocking.counts.submitted == 200 and blocking.counts.pending == 0


def test_a_broker_in_a_name_servers_place_is_called_one(ropewalk_broker: RopewalkBroker) -> None:
    with (
        Producer(ropewalk_broker.broker) as producer,
        pytest.raises(Rejected, match=rf"{ropewalk_broker.broker} is no name server"),
    ):
        producer.send("orders", b"x")


def test_nobody_there(run: Run) -> None:
    async def story() -> None:
        async with AsyncProducer("127.0.0.1:1", timeout=0.5) as producer:
            with pytest.raises(Unreachable, match=r"no name server.*Connection refused"):
                await producer.send("T", b"x")

    run(story)
    with Producer("127.0.0.1:1", timeout=0.5) as blocking, pytest.raises(Unreachable, match="no name server"):
        blocking.send("T", b"x")
    with pytest.raises(Unreachable, match="closed"):
        blocking.send("T", b"x")


@pytest.mark.slow
def test_a_broker_that_is_killed_leaves_no_message_unaccounted(ropewalk_own_broker: RopewalkBroker) -> None:
    with Producer(ropewalk_own_broker.namesrv, timeout=3.0) as producer:
        futures = []
        for number in range(2000):
            futures.append(producer.send_async("T", b"%d" % number))
            if number == 1000:
                futures[0].result(30)
                ropewalk_own_broker.process.kill()
        assert producer.flush(60)
        outcomes = [one.exception() for one in futures]
    assert any(isinstance(outcome, RopewalkError) for outcome in outcomes) and None in outcomes
    assert producer.counts.pending == 0 and producer.counts.submitted == 2000
