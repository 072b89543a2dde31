"""Topics, groups and committed offsets between Ropewalk and Apache RocketMQ 5.5.0, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command
from tests.compat.test_replication import original
from tests.ha.pairs import Pair, eventually
from tests.ports import free_ports

pytestmark = [pytest.mark.compat, pytest.mark.slow]

TOPIC, GROUP = "plans", "planners"
RETRY = f"%RETRY%{GROUP}"


def call(address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    with Connection(address, 3.0) as connection:
        return connection.call(Command(code, ext or {}, body), 5.0)


def table(address: str, code: int, name: str) -> dict[str, Any]:
    """One table of a broker; empty while it cannot be asked."""
    try:
        answer = call(address, code)
    except (RopewalkError, OSError):
        return {}
    value = fastjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else {}
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def plan(address: str, offset: int) -> None:
    """A topic, a group and what it has committed, at a master."""
    topic = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
    }
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    group = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": 7, "consumeEnable": True})
    assert call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": str(offset)}
    assert call(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0


def told(*addresses: str) -> str:
    """What each of them knows."""
    return "\n".join(
        f"{address}: {table(address, RequestCode.GET_ALL_TOPIC_CONFIG, 'topicConfigTable').get(TOPIC)} "
        f"{table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 'subscriptionGroupTable').get(GROUP)} "
        f"{table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, 'offsetTable')}"
        for address in addresses
    )


def has_plan(address: str, offset: int) -> bool:
    """Whether a slave knows all of it."""
    topic = table(address, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable").get(TOPIC) or {}
    groups = table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")
    offsets = table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable").get(f"{TOPIC}@{GROUP}") or {}
    return (
        topic.get("writeQueueNums") == 3
        and (groups.get(GROUP) or {}).get("retryMaxTimes") == 7
        and {str(queue): value for queue, value in offsets.items()} == {"1": offset}
    )


def test_a_ropewalk_slave_has_what_its_rocketmq_master_has_within_seconds(
    tmp_path: Path, java: str, tools_classpath: str
) -> None:
    with Pair(tmp_path) as pair:
        master = original(pair, brokerRole="ASYNC_MASTER", brokerId=0)
        slave = pair.start("slave", brokerRole="SLAVE", brokerId=1)
        master.start()
        try:
            eventually(lambda: has_topics(slave.address, master.broker), pair.errors)
            plan(master.broker, 41)
            eventually(lambda: has_plan(slave.address, 41), lambda: told(master.broker, slave.address), 15.0)
            commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": "30"}
            call(master.broker, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            eventually(lambda: has_plan(slave.address, 30), lambda: told(master.broker, slave.address), 15.0)
        finally:
            master.stop(orderly=False)


def has_topics(slave: str, master: str) -> bool:
    ours = table(slave, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
    theirs = table(master, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")
    return bool(theirs) and theirs.keys() <= ours.keys()


def test_a_rocketmq_slave_gets_what_its_ropewalk_master_has(
    tmp_path: Path, java: str, tools_classpath: str, long_run: bool
) -> None:
    if not long_run:
        pytest.skip("RocketMQ's slave asks for the first time a minute after its start: make test-long")
    with Pair(tmp_path) as pair:
        (port,) = free_ports(1)
        ports: dict[str, str | int] = {"listenPort": port, "haListenPort": port + 1}
        master = pair.start("master", brokerRole="ASYNC_MASTER", **ports)
        slave = original(pair, brokerRole="SLAVE", brokerId=1)
        slave.start()
        try:
            plan(master.address, 41)
            eventually(lambda: has_plan(slave.broker, 41), lambda: told(master.address, slave.broker), 100.0)
        finally:
            slave.stop(orderly=False)
