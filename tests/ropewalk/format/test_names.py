from __future__ import annotations

import pytest

from ropewalk.format.names import (
    SEND_FORBIDDEN_TOPICS,
    check_group,
    check_topic,
    dlq_topic,
    is_system_group,
    is_system_topic,
    reply_topic,
    retry_topic,
)


@pytest.mark.parametrize(
    "name", ["a", "Topic-1_x", "%RETRY%g", "%DLQ%g", "a|b", "x" * 127, "%RETRY%" + "g" * 248]
)
def test_names_made_of_allowed_characters_pass(name: str) -> None:
    assert check_topic(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x" * 128, "128 characters, 127"),
        ("%RETRY%" + "g" * 249, "256 characters, 255"),
        ("../../etc/passwd", "'.' at position 0"),
        ("/abs", "'/'"),
        ("a\\b", "position 1"),
        ("a b", "' '"),
        ("a\n", "position 1"),
        ("a\0", "position 1"),
        ("straße", "'ß'"),
        ("主题", "position 0"),
        ("٣", "position 0"),
        ("a@b", "'@'"),
        ("a#b", "'#'"),
    ],
)
def test_names_that_are_paths_too_long_empty_or_strange_are_refused_with_the_reason(
    name: str, reason: str
) -> None:
    assert reason in (check_topic(name) or "")


def test_a_group_has_a_limit_of_its_own() -> None:
    assert check_group("g" * 120) is None
    assert "121 characters, 120" in (check_group("g" * 121) or "")
    assert "group name is empty" in (check_group("") or "")


@pytest.mark.parametrize(
    "name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
def test_system_topics_are_known(name: str) -> None:
    assert is_system_topic(name)
    assert check_topic(name) is None


def test_users_topics_and_groups_are_not_the_systems() -> None:
    assert not is_system_topic("orders")
    assert not is_system_topic("%RETRY%orders")
    assert not is_system_group("billing")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert is_system_group("TOOLS_CONSUMER")


def test_only_system_topics_are_closed_to_senders() -> None:
    assert all(is_system_topic(name) for name in SEND_FORBIDDEN_TOPICS)
    assert "TBW102" not in SEND_FORBIDDEN_TOPICS


def test_derived_topics_carry_the_name_they_come_from() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"
    assert reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
