"""The consumer groups of this broker, and the rights of each.

A group comes to be when a consumer first names it, if `autoCreateSubscriptionGroup` allows, or by an
administrator. Its configuration says whether it may consume, how often a message is retried, and whether its
members are told at once when one of them comes or goes.

As with topics, every change raises `generation` and the `data_version`; `dump` and `load` speak RocketMQ's
`subscriptionGroup.json` and write back what is unknown here. Who is connected is `clients.py`; how far a
group has read is `offsets.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from broker.state.changes import Changes
from broker.state.data_version import DataVersion, int_of
from broker.state.json_text import ENTRIES_PER_STEP, TextSlices, entry_text, packed_entries, table_text
from broker.state.shares import NewNames, Stranger
from ropewalk.format import names
from ropewalk.format.sliced_json import finish

__all__ = ["GroupTable", "SubscriptionGroupConfig"]

READ_FORBIDDEN = 1  # bit 0 of the forbidden table
FORBIDDEN_MAX = 10_000
"""Pairs of group and topic with a mask: the names come from whoever asks."""


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A group, as RocketMQ's SubscriptionGroupConfig; a change makes a new one."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    retry_policy: Any = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    """As JSON: only the pop path looks inside."""
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    sys_flag: int = 0
    consume_timeout_minutes: int = 15
    subscription_data_set: Any = None
    """Fixed subscriptions for proxies, as JSON; None where nobody set any."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a foreign file that mean nothing here and are written back."""

    def to_json(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "groupRetryPolicy": self.retry_policy,
            "groupName": self.name,
        }
        for attribute, wire in _BOOLS | _INTS:
            known[wire] = getattr(self, attribute)
        if self.subscription_data_set is not None:
            known["subscriptionDataSet"] = self.subscription_data_set
        return {**self.extra, **known}

    @classmethod
    def from_json(cls, name: str, value: Mapping[str, Any]) -> SubscriptionGroupConfig:
        """Read one entry; a field that is absent, null or mistyped has its default, as RocketMQ reads it."""
        known: dict[str, Any] = {}
        for attribute, wire in _BOOLS:
            if isinstance(value.get(wire), bool):
                known[attribute] = value[wire]
        for attribute, wire in _INTS:
            if (number := int_of(value.get(wire), _ABSENT)) != _ABSENT:
                known[attribute] = number
        if isinstance(value.get("groupRetryPolicy"), dict):
            known["retry_policy"] = value["groupRetryPolicy"]
        attributes = value.get("attributes")
        if isinstance(attributes, dict):
            known["attributes"] = {k: v for k, v in attributes.items() if isinstance(v, str)}
        return cls(
            name,
            subscription_data_set=value.get("subscriptionDataSet"),
            extra={k: v for k, v in value.items() if k not in _KNOWN_FIELDS},
            **known,
        )


_ABSENT = -(1 << 63)
_BOOLS = frozenset(
    (
        ("consume_enable", "consumeEnable"),
        ("consume_from_min_enable", "consumeFromMinEnable"),
        ("consume_broadcast_enable", "consumeBroadcastEnable"),
        ("consume_message_orderly", "consumeMessageOrderly"),
        ("notify_consumer_ids_changed_enable", "notifyConsumerIdsChangedEnable"),
    )
)
_INTS = frozenset(
    (
        ("retry_queue_nums", "retryQueueNums"),
        ("retry_max_times", "retryMaxTimes"),
        ("broker_id", "brokerId"),
        ("which_broker_when_consume_slowly", "whichBrokerWhenConsumeSlowly"),
        ("sys_flag", "groupSysFlag"),
        ("consume_timeout_minutes", "consumeTimeoutMinute"),
    )
)
_KNOWN_FIELDS = frozenset(wire for _, wire in _BOOLS | _INTS) | {
    "attributes",
    "groupName",
    "groupRetryPolicy",
    "subscriptionDataSet",
}


