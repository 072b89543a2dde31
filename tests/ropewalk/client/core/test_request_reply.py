"""Request and reply: an answer finds who asked, and whoever gets none is told so in time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from ropewalk.client.aio.producer import AsyncProducer
from ropewalk.client.aio.push_consumer import AsyncPushConsumer
from ropewalk.client.blocking.producer import Producer
from ropewalk.client.blocking.push_consumer import PushConsumer
from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.client.core.messages import Message
from ropewalk.client.core.request_reply import NoReply, pushed_reply, reply_message, request_message
from ropewalk.client.core.routes import Queue
from ropewalk.errors import LocalProtocolError, Refused, RemoteProtocolError
from ropewalk.format.remoting import Command
from ropewalk.testing import RopewalkBroker
from tests.support.long_run import ROOM_S

BIG = b"0123456789" * 10_000


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_every_asker_gets_its_own_answer(ropewalk_broker: RopewalkBroker, backend: str) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    namesrv = ropewalk_broker.namesrv

    async def story() -> None:
        async with AsyncProducer(namesrv) as responder, AsyncProducer(namesrv) as asker:

            async def answer(message: ReceivedMessage) -> None:
                reply = Message(b"re: " + message.body, keys="k", tags="t", properties={"color": "blue"})
                await responder.reply(message, reply)

            async with AsyncPushConsumer(group, {topic: "*"}, answer, namesrv, consume_from="first"):
                found: dict[int, bytes] = {}

                async def ask(number: int) -> None:
                    reply = await asker.request(topic, Message(b"%d" % number), timeout=60)
                    found[number] = reply.body
                    assert (reply.keys, reply.tags, reply.properties["color"]) == (["k"], "t", "blue")

                async with anyio.create_task_group() as tasks:
                    for number in range(20):
                        tasks.start_soon(ask, number)
                assert found == {number: b"re: %d" % number for number in range(20)}
                assert (await asker.request(topic, BIG, timeout=60)).body == b"re: " + BIG
        assert asker.counts.acknowledged == 21 and responder.counts.acknowledged == 21

    anyio.run(story, backend=backend)


def test_threads_ask_without_an_event_loop_of_their_own(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    with Producer(ropewalk_broker.namesrv) as responder, Producer(ropewalk_broker.namesrv) as asker:

        def answer(message: ReceivedMessage) -> None:
            responder.reply(message, b"re: " + message.body)

        def ask(number: int) -> bytes:
            return asker.request(topic, b"%d" % number, timeout=60).body

        with (
            PushConsumer(group, {topic: "*"}, answer, ropewalk_broker.namesrv, consume_from="first"),
            ThreadPoolExecutor(4) as threads,
        ):
            assert list(threads.map(ask, range(8))) == [b"re: %d" % number for number in range(8)]
    assert not [thread for thread in threading.enumerate() if "AnyIO" in thread.name]


def test_who_is_not_answered_is_told_in_time_and_a_late_answer_hurts_nobody(
    ropewalk_broker: RopewalkBroker,
) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    requests: list[ReceivedMessage] = []
    with Producer(ropewalk_broker.namesrv) as asker, Producer(ropewalk_broker.namesrv) as responder:
        began = time.monotonic()
        with pytest.raises(NoReply, match=r"within 0\.5 s"):
            asker.request(topic, b"hello?", timeout=0.5)
        assert 0.4 < time.monotonic() - began < 10 + ROOM_S
        with PushConsumer(
            group, {topic: "*"}, requests.append, ropewalk_broker.namesrv, consume_from="first"
        ):
            while not requests:
                time.sleep(0.01)
        responder.reply(requests[0], b"sorry, I was asleep")
        asker.close()
        with pytest.raises(Refused, match="not found"):
            responder.reply(requests[0], b"are you still there?")


def test_only_what_was_asked_can_be_answered(ropewalk_broker: RopewalkBroker) -> None:
    topic, group = ropewalk_broker.topic(), ropewalk_broker.group()
    seen: list[ReceivedMessage] = []
    with Producer(ropewalk_broker.namesrv) as producer:
        producer.send(topic, b"plain")
        with PushConsumer(group, {topic: "*"}, seen.append, ropewalk_broker.namesrv, consume_from="first"):
            while not seen:
                time.sleep(0.01)
        with pytest.raises(LocalProtocolError, match="no CORRELATION_ID and no REPLY_TO_CLIENT"):
            producer.reply(seen[0], b"what?")


# -- the messages --------------------------------------------------------------------------------------


def received(message: Message, **more: str) -> ReceivedMessage:
    source = TopicQueue("T", Queue("broker-a", 0))
    properties = {**message.properties, **more}
    return ReceivedMessage("T", message.body, [], None, properties, "m", 0, 0, 0, source, 0, 0, "o")


def test_an_answer_carries_what_the_request_asked_for() -> None:
    asked = request_message(Message(b"?", properties={"a": "b"}), "10.0.0.1@7", "c-1", 2.5)
    wanted = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.1@7", "TTL": "2500"}
    assert asked.properties == {"a": "b", **wanted}
    topic, answer = reply_message(received(asked, CLUSTER="DefaultCluster"), Message(b"!"))
    assert topic == "DefaultCluster_REPLY_TOPIC"
    assert answer == Message(b"!", properties={"MSG_TYPE": "reply", **wanted})


def test_a_pushed_reply_that_is_none_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        pushed_reply(Command(326, {"topic": "T"}))
