"""Which routes a name server gives, byte for byte, and to whom."""

from __future__ import annotations

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import JSON, ROCKETMQ, Command
from tests.broker.name_server_world import (
    A1,
    A2,
    World,
)


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


def test_a_cluster_goes_with_its_last_broker_also_where_the_set_lives_on_in_another(world: World) -> None:
    """Else whoever registers and leaves under a living broker's name takes up places for good."""
    world.register()
    for number in range(5):
        assert world.register(A2, broker_id=1, cluster=f"c{number}").code == ResponseCode.SUCCESS
        world.ask(
            RequestCode.UNREGISTER_BROKER,
            {"brokerName": "broker-a", "brokerAddr": A2, "clusterName": f"c{number}", "brokerId": "1"},
        )
    body = world.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body
    assert b'"c":["broker-a"]' in body and b'"c0"' not in body and b'"c4"' not in body


def test_a_name_or_address_with_control_characters_is_refused(world: World) -> None:
    assert world.register(name="broker\x9b2J").code != ResponseCode.SUCCESS
    assert world.register(cluster="c\u202e").code != ResponseCode.SUCCESS
    assert world.register("10.0.0.1\x9b:10911").code != ResponseCode.SUCCESS
