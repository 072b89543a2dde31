"""Administrators and offsets: how far groups have read, and being sent elsewhere."""

import json
from itertools import count
from typing import Any

import pytest

from broker.state.topics import TopicConfig
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.format import fastjson
from tests.broker.harness import Client, InProcess, heartbeat_body, pull_ext

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


@pytest.fixture
def filled(running: InProcess, client: Client) -> InProcess:
    """Topic T with two of its four queues in use: ten messages a second apart in queue 0, one in queue 1."""
    for n in range(10):
        client.send("T", b"%d" % n, queueId=0)
        running.clock.ms += 1_000
    client.send("T", b"x", queueId=1)
    running.broker.groups.find_or_create("g", running.clock.ms)
    return running


def rows(body: bytes) -> dict[int, Any]:
    """The offset table of an answer by queue id."""
    table = fastjson.queue_keys(fastjson.loads(body)["offsetTable"])
    return {key.queue_id: row for key, row in table.items()}


def query(client: Client, queue_id: int = 0, group: str = "g") -> str | None:
    ext = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "setZeroIfNotFound": False}
    answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    return answer.ext.get("offset")


def reset(client: Client, **changes: object) -> Any:
    ext = {"topic": "T", "group": "g", "timestamp": -1, "isForce": True, **changes}
    return client.call(RESET, ext)


# -- how far groups have read --------------------------------------------------------------------------


def test_the_progress_of_a_group_has_a_row_for_each_queue(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    answer = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert answer.body.startswith(
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":10,'
    )
    found = rows(answer.body)
    assert found.keys() == {0, 1, 2, 3}
    assert found[0]["consumerOffset"] == found[0]["pullOffset"] == 4
    assert found[0]["lastTimestamp"] == filled.clock.ms - 7_000
    assert (found[1]["brokerOffset"], found[1]["consumerOffset"], found[1]["lastTimestamp"]) == (1, 0, 0)


def test_what_was_fetched_and_not_committed_is_in_flight(filled: InProcess, client: Client) -> None:
    def in_flight() -> int:
        row = rows(client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).body)[0]
        everybody = fastjson.loads(
            client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
        )
        found = int(row["pullOffset"]) - int(row["consumerOffset"])
        assert everybody["totalInflightDiff"] == found
        return found

    def pull(offset: int) -> None:
        client.call(RequestCode.PULL_MESSAGE, pull_ext("T", consumerGroup="g", queueOffset=offset))

    filled.broker.offsets.commit("g", "T", 0, 2)
    assert in_flight() == 0
    pull(2)
    assert in_flight() == 0, "what lies before a pull's offset was fetched, and that is what is committed"
    pull(7)
    assert in_flight() == 5
    pull(999)
    assert in_flight() == 8, "nobody has fetched what is not there"
    filled.broker.offsets.commit("g", "T", 0, 10)
    assert in_flight() == 0
    pull(10)
    reset(client, timestamp=0)
    assert in_flight() == 0, "after a reset nothing is fetched yet"


def test_a_group_that_never_consumed_has_an_empty_table(client: Client) -> None:
    answer = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"})
    assert (answer.code, answer.body) == (0, b'{"consumeTps":0.0,"offsetTable":{}}')


def test_topics_that_a_live_group_left_are_not_shown(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    filled.connect().heartbeat(group="g", topics={"other": "*"})
    assert rows(client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body) == {}


def test_topics_can_be_named_one_or_several(filled: InProcess, client: Client) -> None:
    for ext in ({"topic": "T"}, {"topicList": "none;T"}):
        answer = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", **ext})
        assert rows(answer.body).keys() == {0, 1, 2, 3}


def test_the_progress_of_all_groups_adds_up(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    answer = client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    found = fastjson.loads(answer.body)
    assert (found["totalDiff"], found["brokerAddr"]) == (7, "127.0.0.1:10911")
    ((group, (stats,)),) = found["consumeStatsList"][0].items()
    assert group == "g" and len(stats["offsetTable"]) == 4
    answer = client.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True})
    assert fastjson.loads(answer.body)["consumeStatsList"] == []


def test_the_time_span_tells_how_late_a_group_is(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    answer = client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    spans = {span["messageQueue"]["queueId"]: span for span in json.loads(answer.body)["consumeTimeSpanSet"]}
    now = filled.clock.ms
    first = spans[0]
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (now - 10_000, now - 1_000)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (now - 7_000, 6_000)
    assert (spans[2]["minTimeStamp"], spans[2]["delayTime"]) == (-1, 0)
    assert client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "g"}).code == 17


