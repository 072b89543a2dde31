"""What strangers can have a name server remember, and that it forgets all of it when they are gone."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from broker.namesrv import routes
from broker.namesrv import server as namesrv
from broker.namesrv.routes import Registration, RouteTable, TableFull, TopicConfig
from broker.namesrv.server import NameServer
from broker.state.data_version import DataVersion
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format.sliced_json import finish
from tests.broker.name_server_world import A1, A2, A3, World, identity, topic
from tests.support.links import From


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> World:
    """A name server that knows 3 brokers at most, 4 topics of each and 7 of all."""
    monkeypatch.setattr(routes, "BROKERS_MAX", 3)
    monkeypatch.setattr(routes, "BROKER_TOPICS_MAX", 4)
    monkeypatch.setattr(routes, "TOPICS_MAX", 7)
    return World()


def named(*names: str) -> dict[str, dict[str, object]]:
    return {name: topic(name) for name in names}


def empty(world: World) -> bool:
    table = world.server.table
    while table._leaving:
        table.purge()
    return not (
        table.broker_table() or table.cluster_table() or table.topics() or table._topics_of or table._entries
    )


def test_the_bounds_leave_room_for_a_broker_full_of_automatic_topics() -> None:
    assert routes.BROKERS_MAX == 1_000
    assert routes.BROKER_TOPICS_MAX == 50_000
    assert routes.TOPICS_MAX == 500_000


def test_more_brokers_than_the_bound_are_refused_and_those_on_record_go_on(small: World) -> None:
    for number in range(3):
        assert small.register(f"10.0.0.{number}:1", name=f"b{number}", peer="one").code == 0
    answer = small.register("10.0.0.9:1", name="b9", peer="one")
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "REGISTER_BROKER: 3 brokers are on record, and no more may be",
    )
    assert sorted(small.server.table.broker_table()) == ["b0", "b1", "b2"]
    assert small.register("10.0.0.1:1", name="b1", counter=2).code == 0
    small.server.closed("10.0.0.1:1")
    assert small.register("10.0.0.9:1", name="b9").code == 0


def test_a_stranger_that_invents_brokers_leaves_a_quarter_of_the_places_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "BROKERS_MAX", 40)
    world, stranger = World(), From("192.0.2.66")
    codes = [
        world.register(f"10.0.{number}.1:1", name=f"x{number}", peer=stranger).code for number in range(60)
    ]
    assert codes == [0] * 30 + [ResponseCode.SYSTEM_ERROR] * 30
    for number in range(7):
        assert world.register(f"10.1.0.{number}:1", name=f"b{number}", peer=From("192.0.2.1")).code == 0
    assert world.register("10.0.0.1:1", name="x0", peer=stranger, counter=2).code == 0, "it is on record"


def test_a_stranger_that_invents_topics_of_brokers_leaves_a_quarter_of_them_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "TOPICS_MAX", 400)
    world, stranger = World(), From("192.0.2.66")
    codes = [
        world.register(
            f"10.0.{number}.1:1",
            name=f"x{number}",
            topics=named(*(f"t{number}-{n}" for n in range(50))),
            peer=stranger,
        ).code
        for number in range(10)
    ]
    assert codes == [0] * 6 + [ResponseCode.SYSTEM_ERROR] * 4
    honest = named(*(f"T{n}" for n in range(60)))
    assert world.register(topics=honest, peer=From("192.0.2.1")).code == 0


def test_members_of_one_set_count_as_brokers(small: World) -> None:
    codes = [small.register(f"10.0.0.{number}:1", broker_id=number).code for number in range(4)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_ERROR]
    assert len(small.addresses()) == 3


def test_a_refused_broker_does_not_keep_its_name_in_any_table(small: World) -> None:
    for number in range(3):
        small.register(f"10.0.0.{number}:1", name=f"b{number}", peer="one")
    small.register("10.0.0.9:1", name="b9", cluster="c9", topics=named("new", "newer"))
    assert small.server.table.cluster_table() == {"c": ["b0", "b1", "b2"]}
    assert small.route("new") is None
    small.server.closed("one")
    assert empty(small)


def test_more_topics_of_one_broker_than_the_bound_are_refused_by_name(small: World) -> None:
    answer = small.register(topics=named(*"abcdef"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "REGISTER_BROKER: no room for 2 of the topics of broker broker-a (e, f): a broker may have 4 topics. Its other "
        "topics are registered",
    )
    assert small.server.table.topics() == list("abcd")
    assert small.register(topics=named(*"abcd")).code == 0
    assert small.register(topics=named(*"abcd"), counter=2).code == 0


def test_topics_that_are_no_longer_named_count_as_they_are_remembered(small: World) -> None:
    assert small.register(topics=named("a", "b")).code == 0
    assert small.register(topics=named("c", "d"), counter=2).code == 0
    answer = small.register(topics=named("e", "f"), counter=3)
    assert (answer.code, small.server.table.topics()) == (ResponseCode.SYSTEM_ERROR, list("abcd"))
    small.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "a"})
    small.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "b"})
    assert small.register(topics=named("e", "f"), counter=3).code == 0


@pytest.mark.parametrize("count", [4, 5, 60_000])
def test_a_broker_whose_topics_find_no_room_stays_on_record(small: World, count: int) -> None:
    """One stranger that fills the table would else have all others expire, and their topics with them."""
    assert small.register(topics=named(*"ab")).code == 0
    assert small.register(A2, name="broker-b", topics=named(*"abcd")).code == 0
    for number in range(4):
        small.clock.ms += 100_000
        more = named(*(f"t{n}" for n in range(count)))
        assert small.register(topics=named(*"ab") | more, counter=2 + number).code == 1
        assert small.register(A2, name="broker-b", topics=named(*"abcd")).code == 0
        small.server.expire()
    assert small.addresses("a") == {"0": A1}


def test_topics_of_brokers_that_have_left_leave_their_places_at_once(small: World) -> None:
    assert small.register(A2, name="broker-b", topics=named(*"abcd")).code == 0
    assert small.register(A3, name="broker-c", topics=named(*"efg")).code == 0
    small.server.closed(A2)
    small.server.closed(A3)
    assert small.register(topics=named(*"hijk")).code == 0


def test_topics_that_go_when_left_out_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "BROKER_TOPICS_MAX", 4)
    world = World(delete_topic_with_broker_registration=True)
    for counter, names in enumerate(["abcd", "efgh", "aceg"]):
        assert world.register(topics=named(*names), counter=counter).code == 0
    assert world.server.table.topics() == list("aceg")


def test_more_topics_of_all_brokers_than_the_bound_are_refused(small: World) -> None:
    assert small.register(topics=named(*"abcd")).code == 0
    answer = small.register(A2, name="broker-b", topics=named(*"abcd"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "REGISTER_BROKER: no room for 1 of the topics of broker broker-b (d): all brokers together may have 7 topics. "
        "Its other topics are registered",
    )
    assert small.register(A2, name="broker-b", topics=named(*"abc")).code == 0
    assert small.register(topics=named(*"abcd"), counter=2).code == 0
    small.server.closed(A1)
    assert small.register(A2, name="broker-b", topics=named(*"abcd"), counter=2).code == 0


def test_a_slave_whose_topics_do_not_count_is_not_refused_for_them(small: World) -> None:
    small.register(topics=named(*"abcd"))
    assert small.register(A2, broker_id=1, topics=named(*"efghij")).code == 0
    assert small.server.table.topics() == list("abcd")


@pytest.mark.parametrize("names", ["ab", "abcd"], ids=["all", "one"])
def test_topics_placed_by_hand_are_bounded_too(small: World, names: str) -> None:
    small.register(topics=named(*names))
    small.register(A2, name="broker-b", topics=named(*"cd"))
    refused = 0
    for number in range(8):
        queues = [
            {"brokerName": name, "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
            for name in ("broker-a", "broker-b")
        ]
        answer = small.ask(
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            {"topic": f"M{number}"},
            json.dumps({"queueDatas": queues}).encode(),
        )
        refused += answer.code == ResponseCode.SYSTEM_ERROR
    assert refused == (7 if names == "ab" else 8)
    assert small.server.table._entries <= 7
    long = small.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t" * 256}, b"{}")
    assert long.code == ResponseCode.SYSTEM_ERROR


def place(world: World, topic: str, peer: object, *brokers: str) -> int:
    """Place a topic on brokers by hand; return the code of the answer."""
    queues = [
        {"brokerName": name, "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
        for name in brokers
    ]
    body = json.dumps({"queueDatas": queues}).encode()
    return world.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic}, body, peer).code


def test_a_stranger_that_places_topics_by_hand_leaves_a_quarter_of_them_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "TOPICS_MAX", 400)
    world, stranger, honest = World(), From("192.0.2.66"), From("192.0.2.1")
    for number in range(40):
        address = f"10.0.{number}.1:1"
        world.register(address, name=f"b{number}", topics=named(f"T{number}", "T"), peer=honest)
    codes = [place(world, f"x{n}", stranger, *(f"b{b}" for b in range(20))) for n in range(20)]
    assert codes.count(0) == 12 and world.server.table._entries == 80 + 240
    assert world.register("10.0.1.1:1", name="b1", topics=named("new"), peer=honest, counter=2).code == 0
    world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "x0"})
    assert place(world, "x99", stranger, *(f"b{b}" for b in range(2, 20))) == 0, "it gave as many back"


def test_topics_placed_by_hand_leave_half_of_its_places_to_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "BROKER_TOPICS_MAX", 20)
    world, stranger, honest = World(), From("192.0.2.66"), From("192.0.2.1")
    world.register(topics=named("a", "b"), peer=honest)
    codes = [place(world, f"x{n}", stranger, "broker-a") for n in range(20)]
    assert codes == [0] * 8 + [1] * 12
    assert place(world, "own", honest, "broker-a") == 0
    more = named("a", "b", *(f"t{n}" for n in range(9)))
    assert world.register(topics=more, peer=honest, counter=2).code == 0


@pytest.mark.parametrize("field", ["haServerAddr", "__ZONE_NAME"])
def test_what_a_broker_says_about_itself_is_bounded(small: World, field: str) -> None:
    for size, code in [(255, 0), (256, 1)]:
        ext = identity(A1) | {field: "x" * size}
        assert small.ask(RequestCode.REGISTER_BROKER, ext).code == code


@pytest.mark.parametrize(
    ("servers", "code"),
    [
        (["f"] * namesrv.FILTER_SERVERS_MAX, 0),
        (["f"] * (namesrv.FILTER_SERVERS_MAX + 1), 1),
        (["f" * 255], 0),
        (["f" * 255] * 16, 0),
        (["f" * 255] * 17, 1),
        (["f" * 256], 1),
    ],
)
def test_filter_servers_are_bounded(small: World, servers: list[str], code: int) -> None:
    body = json.dumps({"filterServerList": servers, "topicConfigSerializeWrapper": {}}).encode()
    assert small.ask(RequestCode.REGISTER_BROKER, identity(A1), body).code == code


# -- nothing stays behind ------------------------------------------------------------------------------


def test_an_address_that_takes_another_name_leaves_the_old_set(small: World) -> None:
    for number in range(20):
        assert small.register(A1, name=f"b{number}", topics=named("a", "b")).code == 0
    assert list(small.server.table.broker_table()) == ["b19"]
    small.server.closed(A1)
    assert empty(small)


def test_an_address_that_takes_a_name_in_vain_has_left_its_old_set_all_the_same(small: World) -> None:
    small.register(A1, epoch=5)
    small.register(A2, name="old", epoch=4)
    assert small.register(A2, epoch=4).code == 0
    assert list(small.server.table.broker_table()) == ["broker-a"]
    assert small.addresses() == {"0": A1}


def test_a_goodbye_under_a_wrong_name_is_one(small: World) -> None:
    for number in range(20):
        small.register(A1, name=f"b{number}")
        small.ask(RequestCode.UNREGISTER_BROKER, identity(A1) | {"brokerName": "nobody"})
        assert empty(small)


def test_a_set_of_many_clusters_is_forgotten_in_all(small: World) -> None:
    codes = [small.register(A1, cluster=f"c{number}", peer="one").code for number in range(5)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR]
    small.server.closed("one")
    assert empty(small)


def test_clusters_that_a_living_set_once_named_take_no_places(small: World) -> None:
    small.register(A1)
    codes = []
    for number in range(6):
        codes.append(small.register(A2, broker_id=1, cluster=f"c{number}").code)
        small.server.closed(A2)
    assert codes == [0] * 6
    assert small.register(A1, counter=2).code == 0
    small.server.closed(A1)
    assert empty(small)
    assert small.register(A3).code == 0


# -- real sizes ------------------------------------------------------------------------------------------


def fill(table: RouteTable, brokers: Iterable[int], topics: tuple[TopicConfig, ...]) -> None:
    for number in brokers:
        registration = Registration(
            "c", f"b{number}", f"10.0.{number >> 8}.{number & 255}:1", 0, version=DataVersion(), topics=topics
        )
        table.register(registration, "peer", 0)


def test_a_full_table_refuses_and_empties_when_its_only_connection_closes() -> None:
    table = RouteTable()
    many = tuple(TopicConfig(f"t{number}") for number in range(routes.BROKER_TOPICS_MAX))
    fill(table, range(routes.TOPICS_MAX // routes.BROKER_TOPICS_MAX), many)
    with pytest.raises(TableFull, match="all brokers together may have 500000 topics"):
        fill(table, [999], many[:2])
    fill(table, range(10, routes.BROKERS_MAX - 1), ())
    with pytest.raises(TableFull, match="1000 brokers are on record"):
        fill(table, [1_000], ())
    assert len(table.closed("peer")) == routes.BROKERS_MAX
    assert not table.is_served("t0") and table.route("t0") is None
    assert (table.topics(), table.broker_table(), table.cluster_table()) == ([], {}, {})


# -- work ------------------------------------------------------------------------------------------------


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics that the table drops or changes."""
    found: list[str] = []
    drop, change = RouteTable._drop_queue, routes.without_write

    def dropping(self: RouteTable, topic: str, broker_name: str) -> None:
        found.append(topic)
        drop(self, topic, broker_name)

    def changing(perm: int) -> int:
        found.append("")
        return change(perm)

    monkeypatch.setattr(RouteTable, "_drop_queue", dropping)
    monkeypatch.setattr(routes, "without_write", changing)
    return found


