"""Changed topics: name servers hear of them before the turn's answers leave, and consumers once name servers know."""

import pytest

from broker.discovery.registrar import Registrar
from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import NameServer
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Session
from broker.state.topics import READ_WRITE, TopicConfig
from ropewalk.codes import RequestCode
from ropewalk.format.remoting import Command
from tests.broker.harness import InProcess, heartbeat_body, request, send_ext, told
from tests.support.links import FakeLink

V2 = RequestCode.SEND_MESSAGE_V2


def test_new_topics_are_told_once_and_in_the_turn_that_made_them(running: InProcess) -> None:
    """Answers of a turn leave when it has ended: a producer never hears of its topic before the name servers do."""
    client = running.connect()
    told: list[bool] = []
    running.broker.topic_changes.on_published = lambda: told.append("T9" in running.broker.topics)
    client.feed(b"".join(request(V2, send_ext(f"T{number}")) for number in range(10)))
    assert told == [True]


@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_the_retry_topic_is_with_the_name_server_before_the_heartbeat_is_answered(
    running: InProcess, model: str
) -> None:
    server = NameServer(running.clock.monotonic)
    registrar = Registrar(
        {
            "brokerName": "broker-a",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "DefaultCluster",
            "haServerAddr": "127.0.0.1:10912",
            "brokerId": "0",
        },
        lambda: running.broker.topics,
        period_s=30,
        call_s=5,
        permission=lambda: READ_WRITE,
        local=server,
        remote=(),
    )
    running.broker.topic_changes.on_published = registrar.changed
    names = Session(
        FakeLink(("127.0.0.1", 9)),
        name_server_handlers(server),
        server.closed,
        budget=IncomingBudget(lambda: 0),
    )
    client = running.connect()
    client.feed(request(RequestCode.HEART_BEAT, body=heartbeat_body(model=model)))
    # The turn has ended, and only now its answers leave.
    answer = server.handle(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%cg"}), names)
    assert answer is not None and answer.code == 0
    config = running.broker.topics.get("%RETRY%cg")
    assert config is not None
    assert (config.read_queues, config.write_queues, config.perm) == (1, 1, 6)


def test_consumers_of_a_topic_are_told_when_its_route_is_known(running: InProcess) -> None:
    waits, other = running.connect(), running.connect()
    waits.call(RequestCode.HEART_BEAT, body=heartbeat_body("c1", "cg", {"late": "*"}, model="BROADCASTING"))
    other.call(RequestCode.HEART_BEAT, body=heartbeat_body("c2", "other", {"U": "*"}))
    topics = running.broker.topics
    running.broker.topic_changes.announce(topics.generation)
    assert told(waits) + told(other) == ["other"], "that its group has changed: broadcasting knows no members"
    before = topics.generation
    topics.update(TopicConfig("late"), running.clock.ms)
    running.broker.topic_changes.announce(before)
    assert told(waits) == [], "the name server has an older table"
    running.broker.topic_changes.announce(topics.generation)
    assert told(waits) == ["cg"] and told(other) == []
    running.broker.topic_changes.announce(topics.generation)
    assert told(waits) == [], "told once"
