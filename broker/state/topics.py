"""The topics of this broker: their creation, their settings, and their registration.

A topic is a name with a number of queues and a permission. It comes to be in four ways: at start (the
system topics every broker registers), by an administrator, by the first message of a producer that names a
*create key* (an existing topic whose permission has the inherit bit; the newcomer gets its queues and
permission without that bit), and as the `%RETRY%` or `%DLQ%` topic of a group. `autoCreateTopicEnable`
governs the third way for every create key, not for `TBW102` alone.

Every change raises `generation` by one and gives the table a new `data_version`: name servers compare
versions and do not look at a table whose version they know. `dump` and `load` speak RocketMQ's
`topics.json`. What another program put there and we do not know (fields, entries we cannot serve) is kept
and written back.

Whether a send or a pull is *answered* (permissions, busy, roles) is the processors' business.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

import msgspec

from broker.state.changes import Changes
from broker.state.data_version import DataVersion, int_of
from broker.state.json_file import StoreConfigRefused
from broker.state.json_text import ENTRIES_PER_STEP, TextSlices, entry_text, packed_entries, table_text
from broker.state.shares import NewNames, Stranger
from ropewalk.codes import Permission
from ropewalk.format import names
from ropewalk.format.sliced_json import finish

__all__ = ["TopicConfig", "TopicRules", "TopicTable"]

READ_WRITE = Permission.READ | Permission.WRITE
QUEUES_MAX = 1_024
"""Queues of a topic that is made here. RocketMQ has no bound; what grows with queues must not grow without one."""
LOADED_QUEUES_MAX = 65_536
"""Queues of a topic that comes from a file or from another member of the group."""
QUEUES_TOTAL_MAX = 1_000_000
"""Queues of all topics together, beyond which none is made."""

_KNOWN_FIELDS = frozenset(
    (
        "attributes",
        "order",
        "perm",
        "readQueueNums",
        "topicFilterType",
        "topicName",
        "topicSysFlag",
        "writeQueueNums",
    )
)
_OF_GROUPS: Final = (names.RETRY_PREFIX, names.DLQ_PREFIX)
_NOT_BUILT = {"queue.type": "BatchCQ", "cleanup.policy": "COMPACTION"}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic, as RocketMQ's TopicConfig; a change makes a new one."""

    name: str
    read_queues: int = 16
    write_queues: int = 16
    """Queues 0..write-1 get new messages, 0..read-1 are read: shrinking lowers this one first."""
    perm: int = READ_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a foreign file that mean nothing here and are written back."""

    @property
    def queues(self) -> int:
        """Queue ids below this exist, to read or to write."""
        return max(self.read_queues, self.write_queues)

    @property
    def readable(self) -> bool:
        return bool(self.perm & Permission.READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & Permission.WRITE)

    @property
    def inherited(self) -> bool:
        """Tell whether a producer may name this topic as the key under which others are created."""
        return bool(self.perm & Permission.INHERIT)

    def to_json(self, perm_mask: int = -1) -> dict[str, Any]:
        return {
            **self.extra,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm & perm_mask,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> TopicConfig:
        """Read one entry; a field that is absent, null or mistyped has its default, as RocketMQ reads it."""
        attributes = value.get("attributes")
        filter_type = value.get("topicFilterType")
        return cls(
            name,
            int_of(value.get("readQueueNums"), 16),
            int_of(value.get("writeQueueNums"), 16),
            int_of(value.get("perm"), READ_WRITE),
            filter_type if isinstance(filter_type, str) else "SINGLE_TAG",
            int_of(value.get("topicSysFlag"), 0),
            value.get("order") is True,
            {k: v for k, v in attributes.items() if isinstance(v, str)}
            if isinstance(attributes, dict)
            else {},
            {k: v for k, v in value.items() if k not in _KNOWN_FIELDS},
        )


@dataclass(frozen=True, slots=True)
class TopicRules:
    """The configuration keys that decide about topics, under RocketMQ's names and defaults."""

    cluster: str = "DefaultCluster"
    broker: str = "broker-a"
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = names.TRACE_TOPIC
    timer_wheel_enable: bool = True
    revive_queue_num: int = 8
    topics_max: int = 20_000
    """Beyond this no send creates a topic: the whole table travels to the name servers in one frame of 16 MiB,
    and a stranger who invents names must not be able to make the broker unreachable. Retry and dead-letter topics
    are not counted: each belongs to a group, and groups have a bound of their own."""


