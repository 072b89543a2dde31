"""RocketMQ's own mqadmin, command by command: what operators type, and what they get to see.

The commands run in the order of this file against one server, in one JVM; the later ones look at what the earlier
ones made. With ROPEWALK_COMPAT_TARGET=rocketmq the same expectations are held against the original.
"""

from __future__ import annotations

import re

import pytest

from tests.compat.conftest import Server
from tests.compat.mqadmin import Mqadmin
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC, SECOND, GROUP, PRODUCERS = "adminTopic", "adminSecond", "adminGroup", "adminProducers"
CLUSTER, BROKER = "DefaultCluster", "broker-a"
MESSAGES = 8
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def topic(mqadmin: Mqadmin) -> str:
    """A topic of four queues that mqadmin made."""
    made = mqadmin.run("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", "4", "-w", "4")
    assert "create topic to" in made and "success" in made, made
    return TOPIC


@pytest.fixture(scope="module")
def message_ids(mqadmin: Mqadmin, topic: str) -> list[str]:
    """The offset ids of messages with tag "tag" and key "keyN", from a producer that stays connected."""
    ids = mqadmin.run("@send", PRODUCERS, topic, str(MESSAGES)).split()
    assert len(ids) == MESSAGES
    return ids


@pytest.fixture(scope="module")
def consumer(mqadmin: Mqadmin, topic: str, message_ids: list[str]) -> str:
    """A group with one member, which has consumed everything."""
    made = mqadmin.run("updateSubGroup", "-c", CLUSTER, "-g", GROUP, "-r", "3")
    assert "create subscription group to" in made and f"groupName={GROUP}" in made, made
    mqadmin.run("@consume", GROUP, topic)
    until(lambda: sum(int(row[4]) for row in progress(mqadmin)) == MESSAGES)
    return GROUP


def progress(mqadmin: Mqadmin) -> list[list[str]]:
    """Topic, broker, queue, broker offset, consumer offset ... of each queue of the topic."""
    rows = mqadmin.table("consumerProgress", "-g", GROUP)
    return [row for row in rows if row[0] == TOPIC]


def facts(text: str, separator: str) -> dict[str, str]:
    """The `name: value` or `name = value` lines of an output."""
    pairs = [line.split(separator, 1) for line in text.splitlines() if separator in line]
    return {name.strip(): value.strip() for name, value in pairs}


# -- topics --------------------------------------------------------------------------------------------


def test_update_topic_makes_a_topic_and_its_route(mqadmin: Mqadmin, server: Server, topic: str) -> None:
    route = mqadmin.run("topicRoute", "-t", topic)
    assert server.broker in route
    assert '"writeQueueNums":4' in re.sub(r"\s", "", route)
    assert '"perm":6' in re.sub(r"\s", "", route)


def test_update_topic_refuses_system_topics(mqadmin: Mqadmin, server: Server) -> None:
    refused = mqadmin.run("updateTopic", "-b", server.broker, "-t", "TBW102")
    assert "CODE: 29" in refused and "conflict with system topic" in refused


def test_topic_list_and_topic_cluster_list(mqadmin: Mqadmin, topic: str) -> None:
    assert {topic, "TBW102", BROKER, CLUSTER} <= set(mqadmin.run("topicList").split())
    rows = mqadmin.table("topicList", "-c")
    assert rows[0] == ["#Cluster", "Name", "#Topic", "#Consumer", "Group"]
    assert [CLUSTER, topic] in [row[:2] for row in rows]
    assert mqadmin.run("topicClusterList", "-t", topic).split() == [CLUSTER]


def test_topic_status(mqadmin: Mqadmin, topic: str, message_ids: list[str]) -> None:
    rows = mqadmin.table("topicStatus", "-t", topic)
    queues = [row for row in rows if row[0] == BROKER]
    assert [row[1:3] for row in queues] == [["0", "0"], ["1", "0"], ["2", "0"], ["3", "0"]]
    assert sum(int(row[3]) for row in queues) == MESSAGES
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", row[4]) for row in queues)
    assert rows[-1][:3] == ["Topic", "Put", "TPS:"]


