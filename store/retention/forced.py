"""Forced cleaning: when a segment younger than fileReservedTime goes because the disk is full, and when none does.

    look                          what follows
    little room is left           it is said: log, /readyz, metric; nothing goes at the look that says it
    the level is passed           the oldest segment goes, if the level can be reached by the segments that may go
    behind a removal              the next one goes only when the disk has got the room of the last one
    the level is met              nothing more goes

Where the disk gets no room, another file takes it or a process holds the removed file: to remove the rest of the log
would lose it for nothing. So one segment is lost at most, and forced cleaning stops and says so. It goes on by itself
when the room has appeared.

The room of a removal is what became free plus what was allocated since. A decision is a pure function of the looks;
`cleaner` carries it out.

Where the queues are on a file system of their own, and that is the fuller one, a segment gives it nothing but the queue
files that go with the segment. So none goes there that would let no queue file go.
"""

from __future__ import annotations

from dataclasses import dataclass

from store.io.disk import Space
from store.retention.rules import HOUR_MS, RetentionRules

NEAR = 0.05
"""The part of a disk that is left to write when forced cleaning is said to be near."""
_FAR = 0.07
_LOOKS = 2
"""Looks behind a removal that may find no room yet: some file systems free it a moment later."""


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """The bytes of queue files that go with segments of the log, on a file system that the log is not on."""

    oldest: int
    """With the oldest segment."""
    removable: int
    """With all that may go."""
    expired: int
    """With those that are expired."""


@dataclass(frozen=True, slots=True)
class LogOnDisk:
    """The fuller file system, and the part of the log on it. Sizes in bytes."""

    directory: str
    space: Space
    segment_size: int
    removable: int
    """Segments that may go at all: all but the last, and none that a flush or the group's tables still need."""
    expired: int
    """Those of them that are older than fileReservedTime: they go before any other."""
    allocated: int
    """Where the log ends, with what is allocated ahead, or its queues all together: what is on this file system."""
    is_held: bool = False
    """Whether a reader of this broker still holds a segment that is to be removed."""
    queue_room: QueueRoom | None = None
    """None where the log is on this file system."""

    @property
    def gain(self) -> int:
        """Return the bytes that the removal of the oldest segment gives to this file system."""
        return self.queue_room.oldest if self.queue_room is not None else self.segment_size

    @property
    def removable_gain(self) -> int:
        """Return the bytes that the removal of all segments gives that may go."""
        room = self.queue_room
        return room.removable if room is not None else self.removable * self.segment_size

    @property
    def expired_gain(self) -> int:
        """Return the bytes that the removal of the expired segments gives."""
        return self.queue_room.expired if self.queue_room is not None else self.expired * self.segment_size


class ForcedCleaning:
    """The decisions about young segments, from one look at the disk to the next."""

    def __init__(self, rules: RetentionRules) -> None:
        self.room = -1.0
        """The part of the disk that can be written until a young segment goes; -1 where none ever goes, or unknown."""
        self.stopped: str | None = None
        """Why no more segments go though the disk is too full, or None."""
        self.removed = 0
        """How many young segments went."""
        self.findings: list[str] = []
        self.rules = rules
        """The rules that count now: an administrator may change them."""
        self._is_near = False
        self._before: LogOnDisk | None = None
        """The disk before the last removal, until its room has appeared."""
        self._looks = 0

    @property
    def _level(self) -> int:
        return min(self.rules.warning_used, self.rules.force_used)

    @property
    def note(self) -> str | None:
        """Return the warning that young messages go soon, or that none more do; None where neither holds."""
        if self.stopped is not None:
            return self.stopped
        return self._near_words() if self._is_near else None

    def judge(self, now: LogOnDisk, *, is_forced: bool, may_remove: bool = True) -> bool:
        """Take in a look at the disk; return whether the oldest segment goes, though it is young.

        `is_forced`: the disk is too full, and no expired segment is left. `may_remove`: the broker runs for a minute.
        """
        space = now.space
        if not self.rules.force or space.total <= 0:
            self.room, self.stopped, self._is_near, self._before = -1.0, None, False, None
            return False
        over = space.above(self._level)
        room = max(0, now.expired_gain - over)
        self.room = room / space.for_everybody
        was_near, self._is_near = self._is_near, self.room < (_FAR if self._is_near else NEAR)
        if self._is_near and not was_near:
            self.findings.append(self._near_words())
        if not is_forced:
            self._before, self.stopped = None, None
            return False
        if not was_near:
            return False  # this look has said it, and the next one acts
        why = self._why_not(now, over, may_remove)
        if why is None and not may_remove:
            self.stopped = None
        elif why is None:
            self.stopped, self._before, self._looks = None, now, 0
            self.removed += 1
            return True
        else:
            if why and self.stopped is None:
                self.findings.append(why)
            self.stopped = why or self.stopped
        return False

    def _why_not(self, now: LogOnDisk, over: int, may_remove: bool) -> str | None:
        """Return why nothing goes at this look; empty where the next look may know more; None where it helps."""
        used, before = now.space.used_percent, self._before
        if before is not None and before.directory == now.directory:
            gained = now.space.free - before.space.free + now.allocated - before.allocated
            if now.is_held or gained < before.gain // 2:
                self._looks += may_remove
                if self._looks < _LOOKS:
                    return ""
                holder = (
                    "a reader of this broker holds it still"
                    if now.is_held
                    else "another file takes the room, or a process holds the removed file (`lsof +L1`)"
                )
                return (
                    f"forced cleaning has stopped: {now.directory} is {used} % full, and the removal of the oldest "
                    f"segment gave it no room: {holder}. No other message is removed. Make room, and it goes on"
                )
        if now.gain <= 0:
            return (
                f"forced cleaning has stopped: {now.directory} is {used} % full, and the log is on another file "
                f"system: with its oldest segment no queue file would go. No message is removed. Make room"
            )
        if over > now.removable_gain:
            return (
                f"forced cleaning has stopped: {now.directory} is {used} % full, and to remove all {now.removable} "
                f"segments that may go would not bring it to {self._level} %: other files fill it. No message is "
                f"removed. Make room"
            )
        return None

    def _near_words(self) -> str:
        hours = self.rules.reserved_ms / HOUR_MS
        return (
            f"the disk has room for {self.room * 100:.1f} % more until messages younger than fileReservedTime "
            f"({hours:g} hours) are removed, the oldest first: make room, or shorten fileReservedTime"
        )
