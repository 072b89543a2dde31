"""Administrators and topics: what is made, changed, deleted, and how it is shown."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from tests.broker.harness import Client, InProcess

StartBroker = Callable[..., InProcess]


def create_ext(topic: str, **changes: object) -> dict[str, object]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        **changes,
    }


def create(client: Client, topic: str, **changes: object) -> int:
    return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create_ext(topic, **changes)).code


def config(client: Client, topic: str) -> dict[str, Any]:
    answer = client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


# -- making and changing -------------------------------------------------------------------------------


def test_a_created_topic_is_shown_as_it_was_asked_for(client: Client) -> None:
    assert create(client, "T", readQueueNums=3, writeQueueNums=2, order=True, perm=4) == 0
    assert config(client, "T") == {
        "attributes": {},
        "order": True,
        "perm": 4,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 2,
    }


def test_an_identical_configuration_makes_no_new_version(running: InProcess, client: Client) -> None:
    create(client, "T")
    before = running.broker.topics.data_version
    assert create(client, "T") == 0
    assert running.broker.topics.data_version == before
    assert create(client, "T", perm=4) == 0
    assert running.broker.topics.data_version > before


def test_name_servers_are_told_before_the_answer(running: InProcess, client: Client) -> None:
    told: list[bool] = []
    running.broker.topic_changes.on_published = lambda: told.append("T" in running.broker.topics)
    create(client, "T")
    assert told == [True]


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"topic": "TBW102"}, 29),
        ({"topic": "rmq_sys_mine"}, 29),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 29),
        ({"topic": "DefaultCluster"}, 29),
        ({"topic": "no blanks"}, 29),
        ({"topic": ""}, 29),
        ({"topic": "x" * 128}, 29),
        ({"topicFilterType": "OTHER"}, 29),
        ({"attributes": "+message.type=MIXED"}, 29),
        ({"attributes": "+queue.type=BatchCQ"}, 1),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 1),
        ({"attributes": "+no.such=1"}, 1),
        ({"attributes": "-message.type"}, 1),
        ({"readQueueNums": -1}, 1),
        ({"writeQueueNums": 1_000_000}, 1),
        ({"perm": 64}, 1),
        ({"readQueueNums": "many"}, 1),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    running: InProcess, client: Client, changes: dict[str, object], code: int
) -> None:
    before = running.broker.topics.generation
    answer = client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**create_ext("T"), **changes})
    assert (answer.code, bool(answer.remark)) == (code, True)
    assert running.broker.topics.generation == before


def test_attributes_are_edited_and_survive_other_changes(client: Client) -> None:
    create(client, "T", attributes="+message.type=FIFO")
    create(client, "T", perm=4)
    assert config(client, "T")["attributes"] == {"message.type": "FIFO"}
    create(client, "T", attributes="-message.type")
    assert config(client, "T")["attributes"] == {}


def test_a_list_of_topics_is_made_whole_or_not_at_all(running: InProcess, client: Client) -> None:
    def send(*entries: dict[str, object]) -> int:
        body = json.dumps({"topicConfigList": entries}).encode()
        return client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body).code

    good = {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    assert send(good, {"topicName": "TBW102"}) == 29
    assert send(good, {"topicName": "B", "readQueueNums": -5}) == 1
    assert send(good, {"perm": 6}) == 29
    assert "A" not in running.broker.topics
    assert send(good, {"topicName": "B", "attributes": {"+message.type": "FIFO"}}) == 0
    assert config(client, "A")["readQueueNums"] == 2
    assert config(client, "B")["attributes"] == {"message.type": "FIFO"}
    assert client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=b"no json").code == 1


# -- deleting ------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_with_offsets_queues_files_and_statistics(
    running: InProcess, client: Client, tmp_path: Path
) -> None:
    create(client, "T")
    client.send("T", b"1")
    running.broker.offsets.commit("g", "T", 0, 1)
    running.tick(2_000)
    files = tmp_path / "store" / "consumequeue" / "T"
    running.until(files.exists)
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    assert not files.exists()
    assert "T" not in running.broker.topics
    assert "T" not in running.broker.store.queues
    assert running.broker.offsets.queues("g", "T") == {}
    assert client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    assert client.call(RequestCode.VIEW_BROKER_STATS_DATA, stats).code == 1


def test_a_topic_made_again_after_its_deletion_begins_at_nought(client: Client) -> None:
    create(client, "T")
    for body in (b"1", b"2", b"3"):
        client.send("T", body)
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    create(client, "T")
    assert client.send("T", b"new").ext["queueOffset"] == "0"
    found = client.pull("T", queueOffset=0)
    assert (found.code, found.ext["maxOffset"]) == (0, "1")


def test_a_deleted_topic_stays_deleted_after_a_restart(start_broker: StartBroker) -> None:
    running = start_broker(autoCreateTopicEnable=False)
    client = running.connect()
    create(client, "T")
    client.send("T", b"1")
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    running.broker.close()
    again = start_broker(autoCreateTopicEnable=False)
    assert "T" not in again.broker.topics
    running.broker.close = lambda: None  # type: ignore[method-assign]


def test_a_pull_that_waits_for_a_deleted_topic_is_answered(running: InProcess, client: Client) -> None:
    create(client, "T")
    waiting = running.connect()
    waiting.ask(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "cg",
            "topic": "T",
            "queueId": 0,
            "queueOffset": 0,
            "maxMsgNums": 32,
            "sysFlag": 6,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        },
    )
    assert not waiting.link.sent
    client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert waiting.answer().code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("topic", ["TBW102", "SELF_TEST_TOPIC", "rmq_sys_wheel_timer", " "])
def test_system_topics_are_not_deleted(running: InProcess, client: Client, topic: str) -> None:
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 29
    assert "TBW102" in running.broker.topics


@pytest.mark.parametrize("topic", ["nobody", "../../escape", "a/b", "%RETRY%g"])
def test_deleting_what_does_not_exist_succeeds_and_touches_no_other_path(
    running: InProcess, client: Client, tmp_path: Path, topic: str
) -> None:
    (tmp_path / "store" / "escape").mkdir()
    assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0
    assert (tmp_path / "store" / "escape").exists()


def test_queues_that_no_topic_has_any_more_are_cleaned(running: InProcess, client: Client) -> None:
    create(client, "kept")
    client.send("kept", b"1")
    running.broker.store.queue("orphan", 0)
    assert client.call(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert "orphan" not in running.broker.store.queues
    assert client.pull("kept").code == 0
    assert client.call(RequestCode.CLEAN_UNUSED_TOPIC).code == 0


# -- looking -------------------------------------------------------------------------------------------


def test_all_less_the_systems_are_the_users_topics(client: Client) -> None:
    create(client, "mine")
    everything = json.loads(client.call(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0}).body)
    system = json.loads(client.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)
    assert set(everything["topicConfigTable"]) - set(system["topicList"]) == {"mine"}
    assert everything["topicConfigTable"]["mine"] == config(client, "mine")
    assert everything["dataVersion"]["counter"] > 0


def test_the_status_of_a_topic_has_a_row_for_each_queue(running: InProcess, client: Client) -> None:
    create(client, "T", readQueueNums=3, writeQueueNums=2)
    client.send("T", b"1", queueId=1)
    running.clock.ms += 1_000
    client.send("T", b"2", queueId=1)
    body = client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body
    assert body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{')
    table = fastjson.queue_keys(fastjson.loads(body)["offsetTable"])
    assert {key.queue_id for key in table} == {0, 1, 2}
    times = {key.queue_id: row["lastUpdateTimestamp"] for key, row in table.items()}
    assert times == {0: 0, 1: running.clock.ms, 2: 0}
    assert {key.queue_id: (row["minOffset"], row["maxOffset"]) for key, row in table.items()} == {
        0: (0, 0),
        1: (0, 2),
        2: (0, 0),
    }
    assert client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"}).code == 17


def test_who_consumes_a_topic_are_those_online_and_those_with_offsets(
    running: InProcess, client: Client
) -> None:
    running.connect().heartbeat(group="online", topics={"T": "*"})
    running.broker.offsets.commit("gone", "T", 0, 1)
    answer = client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert json.loads(answer.body) == {"groupList": ["online", "gone"]}
    answer = client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "U"})
    assert json.loads(answer.body) == {"groupList": []}


@pytest.mark.parametrize("failure", [OSError("bad place"), struct.error("cut short")])
def test_a_look_up_that_fails_costs_its_own_answer_only(
    client: Client, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    create(client, "T")
    client.send("T", b"1")

    def fail(*_arguments: object) -> int:
        raise failure

    monkeypatch.setattr("store.read.store_times._record_time", fail)
    answer = client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert str(failure) in (answer.remark or "")
    monkeypatch.undo()
    assert client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).code == 0


def test_tools_that_ask_too_much_are_told_to_come_back(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client, "T")
    monkeypatch.setattr("broker.admin.base.LOOKUPS_MAX", 0)
    assert client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).code == ResponseCode.SYSTEM_BUSY
