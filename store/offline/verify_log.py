"""Verification of a log by itself: its files, and every record from the first byte to the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from store.log.commitlog import CommitLog
from store.log.segment import Segment
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Findings, Lost
from store.offline.layout import log_names
from store.offline.verify_entries import EntryCheck
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import Verdict, follower, judge, lost_its_tail, next_valid


class LogCheck:
    """The check of one log: of plain records, or of entries."""

    def __init__(
        self,
        report: Findings,
        log: CommitLog,
        disk: DryRunDisk,
        root: Path,
        entries: EntryCheck | None,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
        delay_of: Callable[[str], int] | None = None,
    ) -> None:
        """`entries` judges each entry; a log of plain records has none. `root` is the store's, for advice."""
        self.report = report
        self.log = log
        self.entries = entries
        self.end = 0
        """Where the log ends."""
        self.last_store_ms = 0
        self._disk = disk
        self._root = root
        self._progress = progress
        self._delay_of = delay_of
        self._cut_segments: set[int] = set()
        """Where segments begin whose files are too short or too long, which is said already."""

    def open(self) -> None:
        """Map every segment there is, of any size: all that can be read is looked at."""
        size, folder = self.log.segment_size, self.log.directory
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
                self._cut_segments.add(base)
            self.log._add(Segment(base, self._disk.open_mapped(path), placing=self.log.placing))
            self.report.counts.segments += 1
            end = base + size

    def _durable(self, promised: int) -> int:
        used = [
            segment for segment in self.log.segments if isinstance(scan_record(segment, 0), ScannedRecord)
        ]
        if self.entries is not None:  # what is not committed may be replaced by a leader, sealed segments too
            return max(self.log.min_offset, self.entries.commit_pos, promised)
        sealed = used[-2].base_offset if len(used) > 1 else self.log.min_offset
        return max(sealed, promised)

    def records(self, promised: int = 0) -> Iterator[ScannedRecord]:
        """Return every whole record of the log; damaged stretches between them are reported and passed over.

        `promised` is an offset below which all was promised to be durable, beside what the log tells itself.
        """
        segments = self.log.segments
        durable = self._durable(promised)
        total = sum(segment.size for segment in segments)
        offset = self.end = self.log.min_offset
        while offset < (segments[-1].end_offset if segments else 0):
            segment = self.log.find(offset)
            if segment is None:  # between two files
                begin, offset = offset, min(s.base_offset for s in segments if s.base_offset > offset)
                self.report.holes.append((begin, offset))
                continue
            position = offset - segment.base_offset
            seen = scan_record(segment, position, self._delay_of)
            if isinstance(seen, ScannedRecord) and not lost_its_tail(self.log, seen, durable):
                self.report.counts.records += 1
                self.report.counts.record_bytes += seen.size
                self.last_store_ms = max(self.last_store_ms, seen.store_timestamp)
                if self.entries is not None:
                    self.entries.check(self.report, segment, position)
                yield seen
                offset = self.end = seen.end
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
            # Of the record that follows, the place: where the head of its entry is.
            head_size = self.log.placing.head_size
            end = following.offset - head_size if following is not None else segments[-1].end_offset
            self._note_lost(segment, offset, end, seen, to_be_cut=verdict is Verdict.CUT, durable=durable)
            if following is None:
                return
            offset = end
        if self.end < durable:
            self.report.damage(
                self.log.directory,
                f"log offset {self.end}",
                f"the log ends here, but {durable} bytes were promised to be durable",
                self.report.repair,
            )
            self.report.lost.append(
                Lost(
                    self.end,
                    durable,
                    self.log.directory,
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
        if self.entries is not None:
            place = f"byte {position} (entry {self.entries.next_index}, log offset {offset})"
            self.entries.passed_over()
        self.report.lost.append(Lost(offset, end, segment.file.path, position, what, to_be_cut))
        if segment.base_offset in self._cut_segments:
            return  # said already: the file has not all of its bytes
        advice = f"`ropewalk store recover {self._root}` says what can be done"
        if self.entries is not None:
            mended = self.report.repair
            advice = f"the next start cuts the log here, and a leader sends the entries again; else {mended}"
        if to_be_cut:
            self.report.note(
                segment.file.path, place, f"{what}, behind all that was promised to be durable",
                "the next start copies it aside and cuts it"
                + ("" if self.entries is not None else f": `ropewalk store recover {self._root}`"),
            )  # fmt: skip
        elif offset >= durable:
            self.report.damage(
                segment.file.path, place, f"{what}, and records follow at log offset {end}", advice,
            )  # fmt: skip
        else:
            self.report.damage(
                segment.file.path, place, f"{what}; damaged up to log offset {end}", self.report.repair
            )
