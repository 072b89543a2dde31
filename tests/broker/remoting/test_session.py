"""Sessions: bytes in, answers out, and what strangers may send without harm."""

import json
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.incoming import IncomingBudget
from broker.remoting.session import Handlers, Request, Session
from broker.waiting.held_pulls import HeldPull
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RemoteProtocolError
from ropewalk.format.remoting import FRAME_SIZE_MAX, JSON, ROCKETMQ, Command
from tests.broker.harness import (
    UNIQ,
    Client,
    InProcess,
    frame_of,
    heartbeat_body,
    pull_ext,
    request,
    send_ext,
)
from tests.support.links import FakeLink

UNKNOWN = 9999
KINDS = pytest.mark.parametrize("kind", [JSON, ROCKETMQ], ids=["json", "binary"])


def story(kind: int) -> bytes:
    """A few requests of every sort, as one piece of stream."""
    requests: list[tuple[int, dict[str, object], bytes]] = [
        (RequestCode.HEART_BEAT, {}, heartbeat_body(group=None, producers=["pg"])),
        (RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"first"),
        (RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"second"),
        (RequestCode.SEND_MESSAGE, send_ext("T", v1=True), b"third"),
        (UNKNOWN, {"any": "thing"}, b"\x00\x01"),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, b""),
        (RequestCode.PULL_MESSAGE, pull_ext("T"), b""),
    ]
    return b"".join(
        request(code, ext, body, opaque=opaque, serialize_type=kind)
        for opaque, (code, ext, body) in enumerate(requests)
    )


def outcome(client: Client) -> list[tuple[int, int, int]]:
    """Opaque, code and serialisation of each answer; they may come in any order."""
    return sorted((c.opaque, c.code, c.serialize_type) for c in client.answers())


EXPECTED = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 3), (5, 0), (6, 0)]


@KINDS
def test_requests_are_answered_in_their_own_serialisation(client: Client, kind: int) -> None:
    client.feed(story(kind))
    assert outcome(client) == [(opaque, code, kind) for opaque, code in EXPECTED]


@KINDS
def test_a_stream_cut_into_single_bytes_is_answered_the_same(client: Client, kind: int) -> None:
    for byte in story(kind):
        client.feed(bytes([byte]))
    assert outcome(client) == [(opaque, code, kind) for opaque, code in EXPECTED]


@KINDS
def test_a_request_is_answered_while_its_neighbour_is_still_arriving(client: Client, kind: int) -> None:
    whole = request(UNKNOWN, opaque=1, serialize_type=kind)
    neighbour = request(UNKNOWN, opaque=2, serialize_type=kind)
    for cut in range(1, len(neighbour)):
        client.feed(whole + neighbour[:cut])
        assert [c.opaque for c in client.answers()] == [1]
        client.feed(neighbour[cut:])
        assert [c.opaque for c in client.answers()] == [2]


def test_both_serialisations_may_share_a_connection(client: Client) -> None:
    client.feed(
        request(UNKNOWN, opaque=1) + request(UNKNOWN, opaque=2, serialize_type=ROCKETMQ) + request(UNKNOWN)
    )
    assert [c.serialize_type for c in client.answers()] == [JSON, ROCKETMQ, JSON]


# -- bytes that are no frame ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 0),
        struct.pack(">i", 3),
        struct.pack(">i", FRAME_SIZE_MAX - 3),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        frame_of(b"{}", serialize_type=2),
        frame_of(b"{}", serialize_type=255),
        struct.pack(">iI", 8, 100) + b"{}{}",
        frame_of(b"not json"),
        frame_of(b"[1,2]"),
        frame_of(b'{"code":"ten"}'),
        frame_of(b'{"code":99999999999}'),
        frame_of(b'{"code":10,"extFields":7}'),
        frame_of(b'{"code":310,"extFields":{"a":"'),
        frame_of(b"[" * 5000),
        frame_of(b""),
        frame_of(b"\x00" * 10, serialize_type=ROCKETMQ),
        frame_of(struct.pack(">hbhiii", 10, 0, 479, 1, 0, 2**31 - 1), serialize_type=ROCKETMQ),
        frame_of(struct.pack(">hbhiiii", 10, 0, 479, 1, 0, 0, -5), serialize_type=ROCKETMQ),
    ],
)
def test_what_is_no_frame_ends_the_connection_with_a_reason(client: Client, garbage: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"\w"):
        client.feed(garbage + b"\x00" * 64)


