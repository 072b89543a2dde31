"""Options of clients and of their calls, checked where they are given: names, types and ranges. Pure.

What is wrong with one is a `TypeError` or a `ValueError` that names the option, what it may be, and the value. A name
that there is not is told with the nearest that there is.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")

AT_LEAST: Mapping[str, float] = {"max_retries": -1, "pull_count": 1, "concurrency": 1, "batch_bytes": 1}
"""The least value of an option; others may be 0, and counts of things that wait must be 1."""
COUNTS = ("batch_count", "pending_max", "cached_count_max", "cached_bytes_max", "body_bytes_max")
POSITIVE = ("timeout", "consume_timeout", "commit_interval", "rebalance_interval")
TEXTS = ("group", "trace_topic")
"""Options that are text; `consume_from` may be a time too, and its core reads it."""
PATHS = ("offsets_folder",)


def make_options(cls: type[T], given: Mapping[str, Any], unknown: Mapping[str, Any] | None = None) -> T:
    """Return the options as a dataclass, each from the value that `given` has under its name.

    `given` may have other names too, as the `locals()` of a constructor whose parameters are the options. `unknown` are
    keywords that the constructor has no parameter for. Raises `TypeError` and `ValueError`, which name what is right.
    """
    known: dict[str, Any] = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
    refuse_unknown(unknown or (), known)
    values = {name: given[name] for name in known if name in given}
    for name, value in values.items():
        _check(name, value, known[name])
    return cls(**values)


def refuse_unknown(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `TypeError` for the first of the given names of options, with the nearest of the known ones."""
    known = tuple(known)
    for name in given:
        near = get_close_matches(name, known, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
        raise TypeError(f"there is no option {name!r}; {hint}")


def check_text(name: str, value: object) -> None:
    """Raise `TypeError` for a value that is given and is no text."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is text, and not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise `TypeError` for a value that is neither True nor False."""
    _check(name, value, False)


def check_hook(name: str, value: object, *arguments: str) -> None:
    """Raise `TypeError` for a value that is given and cannot be called, or not with these arguments."""
    if value is None:
        return
    if not callable(value):
        raise TypeError(f"{name} is a function, and not {value!r}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # some of those written in C do not tell
    try:
        signature.bind(*arguments)
    except TypeError as exc:
        told = getattr(value, "__name__", type(value).__name__)
        given = " and ".join(arguments) or "nothing"
        raise TypeError(f"{name} is called with {given}, and {told}{signature} cannot be: {exc}") from None


def check_seconds(name: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` for a value that is no number of seconds above 0."""
    _check_number(name, value, (int, float))
    assert isinstance(value, int | float)
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be more than 0 and finite, and is {value!r}")


def check_timeout(value: object) -> None:
    """Check the `timeout` of a call: seconds above 0, or None for the client's own."""
    if value is not None:
        check_seconds("timeout", value)


def check_wait(value: object, name: str = "timeout") -> None:
    """Check the seconds that a call waits at most: 0 for not at all, infinity for ever."""
    _check_number(name, value, (int, float))
    assert isinstance(value, int | float)
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, and is {value!r}")


def check_count(name: str, value: object, least: int) -> None:
    """Raise `TypeError` or `ValueError` for a value that is no whole number of `least` or more."""
    _check_number(name, value, (int,))
    assert isinstance(value, int)
    if value < least:
        raise ValueError(f"{name} must be at least {least}, and is {value!r}")


def check_kind(name: str, value: object, kind: type | tuple[type, ...], told: str) -> None:
    """Raise `TypeError` for a value of another type; `told` names the right one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {told}, and not {value!r}")


_PLAIN: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "True or False"),
    "None": ((type(None),), "None"),
}


@cache
def _checked_parameters(
    function: Callable[..., object],
) -> tuple[inspect.Signature, Mapping[str, tuple[tuple[type, ...], str]]]:
    """Return a function's signature, and kinds and words of those of its parameters that can be checked."""
    signature = inspect.signature(function)
    found = {}
    for name, parameter in signature.parameters.items():
        words = str(parameter.annotation).split(" | ")
        if all(word in _PLAIN for word in words):
            kinds = tuple(kind for word in words for kind in _PLAIN[word][0])
            found[name] = kinds, " or ".join(_PLAIN[word][1] for word in words)
    return signature, found


def check_arguments(function: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Check the arguments of a call whose parameters are annotated as text, numbers or flags. Raises `TypeError`."""
    signature, checked = _checked_parameters(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        if name not in checked:
            continue
        kinds, told = checked[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError(f"{name} is {told}, and not {value!r}")


TIMESTAMP_MIN = 10**11
"""Milliseconds since 1970, which is 1973. A smaller number was meant as seconds, or as an offset."""
TIMESTAMP_MAX = 2**63 - 1


def milliseconds_of(name: str, value: datetime | int) -> int:
    """Return a time as milliseconds since 1970; a datetime without a zone is local. Raises what is wrong with it."""
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a datetime or milliseconds since 1970, and not {value!r}")
    if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
        seconds = (
            " (these may be seconds: milliseconds are a thousand times as many)" if value >= 10**8 else ""
        )
        when = "long ago" if value < TIMESTAMP_MIN else "too far ahead"
        raise ValueError(f"{name} {value} would be {when}, as milliseconds since 1970{seconds}")
    return value


def _check(name: str, value: Any, default: Any) -> None:
    if name in TEXTS:
        if not isinstance(value, str):
            raise TypeError(f"{name} is text, and not {value!r}")
    elif name in PATHS:
        if value is not None and not isinstance(value, str) and not hasattr(value, "__fspath__"):
            raise TypeError(f"{name} is a path, and not {value!r}")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise TypeError(f"{name} is True or False, and not {value!r}")
    elif isinstance(default, int | float):
        _check_number(name, value, (int,) if isinstance(default, int) else (int, float))
        if name in POSITIVE and not value > 0:
            raise ValueError(f"{name} must be more than 0, and is {value!r}")
        if name == "timeout":
            check_seconds(name, value)
        least = AT_LEAST.get(name, 1 if name in COUNTS else 0)
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, and is {value!r}")


def _check_number(name: str, value: object, kinds: tuple[type, ...]) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if kinds == (int,) else "a number of seconds"
        raise TypeError(f"{name} is {kind}, and not {value!r}")