def test_all_offsets_travel_as_slaves_read_them(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    body = client.call(RequestCode.GET_ALL_CONSUMER_OFFSET).body
    assert b'"offsetTable":{"T@g":{0:4}}' in body


def test_the_progress_of_delay_levels_is_shown(running: InProcess, client: Client) -> None:
    client.send("T", properties={"DELAY": "1"})
    answer = client.call(RequestCode.GET_ALL_DELAY_OFFSET)
    assert b'"offsetTable":{' in answer.body
    before = fastjson.loads(answer.body)["offsetTable"].get("1", 0)
    running.tick(1_000)
    running.until(lambda: bool(running.stored("T")))
    found = fastjson.loads(client.call(RequestCode.GET_ALL_DELAY_OFFSET).body)
    assert (before, found["offsetTable"]["1"]) == (0, 1)
    info = json.loads(client.call(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert info["scheduleMessageOffset_1"] == "1,1"


def test_correction_offsets_are_the_least_of_all_groups_and_nobody_loses_any(
    filled: InProcess, client: Client
) -> None:
    offsets = filled.broker.offsets
    for group, offset in (("g", 4), ("h", 6), ("filtered", 1)):
        offsets.commit(group, "T", 0, offset)
    code = RequestCode.QUERY_CORRECTION_OFFSET
    ext = {"compareGroup": "h", "topic": "T", "filterGroups": "filtered"}
    assert client.call(code, ext).body == b'{"correctionOffsets":{0:4}}'
    ext["compareGroup"] = "filtered"
    assert client.call(code, ext).body == b'{"correctionOffsets":{0:9223372036854775807}}'
    assert offsets.queues("filtered", "T") == {0: 1}


# -- sending groups elsewhere --------------------------------------------------------------------------


def test_offsets_are_cloned_to_another_group(filled: InProcess, client: Client) -> None:
    filled.broker.offsets.commit("g", "T", 0, 4)
    filled.connect().heartbeat(group="g", topics={"other": "*"})  # it does not read T any more
    ext = {"srcGroup": "g", "destGroup": "h", "topic": "T"}
    assert client.call(RequestCode.CLONE_GROUP_OFFSET, {**ext, "offline": False}).code == 0
    assert query(client, group="h") is None
    assert client.call(RequestCode.CLONE_GROUP_OFFSET, {**ext, "offline": True}).code == 0
    assert query(client, group="h") == "4"
    filled.broker.offsets.commit("h", "T", 0, 7)
    assert query(client) == "4", "each of them goes its own way from then on"


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, {0: 10, 1: 1, 2: 0, 3: 0}),
        ({"timestamp": 0}, {0: 0, 1: 0, 2: 0, 3: 0}),
        ({"queueId": 0, "offset": 7}, {0: 7}),
        ({"queueId": 0, "offset": 11}, {0: 11}),
        ({"queueId": 1}, {1: 1}),
    ],
)
def test_a_reset_counts_at_once_for_a_group_that_is_away(
    filled: InProcess, client: Client, changes: dict[str, object], expected: dict[int, int]
) -> None:
    answer = reset(client, **changes)
    assert rows(answer.body) == expected
    for queue_id, offset in expected.items():
        assert query(client, queue_id) == str(offset)


def test_a_reset_to_a_time_finds_the_message_stored_then(filled: InProcess, client: Client) -> None:
    assert rows(reset(client, timestamp=filled.clock.ms - 4_000).body)[0] == 6


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"topic": "none"}, 17),
        ({"group": "nobody"}, 26),
        ({"queueId": 0, "offset": 12}, 1),
        ({"queueId": 0, "offset": -5}, 1),
        ({"queueId": 99_999}, 1),
        ({"timestamp": "soon"}, 1),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(
    filled: InProcess, client: Client, changes: dict[str, object], code: int
) -> None:
    assert reset(client, **changes).code == code
    assert query(client) is None