def test_a_header_longer_than_its_frame_is_no_send_either(running: InProcess) -> None:
    running.connect().send("T")
    before = running.broker.store.log.end_offset
    whole = request(RequestCode.SEND_MESSAGE_V2, send_ext("T"))
    for word in (len(whole), 1 << 24 | len(whole) - 8):
        with pytest.raises(RemoteProtocolError):
            running.connect().feed(whole[:4] + struct.pack(">I", word) + whole[8:])
    assert running.broker.store.log.end_offset == before


def test_an_absurd_length_is_refused_before_its_body_arrives(client: Client) -> None:
    with pytest.raises(RemoteProtocolError, match="out of bounds"):
        client.feed(struct.pack(">i", 2**30))


def test_a_tls_hello_is_told_from_a_frame(client: Client) -> None:
    with pytest.raises(RemoteProtocolError, match="TLS"):
        client.feed(b"\x16\x03\x01\x02\x00\x01\x00")


def test_a_tls_hello_that_arrives_byte_by_byte_is_told_from_a_frame(client: Client) -> None:
    with pytest.raises(RemoteProtocolError, match="TLS"):
        client.feed(b"\x16")


def test_answers_to_what_came_before_the_garbage_are_not_held_back(client: Client) -> None:
    client.feed(request(UNKNOWN, opaque=5))
    with pytest.raises(RemoteProtocolError):
        client.feed(frame_of(b"nonsense"))
    assert [c.opaque for c in client.answers()] == [5]


@given(st.binary(max_size=200))
def test_a_session_survives_any_bytes_or_hangs_up(data: bytes) -> None:
    session = Session(
        FakeLink(("127.0.0.1", 1)), Handlers(), lambda _session: None, budget=IncomingBudget(lambda: 0)
    )
    with suppress(RemoteProtocolError):
        session.receive(data)


# -- requests that are wrong --------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("code", [UNKNOWN, 0, -1, 39, 103, 105, 32767, -32768])
def test_an_unknown_code_is_answered_3(client: Client, code: int, kind: int) -> None:
    answer = client.call(code, serialize_type=kind)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"


def test_a_code_that_only_json_can_carry_is_answered_too(client: Client) -> None:
    assert client.call(200_050).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


TYPED = [
    (RequestCode.SEND_MESSAGE, send_ext("T", v1=True), "queueId", "topic"),
    (RequestCode.SEND_MESSAGE_V2, send_ext("T"), "e", "b"),
    (RequestCode.SEND_BATCH_MESSAGE, send_ext("T"), "e", "b"),
    (RequestCode.PULL_MESSAGE, pull_ext("T"), "queueOffset", "consumerGroup"),
    (RequestCode.LITE_PULL_MESSAGE, pull_ext("T"), "maxMsgNums", "topic"),
    (
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0},
        "queueId",
        "topic",
    ),
    (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}, "queueId", "topic"),
    (RequestCode.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}, "queueId", "topic"),
    (RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0}, "queueId", "topic"),
    (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {"topic": "T", "queueId": 0, "timestamp": 0},
        "timestamp",
        "topic",
    ),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"topic": "T", "offset": 0}, "offset", "offset"),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, None, "consumerGroup"),
    (RequestCode.UNREGISTER_CLIENT, {"clientID": "c"}, None, "clientID"),
]


