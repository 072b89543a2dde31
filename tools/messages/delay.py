"""`--delay 10s`: ten seconds on any broker, whatever its table of delay levels is; `--deliver-at`: a time of the clock.

On the wire a delay is the number of a level, or a time for the timer wheel. What a level means is each broker's setting
(`messageDelayLevel`), so a time is looked up in the tables of the brokers that get the message: where all have the same
level of this length, it is sent as that level, which comes to the tenth of a second. Any other time goes to the timer
wheel, and is an error that names the levels where a broker has none (RocketMQ 4, `timerWheelEnable=false`): it would
deliver the message at once. A broker that does not tell its settings is taken to have RocketMQ 4's own, and that is
said. A number is a level, of which every one of these brokers must have so many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ropewalk.client.blocking.admin import Admin
from ropewalk.client.core.options import milliseconds_of
from ropewalk.errors import RopewalkError
from ropewalk.format.properties import P
from tools.common.output import UsageError, note

DELAY_LEVELS = ("1s", "5s", "10s", "30s", *(f"{minutes}m" for minutes in (*range(1, 11), 20, 30)), "1h", "2h")
"""The delays of the levels from 1 on, unless a broker was configured otherwise."""

_TIME = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BrokerDelays:
    """The delay levels of a broker, and whether it has timers."""

    levels: str | None = None
    """Its `messageDelayLevel`; None where it does not tell."""
    timers: bool = False
    """Whether it has a timer wheel."""


Tables = Callable[[], Mapping[str, BrokerDelays]]
"""Asks for the delays of each broker by its name."""


def default_tables() -> Mapping[str, BrokerDelays]:
    """Return RocketMQ's own table of delay levels, for use without a broker."""
    return {"": BrokerDelays(timers=True)}


def tables_of(name_server: str, timeout: float, brokers: Callable[[], Iterable[str]]) -> Tables:
    """Return a function that asks these brokers once, when the first time is to be looked up."""
    found: dict[str, BrokerDelays] = {}

    def ask() -> Mapping[str, BrokerDelays]:
        if not found:
            with Admin(name_server, timeout=timeout) as admin:
                for name in sorted(set(brokers())):
                    try:
                        settings = next(iter(admin.broker_config(broker=name).values()), {})
                    except RopewalkError:
                        settings = {}
                    timers = settings.get("timerWheelEnable") == "true"
                    found[name] = BrokerDelays(settings.get("messageDelayLevel"), timers)
                    if not found[name].levels:
                        note(
                            f"broker {name} does not tell its delay levels; they are taken to be RocketMQ's own"
                        )
        return found

    return ask


def parse_delay(text: str, tables: Tables = default_tables) -> dict[str, str]:
    """Return the property of a delay: a level's number, or a time (`10s`, `1.5h`). Raises `UsageError`."""
    text = text.strip().lower()
    if text.isascii() and text.isdigit():
        return {P.DELAY: str(_level(int(text), tables))}
    wanted = _milliseconds(text)
    if wanted is None:
        raise UsageError(
            f"delay {text!r} is neither a level (1 to {len(DELAY_LEVELS)}) nor a time, as in 10s, 90s, 1.5h, 2d"
        )
    known = tables()
    levels = {broker: _level_of(wanted, delays) for broker, delays in known.items()}
    if None not in levels.values() and len(set(levels.values())) == 1:
        return {P.DELAY: str(next(iter(levels.values())))}
    for broker, delays in known.items():
        if not delays.timers:
            words = ", ".join(_words(delays))
            raise UsageError(
                f"delay {text!r}: broker {broker} has no timer wheel, and no level of this length for all brokers; "
                f"it has {words}. Give the number of a level, or choose a broker with --broker"
            )
    return {P.TIMER_DELAY_MS: str(wanted)}


def _level(number: int, tables: Tables) -> int:
    for broker, delays in tables().items():
        words = _words(delays)
        if not 0 < number <= len(words):
            whose = f"broker {broker} has" if broker else "there are"
            table = ", ".join(f"{level}: {word}" for level, word in enumerate(words, 1))
            raise UsageError(
                f"delay level {number}: {whose} the levels 1 to {len(words)} ({table}); "
                "write a time with its unit, as in 10s"
            )
    return number


def parse_time(text: str) -> dict[str, str]:
    """Return the property of a time: ISO 8601 (local time without a zone), or milliseconds since 1970.

    Raises `UsageError`.
    """
    try:
        if text.isascii() and text.isdigit():
            when = milliseconds_of("--deliver-at", int(text))
        else:
            when = -(-(datetime.fromisoformat(text).astimezone() - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError, OSError) as exc:
        if text.isascii() and text.isdigit():
            raise UsageError(str(exc)) from None
        raise UsageError(
            f"--deliver-at {text!r} is neither a time, as in 2026-01-31T08:00+01:00, nor milliseconds since 1970"
        ) from None
    return {P.TIMER_DELIVER_MS: str(when)}


def _words(delays: BrokerDelays) -> list[str]:
    return (delays.levels or " ".join(DELAY_LEVELS)).split()


def _level_of(wanted_ms: int, delays: BrokerDelays) -> int | None:
    words = enumerate(_words(delays), 1)
    return next((level for level, word in words if _milliseconds(word) == wanted_ms), None)


def _milliseconds(text: str) -> int | None:
    found = _TIME.fullmatch(text.strip().lower())
    if found is None:
        return None
    unit = _UNIT_MS[found[3]]
    thousandths = int((found[2] or "").ljust(3, "0"))
    return int(found[1]) * unit - -thousandths * unit // 1000
