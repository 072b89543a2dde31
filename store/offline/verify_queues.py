"""The queue files, looked at beside the log: each record has its entry, and each entry its record.

What is missing side by side is one thing and said once: a run of entries, a file, a queue, a topic, all of them. A time
of delivery, which entries of delayed messages have in place of a tag code, depends on the broker's delay table. Where
the table was not given, any time not before the record's own is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.format.names import SCHEDULE_TOPIC
from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE, PRE_BLANK, is_message
from store.log.commitlog import CommitLog
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Findings
from store.offline.layout import Layout
from store.queues.deleted_topics import DeletedTopics
from store.recovery.record_scan import ScannedRecord

_ENTRIES_AT_ONCE = 4096
_PLACES_MAX = 20


@dataclass(slots=True)
class Run:
    """A run of entries that are missing side by side."""

    first: int
    offset: int
    """Where the first one's record stands in the log."""
    last: int


@dataclass(slots=True)
class Queue:
    """The files of one queue, beside the log that passes by."""

    topic: str
    queue_id: int
    directory: Path
    file_size: int
    bases: list[int]
    first: int = -1
    """Number of the first record seen in the log."""
    next: int = -1
    lost: int = 0
    """How much of the log was lost before the last record of the queue."""
    anew: int = 0
    """Log offset of the record that the queue began anew with, of a topic that was deleted and created again."""
    bad: int = 0
    """Entries that are not what they should be."""
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """The first of them: number, and a sentence about it."""
    late: int = 0
    """Entries that the next start writes: nobody promised that they are there."""
    missing: list[Run] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    """Files that are said to be cut or missing; what their entries lack is no news."""
    chunk: bytes = b""
    chunk_from: int = 0

    def base_of(self, number: int) -> int:
        """Return the byte that the file of an entry begins with."""
        logical = number * ENTRY_SIZE
        return logical - logical % self.file_size if self.file_size else 0

    def path_of(self, number: int) -> Path:
        """Return the file that an entry stands in, or the folder where nothing tells how long files are."""
        return self.directory / f"{self.base_of(number):020d}" if self.file_size else self.directory


