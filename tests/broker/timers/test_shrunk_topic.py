"""Messages that waited while their topic was shrunk go to the queues that consumers read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ropewalk.codes import RequestCode
from tests.broker.harness import Client, InProcess, request
from tests.broker.timers.timing import pass_time
from tests.broker.transactions.transacting import COMMIT, Producer

StartBroker = Callable[..., InProcess]
QUEUE, LEFT = 6, 4


def create(client: Client, topic: str, queues: int) -> int:
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
    }
    numbers = {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
    return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**ext, **numbers}).code


def delayed(running: InProcess) -> Callable[[], object]:
    assert running.connect().send("T", b"late", queueId=QUEUE, properties={"DELAY": "1"}).code == 0
    return lambda: pass_time(running, 2_000)


def timer(running: InProcess) -> Callable[[], object]:
    properties = {"UNIQ_KEY": "7F01", "TIMER_DELAY_SEC": "2"}
    assert running.connect().send("T", b"late", queueId=QUEUE, properties=properties).code == 0
    return lambda: pass_time(running, 4_000)


def committed(running: InProcess) -> Callable[[], object]:
    producer = Producer(running)
    header = producer.half(b"late", queue_id=QUEUE)
    return lambda: producer.end(header, COMMIT)


def committed_in_a_run(running: InProcess) -> Callable[[], object]:
    """Oneway ends that arrive together are decided together."""
    producer = Producer(running)
    header = producer.half(b"late", queue_id=QUEUE)

    def end() -> None:
        client = running.connect(fast=True)
        client.feed(request(RequestCode.END_TRANSACTION, {**header, "commitOrRollback": COMMIT}, flag=2))
        running.settle()

    return end


@pytest.mark.parametrize("way", [delayed, timer, committed, committed_in_a_run])
def test_a_message_whose_queue_is_no_more_goes_to_one_that_is_read(
    start_broker: StartBroker, way: Callable[[InProcess], Callable[[], object]]
) -> None:
    running = start_broker()
    client = running.connect()
    assert create(client, "T", 8) == 0
    come = way(running)
    assert create(client, "T", LEFT) == 0
    come()
    assert [each.body for each in running.stored("T", QUEUE)] == []
    assert [each.body for each in running.stored("T", QUEUE % LEFT)] == [b"late"]


def test_a_message_given_back_to_a_retry_topic_that_was_shrunk_comes_again(start_broker: StartBroker) -> None:
    running = start_broker()
    client = running.connect()
    group = {"groupName": "cg", "retryQueueNums": 4, "retryMaxTimes": 16, "consumeEnable": True}
    assert (
        client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()).code
        == 0
    )
    assert client.send("T", b"late").code == 0
    (record,) = running.stored("T")
    back = {"offset": record.offset, "group": "cg", "delayLevel": 1, "originMsgId": record.msg_id,
            "originTopic": "T", "unitMode": False, "maxReconsumeTimes": 16}  # fmt: skip
    for _ in range(6):
        assert client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    assert create(client, "%RETRY%cg", 1) == 0
    pass_time(running, 2_000)
    assert [each.body for each in running.stored("%RETRY%cg", 0)] == [b"late"] * 6
