"""Requests that a consumer answers through the broker."""

import gc
from itertools import count

import pytest

from broker.admin.base import AdminContext
from broker.admin.relay import ANSWER_SIZE_MAX, RELAY_TIMEOUT_MS, STATUS_TIMEOUT_MS
from broker.remoting.request import CommandRequest
from ropewalk.client.admin.cluster import ADMIN_TIMEOUT_S
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.format import fastjson
from ropewalk.format.remoting import FRAME_SIZE_MAX, Command, encode_frame
from tests.broker.harness import Client, InProcess

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


@pytest.fixture
def member(running: InProcess) -> Client:
    """A consumer of group g that is online as c1."""
    consumer = running.connect()
    consumer.heartbeat(client_id="c1", group="g", topics={"T": "*"})
    running.tick()
    consumer.answers()
    return consumer


def asked(member: Client) -> Command:
    (request,) = member.answers()
    assert not request.is_response
    return request


def give(member: Client, request: Command, code: int, body: bytes, remark: str | None = None) -> None:
    answer = Command(code, {"x": "y"}, body, opaque=request.opaque, flag=FrameFlag.RESPONSE, remark=remark)
    member.feed(encode_frame(answer))


def test_what_a_client_says_about_itself_comes_back_as_it_said_it(client: Client, member: Client) -> None:
    ext = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": False}
    opaque = client.ask(INFO, ext)
    request = asked(member)
    assert (request.code, request.ext["jstackEnable"], request.ext["brokerName"]) == (
        307,
        "false",
        "broker-a",
    )
    assert not client.link.sent, "the client has not answered yet"
    give(member, request, 0, b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{}}}', "fine")
    answer = client.answer(opaque)
    assert (answer.code, answer.remark, answer.ext) == (0, "fine", {"x": "y"})
    assert answer.body == b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{}}}'


def test_nothing_is_kept_of_a_question_that_its_client_is_slow_to_answer(
    client: Client, member: Client
) -> None:
    ext = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": False}
    opaque = client.ask(INFO, ext, bytes(100_000))
    request = asked(member)
    assert len(request.body) == 100_000
    waiting = [each for each in gc.get_objects() if isinstance(each, CommandRequest) and each.code == INFO]
    assert [(each.opaque, each.body, each.ext) for each in waiting] == [(opaque, b"", {})]
    give(member, request, 0, b"fine")
    assert client.answer(opaque).body == b"fine"


def test_an_answer_that_no_frame_can_hold_becomes_a_refusal(running: InProcess, client: Client) -> None:
    request = Command(INFO, opaque=7)
    AdminContext(running.broker.context).send(
        client.session, request, request.reply(0, body=bytes(FRAME_SIZE_MAX))
    )
    answer = client.answer(7)
    assert (answer.code, answer.remark) == (1, "the answer does not fit a frame")


