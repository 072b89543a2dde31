"""Request-reply: an answer finds the client that asked, and the responder hears whether it did."""

import gc
from collections.abc import Callable

import pytest

from broker.remoting.request import Request
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.format.properties import parse_properties
from ropewalk.format.remoting import Command, encode_frame
from tests.broker.harness import Client, FlushGate, FullDisk, InProcess, send_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def requester(running: InProcess, client_id: str = "asker") -> Client:
    client = running.connect()
    assert client.heartbeat(client_id=client_id, group=None, producers=["pg"]).code == 0
    return client


def reply(
    client: Client,
    to: str | None = "asker",
    *,
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
    frame_flag: int = 0,
    **header: object,
) -> int:
    """A responder sends its answer; the opaque of that request."""
    addressed = {} if to is None else {"REPLY_TO_CLIENT": to}
    properties = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000", **addressed}
    v1 = code == RequestCode.SEND_REPLY_MESSAGE
    ext = send_ext(TOPIC, v1=v1, **{"properties": properties, **header})
    return client.ask(code, ext, b"the answer", flag=frame_flag)


def pushed(client: Client) -> Command:
    """What the requester was pushed."""
    client.owner.until(lambda: bool(client.link.sent))
    (command,) = client.answers()
    assert (command.code, command.is_response) == (PUSH, False)
    assert not command.is_oneway
    return command


def take(client: Client, push: Command, code: int = 0, remark: str | None = None) -> None:
    """The requester answers a push."""
    client.feed(encode_frame(Command(code, opaque=push.opaque, flag=FrameFlag.RESPONSE, remark=remark)))


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_an_answer_is_pushed_to_who_asked(running: InProcess, code: int) -> None:
    asker, responder = requester(running), running.connect(peer=("10.0.0.7", 777))
    opaque = reply(responder, code=code, sysFlag=1, flag=5)
    push = pushed(asker)
    assert push.body == b"the answer"
    assert {
        "topic": TOPIC,
        "producerGroup": "pg",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "1",
        "flag": "5",
        "bornTimestamp": str(START_MS - 5),
        "bornHost": "10.0.0.7:777",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": str(START_MS),
        "reconsumeTimes": "0",
        "unitMode": "false",
    }.items() <= push.ext.items()
    properties = parse_properties(push.ext["properties"])
    assert (properties["CORRELATION_ID"], properties["PUSH_REPLY_TIME"]) == ("c-1", str(START_MS))
    assert not responder.link.sent, "the responder hears when the requester has answered"
    take(asker, push)
    answer = responder.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")


def test_nothing_is_kept_of_an_answer_that_its_requester_is_slow_to_take(running: InProcess) -> None:
    """A stranger that answers itself and takes nothing had ten thousand answers of megabytes kept."""
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    push = pushed(asker)
    (waiting,) = [each for each in gc.get_objects() if isinstance(each, Request) and each.opaque == opaque]
    assert not waiting.body and not waiting.ext and len(bytes(waiting.json)) == 0
    del waiting
    take(asker, push)
    assert responder.answer(opaque).code == ResponseCode.SUCCESS