def test_update_topic_perm(mqadmin: Mqadmin, server: Server) -> None:
    mqadmin.run("updateTopic", "-b", server.broker, "-t", SECOND, "-r", "2", "-w", "2")
    changed = mqadmin.run("updateTopicPerm", "-b", server.broker, "-t", SECOND, "-p", "4")
    assert f"update topic perm from 6 to 4 in {server.broker} success." in changed
    assert "perm=R--" in changed
    assert '"perm":4' in re.sub(r"\s", "", mqadmin.run("topicRoute", "-t", SECOND))


# -- cluster and broker --------------------------------------------------------------------------------


def test_cluster_list(mqadmin: Mqadmin, server: Server, message_ids: list[str]) -> None:
    heading, row = mqadmin.table("clusterList")
    assert heading[-2:] == ["#SPACE", "#ACTIVATED"]
    assert row[:4] == [CLUSTER, BROKER, "0", server.broker]
    assert row[-1] == "true"
    assert 0 < float(row[-2]) < 1
    _heading, row = mqadmin.table("clusterList", "-m")
    assert row[:2] == [CLUSTER, BROKER]
    assert int(row[4]) >= MESSAGES, row


def test_broker_status(mqadmin: Mqadmin, server: Server, message_ids: list[str]) -> None:
    found = facts(mqadmin.run("brokerStatus", "-b", server.broker), ":")
    assert found["brokerActive"] == "true"
    assert int(found["msgPutTotalTodayNow"]) >= MESSAGES
    assert re.fullmatch(r"\[ 0 days, \d+ hours, \d+ minutes, \d+ seconds \]", found["runtime"])
    assert re.fullmatch(r"Total : [\d.]+ .iB, Free : [\d.]+ .iB\.", found["commitLogDirCapacity"])
    assert found["bootTimestamp"].isdigit()


def test_get_and_update_broker_config(mqadmin: Mqadmin, server: Server) -> None:
    def config() -> dict[str, str]:
        return facts(mqadmin.run("getBrokerConfig", "-b", server.broker), "=")

    assert config()["brokerName"] == BROKER
    size = "4194304"
    changed = mqadmin.run("updateBrokerConfig", "-b", server.broker, "-k", "maxMessageSize", "-v", "4000000")
    assert f"update broker config success, {server.broker}" in changed
    assert config()["maxMessageSize"] == "4000000"
    mqadmin.run("updateBrokerConfig", "-b", server.broker, "-k", "maxMessageSize", "-v", size)
    assert config()["maxMessageSize"] == size
    refused = mqadmin.run("updateBrokerConfig", "-b", server.broker, "-k", "brokerConfigPath", "-v", "x")
    assert "CODE: 16" in refused


def test_maintenance_commands(mqadmin: Mqadmin, server: Server) -> None:
    assert "success" in mqadmin.run("cleanExpiredCQ", "-b", server.broker)
    assert "success" in mqadmin.run("cleanUnusedTopic", "-b", server.broker)
    assert "success" in mqadmin.run("deleteExpiredCommitLog", "-b", server.broker)


def test_ha_status_of_a_master_without_slaves(mqadmin: Mqadmin, server: Server) -> None:
    rows = mqadmin.table("haStatus", "-b", server.broker)
    assert [row[0] for row in rows[:4]] == [
        "#MasterAddr",
        "#MasterCommitLogMaxOffset",
        "#SlaveNum",
        "#InSyncSlaveNum",
    ]
    assert rows[0][1] == server.broker and int(rows[1][1]) > 0
    assert (rows[2][1], rows[3][1]) == ("0", "0")
    assert [row[0] for row in rows[4:]] == ["#SlaveAddr"], "a heading, and no slave below it"


def test_a_group_is_told_to_pull(mqadmin: Mqadmin, server: Server, topic: str) -> None:
    words = ("setConsumeMode", "-b", server.broker, "-t", topic, "-g", "adminModes", "-m", "PULL")
    assert "set consume mode to" in mqadmin.run(*words) and "success" in mqadmin.run(*words)


# -- messages ------------------------------------------------------------------------------------------


def test_query_message_by_id(mqadmin: Mqadmin, server: Server, topic: str, message_ids: list[str]) -> None:
    shown = facts(mqadmin.run("queryMsgById", "-i", message_ids[0], "-t", topic), ":")
    assert shown["OffsetID"] == message_ids[0]
    assert shown["Topic"] == topic
    assert (shown["Tags"], shown["Keys"]) == ("[tag]", "[key0]")
    assert shown["Store Host"] == server.broker


