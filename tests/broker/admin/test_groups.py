"""Administrators and groups: configurations, who is connected, and what a client may subscribe to."""

import json
from typing import Any

import pytest

from ropewalk.codes import RequestCode, ResponseCode
from tests.broker.harness import Client, InProcess, pull_ext


def put(client: Client, **fields: object) -> int:
    return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(fields).encode()).code


def shown(client: Client, code: int, **ext: object) -> dict[str, Any]:
    answer = client.call(code, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_a_group_is_made_changed_and_shown(client: Client) -> None:
    assert put(client, groupName="g", retryMaxTimes=3, consumeMessageOrderly=True) == 0
    found = shown(client, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="g")
    assert (found["groupName"], found["retryMaxTimes"], found["consumeMessageOrderly"]) == ("g", 3, True)
    assert put(client, groupName="g", consumeEnable=False) == 0
    table = shown(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=0)["subscriptionGroupTable"]
    assert table["g"]["consumeEnable"] is False
    assert "TOOLS_CONSUMER" in table
    assert client.pull("T", consumerGroup="g").code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "fields, code",
    [
        ({}, 29),
        ({"groupName": ""}, 29),
        ({"groupName": "a b"}, 29),
        ({"groupName": "x" * 121}, 29),
        ({"groupName": "g", "attributes": {"+a": "b"}}, 1),
    ],
)
def test_a_group_that_cannot_be_is_refused(client: Client, fields: dict[str, object], code: int) -> None:
    assert put(client, **fields) == code
    assert client.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).code == 26


def test_a_list_of_groups_is_made_whole_or_not_at_all(running: InProcess, client: Client) -> None:
    def send(*entries: dict[str, object]) -> int:
        body = json.dumps({"groupConfigList": entries}).encode()
        return client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body).code

    assert send({"groupName": "g1"}, {"groupName": "no good"}) == 29
    assert "g1" not in running.broker.groups
    assert send({"groupName": "g1"}, {"groupName": "g2"}) == 0
    assert "g2" in running.broker.groups


def test_a_deleted_group_leaves_its_offsets_unless_told(running: InProcess, client: Client) -> None:
    offsets = running.broker.offsets
    for clean, left in ((False, {0: 5}), (True, {})):
        put(client, groupName="g")
        offsets.commit("g", "T", 0, 5)
        answer = client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": clean})
        assert answer.code == 0
        assert "g" not in running.broker.groups
        assert offsets.queues("g", "T") == left


def test_a_stranger_can_forbid_so_many_topics_and_no_more(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.state.groups.FORBIDDEN_MAX", 3)
    client.pull("T")
    code, ext = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "cg", "readable": False}
    assert [client.call(code, {**ext, "topic": f"T{n}"}).code for n in range(5)] == [0, 0, 0, 1, 1]
    assert client.call(code, {**ext, "topic": "T0"}).code == 0, "one that is there already"
    assert client.call(code, {**ext, "topic": "T0", "readable": True}).code == 0
    assert client.call(code, {**ext, "topic": "T4"}).code == 0


def test_a_forbidden_topic_is_not_read_by_the_group(client: Client) -> None:
    client.send("T", b"1")
    client.heartbeat(group="g", topics={"T": "*"}, version=1)
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    assert shown(client, code, group="g", topic="T") == {"group": "g", "readable": True, "topic": "T"}
    assert shown(client, code, group="g", topic="T", readable=False)["readable"] is False
    ext = pull_ext("T", consumerGroup="g", sysFlag=0, subVersion=1)
    answer = client.call(RequestCode.PULL_MESSAGE, ext)
    assert (answer.code, answer.ext["forbiddenType"]) == (16, "5")
    assert shown(client, code, group="g", topic="T", readable=True)["readable"] is True
    assert client.call(RequestCode.PULL_MESSAGE, ext).code == 0
    assert client.call(code, {"group": "nobody", "topic": "T", "readable": False}).code == 26


def test_connected_consumers_are_shown_with_what_they_subscribe_to(client: Client) -> None:
    client.heartbeat(client_id="c1", group="g", topics={"T": "a || b"})
    found = shown(client, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    (connection,) = found["connectionSet"]
    assert (connection["clientId"], connection["language"]) == ("c1", "JAVA")
    assert connection["clientAddr"] == "{}:{}".format(*client.link.peer)
    assert found["subscriptionTable"]["T"]["tagsSet"] == ["a", "b"]
    assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    answer = client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "nobody"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


def test_connected_producers_are_shown(running: InProcess, client: Client) -> None:
    client.heartbeat(client_id="c1", group=None, producers=["pg"])
    found = shown(client, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="pg")
    assert [connection["clientId"] for connection in found["connectionSet"]] == ["c1"]
    (info,) = shown(client, RequestCode.GET_ALL_PRODUCER_INFO)["data"]["pg"]
    assert (info["clientId"], info["language"]) == ("c1", "JAVA")
    assert info["remoteIP"] == "/{}:{}".format(*client.link.peer)
    assert info["lastUpdateTimestamp"] == running.clock.ms
    answer = client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_the_topics_and_subscriptions_of_a_group_are_shown(running: InProcess, client: Client) -> None:
    running.broker.offsets.commit("g", "T", 0, 1)
    assert shown(client, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g") == {"topicList": ["T"]}
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    assert shown(client, code, group="g", topic="T") == {"group": "g", "topic": "T"}
    client.heartbeat(group="g", topics={"T": "a"})
    assert shown(client, code, group="g", topic="T")["subscriptionData"]["subString"] == "a"


def test_a_client_learns_before_it_starts_whether_its_filter_is_served(
    running: InProcess, client: Client
) -> None:
    remarks: list[str | None] = []

    def check(wish: object) -> int:
        body = json.dumps({"clientId": "c", "group": "g", "subscriptionData": wish}).encode()
        answer = client.call(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        remarks.append(answer.remark)
        return answer.code

    good = {"topic": "T", "expressionType": "SQL92", "subString": "a > 1"}
    assert check({"topic": "T", "expressionType": "TAG", "subString": "a"}) == 0
    assert check(good) == 1
    assert "enablePropertyFilter is false" in str(remarks[-1])
    client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"enablePropertyFilter=true")
    assert check(good) == 0
    for wrong in ("a >", "", None, "a = 5 so on"):
        assert check({**good, "subString": wrong}) == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "where a comparison, AND, OR or the end is expected (at character 7" in str(remarks[-1])
    assert check({**good, "expressionType": "XPATH"}) == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert check(None) == 0
    assert client.call(RequestCode.CHECK_CLIENT_CONFIG, body=b"{").code == 1
