"""Checksums of the commit log, block by block, in `ropewalk/checksums/<segment name>`.

What is flushed is summed by a helper thread soon after, in whole blocks, and the rest of the last block when the store
is closed. From then on damage can be told apart from everything else, in the parts of a record that have no checksum
of their own too. Three times it is looked for:

*at the start* in the last `check_at_start` bytes of the log, before recovery believes anything;
*at a read* of bytes that an earlier process wrote, once for each block (`Checks`);
*in the background*, a few MiB a second, over everything (`scrub.py`).

A damaged place that is found while the store is open is reported, and every read of its segment is held against the
checksums from then on; how it becomes whole again is `mending`'s affair.

A block under a checksum had survived a flush when it was summed, so recovery never cuts there. Deleting the files
costs these checks and no message. A segment's checksums go before the segment does: checksums without their segment,
in a log that nobody else has written to, mean that somebody took it away.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ropewalk.errors import CorruptRecord
from ropewalk.format.record import decode_records
from ropewalk.format.sidecar import Sidecar, block_sum
from store.io.disk import Disk
from store.io.workers import Worker
from store.log.commitlog import CommitLog, StoreDamaged
from store.log.remedy import bytes_from_a_copy
from store.log.segment import Segment

_BLOCKS_AT_ONCE = 16
_SAVE_INTERVAL_S = 1.0


class BlockDamaged(OSError):
    """Bytes on disk that differ from those that were written. Handled as the disk's error: they are never served."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A damaged place of the log, in whole blocks. Positions are in its segment."""

    base_offset: int
    start: int
    stop: int
    wanted: int | None
    """The CRC32C of what was written, which is one block; None in a segment without checksums."""
    record: int = -1
    """In such a segment: where the records begin of which one is not whole. What the place has before is whole."""

    @property
    def offset(self) -> int:
        """The log offset of its first byte."""
        return self.base_offset + self.start

    @property
    def end(self) -> int:
        return self.base_offset + self.stop


def sidecar_path(directory: Path, segment: Segment) -> Path:
    return directory / segment.file.path.name


def block_at(segment: Segment, start: int, size: int) -> bytes:
    """Return the bytes of a block. Blocks; raises OSError, where the file was cut too."""
    block = segment.file.read_at(start, size)
    if len(block) != size:
        raise OSError(errno.EIO, f"the file was cut to {start + len(block)} bytes", str(segment.file.path))
    return block


def damage_text(segment: Segment, start: int, stop: int, directory: Path) -> str:
    """Return a text that names the place and the remedy."""
    root = directory.parent.parent
    return (
        f"damaged bytes in {segment.file.path} at byte {start} to {stop} (log offset {segment.base_offset + start}): "
        f"they do not match their checksum in {sidecar_path(directory, segment)}. Look at them with "
        f"`ropewalk store verify {root}`. {bytes_from_a_copy(segment.placing, root)}"
    )


