"""What tools and brokers ask a name server besides routes, and its manners."""

from __future__ import annotations

import json

import pytest

from broker.namesrv.server import NameServer
from ropewalk.codes import FrameFlag, RequestCode, ResponseCode
from ropewalk.format.remoting import Command
from tests.broker.name_server_world import (
    A1,
    A2,
    A3,
    World,
    compressed,
    identity,
    parse,
    topic,
)


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
    for _ in range(3):  # the same pairs take the same room
        for number in range(15):
            more = {"namespace": "n", "key": f"{number}", "value": "v" * 65_536}
            assert world.ask(RequestCode.PUT_KV_CONFIG, more).code == 0
    refused = world.ask(RequestCode.PUT_KV_CONFIG, pair | {"value": "v" * 65_536})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "deleteKvConfig" in (refused.remark or "")


def test_a_kv_pair_counts_as_the_bytes_that_it_takes(world: World) -> None:
    """A character of a stranger's text can take four bytes."""
    pair = {"namespace": "n", "key": "k"}
    refused = world.ask(RequestCode.PUT_KV_CONFIG, pair | {"value": "\U0001f600" * 16_385})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "65540 bytes; at most 65536" in (refused.remark or "")
    assert world.ask(RequestCode.GET_KV_CONFIG, pair).code == ResponseCode.QUERY_NOT_FOUND
    stored = [
        world.ask(
            RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": f"{n}", "value": "\U0001f600" * 16_384}
        )
        for n in range(16)
    ]
    assert [answer.code for answer in stored] == [ResponseCode.SUCCESS] * 15 + [ResponseCode.SYSTEM_ERROR]


def test_ten_thousand_small_kv_pairs_are_kept_and_no_more(world: World) -> None:
    def put(key: object) -> int:
        return world.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": f"{key}", "value": ""}).code

    assert {put(number) for number in range(10_000)} == {0}
    assert put("one more") == ResponseCode.SYSTEM_ERROR
    assert put(7) == 0
    assert world.ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "n", "key": "7"}).code == 0
    assert put("one more") == 0


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
