"""What administrators ask of a consumer by way of a broker, and what the consumer answers."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.connection import Connection
from ropewalk.client.blocking.push_consumer import PushConsumer
from ropewalk.client.core.admin_requests import reset_offsets
from ropewalk.client.core.consume.consume_stats import ConsumeStats
from ropewalk.client.core.consume.received import ReceivedMessage, RetryLater, TopicQueue
from ropewalk.client.core.messages import Message
from ropewalk.client.core.routes import Queue
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from ropewalk.testing import RopewalkBroker
from tests.support.waiting import until

WAIT_S = 60.0


def ask(broker: RopewalkBroker, code: int, **ext: str) -> Command:
    with Connection(broker.broker) as connection:
        return connection.call(Command(code, ext), timeout=15.0)


class Handler:
    """Handles everything, unless the body says otherwise."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)
        if message.body == b"later" and self.bodies.count(b"later") > 1:
            raise RetryLater
        if message.body == b"broken" and self.bodies.count(b"broken") > 1:
            raise ValueError("no such account")


def sent(broker: RopewalkBroker, topic: str, *bodies: bytes) -> list[str]:
    """Offset message ids."""
    return [broker.client.send(topic, Message(body)).offset_message_ids[0] for body in bodies]


def test_a_running_consumer_tells_what_it_is_doing(ropewalk_broker: RopewalkBroker) -> None:
    topic, group, handler = ropewalk_broker.topic(queues=2), ropewalk_broker.group(), Handler()
    sent(ropewalk_broker, topic, *(b"%d" % n for n in range(6)))
    with PushConsumer(
        group, {topic: "*"}, handler, ropewalk_broker.namesrv, consume_from="first"
    ) as consumer:
        until(lambda: len(handler.bodies) == 6)

        def info(**more: str) -> Any:
            answer = ask(
                ropewalk_broker,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                consumerGroup=group,
                clientId=consumer.client_id,
                **more,
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return fastjson.loads(answer.body)

        until(lambda: sum(row["commitOffset"] for row in info()["mqTable"].values()) == 6)
        found = info()
        queues = fastjson.queue_keys(found["mqTable"])
        assert {(key.topic, key.queue_id) for key in queues if not key.topic.startswith("%")} == {
            (topic, 0),
            (topic, 1),
        }
        ours = [row for key, row in queues.items() if key.topic == topic]
        assert all(row["lastPullTimestamp"] > 1_600_000_000_000 for row in ours)
        assert any(row["lastConsumeTimestamp"] > 1_600_000_000_000 for row in ours)
        assert found["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert int(found["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
        assert {entry["topic"] for entry in found["subscriptionSet"]} == {topic, f"%RETRY%{group}"}
        assert found["statusTable"][topic]["consumeOKTPS"] > 0
        assert "jstack" not in found
        assert "tell_what_it_is_doing" in info(jstackEnable="true")["jstack"], "this very function"


def test_a_consumer_tells_its_offsets_and_an_unknown_one_is_not_online(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic, group, handler = ropewalk_broker.topic(queues=1), ropewalk_broker.group(), Handler()
    sent(ropewalk_broker, topic, b"1", b"2", b"3")
    with PushConsumer(group, {topic: "*"}, handler, ropewalk_broker.namesrv, consume_from="first") as one:

        def offsets() -> Any:
            code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
            answer = ask(ropewalk_broker, code, topic=topic, group=group, clientAddr="")
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            table = fastjson.loads(answer.body)["consumerTable"]
            return {client: list(fastjson.queue_keys(rows).values()) for client, rows in table.items()}

        until(lambda: bool(offsets() == {one.client_id: [3]}))
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    gone = ask(ropewalk_broker, code, consumerGroup=group, clientId=one.client_id)
    assert gone.code == ResponseCode.SYSTEM_ERROR and "not online" in (gone.remark or "")


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_message_is_handled_when_an_administrator_says_so(
    ropewalk_broker: RopewalkBroker, orderly: bool
) -> None:
    topic, group, handler = ropewalk_broker.topic(queues=1), ropewalk_broker.group(), Handler()
    ids = sent(ropewalk_broker, topic, b"fine", b"later", b"broken")
    with PushConsumer(
        group,
        {topic: "*"},
        handler,
        ropewalk_broker.namesrv,
        consume_from="first",
        orderly=orderly,
        on_error=lambda message, exc: None,
    ) as consumer:
        until(lambda: len(handler.bodies) == 3)

        def again(message_id: str) -> Any:
            answer = ask(
                ropewalk_broker,
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                consumerGroup=group,
                clientId=consumer.client_id,
                msgId=message_id,
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return fastjson.loads(answer.body)

        fine, later, broken = map(again, ids)
        assert fine["consumeResult"] == "CR_SUCCESS" and fine["order"] is orderly
        assert later["consumeResult"] == ("CR_SUSPEND_CURRENT_QUEUE_A_MOMENT" if orderly else "CR_LATER")
        assert broken["consumeResult"] == "CR_THROW_EXCEPTION"
        assert broken["remark"] == "ValueError: no such account"
        assert handler.bodies.count(b"fine") == 2


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("as_list", [False, True], ids=["map", "list"])
def test_a_reset_sends_a_running_consumer_back(
    ropewalk_broker: RopewalkBroker, backend: str, as_list: bool
) -> None:
    topic, group = ropewalk_broker.topic(queues=1), ropewalk_broker.group()
    sent(ropewalk_broker, topic, *(b"%d" % n for n in range(5)))
    seen: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)

    async def until(count: int) -> None:
        with anyio.fail_after(WAIT_S):
            while len(seen) < count:  # noqa: ASYNC110 - the handler knows nothing of events
                await anyio.sleep(0.01)

    async def story() -> None:
        async with AsyncPushConsumer(
            group, {topic: "*"}, handle, ropewalk_broker.namesrv, consume_from="first"
        ) as consumer:
            await until(5)
            (queue,) = consumer.queues
            request = reset_request(group, queue, 2, as_list=as_list)
            assert consumer._requests.answer(request) is None
            await until(8)
            await anyio.sleep(0.1)

    anyio.run(story, backend=backend)
    assert sorted(seen[:5]) == [0, 1, 2, 3, 4] and sorted(seen[5:]) == [2, 3, 4]
    assert ropewalk_broker.committed(group, topic) == 5


def reset_request(group: str, queue: TopicQueue, offset: int, *, as_list: bool = False) -> Command:
    place = {
        "topic": queue.topic,
        "brokerName": queue.queue.broker_name,
        "queueId": queue.queue.queue_id,
    }
    key = fastjson.QueueKey(queue.topic, queue.queue.broker_name, queue.queue.queue_id)
    table: Any = [{**place, "offset": offset}] if as_list else fastjson.QueueKeys({key: offset})
    ext = {"topic": queue.topic, "group": group, "timestamp": "0", "isForce": "true"}
    return Command(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, fastjson.dumps({"offsetTable": table}), flag=2
    )


def test_a_reset_for_another_group_or_in_another_language_moves_nothing() -> None:
    queue = TopicQueue("T", Queue("broker-a", 0))
    request = reset_request("g", queue, 7)
    assert reset_offsets(request, "g") == {queue: 7}
    assert reset_offsets(request, "other") == {}
    for body in (b"", b"[]", b'{"offsetTable":7}', b'{"offsetTable":[{"topic":"T"}]}', b"\xff"):
        assert reset_offsets(Command(request.code, request.ext, body), "g") == {}
    assert reset_offsets(reset_request("g", queue, -1), "g") == {}


def test_rates_are_those_of_the_last_minute() -> None:
    stats = ConsumeStats()
    for second in range(20):
        stats.pulled(float(second), 0.002, 4)
        stats.handled(float(second), 0.010, ok=second % 4 != 0)
    now = stats.document(20.0)
    assert now["pullTPS"] == pytest.approx(4.0) and now["pullRT"] == pytest.approx(2.0)
    assert now["consumeOKTPS"] == pytest.approx(0.75) and now["consumeFailedTPS"] == pytest.approx(0.25)
    assert now["consumeRT"] == pytest.approx(10.0) and now["consumeFailedMsgs"] == 5
    later = stats.document(200.0)
    assert later["consumeOKTPS"] == 0 and later["consumeFailedMsgs"] == 5
