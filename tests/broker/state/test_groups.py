"""Consumer groups: who may create one, its defaults, and a foreign file that survives us."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.state.groups import GroupTable, SubscriptionGroupConfig
from ropewalk.format import fastjson

NOW = 1_700_000_000_000


def test_every_broker_starts_with_the_built_in_groups() -> None:
    groups = GroupTable()
    groups.create_built_in(NOW)
    assert {group.name for group in groups} == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
    version = groups.data_version
    groups.create_built_in(NOW + 1)
    assert groups.data_version == version


def test_a_group_comes_to_be_when_it_is_first_named() -> None:
    groups = GroupTable()
    config = groups.find_or_create("g", NOW)
    assert config == SubscriptionGroupConfig("g")
    assert (groups.data_version.counter, groups.data_version.timestamp) == (1, NOW)
    assert groups.find_or_create("g", NOW + 1) is config
    assert groups.data_version.counter == 1


def test_with_the_switch_off_only_system_groups_come_to_be() -> None:
    groups = GroupTable(auto_create_subscription_group=False)
    assert groups.find_or_create("g", NOW) is None
    assert "autoCreateSubscriptionGroup" in (groups.creation_refusal("g") or "")
    assert groups.find_or_create("CID_RMQ_SYS_x", NOW) is not None
    both_off = GroupTable(auto_create_subscription_group=False, enable_create_sys_group=False)
    assert both_off.find_or_create("CID_RMQ_SYS_x", NOW) is None


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "..", "g" * 121, "ü", "a@b"])
def test_a_name_that_is_no_groups_name_creates_nothing(name: str) -> None:
    groups = GroupTable()
    assert groups.find_or_create(name, NOW) is None
    assert groups.creation_refusal(name)
    assert groups.generation == 0


def test_strangers_cannot_invent_groups_without_end() -> None:
    groups = GroupTable(groups_max=10)
    made = [groups.find_or_create(f"g{n}", NOW) for n in range(20)]
    assert len(groups) == 10 and made[-1] is None
    assert groups.find_or_create("g3", NOW) is not None
    assert groups.update(SubscriptionGroupConfig("by-hand"), NOW)


def test_every_change_has_a_new_generation_and_version_and_no_change_has_none() -> None:
    groups = GroupTable()
    config = SubscriptionGroupConfig("g", retry_max_times=3)
    assert groups.update(config, NOW)
    assert (groups.generation, groups.data_version.counter) == (1, 1)
    assert not groups.update(replace(config), NOW)
    assert (groups.generation, groups.data_version.counter) == (1, 1)
    groups.set_forbidden("g", "T", 1, NOW)
    assert groups.delete("g", NOW)
    assert not groups.delete("g", NOW)
    assert (groups.generation, groups.data_version.counter) == (3, 3)
    groups.set_state_version(2, NOW)
    assert groups.data_version.state_version == 2


def test_an_update_with_an_illegal_name_is_refused() -> None:
    with pytest.raises(ValueError, match="group name"):
        GroupTable().update(SubscriptionGroupConfig("a/b"), NOW)


def test_members_are_told_of_each_other_unless_the_group_says_no() -> None:
    groups = GroupTable()
    assert groups.notifies("unknown")
    groups.update(SubscriptionGroupConfig("quiet", notify_consumer_ids_changed_enable=False), NOW)
    assert not groups.notifies("quiet")


def test_reading_can_be_forbidden_for_one_topic() -> None:
    groups = GroupTable()
    groups.set_forbidden("g", "T", 1, NOW)
    assert groups.read_forbidden("g", "T")
    assert not groups.read_forbidden("g", "U") and not groups.read_forbidden("h", "T")
    groups.set_forbidden("g", "T", 0, NOW)
    assert not groups.read_forbidden("g", "T")
    assert groups.to_wrapper()["forbiddenTable"] == {}


def test_the_defaults_are_those_of_rocketmq() -> None:
    assert fastjson.dumps(SubscriptionGroupConfig("groupA").to_json()) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"groupA","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_a_table_survives_its_own_file() -> None:
    groups, again = GroupTable(), GroupTable()
    groups.create_built_in(NOW)
    groups.find_or_create("g", NOW)
    groups.update(
        SubscriptionGroupConfig("h", consume_enable=False, retry_max_times=-1, attributes={"a": "b"}), NOW
    )
    groups.set_forbidden("g", "T", 1, NOW)
    assert again.load(fastjson.loads(groups.dump())) == []
    assert sorted(again, key=str) == sorted(groups, key=str)
    assert again.dump() == groups.dump()
    assert again.read_forbidden("g", "T")


def test_fields_and_entries_we_do_not_know_are_written_back() -> None:
    foreign: dict[str, Any] = {
        "dataVersion": {"counter": 3, "timestamp": 5},
        "futureTable": {"x": "y"},
        "subscriptionGroupTable": {
            "g": {"groupName": "g", "retryMaxTimes": "7", "consumeEnable": None, "liteBindTopic": "T"},
            "%LMQ%a/b": {"groupName": "%LMQ%a/b"},
            "none": [],
        },
    }
    groups = GroupTable()
    assert len(groups.load(foreign)) == 2
    config = groups.get("g")
    assert config is not None and (config.retry_max_times, config.consume_enable) == (7, True)
    again = json.loads(groups.dump())
    assert again["futureTable"] == {"x": "y"}
    assert again["subscriptionGroupTable"]["g"]["liteBindTopic"] == "T"
    assert again["subscriptionGroupTable"]["%LMQ%a/b"] == {"groupName": "%LMQ%a/b"}
    assert again["subscriptionGroupTable"]["none"] == []


@pytest.mark.parametrize("value", [{}, {"subscriptionGroupTable": None, "forbiddenTable": 3}])
def test_a_file_with_nothing_usable_in_it_is_an_empty_table(value: dict[str, Any]) -> None:
    groups = GroupTable()
    assert groups.load(value) == []
    assert len(groups) == 0
