"""The bodies that brokers register with: every dialect is read, and what is broken is refused by name."""

from __future__ import annotations

import base64
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.namesrv.registration import INFLATED_SIZE_MAX
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.name_server_world import (
    A1,
    TWO,
    World,
    compressed,
    identity,
    parse,
    register_body,
    registration_json,
    sized,
)


@pytest.mark.parametrize("told", [{"compressed": "true"}, {}], ids=["told", "untold"])
@pytest.mark.parametrize("attributes", [" {}", "", ' {"+message.type":"NORMAL"}'])
def test_a_compressed_body_is_read_whether_or_not_the_header_says_so(
    world: World, told: dict[str, str], attributes: str
) -> None:
    body = compressed([f"T1 4 8 6 SINGLE_TAG{attributes}", f"T2 1 1 6 SINGLE_TAG{attributes}"])
    assert register_body(world, body, **told).code == ResponseCode.SUCCESS
    route = world.route()
    assert route is not None
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
    ]


def test_a_body_that_the_original_compressed_is_read(world: World) -> None:
    recorded = (
        "eNpjYGCwqFZKzi/NK0ktUrIy1FEqLkksSQ1LLSrOzM9TsjLXUSrJzE0FCuYWAKXNLU2NLCwtTcyMLIxr"
        "GRgYmIFYN0TBRMFCwUwh2NPP3cc1PsTRXaFaSRuoqTgxPVWvpLIgVclKyc8/yNfRRwmkyUQ1yDUkKFI1"
        "nUR9RiFO4YYGRiTqYoqOBZIMAPXoPbA="
    )
    assert register_body(world, base64.b64decode(recorded)).code == ResponseCode.SUCCESS
    assert parse(world.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == {
        "topicList": ["%RETRY%g", "T", "TBW102"]
    }
    route = world.route("T")
    assert route is not None
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
    ]
    version = world.ask(RequestCode.QUERY_DATA_VERSION, identity(A1)).body
    assert version == b'{"counter":1,"stateVersion":7,"timestamp":1795289946283}'


def test_a_compressed_body_may_carry_queue_mappings_behind(world: World) -> None:
    body = compressed(["T1 4 4 6 SINGLE_TAG {}"] * 2, tail=struct.pack(">i", 1) + sized(b"{}"))
    assert register_body(world, body, compressed="true").code == ResponseCode.SUCCESS


def test_an_old_brokers_bare_wrapper_is_read(world: World) -> None:
    wrapper = json.loads(registration_json(TWO))["topicConfigSerializeWrapper"]
    assert register_body(world, json.dumps(wrapper).encode()).code == ResponseCode.SUCCESS
    assert world.route() is not None


def test_an_empty_body_registers_a_broker_without_topics(world: World) -> None:
    assert register_body(world, b"").code == ResponseCode.SUCCESS
    assert list(parse(world.ask(RequestCode.GET_BROKER_CLUSTER_INFO))["brokerAddrTable"]) == ["broker-a"]


def test_fastjsons_unquoted_keys_in_the_body_are_read(world: World) -> None:
    body = registration_json(TWO).replace(
        b'"topicQueueMappingInfoMap": {}', b'"topicQueueMappingInfoMap":{"T1":{"currIdMap":{0:0,1:1}}}'
    )
    assert register_body(world, body).code == ResponseCode.SUCCESS


def test_numbers_written_as_text_and_nulls_are_read_as_java_reads_them(world: World) -> None:
    body = (
        b'{"filterServerList":null,"topicConfigSerializeWrapper":{"dataVersion":{"counter":"3","timestamp":null},'
        b'"topicConfigTable":{"T1":{"perm":"4","readQueueNums":null,"writeQueueNums":"2"},"T2":{}}}}'
    )
    assert register_body(world, body).code == ResponseCode.SUCCESS
    route = world.route()
    assert route is not None
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 4, "readQueueNums": 16, "topicSysFlag": 0, "writeQueueNums": 2}
    ]
    version = world.ask(RequestCode.QUERY_DATA_VERSION, identity(A1)).body
    assert version == b'{"counter":3,"stateVersion":0,"timestamp":0}'


