"""Derive the state of a message that its group failed to handle from the copies of it in the broker. Pure.

A group that fails hands the message back, and the broker stores a copy of it, with one more failure counted:

    SCHEDULE_TOPIC_XXXX   the copy that waits for its delay (property DELAY: the level)   -> waiting, next at
    %RETRY%group          the copy that is there to be read again                         -> waiting, or handled since
    %DLQ%group            the copy that nobody reads any more                             -> a dead letter

All of them have the unique key of the message, so one query by it in each of the three finds the whole story. The copy
with the most failures tells how it stands; older ones are history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.client.core.consume.received import ReceivedMessage, TopicQueue
from ropewalk.format.properties import P

__all__ = ["Retries", "delays_of", "judge"]

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Retries:
    """The failures of one group with one message."""

    failures: int
    next_ms: int | None = None
    """The time from which it is tried again; None where it is not, or where the broker's delays are not known."""
    waits: bool = False
    """Whether it is to be tried again."""
    dead_since_ms: int | None = None
    """The time at which it became a dead letter."""


def judge(
    delayed: Sequence[ReceivedMessage],
    again: Sequence[ReceivedMessage],
    dead: Sequence[ReceivedMessage],
    progress: Mapping[TopicQueue, int],
    delays_ms: Sequence[int],
) -> Retries | None:
    """Judge the copies of one message: delayed, to be read again, and dead; None if it never failed.

    `progress` is how far the group has come in its retry queues, `delays_ms` the broker's levels, the first one first.
    """
    if dead:
        last = max(dead, key=lambda copy: copy.store_timestamp_ms)
        return Retries(last.reconsume_times, dead_since_ms=last.store_timestamp_ms)
    newest = max((*delayed, *again), key=lambda copy: copy.reconsume_times, default=None)
    if newest is None:
        return None
    failures = newest.reconsume_times
    readable = [copy for copy in again if copy.reconsume_times == failures]
    if not readable:
        level = newest.properties.get(P.DELAY, "")
        delay = delays_ms[int(level) - 1] if level.isdecimal() and 0 < int(level) <= len(delays_ms) else None
        return Retries(failures, None if delay is None else newest.store_timestamp_ms + delay, waits=True)
    copy = readable[-1]
    waits = progress.get(copy.source, 0) <= copy.queue_offset
    return Retries(failures, copy.store_timestamp_ms if waits else None, waits=waits)


def delays_of(setting: str) -> tuple[int, ...]:
    """Read a broker's `messageDelayLevel`; empty for one that cannot be read."""
    found = []
    for word in setting.split():
        number, unit = word[:-1], word[-1:]
        if not number.isdecimal() or unit not in _UNITS_MS:
            return ()
        found.append(int(number) * _UNITS_MS[unit])
    return tuple(found)
