"""No single frame stops the loop: what one stranger sends is refused, or read in steps between which others are served.

Work is counted here: the bytes that the reader of fastjson's dialect gets, the topics that are parsed, the steps.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from itertools import count as counter
from pathlib import Path
from typing import Any

import pytest

from broker.admin.base import CHANGES_PER_STEP
from broker.namesrv import registration
from broker.namesrv.handlers import name_server_handlers
from broker.namesrv.server import NameServer
from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Session
from broker.state.json_text import entry_text
from ropewalk.codes import RequestCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame
from tests.broker.harness import InProcess, config_of
from tests.support.clocks import Clock
from tests.support.links import FakeLink

DIALECT = b"{" + b",".join(b"a%x:'b'" % n for n in range(40_000)) + b"}"
IDENTITY = {
    "brokerName": "b",
    "brokerAddr": "10.0.0.1:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[InProcess]:
    with InProcess(config_of(tmp_path)) as running:
        yield running


@pytest.fixture
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the texts that the slow reader got."""
    sizes: list[int] = []
    begin: Any = fastjson._Reader.__init__

    def noted(reader: Any, text: str) -> None:
        sizes.append(len(text))
        begin(reader, text)

    monkeypatch.setattr(fastjson._Reader, "__init__", noted)
    yield sizes


class Names:
    """A name server and one connection to it."""

    def __init__(self) -> None:
        self.server = NameServer(Clock().monotonic)
        self.link = FakeLink(("127.0.0.1", 9))
        self.session = Session(
            self.link, name_server_handlers(self.server), self.server.closed, budget=IncomingBudget(lambda: 0)
        )

    def call(self, code: int, ext: dict[str, str], body: bytes) -> Command:
        self.session.receive(encode_frame(Command(code, ext, body, opaque=1)))
        data, self.link.sent = bytes(self.link.sent), bytearray()
        (payload,) = FrameBuffer().feed(data)
        return decode_frame(payload)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.QUERY_DATA_VERSION, IDENTITY),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}),
        (RequestCode.REGISTER_BROKER, IDENTITY),
    ],
)
def test_a_name_server_gives_the_slow_reader_few_bytes_at_once(
    code: int, ext: dict[str, str], read_at_once: list[int]
) -> None:
    answer = Names().call(code, ext, DIALECT)
    assert answer.code in (0, 1)
    assert max(read_at_once, default=0) <= 8 << 10


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.QUERY_ASSIGNMENT,
    ],
)
def test_a_broker_gives_the_slow_reader_few_bytes_at_once(
    broker: InProcess, code: int, read_at_once: list[int]
) -> None:
    answer = broker.connect().call(code, {}, DIALECT)
    assert answer.code != 0
    assert max(read_at_once, default=0) <= 8 << 10


def test_a_header_of_another_dialect_is_read_up_to_eight_kilobytes(
    broker: InProcess, read_at_once: list[int]
) -> None:
    header = b"{code:34,extFields:{" + b",".join(b"a%x:'b'" % n for n in range(2_000)) + b"}}"
    frame = struct.pack(">II", len(header) + 4, len(header)) + header
    client = broker.connect()
    try:
        client.feed(frame)
    except Exception as exc:
        assert "not plain JSON" in str(exc)
    assert max(read_at_once, default=0) <= 8 << 10


def test_more_topics_than_a_broker_may_have_are_refused_before_one_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    parse = registration._topic_of_text

    def noted(raw: bytes) -> Any:
        parsed.append(raw)
        return parse(raw)

    monkeypatch.setattr(registration, "_topic_of_text", noted)
    version, topic = b"{}", b"t 4 4 6 SINGLE_TAG"
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", 60_000)
    plain += (struct.pack(">i", len(topic)) + topic) * 60_000
    answer = Names().call(
        RequestCode.REGISTER_BROKER, {**IDENTITY, "compressed": "true"}, zlib.compress(plain)
    )
    assert answer.code == 1
    assert "60000 topics; a broker may have 50000" in (answer.remark or "")
    assert not parsed


def test_a_client_with_five_thousand_queues_gets_all_of_its_locks(broker: InProcess) -> None:
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": "orders"} for n in range(5_000)]
    body = json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": queues}).encode()
    client = broker.connect()
    answer = client.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert json.loads(answer.body)["lockOKMQSet"] == queues
    assert client.call(RequestCode.UNLOCK_BATCH_MQ, {}, body).code == 0


def test_a_broker_with_twenty_thousand_topics_registers_in_every_form() -> None:
    topics = {
        f"topic-{n}": {"topicName": f"topic-{n}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for n in range(20_000)
    }
    document = {"topicConfigSerializeWrapper": {"dataVersion": {"counter": 1}, "topicConfigTable": topics}}
    plain = json.dumps(document).encode()
    dialect = plain[:-1] + b",x:{0:1}}"
    for body in (plain, dialect):
        names = Names()
        assert names.call(RequestCode.REGISTER_BROKER, IDENTITY, body).code == 0
        found = names.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, b"")
        assert json.loads(found.body)["topicList"] == sorted(topics)
        names.session.closed()
        assert not names.server.table.topics()
        assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "topic-7"}, b"").code == 17
        assert names.call(RequestCode.REGISTER_BROKER, IDENTITY, body).code == 0
        assert len(names.server.table.topics()) == 20_000


@pytest.mark.parametrize(
    ("code", "table", "key", "name"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, "topics", "topicConfigList", "topicName"),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, "groups", "groupConfigList", "groupName"),
    ],
)
def test_what_a_long_list_makes_is_written_a_slice_at_a_time(
    broker: InProcess, monkeypatch: pytest.MonkeyPatch, code: int, table: str, key: str, name: str
) -> None:
    written: list[list[str]] = [[]]

    def count(key: str, value: object) -> str:
        written[-1].append(key)
        return entry_text(key, value)

    monkeypatch.setattr(f"broker.state.{table}.entry_text", count)
    state = getattr(broker.broker, table)
    state.dump()
    broker.broker.lane.clock = counter().__next__  # a turn has time for one step
    client, before = broker.connect(), len(written[0])
    entries = [{name: f"n{n}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in range(300)]
    client.ask(code, body=json.dumps({key: entries}).encode())

    def is_made() -> bool:
        written.append([])
        return "n299" in state

    broker.until(is_made)
    assert sum(map(len, written)) - before == 300
    assert max(map(len, written[1:])) <= CHANGES_PER_STEP
    written.append([])
    state.dump()
    assert written[-1] == [], "the file is joined from what is written"


def test_a_large_heartbeat_registers_all_of_its_groups_and_no_step_is_a_long_one(broker: InProcess) -> None:
    groups = [
        {"groupName": f"g{n}", "subscriptionDataSet": [{"topic": f"t{m}"} for m in range(5)]}
        for n in range(300)
    ]
    body = json.dumps({"clientID": "c", "consumerDataSet": groups}).encode()
    client = broker.connect()
    opaque = client.ask(RequestCode.HEART_BEAT, body=body)
    found: list[Command] = []

    def is_answered() -> bool:
        found.extend(answer for answer in client.answers() if answer.is_response)
        return bool(found)

    broker.until(is_answered)
    assert [(answer.opaque, answer.code) for answer in found] == [(opaque, 0)]
    assert len(broker.broker.clients.consumer_groups()) == 300
    assert broker.broker.clients.subscription("g299", "t4") is not None