def test_a_body_that_was_damaged_on_its_way_is_refused(world: World) -> None:
    body = registration_json(TWO)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    assert register_body(world, body, bodyCrc32=str(crc)).code == ResponseCode.SUCCESS
    answer = register_body(world, body, bodyCrc32=str(crc ^ 1))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert register_body(world, body, bodyCrc32="0").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"topicConfigTable":[1]}', "not a JSON object"),
        (b'{"topicConfigTable":{"T":3}}', "not a JSON object"),
        (b'{"topicConfigTable":{"T":{"perm":-1}}}', "perm is -1"),
        (b'{"topicConfigTable":{"T":{"readQueueNums":99999999999}}}', "readQueueNums is"),
        (b'{"topicConfigTable":{"' + b"t" * 256 + b'":{}}}', "256 characters"),
        (b'{"topicConfigTable":{},"filterServerList":"x"}', "filterServerList"),
        (b"\x78\x9cgarbage", "not a zlib stream"),
        (zlib.compress(b"x" * 100)[:-4], "cut short"),
        (zlib.compress(b""), "cut short"),
        (zlib.compress(sized(b"{}") + struct.pack(">i", 1 << 30)), "1073741824 topics"),
        (zlib.compress(sized(b"{}") + struct.pack(">i", -1)), "-1 topics"),
        (zlib.compress(struct.pack(">i", 1 << 30)), "a section of 1073741824 bytes"),
        (zlib.compress(struct.pack(">i", -5)), "a section of -5 bytes"),
        (compressed(["T1 4 4"]), "a topic is written as"),
        (compressed(["T1 4 x 6 SINGLE_TAG"]), "a topic is written as"),
        (zlib.compress(b"\0" * (INFLATED_SIZE_MAX + 1)), "inflates to more than"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_the_reason(world: World, body: bytes, says: str) -> None:
    answer = register_body(world, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert says in (answer.remark or "")
    assert world.route("T") is None


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x78\x9c", b"{", b'{"topicConfigTable":']))
def test_no_body_makes_the_name_server_stumble(tail: bytes, head: bytes) -> None:
    world = World()
    for body in (head + tail, zlib.compress(tail)):
        answer = register_body(world, body)
        # An exception of our own would be answered with its class, and a stranger must not cause one.
        assert answer.code == ResponseCode.SUCCESS or (answer.remark or "").startswith("REGISTER_BROKER: ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"brokerName": ""}, "brokerName"),
        ({"brokerName": "a b"}, "brokerName"),
        ({"clusterName": "c\n"}, "clusterName"),
        ({"clusterName": "c" * 300}, "clusterName"),
        ({"brokerAddr": "10.0.0.1"}, "brokerAddr"),
        ({"brokerAddr": "10.0.0.1:1,2:3"}, "brokerAddr"),
        ({"brokerAddr": 'x"}:1'}, "brokerAddr"),
        ({"brokerAddr": "a:b:1"}, "brokerAddr"),
        ({"brokerId": "-1"}, "brokerId"),
        ({"brokerId": "master"}, "brokerId"),
        ({"brokerId": ""}, "brokerId"),
        ({"heartbeatTimeoutMillis": "soon"}, "heartbeatTimeoutMillis"),
    ],
)
def test_an_identity_that_would_spoil_routes_is_refused_by_its_field(
    world: World, change: dict[str, str], says: str
) -> None:
    answer = register_body(world, registration_json(TWO), **change)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert says in (answer.remark or "")


@pytest.mark.parametrize("field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId"])
def test_a_missing_field_is_named(world: World, field: str) -> None:
    ext = identity(A1)
    del ext[field]
    answer = world.ask(RequestCode.REGISTER_BROKER, ext, registration_json(TWO))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in (answer.remark or "")
