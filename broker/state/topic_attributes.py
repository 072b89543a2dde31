"""The attributes of a topic: which exist, what they may say, and the text that edits them.

    +message.type=FIFO,-reserve.time        set the one, remove the other

An edit is applied whole or not at all, and every way to get it wrong has its own sentence: the text is typed by
people. What an attribute makes of messages is left to the processors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["AttributeRefused", "edit_attributes"]


class AttributeRefused(ValueError):
    """The edit cannot be applied; its text says which part and why."""


@dataclass(frozen=True, slots=True)
class _Attribute:
    legal: Callable[[str], bool]
    values: str
    """The legal values in words."""
    changeable: bool = True


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda value: value in values


def _is_reserve_time(value: str) -> bool:
    return len(value) <= 19 and (value == "-1" or (value.isascii() and value.isdigit()))


_ATTRIBUTES = {
    # BatchCQ and COMPACTION are RocketMQ's; a topic that is one of them would be misread here.
    "queue.type": _Attribute(_one_of("SimpleCQ"), "SimpleCQ (BatchCQ is not built)", changeable=False),
    "cleanup.policy": _Attribute(_one_of("DELETE"), "DELETE (COMPACTION is not built)", changeable=False),
    "message.type": _Attribute(
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"),
        "UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION or MIXED",
    ),
    "reserve.time": _Attribute(_is_reserve_time, "-1 or a number of milliseconds"),
}


def edit_attributes(current: Mapping[str, str], edits: str, *, creating: bool = False) -> dict[str, str]:
    """The attributes after an edit; `current` is left as it is. Raises `AttributeRefused`."""
    result = dict(current)
    seen: set[str] = set()
    for edit in edits.split(",") if edits.strip() else ():
        edit = edit.strip()
        sign, (name, equals, value) = edit[:1], edit[1:].partition("=")
        if sign not in ("+", "-") or not name or "+" in name or "-" in name:
            raise AttributeRefused(f"{edit!r} is neither +name=value nor -name")
        if name in seen:
            raise AttributeRefused(f"attribute {name} is named twice")
        seen.add(name)
        attribute = _ATTRIBUTES.get(name)
        if attribute is None:
            raise AttributeRefused(
                f"there is no attribute {name}; known are {', '.join(sorted(_ATTRIBUTES))}"
            )
        if not creating and not attribute.changeable:
            raise AttributeRefused(f"attribute {name} of an existing topic cannot be changed")
        if sign == "+":
            if not equals or not attribute.legal(value):
                raise AttributeRefused(f"attribute {name} cannot be {value!r}; it is {attribute.values}")
            result[name] = value
        elif equals or creating or name not in result:
            raise AttributeRefused(f"{edit!r} removes nothing: the topic has no attribute of that name")
        else:
            del result[name]
    return result
