"""`--delay 10s`: ten seconds on any broker, whatever its table of delay levels is.

On the wire a delay is the number of a level, and what a level means is each broker's setting (`messageDelayLevel`). So
a time is looked up in the tables of the brokers that get the message; one that has no level of this length is an error
that names the levels that there are. A broker that does not tell its table is taken to have RocketMQ's own, and that
is said. A number is a level and looked up nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from ropewalk.client.blocking.admin import Admin
from ropewalk.errors import RopewalkError
from tools.common.output import UsageError, note

DELAY_LEVELS = ("1s", "5s", "10s", "30s", *(f"{minutes}m" for minutes in (*range(1, 11), 20, 30)), "1h", "2h")
"""The delays of the levels from 1 on, unless a broker was configured otherwise."""
LEVEL_MAX = 999

_TIME = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Tables = Callable[[], Mapping[str, str | None]]
"""Asks for `messageDelayLevel` of each broker by its name; None where it does not tell."""


def default_tables() -> Mapping[str, str | None]:
    """Return RocketMQ's own table of delay levels, for use without a broker."""
    return {"": " ".join(DELAY_LEVELS)}


def tables_of(name_server: str, timeout: float, brokers: Callable[[], Iterable[str]]) -> Tables:
    """Return a function that asks these brokers once, when the first time is to be looked up."""
    found: dict[str, str | None] = {}

    def ask() -> Mapping[str, str | None]:
        if not found:
            with Admin(name_server, timeout=timeout) as admin:
                for name in sorted(set(brokers())):
                    try:
                        settings = admin.broker_config(broker=name).values()
                        found[name] = next(iter(settings), {}).get("messageDelayLevel")
                    except RopewalkError:
                        found[name] = None
                    if not found[name]:
                        note(
                            f"broker {name} does not tell its delay levels; they are taken to be RocketMQ's own"
                        )
        return found

    return ask


def parse_delay(text: str, tables: Tables = default_tables) -> int:
    """Return a delay level: its number, or that of its time (`10s`). Raises `UsageError`."""
    text = text.strip().lower()
    if text.isascii() and text.isdigit() and 0 < int(text) <= LEVEL_MAX:
        return int(text)
    wanted = _milliseconds(text)
    if wanted is None:
        raise UsageError(
            f"delay {text!r} is neither a level (1 to {len(DELAY_LEVELS)}) nor the time of one, as in 10s: "
            f"{', '.join(DELAY_LEVELS)}"
        )
    levels: dict[int, str] = {}
    for broker, table in tables().items():
        words = (table or " ".join(DELAY_LEVELS)).split()
        level = next((n for n, word in enumerate(words, 1) if _milliseconds(word) == wanted), None)
        if level is None:
            whose = f"broker {broker} has" if broker else "there is"
            raise UsageError(f"delay {text!r}: {whose} no level of this length; it has {', '.join(words)}")
        levels[level] = broker
    if len(levels) > 1:
        each = ", ".join(f"{level} at {broker}" for level, broker in sorted(levels.items()))
        raise UsageError(
            f"delay {text!r} is level {each}: choose one with --broker, or give the number of a level"
        )
    return next(iter(levels))


def _milliseconds(text: str) -> int | None:
    found = _TIME.fullmatch(text.strip().lower())
    return int(found[1]) * _UNIT_MS[found[2]] if found else None
