"""Clients that trace, against a real broker: the life of a message as `ropewalk admin message trace` draws it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from datetime import timedelta

import anyio
import pytest

from ropewalk import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Message,
    Outcome,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Refused,
    RetryLater,
    TransactionProducer,
)
from ropewalk.testing import BrokerProcess, RopewalkBroker
from tests.support.waiting import until
from tools.admin.message import traced
from tools.admin.trace import Step, life_of

Run = Callable[[Callable[[], Awaitable[None]]], None]
TRACES = "RMQ_SYS_TRACE_TOPIC"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    settings = {"traceTopicEnable": "true", "recallMessageEnable": "true"}
    checks = {"transactionTimeOut": "300", "transactionCheckInterval": "200", "transactionCheckMax": "1000"}
    with BrokerProcess({**settings, **checks}) as process:
        yield process


@pytest.fixture
def broker(process: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[RopewalkBroker]:
    with closing(RopewalkBroker(process, f"t{abs(hash(request.node.name))}")) as broker:
        yield broker


def drawn(broker: RopewalkBroker, wanted: str, events: int) -> list[Step]:
    """Return the steps of a message's life, once there are so many."""
    steps: list[Step] = []
    with Admin(broker.namesrv) as admin:

        def complete() -> bool:
            steps[:] = life_of(wanted, traced(admin, TRACES, wanted, 64))
            return len(steps) >= events and all(step.outcome != "no answer yet" for step in steps)

        until(complete, lambda: f"traces of {wanted}: {steps}")
    return steps


def shown(steps: list[Step]) -> list[tuple[str, str, str]]:
    return [(step.event, step.group, step.outcome) for step in steps]


def test_a_life_from_send_to_the_second_delivery(broker: RopewalkBroker) -> None:
    topic, shop, billing = broker.topic("orders"), broker.group("shop"), broker.group("billing")

    def handle(message: ReceivedMessage) -> None:
        if message.keys == ["again"] and not message.reconsume_times:
            raise RetryLater(1)

    with Producer(broker.namesrv, group=shop, trace=True) as producer:
        for key in ("once", "again"):
            result = producer.send(topic, Message(b"x", keys=key, tags="paid"))
        gathered = [producer.send_async(topic, Message(b"x", keys=f"g{number}")) for number in range(3)]
        producer.flush()
        assert producer.counts.acknowledged == 5, "traces are not counted"
    with PushConsumer(billing, {topic: "*"}, handle, broker.namesrv, consume_from="earliest", trace=True):
        again = drawn(broker, result.message_id, 4)
    assert shown(again) == [
        ("sent", shop, "success"),
        ("stored", shop, "success"),
        ("delivered", billing, "failed"),
        ("delivered", billing, "success"),
    ]
    assert [step.attempt for step in again if step.event == "delivered"] == [1, 2]
    assert again[0].topic == topic and again[1].host.startswith("127.0.0.1:")
    assert shown(drawn(broker, "once", 3))[2:] == [("delivered", billing, "success")]
    for future in gathered:
        assert len(drawn(broker, future.result().message_id, 3)) == 3


def test_a_transaction_and_a_recall(broker: RopewalkBroker) -> None:
    topic, shop = broker.topic("orders"), broker.group("shop")

    def on_check(message: ReceivedMessage) -> Outcome:
        return Outcome.ROLLBACK

    with TransactionProducer(on_check, broker.namesrv, group=shop, trace=True) as transactions:
        with transactions.transaction(topic, Message(b"x", keys="7")) as committed:
            pass
        with transactions.transaction(topic, Message(b"y", keys="8")) as left:
            left.leave()
        ended = shown(drawn(broker, committed.id, 3))
        assert ended == [*shown_send(shop), ("transaction ended", shop, "COMMIT_MESSAGE")]
        assert shown(drawn(broker, left.id, 4)) == [
            *shown_send(shop),
            ("transaction ended", shop, "UNKNOW"),
            ("transaction ended", shop, "ROLLBACK_MESSAGE, by a check"),
        ]
    with Producer(broker.namesrv, group=shop, trace=True) as producer:
        waiting = producer.send(topic, Message(b"later", delay=timedelta(seconds=3000)))
        assert waiting.recall_handle is not None
        producer.recall(waiting.recall_handle)
    assert shown(drawn(broker, waiting.message_id, 3)) == [*shown_send(shop), ("recalled", shop, "success")]


def shown_send(group: str) -> list[tuple[str, str, str]]:
    return [("sent", group, "success"), ("stored", group, "success")]


def test_under_both_loops(run: Run, broker: RopewalkBroker) -> None:
    topic, shop, billing = broker.topic("orders"), broker.group("shop"), broker.group("billing")
    audit = broker.group("audit")
    ids: list[str] = []

    async def story() -> None:
        handled = anyio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"last":
                handled.set()

        async def on_check(message: ReceivedMessage) -> Outcome:
            return Outcome.COMMIT

        async with AsyncProducer(broker.namesrv, group=shop, trace=True) as producer:
            ids.append((await producer.send(topic, b"first")).message_id)
        async with AsyncTransactionProducer(on_check, broker.namesrv, group=shop, trace=True) as transactions:
            async with transactions.transaction(topic, b"last") as transaction:
                pass
            ids.append(transaction.id)
        options = {"consume_from": "earliest", "orderly": True, "trace": True}
        async with AsyncPushConsumer(billing, {topic: "*"}, handle, broker.namesrv, **options):  # type: ignore[arg-type]
            await handled.wait()
        async with AsyncPullConsumer(
            audit, {topic: "*"}, broker.namesrv, consume_from="earliest", trace=True
        ) as consumer:
            count = 0
            while count < 2:
                count += len(await consumer.poll(timeout=5))

    run(story)
    first = shown(drawn(broker, ids[0], 4))
    assert first == [*shown_send(shop), ("delivered", billing, "success"), ("delivered", audit, "success")]
    assert len(drawn(broker, ids[1], 5)) == 5


def test_a_poll_is_a_delivery(broker: RopewalkBroker) -> None:
    topic, audit = broker.topic("orders"), broker.group("audit")
    with Producer(broker.namesrv) as producer:
        sent = producer.send(topic, b"x")
    with PullConsumer(audit, {topic: "*"}, broker.namesrv, consume_from="earliest", trace=True) as consumer:
        until(lambda: consumer.poll(timeout=1))
    assert shown(drawn(broker, sent.message_id, 1)) == [("delivered", audit, "success")]


def test_traces_that_nobody_takes_fail_no_send(
    broker: RopewalkBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The trace topic is one that the broker takes no messages for: the sends do not notice, the log tells once."""
    topic = broker.topic("orders")
    with Producer(broker.namesrv, trace=True, trace_topic="SCHEDULE_TOPIC_XXXX") as producer:
        for _ in range(3):
            producer.send(topic, b"x")
        until(lambda: "traces not sent" in caplog.text)
        producer.send(topic, b"x")
        assert producer.counts.acknowledged == 4 and producer.counts.submitted == 4
    assert caplog.text.count("traces not sent") == 1


def test_a_send_that_failed_is_told_too(broker: RopewalkBroker) -> None:
    with Producer(broker.namesrv, group=broker.group("shop"), trace=True) as producer:
        began = time.time()
        with pytest.raises(Refused):
            producer.send("SCHEDULE_TOPIC_XXXX", Message(b"x", keys=f"key-{began}"))
    (step,) = drawn(broker, f"key-{began}", 1)
    assert (step.event, step.outcome) == ("sent", "failed")
