import pytest

from ropewalk.client.core.routes import Queue, parse_route
from ropewalk.errors import RemoteProtocolError
from ropewalk.format import fastjson
from tests.ropewalk.client.fake_cluster import route_body

QUOTED = b"""{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},
"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},
"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":2}]}"""


def test_both_spellings_of_broker_ids_are_read() -> None:
    unquoted = QUOTED.replace(b'"0":"10', b'0:"10').replace(b'"1":"10', b'1:"10')
    for body in (QUOTED, unquoted):
        broker = parse_route(body).brokers["broker-a"]
        assert broker.addresses == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
        assert (broker.master, broker.cluster) == ("10.0.0.1:10911", "DefaultCluster")


def test_producers_and_consumers_see_their_own_number_of_queues() -> None:
    route = parse_route(QUOTED)
    assert route.write_queues() == (Queue("broker-a", 0), Queue("broker-a", 1))
    assert [queue.queue_id for queue in route.read_queues()] == [0, 1, 2, 3]


def test_without_a_master_a_topic_can_be_read_and_not_written() -> None:
    route = parse_route(route_body("b", "h:1", 2, broker_id=1))
    assert route.write_queues() == ()
    assert len(route.read_queues()) == 2
    assert route.brokers["b"].address(0) == "h:1"


@pytest.mark.parametrize(("perm", "write", "read"), [(6, 2, 2), (2, 2, 0), (4, 0, 2), (0, 0, 0), (7, 2, 2)])
def test_permission_bits_decide_who_sees_the_queues(perm: int, write: int, read: int) -> None:
    route = parse_route(route_body("b", "h:1", 2, perm=perm))
    assert (len(route.write_queues()), len(route.read_queues())) == (write, read)


def test_readers_prefer_the_suggested_member_then_the_next_then_any() -> None:
    broker = parse_route(QUOTED).brokers["broker-a"]
    assert [broker.address(wanted) for wanted in (0, 1, 7)] == [
        "10.0.0.1:10911",
        "10.0.0.2:10911",
        "10.0.0.1:10911",
    ]


def test_an_ordered_topic_has_the_queues_its_configuration_names() -> None:
    document = fastjson.loads(QUOTED)
    document["orderTopicConf"] = "broker-a:1;broker-z:2"
    assert parse_route(fastjson.dumps(document)).write_queues() == (
        Queue("broker-a", 0),
        Queue("broker-z", 0),
        Queue("broker-z", 1),
    )


def test_a_topic_made_from_a_template_starts_with_at_most_four_queues() -> None:
    template = parse_route(route_body("b", "h:1", 8, perm=7)).as_template()
    assert len(template.write_queues()) == 4
    assert len(parse_route(route_body("b", "h:1", 3, perm=7)).as_template().write_queues()) == 3


@pytest.mark.parametrize("body", [b"{}", b'{"brokerDatas":null,"queueDatas":null}'])
def test_missing_lists_mean_nothing_is_there(body: bytes) -> None:
    route = parse_route(body)
    assert (route.write_queues(), route.read_queues()) == ((), ())


def test_a_queue_of_an_unlisted_broker_is_harmless() -> None:
    document = fastjson.loads(QUOTED)
    document["brokerDatas"] = []
    assert parse_route(fastjson.dumps(document)).read_queues() == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"not json",
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":[{"brokerName":"b","readQueueNums":"x"}]}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":"nowhere"}}]}',
        b'{"orderTopicConf":"broker-a"}',
    ],
)
def test_what_is_no_route_is_the_peers_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="route data"):
        parse_route(body)


@pytest.mark.parametrize(
    "route",
    [
        b'{"queueDatas":[{"brokerName":"a","readQueueNums":2000000000,"perm":6}]}',
        b'{"queueDatas":[{"brokerName":"a","writeQueueNums":200000},{"brokerName":"b","readQueueNums":200000}]}',
        b'{"orderTopicConf":"a:4;b:2000000000"}',
    ],
)
def test_a_route_of_more_queues_than_a_client_can_hold_is_none(route: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="queues, and a client takes at most"):
        parse_route(route)


def test_a_negative_number_of_queues_is_none_at_all() -> None:
    route = parse_route(
        b'{"brokerDatas":[{"brokerName":"a","cluster":"c","brokerAddrs":{"0":"h:1"}}],'
        b'"queueDatas":[{"brokerName":"a","readQueueNums":-3,"writeQueueNums":-1,"perm":6}]}'
    )
    assert route.read_queues() == route.write_queues() == ()
