"""The start of a queue that a group never committed: one vocabulary, in Python and on the command line. Pure.

    "earliest"   the first message that is still there      also "first", "begin", "beginning", "oldest", "smallest"
    "latest"     behind the last one                        also "last", "end", "newest", "largest"
    a time       the first message stored at or after it    a datetime, ISO 8601, or milliseconds since 1970

With "latest", a queue whose very first message is still at hand begins at that one: the broker says so to every client,
as RocketMQ's does, so that nothing is lost that was sent to a new topic while its consumers started.

RocketMQ says first and last, Kafka earliest and latest, others the rest. An offset is no such place: queues differ, and
`seek` sets one. Whatever is none of these is refused where it is given, with the nearest right word.
"""

from __future__ import annotations

from datetime import datetime
from difflib import get_close_matches
from typing import Literal

from ropewalk.client.core.options import TIMESTAMP_MIN

ConsumeFrom = str | int | datetime
Place = Literal["earliest", "latest"] | int
"""A parsed one: a word, or milliseconds since 1970."""

EARLIEST = ("earliest", "first", "begin", "beginning", "oldest", "smallest", "consume_from_first_offset")
LATEST = ("latest", "last", "end", "newest", "largest", "consume_from_last_offset")


def parse_consume_from(value: ConsumeFrom) -> Place:
    """Return the place that a value names. Raises `ValueError` or `TypeError` for what names none."""
    if isinstance(value, str):
        word = value.strip().lower()
        if word in EARLIEST:
            return "earliest"
        if word in LATEST:
            return "latest"
        if not word.isdigit() or not word.isascii():
            try:
                return _milliseconds(datetime.fromisoformat(value.strip()))
            except ValueError:
                raise ValueError(_no_such_word(value, word)) from None
        value = int(word)
    if isinstance(value, datetime):
        return _milliseconds(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f'consume_from is "earliest", "latest", a datetime, or milliseconds since 1970, and not {value!r}'
        )
    if value < TIMESTAMP_MIN:
        seconds = (
            " (these may be seconds: milliseconds are a thousand times as many)" if value >= 10**8 else ""
        )
        raise ValueError(
            f"consume_from {value} would be long ago, as milliseconds since 1970{seconds}; to begin at an offset, "
            "assign the queues of a PullConsumer and `seek`"
        )
    return value


def _milliseconds(moment: datetime) -> int:
    """Return milliseconds since 1970; a time without a zone is local."""
    return int(moment.timestamp() * 1000)


def _no_such_word(value: str, word: str) -> str:
    near = get_close_matches(word, (*EARLIEST[:-1], *LATEST[:-1]), 1, 0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f'consume_from {value!r} is none of "earliest", "latest", a time as in "2026-01-31T12:00:00"{hint}'
