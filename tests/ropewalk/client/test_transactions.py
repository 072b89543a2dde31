"""Transactional producers against a real broker: ends, exceptions, and checks that reach a process started since."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import anyio
import anyio.lowlevel
import pytest

from ropewalk import (
    AsyncTransactionProducer,
    LocalProtocolError,
    Message,
    NotOpen,
    Outcome,
    ReceivedMessage,
    TransactionProducer,
)
from ropewalk.testing import BrokerProcess, RopewalkBroker

Story = Callable[[], Awaitable[None]]
Run = Callable[[Story], None]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    """A broker that checks soon."""
    settings = {"transactionTimeOut": "300", "transactionCheckInterval": "200", "transactionCheckMax": "1000"}
    with BrokerProcess(settings) as process:
        yield process


@pytest.fixture
def broker(process: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[RopewalkBroker]:
    with closing(RopewalkBroker(process, f"t{abs(hash(request.node.name))}")) as broker:
        yield broker


def unknown(message: ReceivedMessage) -> Outcome:
    return Outcome.UNKNOWN


def bodies(broker: RopewalkBroker, topic: str, count: int) -> list[bytes]:
    return [record.body for record in broker.messages(topic, count)]


def test_a_block_commits_and_an_exception_rolls_back(broker: RopewalkBroker) -> None:
    topic = broker.topic("orders")
    with TransactionProducer(unknown, broker.namesrv, group=broker.group("shop")) as producer:
        with producer.transaction(topic, Message(b"one", keys="k", tags="t")) as transaction:
            assert not transaction.confirmed
        assert (transaction.outcome, transaction.confirmed) == (Outcome.COMMIT, True)
        with pytest.raises(ZeroDivisionError), producer.transaction(topic, b"never") as failed:
            raise ZeroDivisionError
        assert (failed.outcome, failed.confirmed) == (Outcome.ROLLBACK, True)
        with producer.transaction(topic, b"neither") as refused:
            refused.rollback()
        producer.send_in_transaction(topic, b"two", lambda message: Outcome.COMMIT)
        producer.send(topic, b"plain")
    records = broker.messages(topic, 3)
    assert sorted(record.body for record in records) == [b"one", b"plain", b"two"]
    (one,) = [record for record in records if record.body == b"one"]
    assert (one.message_id, one.keys, one.tags) == (transaction.id, ["k"], "t")


def test_a_check_decides_what_was_left(broker: RopewalkBroker) -> None:
    topic, asked = broker.topic("orders"), threading.Event()
    seen: list[ReceivedMessage] = []

    def on_check(message: ReceivedMessage) -> Outcome:
        seen.append(message)
        if message.body == b"no":
            return Outcome.ROLLBACK
        if len(seen) < 4:
            raise RuntimeError("the database is away")  # is no answer: the broker asks again
        asked.set()
        return Outcome.COMMIT

    with TransactionProducer(on_check, broker.namesrv, group=broker.group("shop")) as producer:
        for body in (b"yes", b"no"):
            with producer.transaction(topic, Message(body, keys=body.decode())) as transaction:
                transaction.leave()
            assert not transaction.confirmed
        assert asked.wait(60)
        assert bodies(broker, topic, 1) == [b"yes"]
    yes = next(message for message in seen if message.body == b"yes")
    assert (yes.topic, yes.keys) == (topic, ["yes"])


def test_a_process_started_since_is_asked(broker: RopewalkBroker) -> None:
    """It has sent nothing: it is known by its topics."""
    topic, group = broker.topic("orders"), broker.group("shop")
    with TransactionProducer(unknown, broker.namesrv, group=group) as first:
        first.send_in_transaction(topic, b"inherited", lambda message: Outcome.UNKNOWN)

    def on_check(message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT

    with TransactionProducer(on_check, broker.namesrv, group=group, topics=[topic]):
        assert bodies(broker, topic, 1) == [b"inherited"]


def test_large_bodies_are_shown_to_checks_as_they_were_sent(broker: RopewalkBroker) -> None:
    topic, seen = broker.topic("orders"), threading.Event()
    body = b"large " * 4_000

    def on_check(message: ReceivedMessage) -> Outcome:
        if message.body == body:
            seen.set()
        return Outcome.COMMIT

    with TransactionProducer(on_check, broker.namesrv, group=broker.group("shop")) as producer:
        with producer.transaction(topic, body) as transaction:
            transaction.leave()
        assert seen.wait(60)


def test_what_cannot_be_is_told_at_once(broker: RopewalkBroker) -> None:
    with pytest.raises(ValueError, match="group"):
        TransactionProducer(unknown, broker.namesrv)
    producer = TransactionProducer(unknown, broker.namesrv, group="g")
    with pytest.raises(NotOpen), producer.transaction("T", b"x"):
        pass
    with producer, pytest.raises(LocalProtocolError, match="delayed"):
        producer.send_in_transaction("T", Message(b"x", delay_level=1), lambda message: Outcome.COMMIT)


def test_under_both_loops(run: Run, broker: RopewalkBroker) -> None:
    topic = broker.topic("orders")

    async def story() -> None:
        checked = anyio.Event()

        async def on_check(message: ReceivedMessage) -> Outcome:
            checked.set()
            return Outcome.COMMIT

        async def local(message: Message) -> Outcome:
            await anyio.lowlevel.checkpoint()
            return Outcome.COMMIT

        async with AsyncTransactionProducer(on_check, broker.namesrv, group=broker.group("a")) as producer:
            async with producer.transaction(topic, b"block"):
                pass
            await producer.send_in_transaction(topic, b"local", local)
            await producer.send(topic, b"plain")
            with anyio.CancelScope() as scope:
                async with producer.transaction(topic, b"cancelled"):
                    scope.cancel()
                    await anyio.sleep_forever()
            await checked.wait()
            await anyio.to_thread.run_sync(broker.messages, topic, 4)

    run(story)
    assert sorted(bodies(broker, topic, 4)) == [b"block", b"cancelled", b"local", b"plain"]


def test_a_local_transaction_that_returns_no_outcome_is_left_to_the_check(broker: RopewalkBroker) -> None:
    topic, asked = broker.topic("orders"), threading.Event()

    def on_check(message: ReceivedMessage) -> Outcome:
        asked.set()
        return Outcome.COMMIT

    with TransactionProducer(on_check, broker.namesrv, group=broker.group("shop")) as producer:
        with pytest.raises(
            TypeError, match=r"the outcome of a transaction is Outcome.COMMIT, .* and not None"
        ):
            producer.send_in_transaction(topic, b"paid", lambda message: None)  # type: ignore[arg-type,return-value]
        with (
            pytest.raises(TypeError, match="and not 'commit'"),
            producer.transaction(topic, b"x") as transaction,
        ):
            transaction.outcome = "commit"  # type: ignore[assignment]
        assert asked.wait(60)
        assert sorted(bodies(broker, topic, 2)) == [b"paid", b"x"]


def test_a_check_that_does_not_come_back_does_not_hold_up_close(run: Run, broker: RopewalkBroker) -> None:
    topic, asked, answer = broker.topic("orders"), threading.Event(), threading.Event()

    def on_check(message: ReceivedMessage) -> Outcome:
        asked.set()
        answer.wait()
        return Outcome.COMMIT

    async def story() -> None:
        async with AsyncTransactionProducer(on_check, broker.namesrv, group=broker.group("slow")) as producer:
            async with producer.transaction(topic, b"left") as transaction:
                transaction.outcome = Outcome.UNKNOWN
            await anyio.to_thread.run_sync(asked.wait)

    try:
        run(story)
    finally:
        answer.set()
