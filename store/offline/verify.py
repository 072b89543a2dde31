"""Verify a store: every byte that brokers and clients rely on is checked, and nothing is changed.

The log is read from its first byte to its last; beside it run the queue files, whose entries have to name the records
that pass by, and the index (`verify_index`). Then come the small files. What is wrong becomes a `Finding`: damage,
which names file, place and remedy; or a note, for what is odd and harmless. A store that was killed has queue entries
missing at its end and may have a torn record there: the next start sees to that, so they are notes.

Works on RocketMQ's directories as on ours. A directory in use cannot be judged, as its end moves: `StoreLocked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ropewalk.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from ropewalk.format.queue_entry import ENTRY, ENTRY_SIZE, PRE_BLANK, is_message
from ropewalk.format.sidecar import Sidecar, block_sum
from store.log.commitlog import CommitLog
from store.log.durable_bound import Bound, boot_id, decode_bound
from store.log.segment import Segment
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Counts, Finding, Findings, Lost
from store.offline.layout import Layout, log_names
from store.offline.verify_index import IndexCheck
from store.queues.deleted_topics import DeletedTopics
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import Verdict, follower, judge, next_valid

_ENTRIES_AT_ONCE = 4096
_PLACES_MAX = 20
_DAY_MS = 86_400_000


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
    bad: int = 0
    """Entries that are not what they should be."""
    late: int = 0
    """Entries that the next start writes: nobody promised that they are there."""
    chunk: bytes = b""
    chunk_from: int = 0

    def path_of(self, number: int) -> Path:
        logical = number * ENTRY_SIZE
        return self.directory / f"{logical - logical % self.file_size:020d}"


class Verification:
    """A verification of one store. `run` fills `findings`, `lost` and `counts`."""

    def __init__(
        self,
        layout: Layout,
        disk: DryRunDisk,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> None:
        self.layout = layout
        self.report = Findings(layout.root)
        """Damage, notes, lost stretches and counts, as far as `run` has come."""
        self.log = CommitLog(layout.log_directory, layout.segment_size, disk)
        self.queues: dict[tuple[str, int], Queue] = {}
        self.end = 0
        """Where the log ends."""
        self.bound: Bound | None = None
        self.checkpoint = Checkpoint()
        self.last_store_ms = 0
        self._disk = disk
        self._progress = progress
        self._deleted = DeletedTopics(layout.root / "ropewalk" / "deleted", disk)
        self._abnormal = False
        self._entries_due = 0
        """Records below this log offset must have their queue entry by now."""

    @property
    def findings(self) -> list[Finding]:
        """The damage and the notes."""
        return self.report.findings

    @property
    def lost(self) -> list[Lost]:
        """The damaged stretches of the log."""
        return self.report.lost

    @property
    def counts(self) -> Counts:
        """The amounts that were checked."""
        return self.report.counts

    # -- the whole of it -----------------------------------------------------------------------------

    def run(self, *, locked: bool = False) -> None:
        """Look at everything. Blocks; raises OSError, and `StoreLocked` while somebody else has the store.

        `locked` says that the caller holds the lock.
        """
        root = self.layout.root
        if not locked:
            self._disk.unlock(self._disk.lock(root / "lock"))
        try:
            self._deleted.load()
            self._read_small_files()
            self._open_log()
            self._open_queues()
            index = IndexCheck(
                self.report,
                self.layout,
                self.log,
                self._disk,
                self.checkpoint.index_msg_timestamp,
                abnormal=self._abnormal,
            )
            for seen in self._records():
                self._check_entry(seen)
                index.check(seen)
            index.finish(self.end)
            self._check_rest_of_queues()
            self._check_bound()
            self._check_sidecars()
        finally:
            self.log.close(keep_spare=True)
            self._disk.close()

    def _read_small_files(self) -> None:
        root = self.layout.root
        self._abnormal = self._disk.exists(root / "abort")
        data = self._disk.read_file(root / "checkpoint")
        if data is not None and len(data) < CHECKPOINT_SIZE:
            self.report.damage(
                root / "checkpoint",
                f"byte {len(data)}",
                f"{len(data)} bytes, not {CHECKPOINT_SIZE}",
                "remove it: the next start reads more of the log instead",
            )
        elif data is not None:
            self.checkpoint = Checkpoint.decode(data)
        raw = self._disk.read_file(root / "ropewalk" / "bound")
        self.bound = decode_bound(raw)
        if raw is not None and self.bound is None:
            self.report.note(
                root / "ropewalk" / "bound",
                "",
                "torn, or of another version; it counts as none",
                "the next start reads more of the log instead",
            )
        if self._disk.exists(root / "abort.bak"):
            self.report.note(root / "abort.bak", "", "a leftover of RocketMQ's, which nobody reads")

    # -- the log -------------------------------------------------------------------------------------

    def _open_log(self) -> None:
        """Map every segment there is, whatever its size: what can be read is looked at."""
        size, folder = self.layout.segment_size, self.layout.log_directory
        names = set(log_names(self._disk, folder))
        for name in self._disk.names(folder):
            if name not in names:
                self.report.damage(folder / name, "", "not a commit-log segment", f"move it out of {folder}")
        end = -1
        for name in sorted(names):
            path, base = folder / name, int(name)
            found = self._disk.size_of(path)
            if found == 0 or (found != size and name == max(names) and self._disk.is_blank(path)):
                self.report.note(
                    path, "", f"{found} bytes and none of them written: a crash came while it was created"
                )
                continue
            if end >= 0 and base != end:
                self.report.damage(
                    path,
                    f"log offset {end}",
                    f"{base - end} bytes of the log are missing before this file",
                    f"put back {folder / f'{end:020d}'}; {self.report.repair}",
                )
            if found != size:
                self.report.damage(path, f"byte {found}", f"{found} bytes, not {size}", self.report.repair)
            self.log._add(Segment(base, self._disk.open_mapped(path)))
            self.report.counts.segments += 1
            end = base + size

    def _durable(self) -> int:
        used = [
            segment for segment in self.log.segments if isinstance(scan_record(segment, 0), ScannedRecord)
        ]
        sealed = used[-2].base_offset if len(used) > 1 else self.log.min_offset
        return max(sealed, self.bound.flushed if self.bound is not None else 0)

    def _records(self) -> Iterator[ScannedRecord]:
        """Every whole record of the log, damaged stretches between them noted and passed over."""
        segments = self.log.segments
        durable = self._durable()
        self._set_entries_due()
        total = sum(segment.size for segment in segments)
        offset = self.end = self.log.min_offset
        delay_of = self.layout.delay_levels.delay_of
        while offset < (segments[-1].end_offset if segments else 0):
            segment = self.log.find(offset)
            if segment is None:  # between two files
                offset = min(s.base_offset for s in segments if s.base_offset > offset)
                continue
            position = offset - segment.base_offset
            seen = scan_record(segment, position, delay_of)
            if isinstance(seen, ScannedRecord) and not (
                seen.ends_in_zero and offset >= durable and follower(self.log, offset) is None
            ):
                self.report.counts.records += 1
                self.report.counts.record_bytes += seen.size
                self.last_store_ms = max(self.last_store_ms, seen.store_timestamp)
                yield seen
                offset += seen.size
                self.end = offset
                if not self.report.counts.records & 1023:
                    self._progress(offset - segments[0].base_offset, total)
                continue
            if seen is NoRecord.FILLER:
                offset = self.end = max(segment.end_offset, offset + 1)
                continue
            following = next_valid(self.log, offset)
            verdict = judge(
                blank=seen is NoRecord.BLANK, filler=False, valid=False, past_durable=offset >= durable,
                valid_follows=follower(self.log, offset) is not None, sync_flush=True,
            )  # fmt: skip
            if verdict is Verdict.LOG_ENDS:
                return
            end = following.offset if following is not None else segments[-1].end_offset
            self._note_lost(segment, offset, end, seen, to_be_cut=verdict is Verdict.CUT, durable=durable)
            if following is None:
                return
            offset = following.offset
        if self.end < durable:
            self.report.damage(
                self.layout.log_directory,
                f"log offset {self.end}",
                f"the log ends here, but {durable} bytes were promised to be durable",
                self.report.repair,
            )
            self.report.lost.append(
                Lost(
                    self.end,
                    durable,
                    self.layout.log_directory,
                    self.end,
                    "the end is missing",
                    to_be_cut=False,
                )
            )

    def _note_lost(
        self, segment: Segment, offset: int, end: int, seen: object, *, to_be_cut: bool, durable: int
    ) -> None:
        position = offset - segment.base_offset
        what = f"{seen.value} where a record should begin" if isinstance(seen, NoRecord) else "a torn record"
        place = f"byte {position} (log offset {offset})"
        self.report.lost.append(Lost(offset, end, segment.file.path, position, what, to_be_cut))
        if to_be_cut:
            self.report.note(
                segment.file.path, place, f"{what}, behind all that was promised to be durable",
                f"the next start copies it aside and cuts it: `ropewalk store recover {self.layout.root}`",
            )  # fmt: skip
        elif offset >= durable:
            self.report.damage(
                segment.file.path, place, f"{what}, and records follow at log offset {end}",
                f"`ropewalk store recover {self.layout.root}` says what can be done",
            )  # fmt: skip
        else:
            self.report.damage(
                segment.file.path, place, f"{what}; damaged up to log offset {end}", self.report.repair
            )

    # -- queue files ---------------------------------------------------------------------------------

    def _open_queues(self) -> None:
        base = self.layout.root / "consumequeue"
        size = self.layout.queue_file_size
        for topic in self._disk.directories(base):
            for name in self._disk.directories(base / topic):
                if not name.isdigit():
                    self.report.note(base / topic / name, "", "not a queue's number: not read")
                    continue
                directory = base / topic / name
                queue = self.queues[topic, int(name)] = Queue(topic, int(name), directory, size, [])
                self.report.counts.queues += 1
                for file in self._disk.names(directory):
                    self._open_queue_file(queue, file)

    def _open_queue_file(self, queue: Queue, name: str) -> None:
        path = queue.directory / name
        found = self._disk.size_of(path)
        if len(name) != 20 or not name.isdigit() or (queue.file_size and int(name) % queue.file_size):
            self.report.damage(path, "", "not a queue file", f"move it out of {queue.directory}")
        elif found == 0:
            self.report.note(path, "", "empty: a crash came while it was created")
        else:
            base = int(name)
            if found != queue.file_size:
                self.report.damage(
                    path, f"byte {found}", f"{found} bytes, not {queue.file_size}", self.report.rebuild
                )
            if queue.bases and base != queue.bases[-1] + queue.file_size:
                self.report.damage(path, "", "the file before this one is missing", self.report.rebuild)
            queue.bases.append(base)

    def _set_entries_due(self) -> None:
        """What lies before this log offset must have its queue entry."""
        bound, min_offset = self.bound, self.log.min_offset
        if bound is not None and (bound.clean or bound.boot == boot_id(self._disk)):
            self._entries_due = bound.queues
        elif bound is None and not self._abnormal:
            self._entries_due = 1 << 63  # RocketMQ's clean exit
        else:
            self._entries_due = min_offset
            for segment in self.log.segments:
                first = scan_record(segment, 0)
                if (
                    isinstance(first, ScannedRecord)
                    and first.store_timestamp <= self.checkpoint.min_timestamp
                ):
                    self._entries_due = segment.base_offset

    def _check_entry(self, seen: ScannedRecord) -> None:
        """Whether the record that passes by has the entry it should have."""
        if not seen.indexed or self._deleted.is_dead(seen.topic, seen.offset):
            return
        queue = self.queues.get((seen.topic, seen.queue_id))
        due = seen.offset < self._entries_due
        if queue is None:
            directory = self.layout.root / "consumequeue" / seen.topic / str(seen.queue_id)
            queue = self.queues[seen.topic, seen.queue_id] = Queue(
                seen.topic, seen.queue_id, directory, self.layout.queue_file_size, []
            )
        number = seen.queue_offset
        if queue.next < 0:
            queue.first = number
        elif number < queue.next:
            self.report.note(
                self.log.directory, f"log offset {seen.offset}",
                f"message {number} of queue {seen.queue_id} of topic {seen.topic} is there a second time: of a topic "
                f"that was deleted and created again",
            )  # fmt: skip
            return
        elif number > queue.next:
            self.report.damage(
                self.log.directory, f"log offset {seen.offset}",
                f"messages {queue.next} to {number - 1} of queue {seen.queue_id} of topic {seen.topic} are not in the "
                f"log", self.report.repair,
            )  # fmt: skip
        queue.next = number + 1
        self.report.counts.entries += 1
        found = self._entry(queue, number) or (0, 0, 0)
        if found == (seen.offset, seen.size, seen.tags_code):
            return
        path = queue.path_of(number) if queue.file_size else queue.directory
        place, missing = f"entry {number}", found == (0, 0, 0)
        if not due and (missing or found[:2] != (seen.offset, seen.size)):
            queue.late += 1
            if queue.late == 1 and missing:
                self.report.note(
                    path, place, "not written yet, as the last exit was abnormal", "the next start adds it"
                )
            elif queue.late == 1:
                self.report.note(
                    path, place, "stale, behind what was promised", "the next start writes it anew"
                )
            return
        queue.bad += 1
        if queue.bad > _PLACES_MAX:
            return
        if missing:
            self.report.damage(
                path, place, f"missing; its record stands at log offset {seen.offset}", self.report.rebuild
            )
        elif found[:2] == (seen.offset, seen.size):
            what = "time of delivery" if seen.topic == "SCHEDULE_TOPIC_XXXX" else "tag code"
            self.report.damage(
                path, place, f"{what} {found[2]}, and its record says {seen.tags_code}", self.report.rebuild
            )
        else:
            self.report.damage(
                path, place, f"names log offset {found[0]}, size {found[1]}; its record stands at {seen.offset}, "
                f"size {seen.size}", self.report.rebuild,
            )  # fmt: skip

    def _entry(self, queue: Queue, number: int) -> tuple[int, int, int] | None:
        """What stands at a number, or None where no file is."""
        at = (number - queue.chunk_from) * ENTRY_SIZE
        if not 0 <= at < len(queue.chunk):
            if not queue.file_size:
                return None
            logical = number * ENTRY_SIZE
            position = logical % queue.file_size
            if logical - position not in queue.bases:
                return None
            size = min(queue.file_size - position, _ENTRIES_AT_ONCE * ENTRY_SIZE)
            data = self._disk.open_paged(queue.path_of(number)).read_at(position, size)
            queue.chunk = data[: len(data) - len(data) % ENTRY_SIZE]
            queue.chunk_from, at = number, 0
            if not queue.chunk:
                return None
        offset, size, code = ENTRY.unpack_from(queue.chunk, at)
        return offset, size, code

    def _check_rest_of_queues(self) -> None:
        """Entries that no record asked for: before the log's beginning, behind its end, or of nothing at all."""
        low = self.log.min_offset
        for queue in self.queues.values():
            if queue.bad > _PLACES_MAX:
                self.report.damage(
                    queue.directory, "", f"{queue.bad} entries are wrong; the first {_PLACES_MAX} are listed",
                    self.report.rebuild,
                )  # fmt: skip
            stale = 0
            for number, (offset, size, _code) in self._entries_of(queue):
                if queue.first <= number < queue.next and queue.first >= 0:
                    continue
                if offset >= self.end or not is_message(offset, size):
                    stale += 1
                elif not (offset < low or self._deleted.is_dead(queue.topic, offset)):
                    self.report.damage(
                        queue.path_of(number), f"entry {number}",
                        f"names log offset {offset}, where no record of this queue stands", self.report.rebuild,
                    )  # fmt: skip
                    break
            if stale:
                self.report.note(
                    queue.directory, f"entry {max(queue.next, 0)}",
                    f"{stale} stale entries behind the end of the log, which nobody reads",
                )  # fmt: skip

    def _entries_of(self, queue: Queue) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Every entry of a queue's files that is not zero and no filling."""
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

    # -- what the small files claim ------------------------------------------------------------------

    def _check_bound(self) -> None:
        root, bound, point = self.layout.root, self.bound, self.checkpoint
        times = (point.physic_msg_timestamp, point.logics_msg_timestamp, point.index_msg_timestamp)
        if min(times) < 0 or (self.report.counts.records and max(times) > self.last_store_ms + _DAY_MS):
            self.report.damage(
                root / "checkpoint", "byte 0", f"times {times} are not of this log, whose last is {self.last_store_ms}",
                "remove it: the next start reads more of the log instead",
            )  # fmt: skip
        if bound is not None and bound.clean and bound.end != self.end and bound.end < self.end:
            self.report.note(
                root / "ropewalk" / "bound",
                "",
                f"the log went on behind {bound.end}: another program wrote to it",
            )

    def _check_sidecars(self) -> None:
        directory = self.layout.root / "ropewalk" / "checksums"
        by_name = {segment.file.path.name: segment for segment in self.log.segments}
        for name in self._disk.names(directory):
            path = directory / name
            segment = by_name.get(name)
            if segment is None:
                self.report.damage(
                    path, f"log offset {int(name) if name.isdigit() else name}",
                    f"checksums of a segment that is gone: somebody took {self.log.directory / name} away",
                    "put it back, or remove these checksums",
                )  # fmt: skip
                continue
            sidecar = Sidecar.decode(self._disk.read_file(path))
            if sidecar is None:
                self.report.note(path, "", "torn: it counts as none", "the scrubber makes it anew")
                continue
            for number, wanted in enumerate(sidecar.sums):
                start, stop = sidecar.block(number)
                self.report.counts.blocks += 1
                if stop > segment.size or block_sum(segment.file.read_at(start, stop - start)) != wanted:
                    self.report.damage(
                        segment.file.path, f"byte {start} to {stop} (log offset {segment.base_offset + start})",
                        f"the bytes do not match their checksum in {path}", self.report.repair,
                    )  # fmt: skip