def test_a_reset_of_many_queues_goes_on_to_the_last_when_its_client_has_gone(
    filled: InProcess, client: Client
) -> None:
    filled.broker.topics.update(TopicConfig("wide", 1_000, 1_000), filled.clock.ms)
    filled.broker.lane.clock = count().__next__  # a turn has time for one step
    gone = filled.connect()
    ext = {"topic": "wide", "group": "g", "timestamp": -1, "isForce": True}
    gone.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
    offsets = filled.broker.offsets
    filled.until(lambda: bool(offsets.queues("g", "wide")))
    assert len(offsets.queues("g", "wide")) < 1_000, "it is half-way"
    gone.disconnect()
    filled.until(lambda: len(offsets.queues("g", "wide")) == 1_000)


def test_a_look_at_more_queues_than_an_answer_holds_is_refused_in_words(
    filled: InProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.admin.base.ROWS_MAX", 3)
    answer = client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"})
    assert (answer.code, answer.remark) == (
        1, "the answer would be about more than 3 queues: ask for one topic or group at a time"
    )  # fmt: skip
    monkeypatch.setattr("broker.admin.base.ROWS_MAX", 4)
    assert client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).code == 0
    monkeypatch.setattr("broker.admin.base.ROWS_TOTAL_MAX", 3)
    assert client.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).code == 2


def test_whoever_reads_already_is_told_by_its_next_pull_once(filled: InProcess, client: Client) -> None:
    assert client.pull("T", consumerGroup="g", queueOffset=8).code == 0
    reset(client, queueId=0, offset=2)
    told = client.pull("T", consumerGroup="g", queueOffset=9)
    assert (told.code, told.remark, told.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "2")
    assert (told.ext["minOffset"], told.ext["maxOffset"]) == ("0", "10")
    assert client.pull("T", consumerGroup="g", queueOffset=9).code == 0


def test_whoever_begins_at_the_reset_offset_is_not_sent_there_again(
    filled: InProcess, client: Client
) -> None:
    reset(client, queueId=0, offset=2)
    assert client.pull("T", consumerGroup="g", queueOffset=2).code == 0
    assert not filled.broker.offsets.resets


def test_other_groups_notice_nothing_of_a_reset(filled: InProcess, client: Client) -> None:
    reset(client, queueId=0, offset=2)
    assert client.pull("T", consumerGroup="other", queueOffset=9).code == 0


def test_commits_from_before_a_reset_change_nothing_until_it_is_told(
    filled: InProcess, client: Client
) -> None:
    reset(client, queueId=0, offset=2)
    ext = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 9}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0
    assert query(client) == "2"
    # A pull can carry a commit as well.
    client.pull("T", consumerGroup="g", queueOffset=9, sysFlag=5, commitOffset=9)
    assert query(client) == "2"
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": 3}).code == 0
    assert query(client) == "3"


def test_a_held_pull_is_answered_by_a_reset(filled: InProcess, client: Client) -> None:
    waiting = filled.connect()
    waiting.ask(RequestCode.PULL_MESSAGE, pull_ext("T", consumerGroup="g", queueOffset=10, sysFlag=6))
    other = filled.connect()
    other.ask(RequestCode.PULL_MESSAGE, pull_ext("T", consumerGroup="h", queueOffset=10, sysFlag=6))
    reset(client, timestamp=0)
    told = waiting.answer()
    assert (told.code, told.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")
    assert not other.link.sent


def test_a_held_pull_is_told_of_a_reset_to_the_offset_that_it_waits_for(
    filled: InProcess, client: Client
) -> None:
    """Its consumer may hold messages of before that offset, which are not to be handled."""
    waiting = filled.connect()
    waiting.ask(RequestCode.PULL_MESSAGE, pull_ext("T", consumerGroup="g", queueOffset=10, sysFlag=6))
    reset(client, queueId=0, offset=10)
    told = waiting.answer()
    assert (told.code, told.remark, told.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "10")
    assert client.pull("T", consumerGroup="g", queueOffset=9).code == 0, "told once"


def test_a_group_that_is_online_is_told_of_a_reset_to_where_its_next_pull_asks(
    filled: InProcess, client: Client
) -> None:
    member = filled.connect()
    assert member.call(RequestCode.HEART_BEAT, body=heartbeat_body("c", "g", {"T": "*"})).code == 0
    assert member.pull("T", consumerGroup="g", queueOffset=8).code == 0
    reset(client, queueId=0, offset=10)
    told = member.pull("T", consumerGroup="g", queueOffset=10)
    assert (told.code, told.remark, told.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "10")
