"""Who reads which queues by the broker's word (400), and by pulling or by POP (401, 402)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.state.request_modes import AVERAGELY, BY_CIRCLE, assigned
from broker.state.topics import TopicConfig
from ropewalk.client.core.routes import BrokerData, QueueData, TopicRoute
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from ropewalk.format.sliced_json import finish
from tests.broker.harness import Client, InProcess, config_of
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]

TWO_BROKERS = TopicRoute(
    {name: BrokerData(name, "DefaultCluster", {0: "10.0.0.1:10911"}) for name in ("broker-a", "broker-b")},
    (QueueData("broker-b", 2, 2, 6), QueueData("broker-a", 3, 3, 6)),
)


def ask(client: Client, me: str = "c1", **changes: object) -> Command:
    wish = {
        "clientId": me,
        "consumerGroup": "cg",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
        **changes,
    }
    return client.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(wish).encode())


def rows(answer: Command) -> list[tuple[str, int]]:
    assert answer.code == 0, answer.remark
    assignments = json.loads(answer.body)["messageQueueAssignments"]
    assert all(row["mode"] == "PULL" and row["messageQueue"]["topic"] == "T" for row in assignments)
    return [(row["messageQueue"]["brokerName"], row["messageQueue"]["queueId"]) for row in assignments]


@pytest.fixture
def members(running: InProcess) -> list[Client]:
    """Two members of a group that reads a topic of two brokers."""
    running.broker.context.find_route = lambda topic, found: found(TWO_BROKERS if topic == "T" else None)
    clients = [running.connect(), running.connect()]
    for number, client in enumerate(clients, 1):
        client.heartbeat(client_id=f"c{number}")
    for client in clients:
        client.answers()  # that the members have changed
    return clients


def test_members_divide_the_queues_of_all_brokers_as_clients_do(members: list[Client]) -> None:
    first, second = (rows(ask(client, f"c{n}")) for n, client in enumerate(members, 1))
    assert first == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]
    assert second == [("broker-b", 0), ("broker-b", 1)]


def test_queues_are_dealt_like_cards_by_the_other_strategy(members: list[Client]) -> None:
    first, second = (
        rows(ask(client, f"c{n}", strategyName="AVG_BY_CIRCLE")) for n, client in enumerate(members, 1)
    )
    assert first == [("broker-a", 0), ("broker-a", 2), ("broker-b", 1)]
    assert second == [("broker-a", 1), ("broker-b", 0)]


def test_a_broadcasting_member_gets_everything(members: list[Client]) -> None:
    everything = rows(ask(members[0], messageModel="BROADCASTING"))
    assert len(everything) == 5


def test_who_is_no_member_gets_nothing_and_an_unknown_topic_is_not_known(members: list[Client]) -> None:
    assert rows(ask(members[0], "stranger")) == []
    assert rows(ask(members[0], consumerGroup="nobody")) == []
    unknown = ask(members[0], topic="unknown")
    assert unknown.code == 0 and json.loads(unknown.body).get("messageQueueAssignments") is None


def test_an_unknown_strategy_and_a_body_that_is_none_are_refused(members: list[Client]) -> None:
    answer = ask(members[0], strategyName="BY_HOROSCOPE")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "BY_HOROSCOPE" in (answer.remark or "")
    answer = members[0].call(RequestCode.QUERY_ASSIGNMENT, body=b"[]")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = members[0].call(RequestCode.QUERY_ASSIGNMENT, body=b"{}")
    assert answer.code == ResponseCode.SYSTEM_ERROR and "topic" in (answer.remark or "")


def test_without_a_name_server_to_ask_the_broker_divides_its_own_queues(running: InProcess) -> None:
    client = running.connect()
    running.broker.topics.update(TopicConfig("T", 3, 3), START_MS)
    client.heartbeat()
    client.answers()
    assert rows(ask(client)) == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]


@pytest.mark.parametrize("strategy", [AVERAGELY, BY_CIRCLE])
def test_every_queue_belongs_to_exactly_one_member(strategy: str) -> None:
    for count in range(9):
        for size in range(1, 6):
            shares = [assigned(strategy, count, size, member) for member in range(size)]
            assert sorted(place for share in shares for place in share or []) == list(range(count))


# -- modes ---------------------------------------------------------------------------------------------


def set_mode(client: Client, **changes: object) -> Command:
    body: dict[str, Any] = {"topic": "T", "consumerGroup": "cg", "mode": "PULL", "popShareQueueNum": 0}
    return client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps({**body, **changes}).encode())


def modes(client: Client) -> Any:
    return json.loads(client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE).body)["messageRequestModeMap"]


def test_a_mode_is_set_shown_and_survives_a_restart(tmp_path: Path) -> None:
    entry = {"consumerGroup": "cg", "mode": "PULL", "popShareQueueNum": 0, "topic": "T"}
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        assert modes(client) == {}
        assert set_mode(client).code == 0
        assert modes(client) == {"T": {"cg": entry}}
        (path,) = [path for path in running.broker.dumps() if path.name == "messageRequestMode.json"]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(finish(running.broker.dumps()[path][1]()))
    with InProcess(config_of(tmp_path)) as running:
        assert modes(running.connect()) == {"T": {"cg": entry}}


def test_what_is_not_served_is_refused_in_words(client: Client) -> None:
    pop = set_mode(client, mode="POP")
    assert pop.code == ResponseCode.SYSTEM_ERROR and "POP is not built" in (pop.remark or "")
    assert set_mode(client, topic="%RETRY%cg").code == ResponseCode.NO_PERMISSION
    assert set_mode(client, mode="PUSH").code == ResponseCode.SYSTEM_ERROR
    assert set_mode(client, topic=7).code == ResponseCode.SYSTEM_ERROR
    assert set_mode(client, popShareQueueNum="many").code == ResponseCode.SYSTEM_ERROR
    assert modes(client) == {}


def test_a_pair_that_rocketmqs_file_has_set_to_pop_is_kept_and_told_to_pull(tmp_path: Path) -> None:
    path = tmp_path / "config" / "messageRequestMode.json"
    path.parent.mkdir()
    entry = {"topic": "T", "consumerGroup": "cg", "mode": "POP", "popShareQueueNum": 1}
    path.write_text(json.dumps({"messageRequestModeMap": {"T": {"cg": entry, "odd": 7}}}))
    with InProcess(config_of(tmp_path)) as running:
        client = running.connect()
        assert modes(client) == {"T": {"cg": entry}}
        running.broker.topics.update(TopicConfig("T", 1, 1), START_MS)
        client.heartbeat()
        client.answers()
        assert rows(ask(client)) == [("broker-a", 0)]
