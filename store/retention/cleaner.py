"""Carrying out retention: the loop gives up segments, a helper thread removes their files.

In three steps, so that nobody reads what is going away. On the loop the log begins later: new reads find nothing
below `min_offset`. Then the segment waits, unmapped by nobody, until no reader thread holds it (`Segment.pins`); its
file goes after that, and not before those of older segments. And the queues follow: entries whose records are gone
are skipped (`ConsumeQueue.min_offset`), queue files that hold nothing else are removed, by whoever writes queue
files.

What has to be looked up for that (how full the disk is, how old files are, where in a queue the log begins) is looked
up on the helper thread; every decision and every change of state happens on the loop. How `retention` decides is not
this file's business.

A file that something else removed while it was open here is noticed at the next look. The oldest ones are given up as
if retention had: the log begins later. One in the middle stays open, and so it is served as long as this process lives;
behind a removed newest one nothing is taken, because what is appended to it would be on no disk.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ropewalk.format.queue_entry import ENTRY_SIZE
from store.io.disk import Disk, Space
from store.io.workers import Worker
from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.queues.consume_queue import ConsumeQueue
from store.retention.forced import ForcedCleaning, LogOnDisk, QueueRoom
from store.retention.rules import RetentionRules, Usage, decide, expired, forced_reason

_QUEUES_AT_ONCE = 64
_FORCED_INTERVAL_MS = 2000
"""How soon behind the removal of a young segment its room is looked for, and not sooner: another file may take it.

Where the log itself has taken that room, the next one may go at once."""
_FORCED_LOOK_MS = 250


@dataclass(frozen=True, slots=True)
class _Looked:
    """The helper thread's findings: how full disks are, and when each of the asked segments was written, ms."""

    log: Space
    queues: Space
    queue_room: QueueRoom | None
    """Where the queues' file system is another one than the log's and the fuller: their bytes that go with segments."""
    allocated: int
    """Where the newest file ends, of the log or, with `queue_room`, of all queues together; allocated ahead."""
    removable: int
    """How many segments may go at all; of the oldest of them it is known when they were written."""
    modified_ms: list[int]
    removed: list[Segment]
    """Segments whose files have no name any more, though nobody here removed them."""


