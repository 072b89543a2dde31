"""Consumer offsets: stored as they come, unknown is unknown, and RocketMQ reads the file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state.offsets import QUEUE_ID_MAX, OffsetTable, real_queue_id
from ropewalk.format import fastjson
from tests.support.links import From

NOW = 1_700_000_000_000


def test_a_committed_offset_is_found_again() -> None:
    table = OffsetTable()
    assert table.commit("g", "T", 3, 42) is None
    assert table.query("g", "T", 3) == 42


def test_what_was_never_committed_is_unknown_and_not_zero() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 7)
    for group, topic, queue_id in (("g", "T", 1), ("g", "U", 0), ("h", "T", 0)):
        assert table.query(group, topic, queue_id) is None


def test_a_committed_zero_is_zero() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 0)
    assert table.query("g", "T", 0) == 0


def test_a_commit_may_go_backwards_and_says_so() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 100)
    assert table.commit("g", "T", 0, 40) == 100
    assert table.query("g", "T", 0) == 40


def test_a_negative_offset_is_stored_as_it_came_and_counts_as_none() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, -1)
    assert table.query("g", "T", 0) is None


@pytest.mark.parametrize("queue_id", [-1, QUEUE_ID_MAX + 1, 1 << 40])
def test_a_queue_that_cannot_exist_is_refused(queue_id: int) -> None:
    table = OffsetTable()
    with pytest.raises(ValueError, match="cannot exist"):
        table.commit("g", "T", queue_id, 1)
    assert table.changed == 0 and len(table) == 0


def test_strangers_cannot_pair_topics_with_groups_without_end() -> None:
    table = OffsetTable(pairs_max=10)
    for n in range(10):
        table.commit("g", f"T{n}", 0, 1)
    with pytest.raises(ValueError, match="are the most"):
        table.commit("g", "T10", 0, 1)
    table.commit("g", "T3", 1, 2)
    assert len(table) == 10


def test_an_address_that_has_as_many_pairs_as_are_free_is_refused_and_no_other_one() -> None:
    table = OffsetTable(pairs_max=10)
    greedy, honest = From("192.0.2.1"), From("192.0.2.2")
    refused = 0
    for n in range(20):
        try:
            table.commit("g", f"T{n}", 0, 1, greedy)
        except ValueError:
            refused += 1
    assert (len(table), refused) == (5, 15)
    table.commit("mine", "T0", 0, 1, honest)
    table.commit("g", "T3", 1, 2, greedy)
    table.remove_topic("T0")
    table.commit("g", "T11", 0, 1, greedy)
    assert len(table) == 5, "what is removed counts no more"


def test_only_a_change_counts_as_one() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 5)
    assert table.changed == 1
    table.commit("g", "T", 0, 5)
    assert table.changed == 1
    table.commit("g", "T", 0, 4)
    assert table.changed == 2


def test_removing_a_topic_or_a_group_takes_its_offsets_and_no_others() -> None:
    table = OffsetTable()
    for group in ("g", "h"):
        for topic in ("T", "U"):
            table.commit(group, topic, 0, 1)
    table.reset("g", "T", 0, 5)
    table.reset("h", "U", 0, 5)
    changed = table.changed
    assert table.remove_topic("T") == 2
    assert table.remove_group("h") == 1
    assert table.changed == changed + 3
    assert table.topics_of("g") == ["U"] and table.topics_of("h") == []
    assert table.groups_of("U") == ["g"] and table.groups_of("T") == []
    assert table.remove_topic("T") == 0
    assert table.take_reset("g", "T", 0, 1) is None and table.take_reset("h", "U", 0, 1) is None, (
        "nor what waits"
    )


def test_the_file_is_written_as_rocketmq_writes_it() -> None:
    table = OffsetTable()
    table.commit("groupA", "TopicTest", 0, 37960)
    table.commit("groupA", "TopicTest", 1, 37961)
    assert table.dump(NOW) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},'
        b'\n\t"groupTopicMap":{\n\t\t"groupA":[\n\t\t\t"TopicTest"\n\t\t]\n\t},'
        b'\n\t"offsetTable":{\n\t\t"TopicTest@groupA":{0:37960,1:37961\n\t\t}\n\t}\n}'
    )


def test_an_empty_table_is_a_file_too() -> None:
    table = OffsetTable()
    assert fastjson.loads(table.dump(NOW))["offsetTable"] == {}
    assert OffsetTable().load(fastjson.loads(table.dump(NOW))) == []


def test_a_dump_without_a_change_since_the_last_keeps_its_version() -> None:
    table = OffsetTable()
    table.commit("g", "T", 0, 1)
    first = table.dump(NOW)
    assert table.dump(NOW + 5) == first
    table.commit("g", "T", 0, 2)
    table.dump(NOW + 9)
    assert (table.data_version.counter, table.data_version.timestamp) == (2, NOW + 9)


@pytest.mark.parametrize("keys", ["{0:37960,1:37961}", '{"0":37960,"1":37961}', '{0:"37960",1:37961.0}'])
def test_files_load_whether_their_queue_ids_are_quoted_or_not(keys: str) -> None:
    table = OffsetTable()
    assert table.load(fastjson.loads('{"offsetTable":{"TopicTest@groupA":' + keys + "}}")) == []
    assert table.queues("groupA", "TopicTest") == {0: 37960, 1: 37961}


def test_what_is_not_understood_is_reported_and_written_back() -> None:
    foreign: dict[str, Any] = {
        "dataVersion": {"counter": 4, "timestamp": 9},
        "lmqOffsetTable": {"%LMQ%t@%LMQ%g": 5},
        "offsetTable": {"T@g": {"0": 1}, "noSeparator": {"0": 2}, "a@b@c": {"0": 3}, "T@h": {"0": "x"}},
    }
    table = OffsetTable()
    findings = table.load(foreign)
    assert len(findings) == 3
    assert table.query("h", "T", 0) is None
    table.commit("g", "T", 0, 8)
    again = fastjson.loads(table.dump(NOW))
    assert again["lmqOffsetTable"] == {"%LMQ%t@%LMQ%g": 5}
    assert again["offsetTable"] == foreign["offsetTable"] | {"T@g": {"0": 8}}
    assert again["dataVersion"]["counter"] == 5


@pytest.mark.parametrize(
    "value", [{}, {"offsetTable": None}, {"offsetTable": []}, {"offsetTable": {"T@g": None}}]
)
def test_a_file_with_nothing_usable_in_it_is_an_empty_table(value: dict[str, object]) -> None:
    table = OffsetTable()
    table.load(value)
    assert len(table) == 0


names = st.text("abcXYZ0189_-%|", min_size=1, max_size=20)


@given(st.dictionaries(st.tuples(names, names, st.integers(0, QUEUE_ID_MAX)), st.integers(0, (1 << 63) - 1)))
def test_any_table_survives_its_own_file(content: dict[tuple[str, str, int], int]) -> None:
    table, again = OffsetTable(), OffsetTable()
    for (group, topic, queue_id), offset in content.items():
        table.commit(group, topic, queue_id, offset)
    assert again.load(fastjson.loads(table.dump(NOW))) == []
    for (group, topic, queue_id), offset in content.items():
        assert again.query(group, topic, queue_id) == offset
    assert again.dump(NOW) == table.dump(NOW)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        (str(QUEUE_ID_MAX), QUEUE_ID_MAX),
        (str(QUEUE_ID_MAX + 1), None),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("\u0663", None),
    ],
)
def test_the_queue_of_a_message_that_is_held_back_is_read_from_plain_digits_only(
    text: str, found: int | None
) -> None:
    assert real_queue_id({"REAL_QID": text}) == found
    assert real_queue_id({}) is None


def test_offsets_of_many_queues_and_many_pairs_are_written_in_slices() -> None:
    table = OffsetTable()
    for queue_id in range(1_000):
        table.commit("g", "wide", queue_id, queue_id * 7)
    for number in range(1_000):
        table.commit("many", f"T{number}", 0, number)
    text, steps = b"", 0
    writing = table.dump_in_slices(NOW)
    while not text:
        try:
            next(writing)
        except StopIteration as finished:
            text = finished.value
        steps += 1
    assert steps > 4
    again = OffsetTable()
    assert again.load(fastjson.loads(text)) == []
    assert again.queues("g", "wide") == {queue_id: queue_id * 7 for queue_id in range(1_000)}
    assert again.queues("many", "T7") == {0: 7} and len(again) == 1_001
    assert fastjson.loads(text)["groupTopicMap"]["many"] == [f"T{number}" for number in range(1_000)]
    times = fastjson.loads(table.dump_times())
    assert len(times) == 1_001 and len(times["wide@g"]) == 1_000
