"""Putting a store together again: bytes of the log from another copy of it, everything else from the log.

Three steps, on the directory that is given (for a copy see the command). First the log's files get back their
number and their size, and every place that cannot be read, or does not match its checksum, is looked up in other
directories of the same log: a replica's, a backup. Bytes are taken over if they match our checksum, or else if they
are whole records that fit exactly and a neighbour that both have is the same in both: another log is not a backup of
this one. What was there before is kept under `ropewalk/replaced/`.

Then what is still missing is named. Only if a person accepts the loss, the log ends at the first such place; what
stands behind it is copied aside. At last queue files and index are built again from the log.

All of it can be repeated: a repair that was interrupted is done again from the start. Delayed messages stay due when
they were (`due_times`), unless a table is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ropewalk.format.sidecar import BLOCK_SIZE, Sidecar, block_sum
from store.io.disk import Disk
from store.log.commitlog import CommitLog, StoreDamaged, segment_name
from store.log.durable_bound import Bound, decode_bound
from store.log.limits import NO_LIMIT
from store.log.segment import Segment
from store.message_store import MessageStore
from store.offline.dry_run_disk import DryRunDisk
from store.offline.due_times import keep_due_times, observed_levels, restore_due_times
from store.offline.findings import Lost
from store.offline.layout import Layout, log_names
from store.offline.reader import log_folder
from store.offline.verify import Verification
from store.recovery.record_scan import NoRecord, ScannedRecord, scan_record
from store.recovery.scan import cut

_STEP = 1 << 20


@dataclass(slots=True)
class Repaired:
    """The result of a repair, in words."""

    taken: list[str] = field(default_factory=list)
    """Places that were taken over from elsewhere, and files that got their size back."""
    lost: list[str] = field(default_factory=list)
    """Places that nobody has."""
    cut: list[str] = field(default_factory=list)
    rebuilt: bool = False
    end: int = 0
    records: int = 0
    queues: int = 0


class OtherLog:
    """Another directory of the same log, read only."""

    def __init__(self, directory: Path, segment_size: int) -> None:
        self.directory = directory
        self._disk = DryRunDisk()
        folder = log_folder(directory)
        self.log = CommitLog(folder, segment_size, self._disk)
        for name in log_names(self._disk, folder):
            if self._disk.size_of(folder / name) == segment_size:
                self.log._add(Segment(int(name), self._disk.open_mapped(folder / name)))

    def read(self, start: int, end: int) -> bytes | None:
        """Return bytes of the log that lie in one segment; None if they are not all there."""
        segment = self.log.find(start)
        if segment is None or end > segment.end_offset:
            return None
        return bytes(segment.map[start - segment.base_offset : end - segment.base_offset])

    def whole(self, start: int, end: int) -> int:
        """Return up to where records are whole from `start` on, at most `end`."""
        offset = start
        while offset < end and (segment := self.log.find(offset)) is not None:
            seen = scan_record(segment, offset - segment.base_offset)
            if seen is NoRecord.FILLER:
                offset = segment.end_offset
            elif isinstance(seen, ScannedRecord):
                offset += seen.size
            else:
                break
        return min(offset, end) if offset <= end else start

    def close(self) -> None:
        self.log.close(keep_spare=True)
        self._disk.close()


def repair(
    layout: Layout,
    others: Sequence[Path],
    *,
    accept_loss: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Repaired:
    """Repair a store in place. Blocks; raises `StoreLocked`, and `StoreDamaged` for what it cannot make whole."""
    disk = Disk()
    done = Repaired()
    fd = disk.lock(layout.root / "lock")
    try:
        _refuse_foreign_files(layout, disk)
        logs = [OtherLog(path, layout.segment_size) for path in others]
        try:
            _restore_files(layout, disk, logs, done)
            queues = _restore_bytes(layout, disk, logs, done, progress)
        finally:
            for other in logs:
                other.close()
        if done.lost and not accept_loss:
            return done
        if done.lost:
            _give_up(layout, disk, done)
            queues = _look(layout, progress).queues_with_records
        if layout.delay_levels is None:
            layout = replace(layout, observed_levels=observed_levels(DryRunDisk(), layout))
            keep_due_times(layout, disk)
        _forget_derived(layout, disk, queues)
    finally:
        disk.close()
        disk.unlock(fd)
    _build(layout, done)
    if layout.delay_levels is None:
        _restore_due_times(layout)
    return done


# -- the log -----------------------------------------------------------------------------------------


def _refuse_foreign_files(layout: Layout, disk: Disk) -> None:
    """Refuse, before anything is changed, a log among whose files others lie: no start takes those."""
    known = set(log_names(DryRunDisk(), layout.log_directory))
    for name in disk.names(layout.log_directory):
        if name not in known:
            raise StoreDamaged(
                f"{layout.log_directory / name} is not a commit-log segment (the log begins at log offset "
                f"{int(min(known, default='0'))}): move it out of {layout.log_directory}, then repair again"
            )


def _restore_files(layout: Layout, disk: Disk, others: Sequence[OtherLog], done: Repaired) -> None:
    """Every file of the log is there and has its size; what it lacks is zeros so far."""
    bases = {int(name) for name in log_names(DryRunDisk(), layout.log_directory)}
    inner = bases or {segment.base_offset for other in others for segment in other.log.segments}
    if not inner:
        return
    size, low, high = layout.segment_size, min(inner), max(inner)
    for base in _summed(layout, disk):  # checksums outlive a file that somebody took away
        if any(other.log.find(base) for other in others):
            low, high = min(low, base), max(high, base)
    for base in range(low, high + size, size):
        path = layout.log_directory / segment_name(base)
        found = disk.size_of(path) if base in bases else 0
        if found > size:
            rest = disk.open_paged(path).read_at(size, found - size)
            disk.append_file(layout.root / "ropewalk" / "replaced" / f"{base + size:020d}", rest)
        if found != size:
            disk.create_paged(path, size)
            done.taken.append(f"{path} has {size} bytes again, not {found}")
    disk.sync_directory(layout.log_directory)


def _summed(layout: Layout, disk: Disk) -> list[int]:
    """The segments that there are checksums of."""
    return [int(name) for name in disk.names(layout.root / "ropewalk" / "checksums") if name.isdigit()]


class _Looked:
    """A verification's findings about log and sidecars that a repair can act on."""

    def __init__(self, verification: Verification) -> None:
        self.lost = [lost for lost in verification.lost if not lost.to_be_cut]
        self.queues_with_records = {key for key, queue in verification.queues.items() if queue.first >= 0}
        self.end = verification.end
        self.orphans = verification.orphans