@KINDS
@pytest.mark.parametrize(("code", "ext", "number", "needed"), TYPED)
def test_a_missing_or_mistyped_field_is_answered_with_its_name(
    client: Client, code: int, ext: dict[str, object], number: str | None, needed: str, kind: int
) -> None:
    wrongs: list[dict[str, object]] = [{**ext, needed: None}]
    if number is not None:
        wrongs += [{**ext, number: value} for value in ("seven", "1.5", "9" * 40, "0x10", str(2**63))]
    for wrong in wrongs:
        answer = client.call(code, wrong, serialize_type=kind)
        assert answer.code == ResponseCode.SYSTEM_ERROR, wrong
        assert answer.remark, wrong
    missing = client.call(code, {**ext, needed: None}, serialize_type=kind)
    assert needed in (missing.remark or "")


@KINDS
@pytest.mark.parametrize(("code", "ext", "number", "needed"), TYPED)
def test_a_field_of_a_megabyte_is_answered_and_changes_nothing(
    running: InProcess, code: int, ext: dict[str, object], number: str | None, needed: str, kind: int
) -> None:
    client = running.connect()
    end = running.broker.store.log.end_offset
    topics = running.broker.topics.generation
    huge = {**ext, needed: "y" * (1 << 20)}
    answer = client.call(code, huge, serialize_type=kind)
    assert answer.code in (0, 1, 17, 22, 26, 29), answer.remark
    assert len(answer.remark or "") < 1 << 21
    assert running.broker.store.log.end_offset == end
    assert running.broker.topics.generation == topics
    assert client.call(UNKNOWN).code == 3, "the connection lives on"


@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_a_request_without_any_fields_is_answered(client: Client, kind: int) -> None:
    for code, _ext, _number, _needed in TYPED:
        assert client.call(code, serialize_type=kind).code == ResponseCode.SYSTEM_ERROR


def test_values_that_are_no_strings_are_read_as_java_reads_them(client: Client) -> None:
    ext = {**send_ext("T"), "e": 1, "k": False, "g": 5, "n": None, "zzz": [1], "yyy": {"deep": 1}}
    header = json.dumps({"code": 310, "opaque": 3, "flag": 0, "extFields": ext}).encode()
    client.feed(frame_of(header, b"body"))
    answer = client.answer(3)
    assert (answer.code, answer.ext["queueId"]) == (0, "1")


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff x", "\\u0000"])
@pytest.mark.parametrize(
    ("code", "field"), [(RequestCode.SEND_MESSAGE_V2, "b"), (RequestCode.PULL_MESSAGE, "consumerGroup")]
)
def test_text_that_no_frame_can_carry_back_is_answered_all_the_same(
    client: Client, code: int, field: str, text: str
) -> None:
    ext = send_ext("T") if code == RequestCode.SEND_MESSAGE_V2 else pull_ext("T")
    fields = json.dumps({**{k: str(v) for k, v in ext.items()}, field: "@@"}).replace("@@", text)
    client.feed(frame_of(f'{{"code":{code},"opaque":9,"extFields":{fields}}}'.encode()))
    assert client.answer(9).code in (1, 26, 29)


def test_a_handler_that_fails_is_answered_1_and_the_connection_lives_on() -> None:
    def fail(_session: Session, _command: Command) -> Command | None:
        raise KeyError("\ud800" + "long" * 100_000)

    handlers = Handlers()
    handlers.cold = {7: fail}
    link = FakeLink(("127.0.0.1", 1))
    session = Session(link, handlers, lambda _session: None, budget=IncomingBudget(lambda: 0))
    session.receive(request(7, opaque=1) + request(8, opaque=2))
    assert b"KeyError" in link.sent
    assert len(link.sent) < 10_000
    assert b"request type 8 not supported" in link.sent


# -- flags ----------------------------------------------------------------------------------------------


