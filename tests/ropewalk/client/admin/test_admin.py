"""Both administrators against a real broker: what is changed through one request is seen through another."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import anyio
import pytest

from ropewalk import Admin, AsyncAdmin, Message, Producer, PushConsumer, ReceivedMessage, Rejected, TopicQueue
from ropewalk.client.admin.groups import EARLIEST, LATEST
from ropewalk.client.admin.messages import LONG_MAX
from ropewalk.client.aio import admin as admin_module
from ropewalk.client.blocking import admin as blocking_admin
from ropewalk.client.core.connection import Unreachable
from ropewalk.client.core.routes import Queue
from ropewalk.codes import ResponseCode
from ropewalk.errors import Refused
from ropewalk.testing import RopewalkBroker

BROKER = "broker-a"
Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def admin(ropewalk_broker: RopewalkBroker) -> Iterator[Admin]:
    with Admin(ropewalk_broker.namesrv) as running:
        yield running


def code_of(call: Callable[[], object]) -> int | None:
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.code


def fill(broker: RopewalkBroker, topic: str, count: int) -> None:
    for number in range(count):
        broker.send(
            topic,
            Message(b"%d" % number, keys=[f"key{number}", "every"], tags="even" if number % 2 else "odd"),
        )


# The cluster


def test_members_and_masters_are_those_the_name_server_knows(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    (member,) = admin.members()
    assert (member.cluster, member.broker_name, member.broker_id) == ("DefaultCluster", BROKER, 0)
    assert member.address == ropewalk_broker.broker and member.is_master
    assert admin.masters(cluster="DefaultCluster") == admin.masters(broker=BROKER) == (member,)
    assert admin.masters(broker=ropewalk_broker.broker) == (member,)
    with pytest.raises(Rejected, match="there is no cluster Nowhere; the name server knows DefaultCluster"):
        admin.masters(cluster="Nowhere")
    with pytest.raises(Rejected, match="there is no broker nobody; the name server knows broker-a"):
        admin.masters(broker="nobody")


# Topics


def test_a_topic_is_made_changed_and_deleted(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.name("made")
    (where,) = admin.create_topic(topic, 3, attributes={"message.type": "NORMAL"})
    (config,) = admin.topic_config(topic).values()
    assert (config.read_queues, config.write_queues, config.permission) == (3, 3, 6)
    assert config.attributes == {"message.type": "NORMAL"}
    assert topic in admin.topics() and topic in admin.topics(cluster="DefaultCluster")
    assert code_of(lambda: admin.create_topic(topic)) == ResponseCode.TOPIC_EXIST_ALREADY

    changed = admin.update_topic(topic, write_queues=2, permission=4, attributes={"message.type": None})
    assert changed == admin.topic_config(topic)
    config = changed[where]
    assert (config.read_queues, config.write_queues, config.permission, config.attributes) == (3, 2, 4, {})
    route = admin.topic_route(topic)
    assert len(route.read_queues()) == 3 and route.write_queues() == ()
    assert admin.topic_clusters(topic) == ("DefaultCluster",)

    assert admin.delete_topic(topic) == (where,)
    assert topic not in admin.topics()
    for call in (
        lambda: admin.topic_route(topic),
        lambda: admin.topic_config(topic),
        lambda: admin.update_topic(topic, queues=1),
        lambda: admin.delete_topic(topic),
    ):
        assert code_of(call) == ResponseCode.TOPIC_NOT_EXIST


def test_the_order_of_an_ordered_topic_is_kept_by_the_name_servers(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.name("ordered")
    admin.create_topic(topic, 3, order=True)
    assert admin._links.drive(admin._core._order(topic)) == f"{BROKER}:3"
    admin.update_topic(topic, queues=5)
    assert admin._links.drive(admin._core._order(topic)) == f"{BROKER}:5"
    admin.update_topic(topic, order=False)
    assert admin._links.drive(admin._core._order(topic)) == ""


def test_system_topics_are_not_to_be_changed(admin: Admin) -> None:
    assert code_of(lambda: admin.update_topic("TBW102", queues=1)) == ResponseCode.INVALID_PARAMETER
    assert admin.system_names() == {BROKER, "DefaultCluster"}


def test_a_topics_status_tells_what_its_queues_hold(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=2)
    began = time.time_ns() // 1_000_000
    fill(ropewalk_broker, topic, 5)
    status = admin.topic_status(topic)
    assert [one.queue for one in status.queues] == [Queue(BROKER, 0), Queue(BROKER, 1)]
    assert sorted(one.max_offset for one in status.queues) == [2, 3] and status.count == 5
    assert all(began <= one.last_update_ms <= began + 60_000 for one in status.queues)


# Groups


def test_a_group_is_made_changed_and_deleted(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    group = ropewalk_broker.group("made")
    assert admin.group_config(group) == {}
    (where,) = admin.create_group(group, retry_max_times=3, orderly=True)
    config = admin.group_config(group)[where]
    assert (config.retry_max_times, config.orderly, config.consume_enable) == (3, True, True)
    with pytest.raises(Rejected, match="exists already at broker-a"):
        admin.create_group(group)
    changed = admin.update_group(group, consume_enable=False)[where]
    assert (changed.retry_max_times, changed.orderly, changed.consume_enable) == (3, True, False)
    assert admin.groups()[group] == {where: changed}
    assert admin.delete_group(group) == (where,)
    assert admin.group_config(group) == {} and group not in admin.groups()
    for call in (lambda: admin.update_group(group, orderly=False), lambda: admin.delete_group(group)):
        assert code_of(call) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_running_group_is_seen_and_leaves_its_progress(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic, group = ropewalk_broker.topic(queues=2), ropewalk_broker.group()
    fill(ropewalk_broker, topic, 6)
    seen: list[ReceivedMessage] = []
    assert admin.consumers(group) is None
    with PushConsumer(
        group, {topic: "odd || even"}, seen.append, ropewalk_broker.namesrv, consume_from="first"
    ) as consumer:
        ropewalk_broker.wait_until(lambda: len(seen) == 6)
        online = admin.consumers(group)
        assert online is not None
        (client,) = online.clients
        assert client.client_id == consumer.client_id
        assert (online.message_model, online.consume_type) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert online.subscriptions[topic] == "odd || even"
        assert group in admin.topic_groups(topic)
    assert admin.consumers(group) is None
    progress = admin.progress(group, topic)
    assert progress.lag == 0 and [queue.broker_offset for queue in progress.queues] == [3, 3]
    everything = {one.group: one for one in admin.all_progress()}
    assert tuple(one for one in everything[group].queues if one.source.topic == topic) == progress.queues
    retry = f"%RETRY%{group}"
    assert retry in admin.topics()
    admin.delete_group(group)
    assert retry not in admin.topics() and admin.progress(group).queues == ()


def test_a_group_is_sent_elsewhere(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic, group, other = (
        ropewalk_broker.topic(queues=2),
        ropewalk_broker.group(),
        ropewalk_broker.group("other"),
    )
    fill(ropewalk_broker, topic, 4)
    time.sleep(0.005)
    between = time.time_ns() // 1_000_000
    time.sleep(0.005)
    fill(ropewalk_broker, topic, 4)
    first, second = (TopicQueue(topic, Queue(BROKER, number)) for number in range(2))
    assert code_of(lambda: admin.reset_offsets(group, topic, 0)) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    admin.create_group(group)
    assert admin.reset_offsets(group, topic, LATEST) == {first: 4, second: 4}
    assert admin.reset_offsets(group, topic, between) == {first: 2, second: 2}
    assert admin.progress(group).lag == 4
    assert admin.reset_offset(group, topic, second.queue, 1) == {second: 1}
    assert [admin.committed_offset(group, one) for one in (first, second)] == [2, 1]
    with pytest.raises(Refused, match="not in consume queue range"):
        admin.reset_offset(group, topic, second.queue, 99)

    admin.create_group(other)
    assert admin.clone_offsets(group, other, topic) == {first: 2, second: 1}
    assert admin.committed_offset(other, second) == 1
    with pytest.raises(Rejected, match="has no progress in topic"):
        admin.clone_offsets(group, other, "TBW102")
    admin.commit_offset(other, first, 3)
    assert admin.progress(other).lag == 1 + 3
    assert admin.reset_offsets(other, topic, EARLIEST) == {first: 0, second: 0}
    assert admin.search_offsets(topic, between) == {first.queue: 2, second.queue: 2}
    assert admin.committed_offset(ropewalk_broker.group("third"), first) is None


def test_producers_are_seen_while_they_are_connected(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    with Producer(ropewalk_broker.namesrv, group=ropewalk_broker.name("producers")) as producer:
        producer.send(topic, b"here I am")
        ropewalk_broker.wait_until(lambda: bool(admin.producers(ropewalk_broker.name("producers"))))
        (client,) = admin.producers(ropewalk_broker.name("producers"))
        assert client.client_id == producer.client_id
        assert client in [one.client for one in admin.all_producers()]
    assert admin.producers(ropewalk_broker.name("nobody")) == ()


# Messages


def test_a_message_is_found_by_all_its_names(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic(queues=1)
    fill(ropewalk_broker, topic, 3)
    sent = ropewalk_broker.send(topic, Message(b"wanted", keys=["needle", "every"], properties={"shop": "7"}))
    by_id = admin.message_by_id(sent.offset_message_ids[0])
    assert (by_id.body, by_id.keys, by_id.properties["shop"]) == (b"wanted", ["needle", "every"], "7")
    assert by_id.source == TopicQueue(topic, Queue(BROKER, 0)) and by_id.queue_offset == 3
    ropewalk_broker.wait_until(lambda: bool(admin.messages_by_key(topic, "needle")))
    assert admin.messages_by_key(topic, "needle") == [by_id]
    assert admin.messages_by_unique_key(topic, sent.message_ids[0]) == [by_id]
    assert admin.message_at(topic, Queue(BROKER, 0), 3) == by_id
    assert [one.body for one in admin.messages_by_key(topic, "every")] == [b"0", b"1", b"2", b"wanted"]
    assert [one.body for one in admin.messages_by_key(topic, "every", max_count=2)] == [b"2", b"wanted"]
    assert admin.messages_by_key(topic, "nothing") == admin.messages_by_unique_key(topic, "F" * 32) == []
    assert admin.message_at(topic, Queue(BROKER, 0), 4) is None
    with pytest.raises(Rejected, match="no offset message id"):
        admin.message_by_id("short")


def test_messages_are_found_by_time_in_the_order_they_were_stored(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=3)
    moments = []
    for number in range(9):
        moments.append(time.time_ns() // 1_000_000)
        ropewalk_broker.send(topic, Message(b"%d" % number))
        time.sleep(0.003)
    found = admin.messages_by_time(topic, moments[2], moments[7] - 1)
    assert [one.body for one in found] == [b"2", b"3", b"4", b"5", b"6"]
    assert [one.body for one in admin.messages_by_time(topic, 0, LONG_MAX, max_count=4)] == [
        b"0",
        b"1",
        b"2",
        b"3",
    ]
    later = time.time_ns() // 1_000_000 + 1
    assert admin.messages_by_time(topic, later, later + 2000) == []


def test_a_messages_track_tells_what_each_group_did_with_it(
    admin: Admin, ropewalk_broker: RopewalkBroker
) -> None:
    topic = ropewalk_broker.topic(queues=1)
    reader, idle, picky = (ropewalk_broker.group(name) for name in ("reader", "idle", "picky"))
    fill(ropewalk_broker, topic, 2)
    for group in (reader, idle):
        admin.create_group(group)
    admin.reset_offsets(reader, topic, LATEST)
    admin.reset_offsets(idle, topic, EARLIEST)
    seen: list[ReceivedMessage] = []
    with PushConsumer(
        picky,
        {topic: "even"},
        seen.append,
        ropewalk_broker.namesrv,
        consume_from="first",
        commit_interval=0.1,
    ):
        ropewalk_broker.wait_until(lambda: len(seen) == 1)
        ropewalk_broker.wait_until(lambda: ropewalk_broker.committed(picky, topic) == 2)
        (odd,) = admin.messages_by_key(topic, "key0")
        states = {track.group: (track.state, track.online) for track in admin.message_track(odd)}
        (even,) = admin.messages_by_key(topic, "key1")
        others = {track.group: track.state for track in admin.message_track(even)}
    assert states == {
        reader: ("consumed", False),
        idle: ("not consumed yet", False),
        picky: ("filtered", True),
    }
    assert others[picky] == "consumed"


# Brokers


def test_a_brokers_status_settings_and_statistics(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    fill(ropewalk_broker, topic, 3)
    (status,) = admin.broker_status()
    assert status.runtime["brokerActive"] == "true" and (status.number("msgPutTotalTodayNow") or 0) >= 3
    assert status.number("runtime") is None and status.number("nonsense") is None
    (config,) = admin.broker_config(broker=BROKER).values()
    assert config["brokerName"] == BROKER
    before = config["maxMessageSize"]
    assert admin.set_broker_config({"maxMessageSize": "4000000"}) == admin.masters()
    assert next(iter(admin.broker_config().values()))["maxMessageSize"] == "4000000"
    admin.set_broker_config({"maxMessageSize": before})
    assert code_of(lambda: admin.set_broker_config({"listenPort": "1"})) == ResponseCode.NO_PERMISSION
    with pytest.raises(Exception, match="has a line end"):
        admin.set_broker_config({"maxMessageSize": "1\nlistenPort=2"})
    (master,) = admin.masters()
    counted = admin.broker_statistics(master, "TOPIC_PUT_NUMS", topic)
    assert counted is not None and counted.day.total >= 3
    assert admin.broker_statistics(master, "TOPIC_PUT_NUMS", topic + "-not") is None


def test_write_permission_is_wiped_and_restored(admin: Admin, ropewalk_broker: RopewalkBroker) -> None:
    topic = ropewalk_broker.topic()
    wiped = admin.wipe_write_permission(BROKER)
    try:
        assert admin.topic_route(topic).write_queues() == ()
        assert list(wiped) == [ropewalk_broker.namesrv] and wiped[ropewalk_broker.namesrv] >= 1
    finally:
        restored = admin.restore_write_permission(BROKER)
    assert restored == wiped and len(admin.topic_route(topic).write_queues()) == 4
    assert admin.name_server_config()[ropewalk_broker.namesrv]["enableTopicList"] == "true"


def test_nobody_there_is_unreachable() -> None:
    with Admin("127.0.0.1:1", timeout=0.5) as admin, pytest.raises(Unreachable, match="no name server"):
        admin.topics()


# The same under an event loop


def test_the_same_under_an_event_loop(ropewalk_broker: RopewalkBroker, run: Run) -> None:
    topic, group = ropewalk_broker.name("async"), ropewalk_broker.group()

    async def story() -> None:
        async with AsyncAdmin(ropewalk_broker.namesrv) as admin:
            await admin.create_topic(topic, 2)
            await anyio.to_thread.run_sync(fill, ropewalk_broker, topic, 4)
            await admin.create_group(group)
            assert set((await admin.reset_offsets(group, topic, LATEST)).values()) == {2}
            async with anyio.create_task_group() as tasks:  # several tasks share one administrator
                for _ in range(5):
                    tasks.start_soon(admin.progress, group)
                    tasks.start_soon(admin.topic_status, topic)
            assert (await admin.progress(group)).lag == 0
            assert (await admin.topic_status(topic)).count == 4
            with pytest.raises(Rejected):
                await admin.create_topic(topic)
            await admin.delete_group(group)
            await admin.delete_topic(topic)
            assert admin.skipped == {}

    run(story)


def test_a_call_that_is_cancelled_leaves_the_next_one_alone(
    ropewalk_broker: RopewalkBroker, run: Run
) -> None:
    topic = ropewalk_broker.topic()

    async def story() -> None:
        async with AsyncAdmin(ropewalk_broker.namesrv) as admin:
            for number in range(40):
                with anyio.move_on_after(number / 4000):
                    await admin.topic_status(topic)
            assert len((await admin.topic_status(topic)).queues) == 4

    run(story)


def test_a_method_has_the_name_and_the_words_of_its_conversation() -> None:
    for method in (Admin.create_topic, AsyncAdmin.create_topic):
        assert method.__name__ == "create_topic"
        assert (method.__doc__ or "").startswith("Make a topic at every master")


def example(module: ModuleType, name_servers: str) -> str:
    """The program in a module's docstring, for this test's name server."""
    lines = (module.__doc__ or "").splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    assert "127.0.0.1:9876" in code
    return code.replace("127.0.0.1:9876", name_servers)


def test_the_examples_of_the_docstrings_do_what_they_say(
    ropewalk_own_broker: RopewalkBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    namesrv = ropewalk_own_broker.namesrv
    exec(example(blocking_admin, namesrv), {"Admin": Admin})
    with Admin(namesrv) as admin:
        assert len(admin.topic_route("orders").read_queues()) == 4
        admin.delete_topic("orders")
    code = textwrap.indent(example(admin_module, namesrv), "    ")
    names: dict[str, Any] = {"AsyncAdmin": AsyncAdmin}
    exec(f"async def story() -> None:\n{code}", names)
    anyio.run(names["story"])
    assert capsys.readouterr().out == "0\n0\n"
