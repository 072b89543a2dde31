"""Which expressions consumer groups filter by, and the filter of one pull: `consumerFilter.json`.

    heartbeat      registers the SQL92 expression of each (topic, group) that counts by the client registry, under its
                   version; each is compiled once, and every pull of the group uses the compiled one
    pull           its own expression, if it brings one (23 if it is none); else the registered one: 27 if there is
                   none, 28 if it is older than the pull; 1 for both as long as `enablePropertyFilter` is false
    the last member leaves        its group's expressions are dead; a heartbeat brings them back to life
    dead for a day (`filterDataCleanTimeSpan`)      forgotten

    {"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":112,"bitPos":[..]},...}},"topic":"T"}}}

The Bloom positions serve RocketMQ's bit maps of queue extensions, which are not kept here. They are written because
RocketMQ drops the whole file without them. What stands in a file is taken over as dead, as there: nobody is connected.

A retry topic is subscribed to with `*` by every client, so what is retried arrives whatever the expression says. With
`filterSupportRetry`, SQL subscriptions of retry topics go by the expression for the topic that a message came from.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from sys import getsizeof
from typing import Any, Final

from broker.consume.bloom import BloomGeometry
from broker.remoting.refused import RequestRefused
from broker.settings.config import BrokerConfig
from broker.state.data_version import int_of
from broker.state.json_text import TextSlices, object_entry, object_text, value_entry
from broker.state.shares import Shares, Stranger
from broker.state.subscription import SQL92, TAG, SubscriptionData
from ropewalk.codes import ResponseCode
from ropewalk.filter import PropertyFilter
from ropewalk.filter.sql92 import (
    SqlFilter,
    SqlSyntaxError,
    compile_filter,
    compile_in_slices,
    is_compiled,
)
from ropewalk.format import names
from ropewalk.format.properties import P, find_property

__all__ = ["FilterData", "FilterRules", "FilterTable", "check_expression"]

ENTRIES_MAX: Final = 20_000
SIZE_MAX: Final = 128 << 20
"""Bytes of all expressions, compiled: they come from whoever sends a heartbeat. One address leaves half of it."""
_FILTERS_PER_STEP: Final = 50
"""Filters whose entries of the file are written before others are served."""
NEW_CHARACTERS_MAX: Final = 32_768
"""Of expressions that one heartbeat of a group has compiled. What is more waits for the next heartbeat."""
_ENTRY_SIZE: Final = 600
_DEAD_AT_LOAD_MS = 30_000
_DISABLED = (
    "The broker does not support consumer to filter message by {}: enablePropertyFilter is false. Set it in the "
    "broker's configuration, or while it runs: ropewalk admin broker config set enablePropertyFilter=true"
)


@dataclass(frozen=True, slots=True)
class FilterRules:
    """The settings of filters in the configuration."""

    enabled: bool = False
    filter_retries: bool = False
    ignore_rest: bool = False
    """Whether text behind a complete expression is ignored, as by RocketMQ, and not an error."""
    clean_ms: int = 86_400_000

    @classmethod
    def of(cls, config: BrokerConfig) -> FilterRules:
        """Return the settings of filters in a configuration."""
        return cls(
            config.enable_property_filter,
            config.filter_support_retry,
            config.filter_ignore_trailing_text,
            config.filter_data_clean_time_span,
        )


@dataclass(slots=True)
class FilterData:
    """A group's expression for one topic."""

    topic: str
    group: str
    expression: str
    client_version: int
    born_ms: int
    compiled: SqlFilter
    dead_ms: int = 0
    expression_type: str = SQL92

    @property
    def is_dead(self) -> bool:
        """Tell whether no member of the group was connected at the last check."""
        return self.dead_ms >= self.born_ms

    def to_json(self, bloom: BloomGeometry) -> dict[str, Any]:
        """Return the entry of the file, with its fields in RocketMQ's order."""
        positions = bloom.positions(f"{self.group}#{self.topic}")
        return {
            "bloomFilterData": {"bitNum": bloom.bits, "bitPos": positions},
            "bornTime": self.born_ms,
            "clientVersion": self.client_version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.expression_type,
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class _RetryFilter:
    """The filter of a retry topic: the group's expression for the topic that a message was sent to first."""

    table: FilterTable
    group: str
    cost: int = 8
    size: int = 200

    def matches(self, properties: bytes) -> bool:
        topic = find_property(properties, P.RETRY_TOPIC.encode())
        data = self.table.get(topic.decode(errors="replace"), self.group) if topic is not None else None
        return data is None or data.compiled.matches(properties)


class FilterTable:
    """The expressions of all groups. Plain and synchronous; the loop owns it."""

    def __init__(self, rules: FilterRules, bloom: BloomGeometry) -> None:
        self.rules = rules
        self.generation = 0
        """Rises with every change."""
        self._bloom = bloom
        self._groups: dict[str, dict[str, FilterData]] = {}
        """Group -> topic -> entry."""
        self._count = 0
        self.size = 0
        """Bytes of all entries."""
        self._shares = Shares(SIZE_MAX)

    # -- heartbeats ----------------------------------------------------------------------------------

    def register_in_slices(
        self, group: str, wishes: Collection[SubscriptionData], now_ms: int, by: Stranger | None = None
    ) -> Generator[None, None, None]:
        """Take subscriptions over as `register` does; an expression that is not known yet is read in steps."""
        left = NEW_CHARACTERS_MAX
        for wish in wishes:
            if wish.expression_type != TAG and not self.is_at_hand(group, wish, is_posted=True):
                left -= len(wish.expression)
                if left < 0:
                    break
                yield from self.prepare(wish)
        self.register(group, wishes, now_ms, by)

    def register(
        self, group: str, wishes: Collection[SubscriptionData], now_ms: int, by: Stranger | None = None
    ) -> None:
        """Take over a group's subscriptions at a heartbeat; filters of topics that are not among them become dead.

        Which of its members' subscriptions counts is the client registry's to say. An expression that cannot be read
        leaves nothing behind, not even its predecessor, so that the client is told at its next pull.
        """
        known = self._groups.get(group)
        if known is None and all(wish.expression_type == TAG for wish in wishes):
            return
        left = NEW_CHARACTERS_MAX
        for wish in wishes:
            if wish.expression_type == TAG or not wish.expression:
                continue
            data = known.get(wish.topic) if known is not None else None
            if data is not None and wish.expression == data.expression:
                if data.is_dead or data.client_version != wish.version:
                    data.client_version = wish.version
                    self._revive(data)
                continue
            if len(wish.expression) > left:
                continue
            left -= len(wish.expression)
            if data is not None:
                self._remove(data)
            self._add(group, wish, now_ms, by)
            known = self._groups.get(group)
        if known:
            topics = {wish.topic for wish in wishes}
            for topic, data in known.items():
                if topic not in topics and not data.is_dead:
                    self._kill(data, now_ms)

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the expressions of a group without members as dead."""
        for data in self._groups.get(group, {}).values():
            if not data.is_dead:
                self._kill(data, now_ms)

    def prune(self, now_ms: int) -> None:
        """Remove the filters that have been dead for `clean_ms`."""
        expired = [
            data
            for entries in self._groups.values()
            for data in entries.values()
            if data.is_dead and now_ms - data.dead_ms >= self.rules.clean_ms
        ]
        for data in expired:
            self._remove(data)

    def _add(self, group: str, wish: SubscriptionData, now_ms: int, by: Stranger | None) -> None:
        try:
            compiled = self._compile(wish.expression, wish.expression_type)
        except SqlSyntaxError:
            return
        size = _size_of(wish.expression, compiled)
        if self._is_full(size):
            self._remove_dead(size)
        if self._is_full(size) or self._shares.refuses(by, self.size, size):
            return
        self._shares.add((group, wish.topic), by)
        self._shares.grow((group, wish.topic), size - 1)
        self._put(FilterData(wish.topic, group, wish.expression, wish.version, now_ms, compiled))

    def _is_full(self, size: int) -> bool:
        return self._count >= ENTRIES_MAX or self.size + size > SIZE_MAX

    def _remove_dead(self, size: int) -> None:
        """Remove the filters that have been dead for longest, until there is room, if they are enough."""
        dead = [data for entries in self._groups.values() for data in entries.values() if data.is_dead]
        for data in sorted(dead, key=lambda each: each.dead_ms):
            if not self._is_full(size):
                break
            self._remove(data)

    def _put(self, data: FilterData) -> None:
        self._groups.setdefault(data.group, {})[data.topic] = data
        self._count += 1
        self.size += _size_of(data.expression, data.compiled)
        self.generation += 1

    def _remove(self, data: FilterData) -> None:
        entries = self._groups[data.group]
        del entries[data.topic]
        if not entries:
            del self._groups[data.group]
        self._count -= 1
        size = _size_of(data.expression, data.compiled)
        self.size -= size
        self._shares.discard((data.group, data.topic), size)
        self.generation += 1

    def _kill(self, data: FilterData, now_ms: int) -> None:
        data.dead_ms = max(now_ms, data.born_ms)
        self.generation += 1

    def _revive(self, data: FilterData) -> None:
        data.dead_ms = 0
        self.generation += 1

    # -- pulls ---------------------------------------------------------------------------------------

    def get(self, topic: str, group: str) -> FilterData | None:
        """Return the entry of a group for a topic, dead or alive."""
        entries = self._groups.get(group)
        return entries.get(topic) if entries is not None else None

    def filter_of(
        self, group: str, wish: SubscriptionData, sub_version: int, *, is_posted: bool
    ) -> PropertyFilter:
        """Return the filter of one pull, whose subscription is none of tags. Raises `RequestRefused`.

        `is_posted`: the pull brought its subscription along, and does not go by the group's heartbeats.
        """
        kind, topic = wish.expression_type, wish.topic
        if not self.rules.enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, _DISABLED.format(kind))
        if is_posted:
            compiled = check_expression(self.rules, wish.expression, kind)
        else:
            data = self.get(topic, group)
            if data is None:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    f"no filter of group {group} for topic {topic} is known: {self._reason(wish)}",
                )
            if data.client_version < sub_version:
                raise RequestRefused(
                    ResponseCode.FILTER_DATA_NOT_LATEST,
                    f"the filter of group {group} for topic {topic} is older than the pull's: its heartbeat is on "
                    "the way",
                )
            compiled = data.compiled
        if self.rules.filter_retries and topic.startswith(names.RETRY_PREFIX):
            return _RetryFilter(self, topic.removeprefix(names.RETRY_PREFIX))
        return compiled

    def is_at_hand(self, group: str, wish: SubscriptionData, *, is_posted: bool) -> bool:
        """Tell whether `filter_of` takes no time to speak of; else `prepare` the expression first."""
        if not is_posted and self.get(wish.topic, group) is not None:
            return True
        rules, kind = self.rules, wish.expression_type
        return (
            not rules.enabled or kind != SQL92 or is_compiled(wish.expression, ignore_rest=rules.ignore_rest)
        )

    def prepare(self, wish: SubscriptionData) -> Generator[None, None, None]:
        """Compile the expression of a subscription in steps: it is at hand from then on, for a while."""
        if wish.expression_type == SQL92 and self.rules.enabled:
            with suppress(SqlSyntaxError):
                yield from compile_in_slices(wish.expression, ignore_rest=self.rules.ignore_rest)

    def _reason(self, wish: SubscriptionData) -> str:
        try:
            self._compile(wish.expression, wish.expression_type)
        except SqlSyntaxError as exc:
            return f"{exc}"
        return "its heartbeat is on the way"

    def _compile(self, expression: str, kind: str) -> SqlFilter:
        if kind != SQL92:
            raise SqlSyntaxError(f"{kind!r} is no kind of filter: there are {TAG} and {SQL92}")
        return compile_filter(expression, ignore_rest=self.rules.ignore_rest)

    # -- the file ------------------------------------------------------------------------------------

    def dump_in_slices(self) -> TextSlices:
        """Write the text of `consumerFilter.json`, a slice at each step."""
        topics: dict[str, list[FilterData]] = {}
        for entries in tuple(self._groups.values()):
            for data in entries.values():
                topics.setdefault(data.topic, []).append(data)
        entries_of = (
            object_entry(topic, chain(self._filter_entries(listed), [value_entry("topic", topic)]))
            for topic, listed in topics.items()
        )
        return object_text(
            object_entry("filterDataByTopic", chain.from_iterable(entries_of)), _FILTERS_PER_STEP
        )

    def _filter_entries(self, listed: list[FilterData]) -> Iterator[str]:
        return object_entry(
            "groupFilterData", (value_entry(data.group, data.to_json(self._bloom)) for data in listed)
        )

    def load(self, value: Mapping[str, Any], now_ms: int) -> list[str]:
        """Take over a loaded file, and return findings, in sentences, about its unusable entries."""
        findings: list[str] = []
        for topic, group, entry in _entries(value.get("filterDataByTopic")):
            expression, kind = entry.get("expression"), entry.get("expressionType")
            if not isinstance(expression, str) or not isinstance(kind, str):
                findings.append(f"the filter of group {group} for topic {topic} has no expression")
                continue
            try:
                compiled = self._compile(expression, kind)
            except SqlSyntaxError as exc:
                findings.append(f"the filter of group {group} for topic {topic} is left out: {exc}")
                continue
            if self._is_full(_size_of(expression, compiled)):
                findings.append(
                    f"more than {ENTRIES_MAX} filters, or {SIZE_MAX} bytes of them; the rest is left out"
                )
                break
            born = int_of(entry.get("bornTime"), 0)
            dead = int_of(entry.get("deadTime"), 0) or max(born, now_ms - _DEAD_AT_LOAD_MS)
            version = int_of(entry.get("clientVersion"), 0)
            self._put(FilterData(topic, group, expression, version, born, compiled, dead))
        return findings


def _size_of(expression: str, compiled: SqlFilter) -> int:
    """Return the bytes that an entry takes, about."""
    return compiled.size + getsizeof(expression) + _ENTRY_SIZE


def check_expression(rules: FilterRules, expression: str, kind: str) -> SqlFilter:
    """Return the filter that an expression is. Raises `RequestRefused`: 1 while filters are off, 23 for a bad one."""
    if not rules.enabled:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, _DISABLED.format(kind))
    try:
        if kind != SQL92:
            raise SqlSyntaxError(f"{kind!r} is no kind of filter: there are {TAG} and {SQL92}")
        return compile_filter(expression, ignore_rest=rules.ignore_rest)
    except SqlSyntaxError as exc:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(exc)) from exc


def _entries(table: Any) -> Iterable[tuple[str, str, Mapping[str, Any]]]:
    for topic, groups in table.items() if isinstance(table, dict) else ():
        data = groups.get("groupFilterData") if isinstance(groups, dict) else None
        for group, entry in data.items() if isinstance(data, dict) else ():
            if isinstance(entry, dict):
                yield topic, group, entry
