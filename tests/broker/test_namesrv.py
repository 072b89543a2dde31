"""The name server: which registrations lead to which routes, and what its answers look like byte for byte."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.namesrv import NameServer
from broker.namesrv_settings import NamesrvSettings
from broker.registration import INFLATED_SIZE_MAX
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.format.remoting import JSON, ROCKETMQ, Command

A1, A2, A3 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


class World:
    """A name server, its clock, and the shortest way to ask it something."""

    def __init__(self, **settings: Any) -> None:
        self.clock = Clock()
        self.server = NameServer(self.clock, NamesrvSettings(**settings))

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", peer: Hashable = "client"
    ) -> Command:
        answer = self.server.handle(Command(code, dict(ext or {}), body, opaque=7), peer)
        assert answer is not None
        assert answer.opaque == 7
        assert answer.is_response
        return answer

    def register(
        self,
        address: str = A1,
        *,
        name: str = "broker-a",
        cluster: str = "c",
        broker_id: int = 0,
        topics: Mapping[str, Mapping[str, Any]] | None = None,
        counter: int = 1,
        epoch: int = 0,
        acting: bool | None = None,
        timeout_ms: int | None = None,
        peer: Hashable | None = None,
        **more: str,
    ) -> Command:
        ext = {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": address.replace("10911", "10912"),
            "brokerId": str(broker_id),
            **more,
        }
        if acting is not None:
            ext["enableActingMaster"] = str(acting).lower()
        if timeout_ms is not None:
            ext["heartbeatTimeoutMillis"] = str(timeout_ms)
        body = registration_json(TWO if topics is None else topics, counter=counter, epoch=epoch)
        return self.ask(RequestCode.REGISTER_BROKER, ext, body, peer or address)

    def route(self, topic: str = "T1", **ext: str) -> dict[str, Any] | None:
        answer = self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS
        route: dict[str, Any] = parse(answer)
        return route

    def addresses(self, topic: str = "T1", name: str = "broker-a") -> dict[str, str]:
        route = self.route(topic)
        assert route is not None
        return next(data["brokerAddrs"] for data in route["brokerDatas"] if data["brokerName"] == name)

    def perm(self, topic: str = "T1", name: str = "broker-a") -> int:
        route = self.route(topic)
        assert route is not None
        return next(int(data["perm"]) for data in route["queueDatas"] if data["brokerName"] == name)


def parse(answer: Command) -> Any:
    return json.loads(answer.body)


def topic(name: str, *, perm: int = 6, queues: int = 4, flags: int = 0) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": flags,
        "writeQueueNums": queues,
    }


TWO = {"T1": topic("T1"), "T2": topic("T2")}


def registration_json(topics: Mapping[str, Mapping[str, Any]], *, counter: int = 1, epoch: int = 0) -> bytes:
    version = {"counter": counter, "stateVersion": epoch, "timestamp": 1_700_000_000_000}
    wrapper = {
        "dataVersion": version,
        "mappingDataVersion": version,
        "topicConfigTable": topics,
        "topicQueueMappingDetailMap": {},
        "topicQueueMappingInfoMap": {},
    }
    text = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}, separators=(",", ":"))
    return text.encode()


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def compressed(topics: list[str], *, counter: int = 1, tail: bytes = b"") -> bytes:
    version = b'{"counter":%d,"stateVersion":0,"timestamp":1}' % counter
    lines = b"".join(sized(line.encode()) for line in topics)
    return zlib.compress(sized(version) + struct.pack(">i", len(topics)) + lines + sized(b"[]") + tail)


@pytest.fixture
def world() -> World:
    return World()


# --- routes --------------------------------------------------------------------------------------------


def test_a_registered_broker_is_the_route_of_its_topics_byte_for_byte(world: World) -> None:
    assert world.register().code == ResponseCode.SUCCESS
    world.register(A2, broker_id=1)
    answer = world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
    assert answer.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"c","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":4}]}'
    )


def test_route_data_holds_no_blank_that_would_break_the_go_client(world: World) -> None:
    world.register()
    for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
        assert not set(world.ask(code, {"topic": "T1"}).body) & set(b" \n\t")


def test_a_topic_nobody_serves_has_no_route(world: World) -> None:
    world.register()
    answer = world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T9"})
    assert (answer.code, answer.body) == (ResponseCode.TOPIC_NOT_EXIST, b"")
    assert "T9" in (answer.remark or "")


def test_a_topic_of_two_sets_has_both(world: World) -> None:
    world.register()
    world.register(A2, name="broker-b")
    route = world.route()
    assert route is not None
    assert [data["brokerName"] for data in route["brokerDatas"]] == ["broker-a", "broker-b"]
    assert [data["brokerName"] for data in route["queueDatas"]] == ["broker-a", "broker-b"]


def test_a_route_shows_only_brokers_of_the_zone_that_is_asked_for(world: World) -> None:
    world.register(__ZONE_NAME="east")
    world.register(A2, name="broker-b", __ZONE_NAME="west")
    route = world.route(__ZONE_MODE="true", __ZONE_NAME="EAST")
    assert route is not None
    assert [data["brokerName"] for data in route["brokerDatas"]] == ["broker-a"]
    assert [data["brokerName"] for data in route["queueDatas"]] == ["broker-a"]
    assert route["brokerDatas"][0]["zoneName"] == "east"
    both = world.route(__ZONE_MODE="false", __ZONE_NAME="east")
    assert both is not None
    assert len(both["brokerDatas"]) == 2


def test_a_set_without_a_master_is_shown_to_every_zone(world: World) -> None:
    world.register(A1, acting=False, __ZONE_NAME="east", peer="one")
    world.register(A2, broker_id=1, acting=False, __ZONE_NAME="east")
    route = world.route(__ZONE_MODE="true", __ZONE_NAME="west")
    assert route is not None
    assert route["brokerDatas"] == route["queueDatas"] == []
    world.server.closed("one")
    route = world.route(__ZONE_MODE="true", __ZONE_NAME="west")
    assert route is not None
    assert [data["brokerAddrs"] for data in route["brokerDatas"]] == [{"1": A2}]


def test_no_routes_are_given_while_brokers_still_find_their_way_back() -> None:
    world = World(need_wait_for_service=True)
    world.register()
    answer = world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
    world.clock.ms += 45_000
    assert world.route() is not None


def test_the_answer_is_in_the_serialisation_of_its_request(world: World) -> None:
    for kind in (JSON, ROCKETMQ):
        answer = world.server.handle(Command(RequestCode.GET_BROKER_CLUSTER_INFO, serialize_type=kind), "p")
        assert answer is not None
        assert answer.serialize_type == kind


# --- registration --------------------------------------------------------------------------------------


def test_a_slave_learns_where_its_master_is(world: World) -> None:
    assert world.register().ext == {}
    assert world.register(A2, broker_id=1).ext == {"masterAddr": A1, "haServerAddr": "10.0.0.1:10912"}


def test_a_slave_without_a_master_learns_nothing(world: World) -> None:
    answer = world.register(A2, broker_id=1)
    assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {})


def test_a_slaves_topics_are_not_believed_unless_it_knows_of_acting_masters(world: World) -> None:
    world.register(A2, broker_id=1)
    assert world.route() is None
    world.register(A2, broker_id=1, acting=False)
    assert world.perm() == 6


def test_a_slave_that_may_act_as_master_is_recorded_without_write_permission(world: World) -> None:
    world.register(A2, broker_id=1, acting=True)
    assert world.perm() == 4


def test_only_the_lowest_slave_sets_topics(world: World) -> None:
    world.register(A2, broker_id=1, acting=False)
    world.register(A3, broker_id=2, acting=False, topics={"X": topic("X"), "Y": topic("Y")})
    assert world.route("X") is None


def test_a_first_registration_with_one_topic_is_refused(world: World) -> None:
    answer = world.register(topics={"T1": topic("T1")})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "register broker failed")
    assert parse(world.ask(RequestCode.GET_BROKER_CLUSTER_INFO)) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }
    assert world.register(topics={}).code == ResponseCode.SUCCESS
    assert world.register(topics={"T1": topic("T1")}, counter=2).code == ResponseCode.SUCCESS


def test_topics_change_only_with_a_new_data_version(world: World) -> None:
    world.register()
    wider = {"T1": topic("T1", queues=8), "T2": topic("T2")}
    world.register(topics=wider)
    route = world.route()
    assert route is not None
    assert route["queueDatas"][0]["readQueueNums"] == 4
    world.register(topics=wider, counter=2)
    route = world.route()
    assert route is not None
    assert route["queueDatas"][0]["readQueueNums"] == 8


def test_a_topic_the_name_server_lacks_is_taken_without_a_new_version(world: World) -> None:
    world.register()
    world.register(topics={**TWO, "T3": topic("T3")})
    assert world.route("T3") is not None


@pytest.mark.parametrize("delete", [False, True])
def test_a_topic_left_out_is_forgotten_only_if_the_name_server_was_told_to(delete: bool) -> None:
    world = World(delete_topic_with_broker_registration=delete)
    world.register()
    world.register(topics={"T2": topic("T2")}, counter=2)
    assert (world.route("T1") is None) == delete
    assert world.route("T2") is not None


def test_a_broker_that_changes_its_id_gives_up_its_old_place(world: World) -> None:
    world.register(A1, broker_id=0)
    world.register(A2, broker_id=1)
    world.register(A1, broker_id=1, epoch=1)
    world.register(A2, broker_id=0, epoch=1)
    assert world.addresses() == {"0": A2, "1": A1}


def test_the_older_epoch_loses_a_dispute_over_an_id(world: World) -> None:
    world.register(A1, epoch=5)
    answer = world.register(A2, epoch=4)
    assert (answer.code, answer.ext, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    assert world.addresses() == {"0": A1}
    world.register(A2, epoch=5)
    assert world.addresses() == {"0": A2}


def test_a_broker_that_comes_back_under_a_new_address_takes_its_place(world: World) -> None:
    world.register(A1)
    world.register(A2)
    assert world.addresses() == {"0": A2}


def test_order_configuration_travels_to_registering_brokers_and_into_routes() -> None:
    world = World(order_message_enable=True)
    assert world.register().body == b""
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"}
    world.ask(RequestCode.PUT_KV_CONFIG, put)
    assert parse(world.register()) == {"table": {"T1": "broker-a:4"}}
    route = world.route()
    assert route is not None
    assert route["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in (world.route("T2") or {})


def test_filter_servers_are_shown_by_address(world: World) -> None:
    ext = identity(A1) | {"haServerAddr": "10.0.0.1:10912"}
    body = json.loads(registration_json(TWO))
    body["filterServerList"] = ["10.0.0.1:30000"]
    world.ask(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode())
    route = world.route()
    assert route is not None
    assert route["filterServerTable"] == {A1: ["10.0.0.1:30000"]}


# --- bodies --------------------------------------------------------------------------------------------


def identity(address: str, broker_id: int = 0) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerAddr": address,
        "clusterName": "c",
        "haServerAddr": "",
        "brokerId": str(broker_id),
    }


def register_body(world: World, body: bytes, **ext: str) -> Command:
    return world.ask(RequestCode.REGISTER_BROKER, identity(A1) | ext, body)


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


# --- leaving -------------------------------------------------------------------------------------------


def test_a_farewell_takes_the_routes_with_it(world: World) -> None:
    world.register()
    assert world.ask(RequestCode.UNREGISTER_BROKER, identity(A1)).code == ResponseCode.SUCCESS
    assert world.route() is None
    assert parse(world.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == {"topicList": []}
    assert parse(world.ask(RequestCode.GET_BROKER_CLUSTER_INFO))["clusterAddrTable"] == {}


def test_a_farewell_of_a_stranger_changes_nothing(world: World) -> None:
    world.register()
    assert world.ask(RequestCode.UNREGISTER_BROKER, identity(A3)).code == ResponseCode.SUCCESS
    assert world.addresses() == {"0": A1}


def test_a_closed_connection_takes_its_brokers_with_it(world: World) -> None:
    world.register(A1, peer="one")
    world.register(A2, broker_id=1, peer="two")
    world.server.closed("one")
    assert world.addresses() == {"1": A2}
    world.server.closed("a client")
    world.server.closed("two")
    assert world.route() is None


def test_a_broker_that_registered_again_outlives_its_old_connection(world: World) -> None:
    world.register(A1, peer="old")
    world.register(A1, peer="new")
    world.server.closed("old")
    assert world.addresses() == {"0": A1}


def test_a_silent_broker_is_forgotten_after_two_minutes(world: World) -> None:
    world.register()
    world.clock.ms += 120_000
    world.server.expire()
    assert world.route() is not None
    world.clock.ms += 1
    world.server.expire()
    assert world.route() is None


def test_a_broker_may_ask_to_be_forgotten_sooner(world: World) -> None:
    world.register(timeout_ms=10_000)
    world.clock.ms += 10_001
    world.server.expire()
    assert world.route() is None


@pytest.mark.parametrize(
    "refresh",
    [
        lambda world: world.register(),
        lambda world: world.ask(RequestCode.QUERY_DATA_VERSION, identity(A1)),
        lambda world: world.ask(RequestCode.BROKER_HEARTBEAT, identity(A1)),
    ],
    ids=["103", "322", "904"],
)
def test_every_sign_of_life_puts_the_end_off(world: World, refresh: Callable[[World], Command]) -> None:
    world.register()
    world.clock.ms += 100_000
    assert refresh(world).code == ResponseCode.SUCCESS
    world.clock.ms += 100_000
    world.server.expire()
    assert world.route() is not None


def test_a_masters_end_leaves_its_queues_readable(world: World) -> None:
    world.register(A1, acting=True, peer="one")
    world.register(A2, broker_id=1, acting=True)
    assert world.perm() == 6
    world.server.closed("one")
    assert world.perm() == 4
    assert world.addresses() == {"1": A2}


def test_without_acting_masters_the_permission_stays_as_it_was(world: World) -> None:
    world.register(A1, acting=False, peer="one")
    world.register(A2, broker_id=1, acting=False)
    world.server.closed("one")
    assert world.perm() == 6


def test_the_lowest_slave_is_shown_as_master_where_acting_masters_are_supported() -> None:
    world = World(support_acting_master=True)
    member = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    topics = {**TWO, member: topic(member, perm=1)}
    world.register(A1, acting=True, peer="one", topics=topics)
    world.register(A2, broker_id=1, acting=True, topics=topics)
    world.register(A3, broker_id=2, acting=True, topics=topics)
    assert world.addresses() == {"0": A1, "1": A2, "2": A3}
    world.server.closed("one")
    assert world.addresses() == {"0": A2, "2": A3}
    assert world.addresses(member) == {"1": A2, "2": A3}


# --- what brokers and tools ask ------------------------------------------------------------------------


def test_a_broker_can_ask_whether_its_topics_would_be_news(world: World) -> None:
    def query(counter: int) -> Command:
        version = {"counter": counter, "stateVersion": 0, "timestamp": 1_700_000_000_000}
        return world.ask(RequestCode.QUERY_DATA_VERSION, identity(A1), json.dumps(version).encode())

    unknown = query(1)
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    world.register()
    same = query(1)
    assert same.ext == {"changed": "false"}
    assert same.body == b'{"counter":1,"stateVersion":0,"timestamp":1700000000000}'
    assert query(2).ext == {"changed": "true"}


def test_the_cluster_is_shown_with_its_sets(world: World) -> None:
    world.register()
    world.register(A2, broker_id=1)
    world.register(A3, name="broker-b")
    answer = parse(world.ask(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer["clusterAddrTable"] == {"c": ["broker-a", "broker-b"]}
    assert answer["brokerAddrTable"]["broker-a"] == {
        "brokerAddrs": {"0": A1, "1": A2},
        "brokerName": "broker-a",
        "cluster": "c",
        "enableActingMaster": False,
    }


def test_the_members_of_a_set_are_listed_and_an_unknown_set_is_empty(world: World) -> None:
    world.register()
    ext = {"clusterName": "c", "brokerName": "broker-a"}
    answer = world.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext)
    assert parse(answer) == {
        "brokerMemberGroup": {"brokerAddrs": {"0": A1}, "brokerName": "broker-a", "cluster": "c"}
    }
    answer = world.ask(RequestCode.GET_BROKER_MEMBER_GROUP, ext | {"brokerName": "nobody"})
    assert parse(answer)["brokerMemberGroup"]["brokerAddrs"] == {}


def test_write_permission_is_wiped_until_the_broker_says_something_new(world: World) -> None:
    world.register(topics={"T1": topic("T1", perm=7), "T2": topic("T2")})
    wiped = world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.ext == {"wipeTopicCount": "2"}
    assert world.perm() == 5
    world.register(topics={"T1": topic("T1", perm=7), "T2": topic("T2")})
    assert world.perm() == 5
    world.register(topics={"T1": topic("T1", perm=7), "T2": topic("T2")}, counter=2)
    assert world.perm() == 7


def test_write_permission_is_added_back(world: World) -> None:
    world.register()
    world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    added = world.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.ext == {"addTopicCount": "2"}
    assert world.perm() == 6
    nobody = world.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "nobody"})
    assert nobody.ext == {"addTopicCount": "0"}


def test_topics_are_listed_whole_by_cluster_and_by_flag(world: World) -> None:
    flagged = {f"F{flags}": topic(f"F{flags}", flags=flags) for flags in range(4)}
    world.register(topics=flagged)
    world.register(A2, name="broker-b", cluster="d")

    def listed(code: int, **ext: str) -> list[str]:
        topics: list[str] = parse(world.ask(code, ext))["topicList"]
        return topics

    assert listed(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["F0", "F1", "F2", "F3", "T1", "T2"]
    assert listed(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="d") == ["T1", "T2"]
    assert listed(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="nowhere") == []
    assert listed(RequestCode.GET_UNIT_TOPIC_LIST) == ["F1", "F3"]
    assert listed(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["F2", "F3"]
    assert listed(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["F2"]


def test_system_topics_are_the_names_of_clusters_and_sets(world: World) -> None:
    assert parse(world.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {"topicList": []}
    world.register()
    assert parse(world.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)) == {
        "brokerAddr": A1,
        "topicList": ["broker-a", "c"],
    }


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "enable_all_topic_list"),
        (RequestCode.GET_TOPICS_BY_CLUSTER, "enable_topic_list"),
        (RequestCode.GET_UNIT_TOPIC_LIST, "enable_topic_list"),
    ],
)
def test_lists_can_be_switched_off(code: int, setting: str) -> None:
    answer = World(**{setting: False}).ask(code, {"cluster": "c"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(world: World) -> None:
    world.register()
    world.register(A2, name="broker-b", cluster="d")
    world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1", "clusterName": "d"})
    route = world.route()
    assert route is not None
    assert [data["brokerName"] for data in route["queueDatas"]] == ["broker-a"]
    world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T1"})
    assert world.route() is None


@pytest.mark.parametrize("other", ["broker-b", "nobody"])
def test_a_topic_is_placed_by_hand_on_all_the_brokers_named_or_on_none(world: World, other: str) -> None:
    world.register()
    world.register(A2, name="broker-b")
    queue = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
    queues = [queue, queue | {"brokerName": other}]
    body = json.dumps({"brokerDatas": [], "queueDatas": queues}).encode()
    answer = world.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "M"}, body)
    assert answer.code == ResponseCode.SUCCESS
    route = world.route("M")
    assert (route and route["queueDatas"]) == (queues if other == "broker-b" else None)


# --- KV configuration and settings ---------------------------------------------------------------------


def test_kv_pairs_are_put_read_listed_and_deleted(world: World) -> None:
    pair = {"namespace": "n", "key": "k"}
    assert world.ask(RequestCode.GET_KV_CONFIG, pair).code == ResponseCode.QUERY_NOT_FOUND
    assert world.ask(RequestCode.PUT_KV_CONFIG, pair | {"value": "v"}).code == ResponseCode.SUCCESS
    assert world.ask(RequestCode.GET_KV_CONFIG, pair).ext == {"value": "v"}
    assert parse(world.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})) == {"table": {"k": "v"}}
    for _ in range(2):
        assert world.ask(RequestCode.DELETE_KV_CONFIG, pair).code == ResponseCode.SUCCESS
    listed = world.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    assert listed.code == ResponseCode.QUERY_NOT_FOUND


def test_kv_pairs_are_bounded_and_need_all_their_fields(world: World) -> None:
    pair = {"namespace": "n", "key": "k"}
    assert "value" in (world.ask(RequestCode.PUT_KV_CONFIG, pair).remark or "")
    for _ in range(3):  # the same pair takes the same room
        assert world.ask(RequestCode.PUT_KV_CONFIG, pair | {"value": "v" * 3_000_000}).code == 0
    refused = world.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "m", "key": "k", "value": "v" * 3_000_000})
    assert refused.code == ResponseCode.SYSTEM_ERROR


def test_settings_are_shown_as_properties_and_changed_by_them(world: World) -> None:
    text = world.ask(RequestCode.GET_NAMESRV_CONFIG).body.decode()
    assert "enableTopicList=true\n" in text
    assert "waitSecondsForService=45\n" in text
    answer = world.ask(
        RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false\nwaitSecondsForService=5"
    )
    assert answer.code == ResponseCode.SUCCESS
    assert world.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).remark == "disable"
    assert b"waitSecondsForService=5\n" in world.ask(RequestCode.GET_NAMESRV_CONFIG).body


def test_a_changed_setting_counts_for_routes_at_once(world: World) -> None:
    world.register(A2, broker_id=1, acting=True)
    assert world.addresses() == {"1": A2}
    world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=true")
    assert world.addresses() == {"0": A2}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"rocketmqHome=/tmp", ResponseCode.NO_PERMISSION),
        (b"configStorePath=/tmp/x", ResponseCode.NO_PERMISSION),
        (b"enableTopicList=perhaps", ResponseCode.SYSTEM_ERROR),
        (b"waitSecondsForService=x", ResponseCode.SYSTEM_ERROR),
        (b"nonsense=1", ResponseCode.SYSTEM_ERROR),
        (b"a=\\u1", ResponseCode.SYSTEM_ERROR),
        (b"\xff", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_settings_change_all_together_or_not_at_all(world: World, body: bytes, code: int) -> None:
    before = world.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert (
        world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false\n" + body).code == code
    )
    assert world.ask(RequestCode.GET_NAMESRV_CONFIG).body == before


# --- manners -------------------------------------------------------------------------------------------


def test_an_unknown_code_is_answered_3_in_the_words_clients_know(world: World) -> None:
    answer = world.ask(RequestCode.SEND_MESSAGE_V2)
    assert (answer.code, answer.remark) == (3, " request type 310 not supported")


@pytest.mark.parametrize("code", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.REGISTER_BROKER, 999])
def test_a_oneway_request_is_never_answered_not_even_for_an_error(world: World, code: int) -> None:
    assert world.server.handle(Command(code, flag=FrameFlag.ONEWAY), "p") is None


def test_a_oneway_request_is_carried_out(world: World) -> None:
    world.register()
    world.server.handle(Command(RequestCode.UNREGISTER_BROKER, identity(A1), flag=FrameFlag.ONEWAY), "p")
    assert world.route() is None


def test_an_answer_that_fits_no_frame_is_refused_instead(world: World) -> None:
    for part in range(8):
        lines = [f"{part}{number:06d}{'t' * 240} 4 4 6 SINGLE_TAG" for number in range(9_000)]
        whose = identity(f"10.0.0.{part % 2}:10911") | {"brokerName": f"broker-{part % 2}"}
        body = compressed(lines, counter=part)
        assert world.ask(RequestCode.REGISTER_BROKER, whose, body).code == ResponseCode.SUCCESS
    answer = world.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert "does not fit into a frame" in (answer.remark or "")


@pytest.mark.parametrize("code", sorted(NameServer(lambda: 0).codes))
def test_no_code_stumbles_over_an_empty_request_or_a_foreign_body(world: World, code: int) -> None:
    everything = identity(A1) | {"topic": "T1", "cluster": "c", "namespace": "n", "key": "k", "value": "v"}
    world.register()
    for ext in ({}, everything):
        for body in (b"", b"\0\1\2", b"[1]", b"{}", b"null", b'{"queueDatas":3}'):
            answer = world.ask(code, ext, body)
            assert answer.code in (0, 1, 17, 22)
            assert "Error:" not in (answer.remark or ""), answer.remark