def test_query_message_by_offset(mqadmin: Mqadmin, topic: str, message_ids: list[str]) -> None:
    output = mqadmin.run("queryMsgByOffset", "-t", topic, "-b", BROKER, "-i", "0", "-o", "0")
    shown = facts(output, ":")
    assert shown["OffsetID"] in message_ids
    assert (shown["Queue ID"], shown["Queue Offset"]) == ("0", "0")


def test_print_messages(mqadmin: Mqadmin, topic: str, message_ids: list[str]) -> None:
    printed = mqadmin.run("printMsg", "-t", topic, "-d", "true")
    assert printed.count("MSGID: ") == MESSAGES
    assert all(f"body {n}" in printed for n in range(MESSAGES))


def test_send_and_consume_message(mqadmin: Mqadmin, server: Server) -> None:
    made = mqadmin.run("updateTopic", "-b", server.broker, "-t", "adminSent", "-r", "2", "-w", "2")
    assert "success" in made
    words = ("sendMessage", "-t", "adminSent", "-p", "hello there", "-b", BROKER, "-i", "1", "-c", "tagged")
    rows = mqadmin.table(*words)
    assert rows[1][:3] == [BROKER, "1", "SEND_OK"]
    words = ("consumeMessage", "-t", "adminSent", "-b", BROKER, "-i", "1", "-o", "0", "-c", "1")
    consumed = mqadmin.run(*words, "-g", "adminReader")
    assert "Consume ok" in consumed and "hello there" in consumed


# -- groups and connections ----------------------------------------------------------------------------


def test_consumer_progress(mqadmin: Mqadmin, consumer: str) -> None:
    rows = mqadmin.table("consumerProgress", "-g", consumer)
    assert rows[0][:5] == ["#Topic", "#Broker", "Name", "#QID", "#Broker"]
    assert [row[2] for row in progress(mqadmin)] == ["0", "1", "2", "3"]
    assert ["Consume", "Diff", "Total:", "0"] in rows
    (row,) = [row for row in mqadmin.table("consumerProgress") if row[0] == consumer]
    assert row[1] == "1" and row[3:5] == ["PUSH", "CLUSTERING"]