def _look(layout: Layout, progress: Callable[[int, int], None]) -> _Looked:
    verification = Verification(replace(layout, index=None), DryRunDisk(), progress)
    verification.run(locked=True)
    return _Looked(verification)


def _restore_bytes(
    layout: Layout,
    disk: Disk,
    others: Sequence[OtherLog],
    done: Repaired,
    progress: Callable[[int, int], None],
) -> set[tuple[str, int]]:
    """Take over what others have, until nothing is left or nothing more can be had."""
    while True:
        before = len(done.taken)
        blocks = _restore_blocks(layout, disk, others, done)
        looked = _look(layout, progress)
        for lost in looked.lost:
            _restore_stretch(layout, disk, others, lost, done)
        if len(done.taken) == before:
            break
    done.lost = [
        f"{lost.path} from byte {lost.position} (log offset {lost.offset}) to log offset {lost.end}: {lost.text}"
        for lost in looked.lost
    ]
    done.lost += [
        text for start, text in blocks if not any(lost.offset <= start < lost.end for lost in looked.lost)
    ]
    done.lost += [
        f"the segment that {path} has checksums of (log offset {int(path.name)})" for path in looked.orphans
    ]
    return looked.queues_with_records


def _sidecars(layout: Layout, disk: Disk) -> list[Sidecar]:
    directory = layout.root / "ropewalk" / "checksums"
    found = [Sidecar.decode(disk.read_file(directory / name)) for name in disk.names(directory)]
    return [sidecar for sidecar in found if sidecar is not None]


def _restore_blocks(
    layout: Layout, disk: Disk, others: Sequence[OtherLog], done: Repaired
) -> list[tuple[int, str]]:
    """Blocks that do not match their checksum, from whoever has them as they were. What is left, as (offset, text)."""
    left: list[tuple[int, str]] = []
    for sidecar in _sidecars(layout, disk):
        path = layout.log_directory / segment_name(sidecar.base_offset)
        if not disk.exists(path):
            continue
        file = disk.open_paged(path)
        for number, wanted in enumerate(sidecar.sums):
            start, stop = sidecar.block(number)
            if block_sum(file.read_at(start, stop - start)) == wanted:
                continue
            offset = sidecar.base_offset + start
            for other in others:
                data = other.read(offset, offset + stop - start)
                if data is not None and block_sum(data) == wanted:
                    _replace(layout, disk, offset, data)
                    done.taken.append(
                        f"{path} byte {start} to {stop} (log offset {offset}) from {other.directory}"
                    )
                    break
            else:
                left.append(
                    (
                        offset,
                        f"{path} byte {start} to {stop} (log offset {offset}): the bytes do not match their checksum",
                    )
                )
    return left


def _restore_stretch(
    layout: Layout, disk: Disk, others: Sequence[OtherLog], lost: Lost, done: Repaired
) -> None:
    for other in others:
        end = other.whole(lost.offset, lost.end)
        if end <= lost.offset or not _is_same_log(layout, disk, other, lost):
            continue
        at = lost.offset
        while at < end:
            stop = min(end, at + _STEP, at - at % layout.segment_size + layout.segment_size)
            data = other.read(at, stop)
            assert data is not None
            _replace(layout, disk, at, data)
            at = stop
        done.taken.append(f"log offset {lost.offset} to {end} from {other.directory}")
        return