def test_a_client_that_does_not_answer_is_not_waited_for_for_ever(
    running: InProcess, client: Client, member: Client
) -> None:
    opaque = client.ask(INFO, {"consumerGroup": "g", "clientId": "c1"})
    running.tick(RELAY_TIMEOUT_MS)
    assert client.answer(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT
    give(member, asked(member), 0, b"late")
    assert not client.link.sent


def test_a_client_that_leaves_while_it_is_asked_counts_as_silent(client: Client, member: Client) -> None:
    opaque = client.ask(INFO, {"consumerGroup": "g", "clientId": "c1"})
    member.disconnect()
    assert client.answer(opaque).code == ResponseCode.CONSUME_MSG_TIMEOUT


@pytest.mark.parametrize("group, client_id", [("g", "c2"), ("nobody", "c1")])
def test_a_client_that_is_not_online_is_refused(
    client: Client, member: Client, group: str, client_id: str
) -> None:
    answer = client.call(INFO, {"consumerGroup": group, "clientId": client_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == f"The Consumer <{group}> <{client_id}> not online"


def test_a_message_is_read_from_the_log_and_given_to_one_client(
    running: InProcess, client: Client, member: Client
) -> None:
    message_id = client.send("T", b"consume me").ext["msgId"]
    ext = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id}
    client.ask(DIRECTLY, ext)
    running.until(lambda: bool(member.link.sent))
    request = asked(member)
    assert request.code == DIRECTLY
    assert request.body == client.owner.broker.store.log.segments[0].file.read_at(0, len(request.body))
    give(member, request, 0, b'{"consumeResult":"CR_SUCCESS"}')
    assert client.answer().body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize("message_id", ["", "zz", "7F000001000029030000000000FFFFFF"])
def test_a_message_that_is_not_there_is_refused(client: Client, member: Client, message_id: str) -> None:
    answer = client.call(DIRECTLY, {"consumerGroup": "g", "clientId": "c1", "msgId": message_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not member.link.sent


def test_the_offsets_of_every_client_of_a_group_are_gathered(
    running: InProcess, client: Client, member: Client
) -> None:
    second = running.connect()
    second.heartbeat(client_id="c2", group="g", topics={"T": "*"})
    running.tick()
    member.answers()
    second.answers()
    client.send("T")
    opaque = client.ask(STATUS, {"topic": "T", "group": "g"})
    first_request, second_request = asked(member), asked(second)
    assert first_request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    give(member, first_request, 0, b'{"messageQueueTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}')
    assert not client.link.sent
    give(second, second_request, 0, b"not json")
    found = fastjson.loads(client.answer(opaque).body)
    table = found["consumerTable"]
    assert fastjson.queue_keys(table["c1"]) == {("T", "b", 1): 5}
    assert table["c2"] == {}
    assert client.call(STATUS, {"topic": "T", "group": "nobody"}).code == 1
    assert client.call(STATUS, {"topic": "none", "group": "g"}).code == 1


def test_what_some_clients_of_a_group_say_is_told_before_an_administrator_gives_up_on_a_silent_one(
    running: InProcess, client: Client, member: Client
) -> None:
    silent = running.connect()
    silent.heartbeat(client_id="c2", group="g", topics={"T": "*"})
    running.tick()
    member.answers()
    client.send("T")
    opaque = client.ask(STATUS, {"topic": "T", "group": "g"})
    give(member, asked(member), 0, b'{"messageQueueTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}')
    running.tick(STATUS_TIMEOUT_MS)
    assert list(fastjson.loads(client.answer(opaque).body)["consumerTable"]) == ["c1"]
    assert STATUS_TIMEOUT_MS <= (ADMIN_TIMEOUT_S - 1) * 1000


def test_an_answer_about_offsets_is_read_in_steps_and_a_large_one_counts_as_empty(
    running: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of a group may answer with a frame of 16 MiB, and any client can become one."""
    read: list[int] = []
    begin = fastjson._Reader.__init__

    def noted(reader: fastjson._Reader, text: str) -> None:
        read.append(len(text))
        begin(reader, text)

    members = [running.connect() for _ in range(3)]
    for number, each in enumerate(members):
        each.heartbeat(client_id=f"c{number}", group="g", topics={"T": "*"})
    running.tick()
    for each in members:
        each.answers()
    client.send("T")
    opaque = client.ask(STATUS, {"topic": "T", "group": "g"})
    asking = [asked(each) for each in members]
    monkeypatch.setattr(fastjson._Reader, "__init__", noted)
    running.broker.lane.clock = count().__next__  # a turn has time for one step
    key = '{"brokerName":"b","queueId":%d,"topic":"T"}'
    offsets = ",".join(f"{key % n}:{n}" for n in range(300)).encode()
    long = b'"{%b}":1' % (b" " * 60_000)
    give(members[0], asking[0], 0, b'{"messageQueueTable":{%b,%b}}' % (offsets, long))
    give(members[1], asking[1], 0, b'{"messageQueueTable":{%b}}' % (offsets + b" " * ANSWER_SIZE_MAX))
    give(members[2], asking[2], 0, b'{"messageQueueTable":{"a":1,%b}}' % offsets)
    running.until(lambda: bool(client.link.sent))
    assert max(read) <= 8 << 10
    table = fastjson.loads(client.answer(opaque).body)["consumerTable"]
    assert [len(table[f"c{number}"]) for number in range(3)] == [300, 0, 300]
    assert fastjson.queue_keys(table["c0"]) == {("T", "b", n): n for n in range(300)}
