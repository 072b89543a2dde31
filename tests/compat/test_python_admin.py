"""Our own administrator against Ropewalk and against Apache RocketMQ, and the order of message groups at both."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from ropewalk import (
    Admin,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    Rejected,
    TopicQueue,
)
from ropewalk.client.admin.groups import EARLIEST, LATEST
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from tests.compat.conftest import Server
from tests.support.waiting import until_answered

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TURNS = itertools.count(1)


@pytest.fixture(scope="module", params=["ropewalk_server", "original_server"])
def server(request: pytest.FixtureRequest) -> Server:
    chosen: Server = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with Admin(server.namesrv, timeout=20.0) as running:
        yield running


@pytest.fixture
def topic(admin: Admin) -> str:
    """A topic of four queues, seen by everybody."""
    name = f"admin-{next(TURNS)}"
    admin.create_topic(name, 4)
    until_answered(lambda: name in admin.topics(), "the topic at the name server")
    return name


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def test_messages_of_a_group_stay_in_order(server: Server, topic: str) -> None:
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def handle(message: ReceivedMessage) -> None:
        assert message.group is not None
        seen[message.group].append((message.source.queue.queue_id, int(message.body)))

    with Producer(server.namesrv) as producer:
        for number in range(40):
            for group in ("order-1", "order-2", "order-3"):
                producer.send(topic, Message(b"%d" % number, group=group))
    with PushConsumer(f"{topic}-g", {topic: "*"}, handle, server.namesrv, consume_from="first", orderly=True):
        until_answered(lambda: sum(map(len, seen.values())) >= 120, "all of them")
    for group, places in seen.items():
        assert [number for _, number in places] == list(range(40)), group
        assert len({queue_id for queue_id, _ in places}) == 1


# Administration


def test_topics_and_groups_are_administered(server: Server, admin: Admin) -> None:
    topic, group = f"admin-{next(TURNS)}", f"admin-{next(TURNS)}-g"
    (where,) = admin.create_topic(topic, 3)
    assert where.address == server.broker and where in admin.members()
    with pytest.raises(Rejected) as exists:
        admin.create_topic(topic, 3)
    assert exists.value.code == ResponseCode.TOPIC_EXIST_ALREADY
    config = admin.update_topic(topic, write_queues=2, permission=4)[where]
    assert (config.read_queues, config.write_queues, config.permission) == (3, 2, 4)
    until_answered(lambda: admin.topic_route(topic).write_queues() == (), "the route without writing")
    assert admin.topic_clusters(topic) == ("DefaultCluster",)
    assert {"DefaultCluster", "broker-a"} <= set(admin.system_names())

    assert admin.group_config(group) == {}, "asking does not make a group"
    admin.create_group(group, retry_max_times=3)
    changed = admin.update_group(group, consume_enable=False)[where]
    assert (changed.retry_max_times, changed.consume_enable) == (3, False)
    assert admin.groups()[group][where] == changed
    assert admin.delete_group(group) == (where,) and group not in admin.groups()
    assert admin.delete_topic(topic) == (where,) and topic not in admin.topics()
    with pytest.raises(Rejected) as gone:
        admin.topic_status(topic)
    assert gone.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_groups_progress_is_seen_and_moved(server: Server, topic: str, admin: Admin) -> None:
    group, other = f"{topic}-g", f"{topic}-h"
    with Producer(server.namesrv, group=f"{topic}-p") as producer:
        for number in range(16):
            producer.send(
                topic, Message(b"%d" % number, keys=f"{topic}-{number}"), queue=Queue("broker-a", number % 4)
            )
        until_answered(lambda: len(admin.producers(f"{topic}-p")) == 1, "the producer")
    until_answered(lambda: admin.topic_status(topic).count == 16, "the messages are in their queues")
    seen: list[ReceivedMessage] = []
    with PushConsumer(
        group, {topic: "*"}, seen.append, server.namesrv, consume_from="first", commit_interval=0.2
    ) as consumer:
        until_answered(lambda: admin.progress(group, topic).lag == 0 and len(seen) == 16, "all are consumed")
        online = admin.consumers(group)
        assert online is not None and online.clients[0].client_id == consumer.client_id
        assert online.message_model == "CLUSTERING" and online.subscriptions[topic] == "*"
        info = admin.running_info(group, consumer.client_id)
        assert {entry["topic"] for entry in info["subscriptionSet"]} >= {topic}
        again = admin.consume_directly(
            group, consumer.client_id, admin.message_by_id(seen[0].offset_message_id)
        )
        assert again.result == "CR_SUCCESS" and len(seen) == 17
    until_answered(lambda: admin.consumers(group) is None, "the goodbye")
    assert group in admin.topic_groups(topic)
    assert set(admin.reset_offsets(group, topic, EARLIEST).values()) == {0}
    assert admin.progress(group, topic).lag == 16
    assert set(admin.reset_offsets(group, topic, LATEST).values()) == {4}
    source = TopicQueue(topic, Queue("broker-a", 1))
    assert admin.reset_offset(group, topic, source.queue, 1) == {source: 1}
    assert admin.committed_offset(group, source) == 1
    admin.create_group(other)
    cloned = admin.clone_offsets(group, other, topic)
    assert cloned[source] == 1 and sorted(cloned.values()) == [1, 4, 4, 4]
    until_answered(
        lambda: any(one.group == other and one.lag == 3 for one in admin.all_progress()), "the clone's lag"
    )


def test_messages_are_found(server: Server, topic: str, admin: Admin) -> None:
    with Producer(server.namesrv) as producer:
        before = time.time_ns() // 1_000_000
        sent = [
            producer.send(
                topic, Message(b"%d" % number, keys=f"{topic}-key{number % 2}"), queue=Queue("broker-a", 0)
            )
            for number in range(6)
        ]
    until_answered(lambda: len(admin.messages_by_key(topic, f"{topic}-key1")) == 3, "the index")
    assert bodies(admin.messages_by_key(topic, f"{topic}-key1")) == [b"1", b"3", b"5"]
    (found,) = admin.messages_by_unique_key(topic, sent[4].message_ids[0])
    assert found.body == b"4"
    assert admin.message_by_id(sent[4].offset_message_ids[0]).message_id == found.message_id
    assert admin.message_at(topic, Queue("broker-a", 0), 4) == found
    by_time = admin.messages_by_time(topic, before, before + 60_000)
    assert [message.body for message in by_time] == [b"%d" % number for number in range(6)]
    assert admin.messages_by_key(topic, "no such key") == []
    assert admin.message_at(topic, Queue("broker-a", 0), 99) is None


def test_brokers_are_looked_after(server: Server, topic: str, admin: Admin) -> None:
    (status,) = admin.broker_status()
    assert status.runtime["brokerActive"] == "true" and (status.number("commitLogDiskRatio") or 0) > 0
    (config,) = admin.broker_config().values()
    assert config["brokerName"] == "broker-a"
    before = config["maxMessageSize"]
    (where,) = admin.set_broker_config({"maxMessageSize": "4000000"})
    assert admin.broker_config()[where]["maxMessageSize"] == "4000000"
    admin.set_broker_config({"maxMessageSize": before})
    with pytest.raises(Rejected) as refused:
        admin.set_broker_config({"brokerConfigPath": "x"})
    assert refused.value.code == ResponseCode.NO_PERMISSION
    try:
        assert admin.wipe_write_permission("broker-a")[server.namesrv] > 0
        assert admin.topic_route(topic).write_queues() == ()
    finally:
        admin.restore_write_permission("broker-a")
    assert len(admin.topic_route(topic).write_queues()) == 4
    assert admin.name_server_config()[server.namesrv]["enableTopicList"] == "true"
    assert admin.broker_statistics(where, "TOPIC_PUT_NUMS", f"{topic}-never") is None
