"""Names and entries that strangers make: whoever makes most is refused, and the others never notice.

The attack: one connection invents topics, groups, offsets, locks and producer groups as fast as it can, for seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.state.shares import NewNames
from ropewalk.codes import RequestCode
from tests.broker.harness import Client, InProcess, heartbeat_body, pull_ext, send_ext
from tests.support.links import From

StartBroker = Callable[..., InProcess]
V2 = RequestCode.SEND_MESSAGE_V2
FEW = {"autoCreateTopicsMax": 100, "autoCreateGroupsMax": 20, "newNamesPerMinute": 7}


def stranger(running: InProcess) -> Client:
    return running.connect(peer=("192.0.2.66", 1))


def honest(running: InProcess) -> Client:
    return running.connect(peer=("192.0.2.1", 1))


def invent_topics(running: InProcess, count: int) -> list[int]:
    client = stranger(running)
    return [client.call(V2, send_ext(f"Invented{n}")).code for n in range(count)]


def invent_groups(running: InProcess, count: int) -> None:
    client = stranger(running)
    for n in range(count):
        client.call(RequestCode.HEART_BEAT, body=heartbeat_body(client_id="x", group=f"invented-{n}"))


def test_a_stranger_that_invents_topics_is_refused_and_an_honest_new_topic_comes(
    start_broker: StartBroker,
) -> None:
    running = start_broker(**FEW)
    codes = invent_topics(running, 300)
    assert codes.count(17) > 150
    answer = honest(running).call(V2, send_ext("Honest"))
    assert answer.code == 0, answer.remark
    refused = stranger(running).call(V2, send_ext("OneMore"))
    assert refused.code == 17
    assert "newNamesPerMinute" in (refused.remark or "")
    for _ in range(20):
        running.clock.ms += 60_000
        invent_topics(running, 50 + len(running.broker.topics))
    assert len(running.broker.topics) < 80, "for hours, it leaves a quarter to others"
    assert honest(running).call(V2, send_ext("Honest2")).code == 0
    assert honest(running).call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("ByHand")).code == 0


def topic_ext(name: str) -> dict[str, object]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }


def test_a_name_costs_nothing_while_half_of_them_is_free(start_broker: StartBroker) -> None:
    running = start_broker(**FEW)
    assert invent_topics(running, 35) == [0] * 35, "a whole cluster comes from one address"


def test_a_stranger_that_commits_offsets_for_thousands_of_queues_leaves_room_for_others(
    start_broker: StartBroker,
) -> None:
    running = start_broker(offsetPairsMax=100)
    client = stranger(running)
    for topic in ("A", "B"):
        ext = {**topic_ext(topic), "readQueueNums": 1_024, "writeQueueNums": 1_024}
        assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == 0
        client.pull(topic, consumerGroup="g")
    codes = [
        client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": topic, "queueId": n, "commitOffset": 1},
        ).code
        for topic in ("A", "B")
        for n in range(1_024)
    ]
    assert codes.count(0) == running.broker.offsets.queue_count == 500, "half of the offsets that are kept"
    commit = {"consumerGroup": "g", "topic": "A", "queueId": 1_023, "commitOffset": 1}
    assert honest(running).call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    running.broker.offsets.remove_group("g")
    assert running.broker.offsets.queue_count == 0
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0


def test_failed_messages_of_a_group_have_a_retry_topic_whatever_strangers_invented(
    start_broker: StartBroker,
) -> None:
    running = start_broker(**FEW)
    consumer = honest(running)
    assert consumer.send("T", b"fails").code == 0
    consumer.heartbeat(group="cg")
    assert running.broker.topics.delete("%RETRY%cg", 0)
    for _ in range(20):
        running.clock.ms += 60_000
        invent_topics(running, 150)
    assert running.broker.topics.creation_refusal("Honest", "TBW102", From("192.0.2.66")) is not None
    record = next(record for queue in range(8) for record in running.stored("T", queue))
    back = {"group": "cg", "offset": record.offset, "delayLevel": 0, "unitMode": False}
    answer = consumer.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert answer.code == 0, answer.remark
    assert "%RETRY%cg" in running.broker.topics


def test_a_stranger_that_invents_groups_is_refused_and_an_honest_new_group_comes(
    start_broker: StartBroker,
) -> None:
    running = start_broker(**FEW)
    honest(running).send("T")
    invent_groups(running, 100)
    consumer = honest(running)
    assert consumer.pull("T", consumerGroup="honest").code != 26
    assert "honest" in running.broker.groups
    for _ in range(5):
        running.clock.ms += 60_000
        invent_groups(running, 100)
        running.broker.expire_clients()
    assert 14 < len(running.broker.groups) < 20, "for hours, it leaves a quarter to others"
    assert consumer.pull("T", consumerGroup="honest2").code != 26


def test_groups_that_were_never_used_go_for_new_ones_and_none_that_has_anything_does(
    start_broker: StartBroker,
) -> None:
    running = start_broker(**FEW)
    admin, consumer = honest(running), honest(running)
    assert consumer.send("T").code == 0
    assert (
        admin.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"by-hand"}').code == 0
    )
    consumer.heartbeat(group="has-member")
    consumer.pull("T", consumerGroup="has-offset")
    commit = {"consumerGroup": "has-offset", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert consumer.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    consumer.pull("T", consumerGroup="gave-back")
    for address in range(70, 90):
        running.clock.ms += 60_000
        gone = running.connect(peer=(f"192.0.2.{address}", 1))
        for n in range(10):
            body = heartbeat_body(client_id="x", group=f"invented-{running.clock.ms}-{n}")
            gone.call(RequestCode.HEART_BEAT, body=body)
        gone.disconnect()
    groups = running.broker.groups
    assert len(groups) == 20
    running.clock.ms += 60_000
    assert consumer.pull("T", consumerGroup="late").code != 26
    assert {"late", "by-hand", "has-member", "has-offset"} <= {group.name for group in groups}
    invented = [group.name for group in groups if group.name.startswith("invented")]
    assert invented, "an eighth goes at once, and no more"
    for topic in running.broker.topics:
        if topic.name.startswith("%RETRY%invented"):
            assert topic.name.removeprefix("%RETRY%") in groups, "its retry topic went with it"


def test_a_message_to_the_retry_topic_of_no_group_makes_none_where_groups_are_not_made(
    start_broker: StartBroker,
) -> None:
    running = start_broker(autoCreateSubscriptionGroup=False)
    assert honest(running).call(V2, send_ext("%RETRY%nobody")).code == 26
    assert "%RETRY%nobody" not in running.broker.topics
    assert honest(running).call(V2, send_ext("%DLQ%nobody")).code == 17
    assert "%DLQ%nobody" not in running.broker.topics


def test_a_stranger_that_fills_the_offsets_keeps_no_other_consumer_from_its_own(
    start_broker: StartBroker,
) -> None:
    running = start_broker(offsetPairsMax=100)
    honest(running).send("T")
    client, consumer = stranger(running), honest(running)
    codes = []
    for n in range(100):
        client.pull("T", consumerGroup=f"g{n}")
        commit = {"consumerGroup": f"g{n}", "topic": "T", "queueId": 0, "commitOffset": 1}
        codes.append(client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code)
    assert codes == [0] * 50 + [codes[-1]] * 50 and codes[-1] != 0
    consumer.pull("T", consumerGroup="mine")
    commit = {"consumerGroup": "mine", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert consumer.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    pull = pull_ext("T", consumerGroup="g99", commitOffset=1, sysFlag=5)
    assert client.call(RequestCode.PULL_MESSAGE, pull).code == 1, "nor with a pull"


def test_a_stranger_that_invents_producer_groups_keeps_no_other_client_from_its_heartbeats(
    running: InProcess,
) -> None:
    refused = 0
    for peer in range(20):
        client = running.connect(peer=("192.0.2.66", peer))
        body = heartbeat_body(
            client_id=f"x{peer}", group=None, producers=[f"{peer}-{n}" for n in range(1000)]
        )
        refused += client.call(RequestCode.HEART_BEAT, body=body).code != 0
    assert refused == 10
    body = heartbeat_body(client_id="honest", group=None, producers=["mine"])
    assert honest(running).call(RequestCode.HEART_BEAT, body=body).code == 0


@pytest.mark.parametrize("used", [49, 50])
def test_names_have_a_rate_only_while_half_is_taken(used: int) -> None:
    now = [0]
    names = NewNames(3, lambda: now[0])
    one, other = From("2001:db8::1"), From("2001:db8::2")
    for each in (one, other, one):
        assert names.refusal(each, used, 100) is None
        names.note("name", each)
    assert (names.refusal(other, used, 100) is not None) == (used == 50)
    assert names.refusal(From("192.0.2.1"), used, 100) is None
    assert names.refusal(None, used, 100) is None
    now[0] += 60_000
    assert names.refusal(one, used, 100) is None