class TopicTable:
    """All topics of one broker. Plain and synchronous; the loop owns it."""

    def __init__(self, rules: TopicRules | None = None, new_names: NewNames | None = None) -> None:
        self.rules = rules or TopicRules()
        self._new_names = new_names or NewNames(1 << 31, lambda: 0)
        self.generation = 0
        """Rises with every change; who remembers the value it acted on knows when to act again."""
        self.data_version = DataVersion()
        self.unannounced: dict[str, int] = {}
        """Topic -> the generation in which its route was made or changed, until its consumers have been told."""
        self._topics: dict[str, TopicConfig] = {}
        self._foreign_topics: dict[str, Any] = {}  # entries we do not serve, kept for their owner
        self._foreign_fields: dict[str, Any] = {}
        self._changes = Changes()
        self._of_groups = 0
        """The number of topics that are of a group."""
        self._queue_count: int | None = None
        """The number of queues of all topics; None where it is counted anew when somebody asks."""
        self._registered: dict[str, tuple[TopicConfig, bytes]] = {}
        """The entries of registrations as last written."""
        self._texts: dict[str, tuple[TopicConfig, str]] = {}  # the entries of topics.json as last written
        self.system_topics = frozenset(
            topic.name for topic in _system_topics(replace(self.rules, trace_topic_enable=True))
        ).union(names.SYSTEM_TOPICS)
        """Names that tools do not count among the user's (305); most exist, some come on first use."""

    # -- looking ---------------------------------------------------------------------------------------

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def read_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue in which a message that has waited is read: its own, or one of those that are left.

        A topic that has been shrunk meanwhile keeps its messages in the queues that consumers read.
        """
        config = self._topics.get(topic)
        if config is None or queue_id < config.read_queues or config.read_queues < 1:
            return queue_id
        return queue_id % config.read_queues

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(tuple(self._topics.values()))

    def changed_since(self, generation: int) -> list[str] | None:
        """Return the topics that were changed or deleted after a generation; None: all of them may have been."""
        return self._changes.since(generation)

    def is_system(self, name: str) -> bool:
        return name in self.system_topics or names.is_system_topic(name)

    # -- coming to be ----------------------------------------------------------------------------------

    def create_system_topics(self, now_ms: int) -> None:
        """Add the topics every broker registers at start; entries of a loaded file stay."""
        missing = [topic for topic in _system_topics(self.rules) if topic.name not in self._topics]
        for topic in missing:
            self._topics[topic.name] = topic
        if missing:
            self._queue_count = None
            self._changed(now_ms, *(topic.name for topic in missing))

    def creation_refusal(self, name: str, default_topic: str, by: Stranger | None = None) -> str | None:
        """Why a message to the unknown topic `name` does not create it, in words for the producer's user."""
        if (reason := names.check_topic(name)) is not None:
            return reason
        if self.is_system(name):
            return f"{name} is a system topic"
        if not self.rules.auto_create_topic_enable:
            return "autoCreateTopicEnable is false on this broker"
        key = self._topics.get(default_topic)
        if key is None:
            return f"its create key {default_topic or '(none)'} is not a topic of this broker"
        if not key.inherited:
            return f"its create key {default_topic} does not pass its permission on"
        if name.startswith(_OF_GROUPS):
            return f"{name} belongs to a group that does not exist"
        if self._queues() >= QUEUES_TOTAL_MAX:
            return f"the topics of this broker have {self._queues()} queues together, the most is {QUEUES_TOTAL_MAX}"
        used, total = self._counted(), self.rules.topics_max
        if used >= total:
            return (
                f"this broker already has {used} topics, the most that are created by themselves "
                "(autoCreateTopicsMax)"
            )
        return self._new_names.refusal(by, used, total)

    def _queues(self) -> int:
        """Return the number of queues of all topics."""
        if self._queue_count is None:
            self._queue_count = sum(topic.queues for topic in self._topics.values())
        return self._queue_count

    def _counted(self) -> int:
        """Return the number of topics that are of no group."""
        return len(self._topics) - self._of_groups

    def auto_create(
        self,
        name: str,
        *,
        default_topic: str,
        queue_nums: int,
        sys_flag: int = 0,
        now_ms: int,
        by: Stranger | None = None,
    ) -> TopicConfig | None:
        """Create the topic a producer sent to, or return the existing one; None: see `creation_refusal`."""
        if (existing := self._topics.get(name)) is not None:
            return existing
        if self.creation_refusal(name, default_topic, by) is not None:
            return None
        self._new_names.note(name, by)
        key = self._topics[default_topic]
        queues = max(0, min(queue_nums, key.write_queues))
        return self._put(
            TopicConfig(name, queues, queues, key.perm & ~Permission.INHERIT, key.filter_type, sys_flag),
            now_ms,
        )

    def create_retry(
        self, group: str, *, queue_nums: int = 1, sys_flag: int = 0, now_ms: int
    ) -> TopicConfig | None:
        """Return the `%RETRY%` topic of a group that exists, created if need be in spite of the rules for topics."""
        return self._create_internal(names.retry_topic(group), queue_nums, sys_flag, now_ms)

    def create_dlq(self, group: str, *, now_ms: int) -> TopicConfig | None:
        """Return the `%DLQ%` topic of a group that exists, with one queue, created if need be."""
        return self._create_internal(names.dlq_topic(group), 1, 0, now_ms)

    def _create_internal(self, name: str, queue_nums: int, sys_flag: int, now_ms: int) -> TopicConfig | None:
        if (existing := self._topics.get(name)) is not None:
            return existing
        if names.check_topic(name) is not None:
            return None
        queues = max(1, min(queue_nums, QUEUES_MAX))
        return self._put(TopicConfig(name, queues, queues, READ_WRITE, sys_flag=sys_flag), now_ms)

    # -- an administrator's changes --------------------------------------------------------------------

    def update(self, config: TopicConfig, now_ms: int, *, queues_max: int = QUEUES_MAX) -> bool:
        """Create or replace a topic as told. False, and no new version, if it is already just so.

        Raises ValueError, in words for the administrator, if the configuration makes no sense or asks for
        what is not built.
        """
        if (reason := self.refusal(config, queues_max)) is not None:
            raise ValueError(reason)
        if self._topics.get(config.name) == config:
            return False
        self._put(config, now_ms)
        return True

    def refusal(self, config: TopicConfig, queues_max: int = QUEUES_MAX) -> str | None:
        """Why `update` would not take this configuration, or None.

        A topic that has more queues than `queues_max` keeps them, and other settings of it can be changed.
        """
        before = self._topics.get(config.name)
        had = before.queues if before is not None else 0
        if queues_max != LOADED_QUEUES_MAX and config.queues > had:
            total = self._queues() - had + config.queues
            if total > QUEUES_TOTAL_MAX:
                return (
                    f"topic {config.name!r}: all topics of this broker would have {total} queues together, the most "
                    f"is {QUEUES_TOTAL_MAX}"
                )
        return _refusal(config, max(queues_max, had))

    def delete(self, name: str, now_ms: int) -> bool:
        """Forget a topic; its queues and offsets are for the caller to remove. False if there was none."""
        if name not in self._topics:
            return False
        self._drop(name)
        self._changed(now_ms, name)
        return True

    def _drop(self, name: str) -> None:
        gone = self._topics.pop(name)
        self._of_groups -= name.startswith(_OF_GROUPS)
        if self._queue_count is not None:
            self._queue_count -= gone.queues
        self._texts.pop(name, None)
        self._registered.pop(name, None)
        self._new_names.forget(name)

    def _add(self, other: TopicTable) -> None:
        self._of_groups += sum(
            name not in self._topics and name.startswith(_OF_GROUPS) for name in other._topics
        )
        self._topics.update(other._topics)
        self._queue_count = None

    def adopt(self, value: Mapping[str, Any]) -> list[str]:
        """Be a copy of a master's table (as code 21 carries it), its version included; return the names that went.

        In one go, so that no moment sees half of it. Topics that every broker has, and no list shows, stay.
        """
        return finish(self.adopt_in_slices(value))

    def adopt_in_slices(self, value: Mapping[str, Any]) -> Generator[None, None, list[str]]:
        """Read a master's table, some entries at each step, and be a copy of it with the last one, as by `adopt`."""
        fresh = TopicTable(self.rules)
        yield from fresh.load_in_slices(value)
        own = {
            name: topic
            for name, topic in self._topics.items()
            if name not in fresh._topics and (name in names.HIDDEN_TOPICS or self.is_system(name))
        }
        gone = [name for name in self._topics if name not in fresh._topics and name not in own]
        changed = [name for name, entry in fresh._topics.items() if self._topics.get(name) != entry]
        self._topics = {**fresh._topics, **own}
        self._queue_count = None
        self._foreign_topics = fresh._foreign_topics
        self.data_version = fresh.data_version
        self._note_changes(changed + gone)
        self._count_of_groups()
        return gone

    def apply_changes(
        self, changed: Mapping[str, Any], gone: Iterable[str], version: DataVersion
    ) -> list[str]:
        """Take over a master's changed topics, and the version of its table; return the names that went.

        Topics that every broker has, and no list shows, stay.
        """
        fresh = TopicTable(self.rules)
        fresh.load({"topicConfigTable": changed})
        went = []
        for name in gone:
            self._foreign_topics.pop(name, None)
            if name in self._topics and not (name in names.HIDDEN_TOPICS or self.is_system(name)):
                self._drop(name)
                went.append(name)
        self._add(fresh)
        self._foreign_topics.update(fresh._foreign_topics)
        self.data_version = version
        self._note_changes([*changed, *went])
        return went

    def supplement(self, value: Mapping[str, Any], now_ms: int) -> list[str]:
        """Add topics of a slave that this table lacks; return the names. Nothing is removed."""
        fresh = TopicTable(self.rules)
        fresh.load(value)
        changed = [name for name, entry in fresh._topics.items() if self._topics.get(name) != entry]
        self._add(fresh)
        self.data_version = self.data_version.next_after(fresh.data_version, now_ms)
        self._note_changes(changed)
        return changed

    def touch(self, now_ms: int) -> None:
        """Raise the table's version, because its view changes with something outside of it."""
        self.data_version = self.data_version.next(now_ms)
        self._all_changed()

    def set_state_version(self, state_version: int, now_ms: int) -> None:
        """Carry a new role epoch in the table's version, so that name servers prefer this broker."""
        if state_version != self.data_version.state_version:
            self.data_version = self.data_version.next(now_ms, state_version)
            self.generation += 1

    def _put(self, config: TopicConfig, now_ms: int) -> TopicConfig:
        self._of_groups += config.name not in self._topics and config.name.startswith(_OF_GROUPS)
        if self._queue_count is not None:
            before = self._topics.get(config.name)
            self._queue_count += config.queues - (before.queues if before is not None else 0)
        self._topics[config.name] = config
        self._foreign_topics.pop(config.name, None)
        self._changed(now_ms, config.name)
        self.unannounced[config.name] = self.generation
        return config

    def _changed(self, now_ms: int, *changed: str) -> None:
        self.data_version = self.data_version.next(now_ms)
        self._note_changes(changed)

    def _note_changes(self, changed: Iterable[str]) -> None:
        self.generation += 1
        self._changes.note(changed, self.generation)

    def _all_changed(self) -> None:
        self.generation += 1
        self._changes.note_all(self.generation)

    def _count_of_groups(self) -> None:
        self._of_groups = sum(name.startswith(_OF_GROUPS) for name in self._topics)

    # -- what others see -------------------------------------------------------------------------------

    def register_body(self, broker_permission: int = READ_WRITE) -> bytes:
        """Return the body of a registration in one go."""
        return finish(self.register_body_in_slices(broker_permission))

    def register_body_in_slices(self, broker_permission: int = READ_WRITE) -> TextSlices:
        """Write the body of a registration with a name server (103), uncompressed, a slice at each step.

        A broker that is not fully readable and writable takes the missing permission from every topic here;
        that is how producers learn to go elsewhere. A topic that changes meanwhile is in the next registration, too.
        """
        # Ordinary JSON with its keys in order already: 20 times the speed of the general writer, on the loop.
        mask = permission_mask(broker_permission)
        empty = b'"topicConfigTable":{'
        begin, end = msgspec.json.encode(self.wrapper_fields()).split(empty, 1)
        names_ = iter(tuple(self._topics))
        pieces: list[bytes] = []
        while run := list(islice(names_, ENTRIES_PER_STEP)):
            texts = [
                self._registered_text(topic, mask)
                for name in run
                if name not in names.HIDDEN_TOPICS and (topic := self._topics.get(name)) is not None
            ]
            if texts:
                pieces.append(b",".join(texts))
            if len(run) == ENTRIES_PER_STEP:
                yield
        wrapper = b'{"filterServerList":[],"topicConfigSerializeWrapper":' + begin + empty
        return b"%b%b%b}" % (wrapper, b",".join(pieces), end)

    def write_entries(self, changed: Iterable[str]) -> None:
        """Write the entries of these topics as `dump` and `register_body` need them, unless they are written.

        Who makes thousands of topics calls this in slices: either would write all of them at once.
        """
        for name in changed:
            topic = self._topics[name]
            self._text(topic)
            self._registered_text(topic, -1)

    def _text(self, topic: TopicConfig) -> str:
        """Return the entry of a topic in the file, which is written once and kept."""
        found = self._texts.get(topic.name)
        if found is None or found[0] is not topic:
            found = self._texts[topic.name] = topic, entry_text(topic.name, topic.to_json())
        return found[1]

    def _registered_text(self, topic: TopicConfig, mask: int) -> bytes:
        """Return the entry of a topic, which is written once and kept: of thousands one has changed."""
        found = self._registered.get(topic.name) if mask == -1 else None
        if found is not None and found[0] is topic:
            return found[1]
        text = msgspec.json.encode(topic.name) + b":" + msgspec.json.encode(topic.to_json(mask))
        if mask == -1:
            self._registered[topic.name] = (topic, text)
        return text

    def to_wrapper(self, broker_permission: int = READ_WRITE) -> dict[str, Any]:
        """The table as code 21 and registrations carry it."""
        mask = permission_mask(broker_permission)
        table = {name: topic.to_json(mask) for name, topic in self.shown().items()}
        return {**self.wrapper_fields(), "topicConfigTable": table}

    def to_wrapper_in_slices(self) -> Generator[None, None, dict[str, Any]]:
        """Return the table as `to_wrapper` does, its entries written in MessagePack, some at each step."""
        shown = [topic for name, topic in self._topics.items() if name not in names.HIDDEN_TOPICS]
        fields = self.wrapper_fields()
        return {**fields, "topicConfigTable": (yield from packed_entries(shown))}

    def wrapper_fields(self) -> dict[str, Any]:
        """Return the fields beside the table in `to_wrapper`."""
        return {
            "dataVersion": self.data_version.to_json(),
            "mappingDataVersion": DataVersion().to_json(),
            "topicConfigTable": {},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }

    def shown(self) -> dict[str, TopicConfig]:
        """Return the topics that others are told of."""
        return {name: topic for name, topic in self._topics.items() if name not in names.HIDDEN_TOPICS}

    def dump(self) -> bytes:
        """Return the text of `topics.json`."""
        return finish(self.dump_in_slices())

    def dump_in_slices(self) -> TextSlices:
        """Write the text of `topics.json`, a slice at each step."""
        listed = tuple(self._topics)
        entries = (self._text(topic) for name in listed if (topic := self._topics.get(name)) is not None)
        foreign = (entry_text(name, entry) for name, entry in tuple(self._foreign_topics.items()))
        fields = {**self._foreign_fields, "dataVersion": self.data_version.to_json()}
        return table_text(fields, {"topicConfigTable": chain(entries, foreign)})

    def load(self, value: Mapping[str, Any]) -> list[str]:
        """Load a `topics.json`; return sentences about the entries that are not served.

        Topics already in the table that the file does not name stay; those it names are as the file says.
        Raises `StoreConfigRefused` for a topic whose queues would be misread here.
        """
        return finish(self.load_in_slices(value))

    def load_in_slices(self, value: Mapping[str, Any]) -> Generator[None, None, list[str]]:
        """Load a `topics.json` as `load` does, some entries at each step."""
        findings: list[str] = []
        table = value.get("topicConfigTable")
        for count, (name, entry) in enumerate(table.items() if isinstance(table, dict) else (), 1):
            if count % ENTRIES_PER_STEP == 0:
                yield
            # A cluster or broker may be called what no user's topic may be (a dot, say).
            problem = None if name in self.system_topics else names.check_topic(name)
            if not isinstance(entry, dict):
                problem = "its entry is not an object"
            if problem is None:
                topic = TopicConfig.from_json(name, entry)
                for attribute, kind in _NOT_BUILT.items():
                    if topic.attributes.get(attribute, "").casefold() == kind.casefold():
                        raise StoreConfigRefused(
                            f"topic {name} of this store has {attribute}={kind}, which Ropewalk cannot read; "
                            "serve the store with RocketMQ, or delete the topic there first"
                        )
                problem = _out_of_bounds(topic, LOADED_QUEUES_MAX)
            if problem is None:
                self._topics[name] = topic
            else:
                self._foreign_topics[name] = entry
                findings.append(f"topic {name!r} of topics.json is kept but not served: {problem}")
        self._queue_count = None
        self.data_version = DataVersion.from_json(value.get("dataVersion"))
        self._foreign_fields = {
            key: item for key, item in value.items() if key not in ("dataVersion", "topicConfigTable")
        }
        self._all_changed()
        self._count_of_groups()
        return findings