class Cleaner:
    """Retention of one store. Everything here belongs to the loop, but for the methods that say otherwise."""

    def __init__(
        self,
        rules: RetentionRules,
        log: CommitLog,
        queues: Mapping[str, Mapping[int, ConsumeQueue]],
        queue_directory: Path,
        disk: Disk,
        worker: Worker,
        now_ms: Callable[[], int],
        shorten: Callable[[int, Sequence[Path]], None],
        checksum_directory: Path | None = None,
    ) -> None:
        """`shorten(entries, paths)` has queue files removed, after noting that there are so many entries less."""
        self.refusal: str | None = None
        """Why no message is taken at the moment, or None."""
        self.findings: list[str] = []
        self.removed_files = 0
        """How many segments something else removed while they were open here."""
        self.forced = ForcedCleaning(rules)
        self._removed_said: set[int] = set()
        """Where those begin that are still in the log, and were told of."""
        self._is_full = False
        """Whether messages are refused because of the room on the disk."""
        self._newest: int | None = None
        """Where the segment begins that was appended to when the directory was looked up last; -1 if there was none."""
        self._unwritable: str | None = None
        """Why nothing can be appended durably any more, or None."""
        self._log = log
        self._queues = queues
        self._queue_directory = queue_directory
        self._disk = disk
        self._worker = worker
        self._now_ms = now_ms
        self._shorten = shorten
        self._checksum_directory = checksum_directory
        self._delete_from_ms = now_ms() + rules.first_ms
        self._next_look_ms = self._next_removal_ms = self._next_queue_ms = self._next_young_ms = 0
        self._allocated_before = 0
        """Where the newest file of the log ended when a young segment went last."""
        self._looking = self._removing = self._correcting = False
        self._asked = False
        self._retired: deque[Segment] = deque()
        self._late: deque[ConsumeQueue] = deque()
        """Queues that have not been told yet that the log begins later."""
        self._emptied: deque[ConsumeQueue] = deque()
        """Queues that may have files to remove."""

    @property
    def rules(self) -> RetentionRules:
        """Return the rules that count now."""
        return self.forced.rules

    def follow_rules(self, rules: RetentionRules) -> None:
        """Go by other rules from the next look on, which is due now."""
        if rules != self.forced.rules:
            self.forced.rules = rules
            self._next_look_ms = 0

    def remove_expired(self) -> None:
        """Remove expired segments now, at any hour and in a process of any age."""
        self._asked = True
        self._next_look_ms = 0

    def tick(self, flushed_offset: int) -> None:
        """Do the work that is due; call often. Segments behind `flushed_offset` are never given up."""
        now = self._now_ms()
        if not self._looking and _due(now, self._next_look_ms, self.rules.interval_ms):
            self._next_look_ms = now + self.rules.interval_ms
            self._look(flushed_offset)
        if self._retired and not self._removing:
            self._remove_next(now)
        if self._emptied:
            self._remove_queue_files(now)
        if self._late and not self._correcting:
            self._correct_some()

    # -- decide --------------------------------------------------------------------------------------

    def _look(self, flushed_offset: int) -> None:
        self._looking = True
        segments = [s for s in self._log.segments[:-1] if s.end_offset <= flushed_offset]
        spare = [self._log.spare] if self._log.spare is not None else []
        known = [*self._log.segments, *spare]
        self._worker.submit(partial(self._look_up, segments, known), self._looked)

    def _look_up(self, segments: list[Segment], known: list[Segment]) -> _Looked:
        """On the helper thread."""
        rules, log = self.rules, self._space(self._log.directory)
        is_apart = self._disk.are_apart(self._log.directory, self._queue_directory)
        queues = self._space(self._queue_directory) if is_apart else log
        names = set(self._disk.names(self._log.directory))
        allocated = max((int(name) for name in names if name.isdigit()), default=0) + self._log.segment_size
        removed = [segment for segment in known if segment.file.path.name not in names]
        modified: list[int] = []
        with contextlib.suppress(FileNotFoundError):  # removed in this moment: those before it can be judged
            for segment in segments[: self.rules.batch_max]:
                modified.append(self._disk.modified_ms(segment.file.path))
        room: QueueRoom | None = None
        if is_apart and queues.used_percent > log.used_percent:
            old = expired(rules, self._now_ms(), modified)
            all_queues = [each for some in list(self._queues.values()) for each in list(some.values())]
            ends = (
                (segments[0], segments[-1], segments[old - 1] if old else None) if segments else (None,) * 3
            )
            room = QueueRoom(*(_bytes_before(each.end_offset, all_queues) if each else 0 for each in ends))
            allocated = sum(map(_allocated, all_queues))
        return _Looked(log, queues, room, allocated, len(segments), modified, removed)

    def _space(self, directory: Path) -> Space:
        """The file system of a directory that may not have been made yet."""
        space = self._disk.space(directory)
        return space if space.total >= 0 else self._disk.space(directory.parent)

    def _looked(self, found: _Looked) -> None:
        self._looking = False
        if found.removed:
            self._note_removed(found.removed)
        self._newest = self._log.segments[-1].base_offset if self._log.segments else -1
        now = self._now_ms()
        hour = time.localtime(now / 1000).tm_hour
        usage = Usage(found.log.used_percent, found.queues.used_percent)
        decision = decide(self.rules, usage, hour, now, found.modified_ms, asked=self._asked)
        if (decision.refusal is None) == self._is_full:
            self._is_full = not self._is_full
            self.findings.append(decision.refusal or "there is room on the disk again: messages are taken")
        may_remove = self._asked or _due(now, self._delete_from_ms, self.rules.first_ms)
        pause_ms = min(_FORCED_INTERVAL_MS, self.rules.interval_ms)
        grown = found.allocated - self._allocated_before
        is_log_grown = found.queue_room is None and grown >= self._log.segment_size
        is_due = is_log_grown or _due(now, self._next_young_ms, pause_ms)
        may_take = may_remove and not found.removed and is_due
        takes_young = self._judge_young(found, decision.is_forced, may_take)
        stopped = self.forced.stopped
        full = f"{decision.refusal}; {stopped}" if decision.refusal and stopped else decision.refusal
        self.refusal = full or self._unwritable
        if found.removed:
            return  # ages were looked up of segments that may not be the oldest any more
        if decision.delete and may_remove:
            self._give_up(decision.delete, decision.reason)
            if self._asked:
                self._next_look_ms = 0  # there may be more than one decision gives up
            return
        self._asked = False
        if takes_young:
            self._give_up(1, forced_reason(usage))
            self._next_young_ms, self._allocated_before = now + pause_ms, found.allocated
        if not _due(now, self._next_young_ms, pause_ms):
            self._next_look_ms = now + min(_FORCED_LOOK_MS, pause_ms)

    def _judge_young(self, found: _Looked, is_forced: bool, may_remove: bool) -> bool:
        """Tell whether the oldest segment goes though it is young, by the fuller of the two file systems."""
        log = self._log
        is_log = found.queue_room is None
        now = LogOnDisk(
            directory=str(log.directory if is_log else self._queue_directory),
            space=found.log if is_log else found.queues,
            segment_size=log.segment_size,
            removable=found.removable,
            expired=expired(self.rules, self._now_ms(), found.modified_ms),
            allocated=found.allocated,
            is_held=any(segment.pins for segment in self._retired),
            queue_room=found.queue_room,
        )
        if not is_log and (self._late or self._correcting or self._emptied):
            may_remove = False  # queue files of the last segment are still to be removed
        takes = self.forced.judge(now, is_forced=is_forced, may_remove=may_remove)
        self.findings += self.forced.findings
        self.forced.findings.clear()
        return takes

    def _note_removed(self, removed: list[Segment]) -> None:
        """Give up segments that something else removed from the front, and tell of all others."""
        gone = {segment.base_offset for segment in removed}
        if self._log.spare is not None and self._log.spare.base_offset in gone:
            self._log.discard_spare()
        segments = self._log.segments
        newest = self._newest
        is_newest_gone = newest is not None and any(newest <= s.base_offset in gone for s in segments[:-1])
        count = 0
        while (
            count < len(segments) - 1
            and segments[count].base_offset in gone
            and segments[count].end_offset <= self._log.flushed_offset
        ):
            count += 1
        if count:
            names = ", ".join([str(segments[0].file.path), *(s.file.path.name for s in segments[1:count])])
            self.removed_files += sum(s.base_offset not in self._removed_said for s in segments[:count])
            self._begin_behind(count)
            self.findings.append(
                f"{names} ({count} files): removed by something else while open here. The commit log begins at offset "
                f"{self._log.min_offset} now, and messages before it are gone"
            )
        if is_newest_gone and self._unwritable is None:
            # Old files are removed by people who need room. The newest one goes with its whole directory.
            self._unwritable = (
                f"{self._log.directory} was removed by something else while it was open, the newest file with it, so "
                "messages are refused. Stop this broker, and put the files back or have them taken from a replica"
            )
            self.findings.append(self._unwritable)
        for segment in self._log.segments:
            base, path = segment.base_offset, segment.file.path
            if base not in gone or base in self._removed_said:
                continue
            self._removed_said.add(base)
            self.removed_files += 1
            text = f"{path} (log offset {base}) was removed by something else while it was open"
            if segment is self._log.segments[-1]:
                text += (
                    ": what is appended to it would be on no disk, so messages are refused. Stop this broker, and put "
                    "the file back or have it taken from a replica"
                )
                self._unwritable = text
            else:
                text += (
                    f": it is served as long as this process lives, and the next start will miss it. Save it with "
                    f"`cp /proc/{os.getpid()}/fd/{segment.file.descriptor} {path}`"
                )
            self.findings.append(text)

    def _give_up(self, count: int, reason: str) -> None:
        self._begin_behind(count)
        self.findings.append(
            f"commit log before offset {self._log.min_offset} is removed ({count} files): {reason}"
        )

    def _begin_behind(self, count: int) -> None:
        """Have the log begin behind its first `count` segments, and the queues follow."""
        self._retired += self._log.retire(count)
        self._late = deque(queue for queues in self._queues.values() for queue in queues.values())

    # -- segments ------------------------------------------------------------------------------------

    def _remove_next(self, now: int) -> None:
        if _due(now, self._next_removal_ms, self.rules.log_pause_ms):
            # The oldest first, and nothing before it is gone for good: a crash must not leave a gap in the log, which
            # the next start would take for a loss.
            if not self._retired[0].pins:
                self._removing = True
                self._next_removal_ms = now + self.rules.log_pause_ms
                self._worker.submit(partial(self._remove_segment, self._retired.popleft()), self._removed)

    def _remove_segment(self, segment: Segment) -> int:
        """On the helper thread."""
        segment.file.close()
        if (
            self._checksum_directory is not None
        ):  # first: left alone, they would say that the segment was stolen
            self._disk.remove(self._checksum_directory / segment.file.path.name)
        self._disk.remove(segment.file.path)
        with contextlib.suppress(FileNotFoundError):  # the whole folder can be removed, too
            self._disk.sync_directory(self._log.directory)
        return 1

    def _removed(self, _count: int) -> None:
        self._removing = False

    # -- queues --------------------------------------------------------------------------------------

    def _correct_some(self) -> None:
        """Have a few queues learn where the log begins: their files are searched on the helper thread."""
        self._correcting = True
        low = self._log.min_offset
        some = [self._late.popleft() for _ in range(min(_QUEUES_AT_ONCE, len(self._late)))]
        asked = [(queue, queue.written) for queue in some if queue.min_offset < queue.next_offset]

        def search() -> list[tuple[ConsumeQueue, int]]:
            return [(queue, queue.find_written(low, written)) for queue, written in asked]

        self._worker.submit(search, partial(self._corrected, low))

    def _corrected(self, low: int, found: list[tuple[ConsumeQueue, int]]) -> None:
        self._correcting = False
        for queue, number in found:
            queue.skip_to(number, low)
            self._emptied.append(queue)

    def _remove_queue_files(self, now: int) -> None:
        while self._emptied and _due(now, self._next_queue_ms, self.rules.queue_pause_ms):
            entries, paths = self._emptied.popleft().give_up_files()
            if paths:
                self._next_queue_ms = now + self.rules.queue_pause_ms
                self._shorten(entries, paths)

    # -- close ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop in the middle: what was given up and is still there goes too, if nobody holds it. Blocks."""
        self._worker.stop()
        while self._retired and not self._retired[0].pins:
            self._remove_segment(self._retired.popleft())
        self._retired.clear()


def _bytes_before(offset: int, queues: Sequence[ConsumeQueue]) -> int:
    """Return the bytes of queue files that go when the log begins at `offset`. Blocks."""
    return sum(queue.files_before(offset) * queue.file_size for queue in queues)


def _allocated(queue: ConsumeQueue) -> int:
    """Return where the newest file of a queue ends, in bytes of all entries that it ever had."""
    return -(-queue.written * ENTRY_SIZE // queue.file_size) * queue.file_size


def _due(now: int, at: int, interval: int) -> bool:
    """Whether a time has come; also when the clock was set back behind the moment that fixed it."""
    return now >= at or at - now > interval
