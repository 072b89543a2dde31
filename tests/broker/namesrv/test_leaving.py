"""How brokers leave a name server: farewell, a closed connection, silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.broker.name_server_world import (
    A1,
    A2,
    A3,
    TWO,
    World,
    identity,
    parse,
    topic,
)


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
