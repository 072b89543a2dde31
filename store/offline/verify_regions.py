"""Verification of the key-value store's regions: of each the log, the small files beside it, and the snapshots.

    <root>/kv/<region>                          as a start opens it (`store.region_store`, `store.region_snapshots`)
    <root>/ropewalk/dledger/kv-<region>         that there has to be one

An entry has to be one that can be applied. The newest whole snapshot has to reach into the log, or behind its end where
a leader sent it: what neither it nor the log has is lost here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ropewalk.errors import CorruptRecord
from ropewalk.format.dledger.entry import HEAD_SIZE
from ropewalk.format.kv.entry import read_entry
from ropewalk.format.kv.snapshot import Head, SnapshotReader
from store.entries import install
from store.log.commitlog import CommitLog
from store.log.placing import ENTRY
from store.log.remedy import FILL, REFILL
from store.offline.dry_run_disk import DryRunDisk
from store.offline.findings import Findings
from store.offline.layout import log_names
from store.offline.verify_entries import EntryCheck
from store.offline.verify_log import LogCheck
from store.recovery.record_scan import ScannedRecord
from store.region_snapshots import RegionSnapshots
from store.region_store import INSTALLED, SEGMENT_SIZE, STATE

_MARK: Final = "kv-"


def regions_of(root: Path, disk: DryRunDisk) -> list[int]:
    """Return the regions that a store has, or had. Blocks."""
    names = {name for name in disk.directories(root / "kv") if name.isdigit()}
    names |= {
        name.removeprefix(_MARK)
        for name in disk.names(root / "ropewalk" / "dledger")
        if name.startswith(_MARK) and name.removeprefix(_MARK).isdigit()
    }
    return sorted(map(int, names))


def check_regions(report: Findings, root: Path, disk: DryRunDisk) -> None:
    """Look at every region, and report damage and notes. Blocks."""
    for id in regions_of(root, disk):
        check = _RegionCheck(root, id, disk)
        check.run()
        report.findings += check.report.findings
        report.counts.regions += 1
        report.counts.region_entries += check.report.counts.records
        report.counts.snapshots += check.report.counts.snapshots


@dataclass(slots=True)
class RegionFacts:
    """A region as its small files tell it."""

    id: int
    committed_index: int
    segments: int
    log_start: int
    snapshots: list[int] = field(default_factory=list)
    problem: str = ""


def region_facts(root: Path, id: int, disk: DryRunDisk) -> RegionFacts:
    """Return the content of a region shortly. Blocks."""
    region, report = root / "kv" / str(id), Findings(root, members_have=FILL)
    entries = EntryCheck(region, region / "notes")
    entries.read_small_files(report, disk)
    names = log_names(disk, region / "data")
    problem = next((finding.text for finding in report.findings if finding.damage), "")
    return RegionFacts(
        id, entries.committed_index, len(names), int(min(names, default="0")),
        RegionSnapshots(region, disk).load(), problem,
    )  # fmt: skip


class _RegionCheck:
    """The check of one region; the findings are its own, since its log has offsets of its own."""

    def __init__(self, root: Path, id: int, disk: DryRunDisk) -> None:
        self.report = Findings(root, members_have=FILL)
        self._root = root
        self._id = id
        self._disk = disk
        self._region = root / "kv" / str(id)
        self._entries = EntryCheck(self._region, self._region / "notes")
        self._log = CommitLog(self._region / "data", SEGMENT_SIZE, disk, ENTRY)
        self._files = RegionSnapshots(self._region, disk)

    def run(self) -> None:
        report, entries, disk = self.report, self._entries, self._disk
        entries.read_small_files(report, disk)
        check = LogCheck(report, self._log, disk, self._root, entries)
        try:
            check.open()
            snapshot = self._newest_whole()
            known = len(report.findings)
            for seen in check.records(snapshot.pos if snapshot is not None else 0):
                if len(report.findings) == known:
                    self._check_applicable(seen)
                known = len(report.findings)
            entries.finish(report)
            if not self._is_replaced():
                self._check_reach(snapshot)
        finally:
            self._log.close(keep_spare=True)
        if self._disk.exists(self._root / "ropewalk" / "dledger" / f"{_MARK}{self._id}"):
            self._check_there()

    def _check_there(self) -> None:
        if self._entries.ballot is None and self._entries.index < 0:
            self.report.damage(
                self._region, "", "is gone, where this member had a log of the key-value store: a start is refused",
                f"put it back, or {REFILL}",
            )  # fmt: skip

    def _check_applicable(self, seen: ScannedRecord) -> None:
        place = seen.offset - HEAD_SIZE
        segment = self._log.find(place)
        assert segment is not None, place
        position = place - segment.base_offset
        if read_entry(segment.map, position, place) is None:
            text = "a whole record, but no command of the key-value store"
            where = f"byte {position} (entry {self._entries.index}, log offset {place})"
            self.report.damage(segment.file.path, where, text, FILL)

    # -- snapshots -----------------------------------------------------------------------------------

    def _newest_whole(self) -> Head | None:
        """Return the head of the snapshot that a start begins with; report those that are damaged."""
        whole: list[Head] = []
        damaged: list[tuple[Path, str]] = []
        for index in self._files.load():
            self.report.counts.snapshots += 1
            try:
                head = self._head_of(index)
            except CorruptRecord as exc:
                damaged.append((self._files.path(index), str(exc)))
                continue
            if head.region != self._id:
                damaged.append((self._files.path(index), f"the state of region {head.region}"))
                continue
            whole.append(head)
        if whole:
            advice = (
                f"a start begins with the state behind entry {whole[0].index}; later ones replace this file"
            )
        elif not self._log.min_offset:
            advice = "a start applies the log from its first entry on; later snapshots replace this file"
        else:
            begin = self._log.min_offset
            advice = f"a start needs one, since the log begins at offset {begin}: put back a copy, or {FILL}"
        for path, why in damaged:
            self.report.damage(path, "", why, advice)
        return whole[0] if whole else None

    def _head_of(self, index: int) -> Head:
        reader = SnapshotReader()
        for piece in self._files.pieces(index):
            deque(reader.feed(piece), maxlen=0)
        return reader.finish()

    def _is_replaced(self) -> bool:
        """Tell whether the next start takes another log or another state."""
        names = self._disk.names(self._region / "notes")
        return any(name == install.INSTALL or name.startswith(STATE) for name in names)

    def _check_reach(self, snapshot: Head | None) -> None:
        """Judge whether snapshot and log make the state together."""
        log, entries, report = self._log, self._entries, self.report
        begin = snapshot.pos if snapshot is not None else 0
        if begin < log.min_offset and (snapshot is not None or not report.counts.snapshots):
            report.damage(
                log.directory, f"log offset {log.min_offset}",
                "the log begins here, and no snapshot is as old", f"put a snapshot back, or {FILL}",
            )  # fmt: skip
        installed = self._disk.read_file(self._region / "notes" / INSTALLED)
        if installed is not None and not installed.isdigit():
            report.damage(
                self._region / "notes" / INSTALLED, "", "names no entry: a start is refused", REFILL
            )
            return
        if snapshot is None or (installed is not None and int(installed) == snapshot.index):
            return
        if entries.index < snapshot.index:
            report.damage(
                log.directory, f"entry {entries.next_index}",
                f"the log ends here, and a snapshot holds the state behind entry {snapshot.index}",
                f"put the missing files back, or {FILL}",
            )  # fmt: skip