@KINDS
def test_a_oneway_request_is_never_answered_not_even_with_an_error(running: InProcess, kind: int) -> None:
    client = running.connect()
    for code in (*range(60), 310, 320, 324, 361, 370, 400, UNKNOWN):
        for ext in ({}, send_ext("T"), send_ext("T", v1=True), pull_ext("T"), send_ext("../no")):
            client.ask(code, ext, b"x", flag=2, serialize_type=kind)
    client.ask(RequestCode.HEART_BEAT, body=b"{", flag=2, serialize_type=kind)
    running.until(lambda: all(not worker.pending for worker in running.broker.reader._workers))
    assert client.answers() == []
    assert running.stored("T"), "the sends among them were taken all the same"


def test_a_oneway_send_of_the_common_kind_is_stored_and_not_answered(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    client.ask(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"quiet", flag=2)
    assert client.answers() == []
    assert [r.body for r in running.stored("T")] == [b"x", b"quiet"]


@pytest.mark.parametrize("flag", [1, 3])
def test_responses_nobody_waits_for_are_ignored(running: InProcess, flag: int) -> None:
    client = running.connect()
    client.send("T")
    for code in (0, 1, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT):
        client.ask(code, send_ext("T"), b"y", flag=flag)
    assert client.answers() == []
    assert len(running.stored("T")) == 1


# -- the other port, and the peer that takes nothing ------------------------------------------------------


def test_the_fast_port_serves_everything_but_the_pull_family(running: InProcess) -> None:
    fast = running.connect(fast=True)
    assert fast.send("T").code == 0
    assert fast.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).ext["offset"] == "1"
    for code in (11, 361, 200_050, 200_052, 200_054, 200_055):
        assert fast.call(code, pull_ext("T")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_the_requests_of_a_congested_peer_are_put_off_and_then_answered_in_order(running: InProcess) -> None:
    client = running.connect()
    client.link.congested = True
    client.feed(request(UNKNOWN, opaque=1) + request(UNKNOWN, opaque=2)[:10])
    assert client.session.has_backlog
    client.feed(request(UNKNOWN, opaque=2)[10:])
    assert client.answers() == []
    client.link.congested = False
    client.session.resume()
    assert [c.opaque for c in client.answers()] == [1, 2]
    assert not client.session.has_backlog


def test_a_send_that_comes_behind_requests_that_were_put_off_is_answered_behind_them(
    running: InProcess,
) -> None:
    client = running.connect()
    for _ in range(2):  # what it sends next is like this
        client.send("T")
    client.link.congested = True
    client.feed(request(UNKNOWN, opaque=7))
    client.link.congested = False
    client.feed(request(RequestCode.SEND_MESSAGE_V2, send_ext("T"), b"", opaque=8))
    assert [c.opaque for c in client.answers()] == [7, 8]


def test_a_push_carries_an_opaque_of_its_own_and_asks_for_no_answer(client: Client) -> None:
    client.session.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    client.session.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"})
    first, second = client.answers()
    assert first.is_oneway
    assert not first.is_response
    assert first.opaque != second.opaque


def test_a_request_reads_its_fields_alike_in_both_serialisations() -> None:
    seen: list[dict[str, str]] = []

    def keep(session: Session, asked: Request) -> None:
        seen.append(asked.fields())

    handlers = Handlers()
    handlers.hot = {7: keep}
    session = Session(
        FakeLink(("127.0.0.1", 1)), handlers, lambda _session: None, budget=IncomingBudget(lambda: 0)
    )
    for kind in (JSON, ROCKETMQ):
        session.receive(request(7, {"topic": "T", "key": UNIQ}, serialize_type=kind))
    assert seen[0] == seen[1] == {"topic": "T", "key": UNIQ}


def test_a_waiting_pull_keeps_nothing_of_its_request_but_what_an_answer_needs(running: InProcess) -> None:
    client = running.connect()
    client.send("T")
    client.feed(
        request(RequestCode.PULL_MESSAGE, pull_ext("T", queueOffset=1, sysFlag=6), body=b"x" * 100_000)
    )
    (held,) = client.session.held
    assert isinstance(held, HeldPull)
    assert held.request.body == b"" and not held.request.fields()