def test_the_end_of_a_connection_of_many_brokers_drops_their_topics_in_slices(dropped: list[str]) -> None:
    server, walked = NameServer(lambda: 0), list[str]()
    topics = tuple(TopicConfig(f"t{number}") for number in range(1_200))
    leave = server.table._leave_cluster

    def noted(name: str, cluster: str) -> None:
        walked.append(name)
        leave(name, cluster)

    server.table._leave_cluster = noted  # type: ignore[method-assign,assignment]
    for number in range(300):
        server.table.register(
            Registration(f"c{number}", f"b{number}", f"10.0.0.{number}:1", 0, topics=topics), "peer", 0
        )
    with capture_logs() as logs:
        server.closed("peer")
    assert not dropped and len(walked) == 300
    assert len(logs) <= 20 and logs[0]["count"] == 300
    assert not server.table.topics() and server.table.route("t7") is None
    while server.table._entries:
        dropped.clear()
        server.table.purge()
        assert 0 < len(dropped) <= routes.TOPICS_PER_STEP


def test_the_topics_of_a_set_without_its_master_lose_writing_at_once_and_in_slices(
    dropped: list[str],
) -> None:
    table = RouteTable(acting_masters=True)
    topics = tuple(TopicConfig(f"t{number}") for number in range(1_200))
    for broker_id in (0, 1):
        table.register(
            Registration(
                "c", "b", f"10.0.0.{broker_id}:1", broker_id, enable_acting_master=True, topics=topics
            ),
            f"peer {broker_id}",
            0,
        )
    dropped.clear()
    table.closed("peer 0")
    assert not dropped
    for _ in range(5):
        route = table.route("t1100")
        assert route is not None and route.queue_datas[0].perm == 4
        assert route.broker_datas[0].broker_addrs == {"0": "10.0.0.1:1"}
        dropped.clear()
        table.purge()
        assert len(dropped) <= routes.TOPICS_PER_STEP
    assert not table._wiping
    assert finish(table.set_permissions("b", routes.with_write)) == 1_200
    route = table.route("t7")
    assert route is not None and route.queue_datas[0].perm == 6