def _is_same_log(layout: Layout, disk: Disk, other: OtherLog, lost: Lost) -> bool:
    """Whether a record next to the lost place, or the segment's first, is the same in both."""
    size = layout.segment_size
    base = lost.offset - lost.offset % size
    for offset in (lost.end, base, base - size, base + size):
        segment = other.log.find(offset)
        path = layout.log_directory / segment_name(offset - offset % size)
        if segment is None or offset < 0 or not disk.exists(path):
            continue
        seen = scan_record(segment, offset - segment.base_offset)
        if isinstance(seen, ScannedRecord):
            ours = disk.open_paged(path).read_at(offset % size, seen.size)
            if ours == other.read(offset, offset + seen.size):
                return True
    return False


def _replace(layout: Layout, disk: Disk, offset: int, data: bytes) -> None:
    """Put bytes into the log, and what was there aside."""
    base = offset - offset % layout.segment_size
    file = disk.open_paged(layout.log_directory / segment_name(base))
    old = file.read_at(offset - base, len(data))
    if old.count(0) != len(old):
        disk.append_file(layout.root / "ropewalk" / "replaced" / f"{offset:020d}", old)
    file.write_at(offset - base, data)
    file.sync()


def _give_up(layout: Layout, disk: Disk, done: Repaired) -> None:
    """The loss is accepted: the log ends where it cannot be read, and checksums that do not match go."""
    directory = layout.root / "ropewalk" / "checksums"
    looked = _look(layout, lambda _done, _all: None)
    if looked.lost:
        end = looked.lost[0].offset
        log = CommitLog(layout.log_directory, layout.segment_size, disk)
        log.load()
        done.cut += cut(log, end, layout.root / "ropewalk" / "tails", disk)
        log.close(keep_spare=True)
        done.cut.append(f"the log ends at offset {end} now")
        _lower_bound(layout, disk, end)
        for sidecar in _sidecars(layout, disk):
            if sidecar.shorten(max(end - sidecar.base_offset, 0)):
                path = directory / segment_name(sidecar.base_offset)
                if sidecar.covered:
                    disk.replace_file(path, sidecar.encode())
                else:
                    disk.remove(path)
    for base in _summed(layout, disk):
        if not disk.exists(layout.log_directory / segment_name(base)):
            disk.remove(directory / segment_name(base))
            done.cut.append(f"{directory / segment_name(base)} was removed: its segment is gone")
    for sidecar in _sidecars(layout, disk):
        file = disk.open_paged(layout.log_directory / segment_name(sidecar.base_offset))
        for number, wanted in enumerate(sidecar.sums):
            start, stop = sidecar.block(number)
            if block_sum(file.read_at(start, stop - start)) != wanted:
                path = directory / segment_name(sidecar.base_offset)
                disk.remove(path)
                done.cut.append(f"{path} was removed: bytes that do not match it are taken as they are")
                break


# -- everything else ---------------------------------------------------------------------------------


def _lower_bound(layout: Layout, disk: Disk, end: int) -> None:
    """The bound file claims nothing about queue files, and no more of the log than there is."""
    path = layout.root / "ropewalk" / "bound"
    bound = decode_bound(disk.read_file(path))
    if bound is not None:
        disk.replace_file(path, Bound(flushed=min(bound.flushed, end)).encode())


def _forget_derived(layout: Layout, disk: Disk, queues: set[tuple[str, int]]) -> None:
    """Remove what is built again. The files of queues without a record stay: they alone know the queue's numbers."""
    _lower_bound(layout, disk, NO_LIMIT)
    disk.remove(layout.root / "checkpoint")
    for topic, queue_id in sorted(queues):
        disk.remove_tree(layout.root / "consumequeue" / topic / str(queue_id))
    if layout.index is not None:
        disk.remove_tree(layout.root / "index")


def _build(layout: Layout, done: Repaired) -> None:
    """Start the store as a broker would, and stop it: what was removed is written on the way."""
    config = replace(
        layout.config(sync_flush=True, checksum_block=BLOCK_SIZE),
        index=layout.index,
        index_in_process=False,
        fill_idle=0,
        fill_window=0,
    )
    store = MessageStore(config, Disk(), lambda: int(time.time() * 1000), lambda: None)
    store.open()
    try:
        done.end, done.records = store.log.end_offset, store.recovered.records
        done.queues = sum(len(queues) for queues in store.queues.values())
    finally:
        store.close()
    done.rebuilt = True


def _restore_due_times(layout: Layout) -> None:
    """Have delayed messages be due when they were, whatever table the broker that wrote them had."""
    disk = Disk()
    fd = disk.lock(layout.root / "lock")
    try:
        restore_due_times(layout, disk)
    finally:
        disk.close()
        disk.unlock(fd)


__all__ = ["OtherLog", "Repaired", "StoreDamaged", "repair"]
