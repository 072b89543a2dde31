"""Subscriptions of consumers to a topic: a tag expression, and the test that a queue entry passes or not.

    *                 everything (so do an empty and an absent expression)
    TagA || TagB      messages whose tag is one of these; blanks around a tag do not count

The broker never looks at the tag itself: a queue entry holds the tag's 32-bit Java hash, and that is
compared. Two tags with one hash both pass here, and the client, which has the text, drops the stranger. A
message without a tag has code 0 and passes `*` alone. SQL92 expressions are carried as they came: they are
judged by a message's properties (`broker.consume.filters`), which no queue entry holds, so `matches` lets
everything through for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker.state.data_version import int_of
from ropewalk.format.properties import java_hash

__all__ = ["ALL", "SQL92", "TAG", "SubscriptionData", "SubscriptionParseError"]

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
EXPRESSION_SIZE_MAX = 65_536
"""Characters. A header has to fit its frame anyway; this is the most that one pull may ask to split."""
TAGS_MAX = 5_000
"""Tags of one expression: each is hashed."""


class SubscriptionParseError(ValueError):
    """The expression names no tag at all: a consumer that asks so would wait for ever (23)."""


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """A group's subscription to a topic."""

    topic: str
    expression: str = ALL
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()
    version: int = 0
    """The client's clock in milliseconds when it subscribed; the larger one is the newer one."""
    expression_type: str = TAG
    class_filter: bool = False

    @classmethod
    def parse(
        cls, topic: str, expression: str | None, *, version: int = 0, expression_type: str | None = TAG
    ) -> SubscriptionData:
        """Read the expression of a pull request or of a subscriber. Raises `SubscriptionParseError`."""
        kind = expression_type or TAG
        if kind != TAG:
            if not expression:
                raise SubscriptionParseError(f"the {kind} expression for topic {topic} is empty")
            return cls(topic, expression, version=version, expression_type=kind)
        if not expression or expression == ALL:
            return cls(topic, ALL, version=version, expression_type=kind)
        if len(expression) > EXPRESSION_SIZE_MAX:
            raise SubscriptionParseError(f"a subscription of {len(expression)} characters is too long")
        if expression.count("||") >= TAGS_MAX:
            raise SubscriptionParseError(f"a subscription of more than {TAGS_MAX} tags")
        tags = _split(expression)
        if not tags:
            raise SubscriptionParseError(f"the subscription {expression!r} of topic {topic} names no tag")
        return cls(topic, expression, tags, frozenset(map(java_hash, tags)), version, kind)

    def matches(self, tags_code: int) -> bool:
        """Tell whether a queue entry with this tag hash may match; `True` can still be another tag's hash."""
        return (
            tags_code in self.codes
            or self.expression == ALL
            or self.expression_type != TAG
            or self.class_filter
        )

    @property
    def wants_all(self) -> bool:
        """True when no message can be refused, so that a reader need not ask for each."""
        return (self.expression == ALL and self.expression_type == TAG) or self.class_filter

    def same_wish(self, other: SubscriptionData) -> bool:
        """Tell whether both ask for the same messages, in any order and version."""
        return (
            self.expression_type == other.expression_type
            and self.class_filter == other.class_filter
            and (
                self.expression.strip() == other.expression.strip()
                or (self.expression_type == TAG and bool(self.codes) and self.codes == other.codes)
            )
        )

    def to_json(self) -> dict[str, Any]:
        """The object that heartbeats and connection lists carry."""
        return {
            "classFilterMode": self.class_filter,
            "codeSet": sorted(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], topic: str) -> SubscriptionData:
        """Read a client's own object for `topic`; sets it did not send are worked out from the expression.

        Go's client sends null for sets and leaves the type out. What the sets say is believed over the
        expression, as RocketMQ does: a client may hash in its own way. An expression without a tag matches
        nothing instead of raising, because one odd subscription must not cost the client its heartbeat.
        """
        expression = value.get("subString")
        expression = expression if isinstance(expression, str) and expression else ALL
        kind = value.get("expressionType")
        kind = kind if isinstance(kind, str) and kind else TAG
        tags = tuple(tag for tag in _items(value.get("tagsSet")) if isinstance(tag, str))
        codes = frozenset(
            code
            for code in (int_of(item, _NO_CODE) for item in _items(value.get("codeSet")))
            if code != _NO_CODE
        )
        if kind == TAG and expression != ALL and not codes:
            tags = tags or _split(expression)
            codes = frozenset(map(java_hash, tags))
        return cls(
            topic,
            expression,
            tags,
            codes,
            int_of(value.get("subVersion"), 0),
            kind,
            value.get("classFilterMode") is True,
        )


_NO_CODE = 1 << 63  # no hash is this large


def _split(expression: str) -> tuple[str, ...]:
    """The tags of an expression, each once, in the order written."""
    return tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
