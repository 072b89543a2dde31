"""Brokers of thousands of topics: a new one costs the loop itself and not the whole table.

A client that sends to one new name after the other would else stop all others for the length of the table each time.
Work is counted: the topics that the name server enters, the entries that are written, the registrations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing

from broker.discovery import registrar as registrar_module
from broker.discovery.registrar import Registrar
from broker.namesrv.routes import TOPICS_PER_STEP, RouteTable
from broker.namesrv.server import NameServer
from broker.state.changes import CHANGES_MAX
from broker.state.json_text import ENTRIES_PER_STEP
from broker.state.topics import READ_WRITE, TopicConfig, TopicTable
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.broker.discovery.neighbours import IDENTITY, NOW_MS, Neighbour, table
from tests.broker.harness import InProcess
from tests.support.waiting import until_async
from tests.support.walks import Walked

MANY = 3_000


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The topics that name servers enter."""
    names: list[str] = []
    put = RouteTable._put_queue

    def noted(self: RouteTable, topic: str, queue: Any) -> None:
        names.append(topic)
        put(self, topic, queue)

    monkeypatch.setattr(RouteTable, "_put_queue", noted)
    yield names


def many(count: int = MANY) -> TopicTable:
    topics = TopicTable()
    for number in range(count):
        topics.update(TopicConfig(f"t{number}"), NOW_MS)
    return topics


def registrar(topics: TopicTable, local: NameServer | None, *remote: int, **more: Any) -> Registrar:
    addresses = tuple(f"127.0.0.1:{port}" for port in remote)
    return Registrar(
        IDENTITY, lambda: topics, period_s=30, call_s=5, permission=lambda: READ_WRITE,
        local=local, remote=addresses, **more
    )  # fmt: skip


def knows(server: NameServer, topic: str) -> bool:
    answer = server.handle(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), "a client")
    return answer is not None and answer.code == 0


def test_the_embedded_name_server_hears_of_the_topics_that_changed_and_of_no_others(
    entered: list[str],
) -> None:
    topics, server = many(), NameServer(lambda: NOW_MS)
    announced: list[int] = []
    one = registrar(topics, server, on_registered=announced.append)
    one.changed()
    assert len(entered) == MANY
    entered.clear()
    topics.update(TopicConfig("new"), NOW_MS)
    topics.update(TopicConfig("t7", perm=4), NOW_MS)
    topics.delete("t8", NOW_MS)
    one.changed()
    assert sorted(entered) == ["new", "t7"]
    assert announced[-1] == topics.generation
    assert server.table.version_of("DefaultCluster", IDENTITY["brokerAddr"]) == topics.data_version
    assert knows(server, "new") and knows(server, "t8"), "a topic is forgotten by request 216 alone"
    one.changed()
    assert sorted(entered) == ["new", "t7"]


def test_a_large_table_is_entered_in_slices_and_a_new_topic_meanwhile_at_once(entered: list[str]) -> None:
    """Anybody can tell a name server that a broker has left."""

    async def run() -> None:
        topics, server = many(), NameServer(lambda: NOW_MS)
        one = registrar(topics, server)
        one.changed()
        place = "DefaultCluster", IDENTITY["brokerAddr"]

        async def until_told() -> None:
            before = len(entered)
            while server.table.version_of(*place) != topics.data_version:
                await trio.lowlevel.checkpoint()
                assert len(entered) - before <= 2 * TOPICS_PER_STEP + 1, "a step in each turn"
                before = len(entered)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.run)
            await trio.testing.wait_all_tasks_blocked()
            entered.clear()
            topics.touch(NOW_MS)
            one.changed()
            assert len(entered) <= 2 * TOPICS_PER_STEP
            topics.update(TopicConfig("new"), NOW_MS)
            one.changed()
            assert knows(server, "new")
            await until_told()
            await trio.testing.wait_all_tasks_blocked()
            assert len(entered) <= MANY + 2
            server.table.unregister("DefaultCluster", "broker-a", IDENTITY["brokerAddr"])
            one.changed()
            await until_told()
            await trio.testing.wait_all_tasks_blocked()
            assert knows(server, "new") and knows(server, "t0") and knows(server, f"t{MANY - 1}")
            await one.unregister()
            one.changed()
            assert not knows(server, "new"), "it has left"
            nursery.cancel_scope.cancel()

    trio.run(run)


