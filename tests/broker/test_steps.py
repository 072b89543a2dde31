"""No request of one client takes the loop long, however many queues, topics, groups and clients a broker has.

Every request code is asked of a broker with large tables. Work is counted, and not timed: the calls of functions in one
turn of the loop, of which a turn gives the cold lane one step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as counter
from pathlib import Path
from types import FrameType

import pytest

from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import NameServer
from broker.remoting.cold_lane import TURN_S, ColdLane
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Session
from broker.state.clients import HeartbeatData
from broker.state.heartbeat import ConsumerData
from broker.state.request_modes import RequestMode
from broker.state.subscription import SubscriptionData
from ropewalk.codes import RequestCode, request_name
from ropewalk.format.batch import encode_batch
from ropewalk.format.remoting import Command, encode_frame
from tests.broker.harness import Client, InProcess, config_of, send_ext
from tests.support.clocks import Clock
from tests.support.links import FakeLink

CALLS_MAX = 20_000
"""Calls of functions in a turn: some 0.2 us each with what is between them."""
TOPICS, GROUPS, MEMBERS, QUEUES = 4_000, 1_500, 1_500, 1_024
WIDE = "wide"
"""A topic of 1,024 queues, whose offsets one group has committed."""
ASKED = {
    "topic": WIDE, "group": "g0", "consumerGroup": "g0", "groupName": "g0", "producerGroup": "p0", "clientID": "c0",
    "queueId": "-1", "timestamp": "0", "timeStamp": "0", "isForce": "true", "offset": "-1", "srcGroup": "g0",
    "destGroup": "h", "compareGroup": "g1", "isOrder": "false", "cleanOffset": "true", "statsName": "TOPIC_PUT_NUMS",
    "statsKey": WIDE, "index": "0", "count": "1000", "maxMsgNums": "32", "queueOffset": "0", "sysFlag": "4",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "key": "k", "maxNum": "32",
    "beginTimestamp": "0", "endTimestamp": "9000000000000000000", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "defaultTopic": "TBW102", "clientId": "c0",
    "readable": "false", "offline": "true",
}  # fmt: skip
LAST = (
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
)
"""Codes that take things away from the others."""


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the calls of functions on this thread."""
    calls = [0]

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def fill(broker: InProcess) -> None:
    """Make the tables of a broker large."""
    context, now = broker.broker.context, broker.clock.ms
    topics = {f"t{n}": 8 for n in range(TOPICS)} | {WIDE: QUEUES, "wider": QUEUES, "old": 65_536}
    context.topics.load(
        {
            "topicConfigTable": {
                name: {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues}
                for name, queues in topics.items()
            }
        }
    )
    groups = [f"g{n}" for n in range(GROUPS)]
    context.groups.load(
        {
            "subscriptionGroupTable": {name: {"groupName": name} for name in groups},
            "forbiddenTable": {name: {f"t{n}": 1 for n in range(3)} for name in groups},
        }
    )
    pairs = {f"t{n}@g{n % GROUPS}": 8 for n in range(TOPICS)}
    pairs |= {f"t{n}@g0": 8 for n in range(TOPICS)} | {f"t0@{name}": 8 for name in groups}
    pairs |= {f"{WIDE}@{name}": QUEUES for name in groups[:10]} | {"old@g0": 60_000}
    table = {name: {str(n): n for n in range(queues)} for name, queues in pairs.items()}
    context.offsets.load({"offsetTable": table})
    context.offsets.load_times({})
    for n in range(20_000):
        context.request_modes.set(RequestMode(f"t{n % 7}", f"g{n}"))
    for n in range(TOPICS):
        context.timers.metrics.add(f"t{n}", 1, now)
        context.statistics.meter("TOPIC_PUT_NUMS", f"t{n}", now)
    wishes = tuple(SubscriptionData(name, "*") for name in list(topics)[:MEMBERS])
    for n in range(MEMBERS):
        consumers = (ConsumerData("g0", "", "", "", wishes if n == 0 else ()),)
        data = HeartbeatData(f"c{n}", consumers, ("p0", f"p{n}"), without_sub=n > 0)
        context.clients.heartbeat(f"peer {n}", data, broker.clock.monotonic(), address=f"10.0.0.1:{n}")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    root: Path = tmp_path_factory.mktemp("large")
    with InProcess(config_of(root, enablePropertyFilter=True, timerWheelEnable=True)) as running:
        fill(running)
        running.broker.lane.clock = counter().__next__  # a turn has time for one step of the lane
        for _ in range(3):
            running.turn()
        yield running


def bodies_of(code: int) -> list[bytes]:
    """Return the bodies that a code is asked with."""
    document: object = None
    if code == RequestCode.QUERY_ASSIGNMENT:
        document = {"topic": "old", "consumerGroup": "g0", "clientId": "c0", "strategyName": "AVG"}
        return [json.dumps({**document, "messageModel": model}).encode() for model in ("", "BROADCASTING")]
    if code == RequestCode.SET_MESSAGE_REQUEST_MODE:
        document = {"topic": "t1", "consumerGroup": "new", "mode": "PULL"}
    if code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        queues = [{"brokerName": "broker-a", "queueId": n, "topic": WIDE} for n in range(QUEUES)]
        document = {"clientId": "c0", "consumerGroup": "g0", "mqSet": queues}
    if code == RequestCode.UPDATE_AND_CREATE_TOPIC_LIST:
        document = {"topicConfigList": [{"topicName": f"n{n}", "perm": 6} for n in range(1_000)]}
    if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST:
        document = {"groupConfigList": [{"groupName": f"n{n}"} for n in range(1_000)]}
    if code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
        document = {"groupName": "n"}
    if code == RequestCode.SEND_BATCH_MESSAGE:
        tiny = encode_batch([(0, b"x", b"")] * 180_000)
        return [tiny, encode_batch((0, b"x" * (n % 3), b"TAGS\x01a%d\x02" % n) for n in range(10_000))]
    if code == RequestCode.HEART_BEAT:
        wishes = [{"topic": f"t{n}", "subString": "*"} for n in range(4_900)]
        groups = [{"groupName": f"n{n}", "subscriptionDataSet": [{"topic": "t0"}]} for n in range(900)]
        one = {"clientID": "c", "consumerDataSet": [{"groupName": "many", "subscriptionDataSet": wishes}]}
        producers = {"clientID": "c", "producerDataSet": [{"groupName": f"p{n}"} for n in range(1_000)]}
        many = [one, {"clientID": "c", "consumerDataSet": groups}, producers]
        return [json.dumps(each).encode() for each in many]
    return [json.dumps(document).encode() if document is not None else b""]


