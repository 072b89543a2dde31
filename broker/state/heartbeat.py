"""Heartbeats (34) of clients, read from any dialect of the known clients.

    {"clientID":c, "consumerDataSet":[{"groupName":g, "subscriptionDataSet":[...], ...}],
    "producerDataSet":[...]}

Java's fastjson may write a repeated object as `{"$ref":...}`, Go leaves fields out or sends null: all of
that reads as what was meant. What is not a heartbeat, or larger than any honest one, is `HeartbeatRefused`
as a whole, so that nothing of it is kept: the bytes come from strangers. The bounds are far above what real
clients send.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from broker.state.data_version import int_of
from broker.state.subscription import SubscriptionData, split_in_slices
from ropewalk.format import fastjson
from ropewalk.format.sliced_json import finish, loads_in_slices

__all__ = ["BROADCASTING", "CLUSTERING", "ConsumerData", "HeartbeatData", "HeartbeatRefused"]

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"

HEARTBEAT_SIZE_MAX = 1 << 20
GROUPS_PER_CLIENT_MAX = 1_000
SUBSCRIPTIONS_PER_HEARTBEAT_MAX = 5_000
"""Subscriptions and their tags together."""
SUBSCRIPTIONS_PER_GROUP_MAX = 1_000
"""Of one group they are taken over within one step."""
NAME_SIZE_MAX = 255
CLIENT_ID_SIZE_MAX = 1_024
SUBSCRIPTIONS_PER_STEP = 50
"""Subscriptions and groups that are read, or registered, before others are served."""
TAGS_AT_ONCE_MAX = 100
"""Tags of a subscription that is read within one step."""


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
        return finish(cls.decode_in_slices(body))

    @classmethod
    def decode_in_slices(cls, body: bytes) -> Generator[None, None, HeartbeatData]:
        """Read a heartbeat as `decode` does, a slice at each step; an ordinary one within the first step."""
        if len(body) > HEARTBEAT_SIZE_MAX:
            raise HeartbeatRefused(f"a heartbeat of {len(body)} bytes; at most {HEARTBEAT_SIZE_MAX} are read")
        try:
            value = yield from loads_in_slices(body, HEARTBEAT_SIZE_MAX)
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
        read = []
        for entry in consumers:
            consumer = yield from _consumer(entry, budget)
            read.append(consumer)
        return cls(
            client_id,
            tuple(read),
            tuple(dict.fromkeys(_name(entry, "groupName") for entry in producers)),
            int_of(value.get("heartbeatFingerprint"), 0),
            value.get("withoutSub") is True,
        )

    def with_consumers(self, consumers: Iterable[ConsumerData]) -> HeartbeatData:
        """Return the same heartbeat with these consumer groups only; the others may not exist."""
        return replace(self, consumers=tuple(consumers))

    def parts(self) -> Iterator[HeartbeatData]:
        """Cut a large heartbeat into several of the same meaning; an ordinary one is its only part."""
        part: list[ConsumerData] = []
        count = 0
        rest = self
        for consumer in self.consumers:
            if part and count + len(consumer.subscriptions) > SUBSCRIPTIONS_PER_STEP:
                yield replace(self, consumers=tuple(part), producers=())
                part, count = [], 0
                rest = replace(self, consumers=())
            part.append(consumer)
            count += 1 + len(consumer.subscriptions)
        yield self if rest is self else replace(self, consumers=tuple(part))


class _Budget:
    """Counts subscriptions down over a whole heartbeat: `$ref` can name one large set a thousand times."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.steps = 0

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise HeartbeatRefused(
                f"more than {SUBSCRIPTIONS_PER_HEARTBEAT_MAX} subscriptions or tags in one heartbeat"
            )


def _consumer(entry: dict[str, Any], budget: _Budget) -> Generator[None, None, ConsumerData]:
    wishes: list[SubscriptionData] = []
    values = _objects(entry, "subscriptionDataSet")
    if len(values) > SUBSCRIPTIONS_PER_GROUP_MAX:
        raise HeartbeatRefused(
            f"{len(values)} subscriptions of one group; at most {SUBSCRIPTIONS_PER_GROUP_MAX} are kept"
        )
    for value in values:
        budget.steps += 1
        if budget.steps % SUBSCRIPTIONS_PER_STEP == 0:
            yield
        # A tag costs about as much to read and to keep as a subscription without one.
        tags = _tag_count(value)
        budget.take(1 + tags)
        if tags > TAGS_AT_ONCE_MAX and isinstance(value.get("subString"), str):
            yield from split_in_slices(value["subString"])
            yield
        wishes.append(SubscriptionData.from_json(value, _name(value, "topic")))
    return ConsumerData(
        _name(entry, "groupName"),
        _text(entry.get("consumeType"), "CONSUME_PASSIVELY"),
        _text(entry.get("messageModel"), CLUSTERING),
        _text(entry.get("consumeFromWhere"), "CONSUME_FROM_LAST_OFFSET"),
        tuple(wishes),
        entry.get("unitMode") is True,
    )


def _tag_count(value: dict[str, Any]) -> int:
    """Return the number of tags that an object of a subscription names, before any of them is looked at."""
    sets = [len(items) for key in ("codeSet", "tagsSet") if isinstance(items := value.get(key), list)]
    expression = value.get("subString")
    return max(
        [*sets, expression.count("||") + 1 if isinstance(expression, str) and expression != "*" else 0]
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
