"""What a registration changes: who is believed about topics, ids and epochs."""

from __future__ import annotations

import json

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.name_server_world import (
    A1,
    A2,
    A3,
    TWO,
    World,
    identity,
    parse,
    registration_json,
    topic,
)


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
