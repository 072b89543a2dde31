"""Frames recorded between the official Java clients and Apache RocketMQ mean to us what they mean to Java.

The vectors are made by record.py; what each means was told by the client's own decoder. No Java is needed
to run these tests.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.state.heartbeat import HeartbeatData
from ropewalk.client.core.routes import parse_route
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson, headers
from ropewalk.format.batch import split_batch
from ropewalk.format.properties import parse_properties
from ropewalk.format.record import decode_records
from ropewalk.format.remoting import Command, FrameBuffer, decode_frame, encode_frame

FILES = sorted(Path(__file__).with_name("vectors").glob("*.json"))
VECTORS = [
    pytest.param(vector, id=f"{path.stem}-{vector['sender']}-{vector['request']}-{number}")
    for path in FILES
    for number, vector in enumerate(json.loads(path.read_text())["vectors"])
]
REQUEST_HEADERS: dict[int, type[msgspec.Struct]] = {
    RequestCode.PULL_MESSAGE: headers.PullMessageHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: headers.QueryConsumerOffsetHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: headers.UpdateConsumerOffsetHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffsetHeader,
    RequestCode.GET_MAX_OFFSET: headers.GetMaxOffsetHeader,
    RequestCode.GET_MIN_OFFSET: headers.QueueHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: headers.ViewMessageHeader,
    RequestCode.UNREGISTER_CLIENT: headers.UnregisterClientHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: headers.ConsumerGroupHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: headers.ConsumerGroupHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: headers.RouteHeader,
    RequestCode.SEND_MESSAGE_V2: headers.SendMessageHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: headers.SendMessageHeaderV2,
    RequestCode.LITE_PULL_MESSAGE: headers.PullMessageHeader,
}
ANSWER_HEADERS: dict[int, type[msgspec.Struct]] = {
    RequestCode.PULL_MESSAGE: headers.PullResponseHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: headers.OffsetResponseHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: headers.OffsetResponseHeader,
    RequestCode.GET_MAX_OFFSET: headers.OffsetResponseHeader,
    RequestCode.GET_MIN_OFFSET: headers.OffsetResponseHeader,
    RequestCode.SEND_MESSAGE_V2: headers.SendResponseHeader,
    RequestCode.SEND_BATCH_MESSAGE: headers.SendResponseHeader,
    RequestCode.LITE_PULL_MESSAGE: headers.PullResponseHeader,
}
WITHOUT_HEADER = {RequestCode.HEART_BEAT}

every_vector = pytest.mark.parametrize("vector", VECTORS)


def frame_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["frame"])


def command_of(vector: dict[str, Any]) -> Command:
    return decode_frame(frame_of(vector)[4:])


def meaning(command: Command) -> dict[str, Any]:
    """The command in the words of java/src/Frames.java."""
    return {
        "code": command.code,
        "language": command.language,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "serializeType": command.serialize_type,
        "ext": command.ext,
        "bodySha256": hashlib.sha256(command.body).hexdigest(),
    }


def test_there_are_vectors_of_both_clients_in_both_serialisations() -> None:
    recordings = [json.loads(path.read_text()) for path in FILES]
    assert {(recording["client"], recording["serialization"]) for recording in recordings} == {
        ("4.9.8", "JSON"),
        ("4.9.8", "ROCKETMQ"),
        ("5.5.0", "JSON"),
        ("5.5.0", "ROCKETMQ"),
    }
    assert len(VECTORS) > 100


@every_vector
def test_bytes_recorded_from_the_java_client_decode(vector: dict[str, Any]) -> None:
    assert meaning(command_of(vector)) == vector["decoded"]


@every_vector
def test_a_recorded_command_means_the_same_after_our_encoder(vector: dict[str, Any]) -> None:
    command = command_of(vector)
    assert meaning(decode_frame(encode_frame(command)[4:])) == vector["decoded"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recorded_conversation_cut_at_every_byte_is_the_same_frames(path: Path) -> None:
    frames = [frame_of(vector) for vector in json.loads(path.read_text())["vectors"]]
    buffer = FrameBuffer()
    seen = [payload for byte in b"".join(frames) for payload in buffer.feed(bytes([byte]))]
    assert seen == [frame[4:] for frame in frames]
    assert buffer.buffered == 0


@every_vector
def test_a_recorded_header_has_the_fields_of_its_type(vector: dict[str, Any]) -> None:
    command = command_of(vector)
    if not command.is_response:
        cls = None if command.code in WITHOUT_HEADER else REQUEST_HEADERS[command.code]
    else:
        cls = ANSWER_HEADERS.get(vector["request"]) if command.code == ResponseCode.SUCCESS else None
    if cls is None:
        return
    read = headers.encode_header(headers.decode_header(cls, command.ext))
    # What the type knows is read as it was written; fields that only some clients send stay unread, and
    # fields that were not sent have their defaults.
    assert {name: read[name] for name in read if name in command.ext} == {
        name: command.ext[name] for name in command.ext if name in read
    }
    required = {field.encode_name for field in msgspec.structs.fields(cls) if field.required}
    assert required <= command.ext.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_bodies_are_what_they_say(path: Path) -> None:
    vectors = json.loads(path.read_text())["vectors"]
    seen: set[tuple[int, bool]] = set()
    for vector in vectors:
        command = command_of(vector)
        if command.is_response and command.code != ResponseCode.SUCCESS:
            continue
        seen.add((vector["request"], command.is_response))
        match vector["request"], command.is_response:
            case ((11 | 361), True):
                records = decode_records(command.body)
                answer = headers.decode_header(headers.PullResponseHeader, command.ext)
                assert records[-1].queue_offset == answer.next_begin_offset - 1
            case RequestCode.VIEW_MESSAGE_BY_ID, True:
                (record,) = decode_records(command.body)
                assert record.body.startswith(b"view ")
                assert record.properties["TAGS"] == "tag"
            case RequestCode.HEART_BEAT, False:
                assert HeartbeatData.decode(command.body).client_id.startswith("127.0.0.1@")
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP, True:
                assert all("@" in name for name in fastjson.loads(command.body)["consumerIdList"])
            case RequestCode.GET_ROUTEINFO_BY_TOPIC, True:
                route = parse_route(command.body)
                assert [broker.name for broker in route.brokers.values()] == ["broker-a"]
                assert route.write_queues()
            case RequestCode.SEND_MESSAGE_V2, False:
                header = headers.decode_header(headers.SendMessageHeaderV2, command.ext)
                assert "UNIQ_KEY" in parse_properties(header.properties or "")
            case RequestCode.SEND_BATCH_MESSAGE, False:
                items = split_batch(command.body)
                assert [item.body for item in items] == [f"batch {i}".encode() for i in range(10)]
            case _:
                pass
    answered = {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_CONSUMER_LIST_BY_GROUP}
    answered |= {RequestCode.PULL_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
    asked = {RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    assert {(code, True) for code in answered} | {(code, False) for code in asked} <= seen


def test_the_newer_lite_consumer_pulls_with_a_code_of_its_own() -> None:
    asked = {
        recording["client"]
        for recording in map(json.loads, (path.read_text() for path in FILES))
        if any(vector["request"] == RequestCode.LITE_PULL_MESSAGE for vector in recording["vectors"])
    }
    assert asked == {"5.5.0"}
