"""Names of topics and groups: allowed characters and lengths, prefixes, and the names of the system itself.

A name is letters, digits and `_ - % |`. That keeps it free of path separators and blanks: it becomes a
directory of the store, a key of JSON files and a word in texts. Retry and dead-letter topics carry their
group's name behind a prefix and may be longer than others.
"""

from __future__ import annotations

import re
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

DEFAULT_TOPIC: Final = "TBW102"
"""The topic from which others are created; clients call it the create key."""

SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_LOG_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

TERM_TOPIC: Final = "rmq_sys_ROPEWALK_TERM"
META_TOPIC: Final = "rmq_sys_ROPEWALK_META"
SINK_TOPIC: Final = "rmq_sys_ROPEWALK_SINK"
SINK_GROUP_PREFIX: Final = "%RWSINK%"
"""Begins the hidden group whose offsets tell how far a sink of a pipeline has come."""
SINK_MARKS: Final = range(65_533, 65_536)
"""Queue ids that no topic reaches, under which such a group keeps numbers that are no offsets."""
KV_TOPIC: Final = "rmq_sys_ROPEWALK_KV"
"""The topic of records in the log of a region of the key-value store, which is no log of messages."""
HIDDEN_TOPICS: Final = frozenset({TERM_TOPIC, META_TOPIC, SINK_TOPIC, KV_TOPIC})
"""Ropewalk's internal topics: dispatched like any other and shown in no list."""

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
    }
)

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics that only the broker itself may write to. RocketMQ's brokers take messages for the timer topic: those forge
recalls, and messages for queues and topics that their sender could not reach."""

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)

TOPIC_SIZE_MAX: Final = 127
RETRY_TOPIC_SIZE_MAX: Final = 255
GROUP_SIZE_MAX: Final = 120

# Never `str.isalnum`: it takes letters of every script, and in a name two of them may look alike.
_FORBIDDEN: Final = re.compile(r"[^%|a-zA-Z0-9_-]")


def check_topic(name: str) -> str | None:
    """Return the reason, in words for its user, why a name cannot be a topic's; None if it can."""
    long = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _check(name, "topic", RETRY_TOPIC_SIZE_MAX if long else TOPIC_SIZE_MAX)


def check_group(name: str) -> str | None:
    """Return the reason, in words for its user, why a name cannot be a group's; None if it can."""
    return _check(name, "group", GROUP_SIZE_MAX)


def _check(name: str, kind: str, size_max: int) -> str | None:
    if not name.strip():
        return f"the {kind} name is empty"
    if len(name) > size_max:
        return f"the {kind} name has {len(name)} characters, {size_max} is the limit"
    forbidden = _FORBIDDEN.search(name)
    if forbidden:
        return (
            f"the {kind} name contains {forbidden.group()!r} at position {forbidden.start()}; "
            "letters, digits and _ - % | are allowed"
        )
    return None


def is_system_topic(name: str) -> bool:
    """Return True for a topic of the brokers and not of a user."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Return True for a group of the brokers or tools and not of a user."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic that holds a group's messages until they are tried again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that holds a group's dead letters."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic through which answers of request-reply calls go in a cluster."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"