def test_the_answer_is_stored_too(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    take(asker, pushed(asker))
    (record,) = running.stored(TOPIC)
    assert record.body == b"the answer"
    assert responder.answer(opaque).ext["msgId"] == record.msg_id


def test_it_is_not_stored_where_the_configuration_says_so(start_broker: StartBroker) -> None:
    running = start_broker(storeReplyMessageEnable=False)
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    take(asker, pushed(asker))
    answer = responder.answer(opaque)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert running.stored(TOPIC) == []


@pytest.mark.parametrize("to", ["nobody", None])
def test_an_answer_to_nobody_is_1_and_stored(running: InProcess, to: str | None) -> None:
    requester(running)
    responder = running.connect()
    answer = responder.answer(reply(responder, to))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert len(running.stored(TOPIC)) == 1


def test_a_requester_that_refuses_makes_it_1(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    take(asker, pushed(asker), 1, "no such request")
    answer = responder.answer(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no such request" in (answer.remark or "")


def test_a_requester_that_keeps_silent_makes_it_1_after_ten_seconds(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    push = pushed(asker)
    running.tick(9_999)
    assert not responder.link.sent
    running.tick(1)
    assert responder.answer(opaque).code == ResponseCode.SYSTEM_ERROR
    take(asker, push)  # too late, and nobody minds
    assert responder.answers() == asker.answers() == []


def test_a_requester_that_hangs_up_makes_it_1_at_once(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    opaque = reply(responder)
    pushed(asker)
    asker.disconnect()
    assert responder.answer(opaque).code == ResponseCode.SYSTEM_ERROR
    assert responder.answer(reply(responder)).code == ResponseCode.SYSTEM_ERROR


def test_a_responder_that_hangs_up_is_not_answered(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    reply(responder)
    push = pushed(asker)
    responder.disconnect()
    take(asker, push)
    assert responder.answers() == []


def test_a_oneway_answer_is_pushed_and_not_answered(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    reply(responder, frame_flag=FrameFlag.ONEWAY)
    take(asker, pushed(asker))
    assert responder.answers() == []


def test_after_a_reconnect_the_answer_takes_the_new_connection(running: InProcess) -> None:
    old = requester(running)
    new = requester(running)
    old.disconnect()
    responder = running.connect()
    reply(responder)
    assert pushed(new).body == b"the answer"


def test_a_client_that_produces_no_more_is_not_found(running: InProcess) -> None:
    asker = requester(running)
    ext = {"clientID": "asker", "producerGroup": "pg"}
    assert asker.call(RequestCode.UNREGISTER_CLIENT, ext).code == 0
    responder = running.connect()
    assert responder.answer(reply(responder)).code == ResponseCode.SYSTEM_ERROR
    asker.disconnect()


def test_a_requester_that_takes_nothing_is_not_owed_more(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    asker.link.congested = True
    assert responder.answer(reply(responder)).code == ResponseCode.SYSTEM_ERROR
    assert asker.answers() == []


def test_many_requests_of_one_client_are_told_apart(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    opaques = [reply(responder, properties={"REPLY_TO_CLIENT": "asker", "n": str(n)}) for n in range(5)]
    pushes = asker.answers()
    assert len(pushes) == 5
    for push in reversed(pushes):
        take(asker, push)
    assert [answer.opaque for answer in responder.answers()] == opaques[::-1]


def test_with_sync_flush_the_responder_hears_of_success_after_the_flush(
    synced: InProcess, flush_gate: FlushGate
) -> None:
    asker, responder = requester(synced), synced.connect()
    flush_gate.shut()
    opaque = reply(responder)
    take(asker, pushed(asker))
    synced.turn()
    assert not responder.link.sent
    flush_gate.open()
    assert responder.answer(opaque).code == ResponseCode.SUCCESS


def test_a_full_disk_does_not_keep_an_answer_from_who_asked(start_broker: StartBroker) -> None:
    disk = FullDisk()
    running = start_broker(disk, mappedFileSizeCommitLog=128 << 10)
    asker, responder = requester(running), running.connect()
    disk.full = True
    while running.connect().send("T", b"z" * 4000).code == 0:
        running.tick()
    while running.connect().send("T", b"z").code == 0:
        pass
    opaque = reply(responder)
    take(asker, pushed(asker))
    answer = responder.answer(opaque)
    assert (answer.code, answer.ext["msgId"]) == (ResponseCode.SUCCESS, "0")


def test_what_is_no_message_is_refused_and_not_pushed(running: InProcess) -> None:
    asker, responder = requester(running), running.connect()
    for header, code in (
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
        ({"properties": {"REPLY_TO_CLIENT": "asker", "TRAN_MSG": "true"}}, ResponseCode.MESSAGE_ILLEGAL),
    ):
        assert responder.answer(reply(responder, **header)).code == code
    assert asker.answers() == []