class Checks:
    """A check of one segment's bytes that an earlier process wrote. For any thread."""

    def __init__(
        self,
        segment: Segment,
        sidecar: Sidecar | None,
        end: int,
        directory: Path,
        found: Callable[[str, Damaged | None], None],
        told: Iterable[int] = (),
    ) -> None:
        """Bytes before `end` are checked when they are first read; `found` is told of damage but in blocks `told`."""
        self._segment = segment
        self._sidecar = sidecar or Sidecar(segment.base_offset, segment.size)
        self._end = end
        self._good = bytearray(len(self._sidecar.sums))
        self._directory = directory
        self._found = found
        self._told: set[int] = set(told)

    @property
    def end(self) -> int:
        return self._end

    def is_checked(self, position: int, size: int) -> bool:
        """Tell whether these bytes can be read without a check."""
        if position >= self._end:
            return True
        if min(position + size, self._end) > self._sidecar.covered:
            return False
        return all(self._good[number] for number in self._sidecar.blocks_of(position, size))

    def check(self, position: int, size: int) -> None:
        """Check bytes that are whole records. Blocks; raises `BlockDamaged`."""
        if position >= self._end:
            return
        self.check_blocks(position, size)
        sidecar, file = self._sidecar, self._segment.file
        if position + size > sidecar.covered:
            try:
                decode_records(file.read_at(position, size))
            except CorruptRecord as exc:
                self._tell(
                    -1 - position,
                    f"damaged record in {file.path} near byte {position} (log offset "
                    f"{self._segment.base_offset + position}): {exc}. Look at it with "
                    f"`ropewalk store verify {self._directory.parent.parent}`",
                    None,
                )

    def check_blocks(self, position: int, size: int) -> None:
        """Compare blocks with their checksums, wherever records begin. Blocks; raises `BlockDamaged`."""
        if position >= self._end:
            return
        sidecar, file = self._sidecar, self._segment.file
        for number in sidecar.blocks_of(position, size):
            if not self._good[number]:
                start, stop = sidecar.block(number)
                if block_sum(file.read_at(start, stop - start)) != sidecar.sums[number]:
                    self._tell(
                        number,
                        damage_text(self._segment, start, stop, self._directory),
                        Damaged(self._segment.base_offset, start, stop, sidecar.sums[number]),
                    )
                self._good[number] = 1

    def _tell(self, key: int, text: str, damaged: Damaged | None) -> None:
        if key not in self._told:
            self._told.add(key)
            self._found(text, damaged)
        raise BlockDamaged(text)


