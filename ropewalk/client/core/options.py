"""Options of clients, checked where they are given: names, types and ranges, with the nearest right name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")

AT_LEAST: Mapping[str, float] = {"max_retries": -1, "pull_count": 1, "concurrency": 1, "batch_bytes": 1}
"""The least value of an option; others may be 0, and counts of things that wait must be 1."""
COUNTS = ("batch_count", "pending_max", "cached_count_max", "cached_bytes_max")
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


def check_hook(name: str, value: object) -> None:
    """Raise `TypeError` for a value that is given and cannot be called."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is a function, and not {value!r}")


def check_seconds(name: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` for a value that is no number of seconds above 0."""
    _check(name, value, 1.0)
    assert isinstance(value, int | float)
    if not value > 0:
        raise ValueError(f"{name} must be more than 0, and is {value!r}")


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
        kinds = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "a whole number" if kinds == (int,) else "a number of seconds"
            raise TypeError(f"{name} is {kind}, and not {value!r}")
        if name in POSITIVE and not value > 0:
            raise ValueError(f"{name} must be more than 0, and is {value!r}")
        least = AT_LEAST.get(name, 1 if name in COUNTS else 0)
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, and is {value!r}")