def permission_mask(broker_permission: int) -> int:
    """Return the mask for the permissions of a broker's topics, by the permission of the broker itself."""
    return -1 if broker_permission & READ_WRITE == READ_WRITE else broker_permission


def _refusal(config: TopicConfig, queues_max: int) -> str | None:
    problem = names.check_topic(config.name) or _out_of_bounds(config, queues_max)
    for attribute, kind in _NOT_BUILT.items():
        if config.attributes.get(attribute, "").casefold() == kind.casefold():
            problem = problem or f"{attribute}={kind} is not built"
    return f"topic {config.name!r}: {problem}" if problem is not None else None


def _out_of_bounds(config: TopicConfig, queues_max: int) -> str | None:
    if not (0 <= config.read_queues <= queues_max and 0 <= config.write_queues <= queues_max):
        return (
            f"{config.read_queues} read and {config.write_queues} write queues are not within 0..{queues_max}"
        )
    if not 0 <= config.perm <= 15:
        return f"permission {config.perm} has unknown bits"
    return None


def _system_topics(rules: TopicRules) -> list[TopicConfig]:
    """Return the topics of every broker from its start; clients, tools and later features look for these names."""

    def topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    inherit = Permission.INHERIT
    found = [
        topic(names.SELF_TEST_TOPIC, 1),
        topic(names.BENCHMARK_TOPIC, 1024),
        topic(rules.cluster, 16, inherit | (READ_WRITE if rules.cluster_topic_enable else 0)),
        topic(rules.broker, 1, inherit | (READ_WRITE if rules.broker_topic_enable else 0)),
        topic(names.OFFSET_MOVED_TOPIC, 1),
        topic(names.SCHEDULE_TOPIC, 18),
        topic(names.reply_topic(rules.cluster), 1),
        topic(names.REVIVE_LOG_PREFIX + rules.cluster, rules.revive_queue_num),
        topic(names.SYNC_BROKER_MEMBER_PREFIX + rules.broker, 1, inherit),
        topic(names.TRANS_HALF_TOPIC, 1),
        topic(names.TRANS_OP_HALF_TOPIC, 1),
    ]
    if rules.auto_create_topic_enable:
        found.append(topic(names.DEFAULT_TOPIC, rules.default_topic_queue_nums, READ_WRITE | inherit))
    if rules.timer_wheel_enable:
        found.append(topic(names.TIMER_TOPIC, 1))
    if rules.trace_topic_enable:
        found.append(topic(rules.msg_trace_topic_name, 1))
    return found
