"""Requests about files and followers: expired log (329), replication (907), and timers that are not built (60, 61)."""

import json
import os
from collections.abc import Callable

from broker.state.ha_status import HaStatus, MasterLink, SlaveLink
from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, InProcess, pull_ext
from tests.support.clocks import START_MS

StartBroker = Callable[..., InProcess]
HOUR_MS = 3_600_000


def test_expired_files_go_at_once_when_somebody_asks(start_broker: StartBroker) -> None:
    running = start_broker(
        mappedFileSizeCommitLog=65_536, fileReservedTime=2, deleteWhen="04", diskMaxUsedSpaceRatio=95,
        diskSpaceCleanForciblyRatio=85, cleanFileForciblyEnable=False,
    )  # fmt: skip
    client = running.connect()
    for _ in range(14):
        client.send("T", bytes(10_000))
    running.settle()
    log = running.broker.store.log
    assert len(log.segments) >= 3
    oldest = log.segments[0].file.path
    os.utime(oldest, (0, (START_MS - 3 * HOUR_MS) / 1000))
    for _ in range(3):
        running.tick(20_000)
        running.settle()
    assert log.min_offset == 0, "it is not the hour"
    assert client.call(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0

    def gone() -> bool:
        running.tick(100)
        return not oldest.exists()

    running.until(gone)
    assert log.min_offset == 65_536
    assert len(log.segments) >= 2, "what is younger stays"


def ha(client: Client) -> dict[str, object]:
    answer = client.call(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == 0
    body: dict[str, object] = json.loads(answer.body)
    return body


def test_a_master_without_slaves_says_so(client: Client) -> None:
    client.send("T", b"x")
    found = ha(client)
    assert found["master"] is True and found["inSyncSlaveNums"] == 0 and found["haConnectionInfo"] == []
    assert found["masterCommitLogMaxOffset"] == client.owner.broker.store.log.end_offset


def test_slaves_are_shown_with_what_they_lack(running: InProcess, client: Client) -> None:
    client.send("T", b"x")
    end = running.broker.store.log.end_offset
    links = [SlaveLink("10.0.0.2:4000", end, True, 10, end), SlaveLink("10.0.0.3:4001", end - 50, False)]
    running.broker.context.ha_status = HaStatus(slaves=links)
    found = ha(client)
    assert found["inSyncSlaveNums"] == 1
    assert found["haConnectionInfo"] == [
        {
            "addr": "10.0.0.2:4000", "diff": 0, "inSync": True, "slaveAckOffset": end,
            "transferFromWhere": end, "transferredByteInSecond": 10,
        },
        {
            "addr": "10.0.0.3:4001", "diff": 50, "inSync": False, "slaveAckOffset": end - 50,
            "transferFromWhere": 0, "transferredByteInSecond": 0,
        },
    ]  # fmt: skip


def test_a_slave_shows_its_link_to_the_master(running: InProcess, client: Client) -> None:
    running.broker.context.ha_status = HaStatus(
        is_master=False, master=MasterLink("10.0.0.1:10912", 5, 1, 2, 3)
    )
    found = ha(client)
    assert found["master"] is False
    assert found["haClientRuntimeInfo"] == {
        "lastReadTimestamp": 1, "lastWriteTimestamp": 2, "masterAddr": "10.0.0.1:10912",
        "masterFlushOffset": 3, "maxOffset": running.broker.store.log.end_offset,
        "transferredByteInSecond": 5,
    }  # fmt: skip


def test_lite_pull_consumers_are_turned_away_where_they_are_not_wanted(start_broker: StartBroker) -> None:
    client = start_broker(litePullMessageEnable=False).connect()
    client.send("T", b"x")
    client.owner.settle()
    refused = client.call(RequestCode.LITE_PULL_MESSAGE, pull_ext("T"))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.ext["forbiddenType"] == "1" and "litePullMessageEnable" in (refused.remark or "")
    assert client.pull("T").code == 0


def test_who_forbids_a_pull_is_told(start_broker: StartBroker) -> None:
    client = start_broker(brokerPermission=2).connect()
    client.send("T", b"x")
    refused = client.pull("T")
    assert (refused.code, refused.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