def test_consumer_connection(mqadmin: Mqadmin, topic: str, consumer: str) -> None:
    output = mqadmin.run("consumerConnection", "-g", consumer)
    assert re.search(rf"@{consumer}\s+127\.0\.0\.1:\d+\s+JAVA\s+V5_5_0", output)
    assert re.search(rf"^{topic}\s+\*", output, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in output
    assert "MessageModel: CLUSTERING" in output
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in output
    assert "CODE: 17" in mqadmin.run("consumerConnection", "-g", "neverSeen")


def test_consumer_status_is_asked_of_the_client(mqadmin: Mqadmin, consumer: str) -> None:
    output = mqadmin.run("consumerStatus", "-g", consumer)
    assert re.search(rf"^1\s+\S+@{consumer}\s+V5_5_0\s+\d+/\S+@{consumer}", output, re.MULTILINE)
    assert "Same subscription in the same group of consumer" in output
    assert "Rebalance OK" in output


def test_a_message_is_consumed_directly(
    mqadmin: Mqadmin, topic: str, consumer: str, message_ids: list[str]
) -> None:
    client = re.findall(rf"(\S+@{consumer})\s", mqadmin.run("consumerConnection", "-g", consumer))[0]
    words = ("queryMsgById", "-i", message_ids[1], "-t", topic, "-g", consumer, "-d", client)
    assert "consumeResult=CR_SUCCESS" in mqadmin.run(*words)
    assert "not online" in mqadmin.run(*words[:-1], "nobody")


def test_producer_connection(mqadmin: Mqadmin, server: Server, topic: str, message_ids: list[str]) -> None:
    output = mqadmin.run("producerConnection", "-g", PRODUCERS, "-t", topic)
    assert re.search(rf"^0001\s+\S+@{PRODUCERS}\s+127\.0\.0\.1:\d+\s+JAVA\s+V5_5_0", output, re.MULTILINE)
    assert f"producer group ({PRODUCERS})" in mqadmin.run("producer", "-b", server.broker)


def test_statistics_of_topics_and_groups(mqadmin: Mqadmin, topic: str, consumer: str) -> None:
    rows = mqadmin.table("statsAll", "-t", topic)
    assert rows[0][0] == "#Topic"
    (row,) = [row for row in rows if row[:2] == [topic, consumer]]
    assert row[2] == "0", "nothing is accumulated"
    assert float(row[3]) >= 0 and float(row[4]) >= 0


def test_group_configuration_and_queue_entries(
    mqadmin: Mqadmin, server: Server, topic: str, consumer: str
) -> None:
    config = facts(mqadmin.run("getConsumerConfig", "-g", consumer), "=")
    assert (config["groupName"], config["retryMaxTimes"]) == (consumer, "3")
    entries = mqadmin.run("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "2", "-b", server.broker)
    assert "max: 2, min: 0" in entries and "tagsCode=114586" in entries
    stats = mqadmin.table("brokerConsumeStats", "-b", server.broker)
    assert [topic, consumer, BROKER] in [row[:3] for row in stats]


# -- sending groups elsewhere, and the end of everything -----------------------------------------------


def test_offsets_of_a_group_are_reset_skipped_and_cloned(
    mqadmin: Mqadmin, server: Server, topic: str, consumer: str
) -> None:
    mqadmin.run("@stop")
    rows = mqadmin.table("resetOffsetByTime", "-g", consumer, "-t", topic, "-s", "0")
    assert sorted(row[:3] for row in rows[1:]) == [[BROKER, str(n), "0"] for n in range(4)]
    assert sum(int(row[4]) for row in progress(mqadmin)) == 0
    rows = mqadmin.table("skipAccumulatedMessage", "-g", consumer, "-t", topic)
    assert sorted(row[:3] for row in rows[1:]) == [[BROKER, str(n), "2"] for n in range(4)]
    assert sum(int(row[4]) for row in progress(mqadmin)) == MESSAGES
    words = ("cloneGroupOffset", "-s", consumer, "-d", "adminClone", "-t", topic)
    assert "CODE: 26" in mqadmin.run(*words)
    mqadmin.run("updateSubGroup", "-c", CLUSTER, "-g", "adminClone")
    assert "clone group offset success" in mqadmin.run(*words)
    cloned = mqadmin.table("brokerConsumeStats", "-b", server.broker)
    assert sum(int(row[5]) for row in cloned if row[:2] == [topic, "adminClone"]) == MESSAGES


def test_write_permission_is_wiped_and_given_back(mqadmin: Mqadmin, server: Server, topic: str) -> None:
    wiped = mqadmin.run("wipeWritePerm", "-b", BROKER)
    assert re.search(
        rf"wipe write perm of broker\[{BROKER}\] in name server\[{server.namesrv}\] OK, \d+", wiped
    )
    assert '"perm":4' in re.sub(r"\s", "", mqadmin.run("topicRoute", "-t", topic))
    added = mqadmin.run("addWritePerm", "-b", BROKER)
    assert re.search(
        rf"add write perm of broker\[{BROKER}\] in name server\[{server.namesrv}\] OK, \d+", added
    )
    assert '"perm":6' in re.sub(r"\s", "", mqadmin.run("topicRoute", "-t", topic))


def test_name_server_configuration(mqadmin: Mqadmin, server: Server) -> None:
    output = mqadmin.run("getNamesrvConfig")
    assert f"============{server.namesrv}============" in output
    assert facts(output, "=  ")["enableTopicList"] == "true"


def test_groups_and_topics_are_deleted(mqadmin: Mqadmin, server: Server, topic: str, consumer: str) -> None:
    deleted = mqadmin.run("deleteSubGroup", "-c", CLUSTER, "-g", consumer, "-r", "true")
    assert f"delete subscription group [{consumer}] from broker [{server.broker}]" in deleted
    assert progress(mqadmin) == []
    deleted = mqadmin.run("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success." in deleted
    assert f"delete topic [{topic}] from NameServer success." in deleted
    assert topic not in mqadmin.run("topicList").split()
    assert "CODE: 17" in mqadmin.run("topicStatus", "-t", topic)
