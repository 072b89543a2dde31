"""A topic, a group and a committed offset to make at one broker, and to find at another one of its group."""

from __future__ import annotations

from typing import Any

from ropewalk.client.blocking.connection import Connection
from ropewalk.codes import RequestCode, ResponseCode
from ropewalk.errors import RopewalkError
from ropewalk.format import fastjson
from ropewalk.format.remoting import Command

TOPIC, GROUP = "plans", "planners"


def call(address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    with Connection(address, 30.0) as connection:
        return connection.call(Command(code, ext or {}, body))


def table(address: str, code: int, name: str) -> dict[str, Any]:
    """One table of a broker; empty while it cannot be asked."""
    try:
        answer = call(address, code)
    except (RopewalkError, OSError):
        return {}
    value = fastjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else {}
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def plan(address: str, offset: int) -> None:
    """A topic, a group and what it has committed, at a master."""
    topic = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
    }
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    group = fastjson.dumps({"groupName": GROUP, "retryMaxTimes": 7, "consumeEnable": True})
    assert call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
    commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "1", "commitOffset": str(offset)}
    assert call(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0


def told(*addresses: str) -> str:
    """What each of them knows."""
    return "\n".join(
        f"{address}: {table(address, RequestCode.GET_ALL_TOPIC_CONFIG, 'topicConfigTable').get(TOPIC)} "
        f"{table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 'subscriptionGroupTable').get(GROUP)} "
        f"{table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, 'offsetTable')}"
        for address in addresses
    )


def has_plan(address: str, offset: int) -> bool:
    """Whether a slave knows all of it."""
    topic = table(address, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable").get(TOPIC) or {}
    groups = table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")
    offsets = table(address, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable").get(f"{TOPIC}@{GROUP}") or {}
    return (
        topic.get("writeQueueNums") == 3
        and (groups.get(GROUP) or {}).get("retryMaxTimes") == 7
        and {str(queue): value for queue, value in offsets.items()} == {"1": offset}
    )
