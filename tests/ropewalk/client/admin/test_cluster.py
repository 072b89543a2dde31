"""Several brokers, some of them away, by conversations held with a script."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ropewalk.client.admin.brokers import AdminCore
from ropewalk.client.admin.results import (
    GroupConfig,
    read_direct_result,
    read_group_config,
    read_members,
    read_progress,
    read_statistics,
    topic_kind,
    version_text,
    write_group_config,
)
from ropewalk.client.core.connection import Unreachable
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import Rejected, RemoteProtocolError, RopewalkError, TryLater
from ropewalk.format.remoting import Command
from tests.ropewalk.client.scripted import Script, route_body

CLUSTERS = {
    "brokerAddrTable": {
        "a": {"brokerName": "a", "cluster": "East", "brokerAddrs": {"0": "a:1", "1": "a:2"}},
        "b": {"brokerName": "b", "cluster": "West", "brokerAddrs": {"0": "b:1"}},
        "c": {"brokerName": "c", "cluster": "West", "brokerAddrs": {"1": "c:2"}},
    },
    "clusterAddrTable": {"East": ["a"], "West": ["b", "c"]},
}


class Cluster:
    """Three broker sets: a with a slave, b alone, c without its master. `away` does not answer."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.refusing: dict[str, int] = {}
        self.script = Script(self.answer)
        self.core = AdminCore("ns:1;ns:2", clock=self.script.clock)

    def answer(self, address: str, command: Command) -> Command | RopewalkError:
        if address in self.away:
            return Unreachable(f"cannot connect to {address}")
        if address in self.refusing:
            return command.reply(self.refusing[address], "no")
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.reply(ResponseCode.SUCCESS, body=json.dumps(CLUSTERS).encode())
        if command.code == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
            return self.page(command)
        return command.reply(ResponseCode.SUCCESS, body=b'{"table":{"putTps":"1.5 2 3"}}')

    def page(self, command: Command) -> Command:
        """RocketMQ's pages: three groups, two to a page."""
        first = int(command.ext["groupSeq"])
        names = ["g1", "g2", "g3"][first : first + 2]
        table = {name: {"groupName": name} for name in names}
        body = json.dumps({"subscriptionGroupTable": table}).encode()
        return command.reply(ResponseCode.SUCCESS, ext={"totalGroupNum": "3"}, body=body)

    def asked(self, code: int) -> list[str]:
        return [address for address, command in self.script.asked if command.code == code]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield Cluster()


def test_a_selection_is_a_cluster_a_broker_an_address_or_all(cluster: Cluster) -> None:
    def addresses(**which: str) -> list[str]:
        return [member.address for member in cluster.script.hold(cluster.core.selected(**which))]

    assert addresses() == ["a:1", "a:2", "b:1", "c:2"]
    assert addresses(cluster="West") == ["b:1", "c:2"]
    assert addresses(broker="a") == ["a:1", "a:2"]
    assert addresses(broker="a:2") == ["a:2"]
    assert addresses(broker="elsewhere:9") == ["elsewhere:9"]
    masters = [member.address for member in cluster.script.hold(cluster.core.masters())]
    assert masters == ["a:1", "b:1"]
    with pytest.raises(Rejected, match="broker c has no master at the moment"):
        cluster.script.hold(cluster.core.masters(broker="c"))


def test_a_broker_that_is_away_is_left_out_and_named(cluster: Cluster) -> None:
    cluster.away = {"a:1", "c:2"}
    found = cluster.script.hold(cluster.core.broker_status())
    assert [status.member.address for status in found] == ["a:2", "b:1"]
    assert found[0].number("putTps") == 1.5
    assert set(cluster.core.skipped) == {"a:1", "c:2"}
    cluster.core.forget_skipped()
    assert cluster.core.skipped == {}


def test_all_brokers_away_is_an_error(cluster: Cluster) -> None:
    cluster.away = {"a:1", "a:2", "b:1", "c:2"}
    with pytest.raises(Unreachable, match="cannot connect to a:1"):
        cluster.script.hold(cluster.core.broker_status())
    with pytest.raises(Unreachable):
        cluster.script.hold(cluster.core.groups())


def test_a_change_stops_at_the_first_broker_that_refuses_and_tells_where(cluster: Cluster) -> None:
    cluster.refusing = {"b:1": ResponseCode.NO_PERMISSION}
    with pytest.raises(
        Rejected, match=r"b \(b:1\): NO_PERMISSION.*; done at a \(a:1\), a \(a:2\)"
    ) as refused:
        cluster.script.hold(cluster.core.set_broker_config({"maxMessageSize": "1"}))
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert cluster.asked(RequestCode.UPDATE_BROKER_CONFIG) == ["a:1", "a:2", "b:1"]