class QueueCheck:
    """A check of all queue files of a store, in step with its log."""

    def __init__(
        self, report: Findings, layout: Layout, log: CommitLog, deleted: DeletedTopics, disk: DryRunDisk
    ) -> None:
        self.queues: dict[tuple[str, int], Queue] = {}
        self._report = report
        self._layout = layout
        self._log = log
        self._deleted = deleted
        self._disk = disk
        self._directory = layout.root / "consumequeue"

    # -- open ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read which files there are. Blocks."""
        for topic in self._disk.directories(self._directory):
            for name in self._disk.directories(self._directory / topic):
                directory = self._directory / topic / name
                if not name.isdigit():
                    self._report.note(directory, "", "not a queue's number: not read")
                    continue
                queue = self._queue(topic, int(name), directory)
                self._report.counts.queues += 1
                for file in self._disk.names(directory):
                    self._open_file(queue, file)

    def _queue(self, topic: str, queue_id: int, directory: Path) -> Queue:
        queue = Queue(topic, queue_id, directory, self._layout.queue_file_size, [])
        self.queues[topic, queue_id] = queue
        return queue

    def _open_file(self, queue: Queue, name: str) -> None:
        path = queue.directory / name
        found = self._disk.size_of(path)
        if len(name) != 20 or not name.isdigit() or (queue.file_size and int(name) % queue.file_size):
            self._report.damage(path, "", "not a queue file", f"move it out of {queue.directory}")
        elif found == 0:
            self._report.note(path, "", "empty: a crash came while it was created")
        else:
            base = int(name)
            if found != queue.file_size:
                text = f"{found} bytes, not {queue.file_size}"
                self._report.damage(path, f"byte {found}", text, self._report.rebuild)
                queue.told.add(base)
            if queue.bases and base != queue.bases[-1] + queue.file_size:
                self._report.damage(path, "", "the file before this one is missing", self._report.rebuild)
                queue.told.update(range(queue.bases[-1] + queue.file_size, base, queue.file_size))
            queue.bases.append(base)

    # -- in step with the log ------------------------------------------------------------------------

    def check(self, seen: ScannedRecord, entries_due: int) -> None:
        """Check the entry of the record that passes by; before log offset `entries_due` all have been promised."""
        if not seen.indexed or self._deleted.is_dead(seen.topic, seen.offset):
            return
        queue = self.queues.get((seen.topic, seen.queue_id))
        if queue is None:
            queue = self._queue(seen.topic, seen.queue_id, self._directory / seen.topic / str(seen.queue_id))
        self._check_number(queue, seen)
        number = seen.queue_offset
        queue.next = number + 1
        self._report.counts.entries += 1
        found = self._entry(queue, number) or (0, 0, 0)
        same_place = found[:2] == (seen.offset, seen.size)
        if same_place and self._is_code(seen, found[2]):
            return
        missing = found == (0, 0, 0)
        if seen.offset >= entries_due and not same_place:
            self._note_late(queue, number, missing=missing)
            return
        if missing:
            if queue.missing and queue.missing[-1].last == number - 1:
                queue.missing[-1].last = number
            else:
                queue.missing.append(Run(number, seen.offset, number))
            return
        queue.bad += 1
        if queue.bad > _PLACES_MAX:
            return
        if same_place:
            text = f"{self._name_of_code(seen)} {found[2]}, and its record says {self._says(seen)}"
        else:
            text = f"names log offset {found[0]}, size {found[1]}; its record stands at {seen.offset}, size {seen.size}"
        queue.wrong.append((number, text))

    def _check_number(self, queue: Queue, seen: ScannedRecord) -> None:
        """Check that the record is the queue's next, or begins it anew."""
        number, lost = seen.queue_offset, self._report.lost_count
        known, queue.lost = queue.lost, lost
        if queue.next < 0:
            queue.first = number
        elif number < queue.next:
            self._report.note(
                self._log.directory, f"log offset {seen.offset}",
                f"message {number} of queue {seen.queue_id} of topic {seen.topic} is there a second time: of a topic "
                f"that was deleted and created again",
            )  # fmt: skip
            queue.first, queue.anew, queue.bad = number, seen.offset, 0
            queue.wrong.clear()
            queue.missing.clear()
        elif number > queue.next and known != lost:
            self._report.messages_lost += (
                number - queue.next
            )  # they stood where the log is known to be damaged
        elif number > queue.next:
            self._report.damage(
                self._log.directory, f"log offset {seen.offset}",
                f"messages {queue.next} to {number - 1} of queue {seen.queue_id} of topic {seen.topic} are not in the "
                f"log", self._report.repair,
            )  # fmt: skip

    def _is_code(self, seen: ScannedRecord, code: int) -> bool:
        """Tell whether the third field of an entry is right, as far as anything tells."""
        if self._layout.delay_levels is None and self._is_timed(seen):
            return code >= seen.store_timestamp
        return code == seen.tags_code

    def _is_timed(self, seen: ScannedRecord) -> bool:
        """Tell whether the record waits in the delay topic; its code is then no hash of a tag."""
        return seen.topic == SCHEDULE_TOPIC and seen.tags_code >= seen.store_timestamp > 0

    def _name_of_code(self, seen: ScannedRecord) -> str:
        return "time of delivery" if seen.topic == SCHEDULE_TOPIC else "tag code"

    def _says(self, seen: ScannedRecord) -> str:
        if self._layout.delay_levels is None and self._is_timed(seen):
            return f"that it was stored at {seen.store_timestamp}"
        return str(seen.tags_code)

    def _note_late(self, queue: Queue, number: int, *, missing: bool) -> None:
        """Note once for a queue that the next start writes entries which are not there, or stale."""
        queue.late += 1
        if queue.late > 1:
            return
        path, place = queue.path_of(number), f"entry {number}"
        if missing:
            self._report.note(
                path, place, "not written yet, as the last exit was abnormal", "the next start adds it"
            )
        else:
            self._report.note(path, place, "stale, behind what was promised", "the next start writes it anew")

    def _entry(self, queue: Queue, number: int) -> tuple[int, int, int] | None:
        """Return the entry of a number, or None where no file is."""
        at = (number - queue.chunk_from) * ENTRY_SIZE
        if not 0 <= at < len(queue.chunk):
            if not queue.file_size:
                return None
            position = number * ENTRY_SIZE % queue.file_size
            if queue.base_of(number) not in queue.bases:
                return None
            size = min(queue.file_size - position, _ENTRIES_AT_ONCE * ENTRY_SIZE)
            data = self._disk.open_paged(queue.path_of(number)).read_at(position, size)
            queue.chunk = data[: len(data) - len(data) % ENTRY_SIZE]
            queue.chunk_from, at = number, 0
            if not queue.chunk:
                return None
        offset, size, code = ENTRY.unpack_from(queue.chunk, at)
        return offset, size, code

    # -- behind the log ------------------------------------------------------------------------------

    def finish(self, log_end: int) -> None:
        """Report missing entries, and entries without a record."""
        self._report_missing()
        for queue in self.queues.values():
            for number, text in queue.wrong:
                self._report.damage(queue.path_of(number), f"entry {number}", text, self._report.rebuild)
            if queue.bad > _PLACES_MAX:
                self._report.damage(
                    queue.directory, "", f"{queue.bad} entries are wrong; the first {_PLACES_MAX} are listed",
                    self._report.rebuild,
                )  # fmt: skip
            self._check_rest(queue, log_end)

    def _report_missing(self) -> None:
        """Report missing entries: one finding for a run of them, or for a folder in which no queue has a file."""
        bare = {key for key, queue in self.queues.items() if queue.missing and not queue.bases}
        with_records = [key for key, queue in self.queues.items() if queue.first >= 0]
        if bare and bare == set(with_records):
            self._report_bare(self._directory, bare)
            return
        for topic in dict.fromkeys(topic for topic, _queue_id in with_records):
            of_topic = {key for key in with_records if key[0] == topic}
            if of_topic <= bare:
                self._report_bare(self._directory / topic, of_topic)
                continue
            for key in sorted(of_topic):
                if key in bare:
                    self._report_bare(self.queues[key].directory, {key})
                else:
                    self._report_runs(self.queues[key])

    def _report_bare(self, folder: Path, keys: set[tuple[str, int]]) -> None:
        """Report a folder in which no queue has a file."""
        count = sum(run.last - run.first + 1 for key in keys for run in self.queues[key].missing)
        queues = f" of {len(keys)} queues" if len(keys) > 1 else ""
        self._report.damage(
            folder, "", f"there is no queue file: {count} entries{queues} are missing", self._report.rebuild
        )

    def _report_runs(self, queue: Queue) -> None:
        runs = [run for run in queue.missing if queue.base_of(run.first) not in queue.told]
        for run in runs[:_PLACES_MAX]:
            path, count = queue.path_of(run.first), run.last - run.first + 1
            if queue.base_of(run.first) not in queue.bases:
                what = f"there is no such file: {count} entries are missing"
            elif count == 1:
                what = "missing"
            else:
                what = f"{count} entries are missing"
            text = f"{what}; its record stands at log offset {run.offset}"
            self._report.damage(path, f"entry {run.first}", text, self._report.rebuild)
        if len(runs) > _PLACES_MAX:
            self._report.damage(
                queue.directory, "", f"entries are missing in {len(runs)} places; the first {_PLACES_MAX} are listed",
                self._report.rebuild,
            )  # fmt: skip

    def _check_rest(self, queue: Queue, log_end: int) -> None:
        """Check entries that no record asked for: before the log's beginning, behind its end, or of nothing at all."""
        stale = 0
        for number, (offset, size, _code) in self._entries_of(queue):
            if queue.first <= number < queue.next and queue.first >= 0:
                continue
            if self._report.is_lost(offset):
                continue
            if offset >= log_end or offset < queue.anew or not is_message(offset, size):
                stale += 1
            elif not (offset < self._log.min_offset or self._deleted.is_dead(queue.topic, offset)):
                self._report.damage(
                    queue.path_of(number), f"entry {number}",
                    f"names log offset {offset}, where no record of this queue stands", self._report.rebuild,
                )  # fmt: skip
                break
        if stale:
            self._report.note(
                queue.directory, f"entry {max(queue.next, 0)}",
                f"{stale} stale entries behind the end of the log, which nobody reads",
            )  # fmt: skip

    def _entries_of(self, queue: Queue) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Yield every entry of a queue's files that is not zero and no filling."""
        for base in queue.bases:
            file = self._disk.open_paged(queue.directory / f"{base:020d}")
            for start, end in file.data_ranges(0):
                start -= start % ENTRY_SIZE
                for at in range(start, end, _ENTRIES_AT_ONCE * ENTRY_SIZE):
                    data = file.read_at(at, min(_ENTRIES_AT_ONCE * ENTRY_SIZE, end - at + ENTRY_SIZE))
                    for index in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
                        entry = data[index : index + ENTRY_SIZE]
                        if entry != PRE_BLANK and entry.count(0) != ENTRY_SIZE:
                            offset, size, code = ENTRY.unpack(entry)
                            yield (base + at + index) // ENTRY_SIZE, (offset, size, code)
