"""Retention rules for messages: which of the oldest segments may go, and when no message is taken any more.

A decision is made every ten seconds from what was looked up on disk, and is a pure function of it. Age is counted
from a file's modification time, as the original does: copying files without their times postpones their end.

    used      what happens
    > 90 %    messages are refused, until it is less; and as below
    > 85 %    where none is expired the oldest goes, whatever its age, and one at a time: see `forced` (unless
              cleanFileForciblyEnable is off)
    > 75 %    expired segments go at once, and not only in the hours of deleteWhen
    unknown   as above 75 %

The fuller of the two file systems, the commit log's and the queues', counts. The last segment never goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The rules of retention, as configured. Times in ms, levels in percent of a file system."""

    reserved_ms: int = 72 * HOUR_MS
    delete_hours: frozenset[int] = frozenset({4})
    """Hours of the local day in which expired files are removed."""
    max_used: int = 75
    force_used: int = 85
    warning_used: int = 90
    force: bool = True
    batch_max: int = 10
    """Segments that one decision may give up."""
    interval_ms: int = 10_000
    first_ms: int = 60_000
    """After the start, how long nothing is removed."""
    log_pause_ms: int = 100
    queue_pause_ms: int = 100
    """Between two removals, so that the disk has time for others."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of the file systems, in whole percent; -1 where it is unknown."""

    log: int
    queues: int

    @property
    def fuller(self) -> int:
        return max(self.log, self.queues)

    @property
    def unknown(self) -> bool:
        return min(self.log, self.queues) < 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision: why messages are refused (or None), and how many of the oldest segments go, and why."""

    refusal: str | None
    delete: int
    """Expired ones."""
    reason: str
    is_forced: bool = False
    """Whether the disk is too full, and no segment is expired: `ForcedCleaning` judges then."""


def decide(
    rules: RetentionRules,
    usage: Usage,
    hour: int,
    now_ms: int,
    modified_ms: Sequence[int],
    *,
    asked: bool = False,
) -> Decision:
    """Judge the segments that may go at all, oldest first, by when each was written to last.

    `asked`: an administrator wants expired segments gone now, whatever the hour.
    """
    forced = rules.force and usage.fuller > min(rules.warning_used, rules.force_used)
    early = forced or usage.unknown or usage.fuller > rules.max_used
    count, reason = 0, ""
    if early or asked or hour in rules.delete_hours:
        count = expired(rules, now_ms, modified_ms)
        reason = _reason(rules, usage, early)
    return Decision(_refusal(rules, usage), count, reason, forced and not count)


def expired(rules: RetentionRules, now_ms: int, modified_ms: Sequence[int]) -> int:
    """Count the oldest segments that are older than they are kept, as far as one decision goes."""
    young = (n for n, at in enumerate(modified_ms[: rules.batch_max]) if now_ms < at + rules.reserved_ms)
    return next(young, min(len(modified_ms), rules.batch_max))


def _refusal(rules: RetentionRules, usage: Usage) -> str | None:
    if usage.fuller <= rules.warning_used:
        return None
    return (
        f"the broker's disk is full [CL: {usage.log / 100:.2f} CQ: {usage.queues / 100:.2f} "
        f"INDEX: {usage.queues / 100:.2f}]: no message is taken above {rules.warning_used / 100:.2f}"
    )


def forced_reason(usage: Usage) -> str:
    """Return why a segment goes that is not expired."""
    return f"the disk is {usage.fuller} % full, more than diskSpaceCleanForciblyRatio allows"


def _reason(rules: RetentionRules, usage: Usage, early: bool) -> str:
    hours = rules.reserved_ms / HOUR_MS
    if early:
        return f"not written to for {hours:g} hours, and the disk is {usage.fuller} % full"
    return f"not written to for {hours:g} hours"


def delete_hours(text: str) -> frozenset[int]:
    """The hours in a deleteWhen such as `04` or `04;16`. Raises ValueError."""
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(word.isdecimal() and len(word) <= 2 and int(word) < 24 for word in words):
        raise ValueError("must be hours of the day from 00 to 23, several separated by ';'")
    return frozenset(map(int, words))
