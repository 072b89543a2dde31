"""Topics, groups and committed offsets between Ropewalk and Apache RocketMQ 5.5.0, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.codes import RequestCode
from tests.compat.originals import original
from tests.ha.pairs import Pair
from tests.support.long_run import ROOM_S
from tests.support.metadata import GROUP, TOPIC, call, has_plan, plan, table, told
from tests.support.ports import free_ports
from tests.support.waiting import until

pytestmark = [pytest.mark.compat, pytest.mark.slow]

RETRY = f"%RETRY%{GROUP}"


def test_a_ropewalk_slave_has_what_its_rocketmq_master_has_within_seconds(
    tmp_path: Path, java: str, tools_classpath: str
) -> None:
    with Pair(tmp_path) as pair:
        master = original(pair, brokerRole="ASYNC_MASTER", brokerId=0)
        slave = pair.start("slave", brokerRole="SLAVE", brokerId=1)
        master.start()
        try:
            until(lambda: has_topics(slave.address, master.broker), pair.errors)
            plan(master.broker, 41)
            until(
                lambda: has_plan(slave.address, 41),
                lambda: told(master.broker, slave.address),
                patience_s=15.0 + ROOM_S,
            )
            commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": "30"}
            call(master.broker, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            until(
                lambda: has_plan(slave.address, 30),
                lambda: told(master.broker, slave.address),
                patience_s=15.0 + ROOM_S,
            )
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
            until(
                lambda: has_plan(slave.broker, 41),
                lambda: told(master.address, slave.broker),
                patience_s=100.0,
            )
        finally:
            slave.stop(orderly=False)