def test_a_registration_over_the_wire_is_written_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = [0]
    write = TopicTable._registered_text

    def noted(self: TopicTable, topic: TopicConfig, mask: int) -> bytes:
        written[-1] += 1
        return write(self, topic, mask)

    topics = many()
    expected = topics.register_body()
    monkeypatch.setattr(TopicTable, "_registered_text", noted)
    writing = topics.register_body_in_slices()
    while True:
        try:
            next(writing)
        except StopIteration as finished:
            assert finished.value == expected
            break
        written.append(0)
    assert sum(written) == MANY and max(written) <= ENTRIES_PER_STEP


@pytest.mark.trio
async def test_changes_of_a_large_table_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar_module, "_PAUSE_S", 0.3)
    topics, neighbour = table(*(f"t{number}" for number in range(1_100))), Neighbour()
    async with trio.open_nursery() as nursery:
        await nursery.start(neighbour.serve)
        one = registrar(topics, None, neighbour.port)
        nursery.start_soon(one.run)
        await until_async(lambda: neighbour.knows("t1"))
        for number in range(20):
            topics.update(TopicConfig(f"u{number}"), NOW_MS)
            one.changed()
            await trio.sleep(0.005)
        await until_async(lambda: neighbour.knows("u19"))
        assert neighbour.seen.count(RequestCode.REGISTER_BROKER) <= 3
        nursery.cancel_scope.cancel()


def test_a_new_topic_looks_at_no_other_one() -> None:
    topics = table()
    assert topics.auto_create("first", default_topic="TBW102", queue_nums=4, now_ms=NOW_MS)
    topics._topics = walked = Walked(topics._topics)
    for number in range(3):
        assert topics.auto_create(f"t{number}", default_topic="TBW102", queue_nums=4, now_ms=NOW_MS)
        assert topics.create_retry(f"g{number}", now_ms=NOW_MS)
    topics.delete("t1", NOW_MS)
    topics.delete("%RETRY%g1", NOW_MS)
    assert walked.walks == 0
    assert topics._counted() == sum(not topic.name.startswith("%RETRY%") for topic in topics)


def test_changes_are_told_since_a_generation_as_long_as_they_are_remembered() -> None:
    topics = table("a", "b")
    before = topics.generation
    topics.update(TopicConfig("c"), NOW_MS)
    topics.delete("a", NOW_MS)
    assert sorted(topics.changed_since(before) or ()) == ["a", "c"]
    assert topics.changed_since(topics.generation) == []
    for number in range(CHANGES_MAX):
        topics.update(TopicConfig(f"t{number}"), NOW_MS)
    assert topics.changed_since(before) is None
    assert len(topics.changed_since(topics.generation - 5) or ()) == 5
    topics.touch(NOW_MS)
    assert topics.changed_since(topics.generation - 1) is None, "the permission of all of them, say"


def test_a_new_topic_and_a_deleted_one_look_at_no_other_ones_queues_or_offsets(running: InProcess) -> None:
    """A tick would else go through the queues of all topics after each new one, a deletion through all offsets."""
    client, broker = running.connect(), running.broker
    for number in range(20):
        client.send(f"t{number}")
        broker.offsets.commit("g", f"t{number}", 0, 1)
    running.tick()
    queues = broker.store.table.by_topic = broker.store.queues = Walked(broker.store.queues)
    offsets = broker.offsets._offsets = Walked(broker.offsets._offsets)
    client.send("new")
    running.tick()
    assert queues.walks == 0
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t7"}).code == 0
    broker.offsets.remove_before("t8", 0, running.clock.ms + 1)
    assert broker.offsets.query("g", "t8", 0) is None and broker.offsets.query("g", "t7", 0) is None
    assert broker.offsets.groups_of("t9") == ["g"] and len(broker.offsets.topics_of("g")) == 19
    assert offsets.walks == 0
    broker.offsets.remove_group("g")
    assert len(broker.offsets) == 0 and offsets.walks == 0