class GroupTable:
    """All consumer groups of one broker. Plain and synchronous; the loop owns it."""

    def __init__(
        self,
        *,
        auto_create_subscription_group: bool = True,
        enable_create_sys_group: bool = True,
        groups_max: int = 10_000,
        new_names: NewNames | None = None,
    ) -> None:
        self.auto_create_subscription_group = auto_create_subscription_group
        self.enable_create_sys_group = enable_create_sys_group
        self.groups_max = groups_max
        """Beyond this no group is created by being named; each one costs a retry topic as well."""
        self._new_names = new_names or NewNames(1 << 31, lambda: 0)
        self.made: dict[str, int] = {}
        """Groups that a client made by naming them since the start, and nobody changed or gave messages back for; the
        oldest first, with the time of each."""
        self.make_room: Callable[[], None] = lambda: None
        """Called where the bound is reached: removes groups of `made` that were never used."""
        self.generation = 0
        """Rises with every change."""
        self.forbidden_generation = 0
        """The generation in which reading was forbidden or allowed last."""
        self.data_version = DataVersion()
        self._changes = Changes()
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._foreign_groups: dict[str, Any] = {}
        self._foreign_fields: dict[str, Any] = {}
        self._texts: dict[
            str, tuple[SubscriptionGroupConfig, str]
        ] = {}  # entries of the file as last written

    # -- looking ---------------------------------------------------------------------------------------

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(tuple(self._groups.values()))

    def changed_since(self, generation: int) -> list[str] | None:
        """Return the groups that were changed or deleted after a generation; None: all of them may have been."""
        return self._changes.since(generation)

    def notifies(self, name: str) -> bool:
        """Tell whether members of the group are told of each other; the lookup `clients.ClientRegistry` asks."""
        config = self._groups.get(name)
        return config is None or config.notify_consumer_ids_changed_enable

    def read_forbidden(self, group: str, topic: str) -> bool:
        return bool(self._forbidden.get(group, {}).get(topic, 0) & READ_FORBIDDEN)

    # -- coming to be and changing ---------------------------------------------------------------------

    def create_built_in(self, now_ms: int) -> None:
        """Add the groups every broker has from the start; entries of a loaded file stay."""
        missing = [name for name in sorted(names.SYSTEM_GROUPS) if name not in self._groups]
        for name in missing:
            self._groups[name] = SubscriptionGroupConfig(name)
        if missing:
            self._changed(now_ms, *missing)

    def creation_refusal(self, name: str, by: Stranger | None = None) -> str | None:
        """Why naming the unknown group `name` does not create it, in words for its user."""
        if (reason := names.check_group(name)) is not None:
            return reason
        system = name.startswith(names.SYSTEM_GROUP_PREFIX) and self.enable_create_sys_group
        if not (self.auto_create_subscription_group or system):
            return "autoCreateSubscriptionGroup is false on this broker"
        if len(self._groups) >= self.groups_max:
            return (
                f"this broker already has {len(self._groups)} groups, the most that are created by themselves "
                "(autoCreateGroupsMax)"
            )
        return self._new_names.refusal(by, len(self._groups), self.groups_max)

    def find_or_create(
        self, name: str, now_ms: int, by: Stranger | None = None
    ) -> SubscriptionGroupConfig | None:
        """The group, created if it may be; None (26) if `creation_refusal` says no."""
        if (existing := self._groups.get(name)) is not None:
            return existing
        if len(self._groups) >= self.groups_max:
            self.make_room()
        if self.creation_refusal(name, by) is not None:
            return None
        self._new_names.note(name, by)
        if by is not None:
            self.made[name] = now_ms
        config = self._groups[name] = SubscriptionGroupConfig(name)
        self._foreign_groups.pop(name, None)
        self._changed(now_ms, name)
        return config

    def update(self, config: SubscriptionGroupConfig, now_ms: int) -> bool:
        """Create or replace a group as told; False if it is already just so. ValueError for a bad name."""
        if (reason := names.check_group(config.name)) is not None:
            raise ValueError(reason)
        self.made.pop(config.name, None)
        if self._groups.get(config.name) == config:
            return False
        self._groups[config.name] = config
        self._foreign_groups.pop(config.name, None)
        self._changed(now_ms, config.name)
        return True

    def set_forbidden(self, group: str, topic: str, bits: int, now_ms: int) -> None:
        """Set the mask of one group and topic; 0 removes the entry. Raises ValueError for one more than are kept."""
        topics = self._forbidden.get(group, {})
        if bits and topic not in topics and sum(map(len, self._forbidden.values())) >= FORBIDDEN_MAX:
            raise ValueError(
                f"{FORBIDDEN_MAX} pairs of group and topic are forbidden, the most that are kept"
            )
        self.made.pop(group, None)
        topics = self._forbidden.setdefault(group, topics)
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._forbidden[group]
        self._changed(now_ms)
        self.forbidden_generation = self.generation

    def set_all_forbidden(self, table: Mapping[str, Mapping[str, int]], now_ms: int) -> None:
        """Replace the masks of all groups."""
        self._forbidden = {group: dict(topics) for group, topics in table.items()}
        self._changed(now_ms)
        self.forbidden_generation = self.generation

    def delete(self, name: str, now_ms: int) -> bool:
        """Remove a group and its bans; its offsets stay unless the caller removes them."""
        if name not in self._groups:
            return False
        was_forbidden = name in self._forbidden
        self._drop(name)
        self._changed(now_ms, name)
        if was_forbidden:
            self.forbidden_generation = self.generation
        return True

    def _drop(self, name: str) -> None:
        del self._groups[name]
        self.made.pop(name, None)
        self._new_names.forget(name)
        self._forbidden.pop(name, None)
        self._texts.pop(name, None)

    def adopt(self, value: Mapping[str, Any]) -> list[str]:
        """Be a copy of a master's table (as code 201 carries it), its version included; return the names that went."""
        return finish(self.adopt_in_slices(value))

    def adopt_in_slices(self, value: Mapping[str, Any]) -> Generator[None, None, list[str]]:
        """Read a master's table, some entries at each step, and be a copy of it with the last one, as by `adopt`."""
        fresh = GroupTable()
        yield from fresh.load_in_slices(value)
        own = {name: self._groups[name] for name in names.SYSTEM_GROUPS if name in self._groups}
        gone = [name for name in self._groups if name not in fresh._groups and name not in own]
        self._groups = {**own, **fresh._groups}
        self._forbidden, self._foreign_groups = fresh._forbidden, fresh._foreign_groups
        self.data_version = fresh.data_version
        self._all_changed()
        return gone

    def apply_changes(
        self, changed: Mapping[str, Any], gone: Iterable[str], version: DataVersion
    ) -> list[str]:
        """Take over a master's changed groups, and the version of its table; return the names that went."""
        fresh = GroupTable()
        fresh.load({"subscriptionGroupTable": changed})
        went = [name for name in gone if name in self._groups and name not in names.SYSTEM_GROUPS]
        for name in went:
            self._drop(name)
        self._groups.update(fresh._groups)
        self._foreign_groups.update(fresh._foreign_groups)
        self.data_version = version
        self._note_changes([*changed, *went])
        return went

    def supplement(self, value: Mapping[str, Any], now_ms: int) -> list[str]:
        """Add groups of a slave that this table lacks; return the names. Nothing is removed."""
        fresh = GroupTable()
        fresh.load(value)
        changed = [name for name, entry in fresh._groups.items() if self._groups.get(name) != entry]
        self._groups.update(fresh._groups)
        self.data_version = self.data_version.next_after(fresh.data_version, now_ms)
        self._note_changes(changed)
        return changed

    def set_state_version(self, state_version: int, now_ms: int) -> None:
        """Carry a new role epoch in the table's version."""
        if state_version != self.data_version.state_version:
            self.data_version = self.data_version.next(now_ms, state_version)
            self.generation += 1

    def _changed(self, now_ms: int, *changed: str) -> None:
        self.data_version = self.data_version.next(now_ms)
        self._note_changes(changed)

    def _note_changes(self, changed: Iterable[str]) -> None:
        self.generation += 1
        self._changes.note(changed, self.generation)

    def _all_changed(self) -> None:
        self.generation += 1
        self.forbidden_generation = self.generation
        self._changes.note_all(self.generation)

    # -- what others see -------------------------------------------------------------------------------

    def to_wrapper(self) -> dict[str, Any]:
        """The table as code 201 carries it."""
        table = {name: group.to_json() for name, group in self._groups.items()}
        forbidden = {group: dict(topics) for group, topics in self._forbidden.items()}
        return {**self.wrapper_fields(), "forbiddenTable": forbidden, "subscriptionGroupTable": table}

    def to_wrapper_in_slices(self) -> Generator[None, None, dict[str, Any]]:
        """Return the table as `to_wrapper` does, its entries written in MessagePack, some at each step."""
        forbidden = {group: dict(topics) for group, topics in self._forbidden.items()}
        fields = {**self.wrapper_fields(), "forbiddenTable": forbidden}
        return {**fields, "subscriptionGroupTable": (yield from packed_entries(list(self._groups.values())))}

    def wrapper_fields(self) -> dict[str, Any]:
        """Return the fields beside the tables in `to_wrapper`, which are empty here."""
        return {"dataVersion": self.data_version.to_json(), "forbiddenTable": {}}

    def forbidden(self) -> list[tuple[str, dict[str, int]]]:
        """Return the masks of each group that has any, by topic."""
        return list(self._forbidden.items())

    def shown(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the groups that others are told of."""
        return dict(self._groups)

    def write_entries(self, changed: Iterable[str]) -> None:
        """Write the entries of these groups as `dump` needs them: in slices, where many are new."""
        for name in changed:
            self._text(self._groups[name])

    def _text(self, group: SubscriptionGroupConfig) -> str:
        found = self._texts.get(group.name)
        if found is None or found[0] is not group:
            found = self._texts[group.name] = group, entry_text(group.name, group.to_json())
        return found[1]

    def dump(self) -> bytes:
        """Return the text of `subscriptionGroup.json`."""
        return finish(self.dump_in_slices())

    def dump_in_slices(self) -> TextSlices:
        """Write the text of `subscriptionGroup.json`, a slice at each step."""
        listed = tuple(self._groups)
        entries = (self._text(group) for name in listed if (group := self._groups.get(name)) is not None)
        foreign = (entry_text(name, entry) for name, entry in tuple(self._foreign_groups.items()))
        forbidden = (entry_text(name, topics) for name, topics in tuple(self._forbidden.items()))
        fields = {**self._foreign_fields, "dataVersion": self.data_version.to_json()}
        tables = {"forbiddenTable": forbidden, "subscriptionGroupTable": chain(entries, foreign)}
        return table_text(fields, tables)

    def load(self, value: Mapping[str, Any]) -> list[str]:
        """Load a `subscriptionGroup.json`; return sentences about the entries that are not served."""
        return finish(self.load_in_slices(value))

    def load_in_slices(self, value: Mapping[str, Any]) -> Generator[None, None, list[str]]:
        """Load a `subscriptionGroup.json` as `load` does, some entries at each step."""
        findings: list[str] = []
        table = value.get("subscriptionGroupTable")
        for count, (name, entry) in enumerate(table.items() if isinstance(table, dict) else (), 1):
            if count % ENTRIES_PER_STEP == 0:
                yield
            problem = names.check_group(name) if isinstance(entry, dict) else "its entry is not an object"
            if problem is None:
                self._groups[name] = SubscriptionGroupConfig.from_json(name, entry)
            else:
                self._foreign_groups[name] = entry
                findings.append(f"group {name!r} of subscriptionGroup.json is kept but not served: {problem}")
        forbidden = value.get("forbiddenTable")
        for name, topics in forbidden.items() if isinstance(forbidden, dict) else ():
            if isinstance(topics, dict):
                self._forbidden[name] = {topic: int_of(bits, 0) for topic, bits in topics.items()}
        self.data_version = DataVersion.from_json(value.get("dataVersion"))
        self._foreign_fields = {
            key: item
            for key, item in value.items()
            if key not in ("dataVersion", "forbiddenTable", "subscriptionGroupTable")
        }
        self._all_changed()
        return findings
