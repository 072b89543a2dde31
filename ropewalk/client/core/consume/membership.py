"""Membership requests: heartbeat (34), unregister (35), and the member list of a group (38). Pure.

A heartbeat names every group its client belongs to; brokers forget a client that has been silent for two minutes.
Who is silent for `HEARTBEAT_S` seconds towards a broker it uses speaks up, as the official clients do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.client.core.messages import command_of
from ropewalk.codes import RequestCode
from ropewalk.format.headers import ConsumerGroupHeader, UnregisterClientHeader
from ropewalk.format.properties import java_hash
from ropewalk.format.remoting import Command

HEARTBEAT_S = 30.0
HEARTBEAT_TIMEOUT_S = 3.0

TAG: Final = "TAG"
SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription to one topic: `*`, tags as in `"paid || refunded"`, or an SQL92 expression over properties."""

    topic: str
    expression: str = "*"
    version: int = 0
    """Milliseconds at which it was made; brokers keep the newest."""
    kind: str = TAG
    """The type of the expression: tags, or `SQL92`."""
    tags: tuple[str, ...] = field(init=False)
    """The tags that are wanted; empty for all, and where the expression is not of tags."""

    def __post_init__(self) -> None:
        text = self.expression.strip()
        tags = (
            ()
            if text in ("", "*") or self.kind != TAG
            else tuple(filter(None, (tag.strip() for tag in text.split("||"))))
        )
        object.__setattr__(self, "tags", tuple(dict.fromkeys(tags)))

    @property
    def is_filtered(self) -> bool:
        """Return whether messages of the topic may be left out, so that a gap between two of them means nothing."""
        return bool(self.tags) or self.kind != TAG

    def wants(self, tags: str | None) -> bool:
        """Return the exact test; a broker's is by hash and may let a stranger through."""
        return not self.tags or tags in self.tags

    def document(self) -> dict[str, Any]:
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in self.tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }


def consumer_document(
    group: str, subscriptions: Sequence[Subscription], *, active: bool, broadcasting: bool, consume_from: str
) -> Mapping[str, Any]:
    """Return a consumer's entry in a heartbeat. `active` consumers pull when they like; others are pushed to."""
    return {
        "consumeFromWhere": consume_from,
        "consumeType": "CONSUME_ACTIVELY" if active else "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "BROADCASTING" if broadcasting else "CLUSTERING",
        "subscriptionDataSet": [subscription.document() for subscription in subscriptions],
        "unitMode": False,
    }


def heartbeat_request(
    client_id: str, producers: Sequence[str] = (), consumers: Sequence[Mapping[str, Any]] = ()
) -> Command:
    """Return a heartbeat, in full: the short form of RocketMQ 5 saves little and needs a memory on both sides."""
    body = {
        "clientID": client_id,
        "consumerDataSet": list(consumers),
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": group} for group in producers],
        "withoutSub": False,
    }
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(body, separators=(",", ":")).encode())


def unregister_request(
    client_id: str, *, producer: str | None = None, consumer: str | None = None
) -> Command:
    """Tell a broker that this client leaves a group."""
    header = UnregisterClientHeader(client_id=client_id, producer_group=producer, consumer_group=consumer)
    return command_of(RequestCode.UNREGISTER_CLIENT, header)


def members_request(group: str) -> Command:
    """Ask a broker for the client ids of a consumer group."""
    return command_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(group))
