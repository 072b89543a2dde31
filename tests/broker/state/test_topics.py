"""Topics: how they come to be, what name servers are told, and a foreign file that survives us."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from broker.state.data_version import DataVersion
from broker.state.groups import GroupTable
from broker.state.json_file import StoreConfigRefused
from broker.state.topics import QUEUES_MAX, TopicConfig, TopicRules, TopicTable
from ropewalk.format import fastjson

NOW = 1_700_000_000_000
RULES = TopicRules(cluster="C", broker="b")


def table(rules: TopicRules = RULES) -> TopicTable:
    topics = TopicTable(rules)
    topics.create_system_topics(NOW)
    return topics


def create(
    topics: TopicTable, name: str = "T", key: str = "TBW102", queue_nums: int = 4
) -> TopicConfig | None:
    return topics.auto_create(name, default_topic=key, queue_nums=queue_nums, now_ms=NOW)


class TestSystemTopics:
    def test_every_broker_starts_with_these(self) -> None:
        assert {topic.name: (topic.read_queues, topic.write_queues, topic.perm) for topic in table()} == {
            "TBW102": (8, 8, 7),
            "SELF_TEST_TOPIC": (1, 1, 6),
            "BenchmarkTest": (1024, 1024, 6),
            "C": (16, 16, 7),
            "b": (1, 1, 7),
            "OFFSET_MOVED_EVENT": (1, 1, 6),
            "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
            "C_REPLY_TOPIC": (1, 1, 6),
            "rmq_sys_REVIVE_LOG_C": (8, 8, 6),
            "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1, 1),
            "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
            "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
            "rmq_sys_wheel_timer": (1, 1, 6),
        }

    def test_switches_decide_about_some_of_them(self) -> None:
        topics = table(
            replace(
                RULES,
                auto_create_topic_enable=False,
                cluster_topic_enable=False,
                broker_topic_enable=False,
                timer_wheel_enable=False,
                trace_topic_enable=True,
            )
        )
        assert "TBW102" not in topics and "rmq_sys_wheel_timer" not in topics
        assert "RMQ_SYS_TRACE_TOPIC" in topics
        assert {topic.name: topic.perm for topic in topics if topic.name in "Cb"} == {"C": 1, "b": 1}

    def test_a_second_call_changes_nothing_and_a_loaded_file_has_the_last_word(self) -> None:
        topics = table()
        generation, version = topics.generation, topics.data_version
        topics.create_system_topics(NOW + 1)
        assert (topics.generation, topics.data_version) == (generation, version)
        topics = TopicTable(RULES)
        topics.load({"topicConfigTable": {"TBW102": {"perm": 6, "readQueueNums": 3, "writeQueueNums": 3}}})
        topics.create_system_topics(NOW)
        assert topics.get("TBW102") == TopicConfig("TBW102", 3, 3, 6)

    def test_all_of_them_count_as_the_systems_and_a_users_topic_does_not(self) -> None:
        topics = table()
        create(topics)
        assert [topic.name for topic in topics if not topics.is_system(topic.name)] == ["T"]
        assert topics.is_system("TRANS_CHECK_MAX_TIME_TOPIC") and topics.is_system("rmq_sys_anything")


class TestAutomaticCreation:
    def test_a_topic_inherits_queues_and_permission_from_its_create_key(self) -> None:
        topics = table()
        assert create(topics) == TopicConfig("T", 4, 4, 6)
        assert topics.get("T") == TopicConfig("T", 4, 4, 6)

    @pytest.mark.parametrize(("asked", "got"), [(4, 4), (8, 8), (99, 8), (0, 0), (-3, 0)])
    def test_no_more_queues_than_the_create_key_has(self, asked: int, got: int) -> None:
        topic = create(table(), queue_nums=asked)
        assert topic is not None and (topic.read_queues, topic.write_queues) == (got, got)

    def test_an_existing_topic_is_returned_as_it_is(self) -> None:
        topics = table()
        create(topics, queue_nums=2)
        generation = topics.generation
        topic = create(topics, queue_nums=8)
        assert topic is not None and topic.write_queues == 2
        assert topics.generation == generation

    def test_the_flag_of_the_producer_and_the_filter_type_of_the_key_are_taken_over(self) -> None:
        topics = table()
        topics.update(TopicConfig("key", 8, 8, 7, "MULTI_TAG"), NOW)
        topic = topics.auto_create("T", default_topic="key", queue_nums=4, sys_flag=1, now_ms=NOW)
        assert topic is not None and (topic.filter_type, topic.sys_flag) == ("MULTI_TAG", 1)

    @pytest.mark.parametrize("key", ["TBW102", "C", "b"])
    def test_the_switch_governs_every_create_key(self, key: str) -> None:
        assert create(table(), key=key) is not None
        off = table(replace(RULES, auto_create_topic_enable=False))
        off.update(TopicConfig("TBW102", 8, 8, 7), NOW)  # as an older file may have it
        assert create(off, key=key) is None
        assert "autoCreateTopicEnable" in (off.creation_refusal("T", key) or "")
        assert "T" not in off

    @pytest.mark.parametrize(
        ("key", "reason"),
        [("nowhere", "not a topic of this broker"), ("", "not a topic"), ("BenchmarkTest", "does not pass")],
    )
    def test_a_create_key_must_exist_and_pass_its_permission_on(self, key: str, reason: str) -> None:
        topics = table()
        assert create(topics, key=key) is None
        assert reason in (topics.creation_refusal("T", key) or "")

    @pytest.mark.parametrize("name", ["", " ", "a b", "../etc", "a/b", "a\0b", "ü", "x" * 128, "T\n"])
    def test_a_name_that_is_no_topics_name_creates_nothing(self, name: str) -> None:
        topics = table()
        generation = topics.generation
        assert create(topics, name) is None
        assert topics.creation_refusal(name, "TBW102")
        assert topics.generation == generation

    def test_a_system_topic_is_not_created_by_a_message(self) -> None:
        topics = table()
        assert create(topics, "rmq_sys_mine") is None
        assert create(topics, "TRANS_CHECK_MAX_TIME_TOPIC") is None

    def test_strangers_cannot_invent_topics_without_end(self) -> None:
        topics = table(replace(RULES, topics_max=20))
        made = [create(topics, f"T{n}") for n in range(30)]
        assert len(topics) == 20 and made[-1] is None
        assert "already has 20 topics" in (topics.creation_refusal("T", "TBW102") or "")
        assert topics.create_retry("g", now_ms=NOW) is not None, "its group exists"
        assert topics.create_dlq("g", now_ms=NOW) is not None
        assert topics.update(TopicConfig("by-hand", 4, 4), NOW)


class TestTopicsOfGroups:
    def test_retry_and_dead_letter_topics_come_whatever_the_switch_says(self) -> None:
        topics = table(replace(RULES, auto_create_topic_enable=False))
        assert topics.create_retry("g", now_ms=NOW) == TopicConfig("%RETRY%g", 1, 1, 6)
        assert topics.create_dlq("g", now_ms=NOW) == TopicConfig("%DLQ%g", 1, 1, 6)

    def test_the_group_says_how_many_retry_queues_and_an_existing_topic_stays(self) -> None:
        topics = table()
        topic = topics.create_retry("g", queue_nums=3, sys_flag=2, now_ms=NOW)
        assert topic is not None and (topic.write_queues, topic.sys_flag) == (3, 2)
        generation = topics.generation
        assert topics.create_retry("g", queue_nums=1, now_ms=NOW) == topic
        assert topics.generation == generation

    def test_a_long_group_has_a_retry_topic_of_more_than_127_characters(self) -> None:
        topic = table().create_retry("g" * 120, now_ms=NOW)
        assert topic is not None and len(topic.name) == 127
        assert table().create_retry("g" * 248, now_ms=NOW) is not None
        assert table().create_retry("g" * 249, now_ms=NOW) is None

    def test_an_illegal_group_has_no_topic(self) -> None:
        assert table().create_retry("a/b", now_ms=NOW) is None
        assert table().create_dlq("a b", now_ms=NOW) is None


class TestChanges:
    def test_every_change_has_a_new_generation_and_a_new_version(self) -> None:
        topics = table()
        seen = [(topics.generation, topics.data_version)]
        changes: list[Any] = [
            lambda: create(topics),
            lambda: topics.create_retry("g", now_ms=NOW + 1),
            lambda: topics.update(TopicConfig("T", 8, 4), NOW + 2),
            lambda: topics.delete("T", NOW + 3),
        ]
        for change in changes:
            assert change()
            generation, version = topics.generation, topics.data_version
            assert generation > seen[-1][0] and version > seen[-1][1]
            assert version.counter == seen[-1][1].counter + 1
            seen.append((generation, version))
        assert topics.data_version.timestamp == NOW + 3

    def test_an_update_to_the_same_succeeds_without_a_new_version(self) -> None:
        topics = table()
        topics.update(TopicConfig("T", 4, 4), NOW)
        version = topics.data_version
        assert not topics.update(TopicConfig("T", 4, 4), NOW + 1)
        assert topics.data_version == version

    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            (TopicConfig("a/b"), "/"),
            (TopicConfig("T", -1, 4), "queues"),
            (TopicConfig("T", 4, QUEUES_MAX + 1), "queues"),
            (TopicConfig("T", 4, 4, 16), "permission"),
            (TopicConfig("T", 4, 4, attributes={"queue.type": "BatchCQ"}), "BatchCQ is not built"),
            (TopicConfig("T", 4, 4, attributes={"cleanup.policy": "compaction"}), "not built"),
        ],
    )
    def test_an_update_that_makes_no_sense_is_refused_in_words(
        self, config: TopicConfig, reason: str
    ) -> None:
        topics = table()
        generation = topics.generation
        with pytest.raises(ValueError, match=reason):
            topics.update(config, NOW)
        assert topics.generation == generation

    def test_a_topic_that_came_with_more_queues_is_served_and_can_be_changed_but_gets_no_more(self) -> None:
        topics = table()
        entry = {"topicName": "Old", "readQueueNums": 65_536, "writeQueueNums": 65_536, "perm": 6}
        assert topics.load({"topicConfigTable": {"Old": entry}}) == []
        assert topics.update(TopicConfig("Old", 65_536, 65_536, 4), NOW)
        assert topics.update(TopicConfig("Old", 2_000, 2_000, 6), NOW)
        with pytest.raises(ValueError, match=r"2001 write queues are not within 0\.\.2000"):
            topics.update(TopicConfig("Old", 2_000, 2_001), NOW)
        found = topics.load({"topicConfigTable": {"TooMany": {**entry, "readQueueNums": 65_537}}})
        assert "65537" in found[0]

    def test_the_queues_of_all_topics_together_have_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("broker.state.topics.QUEUES_TOTAL_MAX", 3_000)
        topics = table()
        had = sum(topic.queues for topic in topics)
        assert topics.update(TopicConfig("T1", 1_000, 1_000), NOW)
        rest = 3_000 - 1_000 - had
        assert topics.update(TopicConfig("T2", rest, rest), NOW)
        with pytest.raises(ValueError, match=r"3001 queues together, the most is 3000"):
            topics.update(TopicConfig("T3", 1, 1), NOW)
        assert "3000 queues together" in (topics.creation_refusal("T4", "TBW102") or "")
        assert topics.update(TopicConfig("T2", rest - 4, rest - 4), NOW), "one may become smaller"
        assert topics.creation_refusal("T4", "TBW102") is None
        topics.delete("T1", NOW)
        assert topics.update(TopicConfig("T3", 1_000, 1_000), NOW)

    def test_deleting_what_is_not_there_is_no_change(self) -> None:
        topics = table()
        version = topics.data_version
        assert not topics.delete("T", NOW)
        assert topics.data_version == version

    def test_a_new_role_epoch_outranks_any_number_of_changes_before_it(self) -> None:
        old, new = table(), table()
        for n in range(5):
            create(old, f"T{n}")
        new.set_state_version(1, NOW)
        assert new.data_version > old.data_version
        generation = new.generation
        new.set_state_version(1, NOW + 1)
        assert new.generation == generation


class TestRegistration:
    def test_the_body_is_what_name_servers_parse(self) -> None:
        topics = TopicTable(RULES)
        topics.update(TopicConfig("T", 8, 4), NOW)
        assert topics.register_body() == (
            b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"stateVersion":0,'
            b'"timestamp":1700000000000},"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
            b'"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,'
            b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}},'
            b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
        )

    def test_a_first_registration_has_at_least_two_topics(self) -> None:
        body = json.loads(table().register_body())
        assert len(body["topicConfigSerializeWrapper"]["topicConfigTable"]) >= 2

    @pytest.mark.parametrize(
        ("broker", "perms"), [(6, (7, 6)), (7, (7, 6)), (4, (4, 4)), (2, (2, 2)), (0, (0, 0))]
    )
    def test_a_broker_that_is_not_fully_open_takes_permission_from_every_topic(
        self, broker: int, perms: tuple[int, int]
    ) -> None:
        found = json.loads(table().register_body(broker))["topicConfigSerializeWrapper"]["topicConfigTable"]
        assert (found["TBW102"]["perm"], found["BenchmarkTest"]["perm"]) == perms

    def test_the_body_follows_every_change(self) -> None:
        topics = table()
        before = topics.register_body()
        assert topics.register_body() == before
        create(topics)
        assert b'"T":' in topics.register_body()
        assert topics.register_body(4) != topics.register_body(6)

    def test_the_table_of_the_largest_number_of_longest_names_fits_a_frame(self) -> None:
        topics = table(RULES)
        for n in range(100):  # two hundredths of all
            create(topics, f"{n:0127}")
            create(topics, f"a{n:0126}")
        for n in range(100):
            topics.create_retry(f"{n:0120}", now_ms=NOW)
            topics.create_dlq(f"{n:0120}", now_ms=NOW)
        assert (RULES.topics_max, GroupTable().groups_max) == (20_000, 10_000)
        assert len(topics.register_body()) * 100 < 16 * 1024 * 1024 - 4096

    def test_topics_that_no_list_shows_are_not_registered(self) -> None:
        topics = table()
        topics.update(TopicConfig("rmq_sys_ROPEWALK_META", 1, 1), NOW)
        assert b"ROPEWALK" not in topics.register_body()
        assert b"ROPEWALK" in topics.dump()


class TestTheFile:
    def test_it_is_written_as_rocketmq_writes_it(self) -> None:
        topics = TopicTable(RULES)
        topics.update(TopicConfig("TopicTest", 8, 8), NOW)
        assert topics.dump() == (
            b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
            b'\t"topicConfigTable":{\n\t\t"TopicTest":{\n\t\t\t"attributes":{},\n\t\t\t"order":false,\n'
            b'\t\t\t"perm":6,\n\t\t\t"readQueueNums":8,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
            b'\t\t\t"topicName":"TopicTest",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
        )

    def test_a_table_survives_its_own_file(self) -> None:
        topics, again = table(), TopicTable(RULES)
        create(topics)
        topics.create_dlq("g", now_ms=NOW)
        topics.update(TopicConfig("U", 8, 4, 4, "MULTI_TAG", 3, True, {"message.type": "FIFO"}), NOW)
        assert again.load(fastjson.loads(topics.dump())) == []
        assert list(again) == list(topics)
        assert again.data_version == topics.data_version
        assert again.dump() == topics.dump()

    def test_loading_is_a_change_for_those_who_watch(self) -> None:
        topics = table()
        generation = topics.generation
        topics.load({"topicConfigTable": {"T": {}}, "dataVersion": {"counter": 7, "timestamp": 3}})
        assert topics.generation > generation
        assert topics.data_version == DataVersion(0, 7, 3)
        assert topics.get("T") == TopicConfig("T", 16, 16, 6)

    def test_fields_and_entries_we_do_not_know_are_written_back(self) -> None:
        foreign = {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
            "futureTable": {"a": [1, 2]},
            "topicConfigTable": {
                "T": {"topicName": "T", "perm": 6, "liteMode": "x", "attributes": {"+x": "1"}},
                "%LMQ%a/b": {"topicName": "%LMQ%a/b", "perm": 6},
                "odd": {"topicName": "odd", "readQueueNums": -1},
                "none": 5,
            },
        }
        topics = TopicTable(RULES)
        findings = topics.load(foreign)
        assert len(findings) == 3 and all("kept but not served" in finding for finding in findings)
        assert [topic.name for topic in topics] == ["T"]
        create(topics, "V")
        again = json.loads(topics.dump())
        assert again["futureTable"] == {"a": [1, 2]}
        assert again["topicConfigTable"]["T"]["liteMode"] == "x"
        assert again["topicConfigTable"]["T"]["attributes"] == {"+x": "1"}
        for name in ("%LMQ%a/b", "odd", "none"):
            assert again["topicConfigTable"][name] == foreign["topicConfigTable"][name]  # type: ignore[index]

    def test_numbers_may_be_text_and_nulls_are_defaults(self) -> None:
        topics = TopicTable(RULES)
        topics.load(
            {
                "topicConfigTable": {
                    "T": {"perm": "4", "readQueueNums": None, "order": None, "attributes": None}
                }
            }
        )
        assert topics.get("T") == TopicConfig("T", 16, 16, 4)

    def test_a_cluster_named_as_no_topic_may_be_is_still_served_after_a_restart(self) -> None:
        rules = TopicRules(cluster="eu.west", broker="b")
        topics, again = table(rules), TopicTable(rules)
        assert again.load(fastjson.loads(topics.dump())) == []
        assert again.get("eu.west") == topics.get("eu.west")

    @pytest.mark.parametrize("attribute", [{"queue.type": "BatchCQ"}, {"cleanup.policy": "COMPACTION"}])
    def test_a_store_whose_queues_would_be_misread_is_refused(self, attribute: dict[str, str]) -> None:
        with pytest.raises(StoreConfigRefused, match="topic T of this store"):
            TopicTable(RULES).load({"topicConfigTable": {"T": {"attributes": attribute}}})

    @pytest.mark.parametrize("value", [{}, {"topicConfigTable": None}, {"topicConfigTable": [1]}])
    def test_a_file_with_nothing_usable_in_it_is_an_empty_table(self, value: dict[str, Any]) -> None:
        topics = TopicTable(RULES)
        assert topics.load(value) == []
        assert len(topics) == 0