def test_a_broker_whose_key_index_is_behind_is_asked_again_until_it_has_caught_up(cluster: Cluster) -> None:
    answers = [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY, ResponseCode.QUERY_NOT_FOUND]
    cluster.script.routes["orders"] = route_body("b")
    cluster.script.handler = lambda address, command: command.reply(answers.pop(0), "the index is behind")
    assert cluster.script.hold(cluster.core.messages_by_key("orders", "k")) == []
    assert cluster.asked(RequestCode.QUERY_MESSAGE) == ["b:1"] * 3 and len(cluster.script.pauses) == 2
    cluster.script.handler = lambda address, command: command.reply(ResponseCode.SYSTEM_BUSY, "is behind")
    with pytest.raises(TryLater, match="is behind"):
        cluster.script.hold(cluster.core.messages_by_key("orders", "k"))


def test_every_name_server_is_told(cluster: Cluster) -> None:
    with pytest.raises(RopewalkError):  # an answer without a count
        cluster.script.hold(cluster.core.wipe_write_permission("a"))
    assert cluster.asked(RequestCode.WIPE_WRITE_PERM_OF_BROKER) == ["ns:1", "ns:2"]


def test_groups_are_taken_in_pages_until_there_are_no_more(cluster: Cluster) -> None:
    found = cluster.script.hold(cluster.core.groups(broker="b"))
    assert sorted(found) == ["g1", "g2", "g3"]
    assert cluster.asked(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) == ["b:1", "b:1"]


def test_an_answer_that_is_no_object_is_the_peers_fault(cluster: Cluster) -> None:
    cluster.script.handler = lambda address, command: command.reply(ResponseCode.SUCCESS, body=b"[1]")
    with pytest.raises(RemoteProtocolError, match="no JSON object"):
        cluster.script.hold(cluster.core.members())


def test_what_a_peer_writes_wrongly_is_a_protocol_error() -> None:
    with pytest.raises(RemoteProtocolError):
        read_members({"brokerAddrTable": {"a": {"brokerAddrs": {"zero": "a:1"}}}})
    with pytest.raises(RemoteProtocolError):
        read_progress("g", [{"offsetTable": {"not a queue": {}}}])
    with pytest.raises(RemoteProtocolError):
        read_group_config({"retryMaxTimes": 3})


def test_what_a_broker_keeps_about_a_group_besides_goes_back_unchanged() -> None:
    document = {"groupName": "g", "retryMaxTimes": 3, "groupSysFlag": 4, "attributes": {"x": "y"}}
    config = read_group_config(document)
    assert config.retry_max_times == 3 and config.extra["groupSysFlag"] == 4
    written = write_group_config(config)
    assert written["groupSysFlag"] == 4 and written["groupName"] == "g"
    assert "attributes" not in written, "attributes travel as edits, and there is none"
    assert read_group_config(write_group_config(GroupConfig("g"))) == GroupConfig("g")


def test_the_kinds_of_topics() -> None:
    system = {"DefaultCluster", "broker-a"}
    kinds = {
        "orders": "normal",
        "%RETRY%g": "retry",
        "%DLQ%g": "dead letters",
        "TBW102": "system",
        "broker-a": "system",
        "rmq_sys_wheel_timer": "system",
        "DefaultCluster_REPLY_TOPIC": "system",
        "Other_REPLY_TOPIC": "normal",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": "system",
    }
    assert {name: topic_kind(name, system) for name in kinds} == kinds


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (317, "V4_5_2"),
        (393, "V4_9_0"),
        (401, "V4_9_4"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (453, "V5_2_0"),
        (479, "V5_3_3"),
        (232, "V4_1_0_SNAPSHOT"),
        (37, "#37"),
    ],
)
def test_versions_have_the_names_that_rocketmq_gives_them(version: int, text: str) -> None:
    assert version_text(version) == text


def test_a_day_that_is_not_added_up_yet_is_at_least_its_last_minute() -> None:
    young = read_statistics({"statsMinute": {"sum": 3, "tps": 0.05, "avgpt": 1.0}, "statsDay": {"sum": 0}})
    assert young.lately == 3 and young.minute.per_second == 0.05
    assert read_statistics({"statsMinute": {"sum": 3}, "statsHour": {"sum": 7}}).lately == 7
    assert read_statistics({"statsMinute": {"sum": 3}, "statsDay": {"sum": 9}}).lately == 9


def test_a_go_client_tells_the_result_of_a_direct_consumption_by_its_number() -> None:
    assert read_direct_result({"consumeResult": 0, "spentTimeMills": 7}).result == "CR_SUCCESS"
    assert read_direct_result({"consumeResult": "CR_LATER", "remark": "busy"}).remark == "busy"