def send_text(topic: str) -> dict[str, str]:
    return {name: str(value) for name, value in send_ext(topic).items()}


def questions() -> list[tuple[int, dict[str, str], bytes]]:
    """Return what is asked: every code, with the headers that make its answer large."""
    codes = sorted(
        value for name, value in vars(RequestCode).items() if name.isupper() and isinstance(value, int)
    )
    asked = []
    for code in [*(code for code in codes if code not in LAST), *LAST]:
        for body in bodies_of(code):
            asked.append((code, ASKED if code != RequestCode.SEND_BATCH_MESSAGE else send_text("t0"), body))
            if code in (RequestCode.GET_CONSUME_STATS, RequestCode.CLONE_GROUP_OFFSET):
                asked.append((code, {name: value for name, value in ASKED.items() if name != "topic"}, body))
            if code in (
                RequestCode.GET_TOPIC_STATS_INFO,
                RequestCode.GET_CONSUME_STATS,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
                RequestCode.DELETE_TOPIC_IN_BROKER,
            ):
                asked += [(code, {**ASKED, "topic": topic}, body) for topic in ("old", "t0")]
    return asked


def most_of_a_turn(running: InProcess, client: Client, code: int, ext: dict[str, str], body: bytes) -> int:
    """Ask, and return the calls of the busiest turn until the answer, and of some turns behind it."""
    with counted() as calls:
        opaque = client.ask(code, ext, body)
        most = calls[0]
        answers: list[Command] = []

        def is_over() -> bool:
            answers.extend(answer for answer in client.answers() if answer.opaque == opaque)
            return bool(answers)

        def turn() -> None:
            nonlocal most
            before = calls[0]
            running.turn()
            most = max(most, calls[0] - before)

        for _ in range(200_000):
            if is_over():
                break
            turn()
        assert answers, request_name(code)
        for _ in range(20):
            turn()
    return most


def test_no_request_takes_more_than_a_step_of_work_in_a_turn(large: InProcess) -> None:
    too_long = []
    for code, ext, body in questions():
        client = large.connect()
        most = most_of_a_turn(large, client, code, ext, body)
        if most > CALLS_MAX:
            too_long.append(f"{code} {request_name(code)} {ext.get('topic', '')}: {most} calls")
        client.disconnect()
    assert not too_long, "\n".join(too_long)


class Names:
    """A name server whose lane takes one step a turn, and connections to it."""

    def __init__(self) -> None:
        self.server = NameServer(Clock().monotonic)
        self.lane = ColdLane(counter().__next__, lambda: None)

    def connect(self) -> tuple[Session, FakeLink]:
        link = FakeLink(("127.0.0.1", 9))
        handlers = name_server_handlers(self.server)
        return Session(
            link, handlers, self.server.closed, budget=IncomingBudget(lambda: 0), lane=self.lane
        ), link

    def most_of_a_turn(
        self, session: Session, link: FakeLink, code: int, ext: dict[str, str], body: bytes
    ) -> int:
        """Ask, and return the calls of the busiest turn until the answer."""
        with counted() as calls:
            self.lane.left_s = TURN_S
            session.receive(encode_frame(Command(code, ext, body, opaque=1)))
            most = calls[0]
            while not link.sent:
                before, self.lane.left_s = calls[0], TURN_S
                self.lane.run()
                most = max(most, calls[0] - before)
        link.sent.clear()
        return most


def test_no_request_takes_more_than_a_step_of_work_of_a_name_server() -> None:
    names = Names()
    entry = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    topics = {f"t{n}": {"topicName": f"t{n}", **entry} for n in range(5_000)}
    document = {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1}, "topicConfigTable": topics}}
    identity = {"clusterName": "c", "brokerId": "0", "haServerAddr": ""}
    brokers = [{**identity, "brokerName": f"b{n}", "brokerAddr": f"10.0.0.{n}:1"} for n in (1, 2)]
    connections = [names.connect() for _ in brokers]
    found = {
        f"103 of {ext['brokerName']}": names.most_of_a_turn(
            *connection, RequestCode.REGISTER_BROKER, ext, json.dumps(document).encode()
        )
        for connection, ext in zip(connections, brokers, strict=True)
    }
    last = [RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.UNREGISTER_BROKER]
    ext = {**brokers[0], "topic": "t1", "cluster": "c", "namespace": "n", "key": "k", "value": "v"}
    for code in [*(code for code in sorted(names.server.codes) if code not in (103, *last)), *last]:
        found[request_name(code)] = names.most_of_a_turn(*names.connect(), code, ext, b"")
    with counted() as calls:
        connections[1][0].closed()
        found["the end of a connection"] = calls[0]
    assert {name: count for name, count in found.items() if count > CALLS_MAX} == {}