class Checksums:
    """The sidecars of one log. The loop owns it; what is handed to the worker says so."""

    def __init__(self, directory: Path, block_size: int, log: CommitLog, disk: Disk) -> None:
        self.directory = directory
        self.findings: list[str] = []
        """For people. Reader threads append too."""
        self.reported: deque[Damaged] = deque()
        """Damaged places, for whoever sees to them. Reader threads append too."""
        self.orphans: list[Path] = []
        """Checksums of segments from before the log: only retention takes those away, and the checksums first."""
        self.block_size = block_size
        self._log = log
        self._disk = disk
        self._sidecars: dict[int, Sidecar] = {}
        self._from = 0
        """Segments from this offset on are summed as they fill; older ones without checksums are the scrubber's."""
        self._failed: dict[int, int] = {}
        """Where segments begin that could not be summed, and when it was last tried; they are the scrubber's too."""
        self._worker: Worker | None = None
        self._busy = False
        self._saved_s = 0.0

    # -- open ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the sidecars of the log's segments. Blocks; changes nothing."""
        by_name = {segment.file.path.name: segment for segment in self._log.segments}
        for name in self._disk.names(self.directory):
            path = self.directory / name
            segment = by_name.get(name)
            if segment is None:
                if name.isdigit() and int(name) < self._log.min_offset:
                    self.orphans.append(path)
                continue
            sidecar = Sidecar.decode(self._disk.read_file(path))
            if sidecar is None or (sidecar.base_offset, sidecar.segment_size) != (
                segment.base_offset,
                segment.size,
            ):
                self.findings.append(f"{path} holds no checksums of its segment, and does not count")
                continue
            self._sidecars[segment.base_offset] = sidecar

    @property
    def covered_end(self) -> int:
        """Bytes of the log below this had survived a flush."""
        return max((base + sidecar.covered for base, sidecar in self._sidecars.items()), default=0)

    def get(self, segment: Segment) -> Sidecar | None:
        return self._sidecars.get(segment.base_offset)

    def check_recent(self, size: int) -> None:
        """Check the last `size` bytes under checksums, and the last block always. Blocks; raises `StoreDamaged`."""
        low = self.covered_end - max(size, 1)
        for segment in self._log.segments:
            sidecar = self._sidecars.get(segment.base_offset)
            if sidecar is None or segment.base_offset + sidecar.covered <= low:
                continue
            first = max(low - segment.base_offset, 0)
            for number in sidecar.blocks_of(first, segment.size - first):
                start, stop = sidecar.block(number)
                if block_sum(segment.file.read_at(start, stop - start)) != sidecar.sums[number]:
                    text = damage_text(segment, start, stop, self.directory)
                    raise StoreDamaged(f"{text}. Nothing was changed")

    def begin(self, end: int) -> None:
        """The log ends at `end`: from here on what is new gets checksums, and what is older is checked. Blocks."""
        for base, sidecar in list(self._sidecars.items()):
            if sidecar.shorten(max(end - base, 0)):
                self._disk.replace_file(self.directory / f"{base:020d}", sidecar.encode())
        segments = self._log.segments
        for segment in segments:
            inherited = min(max(end - segment.base_offset, 0), segment.size)
            segment.checks = Checks(segment, self._copy(segment), inherited, self.directory, self._found)
        for path in self.orphans:
            self._disk.remove(path)
        self.orphans.clear()
        last = segments[-1] if segments else None
        if last is not None and (self.get(last) is not None or self._log.trusted_offset <= last.base_offset):
            self._from = last.base_offset
        else:  # what stands in the last segment was never summed: that is the scrubber's work, once it is full
            self._from = last.end_offset if last is not None else 0

    def _copy(self, segment: Segment) -> Sidecar | None:
        """Copy the sums for `Checks`: they must not change while the segment is summed further."""
        sidecar = self._sidecars.get(segment.base_offset)
        if sidecar is None:
            return None
        covered, sums = sidecar.covered, list(sidecar.sums)  # the worker may be adding to it
        covered = min(covered, len(sums) * sidecar.block_size)
        del sums[-(-covered // sidecar.block_size) :]
        return Sidecar(sidecar.base_offset, sidecar.segment_size, sidecar.block_size, covered, sums)

    def frozen(self, segment: Segment) -> Sidecar | None:
        """Return a snapshot of a segment's checksums, for another thread."""
        return self._copy(segment)

    def _found(self, text: str, damaged: Damaged | None) -> None:
        """From any thread."""
        self.findings.append(text)
        if damaged is not None:
            self.reported.append(damaged)

    def distrust(self, segment: Segment, told: Iterable[int]) -> None:
        """Check every read of this segment from now on, also of bytes that were checked before.

        Reads that are under way go by what was known when they began. Damage in blocks `told` is told already.
        """
        sidecar = self._copy(segment)
        if segment.end_offset <= self._log.flushed_offset:
            end = segment.size
        else:
            end = sidecar.covered if sidecar is not None else 0
            end = max(end, segment.checks.end if segment.checks is not None else 0)
        segment.checks = Checks(segment, sidecar, end, self.directory, self._found, told)

    # -- sum -----------------------------------------------------------------------------------------

    def start(self, worker: Worker) -> None:
        self._worker = worker

    def tick(self, flushed_offset: int) -> None:
        """Submit the blocks that were flushed since to the worker, if there is a whole one."""
        if self._busy or self._worker is None:
            return
        due: list[Segment] = []
        for segment in reversed(self._log.segments):
            if segment.base_offset < self._from:
                break
            if self._limit(segment, flushed_offset) > self._covered(segment):
                due.append(segment)
                if segment.base_offset not in self._failed:
                    break
        if due:  # those that could not be summed come after all others, and in turn
            segment = min(due, key=lambda segment: self._failed.get(segment.base_offset, 0))
            self._submit(self._worker, segment, self._limit(segment, flushed_offset))

    def _submit(self, worker: Worker, segment: Segment, limit: int) -> None:
        sidecar = self._sidecars.get(segment.base_offset) or self._new(segment)
        self._busy = True
        segment.pins += 1

        def done(_result: object) -> None:
            segment.pins -= 1
            self._busy = False

        worker.submit(partial(self._sum, segment, sidecar, limit, _BLOCKS_AT_ONCE), done)

    def _limit(self, segment: Segment, flushed_offset: int) -> int:
        """Up to where a segment can be summed by now."""
        limit = min(flushed_offset - segment.base_offset, segment.size)
        return limit - limit % self.block_size if limit < segment.size else limit

    def _covered(self, segment: Segment) -> int:
        sidecar = self._sidecars.get(segment.base_offset)
        return sidecar.covered if sidecar is not None else 0

    def is_owed(self, segment: Segment) -> bool:
        """Tell whether `tick` is about to sum the rest of this segment, however full it is, as far as one can tell."""
        base = segment.base_offset
        return base >= self._from and base not in self._failed and self._covered(segment) < segment.size

    def compare(self, done: Callable[[], None]) -> None:
        """Have the worker compare the whole log with its checksums, and report blocks that differ before `done`."""
        assert self._worker is not None
        segments = list(self._log.segments)
        for segment in segments:
            segment.pins += 1
        copies = [(segment, self._copy(segment)) for segment in segments]

        def finished(_result: object) -> None:
            for segment in segments:
                segment.pins -= 1
            done()

        self._worker.submit(partial(self._compare, copies), finished)

    def _compare(self, copies: list[tuple[Segment, Sidecar | None]]) -> None:
        for segment, sidecar in copies:
            for number, wanted in enumerate(sidecar.sums if sidecar is not None else ()):
                assert sidecar is not None
                start, stop = sidecar.block(number)
                if block_sum(segment.file.read_at(start, stop - start)) != wanted:
                    place = Damaged(segment.base_offset, start, stop, wanted)
                    self._found(damage_text(segment, start, stop, self.directory), place)

    def _new(self, segment: Segment) -> Sidecar:
        sidecar = Sidecar(segment.base_offset, segment.size, self.block_size)
        self._sidecars[segment.base_offset] = sidecar
        return sidecar

    def _sum(self, segment: Segment, sidecar: Sidecar, limit: int, blocks: int) -> None:
        """On the worker: go on with a segment's checksums up to byte `limit`, `blocks` at most."""
        try:
            sidecar.shorten(sidecar.covered - sidecar.covered % sidecar.block_size)
            while sidecar.covered < limit and blocks:
                start = sidecar.covered
                block = block_at(segment, start, min(sidecar.block_size, limit - start))
                sidecar.sums.append(block_sum(block))
                sidecar.covered += len(block)
                blocks -= 1
            if sidecar.covered == limit or time.monotonic() - self._saved_s > _SAVE_INTERVAL_S:
                self._saved_s = time.monotonic()
                self.save(sidecar)
            if sidecar.covered == limit:
                self._failed.pop(segment.base_offset, None)
        except OSError as exc:  # no room, or bytes that cannot be read: no checksums then
            if segment.base_offset not in self._failed:  # it is tried again and again, and told once
                self.findings.append(f"{segment.file.path} gets no checksums: {exc}")
            self._failed[segment.base_offset] = time.monotonic_ns()
            sidecar.shorten(0)

    def save(self, sidecar: Sidecar) -> None:
        """Write a sidecar. Not durable, and torn it counts as none. Blocks."""
        data = sidecar.encode()
        path = self.directory / f"{sidecar.base_offset:020d}"
        self._disk.create_paged(path, len(data)).write_at(0, data)
        self._disk.forget(path)

    def adopt(self, sidecar: Sidecar) -> None:
        """Take over checksums that the scrubber made of a segment that had none."""
        self._sidecars[sidecar.base_offset] = sidecar

    def stop(self) -> None:
        """Let the worker come to an end. Blocks."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def finish(self, end: int) -> None:
        """Sum the rest, which is flushed. Blocks; the worker has stopped."""
        for segment in self._log.segments:
            if segment.base_offset < self._from:
                continue
            sidecar = self._sidecars.get(segment.base_offset) or self._new(segment)
            limit = min(end - segment.base_offset, segment.size)
            if sidecar.covered < limit:
                self._sum(segment, sidecar, limit, -1)
