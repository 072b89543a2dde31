"""Heartbeats: every dialect of the known clients reads as meant, and strangers are bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state.clients import ClientRegistry
from broker.state.heartbeat import (
    CLUSTERING,
    GROUPS_PER_CLIENT_MAX,
    HEARTBEAT_SIZE_MAX,
    SUBSCRIPTIONS_PER_HEARTBEAT_MAX,
    HeartbeatData,
    HeartbeatRefused,
)

JAVA_HEARTBEAT = (
    b'{"clientID":"10.0.0.1@12#345","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA",'
    b'"subVersion":1700000000000,"tagsSet":["TagA"],"topic":"T"}],"unitMode":false}],"heartbeatFingerprint":0,'
    b'"producerDataSet":[{"groupName":"pg"}],"withoutSub":false}'
)


def test_a_java_heartbeat() -> None:
    data = HeartbeatData.decode(JAVA_HEARTBEAT)
    assert data.client_id == "10.0.0.1@12#345"
    assert data.producers == ("pg",)
    (group,) = data.consumers
    assert (group.group, group.consume_type, group.message_model) == (
        "g",
        "CONSUME_PASSIVELY",
        CLUSTERING,
    )
    assert group.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    (wish,) = group.subscriptions
    assert (wish.topic, wish.expression, wish.version) == ("T", "TagA", 1700000000000)
    assert wish.codes == {2598919}


def test_a_subscription_shared_by_two_groups_is_a_reference_the_second_time() -> None:
    first = {
        "groupName": "g",
        "subscriptionDataSet": [{"topic": "T", "subString": "TagA", "subVersion": 3}],
    }
    second = {
        "groupName": "h",
        "subscriptionDataSet": [{"$ref": "$.consumerDataSet[0].subscriptionDataSet[0]"}],
    }
    data = HeartbeatData.decode(json.dumps({"clientID": "c", "consumerDataSet": [first, second]}).encode())
    assert data.consumers[1].subscriptions == data.consumers[0].subscriptions
    assert data.consumers[1].subscriptions[0].topic == "T"


def test_nulls_and_absent_sets_are_empty() -> None:
    data = HeartbeatData.decode(b'{"clientID":"c","consumerDataSet":null,"withoutSub":null}')
    assert (data.consumers, data.producers, data.without_sub) == ((), (), False)
    go = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":null}]}'
    assert HeartbeatData.decode(go).consumers[0].subscriptions == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"{}",
        b'{"clientID":""}',
        b'{"clientID":7}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":null}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
        json.dumps({"clientID": "c" * 5000}).encode(),
        json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "g" * 300}]}).encode(),
    ],
)
def test_what_is_no_heartbeat_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(HeartbeatRefused, match="e"):
        HeartbeatData.decode(body)


def test_a_heartbeat_of_absurd_size_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HeartbeatRefused, match="bytes"):
        HeartbeatData.decode(b"{" * (HEARTBEAT_SIZE_MAX + 1))


def test_too_many_groups_are_refused() -> None:
    groups = [{"groupName": f"g{n}"} for n in range(GROUPS_PER_CLIENT_MAX + 1)]
    for key in ("consumerDataSet", "producerDataSet"):
        with pytest.raises(HeartbeatRefused, match="groups"):
            HeartbeatData.decode(json.dumps({"clientID": "c", key: groups}).encode())


def test_too_many_subscriptions_are_refused_also_when_references_multiply_them() -> None:
    wishes = [{"topic": f"t{n}"} for n in range(SUBSCRIPTIONS_PER_HEARTBEAT_MAX // 50 + 1)]
    groups: list[dict[str, Any]] = [{"groupName": "g0", "subscriptionDataSet": wishes}]
    groups += [
        {
            "groupName": f"g{n}",
            "subscriptionDataSet": {"$ref": "$.consumerDataSet[0].subscriptionDataSet"},
        }
        for n in range(1, 50)
    ]
    with pytest.raises(HeartbeatRefused, match="subscriptions"):
        HeartbeatData.decode(json.dumps({"clientID": "c", "consumerDataSet": groups}).encode())


def test_too_many_tags_count_like_subscriptions() -> None:
    for wish in (
        {"topic": "t", "subString": "x", "codeSet": list(range(SUBSCRIPTIONS_PER_HEARTBEAT_MAX + 1))},
        {"topic": "t", "subString": "||".join(map(str, range(SUBSCRIPTIONS_PER_HEARTBEAT_MAX + 1)))},
    ):
        group = {"groupName": "g", "subscriptionDataSet": [wish]}
        with pytest.raises(HeartbeatRefused, match="subscriptions"):
            HeartbeatData.decode(json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "clientID",
                        "consumerDataSet",
                        "producerDataSet",
                        "groupName",
                        "subscriptionDataSet",
                        "topic",
                        "subString",
                        "codeSet",
                        "tagsSet",
                        "subVersion",
                        "$ref",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
def test_whatever_json_arrives_is_a_heartbeat_or_refused(value: Any) -> None:
    for document in (value, {"clientID": "c", "consumerDataSet": [value], "producerDataSet": [value]}):
        try:
            data = HeartbeatData.decode(json.dumps(document).encode())
        except HeartbeatRefused:
            continue
        ClientRegistry().heartbeat("p", data, 0)
