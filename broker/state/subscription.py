"""Subscriptions of consumers to a topic: a tag expression, and the test that a queue entry passes or not.

    *                 everything (so do an empty and an absent expression)
    TagA || TagB      messages whose tag is one of these; blanks around a tag do not count

The broker never looks at the tag itself: a queue entry holds the tag's 32-bit Java hash, and that is
compared. Two tags with one hash both pass here, and the client, which has the text, drops the stranger. A
message without a tag has code 0 and passes `*` alone. SQL92 expressions are carried as they came: they are
judged by a message's properties (`broker.consume.filters`), which no queue entry holds, so `matches` lets
everything through for them.

Expressions come from strangers, some thousand tags in each. A text is split and hashed once, and its tags are one
object for all subscriptions and pulls that have it, while it is remembered.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from sys import getsizeof
from typing import Any, Final

from broker.state.data_version import int_of
from ropewalk.format.properties import java_hash
from ropewalk.format.sliced_json import finish
from ropewalk.lru import SizedCache

__all__ = [
    "ALL",
    "SQL92",
    "TAG",
    "SubscriptionData",
    "SubscriptionParseError",
    "is_at_hand",
    "split_in_slices",
]

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"
EXPRESSION_SIZE_MAX = 65_536
"""Characters. A header has to fit its frame anyway; this is the most that one pull may ask to split."""
TAGS_MAX = 5_000
"""Tags of one expression: each is hashed."""
_AT_ONCE_MAX: Final = 1_000
"""Characters of an expression that is split as it comes; a longer one is split in steps."""
_TAGS_PER_STEP: Final = 500
_TAG_SIZE: Final = 160
"""Bytes that a tag takes besides its characters: in a tuple, in a set, and as a hash."""


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
        refusal = _size_refusal(expression)
        if refusal is not None:
            raise SubscriptionParseError(f"the subscription to topic {topic} {refusal}")
        known = finish(split_in_slices(expression))
        if not known.tags:
            raise SubscriptionParseError(
                f"the subscription {expression[:80]!r} of topic {topic} names no tag"
            )
        return cls(topic, known.expression, known.tags, known.codes, version, kind)

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
        if kind == TAG and expression != ALL:
            known = finish(split_in_slices(expression))
            if not codes and tags:
                codes = frozenset(map(java_hash, tags))
            if (not codes and not tags) or (codes == known.codes and set(tags) == set(known.tags)):
                # As nearly all clients say it: the sets of all that do so are one in memory.
                expression, tags, codes = known.expression, known.tags, known.codes
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


@dataclass(frozen=True, slots=True)
class _Tags:
    """The tags of an expression, each once, in the order written, and their hashes."""

    expression: str
    tags: tuple[str, ...]
    codes: frozenset[int]


_known: Final[SizedCache[str, _Tags]] = SizedCache(count_max=10_000, size_max=16 << 20)


def is_at_hand(expression: str) -> bool:
    """Tell whether `SubscriptionData.parse` takes no time for a tag expression to speak of."""
    return len(expression) <= _AT_ONCE_MAX or expression in _known or _size_refusal(expression) is not None


def split_in_slices(expression: str) -> Generator[None, None, _Tags]:
    """Split a tag expression within its bounds, a part at each step, and remember its tags."""
    known = _known.get(expression)
    if known is None:
        tags: dict[str, None] = {}
        codes: set[int] = set()
        parts = expression.split("||")
        for at in range(0, len(parts), _TAGS_PER_STEP):
            if at:
                yield
            more = dict.fromkeys(tag for part in parts[at : at + _TAGS_PER_STEP] if (tag := part.strip()))
            tags |= more
            codes.update(map(java_hash, more))
        known = _Tags(expression, tuple(tags), frozenset(codes))
        size = 2 * getsizeof(expression) + _TAG_SIZE * (4 + len(tags))
        _known.put(expression, known, size)
    return known


def _size_refusal(expression: str) -> str | None:
    """Return why a tag expression is not read, behind the words that name it; None if it is."""
    if len(expression) > EXPRESSION_SIZE_MAX:
        return f"is too long: it has {len(expression)} characters; at most {EXPRESSION_SIZE_MAX} are read"
    if expression.count("||") >= TAGS_MAX:
        return (
            f"has more than {TAGS_MAX} tags: subscribe to all of them, or to fewer, or filter by a property"
        )
    return None


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
