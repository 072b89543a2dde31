"""Heartbeats (34) of clients, read from any dialect of the known clients.

    {"clientID":c, "consumerDataSet":[{"groupName":g, "subscriptionDataSet":[...], ...}],
    "producerDataSet":[...]}

Java's fastjson may write a repeated object as `{"$ref":...}`, Go leaves fields out or sends null: all of
that reads as what was meant. What is not a heartbeat, or larger than any honest one, is `HeartbeatRefused`
as a whole, so that nothing of it is kept: the bytes come from strangers. The bounds are far above what real
clients send.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from broker.state.data_version import int_of
from broker.state.subscription import SubscriptionData
from ropewalk.format import fastjson

__all__ = ["BROADCASTING", "CLUSTERING", "ConsumerData", "HeartbeatData", "HeartbeatRefused"]

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"

HEARTBEAT_SIZE_MAX = 1 << 20
GROUPS_PER_CLIENT_MAX = 1_000
SUBSCRIPTIONS_PER_HEARTBEAT_MAX = 5_000
"""Subscriptions and their tags together."""
NAME_SIZE_MAX = 255
CLIENT_ID_SIZE_MAX = 1_024


class HeartbeatRefused(ValueError):
    """The body is no heartbeat, or larger than any honest one; its text is the remark of the answer."""


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A consumer group's part of a heartbeat."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The body of code 34."""

    client_id: str
    consumers: tuple[ConsumerData, ...] = ()
    producers: tuple[str, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False
    """Heartbeat v2's short form: who, but not what; subscriptions stay as they are."""

    @classmethod
    def decode(cls, body: bytes) -> HeartbeatData:
        """Read a client's heartbeat, in any dialect of the known clients. Raises `HeartbeatRefused`."""
        if len(body) > HEARTBEAT_SIZE_MAX:
            raise HeartbeatRefused(f"a heartbeat of {len(body)} bytes; at most {HEARTBEAT_SIZE_MAX} are read")
        try:
            value = fastjson.loads(body)
        except fastjson.FastjsonError as exc:
            raise HeartbeatRefused(f"the heartbeat is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise HeartbeatRefused("the heartbeat is not a JSON object")
        client_id = value.get("clientID")
        if not isinstance(client_id, str) or not 0 < len(client_id) <= CLIENT_ID_SIZE_MAX:
            raise HeartbeatRefused(f"clientID must be text of 1 to {CLIENT_ID_SIZE_MAX} characters")
        consumers = _objects(value, "consumerDataSet")
        producers = _objects(value, "producerDataSet")
        if len(consumers) > GROUPS_PER_CLIENT_MAX or len(producers) > GROUPS_PER_CLIENT_MAX:
            raise HeartbeatRefused(
                f"{len(consumers)} consumer and {len(producers)} producer groups; a client may have "
                f"{GROUPS_PER_CLIENT_MAX} of each"
            )
        budget = _Budget(SUBSCRIPTIONS_PER_HEARTBEAT_MAX)
        return cls(
            client_id,
            tuple(_consumer(entry, budget) for entry in consumers),
            tuple(dict.fromkeys(_name(entry, "groupName") for entry in producers)),
            int_of(value.get("heartbeatFingerprint"), 0),
            value.get("withoutSub") is True,
        )

    def with_consumers(self, consumers: Iterable[ConsumerData]) -> HeartbeatData:
        """Return the same heartbeat with these consumer groups only; the others may not exist."""
        return replace(self, consumers=tuple(consumers))


class _Budget:
    """Counts subscriptions down over a whole heartbeat: `$ref` can name one large set a thousand times."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise HeartbeatRefused(
                f"more than {SUBSCRIPTIONS_PER_HEARTBEAT_MAX} subscriptions or tags in one heartbeat"
            )


def _consumer(entry: dict[str, Any], budget: _Budget) -> ConsumerData:
    wishes: list[SubscriptionData] = []
    for value in _objects(entry, "subscriptionDataSet"):
        wish = SubscriptionData.from_json(value, _name(value, "topic"))
        # A tag costs about as much to keep as a subscription without one.
        budget.take(1 + max(len(wish.codes), len(wish.tags)))
        wishes.append(wish)
    return ConsumerData(
        _name(entry, "groupName"),
        _text(entry.get("consumeType"), "CONSUME_PASSIVELY"),
        _text(entry.get("messageModel"), CLUSTERING),
        _text(entry.get("consumeFromWhere"), "CONSUME_FROM_LAST_OFFSET"),
        tuple(wishes),
        entry.get("unitMode") is True,
    )


def _objects(value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects; null and absent are the empty one, and what is no object is left out."""
    items = value.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _name(value: dict[str, Any], key: str) -> str:
    name = value.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= NAME_SIZE_MAX:
        raise HeartbeatRefused(f"{key} must be text of 1 to {NAME_SIZE_MAX} characters")
    return name


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) and 0 < len(value) <= NAME_SIZE_MAX else default
