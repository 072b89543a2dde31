"""Administrators and the broker itself: how it is, what it counts, and what may be changed while it runs."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.admin.broker import CHANGEABLE
from broker.settings.config import keep_settings
from broker.settings.keys import KEYS, Kind, Mark
from ropewalk.codes import RequestCode, ResponseCode
from store.retention.rules import HOUR_MS
from tests.broker.harness import Client, InProcess, config_of, request, send_ext, without_fsync

StartBroker = Callable[..., InProcess]

PARSED_BY_MQADMIN = (
    *("putTps", "getTransferredTps", "sendThreadPoolQueueSize", "pullThreadPoolQueueSize"),
    *("sendThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills"),
    *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio", "timerReadBehind"),
    *("timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps"),
    *("ackThreadPoolQueueSize", "msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning"),
    *("msgPutTotalTodayNow", "msgGetTotalYesterdayMorning", "msgGetTotalTodayMorning", "msgGetTotalTodayNow"),
)


def update(client: Client, text: str) -> Any:
    return client.call(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


def table(client: Client) -> dict[str, str]:
    found: dict[str, str] = json.loads(client.call(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    return found


# -- runtime info and statistics -----------------------------------------------------------------------


def test_everything_that_tools_parse_as_numbers_is_a_number(client: Client) -> None:
    found = table(client)
    for key in PARSED_BY_MQADMIN:
        assert all(float(word) == float(word) for word in found[key].split(" ")), key
    assert int(found["brokerVersion"]) > 0, "the exporter reads it as an integer"
    assert found["getTransferedTps"] == found["getTransferredTps"], "older tools know one spelling"
    assert len(found["putTps"].split(" ")) == 3
    assert all(isinstance(value, str) for value in found.values())


def test_runtime_info_counts_what_was_sent_and_pulled(running: InProcess, client: Client) -> None:
    client.send("T", b"x" * 100)
    client.send("T", b"x" * 100)
    client.pull("T")
    running.tick(1_000)
    found = table(client)
    assert (found["msgPutTotalTodayNow"], found["msgGetTotalTodayNow"]) == ("2", "2")
    assert found["putMessageTimesTotal"] == "2"
    assert int(found["putMessageSizeTotal"]) == int(found["commitLogMaxOffset"]) > 200
    assert int(found["earliestMessageTimeStamp"]) == running.clock.ms - 1_000
    classes = [int(n) for n in re.findall(r"\]:(\d+)", found["putMessageDistributeTime"])]
    assert (len(classes), sum(classes)) == (13, 2)
    running.tick(90_061_000)
    assert table(client)["runtime"] == "[ 1 days, 1 hours, 1 minutes, 2 seconds ]"


def test_statistics_are_shown_by_name_and_key(client: Client) -> None:
    for body in (b"1", b"2"):
        client.send("T", body)
    client.pull("T")

    def view(name: str, key: str) -> Any:
        return client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})

    found = json.loads(view("TOPIC_PUT_NUMS", "T").body)
    assert found.keys() == {"statsDay", "statsHour", "statsMinute"}
    assert found["statsDay"]["sum"] == 2
    assert json.loads(view("GROUP_GET_NUMS", "T@cg").body)["statsMinute"]["sum"] == 2
    assert json.loads(view("BROKER_PUT_NUMS", "DefaultCluster").body)["statsMinute"]["sum"] == 2
    missing = view("TOPIC_PUT_NUMS", "none")
    assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <none> not exist")


def test_a_run_over_two_topics_is_counted_to_each(running: InProcess, client: Client) -> None:
    client.send("A")
    client.send("B")
    frames = [
        request(RequestCode.SEND_MESSAGE_V2, send_ext(topic), b"y" * size, opaque=100 + n)
        for n, (topic, size) in enumerate([("A", 10), ("B", 20), ("A", 30)])
    ]
    before = running.broker.store.log.end_offset
    client.feed(b"".join(frames))
    client.answers()
    stats = running.broker.statistics
    counted = {topic: stats.meter("TOPIC_PUT_NUMS", topic, 0).messages for topic in "AB"}
    assert counted == {"A": 3, "B": 2}
    sizes = sum(stats.meter("TOPIC_PUT_NUMS", topic, 0).bytes for topic in "AB")
    assert sizes == running.broker.store.log.end_offset
    assert before < sizes


def test_raw_queue_entries_are_shown(client: Client) -> None:
    for tag in ("a", "b", "c"):
        client.send("T", b"x", properties={"TAGS": tag})

    def look(**ext: object) -> Any:
        ext = {"topic": "T", "queueId": 0, "index": 0, "count": 10, **ext}
        return client.call(RequestCode.QUERY_CONSUME_QUEUE, ext)

    found = json.loads(look(index=1, count=5).body)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    assert [entry["tagsCode"] for entry in found["queueData"]] == [ord("b"), ord("c")]
    assert json.loads(look(index=3).body)["queueData"] == []
    assert look(topic="none").code == 1


# -- configuration -------------------------------------------------------------------------------------


def test_the_whole_configuration_is_shown_without_secrets(start_broker: StartBroker) -> None:
    client = start_broker(**{"tls.server.keyPassword": "hush"}).connect()
    answer = client.call(RequestCode.GET_BROKER_CONFIG)
    lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    assert lines.keys() == KEYS.keys()
    assert lines["maxMessageSize"] == "4194304"
    assert "hush" not in answer.body.decode()
    assert json.loads(answer.ext["version"]).keys() == {"counter", "stateVersion", "timestamp"}


def test_a_changed_key_counts_from_the_next_request_on(running: InProcess, client: Client) -> None:
    kept: list[dict[str, str]] = []
    running.broker.on_settings_changed = kept.append
    assert client.send("T", b"x" * 100).code == 0
    before = json.loads(client.call(RequestCode.GET_BROKER_CONFIG).ext["version"])
    assert update(client, "maxMessageSize=50\n").code == 0
    assert client.send("T", b"x" * 100).code == ResponseCode.MESSAGE_ILLEGAL
    answer = client.call(RequestCode.GET_BROKER_CONFIG)
    assert b"maxMessageSize=50\n" in answer.body
    assert json.loads(answer.ext["version"])["counter"] == before["counter"] + 1
    assert running.broker.config.origin("maxMessageSize").startswith("administrator at 127.0.0.1:")
    assert kept == [{"maxMessageSize": "50"}]


def test_how_long_messages_are_kept_can_be_changed_and_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_fsync(monkeypatch)
    hours = ";".join(f"{hour:02}" for hour in range(24))
    config = config_of(
        tmp_path, mappedFileSizeCommitLog=1 << 16, deleteWhen=hours, diskSpaceWarningLevelRatio=99
    )
    with InProcess(config) as running:
        client, kept = running.connect(), list[dict[str, str]]()
        running.broker.on_settings_changed = kept.append
        while len(running.broker.store.log.segments) < 4:
            assert client.send("T", bytes(9_000)).code == 0
        cleaner = running.broker.store.upkeep.cleaner
        assert cleaner is not None
        running.clock.ms = time.time_ns() // 1_000_000 + 3 * HOUR_MS
        running.tick(70_000)
        assert running.broker.store.log.min_offset == 0, "nothing is older than 72 hours"
        changes = "fileReservedTime=2\ncleanFileForciblyEnable=false\n"
        assert update(client, changes).code == 0
        assert kept == [{"fileReservedTime": "2", "cleanFileForciblyEnable": "false"}]
        assert (cleaner.rules.reserved_ms, cleaner.rules.force) == (2 * HOUR_MS, False)
        running.until(lambda: running.broker.store.log.min_offset > 0)
        assert update(client, "fileReservedTime=-1\n").code == 1 and cleaner.rules.reserved_ms == 2 * HOUR_MS


def test_automatic_creation_can_be_switched_off_and_on(running: InProcess, client: Client) -> None:
    update(client, "autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n")
    assert client.send("new").code == ResponseCode.TOPIC_NOT_EXIST
    client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=true\n")
    assert client.send("new").code == 0
    assert client.pull("new", consumerGroup="young").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_changed_permission_reaches_pulls_and_name_servers(running: InProcess, client: Client) -> None:
    client.send("T")
    told: list[bool] = []
    running.broker.topic_changes.on_published = lambda: told.append(True)
    version = running.broker.topics.data_version
    update(client, "brokerPermission=2\n")
    assert told == [True]
    assert running.broker.topics.data_version > version
    assert client.pull("T").code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "text, code",
    [
        ("storePathRootDir=/elsewhere", 16),
        ("maxMessageSize=50\nnamesrvAddr=evil:9876", 16),
        ("brokerConfigPath=/etc/passwd", 16),
        ("configBlackList=", 16),
        ("noSuchKey=1", 16),
        ("flushDiskType=SYNC_FLUSH", 16),
        ("maxMessageSize=lots", 1),
        ("maxMessageSize=-1", 1),
        ("longPollingEnable=perhaps", 1),
        ("", 1),
        ("maxMessageSize=\\u12", 1),
    ],
)
def test_what_must_not_change_is_refused_whole(
    running: InProcess, client: Client, text: str, code: int
) -> None:
    before = running.broker.config
    answer = update(client, text)
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert running.broker.config is before


def test_a_misspelled_key_is_told_with_the_nearest_right_one(client: Client) -> None:
    remark = update(client, "maxMessageSize=50\nmaxMesageSize=60\n").remark
    assert (
        remark == "Can not update config: there is no key 'maxMesageSize'; the nearest one is maxMessageSize"
    )


def test_every_changeable_key_is_honoured_typed_and_no_free_text() -> None:
    for name in CHANGEABLE:
        assert KEYS[name].mark is Mark.HONOURED
        assert KEYS[name].kind in (Kind.BOOL, Kind.INT, Kind.LONG) or KEYS[name].choices, name


def test_settings_are_kept_in_the_file_and_its_other_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "# mine\nbrokerName = a\nmaxMessageSize : 7\n\nmaxMessageSize=8\nflushDiskType=ASYNC_FLUSH"
    )
    path.chmod(0o600)
    keep_settings(path, {"maxMessageSize": "9", "traceOn": "false"})
    assert path.read_text() == (
        "# mine\nbrokerName = a\nmaxMessageSize=9\n\nflushDiskType=ASYNC_FLUSH\ntraceOn=false\n"
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["broker.conf"]


def test_cleaning_queues_has_nothing_to_do(client: Client) -> None:
    assert client.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE).code == 0
