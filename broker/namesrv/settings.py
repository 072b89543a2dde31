"""Keep the settings of a running name server, and refuse changes of those that are locked.

Requests 318 and 319 carry Java properties. Only the typed settings below can be reached through them. A
setting that names a path or a program is never one of them: in RocketMQ exactly that let strangers run
commands on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import msgspec

from broker.settings.java_properties import Entry


@dataclass(slots=True)
class NamesrvSettings:
    """RocketMQ's names and defaults."""

    enable_topic_list: bool = True
    """Answer lists of topics of a cluster, and of unit topics."""
    enable_all_topic_list: bool = True
    order_message_enable: bool = False
    """Routes carry the order configuration of their topic."""
    return_order_topic_config_to_broker: bool = True
    """Registering brokers get the order configuration of all topics."""
    support_acting_master: bool = False
    """Show the lowest slave of a masterless set as its master, for reading."""
    delete_topic_with_broker_registration: bool = False
    """A topic left out of a registration is forgotten."""
    need_wait_for_service: bool = False
    """No routes for the first `wait_seconds_for_service`, so that a restarted server shows no half truths."""
    wait_seconds_for_service: int = 45


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_NAMES = {_camel(field.name): field.name for field in fields(NamesrvSettings)}
_LOCKED = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class LockedSetting(Exception):
    """A refused change of a setting that may not be changed from outside."""


def changed(settings: NamesrvSettings, entries: Iterable[Entry]) -> NamesrvSettings:
    """The settings after all of these changes.

    Raises LockedSetting, or ValueError for a key that does not exist or a value of another type; nothing
    counts then, so a request changes all that it names or nothing.
    """
    values = as_dict(settings)
    for entry in entries:
        if entry.key in _LOCKED:
            raise LockedSetting(f"{entry.key} cannot be changed from outside")
        if entry.key not in _NAMES:
            raise ValueError(f"{entry.key} is not a setting that can be changed")
        kind = type(values[entry.key])
        try:
            values[entry.key] = msgspec.convert(entry.value.strip().lower(), kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"{entry.key} = {entry.value!r} is not of type {kind.__name__}") from None
    return msgspec.convert({_NAMES[key]: value for key, value in values.items()}, NamesrvSettings)


def as_dict(settings: NamesrvSettings) -> dict[str, bool | int]:
    """The settings by their names on the wire."""
    return {key: getattr(settings, name) for key, name in _NAMES.items()}
