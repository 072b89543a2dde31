"""The delay levels that a broker has unless `messageDelayLevel` says otherwise, and the level of a time. Pure.

A level is a number on the wire: which time it stands for is known to the broker alone.
"""

from __future__ import annotations

from datetime import timedelta

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""As RocketMQ's `messageDelayLevel` writes them, the first of them level 1."""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}
_LEVELS = {
    timedelta(**{_UNITS[text[-1]]: int(text[:-1])}): level
    for level, text in enumerate(DEFAULT_DELAY_LEVELS.split(), 1)
}


def delay_level_of(delay: timedelta) -> int:
    """Return the level of a delay, 0 if none has its length.

    Raises `TypeError`, and `ValueError` for a negative one.
    """
    if not isinstance(delay, timedelta):
        raise TypeError(f"delay is a timedelta, as in timedelta(minutes=1), and not {delay!r}")
    if delay < timedelta():
        raise ValueError(f"a delay of {delay} lies in the past")
    return _LEVELS.get(delay, 0)
